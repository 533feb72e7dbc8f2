"""Clocks of slots: real time, compressed time, or no waiting. Slots never go back."""

from __future__ import annotations

import math
import threading
from datetime import datetime, timedelta
from typing import Protocol

from slackwater import time_source
from slackwater.planning.problem import Problem
from slackwater.time_source import TimeSource

STEP_SECONDS = 5.0  # a larger difference to the monotonic clock means that the wall clock was set


class Clock(Protocol):
    """Returns the current slot, and waits for a slot."""

    slot_seconds: float  # wall time of a slot; 0 if slots do not wait

    def now(self) -> datetime:
        """Return the wall clock, UTC."""

    def current(self) -> int | None:
        """Return the current slot, below 0 before the first; None if slots do not wait."""

    def starts_at(self, slot: int) -> datetime:
        """Return the wall time at which a slot starts."""

    def ends_at(self, slot: int) -> datetime:
        """Return the wall time by which the current slot must be over."""

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """Wait for a moment; False if `stop` was set meanwhile."""

    def stepped_seconds(self) -> float:
        """Return by how much the wall clock was set forward (or back) since the last call; 0 if it was not."""


class WallClock:
    """Slots of equal length from a start time: real time, or compressed.

    Slots follow the wall clock, since they are hours of the real world. The monotonic clock shows if it was set, and the
    run reports it. The runner never goes back to an earlier slot.
    """

    def __init__(self, begins_at: datetime, slot_seconds: float, *, source: TimeSource | None = None) -> None:
        self.begins_at, self.slot_seconds = begins_at, slot_seconds
        self._source = source or time_source.current()
        self._apart = self._drift()

    @classmethod
    def real(cls, problem: Problem) -> WallClock:
        """Return the clock of a problem's real slots."""
        return cls(problem.first_slot, problem.slot_hours * 3600.0)

    def now(self) -> datetime:
        """Return the wall clock, UTC."""
        return self._source.now()

    def current(self) -> int:
        """Return the slot by the wall clock."""
        return math.floor((self.now() - self.begins_at).total_seconds() / self.slot_seconds)

    def starts_at(self, slot: int) -> datetime:
        """Return the wall time at which a slot starts."""
        return self.begins_at + timedelta(seconds=self.slot_seconds * slot)

    def ends_at(self, slot: int) -> datetime:
        """Return when the next slot starts."""
        return self.starts_at(slot + 1)

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """Wait for a moment, even if the clock is set meanwhile; False if `stop` was set."""
        return not self._source.wait_until(stop, until)

    def stepped_seconds(self) -> float:
        """Return the step against the monotonic clock; sleep of the machine counts as a step."""
        apart = self._drift()
        stepped, self._apart = apart - self._apart, apart
        return stepped if abs(stepped) > STEP_SECONDS else 0.0

    def _drift(self) -> float:
        """Return the wall clock minus the monotonic clock, in seconds."""
        return self._source.now().timestamp() - self._source.monotonic()


class Unhurried:
    """Every slot starts when the last is done, and lasts as long as its round: for simulation."""

    slot_seconds = 0.0

    def __init__(self, most_seconds: float) -> None:
        self._most = timedelta(seconds=most_seconds)

    def now(self) -> datetime:
        """Return the wall clock, UTC."""
        return time_source.now()

    def current(self) -> None:
        """Return None: slots do not wait."""
        return

    def starts_at(self, slot: int) -> datetime:
        """Return the current time."""
        return self.now()

    def ends_at(self, slot: int) -> datetime:
        """Return the end of a slot of real length that starts now."""
        return self.now() + self._most

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """Return at once."""
        return not stop.is_set()

    def stepped_seconds(self) -> float:
        """Return 0: a step of the clock does not matter."""
        return 0.0
