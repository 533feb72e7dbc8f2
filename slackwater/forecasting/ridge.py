"""Our own forecast: the profile of the last week plus weighted deviations, the weights fitted to a few weeks of history.

A ridge regression by zone and lead that shrinks to weights pooled over many zones (`ridge_prior.csv`), so that it works
from eight days of history on and learns what is particular to a zone as the history grows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import ScenarioError
from slackwater.forecasting.features import DAYS, EDGES_H, FEATURES, REACH_DAYS, Past, lead_parts, without_glitches
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.intervals import check_coverage
from slackwater.forecasting.naive import COVERAGE, SameHourMean, check_request, slots_per_day
from slackwater.forecasting.regression import FitCache, fit, pooled, read_weights

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

LEAST_DAYS = DAYS + 1
LEAST_ORIGINS = 8
_KEPT_FITS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """Weights and errors of all leads, fitted on what was known at one time."""

    weights: Floats
    """[part, zone, feature]"""
    low: Floats
    """[part, zone], what to add for the lower bound, never positive; NaN where too little is known."""
    high: Floats


class Ridge:
    """Learn from the last `train_days` days of history; weights are renewed once a week."""

    name = "ridge"

    def __init__(self, *, train_days: int = 56, strength: float = 80.0, coverage: float = COVERAGE) -> None:
        if train_days < 1:
            raise ScenarioError(f"train_days is {train_days}; learn from at least a day.")
        if not strength > 0:
            raise ScenarioError(f"strength is {strength}; give a positive number of days.")
        self.train_days = train_days
        self.strength = strength
        self.coverage = check_coverage(coverage)
        self._kept = FitCache[Trained](_KEPT_FITS)
        self._fallback = SameHourMean(coverage=coverage)
        self._said = False

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return a forecast; below eight days of history it is the same-hour mean, and says so."""
        check_request(history, slots)
        day = slots_per_day(history)
        if history.slots < LEAST_DAYS * day:
            have = f"{history.slots / day:.1f} days of history, {LEAST_DAYS} needed"
            if not self._said:  # once, not at every re-planning
                logger.warning("The forecast %r has only %s; it takes the same-hour mean instead.", self.name, have)
            self._said = self._fallback._said = True
            made = self._fallback.forecast(history, slots)
            return replace(made, source=f"{self.name} (same-hour mean, as there are only {have})")
        values = without_glitches(history.intensity, day)
        begin, end = training_part(history, history.slots, self.train_days)
        trained = self._trained(values[:, begin:end], day, slots)
        mean = self._means(values, np.array([history.slots]), day, trained, slots)[0]
        low, high = np.zeros_like(mean), np.zeros_like(mean)
        for part, first, stop in lead_parts(slots, day):
            low[:, first:stop] = mean[:, first:stop] + trained.low[part][:, None]
            high[:, first:stop] = mean[:, first:stop] + trained.high[part][:, None]
        unknown = np.isnan(high)
        low, high = np.where(unknown, 0.0, np.maximum(low, 0.0)), np.where(unknown, 2.0 * mean, high)
        return Forecast.after(history, mean, low, high, coverage=self.coverage, source=self.name)

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> Floats:
        """Return the means [origin, zone, slot] of `forecast` for histories that end at these slots."""
        day = slots_per_day(truth)
        values = without_glitches(truth.intensity, day)
        found = np.empty((len(origins), len(truth.zones), slots))
        by_part: dict[tuple[int, int], list[int]] = {}
        for number, origin in enumerate(origins):
            if origin < LEAST_DAYS * day:
                found[number] = self.forecast(truth.window(truth.start, origin), slots).mean
            else:
                by_part.setdefault(training_part(truth, origin, self.train_days), []).append(number)
        for (begin, end), numbers in by_part.items():
            trained = self._trained(values[:, begin:end], day, slots)
            found[numbers] = self._means(values, np.array([origins[number] for number in numbers]), day, trained, slots)
        return found

    def _means(self, values: Floats, origins: NDArray[np.int64], day: int, trained: Trained, slots: int) -> Floats:
        """[origin, zone, slot]"""
        first = max(int(origins.min()) - REACH_DAYS * day, 0)
        past, leads = Past(values[:, first : int(origins.max())], day), np.arange(slots)
        mean = past.profile(origins - first, leads)
        features = past.features(origins - first, leads)
        for part, begin, end in lead_parts(slots, day):
            mean[..., begin:end] += np.einsum("zolf,zf->zol", features[:, :, begin:end], trained.weights[part])
        return np.maximum(mean, 0.0).transpose(1, 0, 2)

    def _trained(self, values: Floats, day: int, slots: int) -> Trained:
        return self._kept.get(values, f"{values.shape}{day}{slots}", lambda: self._train(values, day, slots))

    def _train(self, values: Floats, day: int, slots: int) -> Trained:
        zones, known = values.shape
        past, prior = Past(values, day), pooled_weights()
        weights = np.repeat(prior[:, None, :], zones, axis=1)
        low, high = np.full((2, len(prior), zones), np.nan)
        previous = np.full((2, zones), np.nan)
        for part, first, end in lead_parts(slots, day):
            origins = training_origins(known, first, end, day, self.train_days)
            leads = np.arange(first, end)
            if len(origins) >= LEAST_ORIGINS:
                found = fit(
                    past.features(origins, leads).reshape(zones, -1, len(FEATURES)),
                    (values[:, origins[:, None] + leads] - past.profile(origins, leads)).reshape(zones, -1),
                    prior[part],
                    strength=self.strength,
                    days=(known - DAYS * day) / day if known < self.train_days * day else self.train_days,
                )
                weights[part] = found.weights
                previous = np.array(found.reach(self.coverage))
            else:
                previous = 1.1 * previous  # not seen yet: a little wider than what is seen of shorter leads
            low[part], high[part] = previous
        return Trained(weights=weights, low=low, high=high)


def training_part(history: Traces, origin: int, train_days: int) -> tuple[int, int]:
    """Return the first and end slot to learn from; forecasts of the same week, or day, share one fit.

    It ends at the last midnight; once there are four weeks of history, at the last midnight to Thursday (1970 began on
    one). It begins as early as the features of its first origin need.
    """
    day = slots_per_day(history)
    since_1970 = int(history.start.timestamp()) // 60 // history.slot_minutes + origin
    end = origin - since_1970 % (day if origin < REACH_DAYS * day else DAYS * day)
    return max(end - (train_days + REACH_DAYS) * day, 0), max(end, 0)


def training_origins(known: int, first: int, end: int, day: int, train_days: int) -> NDArray[np.int64]:
    """Return past origins whose leads up to `end` are known; steps that do not divide a day reach all hours in turn."""
    step = max(round((3 if first < day else 7) * day / 24), 1)
    return np.arange(max(DAYS * day, known - train_days * day), known - end + 1, step)


@cache
def pooled_weights() -> Floats:
    """Return [part of the leads, feature], as fitted over many zones and a year."""
    return read_weights("ridge_prior.csv", FEATURES)


def fit_pooled(traces: Traces, *, slots: int = 240, every: int = 37) -> Floats:
    """Return the weights [part, feature] pooled over all zones of the traces, each counting alike."""
    day = slots_per_day(traces)
    past = Past(traces.intensity, day)
    found = np.zeros((len(EDGES_H), len(FEATURES)))
    for part, first, end in lead_parts(slots, day):
        origins = np.arange(REACH_DAYS * day, traces.slots - slots, every)
        leads = np.arange(first, end)
        features = past.features(origins, leads).reshape(len(traces.zones), -1, len(FEATURES))
        target = traces.intensity[:, origins[:, None] + leads] - past.profile(origins, leads)
        found[part] = pooled(features, target.reshape(len(traces.zones), -1))
    return found
