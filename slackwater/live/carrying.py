"""The verb `carry_out`: a prepared folder and a transport become a finished run."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import threading
from datetime import datetime
from pathlib import Path

import torch

from slackwater.errors import SlackwaterError
from slackwater.forecasting.registry import forecaster
from slackwater.intensity import ProviderFeed
from slackwater.learning.surroundings import save_model, stopping, threads
from slackwater.ledger.run import Run
from slackwater.ledger.schema import damage
from slackwater.live.clock import Clock, Unhurried, WallClock
from slackwater.live.folder import MODEL, PLAN, LiveResult, RunStopped, load_actuals, load_archive, load_settings
from slackwater.live.guide import FixedPlan, ScheduleSource
from slackwater.live.knowledge import IntensityFeed, Playback, Providers
from slackwater.live.metering import BYTES_PER_MB, model_bytes
from slackwater.live.model import ModelDiverged
from slackwater.live.replanned import Replanned
from slackwater.live.runner import Evaluate, Runner
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays, Transport
from slackwater.live.trust import run_id
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.storage import plan_from_dict
from slackwater.replanning import blind
from slackwater.replanning.choices import BLEND, backtest_forecaster

log = logging.getLogger(__name__)

_PLAYED = "persistence"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def carry_out(
    folder: str | Path,
    transport: Transport,
    initial: Arrays,
    *,
    evaluate: Evaluate | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
) -> LiveResult:
    """Do the run that `prepare` put into `folder`: begin it, or go on from its run.db. The same call for both.

    Returns when the run is over. `initial` is the model to begin with; once there is a checkpoint that one counts. `stop`,
    once set, ends the run after the round under way, as SIGINT and SIGTERM do in the main thread: `RunStopped`. Any other
    `SlackwaterError` (full disk, unreachable provider, ..) leaves the run as it was; the same call goes on with it.
    """
    where, stop = Path(folder), stop or threading.Event()
    with (
        _opened(where) as run,
        damage(run.path, of=(sqlite3.Error,)),
        stopping(stop, after="the round", signals=_SIGNALS),
        threads(1),
    ):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        settings = LiveSettings.from_dict(run.settings)
        problem = plan.problem
        if problem.model_mb is not None:  # the network is charged by the size of the real model
            problem = problem.with_settings(model_mb=model_bytes(initial) / BYTES_PER_MB)
        try:
            if run.status != "done":
                run.set_status("running")
            runner = Runner(
                run, plan, settings, transport=transport, initial=initial, problem=problem,
                schedule=_schedule(where, plan, settings, problem), clock=clock or _clock(run, plan, settings),
                evaluate=evaluate, stop=stop,
            )  # fmt: skip
            runner.carry_out()
            result = runner.result()
        except RunStopped:
            run.set_status("stopped")
            raise
        except SlackwaterError as error:
            with contextlib.suppress(SlackwaterError):  # it may be the disk that is full
                run.log(str(error), level="error")
                if run.status == "running":
                    run.set_status("diverged" if isinstance(error, ModelDiverged) else "failed")
            raise
    try:
        save_model(where / MODEL, {name: torch.from_numpy(array) for name, array in result.arrays.items()})
    except OSError as error:
        raise SlackwaterError(
            f"{where / MODEL} cannot be written: {error.strerror}. The model is in the run's file: make room and go on "
            f"with: slackwater resume {where}"
        ) from None
    return result


def settle(folder: str | Path) -> float:
    """Settle a run that is over with the actuals that have come since; what is left at an upper bound, kg.

    It needs no transport. A run that is not over settles as it goes on.
    """
    where = Path(folder)
    with Run.open(where) as run, damage(run.path, of=(sqlite3.Error,)):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        schedule = _schedule(where, plan, LiveSettings.from_dict(run.settings), plan.problem)
        with damage(run.path):
            schedule.restore(run.journal.get("guide"))
        if run.status == "done":
            with run.transaction():
                schedule.settle(run.ledger)
        return run.ledger.unsettled_kg()


def _opened(folder: Path) -> Run:
    """Open the run that is there, or create one from what was prepared."""
    if Run.begun(folder):
        return Run.open(folder)
    plan, settings = Plan.load(folder / PLAN), load_settings(folder)
    task = settings.engine.get("task")
    return Run.create(
        folder, plan=plan.to_dict(), budget_kg=plan.problem.budget_kg, settings=settings.to_dict(),
        task={"name": str(task["name"] if task else settings.engine.get("app") or "live"), "live": True},
        kind=settings.kind, run_id=run_id(folder, settings.engine),
    )  # fmt: skip


def _schedule(folder: Path, plan: Plan, settings: LiveSettings, problem: Problem) -> ScheduleSource:
    if settings.source == "plan":
        return FixedPlan(plan, problem)
    asked = blind(problem)
    intensity: IntensityFeed
    if settings.source == "playback":
        actuals = load_actuals(folder)
        archive, lag = load_archive(folder), settings.lag_slots
        played = backtest_forecaster(settings.forecast or _PLAYED, actuals, archive, lag=lag)
        intensity = Playback(asked, actuals, played, lag=settings.lag_slots)
    else:
        named = None if settings.forecast in (None, BLEND) else forecaster(settings.forecast)
        zones = sorted({str(zone) for zone in asked.fleet.zone})
        feed = ProviderFeed.of(
            settings.data, zones, slot_minutes=asked.traces.slot_minutes,
            folder=Path(settings.data.get("folder", folder)), forecaster=named,
        )  # fmt: skip
        intensity = Providers(asked, feed)
    return Replanned(problem, intensity, settings.replanning, first=plan.matrix)


def _clock(run: Run, plan: Plan, settings: LiveSettings) -> Clock:
    """Return the clock; a compressed one begins when the run does, and continues from there after a restart."""
    seconds = settings.slot_seconds
    if seconds is None:
        return WallClock.real(plan.problem)
    if seconds == 0:
        return Unhurried(plan.problem.slot_hours * 3600.0)
    clock = WallClock(WallClock.real(plan.problem).now(), seconds)
    begun = run.journal.get("begun_at")
    if begun is None:
        run.journal.put(begun_at=clock.begins_at.isoformat())
        return clock
    return WallClock(datetime.fromisoformat(begun), seconds)
