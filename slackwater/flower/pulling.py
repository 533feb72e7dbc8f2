"""Replies from a grid as they come, until a deadline that holds.

Flower's `pull_messages` waits inside for a reply whose upload has begun but not ended, up to three minutes where the
sender died in it, and holds back the replies behind it. So a few are pulled at a time, each lot on a thread of its own,
and a thread that is stuck at the deadline is left behind.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger(__name__)
_POLL_S = (0.2, 3.0)
"""Between two looks for replies: first and longest. Slots are long, rounds in tests are not."""
_THREADS = 16
"""With more clients than that, a stuck reply holds back the few that share its thread."""


def replies(grid: Grid, message_ids: Sequence[str], deadline: float) -> Iterator[Message]:
    """What answers these messages, each as it comes; ends when all have come or at the deadline (monotonic clock)."""
    if getattr(grid, "works_when_pulled", False):
        yield from _pulled(grid, message_ids, deadline, threading.Event())
        return
    stop = threading.Event()
    came: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    lots = [list(message_ids[first::_THREADS]) for first in range(min(_THREADS, len(message_ids)))]
    for lot in lots:
        threading.Thread(target=_fill, args=(came, grid, lot, deadline, stop), daemon=True).start()
    working = len(lots)
    try:
        while working:
            try:
                message = came.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if message is None:
                working -= 1
            else:
                yield message
    finally:
        stop.set()


def _fill(
    came: queue.SimpleQueue[Message | None], grid: Grid, lot: Sequence[str], deadline: float, stop: threading.Event
) -> None:
    try:
        for message in _pulled(grid, lot, deadline, stop):
            came.put(message)
    except Exception:
        log.exception("Replies could not be read; who has not answered counts as late.")
    finally:
        came.put(None)


def _pulled(grid: Grid, message_ids: Sequence[str], deadline: float, stop: threading.Event) -> Iterator[Message]:
    waiting = set(message_ids)
    pause, longest = _POLL_S
    while waiting and not stop.is_set():
        came = _pull(grid, [one for one in message_ids if one in waiting])
        for message in came:
            waiting.discard(message.metadata.reply_to_message_id)
            yield message
        left = deadline - time.monotonic()
        if left <= 0:
            return
        if came:
            pause = _POLL_S[0]
        elif waiting:
            stop.wait(min(pause, left))
            pause = min(pause * 1.5, longest)


def _pull(grid: Grid, message_ids: list[str]) -> list[Message]:
    try:
        return list(grid.pull_messages(message_ids))
    except httpx.HTTPError as error:  # what Flower does not try again itself, as while a SuperLink starts
        log.warning("The SuperLink did not give the replies (%s); trying again.", type(error).__name__)
        return []
