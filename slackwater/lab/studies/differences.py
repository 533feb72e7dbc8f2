"""Look for what explains three differences from the paper's tables, with one change of the method at a time.

python -m slackwater.lab differences run --data CI_FOLDER --task-data MNIST_FOLDER
python -m slackwater.lab differences table

The differences: with t_ft = 3 and s = 10 the paper is below ours; with t_ft = 1 and s from 50 on it is above ours; and its
small alpha gains 8 points at 2 kg. All runs use the paper's CNN. A run without a change is one of `slackwater paper`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

import slackwater as sw
from slackwater.cli.options import ListOf, seeds_option
from slackwater.lab.paper import cells, published
from slackwater.lab.paper.setting import ALPHA, ENDS, Source
from slackwater.lab.store import DIVERGED, RESULTS, TRAINED, Row, Store, quiet, sweep, trained
from slackwater.lab.tables import line, under
from slackwater.planning.plan import Plan
from slackwater.planning.schedule import plan_from_matrix

CHANGES = {
    "none": "no change",
    "over-T": "pi over T instead of T + s slots",
    "window": "U-FedAvg's weights in the window too, pi over all slots",
    "normalised": "weights scaled to a sum of at most 1",
    "fedavg": "plain means",
    "momentum": "local momentum 0.9",
    "no-decay": "no weight decay instead of 0.0005",
    "epoch": "one local epoch of batches of 128 instead of 45 steps of 32",
    "more": "45 local steps of 32 instead of 5 of 128",
    "ufedavg": "U-FedAvg instead of plain means",
    "skewed": "beta = 0.1 instead of 0.5",
}
"""Name and meaning of each change."""


Key = tuple[int, int, int, float]
"""t_ft, T, s and alpha of a cell of the paper; t_ft = 0 is the figure on fairness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A difference from the paper, and the changes that could explain it."""

    title: str
    keys: tuple[Key, ...]
    changes: tuple[str, ...]
    rates: tuple[float, ...]


ITEMS = {
    "window": Item(
        title="t_ft = 3, s = 10: the paper is below ours",
        keys=((3, 4, 10, ALPHA),),
        changes=("none", "over-T", "window", "normalised", "fedavg", "momentum", "no-decay", "epoch"),
        rates=cells.RATES,
    ),
    "slack": Item(
        title="t_ft = 1, s from 50 on: the paper is above ours",
        keys=((1, 3, 70, ALPHA),),
        changes=("none", "over-T", "window", "normalised", "fedavg", "momentum", "no-decay", "epoch"),
        rates=cells.RATES,
    ),
    "alpha": Item(
        title="Fairness at 2 kg: alpha = 0.001 gains 8 points over alpha = 1 in the paper",
        keys=((0, cells.ALPHA_ROUNDS, 0, 1.0), (0, cells.ALPHA_ROUNDS, 0, 0.001)),
        changes=("none", "ufedavg", "more", "skewed"),
        rates=(cells.LR,),
    ),
}
ALPHA_KG = 2.0
SKEW = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    item: str
    fine_tune: int
    hours: int
    end: int
    alpha: float
    change: str
    lr: float
    seed: int


def paper_cell(cell: Cell) -> cells.Cell:
    """Return the run of `slackwater paper` that a cell changes."""
    if cell.fine_tune == 0:
        return next(
            one for one in cells.alpha_cells([cell.seed]) if one.budget_kg == ALPHA_KG and one.alpha == cell.alpha
        )
    return cells.table_cell(cell.fine_tune, cell.hours, cell.end, cell.seed, cell.lr)


def changed(plan: Plan, cell: Cell) -> tuple[Plan, dict[str, Any]]:
    """Return the plan and the training settings of a cell's change."""
    start = paper_cell(cell)
    how: dict[str, Any] = {
        "aggregator": start.aggregator, "local_steps": start.local_steps, "batch_size": start.batch_size, "lr": start.lr
    }  # fmt: skip
    if cell.change == "over-T":
        how["server_lr"] = plan.problem.rounds / plan.before  # before the window only, as U-FedAvg's weights
    elif cell.change == "window":  # without a window its slots are like all others
        return plan_from_matrix(plan.problem.with_settings(fine_tune=0), plan.matrix, end=plan.end), how
    elif cell.change in ("normalised", "fedavg", "ufedavg"):
        how["aggregator"] = cell.change
    elif cell.change == "no-decay":
        how["weight_decay"] = 0.0
    elif cell.change == "epoch":
        how |= {"local_epochs": 1, "batch_size": cells.STATED_BATCH}
    elif cell.change == "more":
        how |= {"local_steps": cells.LOCAL_STEPS, "batch_size": cells.BATCH}
    return plan, how


def measure(cell: Cell, source: Source) -> Row:
    """Train a cell on one thread."""

    def train() -> Row:
        plan, how = changed(paper_cell(cell).schedule(source), cell)
        options = source.task_options(cell.seed) | ({"beta": SKEW} if cell.change == "skewed" else {})
        task = sw.tasks.make(source.task, **options)
        if cell.change == "momentum":
            task = replace(task, optimiser=partial(torch.optim.SGD, momentum=0.9))
        result = sw.train(plan, task, seed=cell.seed, threads=1, eval_every=0, training_loss=False, **how)
        return {"accuracy": result.score, "worst_client": result.worst_client_score}

    with quiet():
        return trained(train)


def cells_of(items: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Return all combinations, seed by seed."""
    return [
        Cell(item=name, fine_tune=t_ft, hours=T, end=end, alpha=alpha, change=change, lr=lr, seed=seed)
        for seed in seeds
        for name in items
        for change in ITEMS[name].changes
        for t_ft, T, end, alpha in ITEMS[name].keys
        for lr in ITEMS[name].rates
    ]


def rates_by_row(store: cells.Store, fine_tune: int, seeds: Iterable[int]) -> dict[int, dict[float, dict[int, float]]]:
    """Return for each T, rate and s the mean accuracy in percent, over the s that were trained at every rate."""
    found: dict[int, dict[float, dict[int, float]]] = {}
    every = list(seeds)
    for hours in sorted({T for t_ft, T, _ in published.ACCURACY if t_ft == fine_tune}):
        means: dict[float, dict[int, float]] = {}
        for lr in cells.RATES:
            for end in ENDS:
                values = store.accuracies(cells.table_cell(fine_tune, hours, end, seed, lr) for seed in every)
                if values:
                    means.setdefault(lr, {})[end] = statistics.mean(values)
        shared = set.intersection(*(set(of) for of in means.values())) if len(means) == len(cells.RATES) else set()
        if shared:
            found[hours] = {lr: {end: of[end] for end in sorted(shared)} for lr, of in means.items()}
    return found


@click.group()
def main() -> None:
    """Changes of the paper's method, one at a time, where our tables differ from the published ones."""


results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "differences.jsonl")
items_option = click.option(
    "--items",
    "names",
    type=ListOf(str, "item"),
    metavar="NAME,..",
    help=f"Default: all. There are: {', '.join(ITEMS)}.",
)


@main.command()
@click.option("--data", default="typical", show_default=True, help="Carbon intensity: the folder of the seven zones.")
@click.option("--task", default="mnist", show_default=True, help="The paper's task; digits is a quick trial.")
@click.option("--task-data", default=None, help="Folder of the task's files. Default: the copy in the cache.")
@items_option
@click.option("--jobs", default=1, show_default=True)
@seeds_option
@results_option
def run(
    data: str,
    task: str,
    task_data: str | None,
    names: list[str] | None,
    jobs: int,
    seeds: tuple[int, ...],
    results: Path,
) -> None:
    """Train the missing cells; a stopped sweep continues."""
    store, source = Store(results, Cell), Source(data=data, task=task, task_data=task_data)
    for row in sweep(cells_of(_known(names), seeds), partial(measure, source=source), store, jobs=jobs):
        shown = row["status"] if row["status"] != TRAINED else f"{100 * row['accuracy']:.2f} %"
        click.echo(
            "{item} T={hours} s={end} alpha={alpha:g} {change} lr {lr:g} seed {seed}: ".format(**row)
            + f"{shown}, {row['seconds']} s",
            err=True,
        )


@main.command()
@items_option
@click.option(
    "--paper-cells",
    type=click.Path(path_type=Path),
    default=Path("experiments/paper/cells.jsonl"),
    help="Where `slackwater paper table1a` stores its cells.",
)
@results_option
def table(names: list[str] | None, paper_cells: Path, results: Path) -> None:
    """Show each change beside the paper, by learning rate."""
    store = Store(results, Cell)
    rows = store.rows()
    for name in _known(names):
        item = ITEMS[name]
        kept = [row for row in rows if row["item"] == name]
        if kept:
            click.echo(f"\n**{item.title}.** Accuracy in % by rate ({', '.join(f'{lr:g}' for lr in item.rates)}).\n")
            click.echo(line("change", *map(_label, item.keys), "seeds"))
            click.echo(under(len(item.keys) + 2))
            if name != "alpha":
                click.echo(line("the paper", *(f"{_published(*key[:3]):.2f}" for key in item.keys), ""))
            for change in item.changes:
                of = [row for row in kept if row["change"] == change]
                if of:
                    shown = (_by_rate([row for row in of if _key(row) == key], item.rates) for key in item.keys)
                    click.echo(line(CHANGES[change], *shown, len({row["seed"] for row in of})))
    _rates(cells.open_store(paper_cells, Source()))


def _rates(store: cells.Store) -> None:
    """Print one rate for each row of the tables beside the best rate of each cell, without training anything."""
    click.echo("\n**One rate for each row** (the best on average) beside the best rate of each cell.\n")
    click.echo(line("t_ft", "T", "rate of the row", "s: by row / by cell / the paper"))
    click.echo(under(4))
    for fine_tune in (1, 3):
        for hours, means in rates_by_row(store, fine_tune, cells.SEEDS).items():
            best = max(means, key=lambda lr: statistics.mean(means[lr].values()))
            each = [
                f"{end}: {value:.2f} / {max(of[end] for of in means.values()):.2f} / {_published(fine_tune, hours, end):.2f}"
                for end, value in means[best].items()
            ]
            click.echo(line(fine_tune, hours, f"{best:g}", "; ".join(each)))


def _known(names: list[str] | None) -> list[str]:
    for name in names or []:
        if name not in ITEMS:
            raise click.ClickException(f"There is no item {name!r}. There are: {', '.join(ITEMS)}.")
    return names or list(ITEMS)


def _key(row: Mapping[str, Any]) -> Key:
    return row["fine_tune"], row["hours"], row["end"], row["alpha"]


def _label(key: Key) -> str:
    fine_tune, hours, end, alpha = key
    return f"T = {hours}, s = {end}" if fine_tune else f"alpha = {alpha:g}"


def _published(fine_tune: int, hours: int, end: int) -> float:
    value = published.ACCURACY[fine_tune, hours, end]
    return float("nan") if value is None else value[0]


def _by_rate(rows: Iterable[Mapping[str, Any]], rates: Iterable[float]) -> str:
    kept, shown = list(rows), []
    for lr in rates:
        of = [row for row in kept if row["lr"] == lr]
        values = [100 * row["accuracy"] for row in of if row["status"] == TRAINED]
        lost = sum(row["status"] == DIVERGED for row in of)
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        text = f"{statistics.mean(values):.2f}{spread}" if values else ("" if lost else "·")
        shown.append(" ".join(filter(None, (text, f"{lost} {DIVERGED}" if lost else ""))))
    return ", ".join(shown)
