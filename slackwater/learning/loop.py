"""Train by a plan, resume after a stop, and train the baseline without slack."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Any

import torch

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.learning.algorithm import Callback, Training
from slackwater.learning.fitting import check, described, notes_of, plan_of, rebuilt
from slackwater.learning.guide import ByPlan, ScheduleSource
from slackwater.learning.result import Result, TrainingDiverged, TrainingStopped
from slackwater.learning.settings import EVAL_EVERY, Settings
from slackwater.learning.surroundings import save_model, stopping, threads
from slackwater.learning.task import Task
from slackwater.learning.workers import StopRequested
from slackwater.ledger.run import Run
from slackwater.ledger.schema import damage
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem

log = logging.getLogger(__name__)
MODEL = "model.pt"


def train(
    plan: Plan,
    task: Task,
    *,
    aggregator: str | None = None,
    local_steps: int = 30,
    local_epochs: int | None = None,
    batch_size: int = 128,
    lr: float = 0.1,
    weight_decay: float = 5e-4,
    seed: int = 0,
    out: str | Path | None = None,
    eval_every: int = EVAL_EVERY,
    training_loss: bool = True,
    server: str = "plain",
    server_lr: float | None = None,
    memory_dtype: str = "float32",
    averaging: float | None = None,
    devices_per_slot: int | None = None,
    device_kwh: float | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Callback | None = None,
    tensorboard: bool = False,
) -> Result:
    """Train a task by a plan (Algorithm 1), and return the model, its accuracy and its emissions.

    The same plan, task and settings give the same bits on the same machine.

    Args:
        plan: Who trains in which slot.
        task: Model and data of the clients, such as `sw.tasks.digits(clients=7)`.
        aggregator: How updates are combined before the window. Default: as the plan recommends.
        local_steps: SGD steps of a client in a round, each on `batch_size` samples with the learning rate `lr`.
        out: New folder for `run.db` (ledger and rounds), `state/` (the checkpoint that `resume` reads) and `model.pt`.
        eval_every: Rounds between evaluations; 0 evaluates at the end only.
        progress: Called after every round.

    `slackwater.learning.settings.Settings` describes the other settings.
    """
    settings = Settings(
        aggregator=plan.aggregator if aggregator is None else aggregator, local_steps=local_steps,
        local_epochs=local_epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay, seed=seed,
        eval_every=eval_every, training_loss=training_loss, server=server, server_lr=server_lr,
        memory_dtype=memory_dtype, averaging=averaging, devices_per_slot=devices_per_slot, device_kwh=device_kwh,
        device=device, threads=torch.get_num_threads() if threads is None else threads, tensorboard=tensorboard,
    )  # fmt: skip
    check(plan, task, settings)
    if tensorboard and out is None:
        raise ScenarioError("tensorboard=True needs a folder to write to: name one with --out (out= in Python).")
    run = Run.create(
        out, plan=plan.to_dict(), budget_kg=plan.problem.budget_kg, settings=settings.to_dict(), task=described(task),
        kind="simulated",
    )  # fmt: skip
    return carry_out(run, _by_plan(plan, settings), task, settings, notes_of(plan, task, settings), progress)


def resume(
    out: str | Path, *, task: Task | None = None, progress: Callback | None = None, from_last_good: bool = False
) -> Result:
    """Continue a run that was killed or stopped, to the same bits; return the result of one that is done.

    Args:
        out: The run folder.
        task: The task, with the same data as before. Default: a built-in task is made from the run's file.
        progress: Called after every round.
        from_last_good: Continue from the checkpoint before the last one if that is damaged.

    Raises:
        SlackwaterError: The last checkpoint is damaged and `from_last_good` is not set.
    """
    run = Run.open(out)
    try:
        if "policy" in run.settings:
            raise ScenarioError(
                f"The run in {out} was by the policy {run.settings['policy']!r}. Go on with it by slackwater resume "
                f"{out}, or slackwater.rivals.resume({str(out)!r}) in Python."
            )
        plan, settings = plan_of(run), Settings.from_dict(run.settings)
        task = rebuilt(run) if task is None else task
        check(plan, task, settings)
        check_same_data(run, task)
        if from_last_good:
            run.fall_back()
        run.set_status("running")
    except BaseException:
        run.close()
        raise
    return carry_out(run, _by_plan(plan, settings), task, settings, notes_of(plan, task, settings), progress)


def check_same_data(run: Run, task: Task) -> None:
    """Raise if the task's data are not those that the run began with."""
    was, now = run.task, described(task)
    if (was["samples"], was["fingerprint"]) != (now["samples"], now["fingerprint"]):
        raise ScenarioError(
            f"The run in {run.folder} was begun with other data than the task {task.name!r} has now: "
            f"{sum(was['samples'])} samples over {len(was['samples'])} clients then, {sum(now['samples'])} over "
            f"{len(now['samples'])} now. Make the task as it was."
        )


def baseline(problem: Problem, task: Task, **settings: Any) -> Result:
    """Train without slack: all clients in every slot from the first until the budget is spent (FedAvg).

    Args:
        problem: Clients, intensity and budget.
        task: Model and data of the clients.
        settings: As for `train`.
    """
    settings.setdefault("aggregator", "fedavg")
    return train(no_slack_plan(problem), task, **settings)


def _by_plan(plan: Plan, settings: Settings) -> ByPlan:
    together = settings.devices_per_slot
    return ByPlan(plan, note="" if together is None else f"{together} devices together")


def carry_out(
    run: Run,
    schedule: ScheduleSource,
    task: Task,
    settings: Settings,
    notes: tuple[str, ...],
    progress: Callback | None,
) -> Result:
    """Train from where the run's file stands to the end of the schedule."""
    with run, damage(run.path, of=(sqlite3.Error,)), threads(settings.threads), contextlib.ExitStack() as cleanup:
        try:
            if not run.events():
                for note in notes:
                    log.warning(note)
                    run.log(note, level="warning")
            training = Training(run, schedule, task, settings, notes)
            cleanup.callback(training.workers.close)
            if settings.tensorboard and run.folder is not None:
                from slackwater.learning.tensorboard import EventFile

                progress = EventFile(run.folder / "tensorboard", kind=run.kind, then=progress)
                cleanup.callback(progress.close)
            with stopping(training.stop, after="the clients"):
                training.algorithm_1(progress)
                result = training.result()
            if run.folder is not None:
                save_model(run.folder / MODEL, result.model)
            return result
        except StopRequested:
            run.set_status("stopped")
            again = (
                f"Go on with: slackwater resume {run.folder}"
                if run.folder
                else "It had no folder (--out, or out= in Python), so it cannot be resumed."
            )
            raise TrainingStopped(
                f"Stopped after {len(training.history)} of {schedule.rounds} rounds, {run.ledger.spent_kg():.6g} "
                f"kg charged. {again}"
            ) from None
        except TrainingDiverged as error:
            run.set_status("diverged")
            run.log(str(error), level="error", slot=error.slot)
            raise
        except OSError as error:
            raise SlackwaterError(
                f"{error.filename or run.folder} cannot be written: {error.strerror}. Nothing that was done before is "
                f"lost: make room and go on with: slackwater resume {run.folder}"
            ) from None
