"""Trained cells of the paper's figures and tables: each is stored when it is done, so that a sweep goes on where it stopped."""

from __future__ import annotations

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
from typing import Any, Literal

import numpy as np

from slackwater._version import __version__
from slackwater.errors import DataError, InfeasibleError
from slackwater.paper.setting import Source, problem
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.storage import write_whole

Kind = Literal["plan", "no-slack", "process"]
INFEASIBLE, DIVERGED = "infeasible", "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run, by everything that decides its result."""

    kind: Kind = "plan"
    rounds: int
    """T."""
    end: int = 0
    """s."""
    fine_tune: int = 1
    recall: int = 0
    """Not of the paper: what `plan --auto` asks for."""
    alpha: float = 0.1
    slack: int = 150
    budget_kg: float | None = None
    """None: what everybody costs in the first T hours."""
    process: str = ""
    """Of the correlation study: a cell of `slackwater.learning.participation`, such as HE-TC-SC."""
    aggregator: str = "ufedavg"
    local_steps: int
    batch_size: int = 128
    """As the paper states it."""
    lr: float
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its file."""
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
        """Who trains when."""
        if self.kind == "process":
            return self._process()
        row = problem(source, rounds=self.rounds, fine_tune=self.fine_tune if self.kind == "plan" else 0,
                      slack=self.slack, alpha=self.alpha, budget_kg=self.budget_kg)  # fmt: skip
        return (
            no_slack_plan(row) if self.kind == "no-slack" else plan(row.with_settings(recall=self.recall), end=self.end)
        )

    def _process(self) -> Plan:
        from slackwater.learning.participation import cells, generate
        from slackwater.planning.given import plan_from_matrix
        from slackwater.planning.problem import Problem

        process = next(one for one in cells(7) if one.name == self.process)
        matrix = generate(process, self.rounds, self.seed)
        matrix[:, self.rounds - self.fine_tune :] |= self.fine_tune > 0
        # Nothing is at stake but who trains, so every slot costs the same.
        given = Problem.from_costs(
            np.ones(matrix.shape), rounds=self.rounds, fine_tune=self.fine_tune, budget_kg=float(matrix.size)
        )
        return plan_from_matrix(given, matrix, end=0)


class Store:
    """The cells of one source of data, a JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """What was measured; None if it has not been trained yet."""
        path = self.folder / f"{cell.name}.json"
        try:
            row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise DataError(f"{path} is not a stored cell. Delete it, and it is trained again.") from None
        return row

    def accuracies(self, cells: Iterable[Cell]) -> list[float]:
        """In per cent, of those cells that were trained to an end; a run that diverged counts as chance, 10 %."""
        rows = [row for row in map(self.get, cells) if row is not None and row["status"] != INFEASIBLE]
        return [10.0 if row["status"] == DIVERGED else 100 * row["accuracy"] for row in rows]

    def rows(self) -> list[dict[str, Any]]:
        """All that is stored, in the order of the names."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))]


def train_cell(cell: Cell, source: Source, folder: Path) -> dict[str, Any]:
    """Train one cell on one thread, and store it."""
    import slackwater as sw
    from slackwater.learning import TrainingDiverged

    began = time.perf_counter()
    row: dict[str, Any] = {"cell": cell.name, **asdict(cell), "task": source.task, "model": source.model or "default", "beta": source.beta,
                           "data": Path(source.data).name, "version": __version__, "machine": platform.machine()}  # fmt: skip
    try:
        schedule = cell.schedule(source)
        row |= {
            "client_rounds": int(schedule.matrix.sum()),
            "kg": schedule.emissions_kg,
            "objective": schedule.objective,
        }
        task = sw.tasks.make(source.task, **source.task_options(cell.seed))
        baseline = cell.kind == "no-slack"
        learned = sw.train(
            schedule, task, aggregator="fedavg" if baseline else cell.aggregator, local_steps=cell.local_steps,
            batch_size=cell.batch_size, lr=cell.lr, seed=cell.seed, threads=1, eval_every=int(baseline), training_loss=False,
        )  # fmt: skip
        if baseline:  # a smaller budget stops earlier on the same way: one run holds the column
            row["by_round"] = [done.accuracy for done in learned.history]
        row |= {"status": "trained", "accuracy": learned.accuracy, "worst_client": learned.worst_client_accuracy,
                "never": list(learned.never)}  # fmt: skip
    except InfeasibleError as error:
        row |= {"status": INFEASIBLE, "note": str(error)}
    except TrainingDiverged as error:
        row |= {"status": DIVERGED, "note": str(error)}
    row["seconds"] = round(time.perf_counter() - began, 1)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{cell.name}.json", json.dumps(row))
    return row


def sweep(cells: Iterable[Cell], source: Source, store: Store, *, jobs: int) -> Iterator[dict[str, Any]]:
    """Train those that are not stored, in order, `jobs` at a time; yields each as it is done.

    Each job is a process with one thread: two cells side by side are quicker than one on two threads.
    """
    todo = [cell for cell in dict.fromkeys(cells) if store.get(cell) is None]
    if jobs == 1 or len(todo) <= 1:
        for cell in todo:
            yield train_cell(cell, source, store.folder)
        return
    context = get_context("spawn")  # a fork of a process that has used PyTorch's threads can hang
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_in_a_worker) as pool:
        running = {pool.submit(train_cell, cell, source, store.folder) for cell in todo}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        finally:
            for one in running:
                one.cancel()


def _in_a_worker() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    # Who never trains is in the cell's row; said for each of hundreds it would drown the progress.
    logging.getLogger("slackwater.learning").setLevel(logging.ERROR)
