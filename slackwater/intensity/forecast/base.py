"""A forecast: the expected intensity of every coming slot with an interval; and model-free forecasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.traces import Factor, Origin, Provenance, Traces
from slackwater.units import floor_hour, iso, utc


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Intensity of zones over coming slots, in kg CO2e/kWh: mean and bounds, each [zone, slot]."""

    zones: tuple[str, ...]
    start: datetime
    """Start of the first slot, aware UTC."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    coverage: float
    """Intended probability that a slot's actual lies between `low` and `high`."""
    factor: Factor
    source: str
    """The forecaster, as shown in reports."""
    slot_minutes: int = 60
    origins: tuple[tuple[Origin, ...], ...] = ()
    """By zone: source and time of issue of its hours; empty if all are from `source`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", utc(self.start, "start"))
        if not 0 < self.coverage <= 1:
            raise DataError(f"The coverage of a forecast is {self.coverage}; give a probability above 0, at most 1.")
        if not (self.mean.shape == self.low.shape == self.high.shape) or self.mean.shape[0] != len(self.zones):
            raise DataError(f"A forecast of {len(self.zones)} zones has arrays of the shapes "
                            f"{self.mean.shape}, {self.low.shape} and {self.high.shape}.")  # fmt: skip
        if not (np.all(self.low <= self.mean) and np.all(self.mean <= self.high) and np.all(self.low >= 0)):
            raise DataError("A forecast needs 0 <= low <= mean <= high in every slot.")

    @classmethod
    def after(
        cls, history: Traces, mean: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], *,
        coverage: float, source: str, origins: tuple[tuple[Origin, ...], ...] = (),
    ) -> Forecast:  # fmt: skip
        """Return a forecast of the slots that follow a history."""
        return cls(
            zones=history.zones, start=history.end, mean=mean, low=low, high=high, coverage=coverage,
            factor=history.factor, source=source, slot_minutes=history.slot_minutes, origins=origins,
        )  # fmt: skip

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return int(self.mean.shape[1])

    @property
    def end(self) -> datetime:
        """Return the end of the last slot."""
        return self.start + timedelta(minutes=self.slot_minutes * self.slots)

    def traces(self) -> Traces:
        """Return the mean as traces to plan on; every hour is marked as forecast."""
        hours = -(-(self.end - floor_hour(self.start)) // timedelta(hours=1))
        whole = Origin(start=iso(floor_hour(self.start)), hours=hours, source=self.source, kind="forecast",
                       issued_at=iso(self.start))  # fmt: skip
        origins = self.origins or ((whole,),) * len(self.zones)
        provenance = tuple(
            Provenance(zone=zone, source=f"{self.source} (forecast)", origins=one)
            for zone, one in zip(self.zones, origins, strict=True)
        )
        return Traces(zones=self.zones, start=self.start, intensity=self.mean, factor=self.factor,
                      slot_minutes=self.slot_minutes, provenance=provenance)  # fmt: skip


class Forecaster(Protocol):
    """Forecast from the past alone: `history` ends where the forecast starts."""

    name: str

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return a forecast of the `slots` slots that follow `history`."""
        ...


Floats = NDArray[np.float64]
Predict = Callable[[Floats, int], Floats]
"""From the past [zone, slot] to a number of coming slots [zone, slot]."""

_MINUTES_PER_DAY = 1440
ORIGINS = 21
"""Number of past origins whose errors are used, one a day."""


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
"""By day ahead: half the width of the stated interval, as a share of the forecast. Later days use the last value."""


def stated(mean: Floats, slot_minutes: int, first_slot: int = 0) -> tuple[Floats, Floats]:
    """Return the default interval around a forecast [zone, slot] whose errors are unknown.

    `first_slot` is the distance of the first slot, in slots. docs/research/forecasts.md says how the widths were measured.
    """
    days = (first_slot + np.arange(mean.shape[1])) * slot_minutes // _MINUTES_PER_DAY
    share = np.array(_STATED)[np.minimum(days, len(_STATED) - 1)]
    return mean * (1.0 - share), mean * (1.0 + share)


def check_coverage(coverage: float) -> float:
    """Return the coverage; raise ScenarioError unless it is between 0 and 1."""
    if not 0.0 < coverage < 1.0:
        raise ScenarioError(f"coverage is {coverage}; give a probability between 0 and 1, like 0.8.")
    return coverage


logger = logging.getLogger(__name__)

COVERAGE = 0.8
MINUTES_PER_DAY = 1440


def slots_per_day(history: Traces) -> int:
    """Return the number of slots of a day."""
    return MINUTES_PER_DAY // history.slot_minutes


def check_request(history: Traces, slots: int) -> None:
    """Raise an error if there is no history, or nothing to forecast."""
    if history.slots < 1:
        raise DataError("There is no history to forecast from. Give at least one slot, better four weeks.")
    if slots < 1:
        raise ScenarioError(f"slots is {slots}; forecast at least one.")


class SameHourMean:
    """Forecast the mean of the last `days` days at the same hour; of fewer if the history is shorter."""

    def __init__(self, days: int = 7, *, coverage: float = COVERAGE) -> None:
        if days < 1:
            raise ScenarioError(f"days is {days}; take the mean of at least one day.")
        self.name = "same-hour-mean" if days > 1 else "persistence"
        self.days = days
        self.coverage = check_coverage(coverage)
        self._said = False

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the same profile for every coming day; with less than a day of history, its mean."""
        check_request(history, slots)
        day = slots_per_day(history)
        source = self.name
        if history.slots < day * self.days:
            said = f"{history.slots} of {day * self.days} slots of history"
            if not self._said:  # once, not at every re-plan
                logger.warning("The forecast %r has only %s; it uses the mean of those.", self.name, said)
            self._said = True
            source = f"{self.name} (short history: {said})"

        def predict(past: NDArray[np.float64], ahead: int) -> NDArray[np.float64]:
            return same_hour_mean(past, ahead, day, self.days)

        mean = predict(history.intensity, slots)
        errors = past_errors(history.intensity, slots, day, day, predict)
        low, high = bounds(mean, errors, day, self.coverage)
        return Forecast.after(history, mean, low, high, coverage=self.coverage, source=source)

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> NDArray[np.float64]:
        """Return the means [origin, zone, slot] of `forecast` for histories that end at these slots."""
        day = slots_per_day(truth)
        return np.array([same_hour_mean(truth.intensity[:, :origin], slots, day, self.days) for origin in origins])


class Persistence(SameHourMean):
    """Repeat the last 24 hours."""

    def __init__(self, *, coverage: float = COVERAGE) -> None:
        super().__init__(1, coverage=coverage)


def same_hour_mean(past: NDArray[np.float64], slots: int, day: int, days: int) -> NDArray[np.float64]:
    """Return [zone, slot]: the mean over the whole days at the end of `past`, at most `days`, repeated."""
    whole = min(days, past.shape[1] // day)
    if whole == 0:
        return np.repeat(past.mean(axis=1, keepdims=True), slots, axis=1)
    profile = past[:, -whole * day :].reshape(past.shape[0], whole, day).mean(axis=1)
    return np.tile(profile, -(-slots // day))[:, :slots]
