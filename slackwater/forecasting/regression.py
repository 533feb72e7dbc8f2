"""Ridge regression that shrinks to known weights instead of zero, for many zones at once, with out-of-sample errors."""

from __future__ import annotations

import csv
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError
from slackwater.forecasting.features import EDGES_H
from slackwater.forecasting.intervals import conformal

Floats = NDArray[np.float64]
T = TypeVar("T")

BLOCKS = 4


class FitCache(Generic[T]):
    """Keep the newest fits by what they were fitted on, so that the re-plans of a week share one."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, OrderedDict[bytes, T]()

    def get(self, values: Floats, label: str, make: Callable[[], T]) -> T:
        """Return the fit on these values and label; make it if it is not kept."""
        key = hashlib.blake2b(np.ascontiguousarray(values).tobytes() + label.encode()).digest()
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[key]


def read_weights(file: str, features: Sequence[str]) -> Floats:
    """Return the pooled weights [part of the leads, feature] of a file of the package."""
    text = files("slackwater.forecasting").joinpath(file).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    if [int(row["from_hour"]) for row in rows] != list(EDGES_H):
        raise DataError(f"{file} does not have the leads of the features; fit it anew.")
    return np.array([[float(row[name]) for name in features] for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Weights of one part of the leads."""

    weights: Floats
    """[zone, feature]"""
    errors: Floats
    """[zone, row], actual minus a forecast whose weights were fitted without the row's block of days."""

    days: float
    """From how many days the rows are."""

    def reach(self, coverage: float) -> tuple[Floats, Floats]:
        """Return what to add for the lower and the upper bound, each [zone]."""
        low, high = conformal(self.errors, coverage, self.days)
        return np.minimum(low, 0.0), np.maximum(high, 0.0)


def fit(features: Floats, target: Floats, prior: Floats, *, strength: float, days: float) -> Fit:
    """Fit weights to features [zone, row, feature] and target [zone, row], the rows in the order of time.

    After `strength` days the data counts as much as the prior. Days, not rows, measure what is known: neighbouring rows
    are nearly the same.
    """
    zones, rows = target.shape
    spread = target.std(axis=1)
    spread[spread == 0.0] = 1.0  # a constant zone: all deviations are 0, whatever they are divided by
    scaled, aim = features / spread[:, None, None], target / spread[:, None]
    cuts = np.linspace(0, rows, BLOCKS + 1).astype(np.int64)
    blocks = [slice(first, end) for first, end in itertools.pairwise(cuts)]
    days = max(days, 1.0)
    per_day = rows / days
    gram = np.array([scaled[:, block].transpose(0, 2, 1) @ scaled[:, block] for block in blocks]) / per_day
    moment = np.array([scaled[:, block].transpose(0, 2, 1) @ aim[:, block, None] for block in blocks])[..., 0] / per_day
    whole_gram, whole_moment = gram.sum(axis=0), moment.sum(axis=0)
    errors = np.empty((zones, rows))
    for number, block in enumerate(blocks):
        others = _solve(whole_gram - gram[number], whole_moment - moment[number], prior, strength)
        errors[:, block] = aim[:, block] - (scaled[:, block] @ others[..., None])[..., 0]
    weights = _solve(whole_gram, whole_moment, prior, strength)
    return Fit(weights=weights, errors=errors * spread[:, None], days=days)


def pooled(features: Floats, target: Floats, little: float = 1e-3) -> Floats:
    """Return one set of weights [feature] for all zones, each counting alike, whatever its spread."""
    spread = target.std(axis=1)
    spread[spread == 0.0] = 1.0
    scaled, aim = features / spread[:, None, None], target / spread[:, None]
    gram = np.einsum("znf,zng->fg", scaled, scaled) / aim.size
    moment = np.einsum("znf,zn->f", scaled, aim) / aim.size
    return np.asarray(np.linalg.solve(gram + little * np.eye(features.shape[2]), moment), dtype=np.float64)


def _solve(gram: Floats, moment: Floats, prior: Floats, strength: float) -> Floats:
    penalty = strength * np.eye(len(prior))
    solved = np.linalg.solve(gram + penalty, (moment + strength * prior)[..., None])[..., 0]
    return np.asarray(solved, dtype=np.float64)
