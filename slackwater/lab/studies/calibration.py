"""Compare the predicted remaining error with measured accuracy, and fit the map that `advise` uses.

    python -m slackwater.lab calibration run --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist
    python -m slackwater.lab calibration points --data ../shared/data/ci_paper7
    python -m slackwater.lab calibration table
    python -m slackwater.lab calibration chart

The measured value of a schedule is the share of full training that is missing: (full - accuracy) / (full - chance). Full
training is 50 rounds of all clients with FedAvg. Chance is 10 %, or 50 % for the tasks with sites of their own, whose score is
AUROC. The map is fitted on MNIST with the small network only. `points` plans every schedule again and stores its two figures, from
which table and chart are made.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import click
import numpy as np

import slackwater as sw
from slackwater.atomic import write_whole
from slackwater.charts import style
from slackwater.errors import InfeasibleError
from slackwater.lab.paper.setting import ZONES
from slackwater.lab.store import RESULTS, Row, sweep, trained
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
    auto_cell,
)
from slackwater.lab.tables import line, under
from slackwater.planning.auto import quality
from slackwater.training.loop import train

FITTED = "MNIST"
FULL_HOURS = 50
CHANCE, CHANCE_OF_SITES = 10.0, 50.0
"""Score of the first model, per cent: accuracy with ten classes, and AUROC."""
SITE_TASKS = {"RandHIE": "randhie", "dialysis": "dialysis", "flights": "flights"}
SITES = 5
SITE_HOURS, SITE_ENDS = (3, 5, 10), (10, 30, 70, 150)
SETTINGS = {
    FITTED: {}, **HELD_OUT, "digits": {"task": "digits"}, **{name: {"task": task} for name, task in SITE_TASKS.items()},
}  # fmt: skip
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
    how: str = "plan"
    """"plan" with a fixed end time, "no-slack", or "auto": the planner's own choice, on tasks with sites of their own."""


@click.group()
def main() -> None:
    """Predicted against measured remaining error."""


stores_option = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS / "calibration.jsonl", help="Cells of this study."
)


points_option = click.option(
    "--points",
    "stored",
    type=click.Path(path_type=Path),
    default=RESULTS / "calibration_points.jsonl",
    help="Predicted and measured share of every schedule.",
)


@main.command()
@data_option
@click.option("--task-data", default=None, help="Folder of MNIST.")
@stores_option
def run(data: str, task_data: str | None, results: Path) -> None:
    """Train what other studies did not store: digits, tasks with sites of their own, and full training at beta = 0.1."""
    store, cells = AnyStore(results, Cell), extra_cells()
    done = sum(1 for _ in sweep(cells, Batches(cells, store, Maker(data), task_data).measure, store))
    done += sum(1 for _ in sweep(site_cells(data), partial(measure_site, data=data), store))
    click.echo(f"trained {done} cells", err=True)


def site_cells(data: str) -> list[Cell]:
    """Return the cells of the tasks with sites of their own: without slack, for fixed end times, and what auto chooses."""
    each = [(task, seed) for task in SITE_TASKS.values() for seed in JUDGE_SEEDS]
    plain = [
        Cell(kind="no-slack", task=task, hours=T, fine_tune=0, rule="fedavg", seed=seed)
        for task, seed in each
        for T in (*SITE_HOURS, 20, FULL_HOURS)
    ]
    ours = [
        Cell(task=task, hours=T, end=end, rule=OURS, seed=seed)
        for task, seed in each
        for T in SITE_HOURS
        for end in SITE_ENDS
    ]
    return [*plain, *ours, *(replace(cell, seed=seed) for cell in auto_site_cells(data) for seed in JUDGE_SEEDS)]


@cache
def auto_site_cells(data: str) -> tuple[Cell, ...]:
    """Return what the planner auto chooses for the tasks with sites of their own, with seed 0."""
    asked = [Cell(task=task, hours=T) for task in SITE_TASKS.values() for T in SITE_HOURS]
    return tuple(auto_cell(_maker(data, cell.task), cell) for cell in asked)


def measure_site(cell: Cell, data: str) -> Row:
    """Train one cell of a task with sites of its own, as `train` does by default."""
    plan = _maker(data, cell.task).plan(cell)
    task = sw.tasks.make(cell.task, clients=SITES, seed=cell.seed)

    def run() -> Row:
        done = train(
            plan, task, aggregator=cell.rule, local_steps=cell.steps, lr=cell.lr, seed=cell.seed,
            eval_every=plan.problem.horizon, training_loss=False, threads=1,
        )  # fmt: skip
        return {"accuracy": done.score, "worst_client": done.worst_client_score, "kg": done.emissions_kg}

    return trained(run)


@cache
def _maker(data: str, task: str) -> Maker:
    return Maker(data, ZONES[:SITES]) if task in SITE_TASKS.values() else Maker(data)


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


@main.command("points")
@data_option
@stores_option
@points_option
def points_command(data: str, results: Path, stored: Path) -> None:
    """Predict the error of every stored schedule, and store it beside the measured one."""
    found = points(data, results)
    write_whole(stored, "".join(json.dumps(asdict(point)) + "\n" for point in found))
    click.echo(f"wrote {len(found)} points to {stored}")


@main.command()
@points_option
def table(stored: Path) -> None:
    """Show the fit, and rank correlation and calibration by task."""
    for text in report(load(stored)):
        click.echo(text)


@main.command()
@points_option
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("docs/research/images/calibration.png"), show_default=True
)
def chart(stored: Path, out: Path) -> None:
    """Draw measured against predicted share, with the fit and its band."""
    click.echo(f"wrote {draw(load(stored), out)}")


def load(stored: Path) -> list[Point]:
    """Return the stored points."""
    return [Point(**json.loads(text)) for text in stored.read_text(encoding="utf-8").splitlines()]


def points(data: str, results: Path, stored: Path = RESULTS / "auto.jsonl") -> list[Point]:
    """Return a point for every stored schedule whose task has a stored full training."""
    stores = [AnyStore(stored, Cell), AnyStore(results, Cell)]
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
    found = []
    for cell, values in measured.items():
        best = full.get((cell.task, cell.beta))
        if best is None or (cell.kind == "no-slack" and cell.hours == FULL_HOURS):
            continue
        maker = _maker(data, cell.task)
        last = quality(maker.plan(Cell(kind="no-slack", hours=FULL_HOURS, fine_tune=0)), fedavg=True).error
        try:
            error = quality(maker.plan(cell), fedavg=cell.kind == "no-slack").error
        except InfeasibleError:
            continue
        chance = CHANCE_OF_SITES if cell.task in SITE_TASKS.values() else CHANCE
        found.append(
            Point(
                task=_named(cell),
                hours=cell.hours,
                end=cell.end,
                predicted=(error - last) / (1 - last),
                measured=(best - statistics.mean(values)) / (best - chance),
                how="auto" if cell in auto_site_cells(data) else cell.kind,
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


def draw(found: Sequence[Point], out: Path) -> Path:
    """Draw a panel for the task of the fit, one for the other images and weeks, and one for tasks with sites of their own."""
    a, b = fit([point for point in found if point.task == FITTED])
    low, high = band(found, a, b)
    figure = style.new_figure(style.TEXT_IN, 3.0)
    way = np.geomspace(_LEAST, 1.0, 200)
    line_of = a * way**b
    images = tuple(task for task in SETTINGS if task != FITTED and task not in SITE_TASKS)
    panels = {"Fitted": (FITTED,), "Not fitted: images": images, "Not fitted: tables": tuple(SITE_TASKS)}
    for axes, (title, tasks) in zip(figure.subplots(1, 3, sharex=True, sharey=True), panels.items(), strict=True):
        axes.fill_between(
            way, line_of + low, line_of + high, color=style.MUTED, alpha=0.2, linewidth=0, label="80 % band"
        )
        axes.plot(way, line_of, color=style.INK, linewidth=1.0, label="fit")
        for number, task in enumerate(tasks):
            here = [point for point in found if point.task == task]
            if not here:
                continue
            axes.plot(
                [max(point.predicted, _LEAST) for point in here], [point.measured for point in here], linestyle="",
                marker=style.MARKERS[number % len(style.MARKERS)], markersize=3.5, color=style.SERIES[number],
                alpha=0.7, label=f"{task} ({len(here)})",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_title(title, fontsize=style.TITLE_PT)
        axes.set_ylim(top=0.6)  # room for the legend
        style.tidy(axes, grid="y", xlabel="predicted share missing", ylabel="measured share missing")
        axes.legend(frameon=False, loc="upper left", fontsize=style.FONT_PT)
    out.parent.mkdir(parents=True, exist_ok=True)
    return style.save(figure, out)


def report(found: Sequence[Point]) -> Iterator[str]:
    """Show the fit and a line for every task, then auto beside no slack on the tasks with sites of their own."""
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
    ours = [point for point in found if point.how == "auto"]
    if not ours:
        return
    yield ""
    yield line("task", "T", "s of auto", "auto: predicted", "auto: measured", "no slack: measured")
    yield under(6)
    for point in ours:
        plain = next(p for p in found if (p.task, p.hours, p.how) == (point.task, point.hours, "no-slack"))
        yield line(
            point.task,
            point.hours,
            point.end,
            f"{point.predicted:.3f}",
            f"{point.measured:.3f}",
            f"{plain.measured:.3f}",
        )
