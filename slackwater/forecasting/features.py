"""Features of a forecast: a weekly profile of the past and deviations from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAYS = 7
"""Days that a profile is the mean of, and that a history must have at least."""
REACH_DAYS = 28
"""Days that the features look back."""
FEATURES = ("last", "last6h", "last24h", "yesterday", "hour_of_week", "last_week", "month")
"""Each a deviation from the profile: of the last slot, the last six and 24 hours, the same hour of the last 24 h, the mean
at this hour of the last four weeks, the same hour a week before, and the mean at this hour of the last four weeks' days."""

EDGES_H = (0, 1, 2, 3, 5, 8, 12, 18, 24, 36, 48, 72, 96, 168)
"""Hours ahead at which the weight of the features changes; the last part has no end."""


def lead_parts(slots: int, day: int) -> list[tuple[int, int, int]]:
    """Return (part, first slot, end slot): the leads that share weights, up to `slots`."""
    per_hour = day / 24.0
    parts = []
    for number, edge in enumerate(EDGES_H):
        first = round(edge * per_hour)
        end = round(EDGES_H[number + 1] * per_hour) if number + 1 < len(EDGES_H) else slots
        if first < min(end, slots):
            parts.append((number, first, min(end, slots)))
    return parts


class Past:
    """Hold the past [zone, slot] with the running means of the features; `day` is the slots of a day."""

    def __init__(self, past: Floats, day: int) -> None:
        self.values = past
        self.day = day
        self.six_hours = max(day // 4, 1)
        self.week_profile = lagged_mean(past, day, DAYS)
        self.month_profile = lagged_mean(past, day, REACH_DAYS)
        self.hour_of_week = lagged_mean(past, DAYS * day, REACH_DAYS // DAYS)

    def profile(self, origins: Ints, leads: Ints) -> Floats:
        """Return [zone, origin, lead]: the mean of the last seven days at the same hour, as known at each origin."""
        return self.week_profile[:, origins[:, None] + leads % self.day]

    def features(self, origins: Ints, leads: Ints) -> Floats:
        """Return [zone, origin, lead, feature]; an origin is the first slot that is not known yet."""
        day, values, usual = self.day, self.values, self.week_profile
        same_hour = origins[:, None] + leads % day
        same_of_week = origins[:, None] + leads % (DAYS * day)
        profile = usual[:, same_hour]
        back = np.arange(1, day + 1)
        # The profile as known at the origin, also for the hours just past: index + day, not the index itself.
        deviation = values[:, origins[:, None] - back] - usual[:, origins[:, None] + day - back]
        found = np.empty((*profile.shape, len(FEATURES)))
        found[..., 0] = deviation[:, :, :1]
        found[..., 1] = deviation[:, :, : self.six_hours].mean(axis=2, keepdims=True)
        found[..., 2] = deviation.mean(axis=2, keepdims=True)
        found[..., 3] = values[:, same_hour - day] - profile
        found[..., 4] = self.hour_of_week[:, same_of_week] - profile
        found[..., 5] = values[:, same_of_week - DAYS * day] - profile
        found[..., 6] = self.month_profile[:, same_hour] - profile
        return found


def without_glitches(values: Floats, day: int) -> Floats:
    """Return the values with every 0 after a week without any, a failure of the feed, replaced by the value before."""
    zero = values == 0.0
    if not zero.any():
        return values
    glitch = zero & quiet(values, day)[:, :-1]
    glitch[:, 0] = False
    held = values.copy()
    held[:, 1:][glitch[:, 1:]] = values[:, :-1][glitch[:, 1:]]
    return held


def quiet(values: Floats, day: int) -> NDArray[np.bool_]:
    """Return [zone, slot], one slot longer than the values: whether the week before holds no 0."""
    zeros = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values == 0.0, axis=1)], axis=1)
    week_before = np.maximum(np.arange(zeros.shape[1]) - DAYS * day, 0)
    return np.asarray(zeros == zeros[:, week_before])


def lagged_mean(past: Floats, lag: int, count: int) -> Floats:
    """Return [zone, slot], `lag` slots longer than the past: the mean of the values 1, 2, ... `count` lags before.

    Slot t + j, j < lag, holds only values before t, so it does not look ahead of t. NaN in the first `lag` slots.
    """
    known = past.shape[1]
    total, seen = np.zeros((past.shape[0], known + lag)), np.zeros(known + lag)
    for back in range(lag, min(count * lag, known + lag - 1) + 1, lag):
        total[:, back:] += past[:, : known + lag - back]
        seen[back:] += 1.0
    return np.where(seen > 0, total / np.maximum(seen, 1.0), np.nan)
