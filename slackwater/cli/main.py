"""The `slackwater` command group, and how errors are printed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import IO, Any, NoReturn

import click

from slackwater._version import __version__
from slackwater.errors import SlackwaterError

_DEBUG = "SLACKWATER_DEBUG"
_INTERRUPTED = 130
# Module and attribute of each command, and the first sentence of its help: `slackwater --help` imports no command.
COMMANDS = {
    "advise": ("slackwater.cli.plan_commands:advise", "Recommend a budget and a deadline for a SCENARIO."),
    "backtest": ("slackwater.cli.backtest_command:command", "Test forecasts and re-planning on past periods of a SCENARIO."),
    "baseline": ("slackwater.cli.train_commands:baseline", "Train a SCENARIO without slack until its budget is spent."),
    "calibrate": ("slackwater.cli.run_commands:calibrate", "Measure the power of this machine for a CLIENT of a SCENARIO."),
    "compare": ("slackwater.cli.plan_commands:compare", "Plan a SCENARIO for several alphas, slacks and budgets."),
    "confirm": ("slackwater.cli.run_commands:confirm", "List or confirm energy reports of a RUN that are too large."),
    "data": ("slackwater.cli.data_commands:data", "Fetch carbon intensity from providers, and manage the cache."),
    "explain": ("slackwater.cli.output_commands:explain", "Explain a TERM, such as slack or fine-tuning window."),
    "flower": ("slackwater.cli.run_commands:flower", "Create Flower apps that train by a schedule."),
    "forecast": ("slackwater.cli.forecast_commands:forecast", "Forecast the carbon intensity of ZONES, with an interval."),
    "init": ("slackwater.cli.plan_commands:init", "Write a commented scenario to PATH, to start from."),
    "nvflare": ("slackwater.cli.run_commands:nvflare", "Create NVIDIA FLARE jobs that train by a schedule."),
    "paper": ("slackwater.lab.commands:paper", "Reproduce an ITEM of the paper: a figure, a table or all."),
    "partition": ("slackwater.cli.train_commands:partition", "Show how the data of a TASK is split over clients."),
    "plan": ("slackwater.cli.plan_commands:plan", "Find the best schedule for a SCENARIO, with a proof."),
    "rehearse": ("slackwater.cli.run_commands:rehearse", "Rehearse a live run of a SCENARIO on a past period."),
    "report": ("slackwater.cli.output_commands:report", "Report the emissions of a RUN as text, HTML, PDF or CSV."),
    "resume": ("slackwater.cli.train_commands:resume", "Continue a RUN that was stopped, or show its result."),
    "rivals": ("slackwater.lab.commands:rivals", "Compare training methods on a SCENARIO at equal budgets."),
    "run": ("slackwater.cli.run_commands:run", "Run a SCENARIO in real time with a Flower app or FLARE job."),
    "savings": ("slackwater.cli.plan_commands:savings", "Estimate what slack alone saves, by zone and client count."),
    "serve": ("slackwater.cli.output_commands:serve", "Open the dashboard: plan with sliders, and watch runs."),
    "status": ("slackwater.cli.run_commands:status", "Show a live RUN: emissions, next rounds and errors."),
    "train": ("slackwater.cli.train_commands:train", "Train by a PLAN, and compare with the no-slack baseline."),
    "zones": ("slackwater.cli.plan_commands:zones", "List the zones that have carbon-intensity data."),
}  # fmt: skip


class _Mistake(click.ClickException):
    """A usage error of click, in the one form of all our errors."""

    def __init__(self, error: click.ClickException, command: str) -> None:
        """Take over message and exit code, and add how to see the options of the command."""
        text = " ".join(error.format_message().split())
        hint = f"\nFor help: {command} --help" if isinstance(error, click.UsageError) else ""
        super().__init__(text + hint)
        self.exit_code = error.exit_code  # type: ignore[misc, unused-ignore]  # typed as a constant in newer click

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on stderr."""
        click.echo(f"error: {self.message}", file=file, err=file is None)


def _mistake(error: click.ClickException, command: str) -> click.ClickException:
    """Return the error in our form; the help that click shows for a bare group stays as it is.

    Args:
        error: The error that click raised.
        command: Name of the command, if the error does not know it.
    """
    if isinstance(error, _Mistake) or type(error).__name__ == "NoArgsIsHelpError":
        return error
    context = getattr(error, "ctx", None)
    return _Mistake(error, command if context is None else context.command_path)


def _set_level(context: click.Context, parameter: click.Parameter, verbose: bool) -> None:
    """Log every step if --verbose is given, at any place on the line."""
    if verbose:
        logging.getLogger("slackwater").setLevel(logging.INFO)


_VERBOSE = click.Option(
    ["--verbose"],
    is_flag=True,
    expose_value=False,
    hidden=True,
    callback=_set_level,
    help="Log each step to stderr.",
)


def _with_verbose(command: click.Command) -> click.Command:
    """Add --verbose to a command and to its own commands."""
    if _VERBOSE not in command.params:
        command.params.append(_VERBOSE)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            _with_verbose(one)
    return command


class ErrorGroup(click.Group):
    """Turn every error of a command into a message on stderr and an exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the command; a usage error gets our form."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _mistake(error, str(info_name)) from None

    def invoke(self, context: click.Context) -> Any:
        """Run a command; with SLACKWATER_DEBUG=1, print the traceback of an error."""
        try:
            return super().invoke(context)
        except SlackwaterError as error:
            _fail(str(error), error.exit_code)
        except click.ClickException as error:
            raise _mistake(error, f"{context.command_path} {context.invoked_subcommand or ''}".strip()) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("stopped.", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenPipeError:  # the reader closed the pipe, as `head` does
            _silence_stdout()
            raise click.exceptions.Exit(0) from None
        except OSError as error:
            _silence_stdout()
            where = f" ({error.filename})" if error.filename else ""
            _fail(f"the operating system reports: {error.strerror or error}{where}.", 1)
        except MemoryError:
            _fail("not enough memory. Use fewer slots or clients, or fix the end time (--end).", 1)
        except Exception as error:
            _fail(
                f"internal error ({type(error).__name__}: {error}). This is a defect in Slackwater. Run the command "
                f"again with {_DEBUG}=1, and report the output.",
                1,
            )


class LazyGroup(ErrorGroup):
    """Import a command when it is called."""

    def __init__(self, **settings: Any) -> None:
        """Create a placeholder for each command, for `--help` and for suggestions after a typing error."""
        super().__init__(commands=[click.Command(name, help=text) for name, (_, text) in COMMANDS.items()], **settings)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import and return the command of that name, or None if there is none."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return _with_verbose(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the placeholders."""
        click.Group(commands=self.commands).format_commands(context, formatter)


def _fail(message: str, exit_code: int) -> NoReturn:
    if os.environ.get(_DEBUG, "0") not in ("", "0"):
        click.echo(traceback.format_exc(), err=True)
    click.echo(f"error: {message}", err=True)
    raise click.exceptions.Exit(exit_code) from None


def _silence_stdout() -> None:
    """Discard the output buffer, so that Python does not fail on it again at exit."""
    with suppress(OSError, ValueError):  # stdout has no file descriptor, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stderr(logging.Handler):
    """Write log lines to the current stderr, in the form of our errors."""

    def emit(self, record: logging.LogRecord) -> None:
        # click.echo would write into the line of a progress bar.
        sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()}\n")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slackwater")
@click.option("--verbose", is_flag=True, help="Log each step to stderr. Works before and after the command.")
def cli(verbose: bool) -> None:
    """Plan and run federated learning inside a carbon budget."""
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())


def _interrupt(number: int, frame: object) -> None:
    """Treat SIGTERM, which a batch system or `docker stop` sends, as Ctrl-C: files are closed, and a run can be resumed."""
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without "█" shows "?"
            stream.reconfigure(errors="replace")
    cli(prog_name="slackwater")
