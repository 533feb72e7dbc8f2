"""Train the clients of a slot side by side on the processor's cores (Algorithm 1, line 3: "in parallel").

Clients run side by side where a step is long enough, on one thread each, and share the remaining threads only where it
is longer still: two threads on a step of a small model were five to eleven times slower than one. The choice depends
only on the model, the settings and who trains in the slot, so that a run repeats bit for bit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from slackwater.learning.flat import FlatModel, ModelMaker
from slackwater.learning.local import MODEL, LocalUpdate, LocalWork, stream, train_locally
from slackwater.learning.task import Samples, Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One client's, or one device's, local training."""

    client: int
    samples: Samples
    seed: int


SIDE_BY_SIDE = 1e8  # floating-point operations of a step from which on clients train side by side
SHARED = 1e9  # and from which on more than one thread works on a step


class StopRequested(Exception):
    """The run was asked to stop; the clients that trained were let finish."""


class Workers:
    """Trains jobs on up to `threads` threads; one by one if not on the CPU, or if the model draws random numbers."""

    def __init__(self, task: Task, maker: ModelMaker, work: LocalWork, *, threads: int, device: torch.device) -> None:
        self._task, self._work, self._random = task, work, maker.random
        step = maker.flops * work.batch_size
        one_by_one = device.type != "cpu" or maker.random or step < SIDE_BY_SIDE
        self._most = 1 if one_by_one else threads
        self.threads = threads if step >= SHARED else 1  # threads that may work on one step
        self._models: queue.SimpleQueue[FlatModel] = queue.SimpleQueue()
        self._make: Callable[[], FlatModel] = maker
        self._made = 0
        self._pool: ThreadPoolExecutor | None = None

    def train(
        self, jobs: list[Job], start: Tensor, buffers: Mapping[str, Tensor], stop: threading.Event
    ) -> list[LocalUpdate]:
        """Return updates in the order of the jobs; raise `StopRequested` between two of them if asked to stop."""
        done: list[LocalUpdate] = []
        while len(done) < len(jobs):
            left = jobs[len(done) :]
            at_once = min(self._most, len(left))
            wave = left[: len(left) - len(left) % at_once]
            threads = max(1, self.threads // at_once)
            while self._made < at_once:
                self._models.put(self._make())
                self._made += 1

            def run(job: Job, threads: int = threads) -> LocalUpdate:
                if stop.is_set():
                    raise StopRequested
                torch.set_num_threads(threads)  # PyTorch keeps this number for each thread
                model = self._models.get()
                try:
                    with torch.random.fork_rng(enabled=self._random):
                        if self._random:
                            torch.manual_seed(stream(job.seed, MODEL))
                        return train_locally(model, start, buffers, job.samples, self._task, self._work, job.seed)
                finally:
                    self._models.put(model)

            if at_once == 1:
                done.extend(map(run, wave))
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="client")
            done.extend(self._pool.map(run, wave))
        torch.set_num_threads(1)  # what follows is short: on busy cores its threads wait for each other 20 ms at a time
        return done

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Use all threads for work in the caller's thread that is as long as a step: evaluation."""
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
