"""Traces and archives for the tests: small, made here, with what real ones have (days, weeks, noise with memory)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity.forecast.archive import ForecastArchive, Issues, hours_since_1970
from slackwater.intensity.traces import Traces

START = datetime(2023, 1, 2, tzinfo=UTC)


def noise(slots: int, seed: int, memory: float = 0.97) -> NDArray[np.float64]:
    shocks = np.random.default_rng(seed).standard_normal(slots) * np.sqrt(1 - memory**2)
    walk = np.zeros(slots)
    for i in range(1, slots):
        walk[i] = memory * walk[i - 1] + shocks[i]
    return walk


def traces(days: int = 60, zones: int = 2, *, slot_minutes: int = 60, seed: int = 0) -> Traces:
    slots = days * 1440 // slot_minutes
    hours = np.arange(slots) * slot_minutes / 60
    weekend = (hours // 24 % 7 >= 5).astype(np.float64)
    rows = [
        0.3
        + 0.05 * np.sin(2 * np.pi * (hours + 3 * zone) / 24)
        - 0.03 * weekend
        + 0.06 * noise(slots, seed + zone, 0.97 ** (slot_minutes / 60))
        for zone in range(zones)
    ]
    return Traces(
        zones=tuple(f"Z{zone}" for zone in range(zones)),
        start=START,
        intensity=np.maximum(np.array(rows), 0.01),
        factor="lifecycle",
        slot_minutes=slot_minutes,
    )


def changed(truth: Traces, slot: int) -> Traces:
    """The same up to a slot, and something else from there on."""
    values = truth.intensity.copy()
    values[:, slot:] = 7.0 * values[:, slot:][:, ::-1] + 1.0
    return Traces(
        zones=truth.zones, start=truth.start, intensity=values, factor=truth.factor, slot_minutes=truth.slot_minutes
    )


def archive(
    truth: Traces, *, horizon: int = 96, bias: float = 1.0, error: float = 0.3, every: int = 24
) -> ForecastArchive:
    """Issues every so many hours that know the truth up to an error, `bias` times too high."""
    issues, actuals = {}, {}
    first = int(hours_since_1970(truth.start))
    for row, zone in enumerate(truth.zones):
        starts = np.arange(0, truth.slots - horizon + 1, every)
        wrong = error * truth.intensity[row].std() * noise(truth.slots, 99 + row)
        seen = np.maximum(truth.intensity[row] + wrong, 0.0) * bias
        values = np.array([seen[start : start + horizon] for start in starts])
        issues[zone] = Issues(issued=(first + starts).astype(np.float64), first=first + starts, values=values)
        actuals[zone] = Traces(
            zones=(zone,), start=truth.start, intensity=truth.intensity[row : row + 1], factor=truth.factor
        )
    missing = {zone: np.zeros(truth.slots, dtype=np.bool_) for zone in truth.zones}
    return ForecastArchive(issues, actuals=actuals, missing=missing)


def write_file(made: ForecastArchive, zone: str, path: Path) -> Path:
    """The archive as a file of the format that is read."""
    issues, truth = made.issues[zone], made.actuals[zone]
    start = int(hours_since_1970(truth.start))
    lines = ["issued_at_utc,valid_at_utc,forecast_g_per_kwh,actual_g_per_kwh"]
    for issued, first, values in zip(issues.issued, issues.first, issues.values, strict=True):
        for lead, value in enumerate(values):
            valid = datetime.fromtimestamp((first + lead) * 3600, tz=UTC)
            when = datetime.fromtimestamp(issued * 3600, tz=UTC)
            actual = truth.intensity[0, first + lead - start]
            lines.append(f"{when:%Y-%m-%dT%H:%MZ},{valid:%Y-%m-%dT%H:%MZ},{1000 * value:.4f},{1000 * actual:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path
