"""What other processes do to the cache, in a module of its own so that they can import it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slackwater.intensity.providers.cache import Cache, Place, Request
from slackwater.intensity.providers.readings import Reading

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def place(zone: str) -> Place:
    return Place(source="neso", zone=zone, factor="direct", asked="actual")


def readings(zone: str, hours: int, kg: float) -> Iterator[Reading]:
    for i in range(hours):
        start = START + i * HOUR
        yield Reading(
            zone=zone,
            start=start,
            end=start + HOUR,
            kg_per_kwh=kg,
            kind="actual",
            factor="direct",
            source="neso",
            fetched_at=START,
        )


def write_and_read(path: Path, worker: int, rounds: int) -> None:
    """Every worker writes a zone of its own and one that all share; a reader never sees half of a write."""
    cache = Cache(path)
    for i in range(rounds):
        cache.store(place(f"Z{worker}"), readings(f"Z{worker}", 48, worker + i / 100))
        cache.store(place("ALL"), readings("ALL", 48, float(worker)))
        seen = cache.find(place("ALL"), START, START + 48 * HOUR)
        assert len(seen) == 48
        assert len({reading.kg_per_kwh for reading in seen}) == 1, "two writers are mixed"


def write_until_killed(path: Path, signal: Path) -> None:
    """Say when half of the write is done, then hang."""

    def half() -> Iterator[Reading]:
        for i, reading in enumerate(readings("KILLED", 2000, 1.0)):
            if i == 1000:
                signal.touch()
                time.sleep(60)
            yield reading

    request = Request(start=START, end=START + 2000 * HOUR, answered_at=START)
    Cache(path).store(place("KILLED"), half(), request)


def write_for_ever(path: Path, signal: Path) -> None:
    """One write after the other, each of one value in all hours, large enough to be on its way to the disk at any time."""
    cache, value = Cache(path), 0
    while True:
        value += 1
        cache.store(place("KILLED"), readings("KILLED", 400, float(value)))
        signal.touch()
