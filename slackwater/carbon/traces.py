"""Carbon intensity of several zones over the same slots: the one form in which it enters planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.units import iso, utc

Factor = Literal["direct", "lifecycle", "marginal", "mixed"]
"""Marginal values come from a provider only; mixed is what zones of several factors have, where that was asked for."""
FACTORS: tuple[Factor, ...] = ("direct", "lifecycle")
"""The factors that files and the typical year have."""
Certainty = Literal["actual", "estimated", "forecast", "synthetic"]
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one zone's values come from, as it is repeated in every output."""

    zone: str
    source: str
    synthetic: bool = False
    filled_hours: tuple[str, ...] = ()
    """Starts of the hours that were missing and filled by interpolation."""
    estimated_hours: tuple[str, ...] = ()
    """Starts of the hours that the provider itself estimated."""
    forecast_hours: tuple[str, ...] = ()
    """Starts of the hours that were not over when they were asked for."""

    def within(self, start: datetime, end: datetime) -> Provenance:
        """The same with only those hours that reach into [start, end)."""
        kept: dict[str, Any] = {name: _within(getattr(self, name), start, end) for name in _HOURS}
        return replace(self, **kept)

    def certainty(self, start: datetime, end: datetime) -> Certainty:
        """Of the values in [start, end), as of the least certain."""
        if self.synthetic:
            return "synthetic"
        if _within(self.forecast_hours, start, end):
            return "forecast"
        return "estimated" if _within(self.filled_hours + self.estimated_hours, start, end) else "actual"

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        doubtful = {name: list(getattr(self, name)) for name in _HOURS[1:] if getattr(self, name)}
        whole = {"zone": self.zone, "source": self.source, "synthetic": self.synthetic}
        return whole | {"filled_hours": list(self.filled_hours)} | doubtful

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """From what `to_dict` gave; files from before some hours were kept have none of them."""
        return cls(**{**data, **{name: tuple(data.get(name, ())) for name in _HOURS}})


_HOURS = ("filled_hours", "estimated_hours", "forecast_hours")


def _within(hours: tuple[str, ...], start: datetime, end: datetime) -> tuple[str, ...]:
    return tuple(text for text in hours if start - _HOUR < utc(text) < end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces:
    """Intensity of zones over consecutive slots; asking outside of them is an error, never a guess."""

    zones: tuple[str, ...]
    start: datetime
    """Start of the first slot, aware UTC."""
    intensity: NDArray[np.float64]
    """[zone, slot], kg CO2e/kWh, the mean over the slot; finite and never negative."""
    factor: Factor
    slot_minutes: int = 60
    provenance: tuple[Provenance, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", utc(self.start, "start"))
        if self.intensity.ndim != 2 or self.intensity.shape[0] != len(self.zones):
            raise DataError(
                f"{len(self.zones)} zones are named but the intensity has the shape {self.intensity.shape}; give one "
                "row for each zone."
            )
        if not np.all(np.isfinite(self.intensity)) or np.any(self.intensity < 0):
            raise DataError("Intensity must be finite and not negative.")

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return int(self.intensity.shape[1])

    @property
    def end(self) -> datetime:
        """End of the last slot."""
        return self.start + timedelta(minutes=self.slot_minutes * self.slots)

    @property
    def synthetic(self) -> bool:
        """Whether any zone is synthetic; every output says so."""
        return any(p.synthetic for p in self.provenance)

    def index(self, zone: str) -> int:
        """Row of a zone."""
        try:
            return self.zones.index(zone)
        except ValueError:
            raise ScenarioError(f"There is no trace for zone {zone!r}; loaded are {', '.join(self.zones)}.") from None

    def slot_starts(self) -> list[datetime]:
        """Start of every slot."""
        step = timedelta(minutes=self.slot_minutes)
        return [self.start + i * step for i in range(self.slots)]

    def window(self, start: str | datetime, slots: int) -> Traces:
        """The part from `start` over `slots` slots."""
        if slots < 1:
            raise ScenarioError(f"slots is {slots}; ask for one or more.")
        begin = utc(start, "start")
        offset, rest = divmod(begin - self.start, timedelta(minutes=self.slot_minutes))
        if rest:
            raise ScenarioError(f"start {iso(begin)} is not the start of a {self.slot_minutes}-minute slot.")
        last = begin + timedelta(minutes=self.slot_minutes * slots)
        if offset < 0 or offset + slots > self.slots:
            raise DataError(
                f"The traces cover {iso(self.start)} to {iso(self.end)}; {iso(begin)} to {iso(last)} lies outside "
                "of it."
            )
        return Traces(
            zones=self.zones,
            start=begin,
            intensity=self.intensity[:, offset : offset + slots],
            factor=self.factor,
            slot_minutes=self.slot_minutes,
            provenance=tuple(p.within(begin, last) for p in self.provenance),
        )
