"""Process settings of a run: PyTorch's threads and stop signals; and saving a model file atomically."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from slackwater.atomic import whole_file

log = logging.getLogger(__name__)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch threads; with one, the bits of a sum do not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stopping(
    stop: threading.Event, *, after: str, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Stop after the current work on the first signal, and at once on the second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        stop.set()
        restore()
        log.warning("Stopping after %s. Press Ctrl-C again to stop at once.", after)

    for number in signals:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()


def save_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """Save PyTorch's usual state dict atomically."""
    with whole_file(path) as file:
        torch.save(dict(state), file)
