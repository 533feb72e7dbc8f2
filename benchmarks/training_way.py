"""One way to do the clients' rounds, in a process of its own that is told when to do the next: `python training_way.py JSON`.

It reads a line from stdin for every round and answers with a line of JSON. So rounds of different ways can be
interleaved although each has its own process, threads and memory. Imports only PyTorch, since Flower's environment
uses it too; ours is imported where it is needed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from copy import deepcopy
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from slackwater.training.loop import Progress

LR, WEIGHT_DECAY = 0.1, 5e-4
BARE = {
    "one by one": ("one by one", False),
    "one by one, channels-last": ("one by one", True),
    "threads": ("threads", False),
    "threads, channels-last": ("threads", True),
    "threads, the last one too, channels-last": ("threads only", True),
    "processes, channels-last": ("processes", True),
}
"""Bare loops by name: how the clients share the cores, and whether images are channels-last."""


class Baton:
    """Waits for the word to do a round, and reports it; what libraries print goes to stderr instead."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = 0.0

    def wait(self) -> None:
        """Ends the process when nobody asks for more."""
        if not sys.stdin.readline():
            os._exit(0)
        self._began = time.perf_counter()

    def done(self, loss: float) -> None:
        """Seconds since the word."""
        seconds = time.perf_counter() - self._began
        print(json.dumps({"seconds": seconds, "loss": loss}), file=self._out, flush=True)


class Local:
    """The bare local steps: batches by index, PyTorch's own SGD, nothing else."""

    def __init__(self, folder: Path, *, channels_last: bool) -> None:
        self.model: nn.Module = torch.load(folder / "model.pt", weights_only=False)
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model.to(memory_format=self._layout)
        self.model.train()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
        self.start = deepcopy(self.model.state_dict())

    def run(self, samples: tuple[Tensor, Tensor], steps: Tensor) -> float:
        """From the initial model; mean loss over the steps."""
        self.model.load_state_dict(self.start)
        return self.go_on(samples, steps)

    def go_on(self, samples: tuple[Tensor, Tensor], steps: Tensor) -> float:
        """From whatever the model is now."""
        x, y = samples
        losses = []
        for chosen in steps:
            self.optimiser.zero_grad(set_to_none=True)
            outputs = self.model(x[chosen].contiguous(memory_format=self._layout))
            loss = nn.functional.cross_entropy(outputs, y[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean())


@cache
def samples_of(folder: Path, client: int) -> tuple[Tensor, Tensor]:
    """A client's data; read once by each process."""
    x, y = torch.load(folder / f"client{client}.pt")
    return x, y


@cache
def _steps(folder: Path) -> dict[tuple[int, int], Tensor]:
    steps: dict[tuple[int, int], Tensor] = torch.load(folder / "steps.pt")
    return steps


def steps_of(folder: Path, number: int, client: int) -> Tensor:
    """Indices of a client's batches in a round, [step, sample]: the ones that ours draws."""
    return _steps(folder)[number, client]


@cache
def workspace(folder: Path) -> Local:
    """The one of a process that trains one client at a time."""
    return Local(folder, channels_last=True)


_kept: list[Local] = []


def _local(folder: Path, channels_last: bool) -> Local:
    """A workspace for one client at a time; threads take and return them."""
    try:
        return _kept.pop()
    except IndexError:
        return Local(folder, channels_last=channels_last)


def _client(folder: Path, channels_last: bool, threads: int, number: int, client: int) -> float:
    torch.set_num_threads(threads)
    local = _local(folder, channels_last)
    loss = local.run(samples_of(folder, client), steps_of(folder, number, client))
    _kept.append(local)
    return loss


def bare(folder: Path, rounds: Sequence[Sequence[int]], threads: int, sharing: str, channels_last: bool) -> None:
    """Only the local steps: no aggregation, no evaluation, no ledger.

    Side by side, each client has one thread; those left over at the end of a round, too few for all cores, have them
    all, except with "threads only".
    """
    baton, pool = Baton(), _pool(sharing, threads)
    for number, clients in enumerate(rounds):
        baton.wait()
        left_over = 0 if sharing == "threads only" else len(clients) % threads
        paired = len(clients) - left_over if pool else 0
        losses: list[float] = []
        if pool:
            one = partial(_client, folder, channels_last, 1, number)
            losses += pool.map(one, clients[:paired])
        for client in clients[paired:]:
            losses.append(_client(folder, channels_last, threads, number, client))
        baton.done(sum(losses) / len(losses))


def _pool(sharing: str, threads: int) -> Executor | None:
    if sharing.startswith("threads"):
        return ThreadPoolExecutor(threads)
    if sharing == "processes":
        return ProcessPoolExecutor(threads, mp_context=get_context("spawn"))
    return None


def ours(
    folder: Path,
    rounds: Sequence[Sequence[int]],
    threads: int,
    *,
    aggregator: str,
    eval_every: int,
    precision: str,
    settings: dict[str, Any],
) -> None:
    """`sw.train` with its run folder: every gram charged, every round resumable."""
    baton = Baton()
    import numpy as np

    import slackwater as sw

    held = [samples_of(folder, client) for client in range(settings["clients"])]
    test_x, test_y = torch.load(folder / "test.pt")
    task = sw.Task(
        name="benchmark",
        clients=[sw.Samples(x=x, y=y) for x, y in held],
        test=sw.Samples(x=test_x, y=test_y),
        model=model_maker(settings["model"]),
    )
    matrix = np.zeros((len(held), len(rounds) + 1), dtype=bool)  # one more than asked for: the last is evaluated
    for slot, clients in enumerate([*rounds, rounds[0]]):
        matrix[list(clients), slot] = True
    costs = np.full(matrix.shape, 0.02)
    problem = sw.Problem.from_costs(costs, rounds=matrix.shape[1], budget_kg=float(costs.sum()) + 1, fine_tune=0)
    plan = sw.Plan(
        problem=problem, end=0, packed=np.packbits(matrix, axis=1), objective=0.0, upper_bound=0.0, gap=0.0, seconds=0.0,
        solver="by hand",
    )  # fmt: skip

    def next_round(progress: Progress) -> None:
        baton.done(progress.done.loss)
        baton.wait()

    baton.wait()
    sw.train(
        plan, task, aggregator=aggregator, local_steps=settings["steps"], batch_size=settings["batch_size"], lr=LR,
        weight_decay=WEIGHT_DECAY, seed=settings["seed"], out=Path(settings["out"]), eval_every=eval_every, threads=threads,
        precision=precision, progress=next_round,
    )  # fmt: skip


def model_maker(name: str) -> Callable[[], nn.Module]:
    """MNIST-shaped."""
    from slackwater.training import tasks as models

    return models.maker(name, channels=1, size=28)


def main(job: dict[str, Any]) -> None:
    """A way by its name."""
    torch.set_num_threads(job["threads"])
    folder, rounds, threads = Path(job["folder"]), job["rounds"], job["threads"]
    if job["way"] == "ours":
        ours(
            folder,
            rounds,
            threads,
            aggregator=job["aggregator"],
            eval_every=job["eval_every"],
            precision=job.get("precision", "fp32"),
            settings=job["settings"],
        )
    else:
        bare(folder, rounds, threads, *BARE[job["way"]])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
