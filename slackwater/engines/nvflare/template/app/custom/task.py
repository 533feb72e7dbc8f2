"""The learning task: data, model and local training. Replace it with your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

CLASSES, FEATURES, SAMPLES = 10, 32, 400


class Model(nn.Sequential):
    """A small network."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def initial_model() -> Mapping[str, Tensor]:
    """Return the model that the run starts with."""
    torch.manual_seed(0)
    return Model().state_dict()


def load_arrays(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Set a model to the arrays that FLARE sent."""
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def load_data(site: str) -> tuple[Tensor, Tensor]:
    """Return the data of one site: points in clusters, most of them from a few classes."""
    random = np.random.default_rng([1, *site.encode()])
    return _draw(random, random.dirichlet(np.full(CLASSES, 0.5)), SAMPLES)


def load_test_data() -> tuple[Tensor, Tensor]:
    """Return the test data, with equal shares of all classes."""
    return _draw(np.random.default_rng(2), np.full(CLASSES, 1 / CLASSES), 2000)


def train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    *,
    steps: int,
    batch_size: int,
    lr: float,
    out_of_time: Callable[[], bool],
) -> float:
    """Train with plain SGD until it is done or the slot ends; return the mean loss."""
    x, y = data
    parameters = list(model.parameters())
    losses = []
    for _ in range(steps):
        if out_of_time():
            break
        batch = torch.randint(len(x), (batch_size,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(gradient, alpha=lr)
        losses.append(float(loss.detach()))
    return sum(losses) / max(len(losses), 1)


def evaluate(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return accuracy and loss of a model on the test data."""
    model = Model()
    load_arrays(model, arrays)
    x, y = load_test_data()
    with torch.no_grad():
        outputs = model(x)
    return {
        "accuracy": float((outputs.argmax(dim=1) == y).float().mean()),
        "loss": float(nn.functional.cross_entropy(outputs, y)),
    }


def _draw(random: np.random.Generator, shares: np.ndarray, samples: int) -> tuple[Tensor, Tensor]:
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = random.choice(CLASSES, size=samples, p=shares)
    points = centres[labels] + random.normal(scale=1.5, size=(samples, FEATURES))
    return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)
