"""Start a scenario with an engine: `run` it in real time, `rehearse` it on a past period, `execute` a prepared folder."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater import time_source
from slackwater.engines.nvflare.job import Job, is_job
from slackwater.errors import ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, read_archive
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.forecast.forecasters import forecaster
from slackwater.intensity.load import TYPICAL
from slackwater.intensity.traces import Traces
from slackwater.lazy import require
from slackwater.planning.goals import with_room
from slackwater.planning.plan import DEFAULT_AGGREGATOR, Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Planner, Problem
from slackwater.scenario import Scenario, load_scenario
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.live.rehearsal import Rehearsal
    from slackwater.live.status import LiveStatus
    from slackwater.live.trust import Begun
    from slackwater.training.task import Task

log = logging.getLogger(__name__)
Watch = Callable[[Path], AbstractContextManager[None]]
_PAST, _AFTER = timedelta(days=56), timedelta(days=2)
"""Actuals around a playback: forecasters and bounds need four weeks before it, the reserve needs more."""


def forecast(traces: Traces, *, hours: int = 96, method: str = "ridge", **options: Any) -> Forecast:
    """Forecast the intensity after the end of some traces, with an interval.

    Args:
        traces: The past, kg/kWh by zone and slot.
        hours: How far to look ahead.
        method: Name of a forecaster, such as "ridge", "persistence" or "same-hour-mean".
        options: Options of the forecaster, such as `days` of "same-hour-mean".
    """
    return forecaster(method, **options).forecast(traces, hours * 60 // traces.slot_minutes)


def run(
    scenario: Scenario | str | Path,
    *,
    app: str | Path | None = None,
    task: str | Task | None = None,
    work: Mapping[str, Any] | None = None,
    out: str | Path = "run",
    superlink: str | None = None,
    allow_insecure: bool = False,
    startup_kit: str | Path | None = None,
    replan: str | None = None,
    planner: Planner | None = None,
    aggregator: str | None = None,
    tell: Callable[[str], None] = log.info,
    watch: Watch = lambda folder: nullcontext(),
    **settings: Any,
) -> LiveStatus:
    """Carry out a scenario in real time with a Flower app, a FLARE job or a task, and return the status at its end.

    Args:
        scenario: The scenario or its file.
        app: Folder of the Flower app or the FLARE job that trains.
        task: A `Task`, or its name, to train in this process instead of an app.
        work: Local training of a task: `steps`, `epochs`, `batch_size`, `lr`, `weight_decay`. Default: as for `train`.
        out: Run folder, new or empty; `slackwater resume` continues a run that was stopped.
        superlink: Connection of Flower's config.toml. Default: all clients train in this process.
        allow_insecure: Whether a SuperLink on another machine may be used without TLS.
        startup_kit: Folder of an admin's startup kit of a FLARE server. Default: FLARE's simulator.
        replan: How often to re-plan, such as "1h" or "never". Default: "1h" with providers, "never" with files.
        planner: "auto" or "paper", as for `plan`. Default: the scenario's.
        aggregator: How updates are combined before the window. Default: the plan's recommendation.
        tell: Called with a message when the run is prepared.
        watch: Called with the run folder; returns a context that is open during the run.
        settings: Other fields of `slackwater.live.LiveSettings`, such as `seed` and `forecast`.
    """
    _check_trainer(app, task, superlink, startup_kit)
    if app is None and task is None:
        raise ScenarioError(
            "Name what trains: --app DIR for a Flower app or a FLARE job, or --task for a task in this process."
        )
    from slackwater.live.folder import LiveSettings, prepare, refuse_begun

    refuse_begun(out)
    asked = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    problem = asked.problem()
    over = problem.slot_start(problem.horizon)
    if over <= time_source.now():
        raise ScenarioError(
            f"The scenario ended {iso(over)}. Rehearse it with: slackwater rehearse {asked.path} "
            f"{f'--task {_task_name(task)}' if app is None else f'--app {app}'}. Or set a later start."
        )
    if app is not None:
        _check_app(app, superlink)
    engine = _engine(superlink, allow_insecure, startup_kit) | _trainer(app, task, None, work)
    found = plan(problem, planner=planner)
    settings |= {"aggregator": aggregator or found.aggregator, "engine": engine}
    settings["replan_slots"] = _slots(replan or ("1h" if asked.has_providers else "never"), problem)
    actuals: Traces | None = None
    if asked.has_providers:
        settings["source"] = "providers"
        settings["data"] = asked.located_data() | {"folder": str(asked.path.parent.absolute())}
    elif settings["replan_slots"] is None:
        settings["source"] = "plan"
    else:
        settings["source"] = "playback"
        actuals = asked.actuals(problem.first_slot - _PAST, over + _AFTER)
    chosen = LiveSettings(**settings)
    found = found if chosen.source == "plan" else with_room(found, problem, chosen.bound)
    prepare(out, found, chosen, actuals=actuals)
    _tell_room(found, problem, tell)
    tell(f"prepared {out}; follow it with: slackwater status {out}")
    return execute(out, engine, watch=watch, task=None if isinstance(task, str) else task)


def rehearse(
    scenario: Scenario | str | Path,
    *,
    app: str | Path | None = None,
    task: str | Task | None = None,
    task_data: str | Path | None = None,
    work: Mapping[str, Any] | None = None,
    start: datetime | None = None,
    out: str | Path = "rehearsal",
    superlink: str | None = None,
    allow_insecure: bool = False,
    startup_kit: str | Path | None = None,
    replan: str = "1h",
    forecast: str = "blend",
    forecasts: str | Path | None = None,
    lag: int = 1,
    planner: Planner | None = None,
    aggregator: str | None = None,
    tell: Callable[[str], None] = log.info,
    watch: Watch = lambda folder: nullcontext(),
    **settings: Any,
) -> Rehearsal | None:
    """Rehearse a scenario on a past period with the forecasts of that time, and return the result.

    Returns None if the run did not finish; its folder has the status.

    Args:
        scenario: The scenario or its file.
        app: Folder of the Flower app or the FLARE job that trains. Default: the task.
        task: A `Task`, or its name, to train instead of an app. Default: "digits".
        task_data: Folder with the files of the task's data set.
        work: Local training of a task: `steps`, `epochs`, `batch_size`, `lr`, `weight_decay`. Default: as for `train`.
        start: Start of the rehearsed run, with a time zone. Default: the scenario's, or the latest past period.
        out: Run folder, new or empty.
        superlink: Connection of Flower's config.toml. Default: all clients train in this process.
        allow_insecure: Whether a SuperLink on another machine may be used without TLS.
        startup_kit: Folder of an admin's startup kit of a FLARE server. Default: FLARE's simulator.
        replan: How often to re-plan, such as "1h" or "never".
        forecast: Name of the forecaster.
        forecasts: CSV files of forecasts that a provider issued. Default: those in the cache.
        lag: Slots after its end until a slot's actual is known.
        planner: "auto" or "paper", as for `plan`. Default: the scenario's.
        aggregator: How updates are combined before the window. Default: "echo".
        tell: Called with a message for each step.
        watch: Called with the run folder; returns a context that is open during the run.
        settings: Other fields of `slackwater.live.LiveSettings`, such as `seed`. `slot_seconds` is 0 by default: no waiting.
    """
    _check_trainer(app, task, superlink, startup_kit)
    from slackwater.live.folder import LiveSettings, refuse_begun
    from slackwater.live.rehearsal import outcome, prepare_rehearsal

    refuse_begun(out)
    asked = _in_the_past(scenario if isinstance(scenario, Scenario) else load_scenario(scenario), start, tell)
    end = asked.start + asked.length
    actuals = asked.actuals(asked.start - _PAST, end + _AFTER)
    problem = asked.problem(actuals)
    if app is not None:
        _check_app(app, superlink)
    engine = _engine(superlink, allow_insecure, startup_kit) | _trainer(app, task or "digits", task_data, work)
    chosen = LiveSettings(
        **{"slot_seconds": 0.0} | settings,  # a past period in real time would miss every slot
        forecast=forecast,
        aggregator=aggregator or DEFAULT_AGGREGATOR,
        engine=engine,
        source="playback",
        lag_slots=lag,
        replan_slots=_slots(replan, problem),
    )
    archive = _archive(asked, forecasts, end)
    _tell_room(prepare_rehearsal(out, problem, actuals, chosen, archive=archive, planner=planner), problem, tell)
    issued = f"the forecasts of {archive.name}, and " if archive is not None else ""
    tell(
        f"rehearsing {iso(asked.start)} to {iso(end)} in {out}, with {issued}the forecaster {forecast!r}; "
        f"follow it with: slackwater status {out}"
    )
    done = execute(out, engine, watch=watch, task=None if isinstance(task, str) else task)
    return outcome(out) if done.stands == "done" else None


def _tell_room(plan: Plan, given: Problem, tell: Callable[[str], None]) -> None:
    if math.isinf(given.budget_kg):
        tell(
            f"without budget_kg the run may emit at most {plan.problem.budget_kg:.4g} kg; its plan expects "
            f"{plan.emissions_kg:.4g} kg"
        )


def execute(
    folder: str | Path,
    engine: dict[str, Any],
    *,
    begun: Begun | None = None,
    watch: Watch = lambda folder: nullcontext(),
    task: Task | None = None,
) -> LiveStatus:
    """Carry out a prepared run with its engine, and return its status. The user must already trust the app.

    Args:
        folder: The run folder.
        engine: The engine's settings in the run: `task`, or `app` with `superlink` or `startup_kit`.
        begun: Who started the run, and with which app. Default: it starts now.
        watch: Called with the run folder; returns a context that is open during the run.
        task: The task itself. Default: the one that the settings name.
    """
    from slackwater.live.status import read_status
    from slackwater.live.trust import examine, remember

    where = Path(folder)
    if not engine.get("task"):
        remember(begun or examine(where, engine))
    with watch(where):
        if engine.get("task"):
            from slackwater.engines.task_sites import carry_out_task

            carry_out_task(where, task)
        elif is_job(engine["app"]):
            from slackwater.engines.nvflare import submit

            if engine.get("startup_kit"):
                submit.submitted(engine["app"], engine["startup_kit"], where)
            else:
                submit.simulated(engine["app"], where)
        else:
            from slackwater.engines.flower import launch

            if engine.get("superlink"):
                insecure = bool(engine.get("allow_insecure"))
                launch.deployed(engine["app"], engine["superlink"], where, allow_insecure=insecure)
            else:
                launch.in_process(engine["app"], where)
    return read_status(where)


def package_of(app: str | Path | None) -> str:
    """Return the package that an app needs: "nvflare" for a FLARE job, "flwr" for any other."""
    return "nvflare" if app is not None and is_job(app) else "flwr"


def _check_trainer(
    app: str | Path | None, task: str | Task | None, superlink: str | None, startup_kit: str | Path | None
) -> None:
    """Raise if both an app and a task are given, if the server does not run what trains, or if a package is missing."""
    if app is not None and task is not None:
        raise ScenarioError("Give --app or --task, not both.")
    if startup_kit is not None and (app is None or not is_job(app)):
        raise ScenarioError(
            "A FLARE server runs a FLARE job: name it with --app DIR. A Flower app runs with --superlink."
        )
    if superlink is not None and app is not None and is_job(app):
        raise ScenarioError(f"{app} is a FLARE job, which cannot run on a SuperLink. Use --startup-kit DIR.")
    require("torch" if app is None and superlink is None else package_of(app))
    if superlink is not None and app is None:
        raise ScenarioError("A SuperLink runs an app: name it with --app DIR.")


def _trainer(
    app: str | Path | None, task: str | Task | None, task_data: str | Path | None, work: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the engine's settings of the app or task."""
    if app is not None:
        return {"app": str(Path(app).absolute())}
    options = {} if task_data is None else {"data": str(Path(task_data).absolute())}
    named: dict[str, Any] = {"name": _task_name(task), "options": options}
    if isinstance(task, str):
        from slackwater.training import tasks

        tasks.option_names(task)  # an unknown task is an error before the run folder exists
    return {"task": named | ({"work": dict(work)} if work else {})}


def _task_name(task: str | Task | None) -> str:
    """Return the name of a task: as it was given, with a file's full path; of a `Task`, its own."""
    if not isinstance(task, str):
        return getattr(task, "name", "digits")
    from slackwater.training import tasks

    return tasks.absolute(task) if tasks.is_reference(task) else task


def _check_app(app: str | Path, superlink: str | None) -> None:
    """Raise before the folder is prepared if the app would train without Slackwater; a missing app is named later."""
    if is_job(app):
        Job.read(app)
        return
    from slackwater.engines.flower.app import App

    if (Path(app) / "pyproject.toml").exists():
        App.read(app).check(on_superlink=superlink is not None)


def _engine(superlink: str | None, allow_insecure: bool, startup_kit: str | Path | None) -> dict[str, Any]:
    """Return the engine's settings besides its app or task, including a new run id."""
    from slackwater.live.trust import RUN_KEY

    engine = {"superlink": superlink, "allow_insecure": allow_insecure, RUN_KEY: uuid.uuid4().hex}
    return engine | ({} if startup_kit is None else {"startup_kit": str(Path(startup_kit).expanduser().absolute())})


def _in_the_past(scenario: Scenario, start: datetime | None, tell: Callable[[str], None]) -> Scenario:
    """Move the scenario to the requested start; if its own period is not over, to the latest past one."""
    if start is None:
        if scenario.source == TYPICAL or scenario.start + scenario.length <= time_source.now():
            return scenario
        last = time_source.now() if scenario.has_providers else scenario.actuals().end
        days = -((last - scenario.length - scenario.start) // timedelta(days=1))
        start = scenario.start - max(days, 0) * timedelta(days=1)
        tell(
            f"the scenario is in the future: rehearsing the latest past period, from {iso(start)} (--start changes it)"
        )
    deadline = None if scenario.deadline is None else scenario.deadline + (start - scenario.start)
    return scenario.model_copy(update={"start": start, "deadline": deadline})


def _archive(scenario: Scenario, forecasts: str | Path | None, end: datetime) -> ForecastArchive | None:
    """Return issued forecasts, from files or else from the cache; None if there are none."""
    if forecasts is not None:
        return read_archive(forecasts, scenario.zones, factor=scenario.data.factor)
    if not scenario.has_providers:
        return None
    from slackwater.intensity.feed import archive_of
    from slackwater.intensity.providers.cache import Cache

    factor = "lifecycle" if scenario.data.factor == "mixed" else scenario.data.factor
    archive = archive_of({zone: Cache().issues(zone, factor, end) for zone in scenario.zones}, factor)
    return archive if archive.issues else None


def period(text: str) -> int | None:
    """Return the hours of a period like "6h", or None for "never"; raise ValueError for any other text."""
    if text.lower() == "never":
        return None
    hours = int(text[:-1]) if text[-1:].lower() == "h" and text[:-1].isdecimal() and text.isascii() else 0
    if not hours:
        raise ValueError(text)
    return hours


def _slots(replan: str, problem: Problem) -> int | None:
    """Return the slots between two plans; None for never."""
    try:
        hours = period(replan)
    except ValueError:
        raise ScenarioError(f"--replan {replan!r} is neither a period like 1h or 6h, nor never.") from None
    if hours is None:
        return None
    minutes = problem.traces.slot_minutes
    if hours > 1 and (hours * 60) % minutes:
        raise ScenarioError(f"--replan {hours}h is not a whole number of slots of {minutes} minutes.")
    return max(1, hours * 60 // minutes)
