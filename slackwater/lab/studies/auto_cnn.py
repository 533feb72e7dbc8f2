"""Confirm the choice of the planner `auto` with the paper's CNN, compared with the paper's method where it was trained.

python -m slackwater.lab auto-cnn --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist
python -m slackwater.lab auto-cnn --data ../shared/data/ci_paper7 --show
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

import click

from slackwater.cli.options import Seeds, seeds_option
from slackwater.lab.paper import cells
from slackwater.lab.paper.accuracy import no_slack
from slackwater.lab.paper.setting import BETA, ENDS, Source
from slackwater.lab.store import RESULTS
from slackwater.lab.studies.auto import shown_cell
from slackwater.lab.studies.auto_cells import LR, OURS, PAPER_CELLS, SEARCH_SEEDS, Cell, Maker, auto_cell
from slackwater.lab.tables import line, spread, under

CNN_BUDGETS = (3, 4, 5, 9, 10, 20, 30, 40)


@click.command()
@click.option("--data", default="typical", help="Carbon intensity: the folder of the seven zones.")
@click.option("--task", default="mnist")
@click.option("--task-data", default=None, help="Folder of MNIST.")
@click.option("--budgets", default=",".join(map(str, CNN_BUDGETS)), help="Budgets T, in training order.")
@seeds_option
@click.option("--rules", default=OURS, help="Aggregators on auto's schedules.")
@click.option(
    "--grid", default="", help="End times at which our aggregator is trained too, such as 20,50; 58/2 is a window of 2."
)
@click.option("--grid-seeds", type=Seeds(), default=1, show_default=True, help="Seeds of the grid, as for --seeds.")
@click.option(
    "--paper",
    is_flag=True,
    help="Train the paper's method too: its likely best cells on seed 0, the best of these on all.",
)
@click.option("--beta", default=BETA, show_default=True, help="Skew of the clients' data.")
@click.option("--local-steps", default=cells.LOCAL_STEPS, show_default=True)
@click.option("--batch-size", default=cells.BATCH, show_default=True)
@click.option("--jobs", default=1, show_default=True)
@click.option("--show", is_flag=True, help="Train nothing; show the stored results.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "auto_cnn.jsonl")
@click.option(
    "--paper-cells",
    type=click.Path(path_type=Path),
    default=Path("experiments/paper/cells.jsonl"),
    help="The paper's method, to compare with: where `slackwater paper table1a` stores its cells.",
)
def main(
    data: str,
    task: str,
    task_data: str | None,
    budgets: str,
    seeds: tuple[int, ...],
    rules: str,
    grid: str,
    grid_seeds: tuple[int, ...],
    paper: bool,
    beta: float,
    local_steps: int,
    batch_size: int,
    jobs: int,
    show: bool,
    results: Path,
    paper_cells: Path,
) -> None:
    """Confirm with the paper's CNN: train auto's choice at each budget, and show what is stored."""
    source, work = Source(data=data, task=task, task_data=task_data, beta=beta), Work(local_steps, batch_size)
    store, theirs = cells.open_store(results, source), cells.open_store(paper_cells, source)
    hours = [int(T) for T in budgets.split(",")]
    chosen = {T: auto_cell(Maker(data), Cell(hours=T)) for T in hours}
    wanted = {
        (T, rule, seed): cells.Cell(
            rounds=T, end=one.end, fine_tune=one.fine_tune, recall=one.recall, alpha=float(one.alpha), aggregator=rule,
            local_steps=local_steps, batch_size=batch_size, lr=LR, seed=seed,
        )
        for seed in seeds for T, one in chosen.items() for rule in rules.split(",")
    }  # fmt: skip
    if not show:
        ends = [[int(number) for number in one.split("/")] for one in grid.split(",") if one]
        beside = [replace(work.ours(T, *of), seed=seed) for seed in grid_seeds for T in hours for of in ends]
        _train([*wanted.values(), *beside], source, store, jobs)
    if paper and not show:
        # Windows of 3 start at T = 4: at T = 3 they would use the whole budget.
        tried = [[work.published(T, *key) for key in PAPER_CELLS if key[0] < T] for T in hours]
        _train(chain(*tried), source, theirs, jobs)
        best = [cell for of in tried if (cell := _best(theirs, of)) is not None]
        _train([replace(cell, seed=seed) for seed in seeds for cell in best], source, theirs, jobs)
    names = rules.split(",")
    click.echo(line("T", "no slack", "paper's best cell", "of", "our best cell", "of", *names, "of"))
    click.echo(under(len(names) + 7))
    for T, one in chosen.items():
        auto = [_shown(store, [cell for (t, r, _), cell in wanted.items() if (t, r) == (T, rule)]) for rule in names]
        published = _shown_best(theirs, [work.published(T, *key) for key in product((1, 3), ENDS, cells.RATES)])
        ours = _shown_best(store, [work.ours(T, end, t_ft) for t_ft, end in product((1, 3), ENDS)])
        click.echo(line(T, work.no_slack(theirs, T), *published, *ours, *auto, shown_cell(one)))


def _train(wanted: Iterable[cells.Cell], source: Source, store: cells.Store, jobs: int) -> None:
    for row in cells.sweep(list(wanted), source, store, jobs=jobs):
        click.echo(f"{row['cell']}: {row.get('accuracy', row['status'])}, {row['seconds']} s", err=True)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a client in a round, the same for both methods."""

    local_steps: int
    batch_size: int

    def published(self, hours: int, fine_tune: int, end: int, lr: float) -> cells.Cell:
        """Return the paper's method in a cell of its tables."""
        cell = cells.table_cell(fine_tune, hours, end, 0, lr)
        return replace(cell, local_steps=self.local_steps, batch_size=self.batch_size)

    def ours(self, hours: int, end: int, fine_tune: int = 1) -> cells.Cell:
        """Return our aggregator at an end time of the paper's tables."""
        return replace(self.published(hours, fine_tune, end, LR), aggregator=OURS)

    def no_slack(self, store: cells.Store, hours: int) -> str:
        """Return the accuracy without slack as text."""
        runs = [replace(c, local_steps=self.local_steps, batch_size=self.batch_size) for c in cells.baseline_cells()]
        mean = no_slack(store, runs).get(hours)
        return "" if mean is None else str(mean)


def _best(store: cells.Store, seed_0: list[cells.Cell]) -> cells.Cell | None:
    found = {cell: values[0] for cell in seed_0 if (values := store.accuracies([cell]))}
    return max(found, key=lambda cell: found[cell], default=None)


def _shown_best(store: cells.Store, seed_0: list[cells.Cell]) -> tuple[str, str]:
    """Show the best cell of seed 0 on the other seeds; without others, on seed 0, which favours it."""
    best = _best(store, seed_0)
    if best is None:
        return "", ""
    others = [other for seed in SEARCH_SEEDS[1:] if store.get(other := replace(best, seed=seed)) is not None]
    rate = "" if best.lr == LR else f", lr {best.lr:g}"
    of = len(store.accuracies(seed_0))
    return _shown(store, others or [best]), f"s={best.end}, t_ft={best.fine_tune}{rate}; of {of}"


def _shown(store: cells.Store, wanted: list[cells.Cell]) -> str:
    """Return mean and deviation over seeds, their number, and the worst client's mean."""
    worst = [100 * row["worst_client"] for row in map(store.get, wanted) if row is not None and "worst_client" in row]
    accuracies = spread(store.accuracies(wanted))
    return f"{accuracies}, worst {statistics.mean(worst):.2f}" if worst else accuracies
