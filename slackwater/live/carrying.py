"""The verb `carry_out`: a prepared folder and a transport become a finished run."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from datetime import datetime
from pathlib import Path

import torch

from slackwater.errors import SlackwaterError
from slackwater.forecasting.registry import forecaster
from slackwater.learning.surroundings import save_model, stopping, threads
from slackwater.ledger.run import Run
from slackwater.live.clock import Clock, Unhurried, WallClock
from slackwater.live.folder import MODEL, PLAN, LiveResult, RunStopped, load_actuals, load_settings
from slackwater.live.guide import FixedPlan, Guide
from slackwater.live.knowledge import Knowledge, Playback, Providers
from slackwater.live.replanned import Replanned
from slackwater.live.runner import Evaluate, Runner
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays, Transport
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict
from slackwater.replanning import blind
from slackwater.replanning.choices import backtest_forecaster

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
    with _opened(where) as run, stopping(stop, after="the round", signals=_SIGNALS), threads(1):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        settings = LiveSettings.from_dict(run.settings)
        try:
            if run.status != "done":
                run.set_status("running")
            runner = Runner(
                run,
                plan,
                settings,
                transport=transport,
                initial=initial,
                guide=_guide(where, plan, settings),
                clock=clock or _clock(run, plan, settings),
                evaluate=evaluate,
                stop=stop,
            )
            runner.carry_out()
            result = runner.result()
        except RunStopped:
            run.set_status("stopped")
            raise
        except SlackwaterError as error:
            with contextlib.suppress(SlackwaterError):  # it may be the disk that is full
                run.log(str(error), level="error")
                if run.status == "running":
                    run.set_status("failed")
            raise
    _save_model(where / MODEL, result)
    return result


def settle(folder: str | Path) -> float:
    """Settle a run that is over with the actuals that have come since; what is left at an upper bound, kg.

    It needs no transport. A run that is not over settles as it goes on.
    """
    where = Path(folder)
    with Run.open(where) as run:
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        guide = _guide(where, plan, LiveSettings.from_dict(run.settings))
        guide.restore(run.journal.get("guide"))
        if run.status == "done":
            with run.transaction():
                guide.settle(run.ledger)
        return run.ledger.unsettled_kg()


def _opened(folder: Path) -> Run:
    """The run that is there, or a new one from what was prepared."""
    if Run.begun(folder):
        return Run.open(folder)
    plan, settings = Plan.load(folder / PLAN), load_settings(folder)
    return Run.create(
        folder,
        plan=plan.to_dict(),
        budget_kg=plan.problem.budget_kg,
        settings=settings.to_dict(),
        task={"name": str(settings.engine.get("app") or "live"), "live": True},
    )


def _guide(folder: Path, plan: Plan, settings: LiveSettings) -> Guide:
    if settings.source == "plan":
        return FixedPlan(plan)
    asked = blind(plan.problem)
    knowledge: Knowledge
    if settings.source == "playback":
        actuals = load_actuals(folder)
        named = backtest_forecaster(settings.forecast or _PLAYED, actuals)
        knowledge = Playback(asked, actuals, named, lag=settings.lag_slots)
    else:
        own = None if settings.forecast is None else forecaster(settings.forecast)
        where = Path(settings.data.get("folder", folder))
        knowledge = Providers(asked, data=settings.data, folder=where, forecaster=own)
    return Replanned(plan.problem, knowledge, settings.replanning)


def _clock(run: Run, plan: Plan, settings: LiveSettings) -> Clock:
    """A compressed clock begins when the run does, and goes on from there after a restart."""
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


def _save_model(path: Path, result: LiveResult) -> None:
    try:
        save_model(path, {name: torch.from_numpy(array) for name, array in result.arrays.items()})
    except OSError as error:
        raise SlackwaterError(
            f"{path} cannot be written: {error.strerror}. The model is in the run's file: make room and go on with: "
            f"slackwater resume {path.parent}"
        ) from None
