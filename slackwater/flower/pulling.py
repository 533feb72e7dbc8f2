"""Replies from a grid as they come, until a deadline that holds.

Flower's `pull_messages` waits for a reply whose upload has begun but not ended, up to three minutes, and holds back the
replies behind it. So each thread pulls a few, and a thread that is stuck at the deadline is left behind.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from slackwater import time_source

log = logging.getLogger(__name__)
_POLL_S = (0.2, 3.0)  # between two looks for replies: first and longest. Slots are long, rounds in tests are not
_THREADS = 16  # with more clients than that, a stuck reply holds back the few that share its thread


def replies(grid: Grid, message_ids: Sequence[str], deadline: float) -> Iterator[Message]:
    """Yield the replies to these messages as they come, until all have come or the deadline (monotonic clock)."""
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
                message = came.get(timeout=max(0.0, deadline - time_source.monotonic()))
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
        came: list[Message] = []
        try:
            came = list(grid.pull_messages([one for one in message_ids if one in waiting]))
        except httpx.HTTPError as error:  # what Flower does not try again itself, as while a SuperLink starts
            log.warning("The SuperLink did not give the replies (%s); trying again.", type(error).__name__)
        for message in came:
            waiting.discard(message.metadata.reply_to_message_id)
            yield message
        left = deadline - time_source.monotonic()
        if left <= 0:
            return
        if came:
            pause = _POLL_S[0]
        elif waiting:
            time_source.current().wait(stop, min(pause, left))
            pause = min(pause * 1.5, longest)
