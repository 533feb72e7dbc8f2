"""Small worlds to steer runs in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slackwater as sw
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import Traces

START = datetime(2023, 3, 1, tzinfo=UTC)
HISTORY = 8 * 24


def traces(intensity: NDArray[np.float64], start: datetime = START - timedelta(hours=HISTORY)) -> Traces:
    zones = tuple(f"z{i}" for i in range(len(intensity)))
    return Traces(zones=zones, start=start, intensity=np.asarray(intensity, dtype=float), factor="direct")


def daily(zones: int, slots: int, seed: int = 0, noise: float = 0.1) -> NDArray[np.float64]:
    """Days that look like days, kg/kWh."""
    rng = np.random.default_rng(seed)
    hour = np.arange(slots)
    phase, size = rng.uniform(0, 24, (zones, 1)), rng.uniform(0.2, 0.6, (zones, 1))
    wave = 1 + 0.4 * np.sin(2 * np.pi * (hour - phase) / 24)
    return np.asarray(size * wave * (1 + noise * rng.uniform(-1, 1, (zones, slots))))


def problem(
    actuals: Traces,
    *,
    rounds: int = 4,
    slack: int = 20,
    hours: int | None = 4,
    idle_w: float = 0.0,
    **settings: Any,
) -> sw.Problem:
    """One client of 1 kW a zone, and by default the budget of everybody for the first hours."""
    clients = [sw.Client(name=zone, zone=zone, power_w=1000, idle_w=idle_w) for zone in actuals.zones]
    settings.setdefault("budget_kg", 1.0)
    made = sw.Problem(clients=clients, traces=actuals, start=START, rounds=rounds, slack=slack, **settings)
    return made if hours is None else made.with_settings(budget_kg=float(made.costs.dense()[:, :hours].sum()))


def forecast(known: Traces, mean: NDArray[np.float64], width: float = 0.0) -> Forecast:
    return Forecast(
        zones=known.zones,
        start=known.end,
        mean=mean,
        low=np.maximum(mean * (1 - width), 0.0),
        high=mean * (1 + width),
        coverage=0.8,
        factor="direct",
        source="test",
    )
