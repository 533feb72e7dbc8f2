"""The door for a provider's values: every oddity is recognised here, counted, and said in one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from slackwater.carbon.checks import HIGHEST_G_PER_KWH
from slackwater.carbon.series import minute_of
from slackwater.carbon.traces import Factor
from slackwater.providers.errors import BadAnswerError
from slackwater.providers.values import Asked, Kind, Reading
from slackwater.units import iso, kg_per_kwh

STEPS = (5, 10, 15, 20, 30, 60)
_EARLY = timedelta(minutes=5)
"""An actual value may start so much after our clock: clocks differ, and its first minutes are measured already."""
_ODDITIES = {
    "null": "null",
    "text": "no numbers",
    "minus one": "-1, which stands for a missing value",
    "negative": "negative",
    "absurd": f"above {HIGHEST_G_PER_KWH:g} g/kWh",
    "future": "actual values of the future, so they are none",
    "forecast": "forecasts, which are never booked as actual",
    "off": "off the full steps of UTC",
}


class Intake:
    """Takes the values of one zone for one request and keeps those that can be used."""

    def __init__(
        self,
        *,
        source: str,
        zone: str,
        start: datetime,
        end: datetime,
        kind: Asked,
        factor: Factor,
        fetched_at: datetime,
        now: Callable[[], datetime],
    ) -> None:
        self.source, self.zone, self.start, self.end, self.kind = source, zone, start, end, kind
        self.factor: Factor = factor
        self.fetched_at = fetched_at
        self._now = now
        self._readings: dict[datetime, Reading] = {}
        self._odd: Counter[str] = Counter()
        self._seen = 0
        self._notes: list[str] = []

    def add(
        self,
        start: datetime | str | float,
        minutes: int,
        g_per_kwh: object,
        *,
        kind: Kind | None = None,
        issued_at: datetime | str | None = None,
    ) -> None:
        """One value over [start, start + minutes); `start` is a time, ISO 8601 text or seconds since 1970."""
        if minutes not in STEPS:
            raise BadAnswerError(f"{self.source} gives values of {minutes} minutes; known are {STEPS}.")
        begin = self.time(start)
        if not self.start <= begin < self.end:
            return  # providers round a range to their own blocks
        self._seen += 1
        kind = kind or self.kind
        odd = self._oddity(begin, minutes, g_per_kwh, kind)
        if odd:
            self._odd[odd] += 1
            return
        self._readings[begin] = Reading(
            zone=self.zone,
            start=begin,
            end=begin + timedelta(minutes=minutes),
            kg_per_kwh=kg_per_kwh(float(g_per_kwh)),  # type: ignore[arg-type]  # a number, or it were odd
            kind=kind,
            factor=self.factor,
            source=self.source,
            fetched_at=self.fetched_at,
            issued_at=None if issued_at is None else self.time(issued_at),
        )

    def time(self, value: datetime | str | float) -> datetime:
        """A time of the answer, aware UTC."""
        try:
            if isinstance(value, datetime):
                when = value
            elif isinstance(value, str):
                when = datetime.fromisoformat(value)
            else:
                when = datetime.fromtimestamp(value, tz=UTC)
        except (TypeError, ValueError, OverflowError, OSError):
            raise BadAnswerError(
                f"{self.source} gives {str(value)[:40]!r} for {self.zone} where a time belongs."
            ) from None
        if when.tzinfo is None:
            raise BadAnswerError(f"{self.source} gives the time {value!s:.40} for {self.zone} without a zone.")
        return when.astimezone(UTC)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self._notes.append(f"{self.source}, {self.zone}: {text}")

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What can be used, in order of time."""
        return tuple(self._readings[start] for start in sorted(self._readings))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd."""
        told = list(self._notes)
        for oddity, text in _ODDITIES.items():
            if count := self._odd[oddity]:
                told.append(f"{self.source}, {self.zone}: {count:,} of {self._seen:,} values are {text}; left out.")
        estimated = [reading for reading in self._readings.values() if reading.kind == "estimated"]
        if estimated:
            first = iso(min(reading.start for reading in estimated))
            told.append(
                f"{self.source}, {self.zone}: {len(estimated):,} of {self._seen:,} values are estimated, not measured "
                f"(the first at {first}); kept, and marked so."
            )
        return tuple(told)

    def _oddity(self, begin: datetime, minutes: int, value: object, kind: Kind) -> str | None:
        if value is None:
            return "null"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return "text"
        if value < 0:
            return "minus one" if value == -1 else "negative"
        if value > HIGHEST_G_PER_KWH:
            return "absurd"
        if begin.second or begin.microsecond or minute_of(begin) % minutes:
            return "off"
        if self.kind == "actual":
            if kind == "forecast":
                return "forecast"
            if begin > self._now() + _EARLY:
                return "future"
        return None
