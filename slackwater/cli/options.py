"""Options that several commands share, each spelt and explained once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from slackwater.carbon.traces import FACTORS
from slackwater.config import plausible_time
from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.report.canvas import SUFFIXES

F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = 100


def filled(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse an empty value, which is what a shell variable that is not set leaves behind."""
    if value is not None and not str(value).strip():
        raise click.BadParameter("it is empty; give a value or leave the option out.", context, parameter)
    return value


def data_option(command: F) -> F:
    """--data: where the intensity comes from."""
    return click.option(
        "--data",
        metavar="FOLDER",
        callback=filled,
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


def chart_option(what: str, name: str = "--chart") -> Callable[[F], F]:
    """--chart: a picture."""
    return click.option(name, type=ChartFile(), metavar="FILE", help=f"Draw {what} ({_suffixes()}).")


def _suffixes() -> str:
    return f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


class ChartFile(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """Where a chart goes; what cannot become one is refused before the work, not after it."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, or a usage error that names it."""
        path = Path(value)
        if path.suffix.lower() not in SUFFIXES:
            self.fail(f"{str(value)!r} must end in {_suffixes()}.", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder; name a file.", param, ctx)
        if find_spec("matplotlib") is None:
            raise MissingExtraError("matplotlib", "charts")
        return path


class ListOf(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A comma-separated list of at least one entry."""

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
        if not items:
            self.fail(
                f"{value!r} names no {self.name}. Separate several by commas, or leave the option out.", param, ctx
            )
        return items


class Time(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A time with a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Aware UTC, or a usage error that says how to write it."""
        try:
            return plausible_time(value, "the time")
        except ScenarioError as error:
            self.fail(str(error), param, ctx)


def seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Callback for a time limit."""
    if not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0.", context, parameter)
    return value


def number_or_word(text: str) -> float | str:
    """An alpha: a number where it is one, else the word."""
    try:
        return float(text)
    except ValueError:
        return text


def print_json(data: Any) -> None:
    """JSON on stdout; infinity, which JSON does not know, is the text "inf"."""
    click.echo(json.dumps(_plain(data), allow_nan=False))


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None if math.isnan(data) else "inf" if data > 0 else "-inf"
    return data


class _Console(Console):
    """Rich would exit with 1 when the reader of its output goes away, as `head` does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Rich output on stdout, as wide as the terminal or COLUMNS says (100 characters where neither does)."""
    narrow = Console().is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return _Console(soft_wrap=False, width=None if narrow else _WIDTH)


def say(text: str) -> None:
    """A line of progress, on stderr."""
    click.echo(text, err=True)
