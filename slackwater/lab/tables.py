"""Markdown tables of the studies, and their place in a page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slackwater.atomic import write_whole
from slackwater.lab.store import DIVERGED


def line(*cells: object) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def under(columns: int) -> str:
    """Return the line below the header of a table."""
    return "|---" * columns + "|"


def spread(values: Sequence[float]) -> str:
    """Return mean, deviation and number of values."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation} ({len(values)})"


def accuracy(rows: Iterable[dict[str, Any]]) -> str:
    """Return the accuracy of runs in percent over seeds, and how many diverged."""
    found = [row.get("accuracy") for row in rows]
    values = [100 * value for value in found if value is not None]
    lost = len(found) - len(values)
    return " ".join(filter(None, (spread(values), f"{lost} {DIVERGED}" if lost else "")))


def write_between(page: Path, begin: str, end: str, text: str, otherwise: str) -> None:
    """Replace the part of a page between two marks; without marks, `otherwise` gives its place.

    Args:
        page: A Markdown file.
        begin: The mark before the part.
        end: The mark after it.
        text: The new part.
        otherwise: A heading to append with the part, or a regular expression of what the part replaces.
    """
    old, block = page.read_text(encoding="utf-8"), f"{begin}\n{text}\n{end}"
    if begin in old:
        new = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: block, old, flags=re.DOTALL)
    elif otherwise.startswith("#"):
        new = f"{old.rstrip()}\n\n{otherwise}\n\n{block}\n"
    else:
        new = re.sub(otherwise, lambda _: block, old)
    write_whole(page, new)
