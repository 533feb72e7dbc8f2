"""The truth as a forecast, for back-tests only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError
from slackwater.forecasting.forecast import Forecast


def rows_of(truth: Traces, history: Traces, slots: int) -> NDArray[np.float64]:
    """Return the truth of the slots after `history`, [zone, slot] in the order of history's zones."""
    if truth.factor != history.factor or truth.slot_minutes != history.slot_minutes:
        raise DataError(
            f"The truth is {truth.factor} in slots of {truth.slot_minutes} minutes, the history {history.factor} in "
            f"slots of {history.slot_minutes}; load both alike."
        )
    return truth.window(history.end, slots).intensity[[truth.index(zone) for zone in history.zones]]


class Oracle:
    """Forecast the truth: no other forecast can save more."""

    name = "oracle"

    def __init__(self, truth: Traces) -> None:
        self.truth = truth

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the truth of the coming slots."""
        ahead = rows_of(self.truth, history, slots)
        return Forecast.after(history, ahead, ahead, ahead, coverage=1.0, source=self.name)
