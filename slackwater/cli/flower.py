"""Commands for Flower: a new app, and a client's watts."""

from __future__ import annotations

from pathlib import Path

import click

from slackwater.cli.options import filled, option, say, seconds
from slackwater.cli.planning import scenario_argument
from slackwater.errors import ScenarioError


@click.group()
def flower() -> None:
    """Flower apps that train by a schedule."""


@flower.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), callback=filled)
def new(folder: Path) -> None:
    """Write a complete small Flower app into a new FOLDER, with a README that says how to run it."""
    from slackwater.flower.new import new_app

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
    from slackwater.flower.calibrate import Watts, measure, write_watts

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
