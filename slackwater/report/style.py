"""One palette and one set of sizes for charts, page and terminal.

Hues are Okabe and Ito's, which people with any of the common colour deficiencies can tell apart. Where the paper has
green and red, the two also differ in lightness (dark green, pale red), so that they survive deuteranopia and a
black-and-white printer.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

TRAINS = "#00573F"
IDLE = "#F7C3B1"
CANNOT = "#FFFFFF"
OVER = "#E4E4E4"
INTENSITY = "#7A7A7A"
INK = "#1A1A1A"
MUTED = "#5F5F5F"
RULE = "#D0D0D0"
WINDOW = "#0072B2"
WARNING = "#B03A00"
"""Okabe-Ito's vermillion, darkened until small text reads well on white."""
PARTLY = ("#CFE5DA", "#7DB8A0", "#2F8767", TRAINS)
"""From few to all of a group's clients."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

COLUMN_IN = 3.5
"""Width of a column of a two-column paper, inches."""
TEXT_IN = 7.16
"""Width of both columns."""
FONT_PT = 8.0
TITLE_PT = 9.0
PNG_DPI = 200

SYNTHETIC = "synthetic intensity"
"""The label that every output of synthetic data carries."""


def kilograms(kg: float) -> str:
    """Return an amount of CO2e with four digits, without an exponent for usual amounts."""
    return f"{kg:,.0f}" if abs(kg) >= 10_000 else f"{kg:.4g}"


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100 * share:.1f} %"


def printable(name: str) -> str:
    """Return a user's text on one line, without what could move the cursor or turn the writing direction."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def shortened(name: str, most: int) -> str:
    """Return at most so many characters; the middle is cut, since names often differ at an end."""
    clean = printable(name)
    if len(clean) <= most:
        return clean
    head = (most - 1) // 2
    return f"{clean[:head]}…{clean[len(clean) - (most - 1 - head) :]}"


def table(columns: str, **settings: Any) -> Table:
    """Return an empty terminal table; its columns are separated by |, and > marks those that hold numbers."""
    made = Table(box=None, header_style="bold", **{"pad_edge": False} | settings)
    for name in columns.split("|"):
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    return made


def synthetic_note() -> Text:
    """Return the line that every terminal output of synthetic data carries."""
    return Text(f"{SYNTHETIC}: typical profiles, not measured", style="bold yellow")
