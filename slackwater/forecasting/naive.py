"""Forecasts without a model, from a day or a week of history: the baseline that others must beat."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.intervals import bounds, check_coverage, past_errors

logger = logging.getLogger(__name__)

COVERAGE = 0.8
MINUTES_PER_DAY = 1440


def slots_per_day(history: Traces) -> int:
    """Return the number of slots of a day."""
    return MINUTES_PER_DAY // history.slot_minutes


def check_request(history: Traces, slots: int) -> None:
    """Raise an error if there is no history, or nothing to forecast."""
    if history.slots < 1:
        raise DataError("There is no history to forecast from; give at least one slot of it, better four weeks.")
    if slots < 1:
        raise ScenarioError(f"slots is {slots}; forecast at least one.")


class SameHourMean:
    """Forecast the mean of the last `days` days at the same hour; of fewer if the history is shorter."""

    def __init__(self, days: int = 7, *, coverage: float = COVERAGE) -> None:
        if days < 1:
            raise ScenarioError(f"days is {days}; take the mean of at least one day.")
        self.name = "same-hour-mean" if days > 1 else "persistence"
        self.days = days
        self.coverage = check_coverage(coverage)
        self._said = False

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the same for every coming day; with less than a day of history, the mean of it."""
        check_request(history, slots)
        day = slots_per_day(history)
        source = self.name
        if history.slots < day * self.days:
            said = f"{history.slots} slots of history, {day * self.days} wanted"
            if not self._said:  # once, not at every re-planning
                logger.warning("The forecast %r has only %s; it takes the mean of those.", self.name, said)
            self._said = True
            source = f"{self.name} (short history: {said})"

        def predict(past: NDArray[np.float64], ahead: int) -> NDArray[np.float64]:
            return same_hour_mean(past, ahead, day, self.days)

        mean = predict(history.intensity, slots)
        errors = past_errors(history.intensity, slots, day, day, predict)
        low, high = bounds(mean, errors, day, self.coverage)
        return Forecast.after(history, mean, low, high, coverage=self.coverage, source=source)

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> NDArray[np.float64]:
        """Return the means [origin, zone, slot] of `forecast` for histories that end at these slots."""
        day = slots_per_day(truth)
        return np.array([same_hour_mean(truth.intensity[:, :origin], slots, day, self.days) for origin in origins])


class Persistence(SameHourMean):
    """Repeat the last 24 hours."""

    def __init__(self, *, coverage: float = COVERAGE) -> None:
        super().__init__(1, coverage=coverage)


def same_hour_mean(past: NDArray[np.float64], slots: int, day: int, days: int) -> NDArray[np.float64]:
    """Return [zone, slot]: the mean over the whole days at the end of `past`, at most `days`, repeated."""
    whole = min(days, past.shape[1] // day)
    if whole == 0:
        return np.repeat(past.mean(axis=1, keepdims=True), slots, axis=1)
    profile = past[:, -whole * day :].reshape(past.shape[0], whole, day).mean(axis=1)
    return np.tile(profile, -(-slots // day))[:, :slots]
