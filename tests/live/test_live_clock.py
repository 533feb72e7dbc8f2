from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import live_world as world

from slackwater.live.clock import STEP_SECONDS, Unhurried, WallClock

START = datetime(2023, 3, 1, tzinfo=UTC)


class Hands:
    """A wall clock and a monotonic one that we move."""

    def __init__(self) -> None:
        self.wall, self.monotonic = START.timestamp(), 100.0

    def clock(self, slot_seconds: float = 3600.0) -> WallClock:
        return WallClock(START, slot_seconds, wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def tick(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


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


def test_an_unhurried_clock_never_waits() -> None:
    clock, stop = Unhurried(3600.0), threading.Event()
    assert clock.current() is None
    assert clock.wait(clock.starts_at(9) + timedelta(days=1), stop)
    assert clock.ends_at(9) > clock.now() + timedelta(minutes=59)
    assert clock.stepped_seconds() == 0.0
    stop.set()
    assert not clock.wait(clock.starts_at(9), stop)
