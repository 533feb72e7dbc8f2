"""One zone's intensity on its own regular steps: its gaps, and its means over slots."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Factor
from slackwater.errors import DataError, ScenarioError
from slackwater.units import iso

logger = logging.getLogger(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GAPS_NAMED = 5
SPRING, AUTUMN = (3, 9, 10), (4, 10, 11)
"""Months in which an hour is skipped, and in which it comes twice, in the north and in the south."""
CLOCKS_FORWARD = (
    " An hour is missing where clocks go forward: the file looks like it is in local time with daylight saving. If so,"
    " give the times in UTC."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneSeries:
    """A zone's values from its first to its last stamp."""

    zone: str
    source: str
    start_minute: int
    """Start of the first step, minutes since 1970 UTC, a multiple of the step."""
    step_minutes: int
    """60 or a divisor of it."""
    steps: int
    intensity: Mapping[Factor, NDArray[np.float64]]
    """[step], kg CO2e/kWh, NaN where missing; no entry for a factor without a single value."""
    synthetic: bool = False
    from_file: bool = False

    @property
    def end_minute(self) -> int:
        """Return the end of the last step, minutes since 1970 UTC."""
        return self.start_minute + self.steps * self.step_minutes

    @property
    def cover(self) -> str:
        """Return the range of the series as text."""
        return f"{iso(moment(self.start_minute))} to {iso(moment(self.end_minute))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Consecutive missing steps [first, stop) of a series."""

    first: int
    stop: int
    start_minute: int
    minutes: int
    at_edge: bool
    """Whether values are missing up to the start or the end of the data, where nothing can be interpolated."""

    @property
    def skipped_by_clocks(self) -> bool:
        """Whether this is the gap that local time with daylight saving has in spring."""
        return self.minutes == 60 and looks_like_clock_change(self.start_minute, SPRING)

    def __str__(self) -> str:
        return f"{self.minutes / 60:g} h from {iso(moment(self.start_minute))}"


def moment(minute: int) -> datetime:
    """Return the aware UTC time of a minute since 1970."""
    return EPOCH + timedelta(minutes=int(minute))


def minute_of(when: datetime) -> int:
    """Return the minutes since 1970 of an aware time, rounded down."""
    return (when - EPOCH) // timedelta(minutes=1)


def check_slots(slot_minutes: int, fill_hours: int) -> None:
    """Raise ScenarioError if slots do not divide an hour or a day, or if `fill_hours` is negative."""
    if slot_minutes < 1 or (60 % slot_minutes and (slot_minutes % 60 or 1440 % slot_minutes)):
        raise ScenarioError(
            f"slot_minutes is {slot_minutes}; a slot is a whole part of an hour (15, 20, 30, 60) or whole hours that "
            "divide a day (120, 180, 240, 360, 480, 720, 1440)."
        )
    if fill_hours < 0:
        raise ScenarioError(f"fill_hours is {fill_hours}; give 0 to fill no gaps, or the longest gap to fill in hours.")


def gaps_of(series: ZoneSeries, factor: Factor) -> list[Gap]:
    """Return every run of missing values, in order."""
    missing = np.isnan(series.intensity[factor]).astype(np.int8)
    edges = np.flatnonzero(np.diff(missing, prepend=0, append=0))
    return [
        Gap(
            first=int(first),
            stop=int(stop),
            start_minute=series.start_minute + int(first) * series.step_minutes,
            minutes=int(stop - first) * series.step_minutes,
            at_edge=bool(first == 0 or stop == series.steps),
        )
        for first, stop in edges.reshape(-1, 2)
    ]


def hours_in(gaps: list[Gap], begin: int, end: int) -> list[int]:
    """Return the starts (minutes since 1970) of the hours of [begin, end) in which a value is missing."""
    hours: set[int] = set()
    for gap in gaps:
        low, high = max(gap.start_minute, begin), min(gap.start_minute + gap.minutes, end)
        if low < high:
            hours.update(range(low - low % 60, high, 60))
    return sorted(hours)


def fill(values: NDArray[np.float64], gaps: list[Gap]) -> NDArray[np.float64]:
    """Return the values with these gaps filled by straight lines between their neighbours."""
    known = np.flatnonzero(~np.isnan(values))
    filled = values.copy()
    for gap in gaps:
        steps = np.arange(gap.first, gap.stop)
        filled[steps] = np.interp(steps, known, values[known])
    return filled


def to_slots(
    series: ZoneSeries, values: NDArray[np.float64], begin: int, end: int, slot_minutes: int
) -> NDArray[np.float64]:
    """Return the means [slot] over [begin, end), minutes since 1970, which must lie inside the series.

    A value holds for its whole step, so a slot shorter than the step repeats it.
    """
    step = series.step_minutes
    first, stop = (begin - series.start_minute) // step, -((series.start_minute - end) // step)
    # On a grid that both divide into, so that 20-minute slots of 15-minute values come out right too.
    fine = gcd(step, slot_minutes)
    grid = np.repeat(values[first:stop], step // fine)
    offset = (begin - series.start_minute - first * step) // fine
    grid = grid[offset : offset + (end - begin) // fine]
    return np.asarray(grid.reshape(-1, slot_minutes // fine).mean(axis=1), dtype=np.float64)


def looks_like_clock_change(start_minute: int, months: tuple[int, ...]) -> bool:
    """Whether an hour lies where clocks change in these months: before 4 h on a Sunday, almost everywhere."""
    when = moment(start_minute)
    return when.month in months and when.weekday() == 6 and when.hour < 4


def filled_slots(
    series: ZoneSeries, factor: Factor, begin: int, end: int, slot_minutes: int, fill_hours: int
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the means [slot] over [begin, end) and the hours that were filled; raise DataError for a longer gap."""
    gaps = [gap for gap in gaps_of(series, factor) if gap.start_minute < end and gap.start_minute + gap.minutes > begin]
    short = [gap for gap in gaps if not gap.at_edge and gap.minutes <= 60 * fill_hours]
    if len(short) < len(gaps):
        raise DataError(
            describe_gaps(series, factor, [gap for gap in gaps if gap not in short], begin, end, fill_hours)
        )
    filled = tuple(iso(moment(hour)) for hour in hours_in(short, begin, end))
    if filled:
        doubt = CLOCKS_FORWARD if series.from_file and any(gap.skipped_by_clocks for gap in short) else ""
        hours = ", ".join(filled)
        logger.warning("Zone %s: filled %d hours by interpolation: %s.%s", series.zone, len(filled), hours, doubt)
    return to_slots(series, fill(series.intensity[factor], short), begin, end, slot_minutes), filled


def describe_gaps(series: ZoneSeries, factor: Factor, gaps: list[Gap], begin: int, end: int, fill_hours: int) -> str:
    """Return what is missing in [begin, end), and what to do about it; `gaps` are those that were not filled."""
    count = len(hours_in(gaps, begin, end))
    named = ", ".join(str(gap) for gap in gaps[:GAPS_NAMED])
    if len(gaps) > GAPS_NAMED:
        named += f" and {len(gaps) - GAPS_NAMED} more gaps"
    beyond = f" that fill_hours={fill_hours} does not fill" if fill_hours else ""
    hours = "1 hour" if count == 1 else f"{count:,} hours"
    text = f"Zone {series.zone} ({series.source}) lacks {hours} of {factor} intensity{beyond}: {named}."
    if any(gap.skipped_by_clocks for gap in gaps):
        text += CLOCKS_FORWARD
    bounds = [begin, *(bound for gap in gaps for bound in (gap.start_minute, gap.start_minute + gap.minutes)), end]
    pairs = [(low, high) for low, high in list(pairwise(bounds))[::2] if low < high]
    ways = []
    if pairs:
        low, high = max(pairs, key=lambda pair: pair[1] - pair[0])
        ways.append(f"ask for a part without gaps (the longest is {(high - low) / 60:g} h from {iso(moment(low))})")
    inside = [gap.minutes for gap in gaps if not gap.at_edge]
    if inside:
        needed = -(-max(inside) // 60)
        guess = ", a guess over so many hours" if needed > 6 else ""
        ways.append(f"let fill_hours={needed} (--fill {needed}) draw a straight line over them{guess}")
    advice = ", or ".join(ways) or "take another zone or file"
    edge = " A gap at the edge of the data is never filled." if len(inside) < len(gaps) else ""
    return f"{text} To go on, {advice}.{edge}"
