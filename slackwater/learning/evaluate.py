"""Evaluation of a model on the global test set, on each client's own distribution, and by the paper's F."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slackwater.learning.flat import FlatModel
from slackwater.learning.task import Samples, Task

BATCH = 1000  # samples at once, to bound the memory; not tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Accuracy and mean loss on one data set."""

    accuracy: float
    loss: float
    samples: int


def evaluate(model: FlatModel, samples: Samples, task: Task) -> Score:
    """Return accuracy and loss of one pass over the samples; the device is waited for once, at the end."""
    device = model.vector.device
    training = model.module.training
    model.module.eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    try:
        with torch.inference_mode():
            for first in range(0, len(samples), BATCH):
                x = samples.x[first : first + BATCH].to(device, non_blocking=True)
                y = samples.y[first : first + BATCH].to(device, non_blocking=True)
                outputs = model.module(model.inputs(x))
                loss += task.loss(outputs, y) * len(x)
                correct += task.correct(outputs, y)
    finally:
        model.module.train(training)
    count = max(1, len(samples))
    return Score(accuracy=int(correct) / count, loss=float(loss) / count, samples=len(samples))


def evaluate_each(model: FlatModel, parts: Sequence[Samples], task: Task) -> tuple[Score, ...]:
    """Return the score on each part: every client's test data, or its training data for the F_c of equation (1)."""
    return tuple(evaluate(model, samples, task) for samples in parts)
