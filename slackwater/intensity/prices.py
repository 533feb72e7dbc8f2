"""Electricity prices: zones over consecutive slots, per kWh, in one currency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.units import iso, utc

DEFAULT_CURRENCY = "EUR"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Hold the price of electricity in zones over consecutive slots; a request for a missing price is an error."""

    zones: tuple[str, ...]
    start: datetime
    """Start of the first slot, aware UTC."""
    per_kwh: NDArray[np.float64]
    """[zone, slot], currency per kWh, the mean over the slot; may be negative, NaN where it is missing."""
    currency: str = DEFAULT_CURRENCY
    slot_minutes: int = 60
    source: str = "prices given as an array"

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", utc(self.start, "start"))
        object.__setattr__(self, "per_kwh", np.asarray(self.per_kwh, dtype=np.float64))
        if self.per_kwh.ndim != 2 or self.per_kwh.shape[0] != len(self.zones):
            raise DataError(
                f"{len(self.zones)} zones are named but the prices have the shape {self.per_kwh.shape}; give one row for "
                "each zone."
            )
        if np.isinf(self.per_kwh).any():
            raise DataError("Prices must be finite.")

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return int(self.per_kwh.shape[1])

    @property
    def end(self) -> datetime:
        """Return the end of the last slot."""
        return self.start + timedelta(minutes=self.slot_minutes * self.slots)

    def index(self, zone: str) -> int:
        """Return the row of a zone."""
        try:
            return self.zones.index(zone)
        except ValueError:
            raise ScenarioError(
                f"There is no price for zone {zone!r}. {self.source} has {', '.join(self.zones)}; add the zone."
            ) from None

    def reach(self, start: datetime) -> int:
        """Return the number of slots from `start` on for which every zone has a price."""
        offset = int((start - self.start) // timedelta(minutes=self.slot_minutes))
        if not 0 <= offset <= self.slots:
            return 0
        missing = np.flatnonzero(np.isnan(self.per_kwh[:, offset:]).any(axis=0))
        return int(missing[0]) if len(missing) else self.slots - offset

    def window(self, start: datetime, slots: int) -> Prices:
        """Return the part from `start` over `slots` slots, in which no price may be missing."""
        offset, rest = divmod(start - self.start, timedelta(minutes=self.slot_minutes))
        last = start + timedelta(minutes=self.slot_minutes * slots)
        if rest:
            raise ScenarioError(
                f"start {iso(start)} is not the start of a {self.slot_minutes}-minute slot of the prices."
            )
        if offset < 0 or offset + slots > self.slots:
            raise DataError(
                f"The prices ({self.source}) cover {iso(self.start)} to {iso(self.end)}; {iso(start)} to {iso(last)} is "
                "outside of it. Add the missing hours, or move the run."
            )
        part = self.per_kwh[:, offset : offset + slots]
        if np.isnan(part).any():
            zone, slot = np.argwhere(np.isnan(part))[0]
            when = start + timedelta(minutes=self.slot_minutes * int(slot))
            raise DataError(
                f"Zone {self.zones[zone]} has no price at {iso(when)} ({self.source}; {int(np.isnan(part).sum()):,} "
                "missing values). Add it: prices are never guessed."
            )
        return replace(self, start=start, per_kwh=part)
