"""A provider's forecast and our own as one: bias removed, weighted by past skill, joined where the provider's ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity.forecast import ridge as own
from slackwater.intensity.forecast.archive import ForecastArchive, Issues, check_hourly, hours_since_1970
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.forecast.ridge import (
    DAYS,
    EDGES_H,
    LEAST_DAYS,
    LEAST_ORIGINS,
    FitCache,
    Past,
    Ridge,
    fit,
    lead_parts,
    pooled,
    quiet,
    read_weights,
    training_origins,
    training_part,
)
from slackwater.intensity.traces import Origin, Traces, origins_of
from slackwater.units import ceil_hour

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROVIDER_FEATURES = ("provider", "provider_shape", "provider_error")
"""Deviations from the history's profile: of the provider's values without bias, and of their shape over the next day.
The last feature is the provider's error in the last hour."""

_LEAST_DAYS = 2
"""Days of past forecasts that are needed to estimate their bias."""
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
        """[hour]: whether no actual was 0 in the week before. A forecast of 0 then means that the provider had no value."""
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
        """[day ahead, hour]: mean of the last week's forecasts at the same hour, made that many days ahead."""
        self.mean_actual = np.where(enough, _lagged_sum(np.where(both, actual, 0.0)) / count, np.nan)
        """The same for the actuals of those hours."""

    def features(self, origins: Ints, leads: Ints) -> Floats:
        """Return [origin, lead, feature]; NaN where the provider's newest issue does not reach."""
        profile = self.past.profile(origins, leads)[self.row]
        newest, age = self._issue(origins)
        value = self._value(origins, newest, age, leads)
        day = np.clip((age[:, None] + leads) // 24, 0, self.days_ahead - 1)
        hour = origins[:, None] + leads % 24
        usual, came = self.mean_forecast[day, hour], self.mean_actual[day, hour]
        # Level and ratio come from the next day as a whole.
        next_day = np.arange(24)
        ahead = _mean(self._value(origins, newest, age, next_day))
        whole_profile = self.past.profile(origins, next_day)[self.row].mean(axis=1, keepdims=True)
        day0 = np.clip((age[:, None] + next_day) // 24, 0, self.days_ahead - 1)
        known_forecast = _mean(self.mean_forecast[day0, origins[:, None] + next_day])
        known_actual = _mean(self.mean_actual[day0, origins[:, None] + next_day])
        # Without past forecasts the bias is unknown: the history sets the level, the provider the shape.
        fresh = np.isnan(usual) | np.isnan(known_forecast)
        ratio = _ratio(np.where(np.isnan(known_actual), whole_profile, known_actual),
                       np.where(np.isnan(known_forecast), ahead, known_forecast))  # fmt: skip
        shape = ratio * (value - ahead) - (profile - whole_profile)
        found = np.empty((len(origins), len(leads), len(PROVIDER_FEATURES)))
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
        """Return [day ahead, hour]: the newest forecast of every hour, made that many days before it."""
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
    """Return [origin, 1]: the mean without NaN; NaN if all are NaN."""
    there = ~np.isnan(values)
    count = there.sum(axis=1, keepdims=True)
    total = np.where(there, values, 0.0).sum(axis=1, keepdims=True)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _ratio(actual: Floats, forecast: Floats) -> Floats:
    """Return the scale of the provider's deviations, within bounds; 1 if unknown."""
    scale = np.ones_like(actual)
    sound = (forecast > 0.0) & (actual > 0.0)
    np.divide(actual, forecast, out=scale, where=sound)
    return np.clip(scale, 1.0 / _MOST_RATIO, _MOST_RATIO)


FEATURES = (*own.FEATURES, *PROVIDER_FEATURES)
_DAY = 24
_MINUTE, _HOUR_MINUTES = timedelta(minutes=1), 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FADE_H = 12.0
_KEPT_FITS = 256


class Blend:
    """Blend the provider's forecasts in `archive` that were issued by the end of the history with our own.

    Actuals are known later than forecasts, so forecasts issued up to `lag_hours` after the end of the history count too.
    """

    def __init__(self, archive: ForecastArchive | None = None, *, ridge: Ridge | None = None, train_days: int = 84,
                 strength: float = 40.0, lag_hours: int = 0) -> None:  # fmt: skip
        self.archive = archive or ForecastArchive({})
        self.ridge = ridge or Ridge()
        self.train_days, self.strength, self.lag_hours = train_days, strength, lag_hours
        self.name = f"blend of {archive.name}" if archive is not None else "blend"
        self._kept = FitCache[tuple[Floats, Floats]](_KEPT_FITS)

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return a forecast; a zone without the provider's, or with less than eight days of history, has our own alone."""
        if not any(zone in self.archive.issues for zone in history.zones):
            return self.ridge.forecast(history, slots)
        if history.slot_minutes != _HOUR_MINUTES:
            return self._by_the_hour(history, slots)
        ours = self.ridge.forecast(history, slots)
        if history.slots < LEAST_DAYS * _DAY:
            return ours
        values = own.without_glitches(history.intensity, _DAY)
        mean, low, high = ours.mean.copy(), ours.low.copy(), ours.high.copy()
        blended: dict[int, NDArray[np.bool_]] = {}
        for row, zone in enumerate(history.zones):
            if zone not in self.archive.issues:
                continue
            one = self._zone(values[row : row + 1], history, zone, slots)
            if one is not None:
                blended[row] = np.isfinite(one[0])
                mean[row], low[row], high[row] = _join(one, (ours.mean[row], ours.low[row], ours.high[row]))
        source = self.name if blended else ours.source
        origins = tuple(self._origins(history, row, blended.get(row), slots) for row in range(len(history.zones)))
        return Forecast.after(history, mean, low, high, coverage=ours.coverage, source=source, origins=origins)

    def _origins(self, history: Traces, row: int, blended: NDArray[np.bool_] | None, slots: int) -> tuple[Origin, ...]:
        """Return source and time of issue of a zone's hours."""
        there = np.zeros(slots, dtype=bool) if blended is None else blended
        ours = (self.ridge.name, history.end)
        theirs = ours
        if there.any():
            issues = self._issues(history.zones[row]).by(hours_since_1970(history.end))
            issued = _EPOCH + timedelta(hours=float(issues.issued[-1]) + self.lag_hours)
            theirs = (self.archive.source(history.zones[row]), issued)
        return origins_of(
            (history.end + timedelta(hours=hour), source, "forecast", issued_at)
            for hour, (source, issued_at) in enumerate(theirs if one else ours for one in there)
        )

    def _issues(self, zone: str) -> Issues:
        """Return the issues of a zone, as early as the actuals of their time were known."""
        return self.archive.of(zone).earlier(self.lag_hours)

    def _by_the_hour(self, history: Traces, slots: int) -> Forecast:
        """Forecast hours, which is what providers issue, and turn them into slots of another length."""
        minutes = history.slot_minutes
        hourly = _to_hours(history)
        needed = -(-(slots * minutes + (history.end - hourly.end) // _MINUTE) // _HOUR_MINUTES)
        made = self.forecast(hourly, needed)
        skipped = (history.end - hourly.end) // _MINUTE // minutes if minutes < _HOUR_MINUTES else 0

        def in_slots(values: Floats) -> Floats:
            if minutes < _HOUR_MINUTES:
                fine = np.repeat(values, _HOUR_MINUTES // minutes, axis=1)
            else:
                hours = minutes // _HOUR_MINUTES
                whole = values[:, : values.shape[1] // hours * hours]
                fine = whole.reshape(len(values), -1, hours).mean(axis=2)
            return fine[:, skipped : skipped + slots]

        return replace(
            made, start=history.end, mean=in_slots(made.mean), low=in_slots(made.low), high=in_slots(made.high),
            slot_minutes=minutes,
        )  # fmt: skip

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> Floats:
        """Return the means [origin, zone, slot] of `forecast` for histories that end at these slots."""
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
        """Return mean, low and high of one zone, NaN beyond the provider's horizon; None without a provider's forecast."""
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
        """Return [origin, slot] of one zone, NaN beyond the provider's horizon, and the bounds [part, 2] of the last origin."""
        start = int(hours_since_1970(history.start))
        first, end = max(int(origins.min()) - own.REACH_DAYS * _DAY, 0), int(origins.max())
        past, leads = Past(values[:, first:end], _DAY), np.arange(slots)
        # The bias is that of one week; older issues do not matter.
        issues = self._issues(zone).by(start + end).since(start + int(origins.min()) - LEAST_DAYS * _DAY)
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
        """Return weights [part, feature] and bounds [part, 2]; `start` is the first hour of the values."""
        issues = self._issues(zone).by(start + values.shape[1]).since(start)
        label = f"{zone} {start} {values.shape[1]} {slots} {self.lag_hours} {len(issues)}"
        return self._kept.get(values, label, lambda: self._train(values, issues, start, slots))

    def _train(self, values: Floats, issues: Issues, start: int, slots: int) -> tuple[Floats, Floats]:
        known = values.shape[1]
        weights, reach = pooled_weights().copy(), np.full((len(EDGES_H), 2), np.nan)
        previous = np.full(2, np.nan)
        for part, features, target in rows(issues, values, start, slots, self.train_days):
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
    issues: Issues, values: Floats, start: int, slots: int, train_days: int, every: int = 1
) -> list[tuple[int, Floats, Floats]]:
    """Return (part, features [row, feature], target [row]) of past origins at which the provider had a forecast."""
    known = values.shape[1]
    past = Past(values, _DAY)
    provided = Provided(issues.by(start + known).since(start), past, 0, start)
    found = []
    for part, first, end in lead_parts(slots, _DAY):
        origins = training_origins(known, first, end, _DAY, train_days)[::every]
        leads = np.arange(first, end)
        both = np.concatenate([past.features(origins, leads)[0], provided.features(origins, leads)], axis=2)
        target = values[0, origins[:, None] + leads] - past.profile(origins, leads)[0]
        there = np.isfinite(both).all(axis=2)
        found.append((part, both[there], target[there]))
    return found


def _to_hours(history: Traces) -> Traces:
    """Return the history by the hour: means of shorter slots, longer ones repeated; an incomplete last hour is dropped."""
    minutes = history.slot_minutes
    if minutes > _HOUR_MINUTES:
        repeated = np.repeat(history.intensity, minutes // _HOUR_MINUTES, axis=1)
        return replace(history, intensity=repeated, slot_minutes=_HOUR_MINUTES)
    per_hour = _HOUR_MINUTES // minutes
    first = (ceil_hour(history.start) - history.start) // _MINUTE // minutes
    whole = (history.slots - first) // per_hour * per_hour
    values = history.intensity[:, first : first + whole].reshape(len(history.zones), -1, per_hour).mean(axis=2)
    return replace(history, start=ceil_hour(history.start), intensity=values, slot_minutes=_HOUR_MINUTES)


def _join(ours_inside: tuple[Floats, Floats, Floats], ours: tuple[Floats, Floats, Floats]) -> list[Floats]:
    """Return the blend; outside of it our forecast, shifted so that there is no jump at its ends."""
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
    """Return [part of the leads, feature], as fitted over the zones of an archive."""
    return read_weights("blend_prior.csv", FEATURES)


def fit_pooled(archive: ForecastArchive, share: float, slots: int = 96) -> Floats:
    """Return weights [part, feature] pooled over the archive's zones with equal influence, from the first `share` of its time."""
    weights = np.zeros((len(EDGES_H), len(FEATURES)))
    parts: dict[int, list[tuple[Floats, Floats]]] = {}
    for zone in archive.zones:
        actual = archive.actuals[zone]
        hours = int(actual.slots * share)
        start = int(hours_since_1970(actual.start))
        for part, features, target in rows(archive.of(zone), actual.intensity[:, :hours], start, slots, hours):
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
