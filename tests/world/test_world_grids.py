"""The world itself: forecasts as good as real ones, values that come when they are published, and faults that pass."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest
from grids import EPOCH, HOUR, LEVELS, ElectricityMapsWorld, EnergyChartsWorld, Fault, FaultKind, foreseen, truth
from sandbox import START

DAYS = [EPOCH + timedelta(days=day) for day in range(20, 120)]


@pytest.mark.parametrize("zone", sorted(LEVELS))
def test_forecasts_get_worse_with_lead(zone: str) -> None:
    def error(lead_h: int) -> float:
        pairs = [(foreseen(zone, day + lead_h * HOUR, day), truth(zone, day + lead_h * HOUR)) for day in DAYS]
        return float(np.mean([abs(said / was - 1) for said, was in pairs]))

    assert 0.01 < error(1) < error(24) < error(72) < 0.3
    hours = [truth(zone, EPOCH + hour * HOUR) for hour in range(24 * 120)]
    assert 0.5 * LEVELS[zone] < np.mean(hours) < 1.5 * LEVELS[zone]
    assert np.std(hours) > 0.05 * np.mean(hours)


def test_values_come_when_they_are_published() -> None:
    now = [START]
    told = EnergyChartsWorld(lambda: now[0], (), lag=2 * HOUR, reach=24 * HOUR)
    quarter = timedelta(minutes=15)
    assert told.actual("FR", START - 2 * HOUR) is None
    assert told.actual("FR", START - 2 * HOUR - quarter) == pytest.approx(
        truth("FR", START - 2 * HOUR - quarter / 2), abs=0.01
    )
    assert told.expected("FR", START + 24 * HOUR) is None
    assert told.expected("FR", START + 24 * HOUR - quarter) is not None
    now[0] += quarter
    assert told.actual("FR", START - 2 * HOUR) is not None
    assert told.expected("FR", START + 24 * HOUR) is not None


@pytest.mark.parametrize("kind", ["nulls", "late", "revised", "no-forecast", "double-forecast", "down", "throttled"])
def test_faults_pass(kind: FaultKind) -> None:
    def seen(faults: tuple[Fault, ...], at: datetime) -> list[object]:
        world = ElectricityMapsWorld(lambda: at, faults, lag=HOUR, reach=72 * HOUR)
        trouble = world.trouble()
        hours = [START + hour * HOUR for hour in range(-24, 48)]
        return [
            trouble and trouble.status,
            *(world.actual("FR", hour) for hour in hours),
            *(world.expected("FR", hour) for hour in hours),
        ]

    faults = (Fault(kind=kind, start=START, end=START + 6 * HOUR, zones=("FR",)),)
    assert seen(faults, START - HOUR) == seen((), START - HOUR)
    assert seen(faults, START + 4 * HOUR) != seen((), START + 4 * HOUR)
    assert seen(faults, START + 24 * HOUR) == seen((), START + 24 * HOUR)
