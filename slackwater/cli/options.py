"""Options that several commands share, each spelt and explained once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from slackwater.carbon.traces import FACTORS

F = TypeVar("F", bound=Callable[..., Any])


def data_option(command: F) -> F:
    """--data: where the intensity comes from."""
    return click.option(
        "--data",
        metavar="FOLDER",
        help="A CSV file or a folder of them (tidy, or from the Electricity Maps portal) instead of the embedded synthetic year.",
    )(command)


def factor_option(command: F) -> F:
    """--factor: direct or life-cycle."""
    return click.option(
        "--factor",
        type=click.Choice(FACTORS),
        default="lifecycle",
        show_default=True,
        help="Which emission factor to use.",
    )(command)


def fill_option(command: F) -> F:
    """--fill: how long a gap may be filled."""
    return click.option(
        "--fill",
        "fill_hours",
        type=click.IntRange(0),
        metavar="HOURS",
        help="Fill gaps of up to so many hours by interpolation.",
    )(command)


def json_option(command: F) -> F:
    """--json: data instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of text.")(command)


def chart_option(what: str) -> Callable[[F], F]:
    """--chart: a picture."""
    return click.option(
        "--chart",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=f"Draw {what} (.png, .svg or .pdf).",
    )


class ListOf(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A comma-separated list."""

    def __init__(self, kind: Callable[[str], Any], name: str) -> None:
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """The list, or a usage error that names the entry."""
        if not isinstance(value, str):
            return list(value)
        items = []
        for part in filter(None, (piece.strip() for piece in value.split(","))):
            try:
                items.append(self.kind(part))
            except ValueError:
                self.fail(f"{part!r} in {value!r} is not a {self.name}.", param, ctx)
        return items


def number_or_word(text: str) -> float | str:
    """An alpha: a number where it is one, else the word."""
    try:
        return float(text)
    except ValueError:
        return text


def print_json(data: Any) -> None:
    """JSON on stdout."""
    click.echo(json.dumps(data, allow_nan=False))


def console() -> Console:
    """Rich output on stdout, as wide as the terminal (100 characters where there is none)."""
    return Console(soft_wrap=False, width=None if Console().is_terminal else 100)


def say(text: str) -> None:
    """A line of progress, on stderr."""
    click.echo(text, err=True)
