"""Training runs of the paper's figures and tables: what identifies one, how it is trained, and which ones an item needs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from slackwater._version import __version__
from slackwater.lab import store
from slackwater.lab.markov_participation import Process, generate
from slackwater.lab.markov_participation import cells as processes
from slackwater.lab.paper.setting import ALPHA, ENDS, HOURS, ZONES, Source, problem
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan, plan_from_matrix

LOCAL_STEPS, BATCH, LR = 45, 32, 0.1
"""They reproduce the paper's no-slack column at an acceptable cost; `slackwater paper setting` is the search."""
RATES = (0.1, 0.0316, 0.01)
"""The paper tunes the learning rate over these for each experiment."""
STATED_STEPS, STATED_BATCH = 5, 128
"""As stated in the paper. They are 10 times cheaper, and enough where only differences between runs matter."""
SEEDS = (0, 1, 2)
BASELINE_ROUNDS = 40
TRIED = ((5, 128, 0.5), (10, 128, 0.3), (10, 128, 0.5), (20, 128, 0.1), (20, 128, 0.2), (30, 128, 0.1), (40, 128, 0.1),
         (60, 128, 0.1), (40, 32, 0.1), (45, 32, 0.1), (50, 32, 0.1), (40, 16, 0.1))  # fmt: skip
"""(local steps, batch, rate) of the search for the setting that the paper does not state."""
ALPHAS = (0.001, 0.01, 0.1, 0.5, 1.0)
ALPHA_BUDGETS, ALPHA_ROUNDS = (1.0, 2.0, 3.0), 50
PROCESS_ROUNDS, PROCESS_FINE_TUNE = 50, 10
_FIRST_ENDS = {1: (1, 10, 20, 50, 70, 110, 150), 3: (10, 40, 50, 150)}
_LATE_ENDS = (20, 50, 110)
_TIGHT = 10
"""Rows up to this T are trained first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run, identified by everything that decides its result."""

    kind: Literal["plan", "no-slack", "process"] = "plan"
    rounds: int
    """T."""
    end: int = 0
    """s."""
    fine_tune: int = 1
    recall: int = 0
    """Not in the paper: needed by the planner `auto`."""
    alpha: float = 0.1
    slack: int = 150
    budget_kg: float | None = None
    """None: the cost of all clients in the first T hours."""
    process: str = ""
    """Name of a process of `slackwater.lab.markov_participation`, such as HE-TC-SC."""
    aggregator: str = "ufedavg"
    local_steps: int
    batch_size: int = 128
    """As stated in the paper."""
    lr: float
    seed: int = 0

    @property
    def name(self) -> str:
        """Return a short name, different for every cell."""
        if self.kind == "no-slack":
            what = f"no-slack_T{self.rounds}"
        elif self.kind == "process":
            what = f"{self.process}_T{self.rounds}_ft{self.fine_tune}_{self.aggregator}"
        else:
            budget = "" if self.budget_kg is None else f"_{self.budget_kg:g}kg_slack{self.slack}"
            recall = f"_recall{self.recall}" if self.recall else ""
            window = f"s{self.end}_ft{self.fine_tune}{recall}"
            what = f"T{self.rounds}{budget}_{window}_alpha{self.alpha:g}_{self.aggregator}"
        size = "" if self.batch_size == 128 else f"x{self.batch_size}"
        return f"{what}_steps{self.local_steps}{size}_lr{self.lr:g}_seed{self.seed}"

    def schedule(self, source: Source) -> Plan:
        """Return the cell's plan."""
        if self.kind == "process":
            process = next(one for one in processes(len(ZONES)) if one.name == self.process)
            return random_plan(process, self.rounds, self.fine_tune, self.seed)
        row = problem(source, rounds=self.rounds, fine_tune=self.fine_tune if self.kind == "plan" else 0,
                      slack=self.slack, alpha=self.alpha, budget_kg=self.budget_kg)  # fmt: skip
        if self.kind == "no-slack":
            return no_slack_plan(row)
        return plan(row.with_settings(recall=self.recall), end=self.end, planner="paper")


def random_plan(process: Process, slots: int, fine_tune: int, seed: int) -> Plan:
    """Return a plan drawn from a participation process, with a window for all clients in its last `fine_tune` slots."""
    matrix = generate(process, slots, seed)
    matrix[:, slots - fine_tune :] |= fine_tune > 0
    # Only participation matters here, so every slot costs the same.
    same_cost = Problem.from_costs(
        np.ones(matrix.shape), rounds=slots, fine_tune=fine_tune, budget_kg=float(matrix.size)
    )
    return plan_from_matrix(same_cost, matrix, end=0)


Store = store.Store[Cell]


def open_store(path: Path, source: Source) -> Store:
    """Return the stored cells of `path`; task, model and skew of the source are part of what identifies a row."""
    shared = {"task": source.task, "model": source.model or "default", "beta": source.beta}
    return store.Store(path, Cell, shared)


def train_cell(cell: Cell, source: Source) -> store.Row:
    """Train one cell on one thread and return its results."""
    import slackwater as sw

    row: store.Row = {"cell": cell.name, "data": Path(source.data).name, "version": __version__,
                      "machine": platform.machine()}  # fmt: skip

    def train() -> store.Row:
        schedule = cell.schedule(source)
        row.update(client_rounds=int(schedule.matrix.sum()), kg=schedule.emissions_kg, objective=schedule.objective)
        task = sw.tasks.make(source.task, **source.task_options(cell.seed))
        baseline = cell.kind == "no-slack"
        learned = sw.train(
            schedule, task, aggregator="fedavg" if baseline else cell.aggregator, local_steps=cell.local_steps,
            batch_size=cell.batch_size, lr=cell.lr, seed=cell.seed, threads=1, eval_every=int(baseline), training_loss=False,
        )  # fmt: skip
        # A smaller budget stops the same run earlier, so one run gives the whole column.
        by_round = {"by_round": [done.accuracy for done in learned.history]} if baseline else {}
        return {"accuracy": learned.accuracy, "worst_client": learned.worst_client_accuracy,
                "never": list(learned.never), **by_round}  # fmt: skip

    found = store.trained(train)
    return {**row, **found}


def sweep(cells: Iterable[Cell], source: Source, kept: Store, *, jobs: int) -> Iterator[store.Row]:
    """Train the cells that are not stored, and yield each row when it is done."""
    return store.sweep(cells, partial(train_cell, source=source), kept, jobs=jobs)


def setting_cells() -> list[Cell]:
    """Return the cells of the search for the local work: no slack, ten rounds."""
    return [Cell(kind="no-slack", rounds=10, local_steps=steps, batch_size=size, lr=lr) for steps, size, lr in TRIED]


def baseline_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """Return the runs without slack; one run per seed gives the whole column."""
    return [
        Cell(kind="no-slack", rounds=BASELINE_ROUNDS, local_steps=LOCAL_STEPS, batch_size=BATCH, lr=LR, seed=s)
        for s in seeds
    ]


def table_cell(fine_tune: int, hours: int, end: int, seed: int = 0, lr: float = LR) -> Cell:
    """Return one cell of the accuracy tables."""
    return Cell(rounds=hours, end=end, fine_tune=fine_tune, local_steps=LOCAL_STEPS, batch_size=BATCH, lr=lr, seed=seed)


def table_cells(fine_tune: int, seeds: Iterable[int] = SEEDS, rates: Iterable[float] = (LR,)) -> list[Cell]:
    """Return the cells of an accuracy table, the most informative first, so that an unfinished sweep is useful.

    Tight budgets at informative end times come first, then wide ones, then the rest; each at every rate.
    """
    rows = HOURS[fine_tune]
    tight, wide = [T for T in rows if T <= _TIGHT], [T for T in rows if T > _TIGHT]
    first = [(T, s, seed) for seed in seeds for T in tight for s in _FIRST_ENDS[fine_tune]]
    second = [(T, s, seed) for seed in seeds for T in wide for s in _LATE_ENDS]
    rest = [(T, s, seed) for seed in seeds for T in rows for s in ENDS]
    return [table_cell(fine_tune, *key, lr) for key in dict.fromkeys(first + second + rest) for lr in rates]


def with_rates(cells: Iterable[Cell]) -> list[Cell]:
    """Return the same cells of the tables at every rate of the paper's grid."""
    every = (table_cell(cell.fine_tune, cell.rounds, cell.end, cell.seed, lr) for cell in cells for lr in RATES)
    return list(dict.fromkeys(every))


def alpha_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """Return the cells of fairness against accuracy. They use FedAvg: the paper introduces U-FedAvg only after this figure."""
    return [
        Cell(rounds=ALPHA_ROUNDS, slack=0, end=0, fine_tune=0, alpha=alpha, budget_kg=kg, aggregator="fedavg",
             local_steps=STATED_STEPS, batch_size=STATED_BATCH, lr=LR, seed=seed)
        for seed in seeds for kg in ALPHA_BUDGETS for alpha in ALPHAS
    ]  # fmt: skip


def process_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """Return the cells of heterogeneity and correlation, with and without fine-tuning."""
    return [
        Cell(kind="process", process=process.name, rounds=PROCESS_ROUNDS, fine_tune=fine_tune, aggregator="ufedavg",
             local_steps=STATED_STEPS, batch_size=STATED_BATCH, lr=LR, seed=seed)
        for seed in seeds for process in processes(len(ZONES)) for fine_tune in (0, PROCESS_FINE_TUNE)
    ]  # fmt: skip


def quick(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield a small version for the digits: one seed, few end times and alphas, few steps."""
    for cell in cells:
        small = cell.end in (0, 1, 20) and cell.rounds in (3, 5, 10, 40, 50) and cell.alpha in (0.001, ALPHA, 1.0)
        if cell.seed == 0 and small and (cell.kind != "plan" or cell.rounds != BASELINE_ROUNDS):
            yield replace(cell, local_steps=min(cell.local_steps, STATED_STEPS))
