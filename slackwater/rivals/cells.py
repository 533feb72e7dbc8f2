"""One method, budget and seed is one cell: trained, stored when it is done, never trained twice."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater._version import __version__
from slackwater.errors import DataError, InfeasibleError, ScenarioError
from slackwater.planning.problem import Problem
from slackwater.planning.storage import write_whole
from slackwater.rivals.planned import PLANNED
from slackwater.rivals.registry import split_method

if TYPE_CHECKING:
    from slackwater.learning.result import Result
    from slackwater.learning.task import Task

TRAINED, DIVERGED, INFEASIBLE = "trained", "diverged", "infeasible"
_SETTING = "setting.json"
_CELLS = "cells"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all cells of a comparison share, beside the scenario."""

    task: str = "digits"
    task_data: str | None = None
    model: str | None = None
    local_steps: int = 30
    batch_size: int = 128
    lr: float = 0.1
    eval_every: int = 1
    """Rounds from one evaluation to the next: how finely the way to a target accuracy is known."""
    probes: str = "charged"
    probe_samples: int | None = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run of a comparison."""

    method: str
    budget_kg: float
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.method.replace(':', '-')}_{self.budget_kg:g}kg_seed{self.seed}"


class Store:
    """A folder of cells, a JSON file each, all of one scenario and setting."""

    def __init__(self, folder: Path, problem: Problem, setting: Setting) -> None:
        self.folder, self.problem, self.setting = folder, problem, setting
        now = {"scenario": _fingerprint(problem), "setting": asdict(setting) | {"task_data": None}}
        path = folder / _SETTING
        if path.is_file():
            was = json.loads(path.read_text(encoding="utf-8"))
            if was != now:
                wrong = [k for k, v in now["setting"].items() if was.get("setting", {}).get(k) != v]  # type: ignore[attr-defined]
                raise ScenarioError(
                    f"{folder} holds cells of another comparison ({', '.join(wrong) or 'the scenario'} differs). Name "
                    "another folder with --out."
                )
        else:
            (folder / _CELLS).mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(now, indent=1))

    def path(self, cell: Cell) -> Path:
        """Where a cell is kept."""
        return self.folder / _CELLS / f"{cell.name}.json"

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """What was measured; None if it has not been trained yet."""
        try:
            row: dict[str, Any] = json.loads(self.path(cell).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise DataError(f"{self.path(cell)} is not a stored cell. Delete it, and it is trained again.") from None
        return row

    def put(self, cell: Cell, row: dict[str, Any]) -> None:
        """Keep what was measured."""
        write_whole(self.path(cell), json.dumps(row))


def train_cell(cell: Cell, problem: Problem, setting: Setting) -> dict[str, Any]:
    """Train one cell on one thread."""
    from slackwater import learning

    began = time.perf_counter()
    row: dict[str, Any] = {**asdict(cell), "version": __version__, "machine": platform.machine()}
    given = {"data": setting.task_data, "model": setting.model}
    takes = learning.tasks.option_names(setting.task)
    task = learning.tasks.make(
        setting.task,
        clients=len(problem.fleet),
        seed=cell.seed,
        **{key: value for key, value in given.items() if value is not None and key in takes},
    )
    budgeted = problem.with_settings(budget_kg=cell.budget_kg)
    try:
        row |= _measured(_trained(cell, budgeted, task, setting), budgeted)
    except InfeasibleError as error:
        row |= {"status": INFEASIBLE, "note": str(error)}
    except learning.TrainingDiverged as error:
        chance = 1 / len(set(task.test.y.tolist()))  # what a model that is no longer one is worth
        row |= {"status": DIVERGED, "accuracy": chance, "note": str(error)}
    row["seconds"] = round(time.perf_counter() - began, 1)
    return row


def _trained(cell: Cell, problem: Problem, task: Task, setting: Setting) -> Result:
    from slackwater import learning, rivals

    how: dict[str, Any] = {
        "local_steps": setting.local_steps,
        "batch_size": setting.batch_size,
        "lr": setting.lr,
        "seed": cell.seed,
        "eval_every": setting.eval_every,
        "training_loss": False,
        "threads": 1,
    }
    name, other = split_method(cell.method)
    if name in PLANNED:
        plan, aggregator = PLANNED[name].make(problem)
        return learning.train(plan, task, aggregator=other or aggregator, **how)
    if other is not None:
        how["aggregator"] = other
    return rivals.train(
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
    counts = np.array([sum(name in done.participants for done in history) for name in names])
    pi = counts / max(1, slots)
    hours = problem.slot_hours
    return {
        "status": TRAINED,
        "accuracy": result.accuracy,
        "worst_client": result.worst_client_accuracy,
        "kg": result.emissions_kg,
        "rounds": len(history),
        "client_rounds": int(counts.sum()),
        "slots": slots,
        # The paper's heterogeneity, over the slots from the first to the last round; infinite if somebody never trained.
        "rho_h": float(np.mean((1 - pi) / pi)) if counts.all() else "inf",
        "never": list(result.never),
        "curve": [[(d.slot + 1) * hours, d.spent_kg, d.accuracy] for d in history if d.accuracy is not None],
    }


def sweep(cells: Iterable[Cell], store: Store, *, jobs: int) -> Iterator[dict[str, Any]]:
    """Train those that are not stored, in order, `jobs` at a time; each is stored and yielded as it is done."""
    todo = [cell for cell in dict.fromkeys(cells) if store.get(cell) is None]
    if jobs == 1 or len(todo) <= 1:
        for cell in todo:
            row = train_cell(cell, store.problem, store.setting)
            store.put(cell, row)
            yield row
        return
    context = get_context("spawn")  # a fork of a process that has used PyTorch's threads can hang
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_in_a_worker) as pool:
        running = {pool.submit(train_cell, cell, store.problem, store.setting): cell for cell in todo}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    row = one.result()
                    store.put(running.pop(one), row)
                    yield row
        finally:
            for one in running:
                one.cancel()


def _in_a_worker() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    # Who never trains is in the cell's row; said for each of many it would drown the progress.
    logging.getLogger("slackwater.learning").setLevel(logging.ERROR)


def _fingerprint(problem: Problem) -> str:
    """Of what decides a schedule, but for the budget."""
    costs, fleet = problem.costs, problem.fleet
    parts = [costs.intensity, costs.energy_kwh, costs.idle_kwh, costs.can_train(), fleet.min_slots, fleet.max_slots]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    said = [problem.rounds, problem.horizon, problem.fine_tune, problem.alpha, problem.max_parallel, list(fleet.names)]
    said += [problem.recall] if problem.recall else []
    digest.update(json.dumps([*said, problem.first_slot.isoformat()], default=str).encode())
    return digest.hexdigest()
