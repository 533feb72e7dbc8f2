"""A forecast: the expected intensity of every coming slot, and the range it is likely to lie in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Factor, Origin, Provenance, Traces
from slackwater.errors import DataError
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
    """Probability with which a slot's actual is meant to lie between `low` and `high`."""
    factor: Factor
    source: str
    """Who forecast, as reports repeat it."""
    slot_minutes: int = 60
    origins: tuple[tuple[Origin, ...], ...] = ()
    """By zone: who forecast which hours, and when; empty where all are of `source`."""

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
