"""Our own forecast: the profile of the last week plus weighted deviations, by ridge regression on weeks of history."""

from __future__ import annotations

import csv
import hashlib
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import (
    COVERAGE,
    Forecast,
    SameHourMean,
    check_coverage,
    check_request,
    conformal,
    slots_per_day,
)
from slackwater.intensity.traces import Traces

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAYS = 7
"""Days in a profile, and shortest history, in days."""
REACH_DAYS = 28
"""Days that the features look back."""
FEATURES = ("last", "last6h", "last24h", "yesterday", "hour_of_week", "last_week", "month")
"""Deviations from the profile: of the last slot, the last six and 24 hours, the same hour of the last 24 h, the mean
at this hour of the last four weeks, the same hour a week before, and the mean at this hour of the last four weeks' days."""

EDGES_H = (0, 1, 2, 3, 5, 8, 12, 18, 24, 36, 48, 72, 96, 168)
"""Hours ahead at which the weights change; the last part has no end."""


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
        # The profile as known at the origin, also for the last hours: index + day, not index.
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
    """Return the values without feed failures: a 0 after a week without zeros is replaced by the value before."""
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


T = TypeVar("T")

BLOCKS = 4


class FitCache(Generic[T]):
    """Cache the newest fits by their training data, so that the re-plans of a week share one."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, OrderedDict[bytes, T]()

    def get(self, values: Floats, label: str, make: Callable[[], T]) -> T:
        """Return the fit on these values and label; make it if it is not cached."""
        key = hashlib.blake2b(np.ascontiguousarray(values).tobytes() + label.encode()).digest()
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[key]


def read_weights(file: str, features: Sequence[str]) -> Floats:
    """Return the pooled weights [part of the leads, feature] of a file of the package."""
    text = files("slackwater.intensity.forecast").joinpath(file).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    if [int(row["from_hour"]) for row in rows] != list(EDGES_H):
        raise DataError(f"{file} does not match the leads of this version. Fit it again.")
    return np.array([[float(row[name]) for name in features] for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Weights of one part of the leads."""

    weights: Floats
    """[zone, feature]"""
    errors: Floats
    """[zone, row], actual minus a forecast whose weights were fitted without the row's block of days."""

    days: float
    """Number of days that the rows come from."""

    def reach(self, coverage: float) -> tuple[Floats, Floats]:
        """Return what to add for the lower and the upper bound, each [zone]."""
        low, high = conformal(self.errors, coverage, self.days)
        return np.minimum(low, 0.0), np.maximum(high, 0.0)


def fit(features: Floats, target: Floats, prior: Floats, *, strength: float, days: float) -> Fit:
    """Fit weights to features [zone, row, feature] and target [zone, row], the rows in the order of time.

    After `strength` days the data counts as much as the prior. Days count, not rows, since neighbouring rows are nearly
    the same.
    """
    zones, rows = target.shape
    spread = target.std(axis=1)
    spread[spread == 0.0] = 1.0  # a constant zone: all deviations are 0
    scaled, aim = features / spread[:, None, None], target / spread[:, None]
    cuts = np.linspace(0, rows, BLOCKS + 1).astype(np.int64)
    blocks = [slice(first, end) for first, end in itertools.pairwise(cuts)]
    days = max(days, 1.0)
    per_day = rows / days
    gram = np.array([scaled[:, block].transpose(0, 2, 1) @ scaled[:, block] for block in blocks]) / per_day
    moment = np.array([scaled[:, block].transpose(0, 2, 1) @ aim[:, block, None] for block in blocks])[..., 0] / per_day
    whole_gram, whole_moment = gram.sum(axis=0), moment.sum(axis=0)
    errors = np.empty((zones, rows))
    for number, block in enumerate(blocks):
        others = _solve(whole_gram - gram[number], whole_moment - moment[number], prior, strength)
        errors[:, block] = aim[:, block] - (scaled[:, block] @ others[..., None])[..., 0]
    weights = _solve(whole_gram, whole_moment, prior, strength)
    return Fit(weights=weights, errors=errors * spread[:, None], days=days)


def pooled(features: Floats, target: Floats, little: float = 1e-3) -> Floats:
    """Return one set of weights [feature] for all zones, all with the same influence, whatever their spread."""
    spread = target.std(axis=1)
    spread[spread == 0.0] = 1.0
    scaled, aim = features / spread[:, None, None], target / spread[:, None]
    gram = np.einsum("znf,zng->fg", scaled, scaled) / aim.size
    moment = np.einsum("znf,zn->f", scaled, aim) / aim.size
    return np.asarray(np.linalg.solve(gram + little * np.eye(features.shape[2]), moment), dtype=np.float64)


def _solve(gram: Floats, moment: Floats, prior: Floats, strength: float) -> Floats:
    penalty = strength * np.eye(len(prior))
    solved = np.linalg.solve(gram + penalty, (moment + strength * prior)[..., None])[..., 0]
    return np.asarray(solved, dtype=np.float64)


logger = logging.getLogger(__name__)


LEAST_DAYS = DAYS + 1
LEAST_ORIGINS = 8
_KEPT_FITS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """Weights and errors of all leads, fitted on the data known at one time."""

    weights: Floats
    """[part, zone, feature]"""
    low: Floats
    """[part, zone], what to add for the lower bound, never positive; NaN with too little data."""
    high: Floats


class Ridge:
    """Learn from the last `train_days` days of history; weights are refitted once a week."""

    name = "ridge"

    def __init__(self, *, train_days: int = 56, strength: float = 80.0, coverage: float = COVERAGE) -> None:
        if train_days < 1:
            raise ScenarioError(f"train_days is {train_days}; give at least 1.")
        if not strength > 0:
            raise ScenarioError(f"strength is {strength}; give a positive number of days.")
        self.train_days = train_days
        self.strength = strength
        self.coverage = check_coverage(coverage)
        self._kept = FitCache[Trained](_KEPT_FITS)
        self._fallback = SameHourMean(coverage=coverage)
        self._said = False

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return a forecast; with less than eight days of history, the same-hour mean with a warning."""
        check_request(history, slots)
        day = slots_per_day(history)
        if history.slots < LEAST_DAYS * day:
            have = f"{history.slots / day:.1f} of {LEAST_DAYS} days of history"
            if not self._said:  # once, not at every re-plan
                logger.warning("The forecast %r has only %s; it uses the same-hour mean instead.", self.name, have)
            self._said = self._fallback._said = True
            made = self._fallback.forecast(history, slots)
            return replace(made, source=f"{self.name} (same-hour mean, since only {have})")
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
                previous = 1.1 * previous  # unknown: a little wider than at shorter leads
            low[part], high[part] = previous
        return Trained(weights=weights, low=low, high=high)


def training_part(history: Traces, origin: int, train_days: int) -> tuple[int, int]:
    """Return the first and end slot to learn from; forecasts of the same week, or day, share one fit.

    It ends at the last midnight; once there are four weeks of history, at the last midnight to Thursday (1970 began on
    one). It starts as early as the features of its first origin need.
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
    """Return the weights [part, feature] pooled over all zones of the traces, with equal influence."""
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
