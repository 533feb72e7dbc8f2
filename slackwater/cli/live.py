"""Commands of live runs: run, status, and how `resume` goes on with one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from slackwater.carbon import Traces, load_traces
from slackwater.carbon.load import TYPICAL
from slackwater.cli.backtest import period
from slackwater.cli.live_view import status_view
from slackwater.cli.options import console, data_option, fill_option, filled, json_option, print_json, say
from slackwater.cli.planning import read_problem, scenario_argument
from slackwater.config import Scenario, load_scenario
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem
from slackwater.units import iso

_PAST = timedelta(days=56)
"""Of actuals before a run that is played back: forecasters and upper bounds look at four weeks, the reserve at more."""
_AFTER = timedelta(days=2)
_LOOKS_PER_S = 2.0
_OPTIONS = (
    click.option(
        "--app",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        required=True,
        metavar="DIR",
        help="The Flower app that trains (slackwater flower new writes one).",
    ),
    click.option(
        "--superlink",
        metavar="NAME",
        callback=filled,
        help="Connection of Flower's config.toml to run on; without it everything runs in this process.",
    ),
    click.option("--allow-insecure", is_flag=True, help="Let a SuperLink elsewhere be used without TLS."),
    click.option(
        "--replan",
        metavar="1h|6h|never",
        callback=filled,
        help="How often what is left is planned anew; 1h with providers and never with files unless told.",
    ),
    click.option(
        "--forecast", metavar="NAME", callback=filled, help="Forecaster, like ridge; else the providers' own forecast."
    ),
    click.option(
        "--auto",
        is_flag=True,
        help="Choose the window, alpha and the aggregator from the carbon data, as `plan --auto` does.",
    ),
    click.option(
        "--aggregator",
        callback=filled,
        help="How updates are combined before the window, like ufedavg; the plan's own unless told.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the clients' batches."),
    click.option(
        "--slot-seconds",
        type=click.FloatRange(0),
        metavar="S",
        help="Wall time of a slot, to play a scenario back faster; 0 does not wait at all.",
    ),
    click.option(
        "--margin-seconds",
        type=click.FloatRange(0),
        metavar="S",
        help="How long before the end of a slot answers must be there; a twentieth of it unless told.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default="run",
        show_default=True,
        metavar="DIR",
        callback=filled,
        help="Run folder; status and resume take it.",
    ),
)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@scenario_argument
@_options
@data_option
@fill_option
def run(
    scenario: Path,
    app: Path,
    superlink: str | None,
    allow_insecure: bool,
    replan: str | None,
    auto: bool,
    aggregator: str | None,
    data: str | None,
    fill_hours: int | None,
    out: Path,
    **options: Any,
) -> None:
    """Carry out a SCENARIO with a Flower app: wait for each slot, re-plan, charge, checkpoint."""
    from slackwater.live import LiveSettings, prepare

    asked = load_scenario(scenario)
    problem = read_problem(scenario, data, fill_hours)
    source = asked.data.source if data is None else data
    engine = {"app": str(app.absolute()), "superlink": superlink, "allow_insecure": allow_insecure}
    options["slot_seconds"] = _pace(problem, options["slot_seconds"], deployed=superlink is not None)
    found = make_plan(problem, auto=auto)
    settings: dict[str, Any] = {
        **options,
        "aggregator": aggregator or found.aggregator,
        "engine": engine,
        "replan_slots": _slots(replan, problem, files=isinstance(source, str)),
    }
    actuals: Traces | None = None
    if isinstance(source, str) and settings["replan_slots"] is None:
        settings["source"] = "plan"
    elif isinstance(source, str) or settings["slot_seconds"] is not None:
        actuals = _played_back(asked, scenario, source, fill_hours, problem)
        settings["source"] = "playback"
    else:
        settings["source"] = "providers"
        hours = asked.data.fill_hours if fill_hours is None else fill_hours
        settings["data"] = {
            "source": source,
            "factor": asked.data.factor,
            "fill_hours": hours,
            "folder": str(scenario.parent.absolute()),
        }
    prepare(out, found, LiveSettings(**settings), actuals=actuals)
    say(f"prepared {out}; look at it from anywhere with: slackwater status {out}")
    _carry_out(out, engine)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@json_option
def status(run: Path, as_json: bool) -> None:
    """Where a live RUN stands: spent, left, who trains next and when, last errors. Read-only."""
    _show(run, as_json)


COMMANDS = (run, status)


def resume_live(folder: Path, as_json: bool) -> None:
    """Go on with a live run; one that is done is settled as far as actuals have come since."""
    from slackwater.live.folder import load_settings
    from slackwater.live.status import read_status

    if read_status(folder).stands == "done":
        from slackwater.live import settle

        left_kg = settle(folder)
        later = (
            f"; {left_kg:.4g} kg are still at an upper bound, since their actuals are not known yet" if left_kg else ""
        )
        say(f"the run in {folder} is done{later}")
        _show(folder, as_json)
        return
    engine = dict(load_settings(folder).engine)
    if not engine.get("app"):
        raise ScenarioError(
            f"The run in {folder} was not begun by `slackwater run`: start the app again that began it, and it goes on."
        )
    _carry_out(folder, engine, as_json=as_json)


def _carry_out(folder: Path, engine: dict[str, Any], *, as_json: bool = False) -> None:
    """Start the engine, and show what happens from the run's file alone."""
    from slackwater.flower import launch

    with _screen(folder):
        if engine.get("superlink"):
            insecure = bool(engine.get("allow_insecure"))
            launch.deployed(engine["app"], engine["superlink"], folder, allow_insecure=insecure)
        else:
            launch.in_process(engine["app"], folder)
    _show(folder, as_json)


def _show(folder: Path, as_json: bool) -> None:
    from slackwater.live.status import read_status

    found = read_status(folder)
    if as_json:
        print_json(found.to_dict())
    else:
        console().print(status_view(found))


@contextmanager
def _screen(folder: Path) -> Iterator[None]:
    """The status, kept up to date on a terminal; elsewhere the log is enough."""
    if not sys.stderr.isatty():
        yield
        return
    from slackwater.live.status import read_status

    def look() -> Any:
        try:
            return status_view(read_status(folder))
        except (SlackwaterError, sqlite3.Error):  # it is being made, or written just now
            return ""

    with Live(get_renderable=look, console=Console(stderr=True), refresh_per_second=_LOOKS_PER_S, transient=True):
        yield


def _pace(problem: Problem, asked: float | None, *, deployed: bool) -> float | None:
    """Real time, unless the scenario is over: then it can only be played back."""
    over = problem.slot_start(problem.horizon)
    if asked is not None or over > datetime.now(UTC):
        return asked
    if deployed:
        raise ScenarioError(
            f"The scenario ended {iso(over)}. Move its start, or play it back with --slot-seconds (say 60 for a slot a minute)."
        )
    say(f"the scenario ended {iso(over)}: it is played back without waiting (--slot-seconds sets a pace)")
    return 0.0


def _slots(replan: str | None, problem: Problem, *, files: bool) -> int | None:
    """Slots between two plans; None for never."""
    try:
        hours = period(replan or ("never" if files else "1h"))
    except ValueError:
        raise ScenarioError(f"--replan {replan!r} is not a period like 1h or 6h, nor never.") from None
    if hours is None:
        return None
    minutes = problem.traces.slot_minutes
    if replan is not None and (hours * 60) % minutes:
        raise ScenarioError(f"--replan {hours}h is not a whole number of slots of {minutes} minutes.")
    return max(1, hours * 60 // minutes)


def _played_back(asked: Scenario, path: Path, source: Any, fill_hours: int | None, problem: Problem) -> Traces:
    """Actuals of the run's time and of the weeks before it."""
    zones = sorted({str(zone) for zone in problem.fleet.zone})
    first, last = problem.first_slot - _PAST, problem.slot_start(problem.horizon) + _AFTER
    fill = asked.data.fill_hours if fill_hours is None else fill_hours
    if not isinstance(source, str):
        from slackwater.providers import Context, traces

        mixed = asked.data.factor == "mixed"
        last = min(last, datetime.now(UTC).replace(minute=0, second=0, microsecond=0))
        context = Context.usual(factor="lifecycle" if mixed else asked.data.factor, folder=path.parent)
        return traces(
            zones, first, last, providers=source, mix_factors=mixed, kind="actual", slot_minutes=asked.slot_minutes,
            fill_hours=fill, context=context,
        )  # fmt: skip
    settings: dict[str, Any] = {"factor": asked.data.factor, "slot_minutes": asked.slot_minutes, "fill_hours": fill}
    if source == TYPICAL:
        hours = round((last - first).total_seconds() / 3600)
        return load_traces(TYPICAL, zones=zones, start=first, hours=hours, **settings)
    own = source == asked.data.source
    everything = load_traces(path.parent / Path(source).expanduser() if own else source, zones=zones, **settings)
    first, last = max(first, everything.start), min(last, everything.end)
    return everything.window(first, (last - first) // timedelta(minutes=everything.slot_minutes))
