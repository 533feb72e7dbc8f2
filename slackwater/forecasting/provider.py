"""Features of a provider's forecasts: deviations without its bias, to be weighed against those of the history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.forecasting.features import DAYS, Past, quiet
from slackwater.forecasting.files import Issues

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEATURES = ("provider", "provider_shape", "provider_error")
"""Deviations from the history's profile: of the provider's values, bias removed; of their shape over the next day alone;
and by how much the provider missed the last hour."""

_LEAST_DAYS = 2
"""Days of past forecasts from which on their bias is known."""
_MOST_RATIO = 4.0


class Provided:
    """Hold the issues of one zone and its history [hour]; `start` is the history's first hour since 1970."""

    def __init__(self, issues: Issues, past: Past, row: int, start: int) -> None:
        self.past, self.row = past, row
        self.actual = past.values[row]
        known = len(self.actual)
        self.issued = issues.issued - start
        self.first = issues.first - start
        self.values = issues.values
        self.quiet = quiet(past.values[row : row + 1], 24)[0]
        """[hour]: no actual was 0 in the week before. A forecast of 0 then says that the provider had nothing to say."""
        self.days_ahead = -(-self.values.shape[1] // 24) if len(issues) else 1
        by_day = self._by_day_ahead(known + 24)
        actual = np.concatenate([self.actual, np.full(24, np.nan)])
        silent = (by_day == 0.0) & np.concatenate([self.quiet, np.full(23, fill_value=False)])
        by_day[silent] = np.nan
        both = ~np.isnan(by_day) & ~np.isnan(actual)
        self.newest = by_day[0][:known]
        days = np.maximum(_lagged_sum(both.astype(np.float64)), 0.0)
        enough = days >= _LEAST_DAYS
        count = np.maximum(days, 1.0)
        self.mean_forecast = np.where(enough, _lagged_sum(np.where(both, by_day, 0.0)) / count, np.nan)
        """[day ahead, hour]: mean of the last week's forecasts at the same hour, made so many days ahead."""
        self.mean_actual = np.where(enough, _lagged_sum(np.where(both, actual, 0.0)) / count, np.nan)
        """The same of what came in those hours."""

    def features(self, origins: Ints, leads: Ints) -> Floats:
        """Return [origin, lead, feature]; NaN where the provider's newest issue does not reach."""
        profile = self.past.profile(origins, leads)[self.row]
        newest, age = self._issue(origins)
        value = self._value(origins, newest, age, leads)
        day = np.clip((age[:, None] + leads) // 24, 0, self.days_ahead - 1)
        hour = origins[:, None] + leads % 24
        usual, came = self.mean_forecast[day, hour], self.mean_actual[day, hour]
        # The next day as a whole gives level and ratio.
        next_day = np.arange(24)
        ahead = _mean(self._value(origins, newest, age, next_day))
        whole_profile = self.past.profile(origins, next_day)[self.row].mean(axis=1, keepdims=True)
        day0 = np.clip((age[:, None] + next_day) // 24, 0, self.days_ahead - 1)
        known_forecast = _mean(self.mean_forecast[day0, origins[:, None] + next_day])
        known_actual = _mean(self.mean_actual[day0, origins[:, None] + next_day])
        # Without past forecasts the bias is not known: the level is the history's, the provider gives the shape.
        fresh = np.isnan(usual) | np.isnan(known_forecast)
        ratio = _ratio(np.where(np.isnan(known_actual), whole_profile, known_actual),
                       np.where(np.isnan(known_forecast), ahead, known_forecast))  # fmt: skip
        shape = ratio * (value - ahead) - (profile - whole_profile)
        found = np.empty((len(origins), len(leads), len(FEATURES)))
        found[..., 0] = np.where(fresh, shape, ratio * (value - usual) - (profile - came))
        found[..., 1] = shape
        found[..., 2] = self._last_error(origins, ratio)
        return found

    def _last_error(self, origins: Ints, ratio: Floats) -> Floats:
        """Return [origin, 1]: the error of the provider's newest forecast of the last hour, 0 without one."""
        last = origins - 1
        deviation = self.actual[last] - self.mean_actual[0, last]
        error: Floats = deviation - ratio[:, 0] * (self.newest[last] - self.mean_forecast[0, last])
        return np.nan_to_num(error, nan=0.0)[:, None]

    def _issue(self, origins: Ints) -> tuple[Ints, Ints]:
        """Return [origin]: the newest issue (-1: none) and how many hours before the origin its first value lies."""
        newest = np.searchsorted(self.issued, origins, side="right") - 1
        if not len(self.first):
            return newest, np.zeros_like(origins)
        return newest, origins - self.first[np.maximum(newest, 0)]

    def _value(self, origins: Ints, newest: Ints, age: Ints, leads: Ints) -> Floats:
        found = np.full((len(newest), len(leads)), np.nan)
        at = age[:, None] + leads
        inside = (newest[:, None] >= 0) & (at >= 0) & (at < self.values.shape[1])
        rows = np.broadcast_to(newest[:, None], at.shape)
        found[inside] = self.values[rows[inside], at[inside]]
        found[(found == 0.0) & self.quiet[origins][:, None]] = np.nan
        return found

    def _by_day_ahead(self, hours: int) -> Floats:
        """Return [day ahead, hour]: the newest forecast of every hour that was made so many days before it."""
        found = np.full((self.days_ahead, hours), np.nan)
        for first, values in zip(self.first, self.values, strict=True):
            for day in range(self.days_ahead):
                begin = int(first) + 24 * day
                low, high = max(begin, 0), min(begin + 24, hours)
                part = values[24 * day : 24 * day + 24][low - begin : high - begin] if low < high else values[:0]
                found[day, low : low + len(part)] = np.where(np.isnan(part), found[day, low : low + len(part)], part)
        return found


def _lagged_sum(values: Floats) -> Floats:
    """Return [day ahead, hour]: the sum of the values 1 to 7 days before."""
    total = np.zeros_like(values)
    for days in range(1, DAYS + 1):
        total[:, 24 * days :] += values[:, : -24 * days or None]
    return total


def _mean(values: Floats) -> Floats:
    """Return [origin, 1]: the mean without NaN, NaN where there is nothing else."""
    there = ~np.isnan(values)
    count = there.sum(axis=1, keepdims=True)
    total = np.where(there, values, 0.0).sum(axis=1, keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _ratio(actual: Floats, forecast: Floats) -> Floats:
    """Return by how much to scale the provider's deviations; within bounds, and 1 where it is not known."""
    scale = np.ones_like(actual)
    sound = (forecast > 0.0) & (actual > 0.0)
    np.divide(actual, forecast, out=scale, where=sound)
    return np.clip(scale, 1.0 / _MOST_RATIO, _MOST_RATIO)
