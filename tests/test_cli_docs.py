"""docs/reference/cli.md is current, and every command and option has help."""

from __future__ import annotations

import click
import pytest
from scripts import script

from slackwater.cli.main import COMMANDS as STORED
from slackwater.cli.main import cli

tool = script("tools/write_cli_docs.py")
COMMANDS = dict(tool.commands(cli, "slackwater"))


def test_the_page_is_up_to_date() -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run: python tools/write_cli_docs.py"


def test_the_planning_commands_are_there() -> None:
    wanted = {f"slackwater {name}" for name in ("plan", "compare", "savings", "zones", "init", "explain")}
    assert wanted <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_everything_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help, f"{name} has no help"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"
            assert parameter.help.rstrip().endswith((".", ")")), f"{name} {parameter.opts[0]}: help is a sentence"
        elif isinstance(parameter, click.Argument):
            assert tool.argument_name(parameter) in command.help, f"{name}: the help explains its arguments"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_can_be_shown(name: str) -> None:
    from click.testing import CliRunner

    shown = CliRunner().invoke(cli, [*name.split()[1:], "--help"], prog_name="slackwater", terminal_width=80)
    assert shown.exit_code == 0
    assert f"Usage: {name}" in shown.stdout


@pytest.mark.parametrize("name", STORED)
def test_the_stored_sentence_is_the_first_of_the_help(name: str) -> None:
    command = COMMANDS[f"slackwater {name}"]
    assert command.name == name
    assert click.Command(name, help=STORED[name][1]).get_short_help_str(400) == command.get_short_help_str(400)
    assert (command.help or "").replace("\n", " ").startswith(STORED[name][1])


def test_help_and_completion_know_every_command() -> None:
    assert list(STORED) == sorted(STORED) == cli.list_commands(click.Context(cli))
    assert cli.get_command(click.Context(cli), "nonsense") is None


def test_a_nested_group_is_picked_up() -> None:
    group, inner = click.Group("outer"), click.Group("inner", help="Inner.")
    inner.add_command(click.Command("leaf", help="Leaf."))
    group.add_command(inner)
    assert [name for name, _ in tool.commands(group, "x")] == ["x inner", "x inner leaf"]
