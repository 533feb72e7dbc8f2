"""What a run needs of its process."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from slackwater.training.process import memory_kept

TENSORS, FLOATS = 8, 6_000_000  # of 24 MB each, as the first layer of a small CNN makes them
LIBC = ctypes.CDLL(None)


class _Info(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def held_free() -> int:
    """Return the free bytes that the process still holds."""
    LIBC.mallinfo2.restype = _Info
    return int(LIBC.mallinfo2().fordblks)


@pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="glibc since 2.33 says what it holds")
def test_the_memory_of_a_step_stays_for_the_next_one() -> None:
    size = TENSORS * FLOATS * 4
    with memory_kept():
        tensors = [torch.ones(FLOATS) for _ in range(TENSORS)]
        assert float(tensors[-1][-1]) == 1.0
        tensors.clear()
        assert held_free() >= size
    tensors = [torch.ones(FLOATS) for _ in range(TENSORS)]
    tensors.clear()
    assert held_free() < size


@pytest.mark.parametrize("libc", [OSError("no such library"), SimpleNamespace(malloc_trim=None)])
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch, libc: object) -> None:
    def load(name: str | None) -> object:
        if isinstance(libc, OSError):
            raise libc
        return libc

    monkeypatch.setattr(ctypes, "CDLL", load)
    entered = False
    with memory_kept():
        entered = True
    assert entered
