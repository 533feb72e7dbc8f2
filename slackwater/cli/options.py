"""Options, parameter types and output that the commands share."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from slackwater.charts.style import SUFFIXES, save
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.intensity.traces import FACTORS
from slackwater.lazy import require
from slackwater.scenario import plausible_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lab_module(module: str) -> Any:
    """Import and return a module of `slackwater.lab`, only when a command needs it."""
    return import_module(f"slackwater.lab.{module}")


F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = 100
_PATIENCE_S = 1.0
_EVALUATIONS = 12
"""Evaluations in a run by default: enough for a curve, and cheap beside the training."""


def filled(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Reject an empty value, which an unset shell variable leaves behind."""
    if value is not None and not str(value).strip():
        raise click.BadParameter("it is empty; give a value or leave the option out.", context, parameter)
    return value


def option(*names: str, help: str, **settings: Any) -> Callable[[F], F]:
    """Return click's option, which states its default and rejects an empty text or path."""
    default = settings.get("default")
    if default not in (None, ()):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        help = f"{help} Default: {shown}."
    if not settings.get("is_flag") and isinstance(settings.get("type"), click.Path | None):
        settings.setdefault("callback", filled)
    return click.option(*names, help=help, **settings)


def with_options(options: Iterable[Callable[[F], F]]) -> Callable[[F], F]:
    """Return a decorator that adds options in this order."""

    def decorate(command: F) -> F:
        for add in reversed(list(options)):
            command = add(command)
        return command

    return decorate


def draw(path: Path | None, figure: Callable[[], Figure]) -> None:
    """Draw a chart into a file, if one is named."""
    if path is not None:
        save(figure(), path)
        say(f"drew {path}")


def data_option(command: F) -> F:
    """Add --data, the source of the carbon intensity."""
    return option(
        "--data",
        metavar="FOLDER",
        help="CSV file, or folder of CSV files, with carbon intensity (tidy, or from the Electricity Maps portal), instead of "
        "the scenario's source or the embedded synthetic year.",
    )(command)


def factor_option(command: F) -> F:
    """Add --factor, direct or life-cycle."""
    return option("--factor", type=click.Choice(FACTORS), default="lifecycle", help="Emission factor to use.")(command)


def fill_option(command: F) -> F:
    """Add --fill, the longest gap to fill."""
    return option(
        "--fill",
        "fill_hours",
        type=click.IntRange(0),
        metavar="HOURS",
        help="Interpolate gaps in the carbon intensity of up to this many hours.",
    )(command)


def json_option(command: F) -> F:
    """Add --json, data instead of text."""
    return option("--json", "as_json", is_flag=True, help="Print JSON to stdout instead of text.")(command)


def chart_option(what: str, name: str = "--chart") -> Callable[[F], F]:
    """Return --chart, the file to draw a picture into."""
    return option(name, type=ChartFile(), metavar="FILE", help=f"Draw {what} into a file ({_suffixes()}).")


def out_option(help: str, default: str | None = None) -> Callable[[F], F]:
    """Return --out, the folder to write to, as a path."""

    def as_path(context: click.Context, parameter: click.Parameter, value: str | None) -> Path | None:
        return None if filled(context, parameter, value) is None else Path(str(value))

    return option(
        "--out", type=click.Path(file_okay=False), metavar="DIR", default=default, callback=as_path, help=help
    )


def eval_every_option(run: str = "run") -> Callable[[F], F]:
    """Return --eval-every; without it, `evaluation_interval` chooses the interval."""
    return option(
        "--eval-every",
        type=click.IntRange(0),
        metavar="ROUNDS",
        help=f"Rounds between evaluations; 0 evaluates only at the end. Default: about {_EVALUATIONS} evaluations in a {run}.",
    )


def precision_option(command: F) -> F:
    """Add --precision, the number type of the local steps."""
    return option(
        "--precision",
        type=click.Choice(("fp32", "bf16", "auto")),
        default="fp32",
        help="Precision of the local steps. bf16 halves their time on processors with bfloat16 instructions; auto uses it "
        "only there. fp32 gives the reference results.",
    )(command)


def evaluation_interval(rounds: int, asked: int | None) -> int:
    """Return the rounds between evaluations: those asked for, else about 12 evaluations in a run of `rounds` rounds."""
    return max(1, round(rounds / _EVALUATIONS)) if asked is None else asked


def task_option(command: F) -> F:
    """Add --task, what to train."""
    return option(
        "--task",
        metavar="NAME",
        default="digits",
        help="Task to train: digits, mnist, fashion_mnist, cifar10, shakespeare, randhie, dialysis, flights, a registered one, "
        "or your own as file.py:function or package.module:function.",
    )(command)


def task_data_option(command: F) -> F:
    """Add --task-data, the folder of the data set."""
    return option(
        "--task-data",
        metavar="FOLDER",
        help="Folder with the files of the data set. Default: the cache, which downloads them if needed.",
    )(command)


def seeds_option(command: F) -> F:
    """Add --seeds, the number of random seeds."""
    return option(
        "--seeds",
        type=Seeds(),
        default=3,
        metavar="N",
        help="Number of random seeds, counted from 0. A list with commas, such as 0,4, names the seeds.",
    )(command)


def no_run_in(folder: Path | None) -> None:
    """Raise SlackwaterError if the folder holds a run: its ledger is evidence, so no command writes over it."""
    if folder is None or not folder.is_dir():
        return
    from slackwater.ledger.run import Run
    from slackwater.live.folder import is_live

    if is_live(folder) or Run.begun(folder):
        raise SlackwaterError(
            f"{folder} already holds a run, which is not overwritten. Name another folder with --out, or continue the "
            f"run: slackwater resume {folder}"
        )


def _suffixes() -> str:
    return f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


class ChartFile(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """The file of a chart; a wrong name or missing matplotlib is an error before the work starts."""

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
                f"{value!r} names no {self.name}. Separate entries with commas, or leave the option out.", param, ctx
            )
        return items


class Seeds(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A number of random seeds, or a comma-separated list of them."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the seeds: 3 is 0, 1, 2; the list 0,4 is itself."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        try:
            numbers = [int(part) for part in text.split(",") if part.strip()]
        except ValueError:
            numbers = []
        listed = "," in text
        if not numbers or min(numbers) < (0 if listed else 1):
            self.fail(
                f"{text!r} is not a number of seeds of at least 1, nor a list of whole numbers such as 0,4.", param, ctx
            )
        return tuple(dict.fromkeys(numbers)) if listed else tuple(range(numbers[0]))


class Time(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A time with a time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the time in UTC, or raise a usage error that says how to write it."""
        try:
            return plausible_time(value, "the time")
        except ScenarioError as error:
            self.fail(str(error), param, ctx)


def seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Check a duration in seconds."""
    if not (value > 0 and math.isfinite(value)):
        raise click.BadParameter(f"{value:g} is not a number of seconds above 0.", context, parameter)
    return value


class Alpha(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic only in newer versions of click
    """A fairness: a number, or a word such as log."""

    name = "alpha"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return the number or the word; the problem checks it."""
        return number_or_word(str(value))


def number_or_word(text: str) -> float | str:
    """Return a text as a number if it is one, else unchanged."""
    try:
        return float(text)
    except ValueError:
        return text


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what takes longer than a second, and for how long; the caller may say more as it goes."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    status = Console(stderr=True).status(f"{what} ...")
    show = threading.Timer(_PATIENCE_S, status.start)
    show.daemon = True
    show.start()
    try:
        yield status.update
    finally:
        show.cancel()
        status.stop()


def print_json(data: Any) -> None:
    """Print JSON to stdout; infinity, which JSON lacks, becomes the text "inf"."""
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
    """A console that reports a closed pipe, as of `head`, instead of exiting with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return a console on stdout, as wide as the terminal or COLUMNS, else 100 characters."""
    narrow = Console().is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return _Console(soft_wrap=False, width=None if narrow else _WIDTH)


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    click.echo(text, err=True)
