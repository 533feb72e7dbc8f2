"""Commands of live runs: run, rehearse, status, Flower apps, and the watts of a client."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slackwater.charts.style import kilograms, printable, shortened, synthetic_note, table
from slackwater.cli.options import (
    Time,
    console,
    data_option,
    fill_option,
    filled,
    json_option,
    option,
    print_json,
    say,
    seconds,
    with_options,
)
from slackwater.cli.plan_commands import scenario_argument
from slackwater.engines import start as api
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.queries import Figures
from slackwater.ledger.run import Run
from slackwater.ledger.schema import KINDS
from slackwater.live.rehearsal import Rehearsal
from slackwater.live.status import LiveStatus
from slackwater.live.trust import Begun, examine
from slackwater.planning.plan import MEMORY_DTYPES
from slackwater.scenario import load_scenario
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.live.rehearsal import Rehearsal

_BAR = 40
_NAMED = 6
_STANDS = {
    "prepared": ("prepared, not begun", "dim"),
    "running": ("running", "green"),
    "interrupted": ("interrupted: no process runs it; go on with `slackwater resume`", "yellow"),
    "stopped": ("stopped; go on with `slackwater resume`", "yellow"),
    "diverged": ("diverged; the events say when", "red"),
    "failed": ("failed; see below, then go on with `slackwater resume`", "red"),
    "done": ("done", "green"),
}


def status_view(status: LiveStatus) -> RenderableType:
    """Show everything on one screen: the budget, the next rounds, the clients, the last errors."""
    words, style = _STANDS[status.stands]
    head = Text.assemble((status.folder, "bold"), "  ", (words, style), f"  ({KINDS[status.kind].label} run)")
    accuracy = "" if status.accuracy is None else f", accuracy {status.accuracy:.2%}"
    plans = f", planned anew {status.replans} times" if status.replans else ""
    parts: list[RenderableType] = [head, _budget(status), Text(f"{status.rounds} rounds done{accuracy}{plans}")]
    if status.figures is not None and status.stands != "done":
        parts.append(Text(_expected(status.figures)))
    if status.kind != "live":
        parts.append(Text(KINDS[status.kind].sentence, style="yellow"))
    if status.synthetic:
        parts.append(synthetic_note())
    if status.training:
        parts.append(Text(f"training now (slot {status.training_slot}): {_names(status.training)}", style="green"))
    if status.coming and status.stands != "done":
        parts.append(_coming(status))
    if status.clients:
        parts.append(_clients(status))
    parts += [
        Text(f"{at[:19]}  {level}: {printable(message)}", style="yellow" if level == "warning" else "red")
        for at, level, message in status.events
    ]
    return Group(*parts)


def _budget(status: LiveStatus) -> Text:
    share = status.spent_kg / status.budget_kg if status.budget_kg else 0.0
    full = min(_BAR, round(_BAR * share))
    held = f", of which {kilograms(status.held_kg)} kg at an upper bound" if status.held_kg else ""
    return Text.assemble(
        ("█" * full, "green" if share <= 1 else "red"),
        ("░" * (_BAR - full), "dim"),
        f" {kilograms(status.spent_kg)} of {kilograms(status.budget_kg)} kg ({share:.1%}){held}; "
        f"{kilograms(status.left_kg)} kg left",
    )


def _expected(figures: Figures) -> str:
    """Show what the run is expected to emit, and what the first plan expected if it was re-planned."""
    first = f"; the first plan expected {kilograms(figures.first_plan_kg)} kg" if figures.replans else ""
    rest = f"{kilograms(figures.to_come_kg)} kg of it still to come"
    return f"expected at the end: {kilograms(figures.expected_kg)} kg, {rest}{first}"


def _coming(status: LiveStatus) -> Table:
    rows = table("next rounds|>slot|clients")
    for one in status.coming:
        rows.add_row(f"{one.at:%Y-%m-%d %H:%M:%S}Z", str(one.slot), Text(_names(one.clients)))
    return rows


def _clients(status: LiveStatus) -> Table:
    seen = sorted({outcome for found in status.clients.values() for outcome in found} - {"done"})
    rows = table("|>".join(["client", "done", *seen]))
    for client, found in status.clients.items():
        rows.add_row(Text(shortened(client, 20)), *(str(found.get(name, 0)) for name in ("done", *seen)))
    return rows


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(shortened(name, 20) for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def rehearsal_view(found: Rehearsal) -> RenderableType:
    """Return what would have happened, beside perfect foresight."""
    rows = table("|>rehearsed|>perfect foresight")
    best = found.foresight

    def row(name: str, mine: str, theirs: str = "") -> None:
        rows.add_row(name, mine, theirs if best else "")

    row("kg CO2e", kilograms(found.emissions_kg), kilograms(best.emissions_kg) if best else "")
    row("rounds", str(found.rounds), str(best.rounds) if best else "")
    row("client-slots trained", str(found.client_slots), str(best.client_slots) if best else "")
    if found.lost_client_slots:
        row("client-slots lost, but charged", str(found.lost_client_slots))
    if found.share is not None:
        row("share of the objective", f"{found.share:.1%}", "100%")
    if found.accuracy is not None:
        row("accuracy", f"{found.accuracy:.2%}")
    row("re-plans", str(found.replans))
    row("reserve, first and largest (kg)", f"{kilograms(found.reserve_kg)}, {kilograms(found.largest_reserve_kg)}")
    kept = "kept" if found.emissions_kg <= found.budget_kg else "EXCEEDED"
    head = (
        f"Rehearsal of {iso(found.start)} to {iso(found.end)} on the forecast {found.forecast!r}: it would have emitted "
        f"{kilograms(found.emissions_kg)} of {kilograms(found.budget_kg)} kg (budget {kept})."
    )
    report = f"Full report: slackwater report {found.folder} --html report.html"
    return Group(Text(head, style="bold"), rows, Text(report, style="dim"))


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
        from slackwater.live.runner import settle

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


@click.group()
def flower() -> None:
    """Flower apps that train by a schedule."""


@flower.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), callback=filled)
def new(folder: Path) -> None:
    """Write a complete small Flower app into a new FOLDER, with a README that says how to run it."""
    from slackwater.engines.flower.app import new_app

    for path in new_app(folder):
        say(f"wrote {path}")
    say(f"Try it: cd {folder} && slackwater rehearse scenario.toml --app . --out rehearsal")


@click.command()
@scenario_argument
@click.argument("client")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@option(
    "--seconds",
    "duration",
    type=float,
    default=30.0,
    callback=seconds,
    help="How long to measure at rest, and under load.",
)
@option("--active-w", type=float, metavar="W", help="Watts while training, where they are known.")
@option("--idle-w", type=float, metavar="W", help="Watts while waiting, where they are known.")
def calibrate(
    scenario: Path, client: str, command: tuple[str, ...], duration: float, active_w: float | None, idle_w: float | None
) -> None:
    """Measure what this machine draws, and write it into a SCENARIO as the watts of a CLIENT.

    Run it where the client trains, with nothing else running. The load is that of COMMAND (after --), best one round of
    training; without it all cores multiply matrices. Comments in the scenario stay.
    """
    from slackwater.engines.flower.calibrate import Watts, measure, write_watts

    if (active_w is None) != (idle_w is None):
        raise ScenarioError("Give both --active-w and --idle-w, or neither to have them measured.")
    if active_w is not None and idle_w is not None:
        if not 0 <= idle_w <= active_w or active_w == 0:
            raise ScenarioError(
                f"--idle-w {idle_w:g} and --active-w {active_w:g}: the active draw includes the idle one."
            )
        found = Watts(active_w=active_w, idle_w=idle_w, how="as given")
    else:
        found = measure(duration, command)
    power_w, rest_w = round(found.active_w, 1), round(found.idle_w, 1)
    write_watts(scenario, client, power_w=power_w, idle_w=rest_w)
    say(f"{client}: {power_w:g} W while training, {rest_w:g} W while waiting ({found.how}); written to {scenario}")
