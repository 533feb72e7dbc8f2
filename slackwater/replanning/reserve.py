"""What to keep back of the budget because forecasts err."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slackwater.forecasting.forecast import Forecast

_CERTAIN = 1 - 1e-9


def reserve_kg(forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float) -> float:
    """By how much the energy [zone, slot] may emit more than forecast, but for 1 - `probability`.

    The forecast's interval gives the size of a slot's error. The errors of one zone last for hours, so they are taken to
    go all the same way; those of different zones are taken to be independent. As slots settle there are fewer to come,
    and those are nearer: the reserve falls by itself.
    """
    if probability <= 0.5:
        return 0.0
    law = NormalDist()
    # `high` has half of what the interval leaves out above it.
    reach = law.inv_cdf(min(0.5 + forecast.coverage / 2, _CERTAIN))
    deviation = (energy_kwh * (forecast.high - forecast.mean)).sum(axis=1) / reach
    return float(law.inv_cdf(probability) * np.sqrt((deviation**2).sum()))
