"""Cells of experiments/auto.py: one training run each, its schedule, and where it is stored."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import auto_candidates
import auto_small
import numpy as np

import slackwater as sw
from slackwater.errors import InfeasibleError
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem

ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
SLACK, POWER_W, LOCAL_STEPS, LR = 150, 300.0, 30, 0.1
_FAR_KG = 1e4
"""Counted from so far above every cost, each slot is worth the same."""
SEARCH_SEEDS, JUDGE_SEEDS = (0, 1, 2), (10, 11, 12)
"""Rules, constants and best cells are chosen on the first and compared on the others."""
MORE_SEEDS = (*JUDGE_SEEDS, *range(13, 19))
"""Where hundredths decide: auto beside our best cell."""
STORE = Path(__file__).parent / "auto" / "cells.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run, by everything that decides its result."""

    task: str = "mnist"
    beta: float = 0.5
    start: str = "2022-01-01T00:00Z"
    kind: str = "plan"
    """`plan`, or `no-slack` for everybody in the first hours."""
    hours: int
    """T: the budget is what everybody costs in the first T hours from the start."""
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
        """Cells with the same are trained together."""
        return (self.task, self.beta, self.start, self.kind, self.hours, self.end, self.fine_tune, self.recall, str(self.alpha),
                self.objective, self.steps)  # fmt: skip


class Store:
    """Cells that were trained, in one file, a line each."""

    def __init__(self, path: Path = STORE) -> None:
        self.path = path
        self.rows: dict[Cell, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # the last line of a sweep that was killed
                    continue
                self.rows[Cell(**row["cell"])] = row

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Keep them, on disk before this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+", encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(file.tell() - 1)
                if file.read(1) != "\n":
                    file.write("\n")
            for row in rows:
                self.rows[Cell(**row["cell"])] = row
                file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def accuracy(self, cell: Cell) -> float | None:
        """In per cent; a run that diverged counts as chance; None if it is infeasible or not there."""
        row = self.rows.get(cell)
        if row is None or row["status"] == "infeasible":
            return None
        return 10.0 if row["status"] == "diverged" else 100 * float(row["accuracy"])


class Maker:
    """Problems and plans of cells."""

    def __init__(self, data: str) -> None:
        self.data = data
        self.traces: dict[str, sw.Traces] = {}

    def problem(self, cell: Cell) -> Problem:
        """Seven clients of 300 W; the budget is what everybody costs in the first hours from the start."""
        if cell.start not in self.traces:
            self.traces[cell.start] = sw.load_traces(
                self.data, zones=list(ZONES), start=cell.start, hours=SLACK + 50, factor="direct"
            )
        traces = self.traces[cell.start]
        everybody = float(np.sum(traces.intensity[:, : cell.hours])) * POWER_W / 1000
        clients = [sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in ZONES]
        slack = 0 if cell.kind == "no-slack" else SLACK
        return Problem(
            clients=clients, traces=traces, rounds=cell.hours, slack=slack, alpha=cell.alpha,
            fine_tune=min(cell.fine_tune, cell.hours), recall=cell.recall, budget_kg=everybody * (1 + 1e-12),
            g_max_kg=_FAR_KG if cell.objective == "count" else None,
        )  # fmt: skip

    def plan(self, cell: Cell) -> Plan:
        """The cell's schedule."""
        problem = self.problem(cell)
        return no_slack_plan(problem) if cell.kind == "no-slack" else sw.plan(problem, end=cell.end)


def train_cells(
    cells: Iterable[Cell], store: Store, maker: Maker, task_data: str | None, *, others: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Train what is not stored, the runs of one schedule together; yields the rows of each as they are done."""
    todo = [cell for cell in dict.fromkeys(cells) if cell not in store.rows]
    for _, group in groupby(todo, key=lambda cell: cell.schedule):
        together = list(group)
        began = time.perf_counter()
        rows = _train(together, maker, task_data, others)
        seconds = round((time.perf_counter() - began) / len(together), 2)
        for row in rows:
            row["seconds"] = seconds
        store.add(rows)
        yield rows


def _train(cells: Sequence[Cell], maker: Maker, task_data: str | None, others: bool) -> list[dict[str, Any]]:
    first = cells[0]
    try:
        plan = maker.plan(first)
    except InfeasibleError:
        return [{"cell": asdict(cell), "status": "infeasible"} for cell in cells]
    data = task_data if first.task == "mnist" else None
    task_of = {
        seed: auto_small.small_task(first.task, data, first.beta, seed) for seed in sorted({c.seed for c in cells})
    }
    runs = [
        auto_small.Run(
            rule=auto_candidates.make(cell.rule, plan), seed=cell.seed, lr=cell.lr, fade=cell.fade,
            throughout="+throughout" in cell.rule,
        )
        for cell in cells
    ]  # fmt: skip
    outcomes = auto_small.train(plan, task_of, runs, local_steps=first.steps, others=others)
    known = {"client_rounds": int(plan.matrix.sum()), "kg": plan.emissions_kg, "budget_kg": plan.problem.budget_kg}
    rows = []
    for cell, outcome in zip(cells, outcomes, strict=True):
        row: dict[str, Any] = {"cell": asdict(cell), **known}
        if outcome.accuracy is None:
            row["status"] = "diverged"
        else:
            row |= {"status": "trained", "accuracy": outcome.accuracy, "worst_client": outcome.worst_client}
            if others:
                row["others"] = dict(outcome.others)
        rows.append(row)
    return rows


def auto_cell(maker: Maker, cell: Cell) -> Cell:
    """The cell that `plan --auto` chooses for the budget, task and start of this one."""
    recommended = sw.plan(maker.problem(cell), auto=True).recommended
    assert recommended is not None
    return replace(cell, rule=recommended.aggregator, **recommended.settings)


def best_cell(store: Store, rule: str, hours: int, seeds: Sequence[int] = SEARCH_SEEDS, **setting: Any) -> Cell | None:
    """The cell of a rule with the highest mean over those seeds that all of its cells were trained with; seed 0 of it."""
    like = Cell(hours=hours, rule=rule, **setting)
    found: dict[Cell, dict[int, float]] = {}
    for cell in store.rows:
        same = replace(cell, end=0, fine_tune=1, recall=0, lr=LR, seed=0) == like
        accuracy = store.accuracy(cell)
        if accuracy is not None and same and cell.fine_tune in (1, 3) and cell.seed in seeds:
            found.setdefault(replace(cell, seed=0), {})[cell.seed] = accuracy
    common = set(seeds).intersection(*(of.keys() for of in found.values())) if found else set()
    if not common:
        return None
    return max(found, key=lambda cell: statistics.mean(found[cell][seed] for seed in common))
