"""A progress bar for scripts and notebooks: tqdm's if it is installed, else one line of text."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any, TextIO

from slackwater import time_source

_WIDTH = 20
_EVERY_S = 0.1


class ProgressBar:
    """One line on stderr that moves with every step; in a notebook, tqdm's widget if tqdm is installed."""

    def __init__(self, title: str, total: int | None = None, *, stream: TextIO | None = None) -> None:
        self.title, self.total, self.done = title, total, 0
        self._stream = sys.stderr if stream is None else stream
        self._shown, self._length = -_EVERY_S, 0
        self._tqdm: Any = None
        if stream is None and find_spec("tqdm") is not None:
            from tqdm.auto import tqdm  # type: ignore[import-not-found, import-untyped, unused-ignore]

            self._tqdm = tqdm(total=total, desc=title)

    def step(self, text: str = "", total: int | None = None) -> None:
        """Count one step.

        Args:
            text: What was reached, after the bar.
            total: The number of steps, if it was not known before.
        """
        self.done, self.total = self.done + 1, total or self.total
        if self._tqdm is not None:
            self._tqdm.total = self.total
            self._tqdm.set_postfix_str(text, refresh=False)
            self._tqdm.update(1)
            return
        now = time_source.monotonic()
        if now - self._shown >= _EVERY_S or self.done == self.total:
            self._shown = now
            self._write(text)

    def close(self) -> None:
        """End the line."""
        if self._tqdm is not None:
            self._tqdm.close()
        elif self.done:
            self._stream.write("\n")
            self._stream.flush()

    def _write(self, text: str) -> None:
        share = 0.0 if not self.total else min(1.0, self.done / self.total)
        full = round(_WIDTH * share)
        of = "" if self.total is None else f"/{self.total}"
        line = f"{self.title} [{'#' * full}{'.' * (_WIDTH - full)}] {self.done}{of} {text}".rstrip()
        self._stream.write("\r" + line.ljust(self._length))
        self._stream.flush()
        self._length = len(line)
