"""Measure accuracy per kilogram of rules and schedules on a small network, for the planner `auto` (docs/research/auto.md).

    python -m slackwater.lab auto run [SET ..] --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist
    python -m slackwater.lab auto table [TABLE ..] --data ../shared/data/ci_paper7

MNIST averaged to 14 x 14, one hidden layer of 64 units, 30 local steps of 128 at a rate of 0.1 for every rule; the
paper's own method also at its two other rates.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch

from slackwater.lab.paper.setting import SLACK
from slackwater.lab.store import DIVERGED, INFEASIBLE, RESULTS, sweep
from slackwater.lab.store import Store as AnyStore
from slackwater.lab.studies.auto_cells import (
    CANDIDATES,
    HELD_OUT,
    JUDGE_SEEDS,
    LR,
    MORE_SEEDS,
    OURS,
    PAPER,
    SEARCH_SEEDS,
    SETS,
    Batches,
    Cell,
    Maker,
    Store,
    auto_cell,
    best_cell,
)
from slackwater.lab.tables import line, under
from slackwater.planning.auto import quality

data_option = click.option("--data", default="typical", help="Carbon intensity: the folder of the seven zones.")
results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "auto.jsonl")


@click.group()
def main() -> None:
    """Accuracy per kilogram on a small network."""


@main.command()
@click.argument("sets", nargs=-1)
@data_option
@click.option("--task-data", default=None, help="Folder of MNIST.")
@results_option
def run(sets: tuple[str, ...], data: str, task_data: str | None, results: Path) -> None:
    """Train the missing cells of the SETS (default: all) on one thread."""
    _check("set", sets, SETS)
    torch.set_num_threads(1)
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    store, maker = AnyStore(results, Cell), Maker(data)
    for name in sets or SETS:
        cells, done = SETS[name](maker, store), 0
        for done, row in enumerate(sweep(cells, Batches(cells, store, maker, task_data).measure, store), 1):
            click.echo(f"{name}: {done} cells, now T={row['hours']} s={row['end']}", err=True)
        click.echo(f"{name}: trained {done} cells", err=True)


@main.command()
@click.argument("tables", nargs=-1)
@data_option
@results_option
def table(tables: tuple[str, ...], data: str, results: Path) -> None:
    """Show the TABLES (default: all) from the stored cells."""
    _check("table", tables, TABLES)
    store, maker = AnyStore(results, Cell), Maker(data)
    for name in tables or TABLES:
        click.echo(f"\n{name}\n")
        for text in TABLES[name](store, maker):
            click.echo(text)


def _check(kind: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise click.ClickException(f"There is no {kind} {name!r}. There are: {', '.join(known)}.")


def rules_table(store: Store, maker: Maker) -> Iterator[str]:
    """Show the candidates at the tightest budget with two seeds, the best mean first."""
    columns = [(beta, s) for beta in (0.5, 0.1) for s in (20, 50, 150)]
    rows = []
    for rule in CANDIDATES:
        means = [_mean(store, Cell(hours=3, end=s, beta=beta, rule=rule), (0, 1)) for beta, s in columns]
        known = [mean for mean in means if mean is not None]
        if known:
            rows.append((statistics.mean(known) if len(known) == len(means) else 0.0, rule, means))
    yield line("rule", *(f"beta {beta:g}, s={s}" for beta, s in columns), "mean")
    yield under(len(columns) + 2)
    for mean, rule, means in sorted(rows, key=lambda row: -row[0]):
        yield line(f"`{rule}`", *(_number(one) for one in means), _number(mean or None))


def budgets_table(store: Store, maker: Maker) -> Iterator[str]:
    """Compare auto with the best cells on the evaluation seeds: accuracy, and the worst client's in brackets."""
    yield line("T", "no slack", "paper's best cell", "of", "our best cell", "of", "auto", "of")
    yield under(8)
    for T in (3, 4, 5, 10, 20):
        paper, ours = best_cell(store, PAPER, T), best_cell(store, OURS, T) or best_cell(store, OURS, T, JUDGE_SEEDS)
        chosen = auto_cell(maker, Cell(hours=T))
        yield line(
            T, _both(store, Cell(kind="no-slack", hours=T, fine_tune=0, rule="fedavg")), *_shown(store, paper),
            *_shown(store, ours), *_shown(store, chosen),
        )  # fmt: skip


def closer_table(store: Store, maker: Maker) -> Iterator[str]:
    """Compare auto with our best cell by seed: the mean difference with its standard error."""
    yield line("T", "our best cell", "of", "auto", "of", "difference", "standard error", "seeds")
    yield under(8)
    for T in (3, 4, 5, 10):
        best, chosen = best_cell(store, OURS, T), auto_cell(maker, Cell(hours=T))
        if best is None:
            continue
        found = [[store.accuracy(replace(one, seed=seed)) for one in (best, chosen)] for seed in MORE_SEEDS]
        pairs = [(a, b) for a, b in found if a is not None and b is not None]
        if len(pairs) < 2:
            continue
        apart = [b - a for a, b in pairs]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        means = [statistics.mean(one) for one in zip(*pairs, strict=True)]
        yield line(
            T, _number(means[0]), shown_cell(best), _number(means[1]), shown_cell(chosen),
            f"{statistics.mean(apart):+.2f}", f"{error:.2f}", len(apart),
        )  # fmt: skip


def held_out_table(store: Store, maker: Maker) -> Iterator[str]:
    """Show the same in settings without any search or fit."""
    yield line("held out", "T", "no slack", "paper's best cell", "of", "auto", "of")
    yield under(7)
    for name, setting in HELD_OUT.items():
        for T in (3, 5):
            baseline = Cell(kind="no-slack", hours=T, fine_tune=0, rule="fedavg", **setting)
            if _mean(store, baseline) is None:
                continue
            paper, chosen = best_cell(store, PAPER, T, **setting), auto_cell(maker, Cell(hours=T, **setting))
            yield line(name, T, _both(store, baseline), *_shown(store, paper), *_shown(store, chosen))


def collapse_table(store: Store, maker: Maker) -> Iterator[str]:
    """Show the lowest accuracy of rules over the end times at the tightest budget."""
    yield line("rule", "end times", "lowest", "at s", "highest", "at s", "no slack")
    yield under(7)
    baseline = _mean(store, Cell(kind="no-slack", hours=3, fine_tune=0, rule="fedavg"))
    for rule, seeds in ((OURS, JUDGE_SEEDS), (PAPER, SEARCH_SEEDS)):
        means = {s: _mean(store, Cell(hours=3, end=s, rule=rule), seeds) for s in range(1, SLACK + 1)}
        known = {s: mean for s, mean in means.items() if mean is not None}
        if known:
            low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            yield line(rule, len(known), _number(known[low]), low, _number(known[high]), high, _number(baseline))


def objective_table(store: Store, maker: Maker) -> Iterator[str]:
    """Show our rule by the schedule's objective, at the tightest budget with two seeds."""
    ends = (20, 30, 50, 90, 110)
    yield line("objective", "alpha", *(f"s={s}" for s in ends))
    yield under(len(ends) + 2)
    alphas: tuple[float | str, ...] = (0.01, 0.1, 0.5, 1.0, "log")
    for objective, alpha in product(("paper", "count"), alphas):
        means = [_mean(store, Cell(hours=3, end=s, alpha=alpha, objective=objective, rule=OURS), (0, 1)) for s in ends]
        if any(mean is not None for mean in means):
            yield line(objective, alpha, *map(_number, means))


def predictor_table(store: Store, maker: Maker) -> Iterator[str]:
    """Show the rank correlation of predicted error and measured accuracy, for fitted and held-out settings."""
    measured: dict[Cell, list[float]] = {}
    for cell, _ in store.cells():
        accuracy = store.accuracy(cell)
        usual = (cell.lr, cell.fade) == (LR, 1.0) and cell.seed in SEARCH_SEEDS + JUDGE_SEEDS
        if cell.rule == OURS and cell.kind == "plan" and accuracy is not None and usual:
            measured.setdefault(replace(cell, seed=0), []).append(accuracy)
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for cell, accuracies in measured.items():
        setting = {"task": cell.task, "beta": cell.beta, "start": cell.start}
        where = next(
            (name for name, other in HELD_OUT.items() if other.items() <= setting.items()), "MNIST, beta = 0.5"
        )
        error = quality(maker.plan(cell)).error
        where += ", recalled" if cell.recall else ""
        groups.setdefault((where, cell.hours), []).append((-error, statistics.mean(accuracies)))
    yield line("cells", "T", "schedules", "Spearman", "lost by taking the best predicted")
    yield under(5)
    for (where, T), pairs in sorted(groups.items(), key=lambda group: (not group[0][0].startswith("MNIST"), *group[0])):
        if len(pairs) > 3:
            lost = max(a for _, a in pairs) - max(pairs)[1]
            yield line(where, T, len(pairs), f"{spearman(pairs):.3f}", f"{lost:.2f}")


TABLES: dict[str, Callable[[Store, Maker], Iterator[str]]] = {
    "rules": rules_table,
    "budgets": budgets_table,
    "closer": closer_table,
    "held-out": held_out_table,
    "collapse": collapse_table,
    "objective": objective_table,
    "predictor": predictor_table,
}


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the rank correlation; equal values share their mean rank."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(other < one for other in values) + sum(other == one for other in values) / 2 for one in values]

    return statistics.correlation(ranks([a for a, _ in pairs]), ranks([b for _, b in pairs]))


def _mean(store: Store, cell: Cell, seeds: Sequence[int] = JUDGE_SEEDS, key: str = "accuracy") -> float | None:
    """Return the mean in percent over the stored seeds; a diverged run counts as chance."""
    rows = [store.get(replace(cell, seed=seed)) for seed in seeds]
    values = [
        10.0 if row["status"] == DIVERGED else 100 * row[key]
        for row in rows
        if row is not None and row["status"] != INFEASIBLE
    ]
    return statistics.mean(values) if values else None


def _both(store: Store, cell: Cell) -> str:
    known = store.accuracies(replace(cell, seed=seed) for seed in JUDGE_SEEDS)
    if not known:
        return ""
    deviation = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{deviation} ({_number(_mean(store, cell, key='worst_client'))})"


def _shown(store: Store, cell: Cell | None) -> tuple[str, str]:
    return ("", "") if cell is None else (_both(store, cell), shown_cell(cell))


def shown_cell(cell: Cell) -> str:
    """Return the settings of a cell as text."""
    rate = "" if cell.lr == LR else f", lr {cell.lr:g}"
    fair = "" if cell.alpha == Cell(hours=1).alpha else f", alpha {cell.alpha}"
    recall = f", recall {cell.recall}" if cell.recall else ""
    return f"s={cell.end}, t_ft={cell.fine_tune}{recall}{fair}{rate}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
