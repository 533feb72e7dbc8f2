"""Readings of providers, with source, kind, factor and time of fetching, and checks of the values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from slackwater.errors import DataError
from slackwater.intensity.files import HIGHEST_G_PER_KWH
from slackwater.intensity.providers.provider_errors import BadAnswerError, ProviderError
from slackwater.intensity.traces import Factor, minute_of
from slackwater.units import floor_hour, iso, kg_per_kwh

Asked = Literal["actual", "forecast"]
ASKED: tuple[Asked, ...] = ("actual", "forecast")
Kind = Literal["actual", "forecast", "estimated"]
"""The kind of a value. A request for actual values may also return estimated ones, but never forecasts."""
KINDS: tuple[Kind, ...] = ("actual", "estimated", "forecast")
HOUR = timedelta(hours=1)
UNPUBLISHED = timedelta(hours=12)
"""A normal delay of actual values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The mean intensity of a zone over one step."""

    zone: str
    start: datetime
    """Aware UTC, a multiple of the step."""
    end: datetime
    kg_per_kwh: float
    kind: Kind
    factor: Factor
    source: str
    fetched_at: datetime
    issued_at: datetime | None = None
    """When a forecast was made, if the provider says so."""
    stale: bool = False
    """Whether it is an outdated value from the cache, because the provider did not answer."""

    @property
    def minutes(self) -> int:
        """Return the length of the step."""
        return (self.end - self.start) // timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold readings, notes about them, and failures. A zone may have readings and still have failed half-way."""

    readings: tuple[Reading, ...] = ()
    """By zone as asked, then by time."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""
    failures: Mapping[str, ProviderError] = field(default_factory=dict)
    """By zone."""

    def of(self, zone: str) -> list[Reading]:
        """Return the readings of one zone, in order."""
        return [reading for reading in self.readings if reading.zone == zone]

    def expect(self) -> Answer:
        """Return the answer itself; raise an error if a zone failed."""
        if len(self.failures) == 1:
            raise next(iter(self.failures.values()))
        if self.failures:
            raise DataError("\n".join(dict.fromkeys(str(error) for error in self.failures.values())))
        return self


def merged(answers: Iterable[Answer]) -> Answer:
    """Return several answers as one."""
    listed = list(answers)
    return Answer(
        readings=tuple(reading for answer in listed for reading in answer.readings),
        notes=tuple(dict.fromkeys(note for answer in listed for note in answer.notes)),
        failures={zone: error for answer in listed for zone, error in answer.failures.items()},
    )


def missing_hours(readings: Iterable[Reading], start: datetime, end: datetime) -> list[datetime]:
    """Return the starts of the hours of [start, end) that are not fully covered; both must be full hours."""
    covered: dict[datetime, int] = {}
    for reading in readings:
        hour = floor_hour(reading.start)
        covered[hour] = covered.get(hour, 0) + reading.minutes
    hours = (start + i * HOUR for i in range((end - start) // HOUR))
    return [hour for hour in hours if covered.get(hour, 0) < 60]


def spans(hours: Sequence[datetime], join: timedelta = timedelta(0)) -> list[tuple[datetime, datetime]]:
    """Sorted hours as [start, end) ranges; ranges not more than `join` apart become one."""
    found: list[tuple[datetime, datetime]] = []
    for hour in hours:
        if found and hour - found[-1][1] <= join:
            found[-1] = (found[-1][0], hour + HOUR)
        else:
            found.append((hour, hour + HOUR))
    return found


STEPS = (5, 10, 15, 20, 30, 60)
_EARLY = timedelta(minutes=5)
"""How far in the future an actual value may start: clocks differ, and its first minutes are measured already."""
_OLDEST_ISSUE, _LATEST_ISSUE = timedelta(days=30), timedelta(days=1)
"""Oldest plausible time of issue, and latest after now. A time outside of this counts as unknown."""
_ODDITIES = {
    "null": "null",
    "text": "not numbers",
    "minus one": "-1, which means missing",
    "negative": "negative",
    "absurd": f"above {HIGHEST_G_PER_KWH:g} g/kWh",
    "future": "actual values of the future",
    "forecast": "forecasts, which are never charged as actual",
    "off": "not at full steps of UTC",
}


class Intake:
    """Take the values of one zone for one request, and keep those that can be used."""

    def __init__(
        self, *, source: str, zone: str, start: datetime, end: datetime, kind: Asked, factor: Factor,
        fetched_at: datetime, now: Callable[[], datetime], quoted: Callable[[object], str] = repr,
    ) -> None:  # fmt: skip
        """Take values from `start` to `end`; `quoted` shows a value of the answer without any key in it."""
        self.source, self.zone, self.start, self.end, self.kind = source, zone, start, end, kind
        self.factor: Factor = factor
        self.fetched_at = fetched_at
        self._now, self._quoted = now, quoted
        self._readings: dict[datetime, Reading] = {}
        self._odd, self._seen = Counter[str](), 0
        self._nulls, self._notes = list[datetime](), list[str]()

    def add(
        self, start: datetime | str | float, minutes: int, g_per_kwh: object, *, kind: Kind | None = None,
        issued_at: datetime | str | None = None,
    ) -> None:  # fmt: skip
        """Add one value over [start, start + minutes); `start` is a time, ISO 8601 text or seconds since 1970."""
        if minutes not in STEPS:
            raise BadAnswerError(f"{self.source} returned values of {self._quoted(minutes)} minutes; known: {STEPS}.")
        begin = self.time(start)
        if not self.start <= begin < self.end:
            return  # providers round a range to their own blocks
        self._seen += 1
        kind = kind or self.kind
        odd = self._oddity(begin, minutes, g_per_kwh, kind)
        if odd == "null":
            self._nulls.append(begin)
            return
        if odd:
            self._odd[odd] += 1
            return
        issued = None if issued_at is None else self.time(issued_at)
        if issued is not None and not -_OLDEST_ISSUE < issued - self.fetched_at < _LATEST_ISSUE:
            issued = None  # the provider's time is impossible
        self._readings[begin] = Reading(
            zone=self.zone,
            start=begin,
            end=begin + timedelta(minutes=minutes),
            kg_per_kwh=kg_per_kwh(float(g_per_kwh)),  # type: ignore[arg-type]  # a number, by `_oddity`
            kind=kind,
            factor=self.factor,
            source=self.source,
            fetched_at=self.fetched_at,
            issued_at=issued,
        )

    def time(self, value: datetime | str | float) -> datetime:
        """Return a time of the answer, aware UTC."""
        try:
            if isinstance(value, datetime):
                when = value
            elif isinstance(value, str):
                when = datetime.fromisoformat(value)
            else:
                when = datetime.fromtimestamp(value, tz=UTC)
            if when.tzinfo is not None:
                return when.astimezone(UTC)
        except (TypeError, ValueError, OverflowError, OSError):
            raise BadAnswerError(
                f"{self.source} returned {self._quoted(value)} for {self.zone} instead of a time."
            ) from None
        raise BadAnswerError(
            f"{self.source} returned the time {self._quoted(value)} for {self.zone} without a time zone."
        )

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self._notes.append(f"{self.source}, {self.zone}: {text}")

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Return the usable values, in order of time."""
        return tuple(self._readings[start] for start in sorted(self._readings))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes, with a sentence about every oddity."""
        told = list(self._notes)
        # Nulls after the last value are normal: not published yet, or beyond the forecast's horizon.
        last = max(self._readings, default=self._now() - UNPUBLISHED if self.kind == "actual" else self.end)
        odd = self._odd + Counter({"null": sum(begin < last for begin in self._nulls)})
        for oddity, text in _ODDITIES.items():
            if count := odd[oddity]:
                told.append(f"{self.source}, {self.zone}: {count:,} of {self._seen:,} values are {text}; ignored.")
        estimated = [reading for reading in self._readings.values() if reading.kind == "estimated"]
        if estimated:
            first = iso(min(reading.start for reading in estimated))
            told.append(
                f"{self.source}, {self.zone}: {len(estimated):,} of {self._seen:,} values are estimated, not measured "
                f"(the first at {first}); they are used, and marked as estimated."
            )
        return tuple(told)

    def _oddity(self, begin: datetime, minutes: int, value: object, kind: Kind) -> str | None:
        if value is None:
            return "null"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "text"
        if value < 0:
            return "minus one" if value == -1 else "negative"
        if value > HIGHEST_G_PER_KWH:  # an integer may be too large to become a float
            return "absurd" if value != math.inf else "text"
        if math.isnan(value):
            return "text"
        if begin.second or begin.microsecond or minute_of(begin) % minutes:
            return "off"
        if self.kind == "actual":
            if kind == "forecast":
                return "forecast"
            if begin > self._now() + _EARLY:
                return "future"
        return None
