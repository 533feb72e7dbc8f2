"""The command that serves the dashboard."""

from __future__ import annotations

import secrets
import threading
import webbrowser
from pathlib import Path

import click

from slackwater.cli.options import data_option, fill_option, option, say
from slackwater.config import Scenario, load_scenario
from slackwater.dashboard.guard import is_bare_name, is_loopback
from slackwater.dashboard.library import PLAN_FILE, DataText, Library, Opened
from slackwater.dashboard.server import Dashboard
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.ledger.run import FILE as RUN_FILE

_SCENARIO = "scenario.toml"
_PORT = 8765
_ROOM_HOURS = 7 * 24
"""How much further than its own slack a scenario's slider goes, where the data reach; or twice as far, if that is more."""


def _bare(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names: one with a scheme or a port would never match."""
    for name in names:
        if not is_bare_name(name):
            raise click.BadParameter(f"{name!r} is not the bare name of a host, like dash.example.", context, parameter)
    return names


@click.command()
@click.argument("what", required=False, type=click.Path(path_type=Path))
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; one that others can reach needs the token that is then printed.",
)
@option("--port", type=click.IntRange(0, 65535), default=_PORT, help="Port; 0 takes a free one.")
@option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    callback=_bare,
    help="A further name by which the page is called, as behind a proxy; with any port.",
)
@option("--require-token", is_flag=True, help="Ask for a token on this machine too, where other people use it.")
@option("--no-open", is_flag=True, help="Do not open a browser.")
@data_option
@fill_option
def serve(
    what: Path | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    require_token: bool,
    no_open: bool,
    data: str | None,
    fill_hours: int | None,
) -> None:
    """Plan with sliders and watch runs in a browser: WHAT is a scenario, a plan, a run or a folder of them."""
    library = open_library(what or Path("."), data=data, fill_hours=fill_hours)
    token = secrets.token_urlsafe(24) if require_token or not is_loopback(host) else None
    try:
        server = Dashboard(library, host=host, port=port, token=token, names=names)
    except OSError as error:
        raise SlackwaterError(
            f"Port {port} of {host} cannot be used: {error.strerror or error}. Give another with --port, or 0 for a free one."
        ) from None
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{server.port}/" + (f"?token={token}" if token else "")
    click.echo(address)
    say("Ctrl-C ends it." + (" The token is shown only here." if token else ""))
    if not no_open:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        say("ended.")
    finally:
        server.close()


def open_library(what: Path, *, data: str | None = None, fill_hours: int | None = None) -> Library:
    """Find what to serve: a scenario, a plan, a run, or a folder with some of them."""

    def read(path: Path) -> Opened:
        return _with_room(path, data, fill_hours)

    if what.is_file() and what.suffix == ".toml":
        read(what)  # a mistake in it is said now, in the terminal
        return Library(what.parent, scenario=what, read_scenario=read)
    folder = what.parent if what.name in (RUN_FILE, PLAN_FILE) and what.is_file() else what
    if not folder.is_dir():
        kind = "is not a scenario (.toml), a plan (plan.json) or a run folder" if what.exists() else "is not there"
        raise ScenarioError(f"{what} {kind}. Write a scenario with: slackwater init")
    scenario = folder / _SCENARIO
    library = Library(folder, scenario=scenario if scenario.is_file() else None, read_scenario=read)
    if not library.entries():
        raise ScenarioError(
            f"There is no scenario.toml, plan or run in {folder}. Write a scenario with: slackwater init {scenario}"
        )
    return library


def _with_room(path: Path, data: str | None, fill_hours: int | None) -> Opened:
    """Load intensity beyond the scenario's own slack, so that the slider can go further, if there is any."""
    scenario = load_scenario(path, data=data, fill_hours=fill_hours)
    own = scenario.problem()
    source = scenario.source if data is None else str(Path(data).absolute())
    section = DataText(source=source, factor=scenario.data.factor, fill_hours=scenario.data.fill_hours)
    slack = own.horizon - own.rounds
    # Providers would be asked for more, over the network.
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
