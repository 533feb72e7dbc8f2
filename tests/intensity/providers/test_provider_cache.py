"""The cache: with ten processes at once, after a kill in the middle of a write, and when a provider is down."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cache_workers import HOUR, START, place, readings, write_and_read, write_for_ever, write_until_killed
from cases import CASES, Case, make_context
from fakes import NOW, EnergyChartsFake, NesoFake
from loopback import Reply, running

from slackwater.intensity.providers.cache import Cache, CacheError, coverage
from slackwater.intensity.providers.chain import Cached, is_fresh, make_provider
from slackwater.intensity.providers.readings import Reading

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "folder" / "intensity.sqlite")


def test_ten_processes_at_once(cache: Cache) -> None:
    """They also make the file together: none is there when they start."""
    workers = [SPAWN.Process(target=write_and_read, args=(cache.path, worker, 5)) for worker in range(10)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert [worker.exitcode for worker in workers] == [0] * 10
    for i in range(10):
        kept = cache.find(place(f"Z{i}"), START, START + 48 * HOUR)
        assert {reading.kg_per_kwh for reading in kept} == {i + 0.04}
        assert len(kept) == 48
    with sqlite3.connect(cache.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_kill_in_the_middle_of_a_write(cache: Cache, tmp_path: Path) -> None:
    cache.store(place("KILLED"), readings("KILLED", 10, 5.0))
    mark = tmp_path / "half"
    worker = SPAWN.Process(target=write_until_killed, args=(cache.path, mark))
    worker.start()
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    kept = cache.find(place("KILLED"), START, START + 2000 * HOUR)
    assert [reading.kg_per_kwh for reading in kept] == [5.0] * 10, "all of a write or nothing"
    assert cache.last_request(place("KILLED")) is None
    cache.store(place("KILLED"), readings("KILLED", 20, 6.0))  # and nobody holds a lock
    assert len(cache.find(place("KILLED"), START, START + 2000 * HOUR)) == 20


@pytest.mark.parametrize("after_s", [0.0, 0.013, 0.057, 0.131])
def test_a_kill_at_any_moment_of_many_writes(cache: Cache, tmp_path: Path, after_s: float) -> None:
    mark = tmp_path / "first"
    worker = SPAWN.Process(target=write_for_ever, args=(cache.path, mark))
    worker.start()
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(after_s)
    worker.kill()
    worker.join()
    kept = cache.find(place("KILLED"), START, START + 400 * HOUR)
    assert len(kept) == 400
    assert len({reading.kg_per_kwh for reading in kept}) == 1, "half of a write was kept"
    connection = sqlite3.connect(cache.path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_what_overlaps_is_replaced(cache: Cache) -> None:
    cache.store(place("GB"), readings("GB", 3, 1.0))
    quarter = timedelta(minutes=15)
    first = next(readings("GB", 1, 2.0))
    fine = [replace(first, start=START + i * quarter, end=START + (i + 1) * quarter) for i in range(4)]
    cache.store(place("GB"), fine)
    assert [reading.minutes for reading in cache.find(place("GB"), START, START + 3 * HOUR)] == [15] * 4 + [60] * 2
    cache.store(place("GB"), readings("GB", 1, 3.0))
    assert [reading.kg_per_kwh for reading in cache.find(place("GB"), START, START + 3 * HOUR)] == [3.0, 1.0, 1.0]
    odd = replace(first, start=START + timedelta(minutes=7), end=START + timedelta(minutes=67))
    with pytest.raises(CacheError, match="not start at a full step"):
        cache.store(place("GB"), [odd])


def test_clear(cache: Cache) -> None:
    assert cache.clear() == 0
    for zone in ("GB", "FR"):
        cache.store(place(zone), readings(zone, 10, 1.0))
    assert cache.clear(zone="FR", before=START + 4 * HOUR) == 4
    assert cache.clear(before=START + 4 * HOUR) == 4
    assert cache.clear(zone="GB") == 6
    assert [reading.zone for reading in cache.everything()] == ["FR"] * 6
    assert cache.clear() == 6
    assert cache.everything() == []


def test_a_damaged_file_is_said_and_can_be_cleared(cache: Cache) -> None:
    cache.path.parent.mkdir()
    cache.path.write_bytes(b"this is not a database, and never was" * 100)
    with pytest.raises(CacheError, match="slackwater data clear"):
        cache.everything()
    with pytest.raises(CacheError):
        cache.clear(zone="GB")
    assert cache.clear() == 0
    assert not cache.path.exists()
    cache.store(place("GB"), readings("GB", 2, 1.0))


def test_a_file_of_a_newer_version(cache: Cache) -> None:
    cache.store(place("GB"), [])
    connection = sqlite3.connect(cache.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(CacheError, match="newer version"):
        cache.everything()


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", "/somewhere")
    assert Cache().path == Path("/somewhere/intensity.sqlite")
    monkeypatch.delenv("SLACKWATER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert Cache().path == Path("/xdg/slackwater/intensity.sqlite")


def test_a_folder_that_cannot_be_made_does_not_stop_a_fetch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with running(NesoFake(), NOW) as server:
        provider = make_provider("neso", make_context({"neso": server.address}, factor="direct"))
        cached = Cached(provider, Cache(tmp_path / "file" / "intensity.sqlite"))
        answer = cached.fetch(["GB"], NOW - 5 * HOUR, NOW - 2 * HOUR, "actual").expect()
    assert answer.readings
    assert "SLACKWATER_CACHE" in answer.notes[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
def test_an_old_value_is_served_when_the_provider_is_down_and_that_is_said(case: Case, cache: Cache) -> None:
    clock = {"now": NOW}
    with running(case.fake(), NOW) as server:
        context = make_context({case.name: server.address}, factor=case.factor)
        context.client.now = lambda: clock["now"]
        cached = Cached(make_provider(case.spec, context), cache)
        start, end = NOW - 30 * HOUR, NOW - 20 * HOUR
        first = cached.fetch([case.zone], start, end, "actual").expect()
        asked = len(server.asked)
        again = cached.fetch([case.zone], start, end, "actual").expect()
        assert len(server.asked) == asked, "what is fresh is not asked for again"
        assert [r.kg_per_kwh for r in again.readings] == [r.kg_per_kwh for r in first.readings]
        clock["now"] = server.clock = NOW + 2 * HOUR
        server.always = Reply(status=503)
        old = cached.fetch([case.zone], start, end, "actual")
        assert all(reading.stale for reading in old.readings)
        assert [r.kg_per_kwh for r in old.readings] == [r.kg_per_kwh for r in first.readings]
        assert any("are old values from the cache, fetched by 2026-11-10T12:20Z" in note for note in old.notes)
        assert case.zone in old.failures
        server.always, clock["now"] = None, NOW + 4 * HOUR
        server.clock = clock["now"]
        new = cached.fetch([case.zone], start, end, "actual").expect()
        assert not any(reading.stale for reading in new.readings)
        assert {reading.fetched_at for reading in new.readings} == {clock["now"]}


def test_only_what_is_missing_is_asked_for(cache: Cache) -> None:
    with running(EnergyChartsFake(), NOW) as server:
        cached = Cached(make_provider("energycharts", make_context({"energycharts": server.address})), cache)
        day = NOW.replace(hour=0, minute=0) - timedelta(days=10)
        cached.fetch(["DE"], day, day + 6 * HOUR, "actual").expect()
        cached.fetch(["DE"], day, day + 12 * HOUR, "actual").expect()
        assert server.asked[1].query["start"] == f"{day + 6 * HOUR:%Y-%m-%dT%H:%MZ}"
        cached.fetch(["DE"], day + 2 * HOUR, day + 11 * HOUR, "actual").expect()
        assert len(server.asked) == 2


def test_what_the_provider_does_not_have_is_not_asked_for_again_at_once(cache: Cache) -> None:
    with running(NesoFake(), NOW) as server:
        cached = Cached(make_provider("neso", make_context({"neso": server.address}, factor="direct")), cache)
        for _ in range(3):
            cached.fetch(["GB"], NOW, NOW + 100 * HOUR, "forecast").expect()
    assert len(server.asked) == 1


@pytest.mark.parametrize(("late", "told"), [(timedelta(hours=11), False), (timedelta(hours=13), True)])
def test_hours_that_are_not_published_yet_are_no_trouble(late: timedelta, told: bool, cache: Cache) -> None:
    end = NOW.replace(minute=0)
    with running(NesoFake(lambda when: 100.0 if when < end - late else None), NOW) as server:
        cached = Cached(make_provider("neso", make_context({"neso": server.address}, factor="direct")), cache)
        first = cached.fetch(["GB"], end - timedelta(days=2), end - late, "actual").expect()
        more = cached.fetch(["GB"], end - timedelta(days=2), end, "actual")
    assert len(server.asked) == 2
    assert first.notes == ()
    assert more.readings == first.readings
    assert bool(more.failures) == told


def test_a_forecast_never_takes_the_place_of_what_was(cache: Cache) -> None:
    with running(NesoFake(), NOW) as server:
        cached = Cached(make_provider("neso", make_context({"neso": server.address}, factor="direct")), cache)
        cached.fetch(["GB"], NOW, NOW + 6 * HOUR, "forecast").expect()
        assert not cached.fetch(["GB"], NOW + 2 * HOUR, NOW + 6 * HOUR, "actual").readings


def made(kind: str, ended: timedelta, fetched: timedelta) -> Reading:
    reading = next(readings("GB", 1, 1.0))
    end = NOW - ended
    return replace(reading, kind=kind, start=end - HOUR, end=end, fetched_at=NOW - fetched)  # type: ignore[arg-type]


def test_how_long_a_value_is_fresh() -> None:
    day, minute = timedelta(days=1), timedelta(minutes=1)
    assert is_fresh(made("actual", 10 * day, 6 * day), NOW), "settled when it was fetched"
    assert not is_fresh(made("actual", 10 * day, 9 * day), NOW), "may have been revised"
    assert not is_fresh(made("estimated", 10 * day, 6 * day), NOW), "may have been measured since"
    assert is_fresh(made("estimated", 30 * day, 10 * day), NOW)
    assert is_fresh(made("actual", HOUR, 20 * minute), NOW)
    assert not is_fresh(made("actual", HOUR, 40 * minute), NOW)
    assert is_fresh(made("forecast", -HOUR, 20 * minute), NOW)
    assert not is_fresh(made("forecast", -HOUR, 40 * minute), NOW)
    assert not is_fresh(made("forecast", -HOUR, -day), NOW), "fetched in the future: a clock was wrong"


def test_coverage(cache: Cache) -> None:
    listed = list(readings("GB", 6, 0.2))
    cache.store(place("GB"), [*listed[:2], replace(listed[3], kind="estimated"), *listed[4:]])
    actual, estimated = coverage(cache.everything())
    assert [(run.start, run.end) for run in actual.runs] == [
        (START, START + 2 * HOUR),
        (START + 4 * HOUR, START + 6 * HOUR),
    ]
    assert (actual.hours, estimated.hours, actual.mean_kg_per_kwh) == (4, 1, pytest.approx(0.2))
    assert isinstance(actual.fetched_at, datetime)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE reading SET kg_per_kwh = 'much'",
        "UPDATE reading SET kg_per_kwh = -3.0",
        "UPDATE reading SET kg_per_kwh = 9e999",
        "UPDATE reading SET minutes = 0",
        "UPDATE reading SET minutes = 'x'",
        "UPDATE reading SET kind = 'guess'",
        "UPDATE reading SET fetched_at = 9223372036854775807",
        "UPDATE reading SET issued_at = 'never'",
        "UPDATE request SET answered_at = 'never'",
        "UPDATE request SET stop = 9223372036854775807",
    ],
)
def test_a_damaged_row_is_a_sentence_and_does_not_stop_a_fetch(cache: Cache, damage: str) -> None:
    with running(NesoFake(), NOW) as server:
        cached = Cached(make_provider("neso", make_context({"neso": server.address}, factor="direct")), cache)
        cached.fetch(["GB"], NOW - 5 * HOUR, NOW - 2 * HOUR, "actual").expect()
        with sqlite3.connect(cache.path) as connection:
            connection.execute(damage)
        connection.close()
        answer = cached.fetch(["GB"], NOW - 5 * HOUR, NOW - 2 * HOUR, "actual").expect()
    assert len(answer.readings) == 8
    assert "is damaged" in answer.notes[0]
    assert answer.notes[0].endswith("Remove it with: slackwater data clear")
    cache.clear()
    assert cache.everything() == []


@pytest.mark.parametrize(
    "column", ["kg_per_kwh = x'0102'", "kg_per_kwh = x'000080bf'", "kg_per_kwh = 'x'", "start = 9e99"]
)
def test_a_damaged_forecast_is_a_sentence(cache: Cache, column: str) -> None:
    with running(NesoFake(), NOW) as server:
        cached = Cached(make_provider("neso", make_context({"neso": server.address}, factor="direct")), cache)
        cached.fetch(["GB"], NOW, NOW + 5 * HOUR, "forecast").expect()
    assert cache.issues("GB", "direct", NOW)
    with sqlite3.connect(cache.path) as connection:
        connection.execute(f"UPDATE issue SET {column}")
    connection.close()
    with pytest.raises(CacheError, match="slackwater data clear"):
        cache.issues("GB", "direct", NOW)
