"""The truth as a forecast: what the best of all forecasters would give, for back-tests only."""

from __future__ import annotations

import numpy as np

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError
from slackwater.forecasting.forecast import Forecast


def rows_of(truth: Traces, history: Traces, slots: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The truth of the slots after `history`, [zone, slot] in the order of history's zones."""
    if truth.factor != history.factor or truth.slot_minutes != history.slot_minutes:
        raise DataError(
            f"The truth is {truth.factor} in slots of {truth.slot_minutes} minutes, the history {history.factor} in "
            f"slots of {history.slot_minutes}; load both alike."
        )
    ahead = truth.window(history.end, slots).intensity
    rows: np.ndarray[tuple[int, int], np.dtype[np.float64]] = ahead[[truth.index(zone) for zone in history.zones]]
    return rows


class Oracle:
    """Knows what comes. No forecast can save more than planning on this one."""

    name = "oracle"

    def __init__(self, truth: Traces) -> None:
        self.truth = truth

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """What will be."""
        ahead = rows_of(self.truth, history, slots)
        return Forecast(
            zones=history.zones,
            start=history.end,
            mean=ahead,
            low=ahead,
            high=ahead,
            coverage=1.0,
            factor=history.factor,
            source=self.name,
            slot_minutes=history.slot_minutes,
        )
