"""What to keep back of the budget because forecasts err."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slackwater.forecasting.forecast import Forecast
from slackwater.replanning.replay import Replay, by_part

WIDENED = 0.7
"""Standard deviations that are added to what the interval says where no plan of the past could be looked at."""
_CERTAIN, _LEAST_COVERAGE = 1 - 1e-9, 0.1
"""An interval that is to hold less often says nothing of the size of errors."""


def usable_share(
    forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float, replay: Replay | None
) -> float:
    """Share of what is left to plan with, so that it is kept with the probability; the rest is the reserve.

    The plan draws the energy [zone, slot], or about that. Read off plans of the past, or where there are none off the
    forecast's interval, widened. The reserve falls as slots settle: those to come are nearer.
    """
    if probability <= 0:
        return 1.0
    kg = energy_kwh * forecast.mean
    if replay is not None:
        return replay.usable(by_part(kg.sum(axis=0), forecast.slot_minutes), probability)
    total = float(kg.sum())
    return total / (total + interval_kg(forecast, energy_kwh, probability)) if total > 0 else 1.0


def interval_kg(forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float) -> float:
    """By the forecast's interval, which gives the size of a slot's error.

    The errors of one zone last for hours, so they are taken to go all the same way; those of different zones are taken
    to be independent. That the slots were chosen because they look cheap is not in the interval: `WIDENED` is added.
    """
    law = NormalDist()
    # `high` has half of what the interval leaves out above it.
    reach = law.inv_cdf(min(0.5 + max(forecast.coverage, _LEAST_COVERAGE) / 2, _CERTAIN))
    deviation = (energy_kwh * (forecast.high - forecast.mean)).sum(axis=1) / reach
    return float((WIDENED + law.inv_cdf(probability)) * np.sqrt((deviation**2).sum()))
