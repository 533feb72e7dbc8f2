"""Write docs/reference/cli.md from the commands: `python tools/write_cli_docs.py`.

It reads click's objects, not the help pages, whose layout depends on the version.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

import click

from slackwater.cli.main import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 98
PROGRAM = "slackwater"
INTRO = """\
# Commands

<!-- Written by tools/write_cli_docs.py from the commands. Edit those. -->

`slackwater COMMAND --help` shows the same text as this page.

Data goes to stdout. Progress and errors go to stderr.
So `slackwater plan scenario.toml --json > plan.json` writes only JSON to the file.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | any other error, such as unusable data or a file that cannot be written |
| 2 | wrong usage: a mistake in the command or in the scenario |
| 3 | infeasible: no schedule fits; the message names the smallest budget that fits, and its end time s |
| 130 | stopped with Ctrl-C; a run can be resumed |

| variable | effect |
| --- | --- |
| `SLACKWATER_DEBUG=1` | adds the traceback to an error |
| `NO_COLOR=1` | turns colours off |
| `COLUMNS` | sets the width if there is no terminal |
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRO, f"## {PROGRAM}\n\n{_help(cli)}\n\n{_usage(PROGRAM, cli)}\n\n{_options(cli)}"]
    for name, command in commands(cli, PROGRAM):
        parts.append(
            "\n\n".join(filter(None, (f"## {name}", _usage(name, command), _help(command), _options(command))))
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name; a group comes before its commands."""
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
    """Return the name of an argument in usage lines."""
    return argument.metavar or str(argument.name).upper()


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    return "\n\n".join(_wrapped(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def _options(command: click.Command) -> str:
    lines = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = ", ".join(f"`{f'{name} {_value(option)}'.strip()}`" for name in sorted(option.opts, key=len))
            default = f" Default: `{option.default}`." if option.show_default and option.default is not None else ""
            lines.append(_wrapped(f"- {names}: {option.help}{default}", indent="  "))
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"wrote {PAGE}", err=True)
