"""What a run needs of its process: PyTorch's threads, signals that ask it to stop, and a model file that is whole."""

from __future__ import annotations

import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many PyTorch threads; with one, the bits of a sum do not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stopping(
    stop: threading.Event, *, after: str, signals: Sequence[signal.Signals] = (signal.SIGINT,)
) -> Iterator[None]:
    """The first signal asks to stop after what is under way; a second one stops at once."""
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
        log.warning("Stopping after %s under way; press Ctrl-C again to stop at once.", after)

    for number in signals:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()


def save_model(path: Path, state: Mapping[str, Tensor]) -> None:
    """As PyTorch's usual state dict; the file is whole or not there."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as part:  # made with mode 0600
        try:
            torch.save(dict(state), part)
        except BaseException:
            Path(part.name).unlink()
            raise
    Path(part.name).replace(path)
