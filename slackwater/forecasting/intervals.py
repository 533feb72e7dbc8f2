"""Prediction intervals from a method's own past errors, by zone and lead, without an assumed distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError

Floats = NDArray[np.float64]
Predict = Callable[[Floats, int], Floats]
"""From the past [zone, slot] to so many coming slots [zone, slot]."""

_MINUTES_PER_DAY = 1440
ORIGINS = 21
"""Past origins whose errors are looked at, one a day."""


def past_errors(past: Floats, slots: int, day: int, least: int, predict: Predict) -> Floats:
    """Return actual minus forecast, [origin, zone, slot], of the method a day ago, two days ago, ...

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
    """Return low and high around `mean` [zone, slot]: the conformal quantiles of the errors [origin, zone, slot].

    Errors of the same day ahead count together; a day without any takes those of the day before, a little wider.
    Without any errors the interval is as wide as the forecast itself.
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
    """Return the lower and upper quantile of the errors [zone, n], each with split conformal prediction's (n + 1) / n.

    n is the number of days, since errors of one day depend on each other. A zone without errors gets NaN.
    """
    tail = (1.0 - coverage) / 2.0
    reach = min(1.0, (1.0 - tail) * (days + 1.0) / days)
    low, high = np.full((2, errors.shape[0]), np.nan)
    for row, one in enumerate(errors):
        seen = one[~np.isnan(one)]
        if len(seen):
            low[row], high[row] = np.quantile(seen, [1.0 - reach, reach])
    return low, high


STATED_COVERAGE = 0.8
_STATED = (0.23, 0.32, 0.36, 0.37)
"""By day ahead, half the width of the stated interval as a share of the forecast; a day beyond the last is like the last."""


def stated(mean: Floats, slot_minutes: int, first_slot: int = 0) -> tuple[Floats, Floats]:
    """Return the stated default interval around a forecast [zone, slot] of whose errors nothing is known.

    `first_slot` is how many slots ahead the first one lies. docs/forecasting.md says how the widths were measured.
    """
    days = (first_slot + np.arange(mean.shape[1])) * slot_minutes // _MINUTES_PER_DAY
    share = np.array(_STATED)[np.minimum(days, len(_STATED) - 1)]
    return mean * (1.0 - share), mean * (1.0 + share)


def check_coverage(coverage: float) -> float:
    """Return the coverage; raise ScenarioError unless it is between 0 and 1."""
    if not 0.0 < coverage < 1.0:
        raise ScenarioError(f"coverage is {coverage}; give a probability between 0 and 1, like 0.8.")
    return coverage
