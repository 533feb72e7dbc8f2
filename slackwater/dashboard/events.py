"""Server-sent events: a page is told when its run has been written to. One thread looks at a run, however many pages watch it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from slackwater.dashboard.runs import RunReader
from slackwater.errors import SlackwaterError

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
HEARTBEAT_S = 10.0
"""A comment so often keeps the connection open, and finds out whether anybody is there."""
MOST_STREAMS = 48


class Watch:
    """Looks at one run while somebody watches it."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self._changed = threading.Condition()
        self._number = 0
        self._sentence: str | None = None
        self._watchers = 0
        self._stopped = False
        self._looker: object = None
        """The thread that looks now; an older one that wakes up late sees that it is not meant."""

    def join(self) -> None:
        """Add a watcher; the first starts the thread."""
        with self._changed:
            self._watchers += 1
            if self._watchers == 1:
                self._looker = looker = object()
                threading.Thread(target=self._look, args=(looker,), daemon=True).start()

    def leave(self) -> None:
        """Leave as a watcher; the thread ends after the last."""
        with self._changed:
            self._watchers -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop because the server ends."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> tuple[int, str | None] | None:
        """Return the number of the latest change after `seen` and what is wrong, or None after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > seen or self._stopped, timeout=seconds)
            if self._stopped or self._number <= seen:
                return None
            return self._number, self._sentence

    @property
    def stopped(self) -> bool:
        """Return whether the server is ending."""
        return self._stopped

    def _look(self, me: object) -> None:
        last: object = None
        while True:
            sentence = None
            try:
                found: object = self.reader.version()
            except SlackwaterError as error:
                found = sentence = str(error)
            with self._changed:
                if found != last:
                    last, self._sentence = found, sentence
                    self._number += 1
                    self._changed.notify_all()
                if self._changed.wait_for(lambda: self._over(me), timeout=LOOK_EVERY_S):
                    return

    def _over(self, me: object) -> bool:
        return self._watchers == 0 or self._stopped or self._looker is not me


class Streams:
    """The watches of a server."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()
        self._open = 0

    def follow(self, key: str, reader: RunReader, send: Callable[[bytes], None]) -> None:
        """Send a page every change of a run, until it goes away (send raises OSError) or the server ends."""
        with self._lock:
            if self._open >= MOST_STREAMS:
                raise SlackwaterError(f"{MOST_STREAMS} pages are watching already. Close some of them.")
            self._open += 1
            watch = self._watches.setdefault(key, Watch(reader))
        watch.join()
        try:
            _follow(watch, send)
        finally:
            watch.leave()
            with self._lock:
                self._open -= 1

    def close(self) -> None:
        """End all streams."""
        for watch in list(self._watches.values()):
            watch.stop()


def _follow(watch: Watch, send: Callable[[bytes], None]) -> None:
    seen, rounds = 0, 0
    while not watch.stopped:
        change = watch.wait(seen, HEARTBEAT_S)
        if change is None:
            send(b": still here\n\n")
            continue
        seen, sentence = change
        try:
            if sentence is not None:
                raise SlackwaterError(sentence)
            state = watch.reader.look(since=rounds)
        except SlackwaterError as error:
            send(message("trouble", {"error": str(error)}))
            continue
        rounds += len(state["rounds"])
        send(message("state", state))


def message(kind: str, content: dict[str, Any]) -> bytes:
    """Return one event; JSON has no line breaks, so it is one line."""
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()
