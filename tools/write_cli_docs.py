"""Write docs/cli.md from the commands themselves: `python tools/write_cli_docs.py`.

Made from click's objects, not from its help pages, whose layout changes from version to version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from slackwater.cli.main import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
PROGRAM = "slackwater"
INTRO = """\
# The command line

<!-- Written by tools/write_cli_docs.py from the commands themselves. Change those, then run it again. -->

Data goes to stdout, progress and errors to stderr, so `slackwater plan scenario.toml --json > plan.json` holds JSON and nothing else.
`slackwater COMMAND --help` shows the same as this page.

| exit code | meaning |
| --- | --- |
| 0 | fine |
| 1 | data that cannot be used, a file that cannot be written, anything else |
| 2 | a mistake in the command or in the scenario |
| 3 | infeasible: no schedule fits; the message names the least budget that would do, and the end time s that has it |
| 130 | stopped with Ctrl-C; a training run can be resumed |

`SLACKWATER_DEBUG=1` adds the traceback to an error, `NO_COLOR=1` turns colours off, `COLUMNS` sets the width where there is no terminal.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRO, f"## {PROGRAM}\n\n{_help(cli)}\n\n{_usage(PROGRAM, cli)}\n\n{_options(cli)}"]
    for name, command in commands(cli, PROGRAM):
        parts.append(
            "\n\n".join(filter(None, (f"## {name}", _usage(name, command), _help(command), _options(command))))
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, by name; groups before what is in them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


def _usage(name: str, command: click.Command) -> str:
    words = [name, "[OPTIONS]"]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            metavar = argument_name(parameter)
            words.append(metavar if parameter.required else f"[{metavar}]")
    if isinstance(command, click.Group):
        words.append("COMMAND ...")
    return f"    {' '.join(words)}"


def argument_name(argument: click.Argument) -> str:
    """What an argument is called in usage lines."""
    return argument.metavar or str(argument.name).upper()


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").partition("\f")[0]


def _options(command: click.Command) -> str:
    lines = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = ", ".join(f"`{f'{name} {_value(option)}'.strip()}`" for name in sorted(option.opts, key=len))
            default = f" Default: `{option.default}`." if option.show_default and option.default is not None else ""
            lines.append(f"- {names}: {option.help}{default}")
    return "\n".join(lines)


def _value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    if isinstance(option.type, type(click.INT)):
        return "N"
    return "X" if isinstance(option.type, type(click.FLOAT)) else "TEXT"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"wrote {PAGE}", err=True)
