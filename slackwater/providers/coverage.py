"""What the cache holds: runs of consecutive readings, by zone, source and kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from slackwater.carbon.traces import Factor
from slackwater.providers.values import Kind, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """[start, end) without a gap."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The readings of a zone, source, factor and kind."""

    zone: str
    source: str
    factor: Factor
    kind: Kind
    runs: tuple[Run, ...]
    hours: float
    mean_kg_per_kwh: float
    """Mean over time."""
    fetched_at: datetime
    """When the last of them was fetched."""


def coverage(readings: Iterable[Reading]) -> list[Cover]:
    """Return readings, each source's in order of time, as covers by zone, source, factor and kind."""
    groups: dict[tuple[str, str, Factor, Kind], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.zone, reading.source, reading.factor, reading.kind), []).append(reading)
    return [_cover(group) for _, group in sorted(groups.items())]


def _cover(readings: list[Reading]) -> Cover:
    runs: list[Run] = []
    for reading in readings:
        if runs and runs[-1].end == reading.start:
            runs[-1] = Run(start=runs[-1].start, end=reading.end)
        else:
            runs.append(Run(start=reading.start, end=reading.end))
    minutes = sum(reading.minutes for reading in readings)
    first = readings[0]
    return Cover(
        zone=first.zone, source=first.source, factor=first.factor, kind=first.kind, runs=tuple(runs),
        hours=minutes / 60,
        mean_kg_per_kwh=sum(reading.kg_per_kwh * reading.minutes for reading in readings) / minutes,
        fetched_at=max(reading.fetched_at for reading in readings),
    )  # fmt: skip
