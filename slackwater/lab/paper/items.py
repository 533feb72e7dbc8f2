"""The paper's figures and tables by name, with the cells that each needs and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.lab.paper import accuracy, claims, figures
from slackwater.lab.paper import cells as of
from slackwater.lab.paper.cells import Cell, Store
from slackwater.lab.paper.output import Output
from slackwater.lab.paper.setting import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs of an item."""

    source: Source
    every_zone: Source
    """Source of Fig. 2 and 3, which use all zones."""
    store: Store
    out: Path
    seeds: tuple[int, ...] = of.SEEDS
    rates: tuple[float, ...] = (of.LR,)
    """Learning rates at which the tables' cells are trained; the tables show the best of all stored rates."""
    quick: bool = False

    def cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells, or their small version with --quick."""
        return list(dict.fromkeys(of.quick(cells))) if self.quick else list(cells)

    def baseline(self) -> list[Cell]:
        """Return the runs without slack."""
        return self.cells(of.baseline_cells(self.seeds))

    def table(self, *fine_tune: int) -> list[Cell]:
        """Return the cells of the accuracy tables with these windows."""
        return self.cells([cell for window in fine_tune for cell in of.table_cells(window, self.seeds, self.rates)])

    def tuned(self, cells: list[Cell]) -> list[Cell]:
        """Return the same cells at every rate; a table shows the best."""
        return cells if self.quick else of.with_rates(cells)


@dataclass(frozen=True, slots=True)
class Item:
    """One figure or table."""

    make: Callable[[Context, list[Cell]], Output]
    cells: Callable[[Context], list[Cell]] = lambda context: []


def _fig3(context: Context, cells: list[Cell]) -> Output:
    return figures.savings_by_count(context.every_zone, starts=10 if context.quick else figures.STARTS)


def _table(fine_tune: int) -> Item:
    return Item(
        lambda c, cells: accuracy.table(c.source, c.store, fine_tune, c.tuned(cells)), lambda c: c.table(fine_tune)
    )


ITEMS = {
    "fig1": Item(lambda c, cells: figures.evolution(c.source)),
    "fig2": Item(lambda c, cells: figures.savings_by_slack(c.every_zone)),
    "fig3": Item(_fig3),
    "fig4": Item(lambda c, cells: figures.schedules(c.source)),
    "setting": Item(lambda c, cells: accuracy.setting(c.store, cells), lambda c: c.cells(of.setting_cells())),
    "baseline": Item(lambda c, cells: accuracy.baseline(c.store, cells), Context.baseline),
    "fig5": Item(
        lambda c, cells: figures.accuracy_by_alpha(c.store, cells), lambda c: c.cells(of.alpha_cells(c.seeds))
    ),
    "fig6": Item(lambda c, cells: figures.correlation(c.store, cells), lambda c: c.cells(of.process_cells(c.seeds))),
    "table1a": _table(1),
    "table1b": _table(3),
    "fig7": Item(
        lambda c, cells: accuracy.scatter(c.store, c.tuned(c.table(1, 3)), c.baseline()),
        lambda c: [*c.baseline(), *c.table(1, 3)],
    ),
    "claims": Item(lambda c, cells: claims.claims(c.out)),
}
"""In the order of `all`: the claims are judged from the other items' files."""
