"""Train a small network with many rules and seeds at once, for the search of the study `auto`.

This is Algorithm 1 as in `slackwater.train`, for one hidden layer on images averaged to 14 x 14. The gradient is explicit,
so that clients of a slot, seeds and rules of a schedule share matrix products. A test compares it with `slackwater.train`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import slackwater as sw
from slackwater.training.aggregators import Aggregator, FedAvg, Participation
from slackwater.training.local import BATCHES, LocalWork, batches
from slackwater.training.process import stream
from slackwater.training.task import Samples, Task
from slackwater.training.tasks import mlp

HIDDEN, CLASSES = 64, 10
BATCH, WEIGHT_DECAY = 128, 5e-4
_AT_ONCE = 24
"""Models in one matrix product: more do not fit the processor cache."""
_MOST_TASKS = 6
_LARGE = 28
"""Side of the images to be averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of several training runs on the same schedule."""

    rule: Aggregator
    seed: int
    lr: float = 0.1
    fade: float = 1.0
    """Share of the learning rate in the last round, falling linearly; 1: constant."""
    window: Aggregator | None = None
    """The rule in the window; None: plain FedAvg, as in Algorithm 1."""
    cool: float = 1.0
    """Factor of the learning rate in the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run; accuracies are shares, None if it diverged."""

    accuracy: float | None
    worst_client: float | None
    others: Mapping[str, float]
    """Accuracy of models at no extra cost: means of the last rounds, a longer or shorter last step."""


@lru_cache(_MOST_TASKS)
def small_task(name: str, data: str | None, beta: float, seed: int, clients: int = 7) -> Task:
    """Return MNIST or a task in its format with 2 x 2 pixels averaged; smaller images, such as the digits, stay as they are."""
    options = {} if data is None else {"data": data}
    task = sw.tasks.make(name, clients=clients, beta=beta, seed=seed, model="mlp", **options)
    size = _pooled(task.test).x.shape[-1]
    return replace(
        task,
        name=f"{name}-{size}x{size}",
        clients=tuple(_pooled(samples) for samples in task.clients),
        test=_pooled(task.test),
        client_tests=tuple(_pooled(samples) for samples in task.client_tests),
        model=partial(mlp, 1, size, CLASSES, HIDDEN),
        record={},
    )


def _pooled(samples: Samples) -> Samples:
    return Samples(x=avg_pool2d(samples.x, 2) if samples.x.shape[-1] == _LARGE else samples.x, y=samples.y)


def train(
    plan: sw.Plan,
    task_of: Mapping[int, Task],
    runs: Sequence[Run],
    *,
    local_steps: int | NDArray[np.intp],
    others: bool = False,
) -> list[Outcome]:
    """Run Algorithm 1 for all runs together; `task_of` has the task of each seed, `local_steps` may be [client, slot]."""
    matrix, names = plan.matrix, plan.problem.fleet.names
    steps_of = np.broadcast_to(local_steps, matrix.shape)
    slots = [int(slot) for slot in np.flatnonzero(matrix.any(axis=0))]
    theta = torch.stack([_initial(task_of[run.seed], run.seed) for run in runs])
    kept: list[Tensor] = []
    fedavg, before = FedAvg(), theta
    for number, slot in enumerate(slots):
        clients = [int(client) for client in np.flatnonzero(matrix[:, slot])]
        progress, in_window = number / max(1, len(slots) - 1), slot in plan.window
        rates = [run.lr * (1 - (1 - run.fade) * progress) * (run.cool if in_window else 1.0) for run in runs]
        local = _local_models(theta, runs, clients, slot, rates, task_of, steps_of)
        who = Participation(slot=slot, number=number, clients=len(names), pi=plan.metrics.pi)
        before, steps = theta, []
        for i, run in enumerate(runs):
            rule = (run.window or fedavg) if in_window else run.rule
            steps.append(rule.aggregate({c: theta[i] - local[i, j] for j, c in enumerate(clients)}, who).update)
        theta = theta - torch.stack(steps)
        if others and number >= len(slots) * 3 // 4:
            kept.append(theta)
    outcomes = []
    for i, run in enumerate(runs):
        task, final = task_of[run.seed], theta[i]
        if not bool(torch.isfinite(final).all()):
            outcomes.append(Outcome(accuracy=None, worst_client=None, others={}))
            continue
        more = _other_models(before[i], [model[i] for model in kept]) if others else {}
        outcomes.append(
            Outcome(
                accuracy=_accuracy(final, task.test),
                worst_client=min(_accuracy(final, samples) for samples in task.client_tests),
                others={name: _accuracy(model, task.test) for name, model in more.items()},
            )
        )
    return outcomes


def _other_models(before: Tensor, kept: Sequence[Tensor]) -> dict[str, Tensor]:
    last = kept[-1]
    models = {f"step{scale:g}": before + scale * (last - before) for scale in (0.75, 1.25, 1.5)}
    models |= {f"mean{n}": torch.stack(list(kept[-n:])).mean(0) for n in (2, 3, 5) if n <= len(kept)}
    return models | {"mean25%": torch.stack(list(kept)).mean(0)}


def _initial(task: Task, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.cat([parameter.detach().reshape(-1) for parameter in task.model().parameters()])


def _local_models(
    theta: Tensor,
    runs: Sequence[Run],
    clients: Sequence[int],
    slot: int,
    rates: Sequence[float],
    task_of: Mapping[int, Task],
    steps_of: NDArray[np.intp],
) -> Tensor:
    """Return [run, client, parameter], the clients' models after local training."""
    of_seed: dict[int, list[int]] = {}
    for i, run in enumerate(runs):
        of_seed.setdefault(run.seed, []).append(i)
    ends = theta.new_empty(len(runs), len(clients), theta.shape[1])
    lrs = torch.tensor(rates)
    kinds = {(len(members), int(steps_of[c, slot])) for members in of_seed.values() for c in clients}
    for count, steps in sorted(kinds):  # group seeds with the same number of runs, and clients with the same steps
        jobs = [
            (seed, j)
            for seed, members in of_seed.items()
            for j, client in enumerate(clients)
            if (len(members), steps_of[client, slot]) == (count, steps)
        ]
        size = max(1, _AT_ONCE // count)
        for part in (jobs[first : first + size] for first in range(0, len(jobs), size)):
            held = [(task_of[seed].clients[clients[j]], stream(seed, clients[j], slot)) for seed, j in part]
            members = torch.tensor([of_seed[seed] for seed, _ in part])
            models = _descend(theta[members], [_batches(*one, steps) for one in held], lrs[members])
            ends[members, torch.tensor([j for _, j in part])[:, None]] = models
    return ends


def _batches(samples: Samples, seed: int, steps: int) -> tuple[Tensor, Tensor, int]:
    """Return inputs [step, BATCH, pixel] and labels [step, BATCH] of a client in a slot, and how many of a batch count."""
    work = LocalWork(steps=steps, epochs=None, batch_size=BATCH, lr=0.0, weight_decay=WEIGHT_DECAY)
    picked = batches(len(samples), work, stream(seed, BATCHES))
    if picked[0] is None:  # the whole set is the batch, padded with samples of no weight
        index = torch.arange(BATCH).clamp(max=len(samples) - 1).expand(steps, BATCH)
    else:
        index = torch.stack([one for one in picked if one is not None])
    return samples.x.flatten(1)[index], samples.y[index], min(len(samples), BATCH)


def _descend(start: Tensor, work: Sequence[tuple[Tensor, Tensor, int]], rates: Tensor) -> Tensor:
    """Run local SGD on models [job, run, parameter] in parallel; the runs of a job use the same batches."""
    jobs, runs, _ = start.shape
    w1, b1, w2, b2 = _layers(start.reshape(jobs * runs, -1))
    w1, w2 = w1.reshape(jobs, runs * HIDDEN, -1).clone(), w2.reshape(jobs, runs, CLASSES, HIDDEN).clone()
    b1, b2 = b1.reshape(jobs, 1, runs * HIDDEN).clone(), b2.reshape(jobs, runs, 1, CLASSES).clone()
    lr = rates.reshape(jobs, runs, 1, 1)
    keep = 1.0 - lr * WEIGHT_DECAY
    wide = keep.expand(jobs, runs, HIDDEN, 1).reshape(jobs, runs * HIDDEN, 1)
    share = torch.zeros(jobs, 1, BATCH, 1)
    for row, (_, _, size) in zip(share, work, strict=True):
        row[:, :size] = 1.0 / size
    scale = lr * share
    x_all, y_all = torch.stack([one[0] for one in work], dim=1), torch.stack([one[1] for one in work], dim=1)
    minus = torch.full((jobs, runs, BATCH, 1), -1.0)
    for x, y in zip(x_all, y_all, strict=True):
        hidden = torch.baddbmm(b1, x, w1.transpose(1, 2)).relu_()
        each = hidden.view(jobs, BATCH, runs, HIDDEN).transpose(1, 2)
        error = (each @ w2.transpose(2, 3) + b2).softmax(dim=3)
        error.scatter_add_(3, y[:, None, :, None].expand(jobs, runs, BATCH, 1), minus)
        error *= scale  # apply the rate here: every gradient includes it
        back = (error @ w2).transpose(1, 2).reshape(jobs, BATCH, runs * HIDDEN)
        back *= hidden > 0
        w1.mul_(wide).baddbmm_(back.transpose(1, 2), x, alpha=-1)
        w2.mul_(keep).sub_(error.transpose(2, 3) @ each)
        b1.mul_(wide.transpose(1, 2)).sub_(back.sum(dim=1, keepdim=True))
        b2.mul_(keep).sub_(error.sum(dim=2, keepdim=True))
    return torch.cat([part.reshape(jobs, runs, -1) for part in (w1, b1, w2, b2)], dim=2)


def _layers(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights and biases of flat models, in the order of PyTorch's parameters."""
    models = len(theta)
    inputs = (theta.shape[1] - CLASSES * (HIDDEN + 1)) // HIDDEN - 1
    shapes = ((HIDDEN, inputs), (1, HIDDEN), (CLASSES, HIDDEN), (1, CLASSES))
    parts = torch.split(theta, [math.prod(shape) for shape in shapes], dim=1)
    w1, b1, w2, b2 = (part.reshape(models, *shape) for part, shape in zip(parts, shapes, strict=True))
    return w1, b1, w2, b2


def _accuracy(theta: Tensor, samples: Samples) -> float:
    w1, b1, w2, b2 = (part[0] for part in _layers(theta[None]))
    hidden = nn.functional.linear(samples.x.flatten(1), w1, b1[0]).relu_()
    right = nn.functional.linear(hidden, w2, b2[0]).argmax(dim=1) == samples.y
    return float(right.double().mean())
