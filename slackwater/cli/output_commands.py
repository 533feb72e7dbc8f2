"""Commands that show results: report, serve and explain."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

import click

from slackwater.cli.options import console, data_option, fill_option, json_option, option, print_json, say
from slackwater.dashboard.catalogue import PLAN_FILE, Catalogue, Opened
from slackwater.dashboard.edits import names_data, scenario_file
from slackwater.dashboard.server import Dashboard, is_bare_name, is_loopback
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.glossary import GLOSSARY, Entry
from slackwater.glossary import explain as entry_of
from slackwater.ledger.run import FILE as RUN_FILE
from slackwater.report.content import summary
from slackwater.report.exports import model_card as card_text
from slackwater.report.write import report as write_report
from slackwater.scenario import DataText, Scenario, load_scenario

F = TypeVar("F", bound=Callable[..., Any])
_FORMS = ("html", "pdf", "csv", "codecarbon", "model_card")


def _file_option(name: str, what: str) -> Callable[[F], F]:
    return option(name, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=what)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@_file_option("--html", "Write the report as one self-contained HTML file.")
@_file_option("--pdf", "Write the report as a PDF.")
@_file_option("--csv", "Write every line of the ledger as CSV.")
@_file_option("--codecarbon", "Write an emissions.csv with CodeCarbon's columns, one row per client.")
@_file_option("--model-card", "Write co2_eq_emissions for a Hugging Face model card.")
@option(
    "--functional-unit",
    default="training run",
    metavar="TEXT",
    help="Functional unit of the SCI score: training run, round, client-round, accuracy point, token, FLOP, or your own with "
    "--units.",
)
@option(
    "--units",
    type=float,
    metavar="R",
    help="Number of functional units in the run. Default: counted from the run, where it records them.",
)
@option(
    "--embodied-kg", type=float, metavar="KG", help="Embodied emissions of one client's device, in kg CO2e, for SCI."
)
@option(
    "--embodied-total-kg",
    type=float,
    metavar="KG",
    help="Total embodied emissions (M of SCI), in kg CO2e, instead of --embodied-kg.",
)
@option("--lifetime", type=float, default=4.0, metavar="YEARS", help="Lifetime of a client's device, in years.")
@option("--pue", type=float, metavar="X", help="PUE, for SCI, of sites for which the scenario gives none.")
@option(
    "--intensity-uncertainty",
    type=float,
    metavar="PERCENT",
    help="Uncertainty of the intensity in percent of it; 10 means ±10 %.",
)
@option("--energy-uncertainty", type=float, metavar="PERCENT", help="Uncertainty of the energy in percent of it.")
@option("--tokens", type=float, metavar="N", help="Number of training tokens; adds SCI per token.")
@option("--flops", type=float, metavar="N", help="Number of floating-point operations in the run; adds SCI per FLOP.")
@option("--organisation", metavar="TEXT", help="Organisation that reports. Default: [report] in the scenario.")
@option("--preparer", metavar="TEXT", help="Person who prepared the report. Default: [report] in the scenario.")
@option(
    "--date",
    "prepared_on",
    type=click.DateTime(formats=["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Date of the report. Default: today, UTC.",
)
@data_option
@json_option
def report(
    run: Path,
    lifetime: float,
    intensity_uncertainty: float | None,
    energy_uncertainty: float | None,
    prepared_on: datetime | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Report the emissions of a RUN as text, HTML, PDF or CSV.

    RUN is the run folder. All figures come from its ledger. The first line says whether the run was simulated, rehearsed
    or live. Without a file option, the command prints the report. --data adds a year of intensity for annual averages
    and direct factors; a run on typical intensity uses the embedded year.
    """
    statement = write_report(
        run,
        lifetime_years=lifetime,
        intensity_uncertainty=None if intensity_uncertainty is None else intensity_uncertainty / 100,
        energy_uncertainty=None if energy_uncertainty is None else energy_uncertainty / 100,
        prepared_on=None if prepared_on is None else prepared_on.date(),
        **options,
    )
    written = [options[form] for form in _FORMS if options[form] is not None]
    for path in written:
        say(f"wrote {path}")
    if as_json:
        print_json(statement.to_dict() | {"model_card": card_text(statement)})
    elif not written:
        console().print(summary(statement))


_SCENARIO = "scenario.toml"
_PORT = 8765
_ROOM_HOURS = 7 * 24
"""Hours by which the slack slider exceeds the scenario's own slack, if the data reach that far. At least its slack."""


def _bare(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Check host names: a name with a scheme or a port would never match."""
    for name in names:
        if not is_bare_name(name):
            raise click.BadParameter(f"{name!r} is not a bare host name, such as dash.example.", context, parameter)
    return names


@click.command()
@click.argument("what", required=False, type=click.Path(path_type=Path))
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on. An address that other machines can reach needs the token that the command prints.",
)
@option("--port", type=click.IntRange(0, 65535), default=_PORT, help="Port to listen on; 0 chooses a free one.")
@option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    callback=_bare,
    help="Another host name of the page, as behind a proxy, with any port. Can be repeated.",
)
@option("--require-token", is_flag=True, help="Require the token on this machine too, if other people use it.")
@option(
    "--writable",
    is_flag=True,
    help="Let the page save the scenario, and start rehearsals and runs beside it. The page then always needs the token.",
)
@option("--no-open", is_flag=True, help="Do not open a browser.")
@data_option
@fill_option
def serve(
    what: Path | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    require_token: bool,
    writable: bool,
    no_open: bool,
    data: str | None,
    fill_hours: int | None,
) -> None:
    """Open the dashboard: plan with sliders, and watch runs.

    WHAT is a scenario, a plan, a run or a folder of them. Default: the current folder. Without --writable the page
    changes nothing on the disk.
    """
    library = open_library(what or Path("."), data=data, fill_hours=fill_hours)
    token = secrets.token_urlsafe(24) if require_token or writable or not is_loopback(host) else None
    try:
        server = Dashboard(library, host=host, port=port, token=token, names=names, writable=writable)
    except OSError as error:
        raise SlackwaterError(
            f"Cannot listen on port {port} of {host}: {error.strerror or error}. Choose another port, or 0 for a free one, with "
            "--port."
        ) from None
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.port}/" + (f"?token={token}" if token else "")
    click.echo(address)
    say("Press Ctrl-C to stop." + (" The token is shown only here." if token else ""))
    if not no_open:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("stopped.")
        for job in server.jobs.running():
            say(f"The run in {job.folder} continues. Watch it with: slackwater serve {job.folder}")
    finally:
        server.close()


def open_library(what: Path, *, data: str | None = None, fill_hours: int | None = None) -> Catalogue:
    """Return what to serve: a scenario, a plan, a run, or a folder with some of them."""

    def read(path: Path, changes: str = "") -> Opened:
        return _with_room(path, data, fill_hours, changes)

    if what.is_file() and what.suffix == ".toml":
        read(what)  # an error in it appears now, in the terminal
        return Catalogue(what.parent, scenario=what, read_scenario=read, data=data, fill_hours=fill_hours)
    folder = what.parent if what.name in (RUN_FILE, PLAN_FILE) and what.is_file() else what
    if not folder.is_dir():
        kind = "is not a scenario (.toml), a plan (plan.json) or a run folder" if what.exists() else "does not exist"
        raise ScenarioError(f"{what} {kind}. Write a scenario with: slackwater init")
    scenario = folder / _SCENARIO
    library = Catalogue(
        folder, scenario=scenario if scenario.is_file() else None, read_scenario=read, data=data, fill_hours=fill_hours
    )
    if not library.entries():
        raise ScenarioError(
            f"There is no scenario.toml, plan or run in {folder}. Write a scenario with: slackwater init {scenario}"
        )
    return library


def _with_room(path: Path, data: str | None, fill_hours: int | None, changes: str) -> Opened:
    """Load intensity beyond the scenario's own slack, if there is any, so that the slider can exceed it."""
    if names_data(changes):
        data = None
    text = scenario_file(path, changes) if changes else None
    scenario = load_scenario(path, data=data, fill_hours=fill_hours, text=text)
    own = scenario.problem()
    source = scenario.source if data is None else str(Path(data).absolute())
    section = DataText(
        source=source, factor=scenario.data.factor, fill_hours=scenario.data.fill_hours, price=scenario.price
    )
    slack = own.horizon - own.rounds
    # With providers, more data would need more requests.
    for further in () if scenario.has_providers else _further(scenario, slack):
        try:
            wide = scenario.changed(slack=slack + further).problem()
        except (DataError, ScenarioError):
            continue
        return Opened(problem=wide.with_settings(slack=slack), data=section)
    return Opened(problem=own, data=section)


def _further(scenario: Scenario, slack: int) -> list[int]:
    slots = _ROOM_HOURS * 60 // scenario.slot_minutes
    return [max(slack, slots), slots, slots // 4]


_MOST_WIDTH = 100


@click.command()
@click.argument("term", nargs=-1, metavar="TERM")
@json_option
def explain(term: tuple[str, ...], as_json: bool) -> None:
    """Explain a TERM, such as slack or fine-tuning window.

    Without TERM, list all terms.
    """
    if not term:
        _list_terms(as_json)
        return
    entry = entry_of(" ".join(term))
    if as_json:
        print_json(asdict(entry))
    else:
        click.echo(_shown(entry, _width()))


def _list_terms(as_json: bool) -> None:
    if as_json:
        print_json([asdict(entry) for entry in GLOSSARY.values()])
        return
    indent, width = max(map(len, GLOSSARY)) + 2, _width()
    for entry in GLOSSARY.values():
        click.echo(
            fill(
                entry.summary,
                width,
                initial_indent=entry.term.ljust(indent),
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
            )
        )


def _shown(entry: Entry, width: int) -> str:
    lines = [entry.term, fill(entry.text, width, break_on_hyphens=False)]
    for name, value in (("unit", entry.unit), ("also", ", ".join(entry.aliases)), ("see", ", ".join(entry.see))):
        if value:
            lines.append(fill(f"{name + ':':<6}{value}", width, subsequent_indent=" " * 6, break_on_hyphens=False))
    return "\n".join(lines)


def _width() -> int:
    return max(40, min(console().width, _MOST_WIDTH))
