"""A provider behind the cache: fetch only what is unknown or may have changed, and serve old values if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from slackwater.providers.base import Provider, checked_range
from slackwater.providers.cache import Cache, CacheError, Place, Request, issue_of
from slackwater.providers.errors import NoValuesError
from slackwater.providers.values import UNPUBLISHED, Answer, Asked, Reading, merged, missing_hours
from slackwater.units import ceil_hour, floor_hour, iso

FRESH = timedelta(minutes=30)
"""A forecast, or an actual value that may still be revised, is asked for again after so long."""
SETTLED = timedelta(days=3)
"""Actual values that were fetched so long after their hour do not change any more."""
SETTLED_ESTIMATE = timedelta(days=14)
"""Estimates are replaced by measurements for longer."""
_AHEAD = timedelta(minutes=5)


class Cached:
    """Fetch from a provider through the cache."""

    def __init__(self, provider: Provider, cache: Cache) -> None:
        self.provider, self.cache = provider, cache

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Return readings from the cache and, for what it lacks, from the provider."""
        begin, stop = checked_range(zones, start, end, kind)
        return merged(self._zone(zone, begin, stop, kind) for zone in zones)

    def _zone(self, zone: str, start: datetime, end: datetime, kind: Asked) -> Answer:
        place = Place(source=self.provider.source, zone=zone, factor=self.provider.factor, asked=kind)
        try:
            known = self.cache.find(place, start, end)
            last = self.cache.last_request(place)
        except CacheError as trouble:  # the provider can still be asked
            answer = self.provider.fetch([zone], start, end, kind)
            return replace(answer, notes=(str(trouble), *answer.notes))
        now = self.provider.client.now()
        wanted = self._wanted([reading for reading in known if is_fresh(reading, now)], start, end, kind, now)
        if not wanted or _just_asked(last, wanted, now):
            return Answer(readings=tuple(known))
        answer = self.provider.fetch([zone], wanted[0], wanted[1], kind)
        notes = [*answer.notes, *self._keep(place, answer, wanted, now)]
        error = answer.failures.get(zone)
        if isinstance(error, NoValuesError) and kind == "actual" and known and known[-1].end > now - UNPUBLISHED:
            error = None  # the hours since the last value are not published yet
        fetched = {reading.start: reading for reading in answer.readings}
        begin, stop = wanted
        old = [
            replace(reading, stale=True) if error and not is_fresh(reading, now) else reading
            for reading in known
            if reading.end <= begin or reading.start >= stop or not _overlapped(reading, fetched)
        ]
        readings = tuple(sorted((*old, *answer.readings), key=lambda reading: reading.start))
        stale = [reading for reading in old if reading.stale]
        if stale and error:
            first, latest = stale[0], max(reading.fetched_at for reading in stale)
            hours = sum(reading.minutes for reading in stale) / 60
            notes.append(
                f"{self.provider.source}, {zone}: {hours:g} h from {iso(first.start)} are old values from the cache, "
                f"fetched {iso(latest)} or before, because: {error}"
            )
        return Answer(readings=readings, notes=tuple(notes), failures={zone: error} if error else {})

    def _keep(self, place: Place, answer: Answer, wanted: tuple[datetime, datetime], now: datetime) -> list[str]:
        error = answer.failures.get(place.zone)
        request = Request(start=wanted[0], end=wanted[1], answered_at=now) if error is None else None
        try:
            self.cache.store(place, answer.readings, request)
            if (issue := issue_of(answer.readings)) is not None:
                self.cache.keep_issue(place, issue)
        except CacheError as trouble:
            return [f"What was fetched is not kept: {trouble}"]
        return []

    def _wanted(
        self, fresh: list[Reading], start: datetime, end: datetime, kind: Asked, now: datetime
    ) -> tuple[datetime, datetime] | None:
        """Return one range around all that is to be fetched: one request is better than several short ones."""
        if kind == "actual":
            end = min(end, ceil_hour(now))
        else:
            start = max(start, floor_hour(now))
        missing = missing_hours(fresh, start, end) if start < end else []
        return (missing[0], missing[-1] + timedelta(hours=1)) if missing else None


def is_fresh(reading: Reading, now: datetime) -> bool:
    """Return whether a value need not be fetched again."""
    if reading.fetched_at > now + _AHEAD:
        return False  # a clock was wrong when it was fetched
    settled = {"actual": SETTLED, "estimated": SETTLED_ESTIMATE}.get(reading.kind)
    if settled is not None and reading.fetched_at >= reading.end + settled:
        return True
    return now - reading.fetched_at < FRESH


def _overlapped(reading: Reading, fetched: dict[datetime, Reading]) -> bool:
    if reading.start in fetched:
        return True
    hour = floor_hour(reading.start)
    return any(
        other.start < reading.end and reading.start < other.end
        for i in range(12)
        if (other := fetched.get(hour + timedelta(minutes=5 * i))) is not None
    )


def _just_asked(last: Request | None, wanted: tuple[datetime, datetime], now: datetime) -> bool:
    """Return whether the provider was asked for this a moment ago and had no more."""
    recent = last is not None and timedelta(0) <= now - last.answered_at < FRESH
    return last is not None and recent and last.start <= wanted[0] and wanted[1] <= last.end
