"""The paper's figures and tables by name: which cells each needs, and how it is made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.paper import accuracy, claims, correlation, fairness, slack, sweeps
from slackwater.paper.cells import Cell, Store
from slackwater.paper.output import Output
from slackwater.paper.setting import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an item is made from."""

    source: Source
    every_zone: Source
    """Of Fig. 2 and 3, which take all zones there are."""
    store: Store
    out: Path
    seeds: tuple[int, ...] = sweeps.SEEDS
    rates: tuple[float, ...] = (sweeps.LR,)
    """Learning rates at which cells of the accuracy tables are trained; shown is the best of all that are stored."""
    quick: bool = False

    def cells(self, cells: Sequence[Cell]) -> list[Cell]:
        """As asked for, or the same in small."""
        return list(dict.fromkeys(sweeps.quick(cells))) if self.quick else list(cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One figure or table."""

    name: str
    title: str
    make: Callable[[Context, list[Cell]], Output]
    cells: Callable[[Context], list[Cell]] = lambda context: []


def _fig2(context: Context, cells: list[Cell]) -> Output:
    return slack.savings_by_slack(context.every_zone)


def _fig3(context: Context, cells: list[Cell]) -> Output:
    return slack.savings_by_count(context.every_zone, starts=10 if context.quick else slack.STARTS)


def _table(fine_tune: int) -> Item:
    return Item(
        name=accuracy.NAMES[fine_tune],
        title=f"accuracy by budget and end time, t_ft = {fine_tune}",
        cells=lambda context: context.cells(sweeps.table_cells(fine_tune, context.seeds, context.rates)),
        make=lambda context, cells: accuracy.table(
            context.source, context.store, fine_tune, cells if context.quick else accuracy.with_rates(cells)
        ),
    )


def _all_table_cells(context: Context) -> list[Cell]:
    return context.cells(
        [cell for fine_tune in (1, 3) for cell in sweeps.table_cells(fine_tune, context.seeds, context.rates)]
    )


def _baseline_cells(context: Context) -> list[Cell]:
    return context.cells(sweeps.baseline_cells(context.seeds))


ITEMS = {
    item.name: item
    for item in (
        Item(
            name="fig1", title="carbon intensity, 1 to 5 January 2022", make=lambda c, cells: slack.evolution(c.source)
        ),
        Item(name="fig2", title="savings of each zone against slack", make=_fig2),
        Item(name="fig3", title="savings of the N cleanest zones", make=_fig3),
        Item(name="fig4", title="schedules at alpha = 1 and 0.001", make=lambda c, cells: fairness.schedules(c.source)),
        Item(
            name="setting",
            title="search for the local work that the paper leaves open",
            cells=lambda c: c.cells(sweeps.setting_cells()),
            make=lambda c, cells: accuracy.setting(c.store, cells),
        ),
        Item(
            name="baseline",
            title="the no-slack column",
            cells=_baseline_cells,
            make=lambda c, cells: accuracy.baseline(c.store, cells),
        ),
        Item(
            name="fig5",
            title="accuracy against alpha at three budgets",
            cells=lambda c: c.cells(sweeps.alpha_cells(c.seeds)),
            make=lambda c, cells: fairness.accuracy_by_alpha(c.store, cells),
        ),
        Item(
            name="fig6",
            title="heterogeneity and correlation, with and without fine-tuning",
            cells=lambda c: c.cells(sweeps.process_cells(c.seeds)),
            make=lambda c, cells: correlation.correlation(c.store, cells),
        ),
        _table(1),
        _table(3),
        Item(
            name="fig7",
            title="best schedule against no slack",
            cells=lambda c: [*_baseline_cells(c), *_all_table_cells(c)],
            make=lambda c, cells: accuracy.scatter(
                c.store,
                _all_table_cells(c) if c.quick else accuracy.with_rates(_all_table_cells(c)),
                _baseline_cells(c),
            ),
        ),
        Item(name="claims", title="the paper's claims, with verdicts", make=lambda c, cells: claims.claims(c.out)),
    )
}
