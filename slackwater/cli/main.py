"""The `slackwater` command: its group, and how errors reach a user."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from slackwater._version import __version__
from slackwater.cli import planning
from slackwater.errors import SlackwaterError

_DEBUG = "SLACKWATER_DEBUG"
_INTERRUPTED = 130


class _Group(click.Group):
    """Turns every error into a sentence on stderr and an exit code; a traceback only with SLACKWATER_DEBUG=1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except SlackwaterError as error:
            click.echo(f"error: {error}", err=True)
            raise click.exceptions.Exit(error.exit_code) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo("stopped.", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except Exception as error:
            if os.environ.get(_DEBUG):
                raise
            click.echo(
                f"error: something went wrong inside Slackwater ({type(error).__name__}: {error}). This is a defect; "
                f"please report it with the output of the same command under {_DEBUG}=1.",
                err=True,
            )
            raise click.exceptions.Exit(1) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slackwater")
@click.option("--verbose", is_flag=True, help="Say on stderr what is being done.")
def cli(verbose: bool) -> None:
    """Federated learning inside a carbon budget: which site trains in which hour."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr, format="%(levelname)s: %(message)s"
    )


for command in planning.COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Entry point."""
    try:
        cli()
    except BrokenPipeError:  # the reader of our output went away, as `head` does: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
