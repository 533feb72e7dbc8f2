"""Local SGD on one client (lines 4 to 8 of Algorithm 1), several clients at once, probes, and evaluation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slackwater.errors import ScenarioError
from slackwater.training.global_model import Update
from slackwater.training.process import stream
from slackwater.training.scoring import Metric, Scorer
from slackwater.training.task import Data, FlatModel, LocalStep, ModelMaker, Task
from slackwater.training.users_code import users_code

PRECISIONS = ("fp32", "bf16", "auto")
BATCHES, DEVICES, MODEL = 0, 1, 2  # one random stream for each purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWork:
    """Local training of a client in a slot: plain SGD, `epochs` if given, else `steps`."""

    steps: int
    epochs: int | None
    batch_size: int
    lr: float
    weight_decay: float
    precision: str = "fp32"
    """`fp32`, or `bf16`: matrix products and convolutions of a step in bfloat16; parameters and updates stay float32."""
    share: float = 1.0
    """Share of the steps that a client below full power takes, rounded, at least one."""


def resolved_precision(asked: str, device: str) -> str:
    """Return `fp32` or `bf16`; `auto` is `bf16` on a processor that has instructions for it, else `fp32`."""
    if asked not in PRECISIONS:
        raise ScenarioError(f"precision must be one of {', '.join(PRECISIONS)}, not {asked!r}.")
    if asked != "auto":
        return asked
    # Processors with AMX have these instructions too. Without them bfloat16 is emulated, and slower than fp32.
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return "bf16" if torch.device(device).type == "cpu" and supported() else "fp32"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalUpdate(Update):
    """An update, with the outcome of local training."""

    loss: float  # mean over the local steps, each before its step
    finite: bool  # whether loss and update are finite


def steps_of(samples: int, work: LocalWork) -> int:
    """Return the number of local steps on this many samples."""
    steps = work.steps if work.epochs is None else work.epochs * max(1, -(-samples // work.batch_size))
    return steps if work.share == 1.0 else max(1, round(work.share * steps))


def batches(samples: int, work: LocalWork, seed: int) -> list[Tensor | None]:
    """Return the indices of each step's batch, in shuffled epochs; None: the whole set, if it fits into a batch.

    A client below full power takes the first of them.
    """
    return _all_batches(samples, work, seed)[: steps_of(samples, work)]


def _all_batches(samples: int, work: LocalWork, seed: int) -> list[Tensor | None]:
    """Return the batches at full power.

    Steps continue into the next epoch, so that every batch is full; with `epochs`, the last batch of each is the remainder.
    """
    size = work.batch_size
    if samples <= size:
        return [None] * (work.steps if work.epochs is None else work.epochs)
    generator = torch.Generator().manual_seed(seed)
    if work.epochs is not None:
        return [
            part for _ in range(work.epochs) for part in torch.split(torch.randperm(samples, generator=generator), size)
        ]
    epochs = -(-work.steps * size // samples)
    order = torch.cat([torch.randperm(samples, generator=generator) for _ in range(epochs)])
    return list(torch.split(order[: work.steps * size], size))


@users_code("Local training fails")
def train_locally(
    model: FlatModel, start: Tensor, buffers: Mapping[str, Tensor], samples: Data, task: Task, work: LocalWork,
    seed: int, out_of_time: Callable[[], bool] | None = None,
) -> LocalUpdate:  # fmt: skip
    """Train from the global model on one client's samples; `model` is the workspace.

    `out_of_time` is asked before each step but the first; a client whose slot ends sends the model so far.
    """
    model.load(start, buffers)
    model.module.train()
    device = start.device
    loss_sum = torch.zeros((), device=device)
    keep = 1.0 - work.lr * work.weight_decay
    plan = batches(len(samples), work, stream(seed, BATCHES))
    optimiser = None if task.optimiser is None else task.optimiser(model.parameters, work.lr)
    began = tuple(p.detach().clone() for p in model.parameters) if task.step is not None else ()
    done = 0
    for chosen in plan:
        if done and out_of_time is not None and out_of_time():
            break
        x, y = samples.take(slice(None) if chosen is None else chosen)
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        step = LocalStep(module=model.module, x=x, y=y, start=began, number=done)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=work.precision == "bf16"):
            loss = task.training_loss(step, model.inputs(x))
        gradients = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        done += 1
        if optimiser is not None:
            for parameter, gradient in zip(model.parameters, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
            loss_sum += loss.detach()
            continue
        with torch.no_grad():
            # theta <- theta - lr (gradient + weight_decay theta): the decay in one pass, then the gradients.
            model.vector.mul_(keep)
            used = [(p, g) for p, g in zip(model.parameters, gradients, strict=True) if g is not None]
            torch._foreach_add_([p for p, _ in used], [g for _, g in used], alpha=-work.lr)
            loss_sum += loss.detach()
    if optimiser is not None:
        for parameter in model.parameters:
            parameter.grad = None
    with torch.no_grad():
        update = start - model.vector
        mean = float(loss_sum) / max(1, done)  # the only wait for the device
        finite = bool(np.isfinite(mean)) and bool(torch.isfinite(update).all())
    return LocalUpdate(update=update, buffers=model.copy_buffers(), loss=mean, finite=finite)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One client's, or one device's, local training."""

    client: int
    samples: Data
    seed: int
    share: float = 1.0  # of the local steps at full power


SIDE_BY_SIDE = 1e8  # floating-point operations of a step from which clients train in parallel
SHARED = 1e9  # and from which a step uses several threads


class StopRequested(Exception):
    """The run was asked to stop; clients that were training have finished."""


class Workers:
    """Trains jobs on up to `threads` threads; one by one on other devices, or if the model draws random numbers."""

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
                        work = self._work if job.share == 1.0 else replace(self._work, share=job.share)
                        return train_locally(model, start, buffers, job.samples, self._task, work, job.seed)
                finally:
                    self._models.put(model)

            if at_once == 1:
                done.extend(map(run, wave))
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="client")
            done.extend(self._pool.map(run, wave))
        torch.set_num_threads(1)  # for the short work that follows: on busy cores threads wait 20 ms for each other
        return done

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Use all threads for long work in the caller's thread, such as evaluation."""
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


Need = Literal["losses", "gradients"]
_UNITS = {"losses": 1, "gradients": 3}
_TRAINING_UNITS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """Results of the current model on a client's data."""

    loss: float  # mean over the samples
    rms_loss: float  # root of the mean squared loss over the samples: Oort's
    gradient: Tensor | None  # of the mean loss, flat; None if only losses were requested


def share(need: Need, probed: int, held: int, work: LocalWork) -> float:
    """Return the energy of a probe of `probed` samples over that of local training of a client that holds `held`."""
    trained = work.epochs * held if work.epochs is not None else work.steps * min(work.batch_size, held)
    return _UNITS[need] * probed / (_TRAINING_UNITS * trained)


@users_code("The probe of a client fails")
def probe(model: FlatModel, samples: Data, task: Task, need: Need) -> Probe:
    """Probe the model as it is loaded; its mode and its parameters do not change."""
    device, training = model.vector.device, model.module.training
    model.module.eval()
    x, y = (part.to(device) for part in samples.take(slice(None)))
    try:
        with torch.set_grad_enabled(need == "gradients"):
            outputs = model.module(model.inputs(x))
            mean = task.loss(outputs, y)
        gradient = None
        if need == "gradients":
            parts = torch.autograd.grad(mean, model.parameters, allow_unused=True)
            pairs = zip(parts, model.parameters, strict=True)
            gradient = torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])
        # A task's loss is a mean, so it is computed for each sample; the forward pass is shared.
        with torch.inference_mode():
            each = torch.stack([task.loss(outputs[i : i + 1].detach(), y[i : i + 1]) for i in range(len(y))])
            rms = float(each.double().square().mean().sqrt())
    finally:
        model.module.train(training)
    return Probe(loss=float(mean.detach()), rms_loss=rms, gradient=gradient)


BATCH = (
    250  # samples at once: the first layer of a small CNN then needs 26 MB, which a process can keep (`memory_kept`)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score by the task's metric, and the mean loss, on one data set."""

    value: float  # NaN where the metric does not exist, such as AUROC of one class
    loss: float
    samples: int


@users_code("The evaluation fails")
def evaluate(model: FlatModel, samples: Data, task: Task) -> Score:
    """Return score and loss of one pass over the samples, with one wait for the device at the end."""
    device = model.vector.device
    training = model.module.training
    model.module.eval()
    scorer = Scorer(task.scored_by, task.loss, device)
    loss = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    try:
        with torch.inference_mode():
            for first in range(0, len(samples), BATCH):
                x, y = (part.to(device, non_blocking=True) for part in samples.take(slice(first, first + BATCH)))
                outputs = model.module(model.inputs(x))
                loss += task.loss(outputs, y) * len(x)
                scorer.add(outputs, y)
    finally:
        model.module.train(training)
    mean = float(loss) / max(1, len(samples))
    return Score(value=scorer.value(mean), loss=mean, samples=len(samples))


def evaluate_each(model: FlatModel, parts: Sequence[Data], task: Task) -> tuple[Score, ...]:
    """Return the score on each part: every client's test data, or its training data for the F_c of equation (1)."""
    return tuple(evaluate(model, samples, task) for samples in parts)


def check_metric(model: FlatModel, task: Task) -> None:
    """Raise if there is nothing to score a model on, or if a metric of the user's own fails on the first model.

    A run would otherwise end at its first evaluation, or, for a client's own test set, after its last round.
    """
    if not len(task.test):
        raise ScenarioError(
            f"Task {task.name!r}: the test set is empty. Give it samples, since a run is scored on them."
        )
    if isinstance(task.scored_by, Metric):
        evaluate_each(model, (task.test, *task.client_tests), task)
