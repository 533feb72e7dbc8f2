"""Errors of the user's own code as sentences: a task's function, its data, model, loss, step and metric."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.errors import ScenarioError, SlackwaterError

_NOT_OWN = (str(Path(__file__).parents[1]), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<frozen")
"""Beginnings of files that are not the user's: ours, those of installed packages, and Python's."""


@contextmanager
def users_code(told: str) -> Iterator[None]:
    """Raise ScenarioError for an exception inside, with its text and the last line of the user's own code on its way.

    Args:
        told: What failed, as the beginning of the sentence.
    """
    try:
        yield
    except SlackwaterError:
        raise
    except Exception as error:
        raise ScenarioError(f"{told}: {_what(error)}{_where(error)}.") from error


def _what(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _where(error: Exception) -> str:
    own = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(_NOT_OWN)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
