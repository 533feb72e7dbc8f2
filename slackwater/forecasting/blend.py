"""A provider's forecast and our own as one: bias removed, weighed by past skill, joined where the provider ends.

Inside the provider's horizon the ridge regression of `Ridge` gets three more features (`provider.py`), so the weights
follow how well the provider did lately in this zone at this lead. Beyond it there is our own forecast; the difference
between the two at the join fades out over hours, so that there is no step.
"""

from __future__ import annotations

import csv
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError
from slackwater.forecasting import features as own
from slackwater.forecasting import provider
from slackwater.forecasting.features import EDGES_H, Past, lead_parts
from slackwater.forecasting.files import ForecastArchive, check_hourly, hours_since_1970
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.provider import Provided
from slackwater.forecasting.regression import fit, pooled
from slackwater.forecasting.ridge import LEAST_DAYS, LEAST_ORIGINS, Ridge, training_origins, training_part

Floats = NDArray[np.float64]

FEATURES = (*own.FEATURES, *provider.FEATURES)
_DAY = 24
_FADE_H = 12.0
_KEPT_FITS = 256


class Blend:
    """`archive` is what the provider has issued; only what was issued by the end of the history is looked at."""

    def __init__(self, archive: ForecastArchive, *, ridge: Ridge | None = None, train_days: int = 84,
                 strength: float = 40.0) -> None:  # fmt: skip
        self.archive = archive
        self.ridge = ridge or Ridge()
        self.train_days = train_days
        self.strength = strength
        self.name = f"blend of {archive.name}"
        self._kept: OrderedDict[bytes, tuple[Floats, Floats]] = OrderedDict()

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """The coming slots; a zone without forecasts, or with less than eight days of history, has our own alone."""
        check_hourly(history)
        ours = self.ridge.forecast(history, slots)
        if history.slots < LEAST_DAYS * _DAY:
            return ours
        values = own.without_glitches(history.intensity, _DAY)
        mean, low, high = ours.mean.copy(), ours.low.copy(), ours.high.copy()
        blended = False
        for row, zone in enumerate(history.zones):
            if zone not in self.archive.issues:
                continue
            one = self._zone(values[row : row + 1], history, zone, slots)
            if one is not None:
                blended = True
                mean[row], low[row], high[row] = _join(one, (ours.mean[row], ours.low[row], ours.high[row]))
        return Forecast(
            zones=history.zones,
            start=history.end,
            mean=mean,
            low=low,
            high=high,
            coverage=ours.coverage,
            factor=history.factor,
            source=self.name if blended else ours.source,
        )

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> Floats:
        """[origin, zone, slot]: the means of `forecast` for histories that end at these slots, many at once."""
        check_hourly(truth)
        found = self.ridge.means(truth, origins, slots)
        values = own.without_glitches(truth.intensity, _DAY)
        late = [number for number, origin in enumerate(origins) if origin >= LEAST_DAYS * _DAY]
        for row, zone in enumerate(truth.zones):
            if zone in self.archive.issues and late:
                ends = np.array([origins[number] for number in late])
                blended = self._means(values[row : row + 1], truth, zone, ends, slots)[0]
                for number, one in zip(late, blended, strict=True):
                    found[number, row] = _join((one, one, one), (found[number, row],) * 3)[0]
        return found

    def _zone(self, values: Floats, history: Traces, zone: str, slots: int) -> tuple[Floats, Floats, Floats] | None:
        """Mean, low and high of one zone, NaN beyond the provider's horizon; None where the provider says nothing."""
        means, reach = self._means(values, history, zone, np.array([history.slots]), slots)
        mean = means[0]
        if np.isnan(mean).all():
            return None
        low, high = np.full((2, slots), np.nan)
        for part, first, end in lead_parts(slots, _DAY):
            low[first:end] = np.maximum(mean[first:end] + reach[part, 0], 0.0)
            high[first:end] = mean[first:end] + reach[part, 1]
        return mean, low, high

    def _means(
        self, values: Floats, history: Traces, zone: str, origins: NDArray[np.int64], slots: int
    ) -> tuple[Floats, Floats]:
        """[origin, slot] of one zone, NaN beyond the provider's horizon; and the bounds [part, 2] of the last origin."""
        start = int(hours_since_1970(history.start))
        first, end = max(int(origins.min()) - own.REACH_DAYS * _DAY, 0), int(origins.max())
        past, leads = Past(values[:, first:end], _DAY), np.arange(slots)
        # The bias is that of a week: older issues say nothing of it.
        issues = self.archive.of(zone).by(start + end).since(start + int(origins.min()) - LEAST_DAYS * _DAY)
        provided = Provided(issues, past, 0, start + first)
        at = origins - first
        features = np.concatenate([past.features(at, leads)[0], provided.features(at, leads)], axis=2)
        found = past.profile(at, leads)[0]
        reach = np.full((len(EDGES_H), 2), np.nan)
        for number, origin in enumerate(origins):
            begin, stop = training_part(history, int(origin), self.train_days)
            weights, reach = self._trained(values[:, begin:stop], zone, start + begin, slots)
            for part, low, high in lead_parts(slots, _DAY):
                found[number, low:high] += features[number, low:high] @ weights[part]
        return np.where(np.isnan(found), np.nan, np.maximum(found, 0.0)), reach

    def _trained(self, values: Floats, zone: str, start: int, slots: int) -> tuple[Floats, Floats]:
        """Weights [part, feature] and bounds [part, 2] by the last midnight; `start` is the first hour of the values."""
        label = f"{zone} {start} {values.shape[1]} {slots}".encode()
        key = hashlib.blake2b(np.ascontiguousarray(values).tobytes() + label).digest()
        if key not in self._kept:
            self._kept[key] = self._train(values, zone, start, slots)
            while len(self._kept) > _KEPT_FITS:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _train(self, values: Floats, zone: str, start: int, slots: int) -> tuple[Floats, Floats]:
        known = values.shape[1]
        weights, reach = pooled_weights().copy(), np.full((len(EDGES_H), 2), np.nan)
        previous = np.full(2, np.nan)
        for part, features, target in rows(self.archive, values, zone, start, slots, self.train_days):
            days = min(known / _DAY - own.DAYS, self.train_days) * len(target) / max(features.shape[0], 1)
            if len(target) >= LEAST_ORIGINS:
                found = fit(features[None], target[None], weights[part], strength=self.strength, days=days)
                weights[part] = found.weights[0]
                bounds = found.reach(self.ridge.coverage)
                previous = np.array([bounds[0][0], bounds[1][0]])
            else:
                previous = 1.1 * previous
            reach[part] = previous
        return weights, reach


def rows(
    archive: ForecastArchive, values: Floats, zone: str, start: int, slots: int, train_days: int, every: int = 1
) -> list[tuple[int, Floats, Floats]]:
    """(part, features [row, feature], target [row]) of past origins at which the provider had something to say."""
    known = values.shape[1]
    past = Past(values, _DAY)
    provided = Provided(archive.of(zone).by(start + known).since(start), past, 0, start)
    found = []
    for part, first, end in lead_parts(slots, _DAY):
        origins = training_origins(known, first, end, _DAY, train_days)[::every]
        leads = np.arange(first, end)
        both = np.concatenate([past.features(origins, leads)[0], provided.features(origins, leads)], axis=2)
        target = values[0, origins[:, None] + leads] - past.profile(origins, leads)[0]
        there = np.isfinite(both).all(axis=2)
        found.append((part, both[there], target[there]))
    return found


def _join(ours_inside: tuple[Floats, Floats, Floats], ours: tuple[Floats, Floats, Floats]) -> list[Floats]:
    """The blend where there is one; elsewhere ours, moved so that there is no step where the blend ends or has a hole."""
    mean = ours_inside[0]
    there = np.isfinite(mean)
    at = np.arange(len(mean))
    last = np.maximum.accumulate(np.where(there, at, -1))
    gap = np.where(there, mean - ours[0], 0.0)
    moved = np.where(last >= 0, gap[np.maximum(last, 0)] * np.exp(-(at - last) / _FADE_H), 0.0)
    joined = np.where(there, mean, np.maximum(ours[0] + moved, 0.0))
    low = np.where(np.isfinite(ours_inside[1]), ours_inside[1], np.maximum(ours[1] + moved, 0.0))
    high = np.where(np.isfinite(ours_inside[2]), ours_inside[2], ours[2] + moved)
    return [joined, np.minimum(low, joined), np.maximum(high, joined)]


@cache
def pooled_weights() -> Floats:
    """[part of the leads, feature], as fitted over the zones of an archive."""
    text = files("slackwater.forecasting").joinpath("blend_prior.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(text.splitlines()))
    if [int(row["from_hour"]) for row in table] != list(EDGES_H):
        raise DataError("blend_prior.csv does not have the leads of the features; fit it anew.")
    return np.array([[float(row[name]) for name in FEATURES] for row in table])


def fit_pooled(archive: ForecastArchive, share: float, slots: int = 96) -> Floats:
    """[part, feature]: weights pooled over the archive's zones, each counting alike, from the first `share` of its time."""
    weights = np.zeros((len(EDGES_H), len(FEATURES)))
    parts: dict[int, list[tuple[Floats, Floats]]] = {}
    for zone in archive.zones:
        actual = archive.actuals[zone]
        hours = int(actual.slots * share)
        start = int(hours_since_1970(actual.start))
        for part, features, target in rows(archive, actual.intensity[:, :hours], zone, start, slots, hours):
            if len(target) >= LEAST_ORIGINS:
                parts.setdefault(part, []).append((features, target))
    for part, zones in parts.items():
        fewest = min(len(target) for _, target in zones)
        # The same number of rows from each zone, spread over its time.
        taken = [np.linspace(0, len(target) - 1, fewest).astype(np.int64) for _, target in zones]
        features = np.array([one[0][rows_] for one, rows_ in zip(zones, taken, strict=True)])
        target = np.array([one[1][rows_] for one, rows_ in zip(zones, taken, strict=True)])
        weights[part] = pooled(features, target)
    for part in range(1, len(weights)):
        if part not in parts:
            weights[part] = weights[part - 1]
    return weights
