"""Carbon intensity of several zones over the same slots: the form in which planning takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
_DOUBT: tuple[Certainty, ...] = ("actual", "estimated", "forecast", "synthetic")
"""From certain to made up."""
_HOUR = timedelta(hours=1)
_MOST_HOURS = 1_000_000
INTERPOLATED = "interpolated"
"""Source of an hour that its provider left out, between others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run of consecutive hours comes from."""

    start: str
    """Start of the first hour, ISO 8601, UTC."""
    hours: int
    source: str
    kind: Certainty
    issued_at: str | None = None
    """When a forecast was issued, ISO 8601, UTC; None where that is not known."""

    def __post_init__(self) -> None:
        if isinstance(self.hours, bool) or not isinstance(self.hours, int) or not 1 <= self.hours <= _MOST_HOURS:
            raise DataError(f"An origin of {self.hours!r:.40} hours is damaged: give 1 to {_MOST_HOURS:,}.")

    def starts(self) -> list[datetime]:
        """Return the start of every hour."""
        first = utc(self.start)
        return [first + i * _HOUR for i in range(self.hours)]

    def within(self, start: datetime, end: datetime) -> Origin | None:
        """Return the part that reaches into [start, end), or None."""
        kept = [hour for hour in self.starts() if start - _HOUR < hour < end]
        return replace(self, start=iso(kept[0]), hours=len(kept)) if kept else None


def origins_of(hours: Iterable[tuple[datetime, str, Certainty, datetime | None]]) -> tuple[Origin, ...]:
    """Join hours (start, source, kind, issued at), in order of time, to runs of the same origin."""
    found: list[Origin] = []
    end: datetime | None = None
    for start, source, kind, issued in hours:
        issued_at = None if issued is None else iso(issued)
        last = found[-1] if found else None
        if last and start == end and (last.source, last.kind, last.issued_at) == (source, kind, issued_at):
            found[-1] = replace(last, hours=last.hours + 1)
        else:
            found.append(Origin(start=iso(start), hours=1, source=source, kind=kind, issued_at=issued_at))
        end = start + _HOUR
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one zone's values come from, as it is repeated in every output."""

    zone: str
    source: str
    """In words, for people. What counts is in `origins`, where there are any."""
    synthetic: bool = False
    filled_hours: tuple[str, ...] = ()
    """Starts of the hours that were missing and filled by interpolation."""
    origins: tuple[Origin, ...] = ()
    """Source, kind and time of issue of every hour; an hour that is in none of them is actual, from `source`."""

    def hours(self, kind: Certainty) -> tuple[str, ...]:
        """Return the starts of the hours of a kind, ISO 8601."""
        return tuple(iso(hour) for one in self.origins if one.kind == kind for hour in one.starts())

    def within(self, start: datetime, end: datetime) -> Provenance:
        """Return the same with only those hours that reach into [start, end)."""
        origins = tuple(kept for one in self.origins if (kept := one.within(start, end)) is not None)
        return replace(self, filled_hours=_within(self.filled_hours, start, end), origins=origins)

    def origin(self, start: datetime, end: datetime) -> tuple[str, Certainty]:
        """Return source and kind of the values in [start, end), of the least certain of them."""
        if self.synthetic:
            return self.source, "synthetic"
        parts = [one for one in self.origins if one.within(start, end) is not None]
        kinds: list[Certainty] = ["estimated"] if _within(self.filled_hours, start, end) else []
        worst: Certainty = max([*kinds, *(one.kind for one in parts)], key=_DOUBT.index, default="actual")
        otherwise = INTERPOLATED if kinds and self.origins else self.source
        return next((one.source for one in parts if one.kind == worst), otherwise), worst

    def to_dict(self) -> dict[str, Any]:
        """Return the provenance as JSON holds it."""
        whole = {"zone": self.zone, "source": self.source, "synthetic": self.synthetic}
        origins = {"origins": [asdict(one) for one in self.origins]} if self.origins else {}
        return whole | {"filled_hours": list(self.filled_hours)} | origins

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Provenance:
        """Return the provenance of a dict of `to_dict`; older files only list the hours of a kind."""
        older = [
            (utc(hour), data["source"], kind, None)
            for kind, name in (("estimated", "estimated_hours"), ("forecast", "forecast_hours"))
            for hour in data.get(name, ())
        ]
        return cls(
            zone=data["zone"],
            source=data["source"],
            synthetic=data.get("synthetic", False),
            filled_hours=tuple(data.get("filled_hours", ())),
            origins=origins_of(older) + tuple(Origin(**one) for one in data.get("origins", ())),  # type: ignore[arg-type]
        )


def _within(hours: tuple[str, ...], start: datetime, end: datetime) -> tuple[str, ...]:
    return tuple(text for text in hours if start - _HOUR < utc(text) < end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces:
    """Hold the intensity of zones over consecutive slots; a request outside of them is an error."""

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

    def __repr__(self) -> str:
        """Show zones, time and factor on one line."""
        named = ", ".join(self.zones[:3]) + (", .." if len(self.zones) > 3 else "")
        return (
            f"Traces({len(self.zones)} zones ({named}), {self.slots} slots of {self.slot_minutes} min from {iso(self.start)}, "
            f"{self.factor}{', synthetic' if self.synthetic else ''})"
        )

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return int(self.intensity.shape[1])

    @property
    def end(self) -> datetime:
        """Return the end of the last slot."""
        return self.start + timedelta(minutes=self.slot_minutes * self.slots)

    @property
    def synthetic(self) -> bool:
        """Return whether any zone is synthetic; every output says so."""
        return any(p.synthetic for p in self.provenance)

    def forecast_zones(self) -> list[str]:
        """Return the zones of which some hours are forecast."""
        return [p.zone for p in self.provenance if any(one.kind == "forecast" for one in p.origins)]

    def index(self, zone: str) -> int:
        """Return the row of a zone."""
        try:
            return self.zones.index(zone)
        except ValueError:
            raise ScenarioError(f"There is no trace for zone {zone!r}; loaded are {', '.join(self.zones)}.") from None

    def slot_starts(self) -> list[datetime]:
        """Return the start of every slot."""
        step = timedelta(minutes=self.slot_minutes)
        return [self.start + i * step for i in range(self.slots)]

    def window(self, start: str | datetime, slots: int) -> Traces:
        """Return the part from `start` over `slots` slots."""
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
        provenance = tuple(p.within(begin, last) for p in self.provenance)
        return replace(self, start=begin, intensity=self.intensity[:, offset : offset + slots], provenance=provenance)


def joined(first: Traces, then: Traces) -> Traces:
    """Return two traces of the same zones as one; the second starts where the first ends."""
    if (first.zones, first.factor, first.slot_minutes, first.end) != (
        then.zones, then.factor, then.slot_minutes, then.start,
    ):  # fmt: skip
        raise DataError("Only traces of the same zones, factor and slots that follow each other can be joined.")
    provenance = tuple(
        Provenance(
            zone=one.zone,
            source=f"{one.source}; then {other.source}",
            synthetic=one.synthetic or other.synthetic,
            filled_hours=one.filled_hours + other.filled_hours,
            origins=one.origins + other.origins,
        )
        for one, other in zip(first.provenance, then.provenance, strict=True)
    )
    return replace(first, intensity=np.concatenate([first.intensity, then.intensity], axis=1), provenance=provenance)
