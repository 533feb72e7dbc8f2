"""Local SGD on one client: lines 4 to 8 of Algorithm 1. Nothing in a step waits for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slackwater.learning.flat import FlatModel
from slackwater.learning.global_model import Update
from slackwater.learning.task import Samples, Task

BATCHES, DEVICES, MODEL = 0, 1, 2  # purposes of random numbers: each has its own stream


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWork:
    """What a client does in a slot: plain SGD, `steps` of it or `epochs` if given."""

    steps: int
    epochs: int | None
    batch_size: int
    lr: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalUpdate(Update):
    """An update with what is known of the local training."""

    loss: float  # mean over the local steps, each before its step
    finite: bool  # whether loss and update are numbers


def stream(seed: int, *keys: int) -> int:
    """Return a seed for one purpose, client and slot: independent of the order of training, and of resuming."""
    return int(np.random.SeedSequence([seed, *keys]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def batches(samples: int, work: LocalWork, seed: int) -> list[Tensor | None]:
    """Return the indices of each step's batch, in shuffled epochs; None is the whole set, if that is at most a batch.

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


def train_locally(
    model: FlatModel, start: Tensor, buffers: Mapping[str, Tensor], samples: Samples, task: Task, work: LocalWork,
    seed: int,
) -> LocalUpdate:  # fmt: skip
    """Train from the global model on one client's samples; `model` is the workspace."""
    model.load(start, buffers)
    model.module.train()
    device = start.device
    loss_sum = torch.zeros((), device=device)
    keep = 1.0 - work.lr * work.weight_decay
    plan = batches(len(samples), work, stream(seed, BATCHES))
    for chosen in plan:
        if chosen is None:
            x, y = samples.x, samples.y
        else:
            index = chosen.to(samples.x.device, non_blocking=True)
            x, y = samples.x[index], samples.y[index]
        loss = task.loss(model.module(model.inputs(x.to(device, non_blocking=True))), y.to(device, non_blocking=True))
        gradients = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        with torch.no_grad():
            # theta <- theta - lr (gradient + weight_decay theta): the decay in one pass, then the gradients.
            model.vector.mul_(keep)
            used = [(p, g) for p, g in zip(model.parameters, gradients, strict=True) if g is not None]
            torch._foreach_add_([p for p, _ in used], [g for _, g in used], alpha=-work.lr)
            loss_sum += loss.detach()
    with torch.no_grad():
        update = start - model.vector
        mean = float(loss_sum) / max(1, len(plan))  # the one wait for the device
        finite = bool(np.isfinite(mean)) and bool(torch.isfinite(update).all())
    return LocalUpdate(update=update, buffers=model.copy_buffers(), loss=mean, finite=finite)
