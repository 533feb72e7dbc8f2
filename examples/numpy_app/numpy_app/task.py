"""The learning task: points in clusters, and softmax regression. Only NumPy is needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

CLASSES, FEATURES = 10, 32
Model = dict[str, NDArray[np.float32]]
Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def initial() -> Model:
    return {"weight": np.zeros((FEATURES, CLASSES), dtype=np.float32), "bias": np.zeros(CLASSES, dtype=np.float32)}


def load_data(partition: int, samples: int = 400) -> Data:
    """Return the data of one client: most of its points are from a few classes."""
    random = np.random.default_rng([1, partition])
    return _draw(random, random.dirichlet(np.full(CLASSES, 0.5)), samples)


def train(
    model: Model, data: Data, *, steps: int, batch_size: int, lr: float, seed: int, out_of_time: Callable[[], bool]
) -> float:
    """Train with SGD until it is done or the slot ends; return the mean loss."""
    x, y = data
    random, losses = np.random.default_rng(seed), [0.0][:0]
    for _ in range(steps):
        if out_of_time():
            break
        batch = random.integers(len(x), size=batch_size)
        shares = _shares(model, x[batch])
        losses.append(float(-np.log(shares[np.arange(batch_size), y[batch]] + 1e-12).mean()))
        shares[np.arange(batch_size), y[batch]] -= 1
        model["weight"] -= lr / batch_size * x[batch].T @ shares
        model["bias"] -= lr * shares.mean(axis=0)
    return sum(losses) / max(len(losses), 1)


def evaluate(model: Model) -> dict[str, float]:
    """Return accuracy and loss on test data with equal shares of all classes."""
    x, y = _draw(np.random.default_rng(2), np.full(CLASSES, 1 / CLASSES), 2000)
    shares = _shares(model, x)
    loss = float(-np.log(shares[np.arange(len(y)), y] + 1e-12).mean())
    return {"accuracy": float((shares.argmax(axis=1) == y).mean()), "loss": loss}


def _shares(model: Model, x: NDArray[np.float32]) -> NDArray[np.float32]:
    scores = x @ model["weight"] + model["bias"]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)


def _draw(random: np.random.Generator, shares: NDArray[np.float64], samples: int) -> Data:
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = random.choice(CLASSES, size=samples, p=shares)
    points = centres[labels] + random.normal(scale=1.5, size=(samples, FEATURES))
    return points.astype(np.float32), labels
