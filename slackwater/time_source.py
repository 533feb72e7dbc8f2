"""One source of time for everything that reads the clock, or waits for a slot, a retry or a reply.

Real time by default. For tests, the environment variable SLACKWATER_CLOCK names a file that makes time virtual: see
`VirtualTime`. Measured durations, limits on sockets and other processes, and ages of files use the machine's own clocks.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from slackwater.errors import SlackwaterError

VARIABLE = "SLACKWATER_CLOCK"
_LOOK_SECONDS = 1.0
"""While waiting for a moment, the wall clock is read this often: it may have been set, or the machine may have slept."""
_HELD_SECONDS = 0.005
"""Polling interval of a process that is held at a moment of virtual time."""
_BYTES = 64


class TimeSource:
    """Real time: the clocks of this machine."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware UTC."""
        return datetime.fromtimestamp(time.time(), UTC)

    def monotonic(self) -> float:
        """Return seconds on a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds."""
        time.sleep(max(seconds, 0.0))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event, at most `seconds`. Return whether it is set."""
        return event.wait(max(seconds, 0.0))

    def wait_until(self, event: threading.Event, moment: datetime) -> bool:
        """Wait for a moment of the wall clock, even if the clock is set meanwhile. Return True early if `event` is set."""
        while (left := (moment - self.now()).total_seconds()) > 0:
            if self.wait(event, min(left, _LOOK_SECONDS)):
                return True
        return event.is_set()


class VirtualTime(TimeSource):
    """Time that jumps instead of waiting, for tests. Several processes share it through one small file.

    The file holds how many seconds virtual time is ahead of the machine's clock. A wait returns at once and moves
    virtual time ahead by its length; between two waits time passes as fast as real time. So no slot is missed because
    the machine is slow. The file also holds a moment that no wait passes (`hold`), so that a test can act
    at an exact moment of a run.

    The monotonic clock jumps with the wall clock, so that a jump does not look like a clock that was set. Other programs,
    like Flower's SuperLink, do not know virtual time: use it with the in-process engine.
    """

    def __init__(self, path: str | Path) -> None:
        """Use the clock in a file, which `begin` writes."""
        self._path = Path(path)
        self._began_s = self._read()[0]

    @classmethod
    def begin(cls, path: str | Path, moment: datetime) -> VirtualTime:
        """Write a new clock file whose time is `moment` now."""
        Path(path).write_bytes(_text(moment.timestamp() - time.time(), math.inf))
        return cls(path)

    def now(self) -> datetime:
        """Return the virtual wall-clock time, aware UTC."""
        return datetime.fromtimestamp(time.time() + self._read()[0], UTC)

    def monotonic(self) -> float:
        """Return seconds that include every jump, of this process and of others."""
        return time.monotonic() + self._read()[0] - self._began_s

    def sleep(self, seconds: float) -> None:
        """Move virtual time ahead by some seconds, and return at once."""
        self._jump(by_s=max(seconds, 0.0))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Move virtual time ahead by some seconds unless the event is set. Return whether it is set."""
        self._jump(event, by_s=max(seconds, 0.0))
        return event.is_set()

    def wait_until(self, event: threading.Event, moment: datetime) -> bool:
        """Move virtual time ahead to a future moment unless the event is set. Return whether it is set."""
        self._jump(event, to_s=moment.timestamp())
        return event.is_set()

    def set(self, moment: datetime) -> None:
        """Move virtual time ahead to a moment, despite a `hold`; a past moment changes nothing."""
        with self._locked(write=True) as handle:
            offset, hold = self._parsed(handle)
            _store(handle, max(moment.timestamp() - time.time(), offset), hold)

    def hold(self, moment: datetime | None) -> None:
        """Let no wait pass a moment; None lets all waits continue."""
        with self._locked(write=True) as handle:
            _store(handle, self._parsed(handle)[0], math.inf if moment is None else moment.timestamp())

    def _jump(self, event: threading.Event | None = None, *, to_s: float = -math.inf, by_s: float = 0.0) -> None:
        """Move ahead to a moment or by some seconds as soon as nothing holds it, unless the event is set."""
        while event is None or not event.is_set():
            with self._locked(write=True) as handle:
                offset, hold = self._parsed(handle)
                real = time.time()
                to_s, by_s = max(to_s, real + offset + by_s), 0.0
                _store(handle, max(min(to_s, hold) - real, offset), hold)
            if hold >= to_s:
                return
            time.sleep(_HELD_SECONDS)

    def _read(self) -> tuple[float, float]:
        with self._locked(write=False) as handle:
            return self._parsed(handle)

    def _parsed(self, handle: int) -> tuple[float, float]:
        """Return the seconds ahead of real time, and the moment that no wait passes, in seconds since 1970."""
        try:
            offset, hold = map(float, os.pread(handle, _BYTES, 0).split())
        except ValueError:
            raise self._unusable("is not a clock file") from None
        return offset, hold

    def _unusable(self, why: str) -> SlackwaterError:
        return SlackwaterError(
            f"{VARIABLE} names {self._path}, which {why}. It is for tests only: unset it for real time."
        )

    @contextmanager
    def _locked(self, *, write: bool) -> Iterator[int]:
        try:
            import fcntl
        except ImportError:
            raise SlackwaterError(f"{VARIABLE} needs file locks that this system does not have. Unset it.") from None
        try:
            handle = os.open(self._path, os.O_RDWR if write else os.O_RDONLY)
        except OSError as error:
            raise self._unusable(f"cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if write else fcntl.LOCK_SH)  # released when the file is closed
            yield handle
        finally:
            os.close(handle)


def current() -> TimeSource:
    """Return the current time source: virtual if SLACKWATER_CLOCK names a file, else real."""
    path = os.environ.get(VARIABLE)
    return _virtual(path) if path else _REAL


def now() -> datetime:
    """Return the wall-clock time, aware UTC."""
    return current().now()


def monotonic() -> float:
    """Return seconds on a monotonic clock."""
    return current().monotonic()


def sleep(seconds: float) -> None:
    """Sleep for some seconds."""
    current().sleep(seconds)


def _text(offset_s: float, hold_s: float) -> bytes:
    """Return text of fixed length, so that one write replaces all of it."""
    return f"{offset_s!r} {hold_s!r}".ljust(_BYTES).encode()


def _store(handle: int, offset_s: float, hold_s: float) -> None:
    os.pwrite(handle, _text(offset_s, hold_s), 0)


_REAL = TimeSource()
_virtual = functools.lru_cache(maxsize=None)(VirtualTime)
