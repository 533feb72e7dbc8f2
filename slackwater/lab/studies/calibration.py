"""Compare the predicted remaining error with measured accuracy, and fit the map that `advise` uses.

    python -m slackwater.lab calibration run --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist
    python -m slackwater.lab calibration table --data ../shared/data/ci_paper7

The measured value of a schedule is the share of full training that is missing: (full - accuracy) / (full - chance). Full
training is 50 rounds of all clients with FedAvg, chance is 10 %. The map is fitted on MNIST with the small network only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.lab.store import RESULTS, sweep
from slackwater.lab.store import Store as AnyStore
from slackwater.lab.studies.auto import data_option, spearman
from slackwater.lab.studies.auto_cells import (
    HELD_OUT,
    HELD_OUT_ENDS,
    JUDGE_SEEDS,
    LR,
    OURS,
    Batches,
    Cell,
    Maker,
)
from slackwater.lab.tables import line, under
from slackwater.planning.auto import quality

FITTED = "MNIST"
FULL_HOURS = 50
CHANCE = 10.0
"""Accuracy of the first model, per cent, with ten classes."""
SETTINGS = {FITTED: {}, **HELD_OUT, "digits": {"task": "digits"}}
_BAND = (0.1, 0.9)
_LEAST = 1e-4
"""Smallest predicted share in the fit, which is on logarithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One schedule: predicted and measured missing share of full training."""

    task: str
    hours: int
    end: int
    predicted: float
    """Predictor's error, with full training as 0 and the first model as 1."""
    measured: float
    """Mean over the seeds."""


@click.group()
def main() -> None:
    """Predicted against measured remaining error."""


stores_option = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS / "calibration.jsonl", help="Cells of this study."
)


@main.command()
@data_option
@click.option("--task-data", default=None, help="Folder of MNIST.")
@stores_option
def run(data: str, task_data: str | None, results: Path) -> None:
    """Train what other studies did not store: digits, and full training at beta = 0.1."""
    store, maker = AnyStore(results, Cell), Maker(data)
    cells = extra_cells()
    done = sum(1 for _ in sweep(cells, Batches(cells, store, maker, task_data).measure, store))
    click.echo(f"trained {done} cells", err=True)


def extra_cells() -> list[Cell]:
    """Return the cells of this study: digits with and without slack, and the skewed task without slack."""

    def plain(**setting: object) -> list[Cell]:
        return [
            Cell(kind="no-slack", hours=T, fine_tune=0, rule="fedavg", seed=seed, **setting)  # type: ignore[arg-type]
            for T in (3, 5, 10, 20, FULL_HOURS)
            for seed in JUDGE_SEEDS
        ]

    digits = [
        Cell(task="digits", hours=T, end=end, rule=OURS, seed=seed)
        for T in (3, 5, 10)
        for end in HELD_OUT_ENDS
        for seed in JUDGE_SEEDS
    ]
    return [*plain(task="digits"), *digits, *plain(beta=0.1)]


@main.command()
@data_option
@stores_option
def table(data: str, results: Path) -> None:
    """Show the fit, and rank correlation and calibration by task."""
    for text in report(points(data, results)):
        click.echo(text)


def points(data: str, results: Path, stored: Path = RESULTS / "auto.jsonl") -> list[Point]:
    """Return a point for every stored schedule whose task has a stored full training."""
    stores, maker = [AnyStore(stored, Cell), AnyStore(results, Cell)], Maker(data)
    measured: dict[Cell, list[float]] = {}
    for store in stores:
        for cell, _ in store.cells():
            usual = cell.rule == OURS if cell.kind == "plan" else cell.rule == "fedavg"
            usual &= (cell.lr, cell.fade, cell.objective, cell.steps) == (LR, 1.0, "paper", 30)
            accuracy = store.accuracy(cell)
            if usual and accuracy is not None:
                measured.setdefault(replace(cell, seed=0), []).append(accuracy)
    # Without slack, all clients train in every slot, so the week does not matter.
    full = {
        (cell.task, cell.beta): statistics.mean(values)
        for cell, values in measured.items()
        if cell.kind == "no-slack" and cell.hours == FULL_HOURS
    }
    last = quality(maker.plan(Cell(kind="no-slack", hours=FULL_HOURS, fine_tune=0)), fedavg=True).error
    found = []
    for cell, values in measured.items():
        best = full.get((cell.task, cell.beta))
        if best is None or (cell.kind == "no-slack" and cell.hours == FULL_HOURS):
            continue
        try:
            error = quality(maker.plan(cell), fedavg=cell.kind == "no-slack").error
        except InfeasibleError:
            continue
        found.append(
            Point(
                task=_named(cell),
                hours=cell.hours,
                end=cell.end,
                predicted=(error - last) / (1 - last),
                measured=(best - statistics.mean(values)) / (best - CHANCE),
            )
        )
    return found


def _named(cell: Cell) -> str:
    setting = {"task": cell.task, "beta": cell.beta, "start": cell.start}
    others = {name: other for name, other in SETTINGS.items() if other}
    return next((name for name, other in others.items() if other.items() <= setting.items()), FITTED)


def fit(found: Sequence[Point]) -> tuple[float, float]:
    """Return (a, b) of measured = a * predicted^b, by least squares of the shares."""
    x = np.array([max(_LEAST, point.predicted) for point in found])
    y = np.array([point.measured for point in found])
    best = (np.inf, 0.0, 0.0)
    for power in np.linspace(0.1, 3.0, 291):
        shape = x**power
        factor = float(shape @ y / (shape @ shape))
        best = min(best, (float(np.sum((y - factor * shape) ** 2)), factor, float(power)))
    return best[1], best[2]


def calibrated(predicted: float, a: float, b: float) -> float:
    """Return the missing share of full training for a predicted one."""
    return float(a * max(0.0, predicted) ** b)


def band(found: Sequence[Point], a: float, b: float) -> tuple[float, float]:
    """Return the 10 and 90 % quantiles of measured minus calibrated share, over the tasks that were not fitted."""
    apart = [point.measured - calibrated(point.predicted, a, b) for point in found if point.task != FITTED]
    low, high = np.quantile(apart, _BAND)
    return float(low), float(high)


def report(found: Sequence[Point]) -> Iterator[str]:
    """Show the fit and a line for every task."""
    a, b = fit([point for point in found if point.task == FITTED])
    low, high = band(found, a, b)
    yield f"missing share = {a:.4f} * predicted^{b:.2f}, fitted on {FITTED}; others: {low:+.4f} to {high:+.4f}\n"
    yield line("task", "schedules", "Spearman", "mean measured", "mean calibrated", "mean abs. error", "in the band")
    yield under(7)
    for task in SETTINGS:
        here = [point for point in found if point.task == task]
        if len(here) < 4:
            continue
        made = [calibrated(point.predicted, a, b) for point in here]
        apart = [point.measured - one for point, one in zip(here, made, strict=True)]
        inside = statistics.mean(low <= one <= high for one in apart)
        yield line(
            task, len(here), f"{spearman([(p.predicted, p.measured) for p in here]):.3f}",
            f"{statistics.mean(p.measured for p in here):.3f}", f"{statistics.mean(made):.3f}",
            f"{statistics.mean(map(abs, apart)):.3f}", f"{inside:.0%}",
        )  # fmt: skip
