"""The one way from the product to `slackwater.lab`: by name, and only when a command needs it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from slackwater.charts.style import SUFFIXES, save
from slackwater.errors import ScenarioError
from slackwater.intensity.traces import FACTORS
from slackwater.lazy import require
from slackwater.scenario import plausible_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lab_module(module: str) -> Any:
    """Import and return a module of `slackwater.lab`."""
    return import_module(f"slackwater.lab.{module}")


F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = 100


def filled(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse an empty value, which is what a shell variable that is not set leaves behind."""
    if value is not None and not str(value).strip():
        raise click.BadParameter("it is empty; give a value or leave the option out.", context, parameter)
    return value


def option(*names: str, help: str, **settings: Any) -> Callable[[F], F]:
    """Return click's option, which shows its default and rejects an empty text or path."""
    if settings.get("default") not in (None, ()):
        settings["show_default"] = True
    if not settings.get("is_flag") and isinstance(settings.get("type"), click.Path | None):
        settings.setdefault("callback", filled)
    return click.option(*names, help=help, **settings)


def with_options(options: Iterable[Callable[[F], F]]) -> Callable[[F], F]:
    """Return a decorator that adds options in their order."""

    def decorate(command: F) -> F:
        for add in reversed(list(options)):
            command = add(command)
        return command

    return decorate


def draw(path: Path | None, figure: Callable[[], Figure]) -> None:
    """Draw a chart if a file is named for it."""
    if path is not None:
        save(figure(), path)
        say(f"drew {path}")


def data_option(command: F) -> F:
    """Add --data, where the intensity comes from."""
    return option(
        "--data",
        metavar="FOLDER",
        help="A CSV file or a folder of them (tidy, or from the Electricity Maps portal) instead of the embedded synthetic year.",
    )(command)


def factor_option(command: F) -> F:
    """Add --factor, direct or life-cycle."""
    return option("--factor", type=click.Choice(FACTORS), default="lifecycle", help="Which emission factor to use.")(
        command
    )


def fill_option(command: F) -> F:
    """Add --fill, the longest gap to fill."""
    return option(
        "--fill",
        "fill_hours",
        type=click.IntRange(0),
        metavar="HOURS",
        help="Fill gaps of up to so many hours by interpolation.",
    )(command)


def json_option(command: F) -> F:
    """Add --json, data instead of text."""
    return option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of text.")(command)


def chart_option(what: str, name: str = "--chart") -> Callable[[F], F]:
    """Add --chart, the file of a picture."""
    return option(name, type=ChartFile(), metavar="FILE", help=f"Draw {what} ({_suffixes()}).")


def _suffixes() -> str:
    return f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


class ChartFile(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """Where a chart goes; what cannot become one is refused before the work, not after it."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or raise a usage error that names it."""
        path = Path(value)
        if path.suffix.lower() not in SUFFIXES:
            self.fail(f"{str(value)!r} must end in {_suffixes()}.", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder; name a file.", param, ctx)
        require("matplotlib")
        return path


class ListOf(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A comma-separated list of at least one entry."""

    def __init__(self, kind: Callable[[str], Any], name: str) -> None:
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the list, or raise a usage error that names the entry."""
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
        """Return aware UTC, or raise a usage error that says how to write it."""
        try:
            return plausible_time(value, "the time")
        except ScenarioError as error:
            self.fail(str(error), param, ctx)


def seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Check a time limit."""
    if not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0.", context, parameter)
    return value


def number_or_word(text: str) -> float | str:
    """Return an alpha as a number if it is one, else the word."""
    try:
        return float(text)
    except ValueError:
        return text


def print_json(data: Any) -> None:
    """Print JSON on stdout; infinity, which JSON lacks, is the text "inf"."""
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
    """Return rich output on stdout, as wide as the terminal or COLUMNS says, else 100 characters."""
    narrow = Console().is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return _Console(soft_wrap=False, width=None if narrow else _WIDTH)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    click.echo(text, err=True)
