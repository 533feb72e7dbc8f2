"""What a run needs of its process: PyTorch's threads, stop signals, random seeds, and model files written atomically."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slackwater.atomic import whole_file
from slackwater.training.vectors import as_tensor

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
_TRIM, _TOP_PAD, _MMAP = -1, -2, -3
"""Options of glibc's `mallopt`."""
_LARGEST = 32 << 20
"""Bytes; glibc accepts no larger threshold for memory of its own mapping."""


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch threads, if it is loaded; with one, the bits of a sum do not depend on the machine."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Keep freed memory in the process, so that the next step takes it without page faults; return it at the end.

    glibc returns every freed tensor above a threshold to the system, and the next one of that size is cleared page by page.
    Results do not change. Without glibc nothing happens. `benchmarks/steps.py` measures the gain.
    """
    try:
        libc = ctypes.CDLL(None)
        option, trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError, TypeError):
        yield
        return
    option(_MMAP, _LARGEST)
    option(_TRIM, 2**31 - 1)
    option(_TOP_PAD, 2 * _LARGEST)
    try:
        yield
    finally:
        # As far as glibc would have adapted to tensors of this size itself.
        option(_TOP_PAD, 128 << 10)
        option(_TRIM, 2 * _LARGEST)
        trim(0)


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
    import torch

    with whole_file(path) as file:
        torch.save(dict(state), file)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Save a model as a state dict, or without PyTorch as NumPy's .npz beside it; return the file.

    Arrays of a type that PyTorch does not have go to .npz, too.
    """
    if find_spec("torch") is not None:
        with contextlib.suppress(TypeError):
            save_model(path, {name: as_tensor(array) for name, array in arrays.items()})
            return path
    with whole_file(path.with_suffix(".npz")) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():  # np.savez rejects an array that is called `file`
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return path.with_suffix(".npz")


def stream(seed: int, *keys: int) -> int:
    """Return a seed for one purpose, client and slot; it does not depend on the order of training or on resuming."""
    return int(np.random.SeedSequence([seed, *keys]).generate_state(1, np.uint64)[0] >> np.uint64(1))
