"""The answers of providers: readings with their source, kind, factor and time of fetching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from slackwater.carbon.traces import Factor
from slackwater.errors import DataError
from slackwater.providers.errors import ProviderError
from slackwater.units import floor_hour

Asked = Literal["actual", "forecast"]
ASKED: tuple[Asked, ...] = ("actual", "forecast")
Kind = Literal["actual", "forecast", "estimated"]
"""What a value is; who asks for actual values may also get estimated ones, but never a forecast."""
KINDS: tuple[Kind, ...] = ("actual", "estimated", "forecast")
HOUR = timedelta(hours=1)
UNPUBLISHED = timedelta(hours=12)
"""A provider may publish actual values so late without being in trouble."""


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
    """When a forecast was made, where the provider says so."""
    stale: bool = False
    """Served from the cache past its time, because the provider could not be asked."""

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
