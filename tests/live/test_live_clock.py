from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import live_world as world

from slackwater.live.clock import STEP_SECONDS, Unhurried, WallClock
from slackwater.time_source import TimeSource, VirtualTime

START = datetime(2023, 3, 1, tzinfo=UTC)


class Hands(TimeSource):
    """A wall clock and a monotonic one that we move."""

    def __init__(self) -> None:
        self.wall, self.ticked = START.timestamp(), 100.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall, UTC)

    def monotonic(self) -> float:
        return self.ticked

    def clock(self, slot_seconds: float = 3600.0) -> WallClock:
        return WallClock(START, slot_seconds, source=self)

    def tick(self, seconds: float) -> None:
        self.wall += seconds
        self.ticked += seconds


def test_slots_follow_each_other() -> None:
    hands = Hands()
    clock = hands.clock()
    assert clock.current() == 0
    hands.tick(-1)
    assert clock.current() == -1
    hands.tick(3601)
    assert clock.current() == 1
    assert clock.starts_at(2) == START + timedelta(hours=2)
    assert clock.ends_at(2) == clock.starts_at(3)
    real = WallClock.real(world.problem())
    assert (real.begins_at, real.slot_seconds) == (world.START, 3600.0)


def test_a_stepped_clock_is_told_once() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.tick(7200)
    assert clock.stepped_seconds() == 0.0
    hands.wall -= 3600
    assert clock.stepped_seconds() == -3600.0
    assert clock.stepped_seconds() == 0.0
    hands.wall += STEP_SECONDS / 2  # drift, or a slow adjustment
    assert clock.stepped_seconds() == 0.0


def test_waiting_ends_when_it_is_time_or_when_asked_to_stop() -> None:
    clock, stop = WallClock(datetime.now(UTC), 0.05), threading.Event()
    began = time.monotonic()
    assert clock.wait(clock.starts_at(1), stop)
    assert time.monotonic() - began >= 0.03
    threading.Timer(0.05, stop.set).start()
    assert not clock.wait(datetime.now(UTC) + timedelta(hours=1), stop)
    assert not clock.wait(datetime.now(UTC) - timedelta(hours=1), stop)


def test_waiting_in_virtual_time_jumps_to_the_slot_and_does_not_look_like_a_clock_that_was_set(tmp_path: Path) -> None:
    source = VirtualTime.begin(tmp_path / "clock", START)
    clock, stop = WallClock(START, 3600.0, source=source), threading.Event()
    for slot in range(1, 169):
        assert clock.wait(clock.starts_at(slot), stop)
        assert clock.current() == slot
        assert clock.stepped_seconds() == 0.0
    VirtualTime(tmp_path / "clock").set(clock.starts_at(173))  # another process, as when slots are missed
    assert clock.current() == 173
    assert clock.stepped_seconds() == 0.0
    stop.set()
    assert not clock.wait(clock.starts_at(180), stop)
    assert clock.current() == 173


def test_an_unhurried_clock_never_waits() -> None:
    clock, stop = Unhurried(3600.0), threading.Event()
    assert clock.current() is None
    assert clock.wait(clock.starts_at(9) + timedelta(days=1), stop)
    assert clock.ends_at(9) > clock.now() + timedelta(minutes=59)
    assert clock.stepped_seconds() == 0.0
    stop.set()
    assert not clock.wait(clock.starts_at(9), stop)
