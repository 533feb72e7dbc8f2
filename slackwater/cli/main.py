"""The `slackwater` command: its group, and how errors reach a user."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from slackwater._version import __version__
from slackwater.cli import (
    backtest,
    data,
    flower,
    forecast,
    learning,
    live,
    paper,
    partition,
    planning,
    report,
    rivals,
    serve,
)
from slackwater.errors import SlackwaterError

_DEBUG = "SLACKWATER_DEBUG"
_INTERRUPTED = 130


class _Group(click.Group):
    """Turns every error into a sentence on stderr and an exit code; a traceback only with SLACKWATER_DEBUG=1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except SlackwaterError as error:
            _fail(str(error), error.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("stopped.", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output went away, as `head` does: nothing is wrong
            _silence_stdout()
            raise click.exceptions.Exit(0) from None
        except OSError as error:
            _silence_stdout()
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"the system says: {error.strerror or error}{where}.", 1)
        except MemoryError:
            _fail("there is not enough memory. Ask for fewer slots or clients, or fix the end time (--end).", 1)
        except Exception as error:
            _fail(
                f"something went wrong inside Slackwater ({type(error).__name__}: {error}). This is a defect; "
                f"please report it with the output of the same command under {_DEBUG}=1.",
                1,
            )


def _fail(message: str, exit_code: int) -> NoReturn:
    if os.environ.get(_DEBUG, "0") not in ("", "0"):
        click.echo(traceback.format_exc(), err=True)
    click.echo(f"error: {message}", err=True)
    raise click.exceptions.Exit(exit_code) from None


def _silence_stdout() -> None:
    """What is still in the buffer goes nowhere, so that Python does not fail on it again when it ends."""
    with suppress(OSError, ValueError):  # no file behind it, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stderr(logging.Handler):
    """Log lines on whatever stderr is at the time, in the form of our errors."""

    def emit(self, record: logging.LogRecord) -> None:
        # Not by click, which would write past a progress bar, into its line.
        sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()}\n")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slackwater")
@click.option("--verbose", is_flag=True, help="Say on stderr what is being done.")
def cli(verbose: bool) -> None:
    """Federated learning inside a carbon budget: which site trains in which hour."""
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())


for command in (
    *planning.COMMANDS,
    *learning.COMMANDS,
    *rivals.COMMANDS,
    *live.COMMANDS,
    *partition.COMMANDS,
    *paper.COMMANDS,
    *data.COMMANDS,
    *backtest.COMMANDS,
    *serve.COMMANDS,
    *flower.COMMANDS,
    *forecast.COMMANDS,
    *report.COMMANDS,
):
    cli.add_command(command)


def main() -> None:
    """Entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that knows no "█" shows "?" rather than an error
            stream.reconfigure(errors="replace")
    cli(prog_name="slackwater")
