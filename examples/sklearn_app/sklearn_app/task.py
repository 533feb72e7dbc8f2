"""The learning task: handwritten digits, and a linear classifier of scikit-learn whose coefficients are the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.linear_model import SGDClassifier  # type: ignore[import-untyped]

CLASSES, FEATURES, SITES = 10, 64, 3
Model = dict[str, NDArray[np.float64]]
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def initial() -> Model:
    return {"coef": np.zeros((CLASSES, FEATURES)), "intercept": np.zeros(CLASSES)}


def load_data(partition: int) -> Data:
    """Return the data of one client: every third digit, of those not kept for the test."""
    x, y = load_digits(return_X_y=True)
    return x[500 + partition :: SITES] / 16.0, y[500 + partition :: SITES]


def train(model: Model, data: Data, *, epochs: int, seed: int) -> tuple[Model, float]:
    """Return the model after some epochs of SGD, and its loss."""
    x, y = data
    estimator = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=seed % 2**32)
    estimator.partial_fit(x[:1], y[:1], classes=np.arange(CLASSES))  # scikit-learn makes the arrays at the first fit
    estimator.coef_, estimator.intercept_ = model["coef"].copy(), model["intercept"].copy()
    for _ in range(epochs):
        estimator.partial_fit(x, y)
    shares = estimator.predict_proba(x)[np.arange(len(y)), y]
    return {"coef": estimator.coef_, "intercept": estimator.intercept_}, float(-np.log(shares + 1e-12).mean())


def evaluate(model: Model) -> dict[str, float]:
    """Return the accuracy on the digits kept for the test."""
    x, y = load_digits(return_X_y=True)
    scores = x[:500] / 16.0 @ model["coef"].T + model["intercept"]
    return {"accuracy": float((scores.argmax(axis=1) == y[:500]).mean())}
