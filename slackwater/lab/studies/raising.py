"""Try to raise what `plan --planner auto` and `echo` reach: changes of window, updates, rounds and local steps.

    python -m slackwater.lab raising run --data CI_FOLDER --mnist MNIST_FOLDER --fashion FASHION_MNIST_FOLDER
    python -m slackwater.lab raising table

Each change is tried on two tasks with seeds 0 to 2 (`--part tried`), and judged on other tasks and seeds (`--part judged`).
The small network and the trainer are those of the study `auto`. Every variant keeps the budget: all emit what auto's plan does.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import slackwater as sw
from slackwater.cli.options import ListOf
from slackwater.errors import InfeasibleError
from slackwater.lab.paper.setting import FULL_HOURS, POWER_W, SLACK, START, ZONES
from slackwater.lab.store import DIVERGED, INFEASIBLE, RESULTS, TRAINED, Row, Store, sweep
from slackwater.lab.studies import auto_trainer
from slackwater.lab.tables import line, under
from slackwater.planning.problem import Problem
from slackwater.training.aggregators import Aggregate, Aggregator, Echo, FedAvg, Participation, State
from slackwater.training.task import Task

STEPS_PER_HOUR = 30
AUTO = "auto"
BUDGETS = (3, 5, 10)
TRIED = (("mnist", 0.5), ("mnist", 0.1))
JUDGED = (
    ("fashion_mnist", 0.5),
    ("fashion_mnist", 0.1),
    ("digits", 0.5),
    ("digits", 0.1),
    ("mnist", 0.5),
    ("mnist", 0.1),
)
"""The last two with other seeds than those of the choice."""
TRIED_SEEDS, JUDGED_SEEDS = (0, 1, 2), (10, 11, 12)
VARIANTS = {
    "window=1": "a window of 1 slot", "window=2": "of 2 slots", "window=3": "of 3 slots", "window=5": "of 5 slots",
    "median=1": "in the window, an update is at most as long as the participants' median",
    "median=1.5": "at most 1.5 times", "median=2": "at most 2 times",
    "own=1": "in the window, at most as long as the client's own update before it", "own=1.5": "at most 1.5 times",
    "always=1.5": "before the window too, at most 1.5 times the median of all clients' latest", "always=2": "at most 2 times",
    "stress=0.5": "in the window, weights by the update's length to the power 0.5", "stress=1": "to the power 1",
    "cool=0.5": "half the learning rate in the window", "cool=0.3": "0.3 of it",
    "half": "half-hour rounds of half the steps", "double": "two-hour rounds of twice the steps",
    "early=0.5": "1.5 times the steps in the first round, falling to 0.5 in the last", "late=0.5": "the reverse",
    "early=0.8": "1.8 times, falling to 0.2",
    "taper=0.5": "steps fall from all to half, and what that saves buys more rounds",
    "rare=0.25": "steps of a client by how rarely it trains, pi^-0.25", "rare=0.5": "pi^-0.5", "often=0.25": "pi^0.25",
}  # fmt: skip
"""Name and meaning; a name is a change of auto and its number."""
_STEPS = ("early", "late", "taper", "rare", "often")
_PLANS = ("window", "half", "double", "taper")
_OWN = {*_STEPS, *_PLANS}
"""Changes of the local steps, and of the plan: their cells share nothing with auto's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    task: str
    beta: float
    hours: int
    """T: the budget is the cost of all clients in the first T hours."""
    variant: str
    seed: int

    @property
    def change(self) -> tuple[str, float]:
        """Return the variant's change and its number."""
        name, _, number = self.variant.partition("=")
        return name, float(number or 1)

    @property
    def together(self) -> tuple[Any, ...]:
        """Return what identifies data and local steps: cells that share it are trained together."""
        own = self.variant if self.change[0] in _OWN else AUTO
        return self.task, self.beta, self.hours, own


class Bounded:
    """A rule whose updates are bounded in length, and whose lengths it records."""

    def __init__(self, rule: Aggregator, most: float, lengths: dict[int, float]) -> None:
        self.rule, self.most, self.lengths = rule, most, lengths

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Shorten each update to the bound, then apply the rule."""
        found = {client: float(update.norm()) for client, update in updates.items()}
        bounds = self.bounds(found)
        short = {c: u * min(1.0, bounds[c] / max(found[c], 1e-12)) for c, u in updates.items()}
        self.lengths.update({c: min(found[c], bounds[c]) for c in found})
        return self.rule.aggregate(short, who)

    def bounds(self, found: Mapping[int, float]) -> dict[int, float]:
        """Return the longest length of each participant's update: a multiple of the participants' median."""
        return dict.fromkeys(found, self.most * statistics.median(found.values()))

    def state(self) -> State:
        """Return an empty state: a variant is not resumed."""
        return {}

    def restore(self, state: State) -> None:
        """Restore nothing."""


class BoundedByAll(Bounded):
    """Bound by a multiple of the median over all clients' latest updates."""

    def bounds(self, found: Mapping[int, float]) -> dict[int, float]:
        """Return the bound, the same for all."""
        return dict.fromkeys(found, self.most * statistics.median((self.lengths | dict(found)).values()))


class BoundedByOwn(Bounded):
    """Bound by a multiple of the client's own latest update; a client without one has the participants' median."""

    def bounds(self, found: Mapping[int, float]) -> dict[int, float]:
        """Return each client's bound."""
        usual = statistics.median(found.values())
        return {client: self.most * self.lengths.get(client, usual) for client in found}


class Stressed(Bounded):
    """Weights by the length of the updates to the power `most`: a client whose data the model fits least counts most."""

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the weighted mean."""
        raw = {client: float(update.norm()) ** self.most for client, update in updates.items()}
        total = sum(raw.values())
        weights = {client: one / total for client, one in raw.items()}
        return Aggregate(update=torch.stack([weights[c] * u for c, u in updates.items()]).sum(0), weights=weights)


class Watched(Echo):
    """`Echo` that records how much the clients' updates differ, at no cost in training."""

    def __init__(self) -> None:
        super().__init__()
        self.differ: list[float] = []
        """1 - |sum w Delta| / sum w |Delta| after each round, once all clients were seen: 0 if all updates agree."""

    def lengthened(self, factor: float, worth: Mapping[int, float]) -> float:
        """Record the difference, then lengthen."""
        self.differ.append(1 - 1 / factor)
        return super().lengthened(factor, worth)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where intensity and data sets are."""

    data: str = "typical"
    mnist: str | None = None
    fashion: str | None = None

    def load(self, task: str, beta: float, seed: int) -> Task:
        """Return a task of 14 x 14 pixels or less."""
        return auto_trainer.small_task(task, {"mnist": self.mnist, "fashion_mnist": self.fashion}.get(task), beta, seed)

    @cached_property
    def _plans(self) -> dict[tuple[int, str], sw.Plan]:
        return {}

    def plan(self, cell: Cell) -> sw.Plan:
        """Return auto's plan for the cell's budget and change."""
        name, number = cell.change
        minutes = {"half": 30, "double": 120}.get(name, 60)
        key = (cell.hours, cell.variant if name in _PLANS else AUTO)
        if key not in self._plans:
            settings = {"fine_tune": int(number)} if name == "window" else {}
            problem = _problem(self.data, cell.hours, minutes).with_settings(**settings)
            if name == "taper":
                window = _window_kg(sw.plan(problem, planner="auto"))
                more = window + (problem.budget_kg - window) / (1 - number / 2)
                problem = problem.with_settings(budget_kg=more)
            self._plans[key] = sw.plan(problem, planner="auto")
        return self._plans[key]


def _budget_kg(data: str, hours: int) -> float:
    """Return what all clients emit in the first hours."""
    return _problem(data, hours, 60).budget_kg


def _problem(data: str, hours: int, minutes: int) -> Problem:
    """Return the paper's fleet with 150 hours of slack, in slots of so many minutes; auto chooses all settings."""
    of = 60 / minutes
    hourly = sw.load_traces(data, zones=list(ZONES), start=START, hours=SLACK + FULL_HOURS, factor="direct")
    budget = float(np.sum(hourly.intensity[:, :hours])) * POWER_W / 1000
    traces = hourly if minutes == 60 else sw.load_traces(
        data, zones=list(ZONES), start=START, hours=SLACK + FULL_HOURS, factor="direct", slot_minutes=minutes
    )  # fmt: skip
    clients = [sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in ZONES]
    return Problem(
        clients=clients,
        traces=traces,
        rounds=max(1, round(hours * of)),
        slack=round(SLACK * of),
        budget_kg=budget * (1 + 1e-12),
    )


def _window_kg(plan: sw.Plan) -> float:
    return float(np.where(plan.matrix, plan.problem.costs.dense(), 0.0)[:, list(plan.window)].sum())


def local_steps(plan: sw.Plan, name: str, number: float, budget_kg: float) -> NDArray[np.intp]:
    """Return [client, slot], the local steps of a variant; a step takes the same energy everywhere, and the kg are auto's."""
    matrix, hours = plan.matrix, plan.problem.slot_hours
    share = np.ones(matrix.shape)
    active = np.flatnonzero(matrix[:, : plan.before].any(axis=0))
    if name in ("early", "late", "taper"):
        first = 1.0 if name == "taper" else 1 + number
        share[:, active] = np.linspace(first, 1 - number, len(active))[:: -1 if name == "late" else 1]
    elif name in ("rare", "often"):
        pi = np.maximum(plan.metrics.pi, 1 / max(1, plan.before))
        share[:, : plan.before] = (pi ** (-number if name == "rare" else number))[:, None]
    if name in _STEPS:
        spent = np.where(matrix, plan.problem.costs.dense(), 0.0)[:, : plan.before]
        allowed = budget_kg - _window_kg(plan) if name == "taper" else spent.sum()
        share[:, : plan.before] *= allowed / (spent * share[:, : plan.before]).sum()
    return np.maximum(1, np.rint(STEPS_PER_HOUR * hours * share)).astype(np.intp)


def _run(cell: Cell) -> auto_trainer.Run:
    name, number = cell.change
    lengths: dict[int, float] = {}
    rule = Watched()
    before: Aggregator = rule
    window: Aggregator | None = None
    if name == "median":
        window = Bounded(FedAvg(), number, lengths)
    elif name == "always":
        before, window = BoundedByAll(rule, number, lengths), BoundedByAll(FedAvg(), number, lengths)
    elif name == "own":
        window = BoundedByOwn(FedAvg(), number, rule.length)
    elif name == "stress":
        window = Stressed(FedAvg(), number, lengths)
    return auto_trainer.Run(rule=before, seed=cell.seed, window=window, cool=number if name == "cool" else 1.0)


class Together:
    """Train the cells of one schedule together; the first one asked for gives the results of all."""

    def __init__(self, cells: Iterable[Cell], kept: Store[Cell], sources: Sources) -> None:
        self.sources = sources
        self.todo: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in cells:
            if kept.get(cell) is None:
                self.todo.setdefault(cell.together, []).append(cell)
        self.done: dict[Cell, Row] = {}

    def measure(self, cell: Cell) -> Row:
        """Return the results of a cell."""
        if cell not in self.done:
            together, began = self.todo.pop(cell.together), time.perf_counter()
            rows = self._train(together)
            seconds = round((time.perf_counter() - began) / len(together), 2)
            self.done |= {one: {**row, "seconds": seconds} for one, row in zip(together, rows, strict=True)}
        return self.done.pop(cell)

    def _train(self, cells: Sequence[Cell]) -> list[Row]:
        first, runs = cells[0], [_run(cell) for cell in cells]
        try:
            plan = self.sources.plan(first)
        except InfeasibleError:
            return [{"status": INFEASIBLE, "accuracy": None, "worst_client": None} for _ in cells]
        steps = local_steps(plan, *first.change, _budget_kg(self.sources.data, first.hours))
        tasks = {cell.seed: self.sources.load(cell.task, cell.beta, cell.seed) for cell in cells}
        kg = float((np.where(plan.matrix, plan.problem.costs.dense(), 0.0) * steps).sum()) / (
            STEPS_PER_HOUR * plan.problem.slot_hours
        )
        rows = []
        for run, found in zip(runs, auto_trainer.train(plan, tasks, runs, local_steps=steps), strict=True):
            watched = run.rule if isinstance(run.rule, Watched) else getattr(run.rule, "rule", None)
            differ = watched.differ if isinstance(watched, Watched) else []
            rows.append({
                "status": DIVERGED if found.accuracy is None else TRAINED, "accuracy": found.accuracy,
                "worst_client": found.worst_client, "kg": kg, "end": plan.end, "window": len(plan.window),
                "client_rounds": int(plan.matrix.sum()),
                "differ": [round(statistics.mean(differ[len(differ) * i // 4 : len(differ) * (i + 1) // 4] or [0.0]), 4) for i in range(4)],
            })  # fmt: skip
        return rows


def cells_of(
    tasks: Iterable[tuple[str, float]], variants: Iterable[str], seeds: Iterable[int], budgets: Iterable[int] = BUDGETS
) -> list[Cell]:
    """Return all combinations, with auto beside them."""
    return [
        Cell(task=task, beta=beta, hours=T, variant=variant, seed=seed)
        for task, beta in tasks
        for T in budgets
        for variant in (AUTO, *variants)
        for seed in seeds
    ]


def gains(
    store: Store[Cell],
    variant: str,
    tasks: Iterable[tuple[str, float]],
    seeds: Iterable[int],
    key: str,
    budgets: Iterable[int] = BUDGETS,
) -> list[float]:
    """Return variant less auto in points, paired by task, budget and seed; a diverged run counts as chance."""
    found = []
    for cell in cells_of(tasks, [variant], seeds, budgets):
        mine, base = store.get(cell), store.get(replace(cell, variant=AUTO))
        if cell.variant == variant and mine and base and mine["status"] != INFEASIBLE:
            found.append(100 * ((mine[key] or 0.1) - (base[key] or 0.1)))
    return found


@click.group()
def main() -> None:
    """Changes of auto and echo, tried on two tasks and judged on others."""


results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "raising.jsonl")


@main.command()
@click.option("--data", default="typical", show_default=True, help="Carbon intensity: a folder of zones, or typical.")
@click.option("--mnist", default=None, help="Folder of MNIST's files. Default: the copy in the cache.")
@click.option("--fashion", default=None, help="Folder of Fashion-MNIST's files. Default: the copy in the cache.")
@click.option("--part", type=click.Choice(["tried", "judged"]), default="tried", show_default=True)
@click.option("--variants", type=ListOf(str, "variant"), metavar="NAME,..", help="Default: all.")
@click.option("--budgets", type=ListOf(int, "number of hours"), metavar="T,..", help="Default: 3,5,10.")
@click.option("--tasks", "names", type=ListOf(str, "task"), metavar="NAME,..", help="Default: all of the part.")
@results_option
def run(
    data: str,
    mnist: str | None,
    fashion: str | None,
    part: str,
    variants: list[str] | None,
    budgets: list[int] | None,
    names: list[str] | None,
    results: Path,
) -> None:
    """Train the missing cells on one thread; a stopped sweep continues."""
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tasks, seeds = (TRIED, TRIED_SEEDS) if part == "tried" else (JUDGED, JUDGED_SEEDS)
    wanted = cells_of(
        [one for one in tasks if names is None or one[0] in names],
        variants or list(VARIANTS),
        seeds,
        budgets or BUDGETS,
    )
    store = Store(results, Cell)
    together = Together(wanted, store, Sources(data=data, mnist=mnist, fashion=fashion))
    for row in sweep(wanted, together.measure, store):
        shown = row["status"] if row["accuracy"] is None else f"{row['accuracy']:.4f}, worst {row['worst_client']:.4f}"
        click.echo(
            "{task} {beta} T={hours} {variant} seed {seed}: ".format(**row) + f"{shown}, {row['seconds']} s", err=True
        )


@main.command()
@results_option
def table(results: Path) -> None:
    """Show the mean gain over auto of each change, with its standard error, and the worst client's."""
    store = Store(results, Cell)
    for title, tasks, seeds in (("Tried", TRIED, TRIED_SEEDS), ("Judged", JUDGED, JUDGED_SEEDS)):
        click.echo(f"\n**{title}**: points above auto, mean ± standard error (runs).\n")
        heads = [f"{task} {beta}" for task, beta in tasks]
        click.echo(line("change", *heads, "all", "worst client", "worst, T = 10"))
        click.echo(under(len(heads) + 4))
        for variant in VARIANTS:
            if whole := gains(store, variant, tasks, seeds, "accuracy"):
                each = [_mean(gains(store, variant, [one], seeds, "accuracy")) for one in tasks]
                worst = [_mean(gains(store, variant, tasks, seeds, "worst_client", of)) for of in (BUDGETS, (10,))]
                click.echo(line(variant, *each, _mean(whole), *worst))


def _mean(values: Sequence[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{statistics.mean(values):+.2f} ± {statistics.stdev(values) / len(values) ** 0.5:.2f} ({len(values)})"
