"""Commands of live runs: run, status, and how `resume` goes on with one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live

from slackwater import api
from slackwater.cli.live_view import rehearsal_view, status_view
from slackwater.cli.options import (
    Time,
    console,
    data_option,
    fill_option,
    json_option,
    option,
    print_json,
    say,
    with_options,
)
from slackwater.cli.planning import scenario_argument
from slackwater.config import load_scenario
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.trust import Begun, examine
from slackwater.planning.plan import MEMORY_DTYPES

if TYPE_CHECKING:
    from slackwater.live.rehearsal import Rehearsal

_LOOKS_PER_S = 2.0
_SHARED = (
    option(
        "--superlink",
        metavar="NAME",
        help="Connection of Flower's config.toml to run on. Default: everything runs in this process.",
    ),
    option("--allow-insecure", is_flag=True, help="Let a SuperLink elsewhere be used without TLS."),
    option(
        "--auto",
        is_flag=True,
        help="Choose the window, alpha and the aggregator from the carbon data, as `plan --auto` does.",
    ),
    option("--aggregator", help="How updates are combined before the window, like ufedavg. Default: as the plan says."),
    option(
        "--memory-dtype",
        type=click.Choice(MEMORY_DTYPES),
        default=MEMORY_DTYPES[0],
        help="Type of the updates that the aggregator stores: float16 or bfloat16 halves memory and disk space.",
    ),
    option("--seed", type=int, default=0, help="Random seed of the clients' batches."),
    option(
        "--margin-seconds",
        type=click.FloatRange(0),
        metavar="S",
        help="How long before the end of a slot answers must be there. Default: a twentieth of it, at most a minute.",
    ),
)
_OPTIONS = (
    option(
        "--app",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        required=True,
        metavar="DIR",
        help="The Flower app that trains (slackwater flower new writes one).",
    ),
    *_SHARED,
    option(
        "--replan", metavar="1h|6h|never", help="How often to re-plan. Default: 1h with providers, never with files."
    ),
    option(
        "--forecast",
        metavar="NAME",
        help="Forecaster, like ridge. Default: the providers' forecast, corrected and continued by ours (blend).",
    ),
    option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default="run",
        metavar="DIR",
        help="Run folder; status and resume take it.",
    ),
)
_REHEARSAL_OPTIONS = (
    option(
        "--app",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="The Flower app that trains. Default: the task.",
    ),
    option(
        "--task",
        metavar="NAME",
        help="Built-in task to train instead of an app, like digits (the default without --app) or mnist.",
    ),
    option("--task-data", metavar="FOLDER", help="Where the files of the task's data set are."),
    option(
        "--start",
        type=Time(),
        metavar="TIME",
        help="Start of the rehearsed run, like 2026-10-01T00:00Z. Default: the scenario's, or the last period that is over.",
    ),
    *_SHARED,
    option("--replan", metavar="1h|6h|never", default="1h", help="How often to re-plan."),
    option(
        "--forecast",
        metavar="NAME",
        default="blend",
        help="Forecasts of the time: blend, ridge, persistence, same-hour-mean, file, error-model or oracle.",
    ),
    option(
        "--forecasts",
        metavar="FOLDER",
        type=click.Path(exists=True, path_type=Path),
        help="Forecasts that a provider issued, as CSV. Default: those in the cache, where there are any.",
    ),
    option(
        "--lag",
        type=click.IntRange(0),
        default=1,
        metavar="SLOTS",
        help="Slots after its end until a slot's actual is known.",
    ),
    option(
        "--slot-seconds",
        type=click.FloatRange(0),
        default=0.0,
        metavar="S",
        help="Wall time of a slot; 0 does not wait. On a SuperLink a slot must be as long as a round.",
    ),
    option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default="rehearsal",
        metavar="DIR",
        help="Run folder; status, report, serve and resume take it.",
    ),
)


@click.command()
@scenario_argument
@with_options(_OPTIONS)
@data_option
@fill_option
def run(scenario: Path, data: str | None, fill_hours: int | None, out: Path, **options: Any) -> None:
    """Carry out a SCENARIO in real time with a Flower app: wait for each slot, re-plan, charge, checkpoint.

    A scenario that is over cannot be run: see `slackwater rehearse`.
    """
    asked = load_scenario(scenario, data=data, fill_hours=fill_hours)
    api.run(asked, out=out, tell=say, watch=_screen, **options)
    _show(out, False)


@click.command()
@scenario_argument
@with_options(_REHEARSAL_OPTIONS)
@data_option
@fill_option
@json_option
def rehearse(
    scenario: Path, data: str | None, fill_hours: int | None, out: Path, as_json: bool, **options: Any
) -> None:
    """Rehearse a SCENARIO on a past period: the whole live path in minutes, on the forecasts of that time.

    Says what would have happened (kg, rounds, accuracy, re-plans, reserve) beside a plan with perfect foresight.
    """
    asked = load_scenario(scenario, data=data, fill_hours=fill_hours)
    api.rehearse(asked, out=out, tell=say, watch=_screen, **options)
    _show(out, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@json_option
def status(run: Path, as_json: bool) -> None:
    """Where a live RUN stands: spent, left, who trains next and when, last errors. Read-only."""
    _show(run, as_json)


def resume_live(folder: Path, as_json: bool, *, from_last_good: bool = False, trust: bool = False) -> None:
    """Continue a live run; one that is done is settled as far as actuals are known.

    `trust` resumes also a run that was not begun here, or whose app has changed; else the user is asked.
    """
    from slackwater.live.folder import load_settings
    from slackwater.live.status import read_status

    if from_last_good:
        with Run.open(folder) as begun:
            begun.fall_back()
    if read_status(folder).stands == "done":
        from slackwater.live import settle

        left_kg = settle(folder)
        later = (
            f"; {left_kg:.4g} kg are still at an upper bound, since their actuals are not known yet" if left_kg else ""
        )
        say(f"the run in {folder} is done{later}")
        _show(folder, as_json)
        return
    if Run.begun(folder):  # told here, since an engine elsewhere would only start again and again
        with Run.open(folder) as begun:
            begun.check_state()
    engine = dict(load_settings(folder).engine)
    if not engine.get("task") and not (isinstance(engine.get("app"), str) and engine["app"]):
        raise ScenarioError(
            f"The run in {folder} was not begun by `slackwater run`: start the app again that began it, and it goes on."
        )
    # A task is one of ours, or of an installed package; an app is any folder of code.
    known = None if engine.get("task") else _trusted(examine(folder, engine), accepted=trust)
    api.execute(folder, engine, begun=known, watch=_screen)
    _show(folder, as_json)


def _trusted(begun: Begun, *, accepted: bool) -> Begun:
    """Ask before anything of an app is imported that may be somebody else's; raise an error where nobody can be asked."""
    folder = begun.folder
    if not begun.doubt:
        return begun
    say(
        f"{begun.doubt}\n  run:     {folder.absolute()} (id {begun.run})\n  app:     {begun.app}\n"
        f"  SHA-256: {begun.sha256 or 'unknown'}"
    )
    if accepted:
        return begun
    if not sys.stdin.isatty():
        raise SlackwaterError(
            f"{begun.doubt} Resuming it would run the code in {begun.app}. Look at that folder, and if you trust it: "
            f"slackwater resume {folder} --trust"
        )
    if not click.confirm("Resuming the run executes the code of this app. Do you trust it?", err=True):
        raise SlackwaterError("The run was not resumed. Nothing of its app was imported.")
    return begun


def _show(folder: Path, as_json: bool) -> None:
    from slackwater.live.status import read_status

    found = read_status(folder)
    rehearsed = _outcome(folder) if found.stands == "done" else None
    if as_json:
        print_json(found.to_dict() | ({"rehearsal": rehearsed.to_dict()} if rehearsed else {}))
        return
    console().print(status_view(found))
    if rehearsed:
        console().print(rehearsal_view(rehearsed))


def _outcome(folder: Path) -> Rehearsal | None:
    """Return what a rehearsal came to; None for any other run."""
    from slackwater.live.folder import ACTUALS
    from slackwater.live.rehearsal import outcome

    with Run.open(folder, read_only=True) as run:
        kind = run.kind
    return outcome(folder) if kind == "rehearsed" and (folder / ACTUALS).exists() else None


@contextmanager
def _screen(folder: Path) -> Iterator[None]:
    """Show the status on a terminal, kept up to date; elsewhere the log is enough."""
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
