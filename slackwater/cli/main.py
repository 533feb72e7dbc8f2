"""The `slackwater` command: its group, and how errors reach a user."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from slackwater._version import __version__
from slackwater.errors import SlackwaterError

_DEBUG = "SLACKWATER_DEBUG"
_INTERRUPTED = 130
# Each command: where it is defined, and the first sentence of its help, so that `slackwater --help` imports none.
COMMANDS = {
    "backtest": ("slackwater.cli.backtest_command:command", "Run a SCENARIO in the past: plan on the forecasts of the time, settle with what came, and compare with perfect foresight."),
    "baseline": ("slackwater.cli.train_commands:baseline", "Train a SCENARIO without slack: everyone, every round, until the budget is spent (FedAvg)."),
    "calibrate": ("slackwater.cli.run_commands:calibrate", "Measure what this machine draws, and write it into a SCENARIO as the watts of a CLIENT."),
    "compare": ("slackwater.cli.plan_commands:compare", "What if: plan a SCENARIO for every combination of fairness, slack and budget."),
    "data": ("slackwater.cli.data_commands:data", "Carbon intensity from its providers, kept in a cache."),
    "explain": ("slackwater.cli.output_commands:explain", "Explain a TERM, like slack or fine-tuning window."),
    "flower": ("slackwater.cli.run_commands:flower", "Flower apps that train by a schedule."),
    "forecast": ("slackwater.cli.forecast_commands:forecast", "Intensity of the coming hours in ZONES (separated by commas; all there are by default), with an interval."),
    "init": ("slackwater.cli.plan_commands:init", "Write a commented scenario to start from (PATH, default scenario.toml)."),
    "paper": ("slackwater.lab.commands:paper", "Make ITEM of the paper again: a figure (fig1 to fig7), a table (table1a, table1b, baseline, setting), claims, or all."),
    "partition": ("slackwater.cli.train_commands:partition", "Show who holds what when the data of a TASK (like digits or mnist) is split over clients."),
    "plan": ("slackwater.cli.plan_commands:plan", "Find the best schedule of a SCENARIO, with a proof of how good it is."),
    "rehearse": ("slackwater.cli.run_commands:rehearse", "Rehearse a SCENARIO on a past period: the whole live path in minutes, on the forecasts of that time."),
    "report": ("slackwater.cli.output_commands:report", "Report what a RUN emitted, or would have emitted, to hand in: every figure is the ledger's."),
    "resume": ("slackwater.cli.train_commands:resume", "Go on with a RUN that was stopped or killed; one that is done shows its result again."),
    "rivals": ("slackwater.lab.commands:rivals", "Compare methods on a SCENARIO: each policy and plan at each budget and seed, charged by the same ledger."),
    "run": ("slackwater.cli.run_commands:run", "Carry out a SCENARIO in real time with a Flower app: wait for each slot, re-plan, charge, checkpoint."),
    "savings": ("slackwater.cli.plan_commands:savings", "What slack time alone would save, by zone and by number of clients."),
    "serve": ("slackwater.cli.output_commands:serve", "Plan with sliders and watch runs in a browser: WHAT is a scenario, a plan, a run or a folder of them."),
    "status": ("slackwater.cli.run_commands:status", "Where a live RUN stands: spent, left, who trains next and when, last errors."),
    "train": ("slackwater.cli.train_commands:train", "Train by a PLAN (plan.json), every gram charged, and compare with training without slack."),
    "zones": ("slackwater.cli.plan_commands:zones", "What intensity data there is."),
}  # fmt: skip


class LazyGroup(click.Group):
    """Import a command when it is called, and turn each error into a sentence on stderr and an exit code."""

    def __init__(self, **settings: Any) -> None:
        """Hold a stand-in for each command: for `--help`, and for what was meant by a name that is mistyped."""
        super().__init__(commands=[click.Command(name, help=told) for name, (_, told) in COMMANDS.items()], **settings)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command of that name, imported now; None if there is none."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the stand-ins."""
        click.Group(commands=self.commands).format_commands(context, formatter)

    def invoke(self, context: click.Context) -> Any:
        """Run a command; SLACKWATER_DEBUG=1 adds the traceback to an error."""
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
    """Send what is still in the buffer nowhere, so that Python does not fail on it again when it ends."""
    with suppress(OSError, ValueError):  # no file behind it, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stderr(logging.Handler):
    """Log lines on whatever stderr is at the time, in the form of our errors."""

    def emit(self, record: logging.LogRecord) -> None:
        # Not by click, which would write past a progress bar, into its line.
        sys.stderr.write(f"{record.levelname.lower()}: {record.getMessage()}\n")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slackwater")
@click.option("--verbose", is_flag=True, help="Say on stderr what is being done.")
def cli(verbose: bool) -> None:
    """Federated learning inside a carbon budget: which site trains in which hour."""
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.addHandler(_Stderr())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that knows no "█" shows "?" rather than an error
            stream.reconfigure(errors="replace")
    cli(prog_name="slackwater")
