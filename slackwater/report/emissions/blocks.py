"""What a report is made of, before anyone decides how it looks: text, figures, tables, charts, code."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.report.emissions.drawing import Drawing


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
