"""What a run needs of its process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slackwater.training.process import memory_kept

LIBC = ctypes.CDLL(None)
MEASURE = """
import ctypes, torch
from slackwater.training.process import memory_kept

class Info(ctypes.Structure):  # glibc's struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / (8 * 24_000_000)

with memory_kept():
    tensors = [torch.ones(6_000_000) for _ in range(8)]  # of 24 MB each, as the first layer of a small CNN makes them
    tensors.clear()
    held, before = libc.mallinfo2().fordblks / (8 * 24_000_000), resident()
print(held, before - resident())
"""


@pytest.mark.skipif(
    not hasattr(LIBC, "mallinfo2") or not Path("/proc/self/statm").exists(), reason="needs Linux and glibc since 2.33"
)
def test_the_memory_of_a_step_stays_for_the_next_one() -> None:
    """In a process of its own: what the heap of this one holds depends on the tests before."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    held, returned = map(float, done.stdout.split())
    assert held >= 1, "freed tensors stay with the process"
    assert returned > 0.9, "at the end the system has them back"


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
