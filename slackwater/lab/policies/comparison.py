"""Comparison of methods at equal emissions: a cell is one method, budget and seed; a line is a mean over seeds."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater._version import __version__
from slackwater.atomic import write_whole
from slackwater.errors import ScenarioError
from slackwater.lab import store
from slackwater.lab.policies.registry import PLANNED, split_method
from slackwater.lab.store import DIVERGED, INFEASIBLE
from slackwater.ledger.schema import RunKind
from slackwater.ledger.score import ACCURACY
from slackwater.planning.metrics import Metrics
from slackwater.planning.problem import Problem

if TYPE_CHECKING:
    from slackwater.training.loop import Result
    from slackwater.training.task import Task

KIND: RunKind = "simulated"
"""Kind of every run of a comparison: cells are trained without waiting for their hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings shared by the cells of a comparison, besides the scenario."""

    task: str = "digits"
    task_data: str | None = None
    model: str | None = None
    local_steps: int = 30
    batch_size: int = 128
    lr: float = 0.1
    eval_every: int = 1
    """Rounds between evaluations: the resolution of hours and kg to a target accuracy."""
    probes: str = "charged"
    probe_samples: int | None = 512
    precision: str = "fp32"

    def to_dict(self) -> dict[str, Any]:
        """Return what a folder of cells stores; fp32 is left out, as in folders of earlier versions."""
        kept = asdict(self) | {"task_data": None}
        return {key: value for key, value in kept.items() if (key, value) != ("precision", "fp32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run of a comparison."""

    method: str
    budget_kg: float
    seed: int


Store = store.Store[Cell]


def open_store(folder: Path, problem: Problem, setting: Setting) -> Store:
    """Return the cells of a folder; raise ScenarioError if they belong to another scenario or setting."""
    now = {"scenario": _fingerprint(problem), "setting": setting.to_dict()}
    path = folder / "setting.json"
    if path.is_file():
        was = json.loads(path.read_text(encoding="utf-8"))
        if was != now:
            wrong = [k for k, v in now["setting"].items() if was.get("setting", {}).get(k) != v]  # type: ignore[attr-defined]
            raise ScenarioError(
                f"{folder} holds cells of another comparison ({', '.join(wrong) or 'the scenario'} differs). Name "
                "another folder with --out."
            )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(now, indent=1))
    return store.Store(folder / "cells.jsonl", Cell)


def sweep(cells: Iterable[Cell], problem: Problem, setting: Setting, kept: Store, *, jobs: int) -> Iterator[store.Row]:
    """Train the cells that are not stored, `jobs` at a time, and yield each row when it is done."""
    return store.sweep(cells, partial(train_cell, problem=problem, setting=setting), kept, jobs=jobs)


def train_cell(cell: Cell, problem: Problem, setting: Setting) -> store.Row:
    """Train one cell on one thread and return its results."""
    from slackwater import training

    given = {"data": setting.task_data, "model": setting.model}
    takes = training.tasks.option_names(setting.task)
    task = training.tasks.make_for(
        setting.task,
        [str(name) for name in problem.fleet.names],
        seed=cell.seed,
        **{key: value for key, value in given.items() if key in takes},
    )
    if task.label != ACCURACY:
        raise ScenarioError(
            f"`rivals` compares accuracies, but the task {task.name!r} measures {task.label.heading}. Compare by any metric in "
            "Python: sw.compare_methods."
        )
    budgeted = problem.with_settings(budget_kg=cell.budget_kg)
    found = store.trained(lambda: _measured(_trained(cell, budgeted, task, setting), budgeted))
    if found["status"] == DIVERGED:
        targets = task.test.take(slice(None))[1]
        found["accuracy"] = 1 / len(set(targets.reshape(-1).tolist()))  # accuracy of chance: the model diverged
    return {"version": __version__, "machine": platform.machine(), **found}


def _trained(cell: Cell, problem: Problem, task: Task, setting: Setting) -> Result:
    from slackwater import training
    from slackwater.lab import policies

    how: dict[str, Any] = {
        "local_steps": setting.local_steps,
        "batch_size": setting.batch_size,
        "lr": setting.lr,
        "seed": cell.seed,
        "eval_every": setting.eval_every,
        "precision": setting.precision,
        "training_loss": False,
        "threads": 1,
    }
    name, other = split_method(cell.method)
    if name in PLANNED:
        plan, aggregator = PLANNED[name].make(problem)
        return training.train(plan, task, aggregator=other or aggregator, **how)
    if other is not None:
        how["aggregator"] = other
    return policies.train(
        problem,
        task,
        policy=name,
        probes=setting.probes,  # type: ignore[arg-type]
        probe_samples=setting.probe_samples,
        **how,
    )


def _measured(result: Result, problem: Problem) -> dict[str, Any]:
    history, names = result.history, [str(name) for name in problem.fleet.names]
    slots = history[-1].slot + 1 if history else 0
    trained = np.zeros((len(names), max(1, slots)), dtype=bool)
    for done in history:
        trained[[names.index(name) for name in done.participants], done.slot] = True
    # As a plan's own figure: over the slots before the fine-tuning window, which a policy does not have.
    before = next((done.slot for done in history if done.in_window), slots)
    metrics = Metrics.of(np.packbits(trained, axis=1), before, np.zeros(len(names)))
    hours = problem.slot_hours
    return {
        "accuracy": result.accuracy,
        "worst_client": result.worst_client_accuracy,
        "kg": result.emissions_kg,
        "rounds": len(history),
        "client_rounds": int(trained.sum()),
        "slots": slots,
        "rho_h": metrics.to_dict()["rho_h"],
        "never": list(result.never),
        "curve": [[(d.slot + 1) * hours, d.spent_kg, d.accuracy] for d in history if d.accuracy is not None],
    }


def _fingerprint(problem: Problem) -> str:
    """Return a hash of everything that decides a schedule, except the budget."""
    costs, fleet = problem.costs, problem.fleet
    parts = [costs.intensity, costs.energy_kwh, costs.idle_kwh, costs.can_train(), fleet.min_slots, fleet.max_slots]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    said = [problem.rounds, problem.horizon, problem.fine_tune, problem.alpha, problem.max_parallel, list(fleet.names)]
    said += [problem.recall] if problem.recall else []
    digest.update(json.dumps([*said, problem.first_slot.isoformat()], default=str).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method at one budget. NaN: not measured; deviations are 0 for one seed."""

    budget_kg: float
    method: str
    seeds: int
    """Trained cells, including diverged ones."""
    accuracy: float
    """Mean; a diverged run counts as chance."""
    accuracy_sd: float
    worst_client: float
    worst_client_sd: float
    kg: float
    slots: float
    """Slots until the last round."""
    rounds: float
    client_rounds: float
    rho_h: float
    """Heterogeneity before the window, as in `Plan.metrics`: mean over the seeds in which all clients train before it;
    infinite if there is none."""
    target: float
    reached: int
    """Seeds that reached the target accuracy."""
    hours_to_target: float
    """Mean over these seeds."""
    hours_to_target_sd: float
    kg_to_target: float
    kg_to_target_sd: float
    diverged: int
    infeasible: int
    """Seeds for which the budget pays no schedule."""
    kind: RunKind = KIND


def lines(rows: Iterable[dict[str, Any]], target: float) -> list[Line]:
    """Return a line for each budget and method, the most accurate first."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((float(row["budget_kg"]), str(row["method"])), []).append(row)
    made = [_line(budget, method, group, target) for (budget, method), group in groups.items()]
    return sorted(made, key=lambda one: (one.budget_kg, -one.accuracy if not math.isnan(one.accuracy) else 1.0))


def to_csv(table: Sequence[Line]) -> str:
    """Return the lines as CSV, numbers to six digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(Line)])
    for line in table:
        values = asdict(line).values()
        writer.writerow(["" if _unknown(v) else f"{v:.6g}" if isinstance(v, float) else v for v in values])
    return out.getvalue()


def _line(budget: float, method: str, group: list[dict[str, Any]], target: float) -> Line:
    tried = [row for row in group if row["status"] != INFEASIBLE]
    done = [row for row in tried if row["status"] != DIVERGED]
    ways = [way for row in done if (way := _way(row, target)) is not None]
    rho = [float(row["rho_h"]) for row in done if row["rho_h"] != "inf"]
    return Line(
        budget_kg=budget,
        method=method,
        seeds=len(tried),
        accuracy=_mean([row["accuracy"] for row in tried]),
        accuracy_sd=_deviation([row["accuracy"] for row in tried]),
        worst_client=_mean([row["worst_client"] for row in done if row["worst_client"] is not None]),
        worst_client_sd=_deviation([row["worst_client"] for row in done if row["worst_client"] is not None]),
        kg=_mean([row["kg"] for row in done]),
        slots=_mean([row["slots"] for row in done]),
        rounds=_mean([row["rounds"] for row in done]),
        client_rounds=_mean([row["client_rounds"] for row in done]),
        rho_h=_mean(rho) if rho else math.inf if done else math.nan,
        target=target,
        reached=len(ways),
        hours_to_target=_mean([hours for hours, _ in ways]),
        hours_to_target_sd=_deviation([hours for hours, _ in ways]),
        kg_to_target=_mean([kg for _, kg in ways]),
        kg_to_target_sd=_deviation([kg for _, kg in ways]),
        diverged=len(tried) - len(done),
        infeasible=len(group) - len(tried),
    )


def _way(row: dict[str, Any], target: float) -> tuple[float, float] | None:
    """Return hours and kg until the model first had the target accuracy, or None."""
    return next(((hours, kg) for hours, kg, accuracy in row["curve"] if accuracy >= target), None)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the sample (n - 1)."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 if len(values) else math.nan


def _unknown(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
