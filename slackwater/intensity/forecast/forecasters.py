"""Forecasters by name, and two for back-tests: the truth, and the truth with realistic errors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import (
    Forecast,
    Forecaster,
    Persistence,
    SameHourMean,
    check_request,
    slots_per_day,
)
from slackwater.intensity.forecast.blend import Blend
from slackwater.intensity.forecast.ridge import Ridge
from slackwater.intensity.traces import Traces
from slackwater.registry import Registry


def rows_of(truth: Traces, history: Traces, slots: int) -> NDArray[np.float64]:
    """Return the truth of the slots after `history`, [zone, slot] in the order of history's zones."""
    if truth.factor != history.factor or truth.slot_minutes != history.slot_minutes:
        raise DataError(
            f"The truth is {truth.factor} in slots of {truth.slot_minutes} minutes, the history {history.factor} in "
            f"slots of {history.slot_minutes}; load both with the same settings."
        )
    return truth.window(history.end, slots).intensity[[truth.index(zone) for zone in history.zones]]


class Oracle:
    """Forecast the truth: no other forecast can save more."""

    name = "oracle"

    def __init__(self, truth: Traces) -> None:
        self.truth = truth

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the truth of the coming slots."""
        ahead = rows_of(self.truth, history, slots)
        return Forecast.after(history, ahead, ahead, ahead, coverage=1.0, source=self.name)


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The size of the errors; later days use the last value.

    The slopes are those of 13 regions in 2021, the rest is measured on ten regions of 2022 and 2023 (without FI, whose
    forecasts are twice the actual); docs/research/forecasts.md compares planning with it and with real forecasts.
    """

    slope: tuple[float, ...] = (0.79, 0.58, 0.49, 0.42)
    """By day ahead: beta, the slope of forecasts on actuals."""
    residual: tuple[float, ...] = (0.51, 0.61, 0.66, 0.69)
    """By day ahead: standard deviation of the residual, as a share of the actuals' standard deviation."""
    autocorrelation: float = 0.96
    """Autocorrelation of the residual from one hour to the next."""
    shared: float = 0.8
    """Correlation of the residuals of two forecasts of the same hour that were issued a day apart."""
    mean_days: int = 28
    """Days of history for m and the actuals' standard deviation."""


class ErrorModel:
    """Forecast the truth with calibrated errors, the same for the same seed; for back-tests only."""

    name = "error-model"

    def __init__(
        self, truth: Traces, *, seed: int = 0, calibration: Calibration | None = None, issued_every_hours: int = 24,
        coverage: float = 0.8,
    ) -> None:  # fmt: skip
        if issued_every_hours < 1:
            raise ScenarioError(f"issued_every_hours is {issued_every_hours}; give at least 1.")
        self.truth, self.seed, self.coverage = truth, seed, coverage
        self.calibration, self.issued_every_hours = calibration or Calibration(), issued_every_hours
        self._newest, self._issued = -1, dict[tuple[str, int], Floats]()
        # By the truth's slots, so that forecasts issued at different times have similar errors in the same slot.
        self._shared = np.array([self._walk(zone, 0, truth.slots) for zone in truth.zones])

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the latest issue's forecast; `history` gives the mean that it shrinks to."""
        check_request(history, slots)
        actual = rows_of(self.truth, history, slots)
        day = slots_per_day(history)
        recent = history.intensity[:, -self.calibration.mean_days * day :]
        mean, spread = recent.mean(axis=1, keepdims=True), recent.std(axis=1, keepdims=True)
        now = round((history.end - self.truth.start) / timedelta(minutes=history.slot_minutes))
        minutes = int(history.end.timestamp()) // 60
        age = minutes % (60 * self.issued_every_hours) // history.slot_minutes
        days = (age + np.arange(slots)) // day
        slope, size = (
            np.array(by_day)[np.minimum(days, len(by_day) - 1)]
            for by_day in (self.calibration.slope, self.calibration.residual)
        )
        issue = minutes // (60 * self.issued_every_hours)
        shared = self._shared[[self.truth.index(zone) for zone in history.zones], now : now + slots]
        # Of the same length for every hour of an issue, so that it is drawn once.
        longest = 60 * self.issued_every_hours // history.slot_minutes + slots
        own = np.array([self._issue(zone, issue, longest)[age : age + slots] for zone in history.zones])
        mix = self.calibration.shared
        residual = size * spread * (np.sqrt(mix) * shared + np.sqrt(1.0 - mix) * own)
        value = np.maximum(mean + slope * (actual - mean) + residual, 0.0)
        # The error is the residual plus the shrinkage; a normal quantile is good enough for a simulation.
        reach = NormalDist().inv_cdf(0.5 + self.coverage / 2.0) * spread * np.sqrt(size**2 + (1.0 - slope) ** 2)
        source = f"{self.name} (simulated, seed {self.seed})"
        low, high = np.maximum(value - reach, 0.0), value + reach
        return Forecast.after(history, value, low, high, coverage=self.coverage, source=source)

    def _issue(self, zone: str, issue: int, slots: int) -> Floats:
        """Return the residual that only this issue has."""
        if issue != self._newest:
            self._newest, self._issued = issue, {}
        if (zone, slots) not in self._issued:
            self._issued[zone, slots] = self._walk(zone, 1 + issue, slots)
        return self._issued[zone, slots]

    def _walk(self, zone: str, stream: int, slots: int) -> Floats:
        """Return an AR(1) process of unit variance, drawn from its stationary law."""
        rng = np.random.default_rng([self.seed, zlib.crc32(zone.encode()), stream])
        memory = self.calibration.autocorrelation ** (self.truth.slot_minutes / 60.0)
        shocks = rng.standard_normal(slots)
        shocks[1:] *= np.sqrt(1.0 - memory**2)
        walk = np.empty(slots)
        level = 0.0
        for i, shock in enumerate(shocks):
            level = memory * level + shock
            walk[i] = level
        return walk


Factory = Callable[..., Forecaster]

_OWN: dict[str, Factory] = {
    "persistence": Persistence,
    "same-hour-mean": SameHourMean,
    "ridge": Ridge,
    "blend": Blend,
    "oracle": Oracle,
    "error-model": ErrorModel,
}
FORECASTERS = Registry("forecaster", "slackwater.forecasters", _OWN)
NEED_TRUTH = ("oracle", "error-model")
"""Forecasters that get the future (`truth=`), for back-tests only."""
NEED_ARCHIVE = ("blend",)
"""Forecasters that use a provider's forecasts (`archive=`)."""


def register_forecaster(name: str, factory: Factory) -> None:
    """Register a forecaster. Packages use an entry point in the group `slackwater.forecasters` instead.

    Args:
        name: New name, as options and settings use it.
        factory: Makes the forecaster; its options are passed by keyword.
    """
    if not name:
        raise ScenarioError("A forecaster needs a name.")
    FORECASTERS.register(name, factory)


def forecaster_names() -> list[str]:
    """Return all names, with those of installed packages."""
    return FORECASTERS.names()


def forecaster(name: str, **options: Any) -> Forecaster:
    """Make a forecaster by name: `forecaster("same-hour-mean", days=14)`, `forecaster("oracle", truth=traces)`."""
    wanted = name.strip().lower()
    factory = FORECASTERS.get(wanted, shown=name)
    try:
        return factory(**options)
    except TypeError as error:
        raise ScenarioError(f"The forecaster {wanted!r} does not accept these options: {error}.") from None
