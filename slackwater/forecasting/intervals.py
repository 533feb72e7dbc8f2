"""Prediction intervals from a method's own past errors, by zone and lead: no law of the errors is assumed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError

Floats = NDArray[np.float64]
Predict = Callable[[Floats, int], Floats]
"""From the past [zone, slot] to so many coming slots [zone, slot]."""

ORIGINS = 21
"""Past origins whose errors are looked at, one a day."""


def past_errors(past: Floats, slots: int, day: int, least: int, predict: Predict) -> Floats:
    """Actual minus forecast, [origin, zone, slot], as the method would have erred a day ago, two days ago, ...

    `least` is the number of slots that the method needs before an origin. NaN where the actual is not known yet.
    """
    known = past.shape[1]
    origins = [known - day * back for back in range(1, ORIGINS + 1) if known - day * back >= least]
    errors = np.full((len(origins), past.shape[0], slots), np.nan)
    for number, origin in enumerate(origins):
        seen = min(slots, known - origin)
        errors[number, :, :seen] = past[:, origin : origin + seen] - predict(past[:, :origin], seen)
    return errors


def bounds(mean: Floats, errors: Floats, day: int, coverage: float) -> tuple[Floats, Floats]:
    """Low and high around `mean` [zone, slot]: the conformal quantiles of the errors [origin, zone, slot].

    Errors of the same day ahead count together, and a day for which there are none takes those of the day before it, a
    little wider. Where there are no errors at all the interval is as wide as the forecast itself: nothing is known of it.
    """
    slots = mean.shape[1]
    low, high = np.zeros_like(mean), np.zeros_like(mean)
    previous = np.full((2, mean.shape[0]), np.nan)
    for first in range(0, slots, day):
        part = slice(first, min(first + day, slots))
        seen = errors[:, :, part].transpose(1, 0, 2).reshape(mean.shape[0], -1)
        reach = np.array(conformal(seen, coverage, max(len(errors), 1)))
        reach = np.array([np.minimum(reach[0], 0.0), np.maximum(reach[1], 0.0)])
        previous = np.where(np.isnan(reach), 1.1 * previous, reach)
        low[:, part] = mean[:, part] + previous[0][:, None]
        high[:, part] = mean[:, part] + previous[1][:, None]
    return np.where(np.isnan(low), 0.0, np.maximum(low, 0.0)), np.where(np.isnan(high), 2.0 * mean, high)


def conformal(errors: Floats, coverage: float, days: float) -> tuple[Floats, Floats]:
    """Lower and upper quantile of the errors [zone, n], each with the (n + 1) / n of split conformal prediction.

    For n stands the number of days that the errors come from: those of one day are not independent of each other. NaN is
    left out; a zone without errors gets NaN.
    """
    tail = (1.0 - coverage) / 2.0
    reach = min(1.0, (1.0 - tail) * (days + 1.0) / days)
    low, high = np.full((2, errors.shape[0]), np.nan)
    for row, one in enumerate(errors):
        seen = one[~np.isnan(one)]
        if len(seen):
            low[row], high[row] = np.quantile(seen, [1.0 - reach, reach])
    return low, high


def check_coverage(coverage: float) -> float:
    """A coverage that makes sense."""
    if not 0.0 < coverage < 1.0:
        raise ScenarioError(f"coverage is {coverage}; give a probability between 0 and 1, like 0.8.")
    return coverage
