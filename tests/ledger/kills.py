"""kill -9 at an exact step of a run, files of its state included.

A step is a statement of SQLite, or a call that opens, syncs, renames or deletes a file: between any two of them a run may
be killed. Times would not find the moments between a part's file and the commit, or between the commit and a deletion.
"""

import os
import signal
import sqlite3
from typing import Any

RANDOM_KILLS = int(os.environ.get("SLACKWATER_KILLS", "8"))
"""Random moments that a test tries; more with the environment variable, as in docs/research/reliability.md."""
_CALLS = ("open", "fsync", "replace", "unlink")


class Steps:
    """Counts the steps of this process from now on; before the one of number `die_at` it kills itself."""

    def __init__(self, die_at: int | None = None) -> None:
        self.done, self._die_at = 0, die_at
        for name in _CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        usual = sqlite3.connect

        def connect(*given: Any, **more: Any) -> sqlite3.Connection:
            connection = usual(*given, **more)
            connection.set_trace_callback(lambda statement: self._step())
            return connection

        sqlite3.connect = connect

    def _counted(self, call: Any) -> Any:
        def counted(*given: Any, **more: Any) -> Any:
            self._step()
            return call(*given, **more)

        return counted

    def _step(self) -> None:
        if self.done == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1
