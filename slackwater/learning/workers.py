"""The clients of a slot, side by side on the processor's cores (Algorithm 1, line 3: "in parallel").

Measured on two shared cores, batch 128, interleaved. The paper's CNN: two clients at a time on one thread each are 1.2
to 1.3 times as fast as one after the other on two threads, and a client that is alone is 1.7 times as fast on two
threads as on one. Small models: two threads on one step were five to eleven times slower than one (cores busy, load 5
to 12; idle cores were not measured).

So clients run side by side where a step is long enough, on one thread each, and share out the threads that are
left over only where it is longer still. That depends on the model, the settings and who trains in the slot alone: a run
repeats bit for bit.
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


SIDE_BY_SIDE = 1e8
"""Floating-point operations of a step from which on clients train side by side."""
SHARED = 1e9
"""And from which on more than one thread works on a step."""


class StopRequested(Exception):
    """Somebody asked to stop; clients under way were let finish."""


class Workers:
    """Trains jobs on up to `threads` threads; one by one if not on the CPU, or if the model draws random numbers."""

    def __init__(self, task: Task, maker: ModelMaker, work: LocalWork, *, threads: int, device: torch.device) -> None:
        self._task, self._work, self._random = task, work, maker.random
        step = maker.flops * work.batch_size
        one_by_one = device.type != "cpu" or maker.random or step < SIDE_BY_SIDE
        self._most = 1 if one_by_one else threads
        self.threads = threads if step >= SHARED else 1
        """Threads that may work on one step."""
        self._models: queue.SimpleQueue[FlatModel] = queue.SimpleQueue()
        self._make: Callable[[], FlatModel] = maker
        self._made = 0
        self._pool: ThreadPoolExecutor | None = None

    def train(
        self, jobs: list[Job], start: Tensor, buffers: Mapping[str, Tensor], stop: threading.Event
    ) -> list[LocalUpdate]:
        """Updates in the order of the jobs. Raises `StopRequested` between two of them if asked to."""
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
                return self._run(job, start, buffers, threads, stop)

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
        """For work in the caller's thread that is as long as a step: evaluation."""
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(
        self, job: Job, start: Tensor, buffers: Mapping[str, Tensor], threads: int, stop: threading.Event
    ) -> LocalUpdate:
        if stop.is_set():
            raise StopRequested
        torch.set_num_threads(threads)  # PyTorch keeps this number for each thread
        model = self._models.get()
        try:
            if not self._random:
                return train_locally(model, start, buffers, job.samples, self._task, self._work, job.seed)
            with torch.random.fork_rng():
                torch.manual_seed(stream(job.seed, MODEL))
                return train_locally(model, start, buffers, job.samples, self._task, self._work, job.seed)
        finally:
            self._models.put(model)
