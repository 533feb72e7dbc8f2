"""What a forecaster gives: the expected intensity of every coming slot, and the range it is likely to lie in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Factor, Provenance, Traces
from slackwater.errors import DataError
from slackwater.units import utc


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", utc(self.start, "start"))
        if not (self.mean.shape == self.low.shape == self.high.shape) or self.mean.shape[0] != len(self.zones):
            raise DataError(f"A forecast of {len(self.zones)} zones has arrays of the shapes "
                            f"{self.mean.shape}, {self.low.shape} and {self.high.shape}.")  # fmt: skip
        if not (np.all(self.low <= self.mean) and np.all(self.mean <= self.high) and np.all(self.low >= 0)):
            raise DataError("A forecast needs 0 <= low <= mean <= high in every slot.")

    @property
    def slots(self) -> int:
        """How many slots are forecast."""
        return int(self.mean.shape[1])

    def traces(self) -> Traces:
        """The mean as traces to plan on."""
        provenance = tuple(Provenance(zone=zone, source=f"{self.source} (forecast)") for zone in self.zones)
        return Traces(zones=self.zones, start=self.start, intensity=self.mean, factor=self.factor,
                      slot_minutes=self.slot_minutes, provenance=provenance)  # fmt: skip


class Forecaster(Protocol):
    """Looks only at the past: `history` ends where the forecast starts."""

    name: str

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """The `slots` slots that follow the end of `history`."""
        ...
