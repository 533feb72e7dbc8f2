"""Commands of live runs: run, rehearse, status, confirm, flower, nvflare and calibrate."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

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
    out_option,
    print_json,
    say,
    seconds,
    task_data_option,
    with_options,
)
from slackwater.cli.plan_commands import scenario_argument
from slackwater.engines import start as api
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.lazy import require
from slackwater.ledger.queries import Figures
from slackwater.ledger.run import Run, is_written
from slackwater.ledger.schema import KINDS
from slackwater.live.folder import PLAN
from slackwater.live.status import LiveStatus
from slackwater.live.trust import Begun, examine
from slackwater.planning.plan import MEMORY_DTYPES
from slackwater.planning.problem import Planner
from slackwater.replanning.run_state import Settings as Replanning
from slackwater.scenario import load_scenario
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.live.rehearsal import Rehearsal
    from slackwater.training.task import Task

_BAR = 40
_NAMED = 6
_STATES = {
    "prepared": ("prepared, not started", "dim"),
    "running": ("running", "green"),
    "interrupted": ("interrupted, no process runs it; continue with `slackwater resume`", "yellow"),
    "stopped": ("stopped; continue with `slackwater resume`", "yellow"),
    "diverged": ("diverged; see the events below", "red"),
    "failed": ("failed; see the events below, then continue with `slackwater resume`", "red"),
    "done": ("done", "green"),
}


def status_view(status: LiveStatus) -> RenderableType:
    """Return one screen with the budget, the next rounds, the clients and the last errors."""
    words, style = _STATES[status.stands]
    head = Text.assemble((status.folder, "bold"), "  ", (words, style), f"  ({KINDS[status.kind].label} run)")
    score = "" if status.score is None else f", {status.metric.heading} {status.metric.text(status.score)}"
    plans = f", re-planned {status.replans} times" if status.replans else ""
    own = "".join(f", {printable(name)} {value:.4g}" for name, value in list(status.metrics.items())[:_NAMED])
    parts: list[RenderableType] = [head, _budget(status), Text(f"{status.rounds} rounds done{score}{own}{plans}")]
    if status.figures is not None and status.stands != "done":
        parts.append(Text(_expected(status.figures)))
    if status.figures is not None and status.figures.money is not None:
        parts.append(Text(f"electricity: {status.figures.money:,.2f} {status.figures.currency}"))
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
        Text(
            f"quarantined: {shortened(one.client, 20)} reported {one.reported_kwh:.4g} kWh in slot {one.slot}, more than is "
            f"possible; {one.bound_kwh:.4g} kWh are charged (see `slackwater confirm`)",
            style="yellow",
        )
        for one in status.quarantined[:_NAMED]
    ]
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
    """Return the expected emissions in kg CO2e, and those of the first plan if the run was re-planned."""
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
    """Return the result of a rehearsal beside that of perfect foresight."""
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
    if found.score is not None:
        row(found.metric.heading, found.metric.text(found.score))
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


def _table(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, bool | int | float | str]:
    """Return KEY=VALUE texts as a table; a value is a number or true or false if it reads as one, else a text."""
    found: dict[str, bool | int | float | str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE, such as lr=0.1.", context, parameter)
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


_SHARED = (
    option(
        "--superlink",
        metavar="NAME",
        help="Connection of Flower's config.toml to run on. Default: all clients train in this process.",
    ),
    option("--allow-insecure", is_flag=True, help="Allow a SuperLink on another machine without TLS."),
    option(
        "--startup-kit",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Admin's startup kit of the FLARE server to run a FLARE job on. Default: FLARE's simulator.",
    ),
    option(
        "--planner",
        type=click.Choice(get_args(Planner)),
        help="auto: choose window, recall, alpha and aggregator, as `plan` does. paper: the paper's. Default: the scenario's.",
    ),
    option(
        "--aggregator",
        help="How to combine updates before the window, such as ufedavg. Default: as the plan recommends, else echo.",
    ),
    option(
        "--memory-dtype",
        type=click.Choice(MEMORY_DTYPES),
        default=MEMORY_DTYPES[0],
        help="Number type of the updates that the aggregator stores. float16 and bfloat16 need half the memory and disk.",
    ),
    option("--seed", type=int, default=0, help="Random seed for the clients' batches."),
    option(
        "--margin-seconds",
        type=click.FloatRange(0),
        metavar="S",
        help="Seconds before the end of a slot by which updates must arrive. Default: 5 % of the slot, at most 60.",
    ),
    option(
        "--weighting",
        type=click.Choice(("equal", "samples")),
        default="equal",
        help="How clients count: all alike, the paper's objective, or by their samples. A strategy of Flower decides itself.",
    ),
    option("--server", default="plain", help="Server optimiser: plain, momentum or adam."),
    option("--server-lr", type=click.FloatRange(0), metavar="LR", help="Step of the server. Default: the optimiser's."),
    option(
        "--server-eval-every",
        "eval_every",
        type=click.IntRange(0),
        default=1,
        metavar="ROUNDS",
        help="Rounds between evaluations on the server; 0: only the last model.",
    ),
    option(
        "--config",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_table,
        help="Setting that is sent to the clients with all work, such as lr=0.1; it replaces the app's. Repeat for more.",
    ),
    option(
        "--reserve",
        type=click.FloatRange(0, 1),
        default=Replanning().reserve,
        metavar="P",
        help="Intended probability that a plan keeps the budget; 0: no reserve.",
    ),
    option(
        "--bound",
        type=click.FloatRange(0),
        default=Replanning().margin,
        metavar="SHARE",
        help="Margin of the upper bound of intensity above the largest observed rise.",
    ),
    option(
        "--latest-start",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.5,
        metavar="SHARE",
        help="Share of a slot after which its round does not start any more.",
    ),
    option(
        "--max-norm-ratio",
        type=click.FloatRange(1),
        default=10.0,
        metavar="N",
        help="Reject an update that is more than this many times as long as usual.",
    ),
    option(
        "--max-rejections",
        type=click.IntRange(1),
        default=3,
        metavar="N",
        help="Rejected updates after which a client is excluded.",
    ),
    option(
        "--gone-after",
        type=click.IntRange(1),
        default=3,
        metavar="SLOTS",
        help="Offline slots in a row after which plans leave a client out until it is back.",
    ),
    option(
        "--makeup",
        type=click.FloatRange(1),
        default=3.0,
        metavar="N",
        help="Most that an update counts to make up for lost ones, as a multiple of its planned weight.",
    ),
    option(
        "--buffers",
        multiple=True,
        metavar="ENDING",
        help="End of the names of model arrays that are averaged, like BatchNorm's statistics. Repeat for more.",
    ),
)
_LOCAL = (
    option("--local-steps", type=click.IntRange(1), metavar="N", help="Local steps of a task in a round. Default: 30."),
    option(
        "--batch-size", type=click.IntRange(1), metavar="N", help="Samples in a local step of a task. Default: 128."
    ),
    option("--lr", type=float, metavar="RATE", help="Local learning rate of a task. Default: 0.1."),
)
_OPTIONS = (
    option(
        "--app",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the Flower app or FLARE job that trains; `slackwater flower new` and `slackwater nvflare new` write one.",
    ),
    option(
        "--task",
        metavar="NAME",
        help="Task to train in this process instead of an app, such as digits, file.py:function or package.module:function.",
    ),
    *_LOCAL,
    *_SHARED,
    option(
        "--replan", metavar="1h|6h|never", help="How often to re-plan. Default: 1h with providers, never with files."
    ),
    option(
        "--forecast",
        metavar="NAME",
        help="Forecaster, such as ridge. Default: blend, the providers' forecast corrected and extended by ours.",
    ),
    out_option("Run folder, for `slackwater status` and `resume`. A folder that holds a run is an error.", "run"),
)
_REHEARSAL_OPTIONS = (
    option(
        "--app",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the Flower app or FLARE job that trains. Default: the task.",
    ),
    option(
        "--task",
        metavar="NAME",
        help="Task to train instead of an app, such as mnist, file.py:function or package.module:function. Default without "
        "--app: digits.",
    ),
    task_data_option,
    *_LOCAL,
    option(
        "--start",
        type=Time(),
        metavar="TIME",
        help="Start of the rehearsed run, such as 2026-10-01T00:00Z. Default: the scenario's, or the last period that is over.",
    ),
    *_SHARED,
    option("--replan", metavar="1h|6h|never", default="1h", help="How often to re-plan."),
    option(
        "--forecast",
        metavar="NAME",
        default="blend",
        help="Forecaster: blend, ridge, persistence, same-hour-mean, file, error-model or oracle.",
    ),
    option(
        "--forecasts",
        metavar="FOLDER",
        type=click.Path(exists=True, path_type=Path),
        help="CSV files of forecasts that a provider issued. Default: those in the cache, if any.",
    ),
    option(
        "--lag",
        type=click.IntRange(0),
        default=1,
        metavar="SLOTS",
        help="Delay after the end of a slot until its actual intensity is known, in slots.",
    ),
    option(
        "--slot-seconds",
        type=click.FloatRange(0),
        default=0.0,
        metavar="S",
        help="Wall time of a slot, in seconds; 0 does not wait. On a SuperLink, a slot must be as long as a round.",
    ),
    out_option(
        "Run folder, for `slackwater status`, `report`, `serve` and `resume`. A folder that holds a run is an error.",
        "rehearsal",
    ),
)


@click.command()
@scenario_argument
@with_options(_OPTIONS)
@data_option
@fill_option
def run(scenario: Path, data: str | None, fill_hours: int | None, out: Path, **options: Any) -> None:
    """Run a SCENARIO in real time with a Flower app or FLARE job.

    The command waits for each slot, re-plans, charges every client and writes checkpoints. A scenario of the past
    cannot run; use `slackwater rehearse`.
    """
    asked = load_scenario(scenario, data=data, fill_hours=fill_hours)
    api.run(asked, out=out, tell=say, watch=_screen, work=_work(options), **options)
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
    """Rehearse a live run of a SCENARIO on a past period.

    The rehearsal takes minutes, and uses the forecasts of that time. The result compares emissions, rounds and score
    with a plan that has perfect foresight.
    """
    asked = load_scenario(scenario, data=data, fill_hours=fill_hours)
    api.rehearse(asked, out=out, tell=say, watch=_screen, work=_work(options), **options)
    _show(out, as_json)


def _work(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of local training out of those of a command."""
    given = {"steps": "local_steps", "batch_size": "batch_size", "lr": "lr"}
    found = {key: options.pop(name) for key, name in given.items()}
    if any(value is not None for value in found.values()) and options.get("app") is not None:
        raise ScenarioError(
            "--local-steps, --batch-size and --lr are of a task; an app has them in its pyproject.toml."
        )
    return {key: value for key, value in found.items() if value is not None}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@json_option
def status(run: Path, as_json: bool) -> None:
    """Show a live RUN: emissions, next rounds and errors.

    RUN is the run folder. The command changes nothing in it.
    """
    _show(run, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@option("--client", metavar="NAME", help="Client whose report to confirm.")
@option("--slot", type=click.IntRange(0), metavar="N", help="Slot of the report, counted from 0.")
@option(
    "--kwh",
    "energy_kwh",
    type=float,
    metavar="KWH",
    help="Energy that the client really used, without PUE. Default: what it reported.",
)
@json_option
def confirm(run: Path, client: str | None, slot: int | None, energy_kwh: float | None, as_json: bool) -> None:
    """List or confirm energy reports of a RUN that are too large.

    RUN is the run folder. A report above the bound of its slot is charged at the bound. With --client and --slot, a
    correction charges it as you confirm it; the run may go on meanwhile. Without them the reports are listed.
    """
    from slackwater.live.charging import confirm as confirmed

    if client is not None and slot is not None:
        confirmed(run, client, slot, energy_kwh)
    elif client is not None or slot is not None or energy_kwh is not None:
        raise ScenarioError("Give both --client and --slot to confirm a report, or neither to list the reports.")
    with Run.open(run, read_only=True) as opened:
        reports, spent_kg, budget_kg = opened.journal.reports(), opened.ledger.spent_kg(), opened.ledger.budget_kg
    if as_json:
        print_json({"reports": [asdict(one) for one in reports], "spent_kg": spent_kg, "budget_kg": budget_kg})
        return
    if not reports:
        say(f"No energy report of the run in {run} is above the bound of its slot.")
        return
    rows = table("client|>slot|>reported (kWh)|>bound (kWh)|confirmed")
    for one in reports:
        done = "no" if one.confirmed_kwh is None else f"{one.confirmed_kwh:.6g} kWh, {one.confirmed_at}"
        rows.add_row(
            Text(shortened(one.client, 20)), str(one.slot), f"{one.reported_kwh:.6g}", f"{one.bound_kwh:.6g}", done
        )
    of_budget = "" if budget_kg is None else f" of {kilograms(budget_kg)} kg"
    console().print(Group(rows, Text(f"charged in all: {kilograms(spent_kg)}{of_budget}")))


def resume_live(
    folder: Path, as_json: bool, *, from_last_good: bool = False, trust: bool = False, task: str | None = None
) -> None:
    """Continue a live run, or settle a finished one as far as actual intensities are known.

    Args:
        folder: The run folder.
        as_json: Print the status as JSON.
        from_last_good: Continue from the checkpoint before the last one.
        trust: Do not ask before the code of an app runs that is unknown here or has changed.
        task: The user's own task, whose code runs only if it is named.
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
            f"; {left_kg:.4g} kg stay charged at an upper bound, because actual intensities are missing"
            if left_kg
            else ""
        )
        say(f"the run in {folder} is done{later}")
        _show(folder, as_json)
        return
    engine = dict(load_settings(folder).engine)
    goes_on = (
        bool(engine.get("startup_kit")) and is_written(folder) is not False
    )  # a job on its server, to be watched again
    if Run.begun(folder) and not goes_on:  # checked here: a remote engine would start again and again
        with Run.open(folder) as begun:
            begun.check_state()
    if not engine.get("task") and not (isinstance(engine.get("app"), str) and engine["app"]):
        raise ScenarioError(
            f"The run in {folder} was not started by `slackwater run`. To continue it, start its own app again."
        )
    # A task comes from an installed package; an app is any folder of code.
    require("torch" if engine.get("task") else api.package_of(engine["app"]))
    known = None if engine.get("task") else _trusted(examine(folder, engine), accepted=trust)
    api.execute(folder, engine, begun=known, watch=_screen, task=_named_task(folder, engine, task))
    _show(folder, as_json)


def _named_task(folder: Path, engine: dict[str, Any], task: str | None) -> Task | None:
    """Return the task that the user names; None for one of an installed package, which the settings name."""
    named = engine.get("task")
    if not named:
        return None
    from slackwater.planning.plan import Plan
    from slackwater.training import tasks

    if task is None and not tasks.is_reference(named["name"]) and named["name"] in tasks.names():
        return None
    if task is None:
        where = named["name"] if tasks.is_reference(named["name"]) else "file.py:function"
        raise ScenarioError(
            f"The run in {folder} trains the task {named['name']!r}. To run its code again, name it: slackwater resume "
            f"{folder} --task {where}"
        )
    fleet = Plan.load(folder / PLAN).problem.fleet
    return tasks.make_for(task, [str(name) for name in fleet.names], **named["options"])


def _trusted(begun: Begun, *, accepted: bool) -> Begun:
    """Ask the user before an unknown app is imported; raise SlackwaterError if there is no terminal to ask on."""
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
            f"{begun.doubt} Resuming it runs the code in {begun.app}. If you trust that code, run: "
            f"slackwater resume {folder} --trust"
        )
    if not click.confirm("Resuming the run executes the code of this app. Do you trust it?", err=True):
        raise SlackwaterError("The run was not resumed, and no code of its app was imported.")
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
    """Return the result of a rehearsal, or None for any other run."""
    from slackwater.live.folder import ACTUALS
    from slackwater.live.rehearsal import outcome

    with Run.open(folder, read_only=True) as run:
        kind = run.kind
    return outcome(folder) if kind == "rehearsed" and (folder / ACTUALS).exists() else None


@contextmanager
def _screen(folder: Path) -> Iterator[None]:
    """Show the current status on a terminal; elsewhere, show nothing but the log."""
    if not sys.stderr.isatty():
        yield
        return
    from slackwater.live.status import read_status

    def look() -> Any:
        try:
            return status_view(read_status(folder))
        except (SlackwaterError, sqlite3.Error):  # the run is being created or written
            return ""

    with Live(get_renderable=look, console=Console(stderr=True), refresh_per_second=_LOOKS_PER_S, transient=True):
        yield


@click.group()
def flower() -> None:
    """Create Flower apps that train by a schedule."""


@flower.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), callback=filled)
@option(
    "--task",
    metavar="NAME",
    help="Your own task, as file.py:function or package.module:function: the app trains it. Default: a small example.",
)
@option(
    "--scenario",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Scenario to copy into the app. Default: an example with three sites.",
)
@with_options(_LOCAL)
def new(folder: Path, task: str | None, scenario: Path | None, **local: Any) -> None:
    """Write a small, complete Flower app into a new FOLDER.

    Its README explains how to run it.
    """
    from slackwater.engines.flower.app import new_app

    work = {name.replace("_", "-"): value for name, value in local.items() if value is not None}
    for path in new_app(folder, task=task, scenario=scenario, work=work):
        say(f"wrote {path}")
    say(f"Try it: cd {folder} && slackwater rehearse scenario.toml --app . --out rehearsal")


@flower.command("adopt")
@click.argument("app", type=click.Path(exists=True, file_okay=False, path_type=Path))
@option(
    "--scenario",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Scenario whose clients' node configs are printed. Default: scenario.toml in the app, if there is one.",
)
@option("--write", is_flag=True, help="Write the changes. Default: only show them.")
def adopt_app(app: Path, scenario: Path | None, write: bool) -> None:
    """Show the lines that make an existing Flower APP carbon-aware.

    They add the keys of its run config, the report of its nodes and the wrapper around its strategy.
    """
    from slackwater.engines.flower.adopt import adopt
    from slackwater.engines.flower.app import node_configs

    found = adopt(app)
    for change in found.changes:
        click.echo(change.diff, nl=False)
    if not found.changes:
        say(f"{app} needs no changes")
    for note in found.notes:
        say(f"By hand: {note}")
    known = scenario or (app / "scenario.toml" if (app / "scenario.toml").is_file() else None)
    clients = load_scenario(known).client if known is not None else []
    sites = [(one.name, one.zone, one.power_w) for one in clients] or [("lyon", "FR", 300.0)]
    say("Start each site's SuperNode with its own node config:" if clients else "Node config of a site, as an example:")
    for line in node_configs(sites):
        say(f"  {line}")
    if write:
        found.write()
        say(f"wrote {len(found.changes)} files")
    elif found.changes:
        say(f"Nothing is written yet. Write it with: slackwater flower adopt {app} --write")


@click.group()
def nvflare() -> None:
    """Create NVIDIA FLARE jobs that train by a schedule."""


@nvflare.command("new")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), callback=filled)
def new_nvflare_job(folder: Path) -> None:
    """Write a small, complete FLARE job into a new FOLDER.

    Its README explains how to run it.
    """
    from slackwater.engines.nvflare.job import new_job

    for path in new_job(folder):
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
    help="Seconds to measure, first idle and then under load.",
)
@option("--active-w", type=float, metavar="W", help="Power while training, in watts, if it is known.")
@option("--idle-w", type=float, metavar="W", help="Power while waiting, in watts, if it is known.")
def calibrate(
    scenario: Path, client: str, command: tuple[str, ...], duration: float, active_w: float | None, idle_w: float | None
) -> None:
    """Measure the power of this machine for a CLIENT of a SCENARIO.

    Run it on the client's machine while nothing else runs. It writes the watts into the scenario, and keeps the
    comments. COMMAND, after --, is the load, best one round of training. Default: all cores multiply matrices.
    """
    from slackwater.engines.flower.calibrate import Watts, measure, write_watts

    if (active_w is None) != (idle_w is None):
        raise ScenarioError("Give both --active-w and --idle-w, or neither to measure them.")
    if active_w is not None and idle_w is not None:
        if not 0 <= idle_w <= active_w or active_w == 0:
            raise ScenarioError(
                f"--active-w is {active_w:g} W and --idle-w is {idle_w:g} W. The active power includes the idle power: "
                "give --active-w above 0 W, and --idle-w from 0 W to --active-w."
            )
        found = Watts(active_w=active_w, idle_w=idle_w, how="as given")
    else:
        found = measure(duration, command)
    power_w, rest_w = round(found.active_w, 1), round(found.idle_w, 1)
    write_watts(scenario, client, power_w=power_w, idle_w=rest_w)
    say(f"{client}: {power_w:g} W while training, {rest_w:g} W while waiting ({found.how}); written to {scenario}")
