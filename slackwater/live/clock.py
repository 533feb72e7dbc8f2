"""When slots are: in real time, in a compressed one, or as fast as it goes. Slots only go forward."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from slackwater.planning.problem import Problem

_LOOK_SECONDS = 1.0
"""While waiting, the wall clock is looked at this often: it may have been stepped, or the machine asleep."""
STEP_SECONDS = 5.0
"""A wall clock that leaves the monotonic one by more than this was stepped."""


class Clock(Protocol):
    """Says which slot it is, and waits for one."""

    slot_seconds: float
    """Wall time of a slot; 0 where slots do not wait for each other."""

    def now(self) -> datetime:
        """Wall clock, UTC."""
        ...

    def current(self) -> int | None:
        """The slot it is now, below 0 before the first; None where slots do not wait for each other."""
        ...

    def starts_at(self, slot: int) -> datetime:
        """Wall time at which a slot begins."""
        ...

    def ends_at(self, slot: int) -> datetime:
        """Wall time by which the slot that is at hand must be over."""
        ...

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """Wait for a moment; False if `stop` was set meanwhile."""
        ...

    def stepped_seconds(self) -> float:
        """By how much the wall clock was set on (or back) since this was last asked; 0 where it was not."""
        ...


class WallClock:
    """Slots of the same length from a first moment on: real time, or a compressed one.

    The wall clock is believed, since slots are hours of the real world; but that it was stepped is noticed by the
    monotonic clock, and told. The runner never goes back to an earlier slot.
    """

    def __init__(
        self,
        begins_at: datetime,
        slot_seconds: float,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.begins_at, self.slot_seconds = begins_at, slot_seconds
        self._wall, self._monotonic = wall, monotonic
        self._apart = wall() - monotonic()

    @classmethod
    def real(cls, problem: Problem) -> WallClock:
        """The slots of a problem as they are."""
        return cls(problem.first_slot, problem.slot_hours * 3600.0)

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.fromtimestamp(self._wall(), UTC)

    def current(self) -> int:
        """By the wall clock."""
        return math.floor((self.now() - self.begins_at).total_seconds() / self.slot_seconds)

    def starts_at(self, slot: int) -> datetime:
        """Wall time at which a slot begins."""
        return self.begins_at + timedelta(seconds=self.slot_seconds * slot)

    def ends_at(self, slot: int) -> datetime:
        """When the next one begins."""
        return self.starts_at(slot + 1)

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """In short pieces, so that a stepped clock is followed."""
        while (left := (until - self.now()).total_seconds()) > 0:
            if stop.wait(min(left, _LOOK_SECONDS)):
                return False
        return not stop.is_set()

    def stepped_seconds(self) -> float:
        """Against the monotonic clock, which nobody can set; sleep of the machine counts as a step."""
        apart = self._wall() - self._monotonic()
        stepped, self._apart = apart - self._apart, apart
        return stepped if abs(stepped) > STEP_SECONDS else 0.0


class Unhurried:
    """Every slot begins when the last is done, and lasts as long as its round: for simulation."""

    slot_seconds = 0.0

    def __init__(self, most_seconds: float) -> None:
        self._most = timedelta(seconds=most_seconds)

    def now(self) -> datetime:
        """Wall clock, UTC."""
        return datetime.now(UTC)

    def current(self) -> None:
        """It is whatever slot is asked for."""
        return

    def starts_at(self, slot: int) -> datetime:
        """Now."""
        return self.now()

    def ends_at(self, slot: int) -> datetime:
        """As late as if the slot had its real length from now on."""
        return self.now() + self._most

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        """Not at all."""
        return not stop.is_set()

    def stepped_seconds(self) -> float:
        """Never."""
        return 0.0
