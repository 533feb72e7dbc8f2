"""Carbon intensity: one zone on its own regular steps (`Series`), and several zones over the same slots (`Traces`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import gcd
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.lazy import Viewed
from slackwater.units import iso, utc

logger = logging.getLogger(__name__)

HIGHEST_KG_PER_KWH = 5.0
"""Above any power plant: the worst burn lignite or oil shale at some 1.5 kg/kWh."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GAPS_NAMED = 5
SPRING, AUTUMN = (3, 9, 10), (4, 10, 11)
"""Months in which clocks skip an hour, and in which they repeat one, north and south."""
CLOCKS_FORWARD = (
    " An hour is missing where clocks go forward: the file seems to be in local time with daylight saving. If so, give"
    " the times in UTC."
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
    # On a grid that divides both, so that 20-minute slots of 15-minute values are right too.
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
    """Return a message about the missing values in [begin, end), with what to do; `gaps` were not filled."""
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
        ways.append(f"use a period without gaps (the longest is {(high - low) / 60:g} h from {iso(moment(low))})")
    inside = [gap.minutes for gap in gaps if not gap.at_edge]
    if inside:
        needed = -(-max(inside) // 60)
        guess = ", a guess over that many hours" if needed > 6 else ""
        ways.append(f"set fill_hours={needed} (--fill {needed}) to interpolate{guess}")
    advice = ", or ".join(ways) or "use another zone or file"
    edge = " A gap at the edge of the data is never filled." if len(inside) < len(gaps) else ""
    return f"{text} To continue, {advice}.{edge}"


Factor = Literal["direct", "lifecycle", "marginal", "mixed"]
"""Only providers have marginal values. Mixed means zones with different factors, if that was asked for."""
FACTORS: tuple[Factor, ...] = ("direct", "lifecycle")
"""The factors of files and of the typical year."""
Certainty = Literal["actual", "estimated", "forecast", "synthetic"]
_DOUBT: tuple[Certainty, ...] = ("actual", "estimated", "forecast", "synthetic")
"""From certain to synthetic."""
_HOUR = timedelta(hours=1)
_MOST_HOURS = 1_000_000
INTERPOLATED = "interpolated"
"""Source of an interpolated hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run of consecutive hours comes from."""

    start: str
    """Start of the first hour, ISO 8601, UTC."""
    hours: int
    source: str
    kind: Certainty
    issued_at: str | None = None
    """When a forecast was issued, ISO 8601, UTC; None if unknown."""

    def __post_init__(self) -> None:
        if isinstance(self.hours, bool) or not isinstance(self.hours, int) or not 1 <= self.hours <= _MOST_HOURS:
            raise DataError(
                f"An origin has {self.hours!r:.40} hours, but 1 to {_MOST_HOURS:,} are possible: the data is damaged."
            )

    def starts(self) -> list[datetime]:
        """Return the start of every hour."""
        first = utc(self.start)
        return [first + i * _HOUR for i in range(self.hours)]

    def within(self, start: datetime, end: datetime) -> Origin | None:
        """Return the part that overlaps [start, end), or None."""
        kept = [hour for hour in self.starts() if start - _HOUR < hour < end]
        return replace(self, start=iso(kept[0]), hours=len(kept)) if kept else None


def origins_of(hours: Iterable[tuple[datetime, str, Certainty, datetime | None]]) -> tuple[Origin, ...]:
    """Join hours (start, source, kind, issued at), in order of time, to runs of the same origin."""
    found: list[Origin] = []
    end: datetime | None = None
    for start, source, kind, issued in hours:
        issued_at = None if issued is None else iso(issued)
        last = found[-1] if found else None
        if last and start == end and (last.source, last.kind, last.issued_at) == (source, kind, issued_at):
            found[-1] = replace(last, hours=last.hours + 1)
        else:
            found.append(Origin(start=iso(start), hours=1, source=source, kind=kind, issued_at=issued_at))
        end = start + _HOUR
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one zone's values come from; every output repeats it."""

    zone: str
    source: str
    """For people. Programs read `origins`, if there are any."""
    synthetic: bool = False
    filled_hours: tuple[str, ...] = ()
    """Starts of the hours that were missing and filled by interpolation."""
    origins: tuple[Origin, ...] = ()
    """Source, kind and time of issue of hours. An hour in none of them is actual, from `source`."""

    def hours(self, kind: Certainty) -> tuple[str, ...]:
        """Return the starts of the hours of a kind, ISO 8601."""
        return tuple(iso(hour) for one in self.origins if one.kind == kind for hour in one.starts())

    def within(self, start: datetime, end: datetime) -> Provenance:
        """Return the same with only the hours that overlap [start, end)."""
        origins = tuple(kept for one in self.origins if (kept := one.within(start, end)) is not None)
        return replace(self, filled_hours=_within(self.filled_hours, start, end), origins=origins)

    def origin(self, start: datetime, end: datetime) -> tuple[str, Certainty]:
        """Return source and kind of the values in [start, end), of the least certain of them."""
        if self.synthetic:
            return self.source, "synthetic"
        parts = [one for one in self.origins if one.within(start, end) is not None]
        kinds: list[Certainty] = ["estimated"] if _within(self.filled_hours, start, end) else []
        worst: Certainty = max([*kinds, *(one.kind for one in parts)], key=_DOUBT.index, default="actual")
        otherwise = INTERPOLATED if kinds and self.origins else self.source
        return next((one.source for one in parts if one.kind == worst), otherwise), worst

    def to_dict(self) -> dict[str, Any]:
        """Return the provenance as JSON holds it."""
        whole = {"zone": self.zone, "source": self.source, "synthetic": self.synthetic}
        origins = {"origins": [asdict(one) for one in self.origins]} if self.origins else {}
        return whole | {"filled_hours": list(self.filled_hours)} | origins

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """Return the provenance from `to_dict`'s dict; older files only list the hours of a kind."""
        older = [
            (utc(hour), data["source"], kind, None)
            for kind, name in (("estimated", "estimated_hours"), ("forecast", "forecast_hours"))
            for hour in data.get(name, ())
        ]
        return cls(
            zone=data["zone"],
            source=data["source"],
            synthetic=data.get("synthetic", False),
            filled_hours=tuple(data.get("filled_hours", ())),
            origins=origins_of(older) + tuple(Origin(**one) for one in data.get("origins", ())),  # type: ignore[arg-type]
        )


def _within(hours: tuple[str, ...], start: datetime, end: datetime) -> tuple[str, ...]:
    return tuple(text for text in hours if start - _HOUR < utc(text) < end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces(Viewed):
    """Hold the intensity of zones over consecutive slots; a request outside of them is an error."""

    zones: tuple[str, ...]
    start: datetime
    """Start of the first slot, aware UTC."""
    intensity: NDArray[np.float64]
    """[zone, slot], kg CO2e/kWh, the mean over the slot; finite and never negative."""
    factor: Factor
    slot_minutes: int = 60
    provenance: tuple[Provenance, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", utc(self.start, "start"))
        try:
            object.__setattr__(self, "intensity", np.asarray(self.intensity, dtype=np.float64))
        except (TypeError, ValueError):
            raise DataError(
                "Intensity must be numbers, with one row for each zone and one column for each slot."
            ) from None
        if self.intensity.ndim != 2 or self.intensity.shape[0] != len(self.zones):
            raise DataError(
                f"{len(self.zones)} zones are named but the intensity has the shape {self.intensity.shape}; give one "
                "row for each zone."
            )
        if not np.all(np.isfinite(self.intensity)) or np.any(self.intensity < 0):
            raise DataError("Intensity must be finite and not negative.")
        if self.intensity.size and self.start != EPOCH and self.intensity.max() > HIGHEST_KG_PER_KWH:
            # Costs without times are stored as intensity from 1970 on; they may be any number.
            row = int(np.argmax(self.intensity.max(axis=1)))
            top = float(self.intensity.max())
            raise DataError(
                f"Zone {self.zones[row]}: an intensity of {top:g} kg/kWh is above any grid (at most {HIGHEST_KG_PER_KWH:g}). It "
                "looks like g/kWh: divide by 1000."
            )

    def __repr__(self) -> str:
        """Show zones, time and factor on one line."""
        named = ", ".join(self.zones[:3]) + (", .." if len(self.zones) > 3 else "")
        return (
            f"Traces({len(self.zones)} zones ({named}), {self.slots} slots of {self.slot_minutes} min from {iso(self.start)}, "
            f"{self.factor}{', synthetic' if self.synthetic else ''})"
        )

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return int(self.intensity.shape[1])

    @property
    def end(self) -> datetime:
        """Return the end of the last slot."""
        return self.start + timedelta(minutes=self.slot_minutes * self.slots)

    @property
    def synthetic(self) -> bool:
        """Return whether any zone is synthetic; every output says so."""
        return any(p.synthetic for p in self.provenance)

    def forecast_zones(self) -> list[str]:
        """Return the zones of which some hours are forecast."""
        return [p.zone for p in self.provenance if any(one.kind == "forecast" for one in p.origins)]

    def index(self, zone: str) -> int:
        """Return the row of a zone."""
        try:
            return self.zones.index(zone)
        except ValueError:
            raise ScenarioError(f"There is no trace for zone {zone!r}. Loaded: {', '.join(self.zones)}.") from None

    def slot_starts(self) -> list[datetime]:
        """Return the start of every slot."""
        step = timedelta(minutes=self.slot_minutes)
        return [self.start + i * step for i in range(self.slots)]

    def window(self, start: str | datetime, slots: int) -> Traces:
        """Return the part from `start` over `slots` slots."""
        if slots < 1:
            raise ScenarioError(f"slots is {slots}; ask for one or more.")
        begin = utc(start, "start")
        offset, rest = divmod(begin - self.start, timedelta(minutes=self.slot_minutes))
        if rest:
            raise ScenarioError(f"start {iso(begin)} is not the start of a {self.slot_minutes}-minute slot.")
        last = begin + timedelta(minutes=self.slot_minutes * slots)
        if offset < 0 or offset + slots > self.slots:
            raise DataError(
                f"The traces cover {iso(self.start)} to {iso(self.end)}; {iso(begin)} to {iso(last)} is outside of it."
            )
        provenance = tuple(p.within(begin, last) for p in self.provenance)
        return replace(self, start=begin, intensity=self.intensity[:, offset : offset + slots], provenance=provenance)


def joined(first: Traces, then: Traces) -> Traces:
    """Return two traces of the same zones as one; the second starts where the first ends."""
    if (first.zones, first.factor, first.slot_minutes, first.end) != (
        then.zones, then.factor, then.slot_minutes, then.start,
    ):  # fmt: skip
        raise DataError("Only traces of the same zones, factor and slots that follow each other can be joined.")
    provenance = tuple(
        Provenance(
            zone=one.zone,
            source=f"{one.source}; then {other.source}",
            synthetic=one.synthetic or other.synthetic,
            filled_hours=one.filled_hours + other.filled_hours,
            origins=one.origins + other.origins,
        )
        for one, other in zip(first.provenance, then.provenance, strict=True)
    )
    return replace(first, intensity=np.concatenate([first.intensity, then.intensity], axis=1), provenance=provenance)
