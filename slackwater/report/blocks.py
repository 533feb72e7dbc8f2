"""What a report is made of, before anyone decides how it looks: text, figures, tables, charts, code."""

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
    """Sentences that stand for themselves, as a list."""

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
    """The numbers that a hurried reader looks for."""

    items: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; `right` says which columns hold numbers."""

    title: str
    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    note: str = ""
    sums: tuple[int, ...] = ()
    """Numbers of the rows that are sums of those above."""


@dataclass(frozen=True, slots=True)
class Charts:
    """Pictures that stand side by side where there is room."""

    drawings: tuple[Drawing, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy, as it is."""

    text: str


Block = Paragraph | Notes | Figures | Table | Charts | Code


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole report."""

    title: str
    """With the kind of run."""
    kind: str
    """What its kind means for the figures: the first sentence of every report."""
    subtitle: str
    date: str
    """Of the report, ISO."""
    warning: str
    """What a reader must know before all else; empty where there is nothing."""
    sections: tuple[Section, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Kilograms:
    """Writes kg with the same decimals all through a report."""

    decimals: int

    @classmethod
    def for_total(cls, total_kg: float) -> Kilograms:
        """Use three decimals, which are grams; small runs get more, so that their clients differ."""
        return cls(3 if abs(total_kg) >= 100 else 4 if abs(total_kg) >= 1 else 6)

    def adding_up(self, parts: Sequence[float], total: float, *, since: float = 0.0) -> list[str]:
        """Write parts so that, as shown, they add up to the difference of two sums; the largest takes what rounding left."""
        counts = [self._count(part) for part in parts]
        if counts:
            largest = max(range(len(counts)), key=lambda number: abs(counts[number]))
            counts[largest] += self._count(total) - self._count(since) - sum(counts)
        return [self(count / 10.0**self.decimals) for count in counts]

    def _count(self, kg: float) -> int:
        """Return how many of the smallest shown amount it is."""
        return round(round(round(kg, 9), self.decimals) * 10.0**self.decimals)

    def __call__(self, kg: float, *, sign: bool = False) -> str:
        """Return the kg as text; 0 has no minus."""
        # By way of micrograms, so that two sums of the same numbers in another order are not rounded apart.
        rounded = round(round(kg, 9), self.decimals) + 0.0
        return f"{rounded:+,.{self.decimals}f}" if sign and rounded else f"{rounded:,.{self.decimals}f}"


def percent_change(value: float, reference: float) -> str:
    """Return the change against the reference in per cent, with a true minus; empty if the reference is almost 0."""
    if not math.isfinite(reference) or abs(reference) < NEAR_ZERO_KG:
        return ""
    return f"{100 * (value - reference) / reference:+.1f} %".replace("-", "\N{MINUS SIGN}")
