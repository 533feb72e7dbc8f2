"""Forecasts that are as wrong as can be, to see what a run does with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.oracle import Oracle


class NoForecastError(DataError):
    """There is no forecast; the run goes on without."""


class Reversed:
    """The truth mirrored: the cleanest hour of a zone is called its dirtiest."""

    name = "reversed"

    def __init__(self, truth: Traces) -> None:
        self.oracle = Oracle(truth)

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Mirrored between the least and the largest of the coming slots."""
        true = self.oracle.forecast(history, slots)
        mirrored = true.mean.max(axis=1, keepdims=True) + true.mean.min(axis=1, keepdims=True) - true.mean
        return _sure_of(true, mirrored, self.name)


class Scaled:
    """The truth times a factor: twice as dirty, or half."""

    def __init__(self, truth: Traces, *, factor: float, name: str) -> None:
        self.oracle = Oracle(truth)
        self.factor = factor
        self.name = name

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """All values times the factor."""
        true = self.oracle.forecast(history, slots)
        return _sure_of(true, self.factor * true.mean, self.name)


class Constant:
    """One value for all zones and hours: there seems nothing to choose."""

    name = "constant"

    def __init__(self, truth: Traces) -> None:
        self.oracle = Oracle(truth)

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """The mean of the last known slot over the zones."""
        true = self.oracle.forecast(history, slots)
        return _sure_of(true, np.full_like(true.mean, history.intensity[:, -1].mean()), self.name)


class Missing:
    """Nothing comes."""

    name = "missing"

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Never a forecast."""
        raise NoForecastError(f"There is no forecast of the {slots} slots after {history.end:%Y-%m-%d %H:%M}Z.")


ADVERSARIAL = ("reversed", "doubled", "halved", "constant", "missing")


def adversary(name: str, truth: Traces) -> Reversed | Scaled | Constant | Missing:
    """A forecaster that is wrong in the way its name says."""
    if name == "reversed":
        return Reversed(truth)
    if name == "doubled":
        return Scaled(truth, factor=2.0, name=name)
    if name == "halved":
        return Scaled(truth, factor=0.5, name=name)
    if name == "constant":
        return Constant(truth)
    if name == "missing":
        return Missing()
    raise ScenarioError(f"There is no adversarial forecast {name!r}. There are {', '.join(ADVERSARIAL)}.")


def _sure_of(true: Forecast, mean: np.ndarray[tuple[int, int], np.dtype[np.float64]], name: str) -> Forecast:
    """The wrong values with an interval of no width: wrong, and sure of it."""
    return replace(true, mean=mean, low=mean, high=mean, source=name)
