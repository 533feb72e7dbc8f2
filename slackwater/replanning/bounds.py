"""A stated upper bound of what a coming slot can emit, from what was seen before it; no forecast is asked.

Who trains in a slot draws energy in several zones. Their emissions together, had they drawn it in the past, are one
series x. The bound for the slot h after the last known one is

    min( margin * max x,  x_last + margin * max rise over h slots that ended within three hours of the same time of day )

over the last weeks. Zones rarely rise together, so this is tighter than bounds of the zones added up; and it tightens
as the slot comes nearer. It can be broken, by a rise that was never seen: back-tests count how often that happens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError

_NEAR_HOURS = 3
_LEAST_DAYS = 7
_MINUTES_PER_DAY = 1440
_MINUTES_PER_HOUR = 60


class Bounds:
    """Upper bounds at one moment, from the actuals known by then."""

    def __init__(self, known: Traces, *, margin: float = 1.5, lookback_days: int = 28) -> None:
        self.day = _MINUTES_PER_DAY // known.slot_minutes
        self.near = _NEAR_HOURS * _MINUTES_PER_HOUR // known.slot_minutes
        if known.slots < _LEAST_DAYS * self.day:
            raise DataError(
                f"Upper bounds need {_LEAST_DAYS} days of actual intensity before the run; there are "
                f"{known.slots / self.day:.1f}. Start later, or load more of the past."
            )
        self.recent: NDArray[np.float64] = known.intensity[:, -lookback_days * self.day :]
        self.margin = margin

    def kg(self, energy_kwh: NDArray[np.float64], lead: int) -> float:
        """Bound of the emissions of this energy [zone] in the slot `lead` slots after the last known one."""
        return self.kg_from(energy_kwh, float(energy_kwh @ self.recent[:, -1]), lead=lead, ahead=lead)

    def kg_from(self, energy_kwh: NDArray[np.float64], last_kg: float, *, lead: int, ahead: int) -> float:
        """Bound as it will be when the slot that is `ahead` slots ahead now is only `lead` after a known one of `last_kg`."""
        series = energy_kwh @ self.recent
        highest = self.margin * float(series.max())
        rises = self._rises(series, lead, ahead)
        if not len(rises):
            return highest
        return min(highest, last_kg + self.margin * max(0.0, float(rises.max())))

    def _rises(self, series: NDArray[np.float64], over: int, ahead: int) -> NDArray[np.float64]:
        """Rises over so many slots that ended near the time of day of the slot `ahead` slots ahead, in the past."""
        if over >= len(series) - self.day:
            return np.empty(0)
        away = (np.arange(over, len(series)) - (len(series) + ahead - 1) + self.near) % self.day
        return (series[over:] - series[:-over])[away <= 2 * self.near]
