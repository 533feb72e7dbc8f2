"""Training runs of the study of the planner `auto` on a small network: what identifies one, and which ones are trained."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

import slackwater as sw
from slackwater.errors import InfeasibleError
from slackwater.lab import store
from slackwater.lab.paper.cells import RATES
from slackwater.lab.paper.setting import ENDS, POWER_W, SLACK, START, ZONES
from slackwater.lab.store import DIVERGED, INFEASIBLE, TRAINED, Row
from slackwater.lab.studies import auto_rules, auto_trainer
from slackwater.planning.auto import RECALL
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan

LOCAL_STEPS, LR = 30, 0.1
_FAR_KG = 1e4
"""Offset far above every cost, so that each slot has the same value."""
SEARCH_SEEDS, JUDGE_SEEDS = (0, 1, 2), (10, 11, 12)
"""Rules, constants and best cells are chosen on the first seeds and compared on the others."""
MORE_SEEDS = (*JUDGE_SEEDS, *range(13, 19))
"""For small differences: auto compared with our best cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run, identified by everything that decides its result."""

    task: str = "mnist"
    beta: float = 0.5
    start: str = START
    kind: str = "plan"
    """`plan`, or `no-slack` for all clients in the first hours."""
    hours: int
    """T: the budget is the cost of all clients in the first T hours from the start."""
    end: int = 0
    fine_tune: int = 1
    recall: int = 0
    alpha: float | str = 0.1
    objective: str = "paper"
    """`paper`, or `count`: the same function of the number of slots alone."""
    rule: str = "memory"
    lr: float = LR
    fade: float = 1.0
    steps: int = LOCAL_STEPS
    seed: int = 0

    @property
    def schedule(self) -> tuple[Any, ...]:
        """Return what identifies the schedule; cells that share it are trained together."""
        return (self.task, self.beta, self.start, self.kind, self.hours, self.end, self.fine_tune, self.recall, str(self.alpha),
                self.objective, self.steps)  # fmt: skip


Store = store.Store[Cell]


class Maker:
    """Make the problems and plans of cells: a client in each zone."""

    def __init__(self, data: str, zones: Sequence[str] = ZONES) -> None:
        self.data, self.zones = data, tuple(zones)
        self.traces: dict[str, sw.Traces] = {}

    def problem(self, cell: Cell) -> Problem:
        """Return the problem: clients of 300 W; the budget is their cost in the first hours from the start."""
        if cell.start not in self.traces:
            self.traces[cell.start] = sw.load_traces(
                self.data, zones=list(self.zones), start=cell.start, hours=SLACK + 50, factor="direct"
            )
        traces = self.traces[cell.start]
        everybody = float(np.sum(traces.intensity[:, : cell.hours])) * POWER_W / 1000
        clients = [sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in self.zones]
        slack = 0 if cell.kind == "no-slack" else SLACK
        return Problem(
            clients=clients, traces=traces, rounds=cell.hours, slack=slack, alpha=cell.alpha,
            fine_tune=min(cell.fine_tune, cell.hours), recall=cell.recall, budget_kg=everybody * (1 + 1e-12),
            g_max_kg=_FAR_KG if cell.objective == "count" else None,
        )  # fmt: skip

    def plan(self, cell: Cell) -> Plan:
        """Return the cell's schedule."""
        problem = self.problem(cell)
        return no_slack_plan(problem) if cell.kind == "no-slack" else sw.plan(problem, end=cell.end, planner="paper")


class Batches:
    """Train the runs of one schedule together: the first requested cell also gives the results of the others."""

    def __init__(
        self, cells: Iterable[Cell], kept: Store, maker: Maker, task_data: str | None, others: bool = False
    ) -> None:
        self.maker, self.task_data, self.others = maker, task_data, others
        self.todo: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in dict.fromkeys(cells):
            if kept.get(cell) is None:
                self.todo.setdefault(cell.schedule, []).append(cell)
        self.done: dict[Cell, Row] = {}

    def measure(self, cell: Cell) -> Row:
        """Return the results of a cell."""
        if cell not in self.done:
            together = self.todo.pop(cell.schedule)
            began = time.perf_counter()
            rows = self._train(together)
            seconds = round((time.perf_counter() - began) / len(together), 2)
            self.done |= {one: {**row, "seconds": seconds} for one, row in zip(together, rows, strict=True)}
        return self.done.pop(cell)

    def _train(self, cells: Sequence[Cell]) -> list[Row]:
        first = cells[0]
        try:
            plan = self.maker.plan(first)
        except InfeasibleError:
            return [{"status": INFEASIBLE} for _ in cells]
        data = self.task_data if first.task == "mnist" else None
        seeds = sorted({cell.seed for cell in cells})
        task_of = {seed: auto_trainer.small_task(first.task, data, first.beta, seed) for seed in seeds}
        rules = [auto_rules.make(cell.rule, plan) for cell in cells]
        runs = [
            auto_trainer.Run(
                rule=rule, seed=cell.seed, lr=cell.lr, fade=cell.fade, window=rule if "+throughout" in cell.rule else None,
            )
            for cell, rule in zip(cells, rules, strict=True)
        ]  # fmt: skip
        known = {"client_rounds": int(plan.matrix.sum()), "kg": plan.emissions_kg, "budget_kg": plan.problem.budget_kg}
        rows = []
        for outcome in auto_trainer.train(plan, task_of, runs, local_steps=first.steps, others=self.others):
            if outcome.accuracy is None:
                rows.append({**known, "status": DIVERGED})
            else:
                more = {"others": dict(outcome.others)} if self.others else {}
                rows.append({**known, "status": TRAINED, "accuracy": outcome.accuracy,
                             "worst_client": outcome.worst_client, **more})  # fmt: skip
        return rows


def free(problem: Problem) -> Problem:
    """Return the problem with every setting left to the planner."""
    return problem.with_settings(fine_tune=None, recall=None, alpha=None)


def auto_cell(maker: Maker, cell: Cell) -> Cell:
    """Return the cell that the planner `auto` chooses for the budget, task and start of this one."""
    recommended = sw.plan(free(maker.problem(cell)), planner="auto").recommended
    assert recommended is not None
    return replace(cell, rule=recommended.aggregator, **recommended.settings)


def best_cell(store: Store, rule: str, hours: int, seeds: Sequence[int] = SEARCH_SEEDS, **setting: Any) -> Cell | None:
    """Return the best cell of a rule, with seed 0, by the mean over the seeds that all its cells have."""
    like = Cell(hours=hours, rule=rule, **setting)
    found: dict[Cell, dict[int, float]] = {}
    for cell, _ in store.cells():
        same = replace(cell, end=0, fine_tune=1, recall=0, lr=LR, seed=0) == like
        accuracy = store.accuracy(cell)
        if accuracy is not None and same and cell.fine_tune in (1, 3) and cell.seed in seeds:
            found.setdefault(replace(cell, seed=0), {})[cell.seed] = accuracy
    common = set(seeds).intersection(*(of.keys() for of in found.values())) if found else set()
    if not common:
        return None
    return max(found, key=lambda cell: statistics.mean(found[cell][seed] for seed in common))


PAPER_CELLS = (
    (1, 10, 0.1), (1, 20, 0.1), (1, 30, 0.1), (1, 50, 0.1), (1, 50, 0.0316), (1, 70, 0.0316),
    (3, 20, 0.1), (3, 40, 0.1), (3, 50, 0.1),
)  # fmt: skip
"""(t_ft, s, rate) of the paper's method if its whole grid is too large, with the best of its tables and ours."""
PAPER, OURS, OTHERS = "ufedavg", "echo", ("stride", "memory:0.9")
CANDIDATES = (
    "fedavg", "ufedavg", "echo", "echo:0.9", "echo+linear", "echo+ahead", "echo+step=1.25", "echo+step=1.5", "echo+step=2",
    "stride", "pace",
    "normalised", "mifa", "memory:0.7", "memory:0.8", "memory:0.9", "memory:0.95",
    "mem:0.97+slots", "mem:0.9+p=0.5", "mem:0.9+p=0", "mem:0.9+q=0.5", "mem:0.9+even", "mem:0.9+even=0.5",
    "mem:0.9+own=0.5", "models:0.8", "models:0.9", "models:0.95", "models:1", "awe:5", "awe:20", "given:1",
    "memory:0.9+mom=0.5", "fedavg+mom=0.8", "normalised+mom=0.5", "memory:0.9+vel=0.4", "fedavg+vel=0.5",
    "memory:0.9+step=0.7", "memory:0.9+step=1.3", "memory:0.9+step=1.6", "memory:0.9+step=2", "memory:0.8+step=1.6",
    "memory:0.95+step=1.6", "mifa+step=1.5", "memory:0.9+fade=0.3", "fedavg+fade=0.3", "mem:0.9+r=0.3",
    "mem:0.9+r=0.5", "mem:0.8+r=0.5", "mem:0.8+exp=0.5", "mem:0.9+exp=0.5", "mem:0.9+exp=0.5+most=2", "mem:0.6+norm=1",
    "mem:0.7+norm=1", "mem:0.8+norm=1", "mem:0.9+norm=1", "mem:0.95+norm=1", "mem:0.8+norm=1+most=2",
    "mem:0.9+norm=1+most=2", "mem:0.8+norm=1+throughout", "mem:0.7+norm=1+fresh", "mem:0.8+norm=1+fresh",
    "mem:0.9+norm=1+fresh", "mem:0.95+norm=1+fresh", "mem:0.9+clip", "mem:0.8+norm=1+clip", "mem:0.9+norm=1+clip",
    "mem:0.95+norm=1+clip", "mem:0.97+norm=1+clip", "mem:1+norm=1+clip", "mem:0.8+norm=1+clip=0.7",
    "mem:0.8+norm=1+clip+most=5", "mem:0.95+norm=1+clip+most=6", "mem:0.97+norm=1+clip+most=6",
    "mem:0.9+norm=1+clip=1.5", "mem:0.95+norm=1+clip=1.5", "mem:0.9+norm=1+clip+unit", "mem:0.95+norm=1+clip+unit",
    "mem:0.95+exp=0.5+clip", "mem:0.95+norm=1+clip+own=0.5", "mem:0.97+norm=1+clip+slots",
    "mem:0.95+norm=1+clip+q=0.3",
)  # fmt: skip
"""`slackwater.lab.studies.auto_rules` explains the names."""
WINDY, STILL = "2022-12-22T00:00Z", "2022-12-08T00:00Z"
"""Lowest and highest mean direct intensity of BE, DE, GB and IE over 200 hours from any midnight of 2022."""


def _cells(
    hours: Iterable[int],
    ends: Iterable[int],
    rules: Iterable[str],
    seeds: Iterable[int],
    windows: Iterable[int] = (1,),
    alphas: Iterable[float | str] = (0.1,),
    rates: Iterable[float] = (LR,),
    **other: Any,
) -> list[Cell]:
    """Return all combinations, with the runs of one schedule together."""
    return [
        Cell(hours=T, end=s, fine_tune=t_ft, alpha=alpha, rule=rule, lr=lr, seed=seed, **other)
        for T, t_ft, alpha, s, rule, lr, seed in product(hours, windows, alphas, ends, rules, rates, seeds)
        if t_ft <= T
    ]


def search_set() -> list[Cell]:
    """Return every candidate at the tightest budget and two skews."""
    return [c for beta in (0.5, 0.1) for c in _cells((3,), (20, 50, 150), CANDIDATES, (0, 1), beta=beta)]


def baseline_set() -> list[Cell]:
    """Return runs without slack at every budget, for every setting of the study."""
    settings: list[dict[str, Any]] = [{}, {"beta": 0.1}, {"task": "fashion_mnist"}, {"start": WINDY}, {"start": STILL}]
    return [
        Cell(kind="no-slack", hours=T, fine_tune=0, rule="fedavg", seed=seed, **setting)
        for setting in settings
        for T in (3, 4, 5, 10, 20, 50)
        for seed in SEARCH_SEEDS + JUDGE_SEEDS
    ]


def fit_set() -> list[Cell]:
    """Return the cells that the predictor is fitted on: two budgets, other windows and alphas, search seeds."""
    return [
        *_cells((3,), ENDS, (OURS,), (0, 1)),
        *_cells((5,), ENDS, (OURS,), (0, 1), windows=(1, 3)),
        *_cells((3, 5), (20, 50, 110), (OURS,), (0, 1), windows=(0, 2)),
        *_cells((3, 5), (20, 50, 110), (OURS,), (0, 1), alphas=(0.01, 0.5, 1.0, "log")),
    ]


def recall_set() -> list[Cell]:
    """Return our rule over the grid with and without a recall before the window, on the search seeds."""
    tight = _cells((4,), ENDS, (OURS,), (0, 1), windows=(1, 3))
    plain = tight + _cells((10,), ENDS, (OURS,), (0, 1))
    skewed = _cells((4, 5, 10), (50, 70, 110, 150), (OURS,), (0, 1), beta=0.1)
    again = [cell for cell in _cells((3, 4, 5, 10), ENDS, (OURS,), (0, 1)) + skewed if cell.end >= RECALL]
    return [*plain, *skewed, *(replace(cell, recall=RECALL) for cell in again)]


def objective_set() -> list[Cell]:
    """Return cells whose objective counts slots without their carbon, and the same with the paper's objective."""
    ends = (30, 50, 90)
    return [
        *_cells((3,), ends, (OURS,), (0, 1), alphas=(0.1, 0.5, "log"), objective="count"),
        *_cells((3,), ends, (OURS,), (0, 1), alphas=(0.1, 0.5, "log")),
    ]


def paper_set() -> list[Cell]:
    """Return the paper's method over its whole grid and its rates, on the search seeds."""
    tight = _cells((3, 4, 5), ENDS, (PAPER,), SEARCH_SEEDS, windows=(1, 3), rates=RATES)
    return tight + _cells((10,), ENDS, (PAPER,), (0,), windows=(1, 3), rates=RATES)


def collapse_set() -> list[Cell]:
    """Return our rule at the tightest budget for every end time."""
    return _cells((3,), range(1, SLACK + 1), (OURS,), JUDGE_SEEDS)


def judge_set() -> list[Cell]:
    """Return our rule over the grid, on seeds and at budgets without any fit."""
    tight = _cells((3, 4, 5), ENDS, (OURS,), JUDGE_SEEDS, windows=(1, 3))
    wide = _cells((10,), ENDS, (OURS,), JUDGE_SEEDS[:1], windows=(1, 3))
    others = [_cells((3,), HELD_OUT_ENDS, (OURS,), JUDGE_SEEDS[:1], **setting) for setting in HELD_OUT.values()]
    return tight + wide + [cell for cells in others for cell in cells]


HELD_OUT: dict[str, dict[str, Any]] = {
    "Fashion-MNIST": {"task": "fashion_mnist"},
    "beta = 0.1": {"beta": 0.1},
    "a windy week": {"start": WINDY},
    "a still week": {"start": STILL},
}
HELD_OUT_ENDS = (5, 10, 20, 30, 50, 70, 110, 150)


def held_out_set() -> list[Cell]:
    """Return the paper's method in settings without a search: fewer end times, one seed for the choice, all its rates."""
    return [
        cell
        for setting in HELD_OUT.values()
        for cell in _cells((3, 5), HELD_OUT_ENDS, (PAPER,), (0,), windows=(1, 3), rates=RATES, **setting)
    ]


def auto_set(maker: Maker) -> list[Cell]:
    """Return what the planner `auto` chooses in every setting, with its aggregator and those nearest to it."""
    chosen = [
        auto_cell(maker, Cell(hours=T, **setting))
        for setting in ({}, *HELD_OUT.values())
        for T in (3, 4, 5, 10, 20)
        if T in (3, 5) or not setting
    ]
    return [replace(one, rule=rule, seed=seed) for one in chosen for rule in (OURS, *OTHERS) for seed in JUDGE_SEEDS]


def again_set(store: Store) -> list[Cell]:
    """Return the best cells of the search seeds, on the evaluation seeds."""
    chosen: list[Cell] = []
    for setting in ({}, *HELD_OUT.values()):
        for T in (3, 4, 5, 10):
            bests = [best_cell(store, rule, T, **setting) for rule in ((PAPER,) if setting else (PAPER, OURS))]
            chosen += [replace(best, seed=seed) for best in bests if best is not None for seed in JUDGE_SEEDS]
    return chosen


def closer_set(maker: Maker, store: Store) -> list[Cell]:
    """Return auto and our best cell with enough seeds to distinguish them."""
    pairs = [(auto_cell(maker, Cell(hours=T)), best_cell(store, OURS, T)) for T in (3, 4, 5, 10)]
    return [replace(one, rule=OURS, seed=seed) for pair in pairs for one in pair if one for seed in MORE_SEEDS]


SETS: dict[str, Callable[[Maker, Store], list[Cell]]] = {
    "search": lambda maker, store: search_set(),
    "baseline": lambda maker, store: baseline_set(),
    "fit": lambda maker, store: fit_set(),
    "recall": lambda maker, store: recall_set(),
    "objective": lambda maker, store: objective_set(),
    "paper": lambda maker, store: paper_set(),
    "judge": lambda maker, store: judge_set(),
    "collapse": lambda maker, store: collapse_set(),
    "held-out": lambda maker, store: held_out_set(),
    "auto": lambda maker, store: auto_set(maker),
    "again": lambda maker, store: again_set(store),
    "closer": closer_set,
}
"""In this order: `again` and `closer` need the best cells of `fit`, `recall`, `paper` and `held-out`."""
