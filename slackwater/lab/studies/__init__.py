"""Our studies, one module each; `python -m slackwater.lab STUDY` runs them and prints their tables."""

from __future__ import annotations

import sys
from pathlib import Path

import click


def use_tests(*folders: str) -> None:
    """Make modules of the repository's tests importable; raise if they are not there."""
    for folder in folders:
        path = Path("tests") / folder
        if not path.is_dir():
            raise click.ClickException(
                f"This study uses the tests of the repository, but there is no folder {path} in {Path.cwd()}. "
                "Start it from the top of the repository."
            )
        sys.path.insert(0, str(path.resolve()))
