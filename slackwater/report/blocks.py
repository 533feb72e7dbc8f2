"""Blocks of a report, independent of its file format: text, figures, tables, charts, code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.report.account import NEAR_ZERO_KG
from slackwater.report.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Notes:
    """Separate sentences, as a list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its name and a line about it."""

    name: str
    value: str
    unit: str
    note: str


@dataclass(frozen=True, slots=True)
class Figures:
    """The main numbers of the report."""

    items: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; `right` marks the columns with numbers."""

    title: str
    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    note: str = ""
    sums: tuple[int, ...] = ()
    """Indices of the rows that sum the rows above."""


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts, side by side where there is room."""

    drawings: tuple[Drawing, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy verbatim."""

    text: str


Block = Paragraph | Notes | Figures | Table | Charts | Code


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole report."""

    title: str
    """Includes the kind of run."""
    kind: str
    """What the kind of run means for the figures: the first sentence of every report."""
    subtitle: str
    date: str
    """Date of the report, ISO."""
    warning: str
    """Warning above everything else; empty if there is none."""
    sections: tuple[Section, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Kilograms:
    """Formatter that writes kg with the same decimals throughout a report."""

    decimals: int

    @classmethod
    def for_total(cls, total_kg: float) -> Kilograms:
        """Use three decimals (grams); small runs get more, so that their clients differ."""
        return cls(3 if abs(total_kg) >= 100 else 4 if abs(total_kg) >= 1 else 6)

    def adding_up(self, parts: Sequence[float], total: float, *, since: float = 0.0) -> list[str]:
        """Write parts so that the shown values add up to the difference of two sums; the largest absorbs the rounding."""
        counts = [self._count(part) for part in parts]
        if counts:
            largest = max(range(len(counts)), key=lambda number: abs(counts[number]))
            counts[largest] += self._count(total) - self._count(since) - sum(counts)
        return [self(count / 10.0**self.decimals) for count in counts]

    def _count(self, kg: float) -> int:
        """Return the amount as a multiple of the smallest shown step."""
        return round(round(round(kg, 9), self.decimals) * 10.0**self.decimals)

    def __call__(self, kg: float, *, sign: bool = False) -> str:
        """Return the kg as text; 0 has no minus."""
        # Round to micrograms first, so that sums of the same numbers in another order print the same.
        rounded = round(round(kg, 9), self.decimals) + 0.0
        return f"{rounded:+,.{self.decimals}f}" if sign and rounded else f"{rounded:,.{self.decimals}f}"


def percent_change(value: float, reference: float) -> str:
    """Return the change in per cent of the reference, with a true minus; empty if the reference is almost 0."""
    if not math.isfinite(reference) or abs(reference) < NEAR_ZERO_KG:
        return ""
    rounded = round(100 * (value - reference) / reference, 1) + 0.0  # 0 has no minus
    return f"{rounded:+.1f} %".replace("-", "\N{MINUS SIGN}") if rounded else "0.0 %"
