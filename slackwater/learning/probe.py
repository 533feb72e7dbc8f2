"""Probes: losses or gradient of the current model on the data of clients that do not train, for some policies.

Probes are charged. A sample's forward pass is one unit and its backward pass two. Local training of S steps with
batches of B costs 3 S B units, losses of m samples m, their gradient 3 m: a probe's energy is that share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slackwater.learning.flat import FlatModel
from slackwater.learning.local import LocalWork
from slackwater.learning.task import Samples, Task

Need = Literal["losses", "gradients"]
_UNITS = {"losses": 1, "gradients": 3}
_TRAINING_UNITS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """The current model on a client's data."""

    loss: float  # mean over the samples
    rms_loss: float  # root of the mean squared loss over the samples: Oort's
    gradient: Tensor | None  # of the mean loss, flat; None if only losses were asked for


def share(need: Need, probed: int, held: int, work: LocalWork) -> float:
    """Return the energy of a probe of `probed` samples over that of local training of a client that holds `held`."""
    trained = work.epochs * held if work.epochs is not None else work.steps * min(work.batch_size, held)
    return _UNITS[need] * probed / (_TRAINING_UNITS * trained)


def probe(model: FlatModel, samples: Samples, task: Task, need: Need) -> Probe:
    """Probe the model as it is loaded; its mode and its parameters do not change."""
    device, training = model.vector.device, model.module.training
    model.module.eval()
    x, y = samples.x.to(device), samples.y.to(device)
    try:
        with torch.set_grad_enabled(need == "gradients"):
            outputs = model.module(model.inputs(x))
            mean = task.loss(outputs, y)
        gradient = None
        if need == "gradients":
            parts = torch.autograd.grad(mean, model.parameters, allow_unused=True)
            pairs = zip(parts, model.parameters, strict=True)
            gradient = torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])
        # A task's loss is a mean, so samples are asked one by one; the forward pass is shared.
        with torch.inference_mode():
            each = torch.stack([task.loss(outputs[i : i + 1].detach(), y[i : i + 1]) for i in range(len(y))])
            rms = float(each.double().square().mean().sqrt())
    finally:
        model.module.train(training)
    return Probe(loss=float(mean.detach()), rms_loss=rms, gradient=gradient)
