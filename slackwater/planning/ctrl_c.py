"""Ctrl-C in a grid of plans: a planner keeps its best schedule so far, so the grid has to notice that it was stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C (or SIGTERM, where it is treated so) was pressed, also if the work inside has caught it."""
    pressed = False
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in before.items():
        if callable(handler):  # neither ignored nor left to the system
            signal.signal(number, note)
    try:
        yield lambda: pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
