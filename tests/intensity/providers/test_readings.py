"""Hours and spans of readings, and the factors of fuels, which tables of IPCC give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slackwater.intensity.providers.generation_mix import EIA_FUELS, ENTSOE_FUELS, G_PER_KWH
from slackwater.intensity.providers.readings import HOUR, spans

START = datetime(2023, 1, 1, tzinfo=UTC)


def hours(*numbers: int) -> list[datetime]:
    return [START + number * HOUR for number in numbers]


def test_hours_that_follow_each_other_are_one_span() -> None:
    def found(*numbers: int, join: int = 0) -> list[tuple[int, int]]:
        made = spans(hours(*numbers), timedelta(hours=join))
        return [((first - START) // HOUR, (stop - START) // HOUR) for first, stop in made]

    assert found() == []
    assert found(3) == [(3, 4)]
    assert found(0, 1, 2, 5, 6, 9) == [(0, 3), (5, 7), (9, 10)]
    assert found(0, 1, 4, 8, join=2) == [(0, 5), (8, 9)]
    assert found(0, 1, 4, 8, join=3) == [(0, 9)]


def test_life_cycle_medians_are_those_of_ipcc() -> None:
    """AR5 WG III, Annex III, table A.III.2; oil is of SRREN, Annex II."""
    published = {
        "coal": 820, "gas": 490, "oil": 840, "biomass": 230, "geothermal": 38, "hydro": 24, "ocean": 17, "nuclear": 12,
        "wind": 11, "wind offshore": 12,
    }  # fmt: skip
    assert {fuel: G_PER_KWH[fuel]["lifecycle"] for fuel in published} == published
    assert 41 < G_PER_KWH["solar"]["lifecycle"] < 48, "between rooftop and utility"
    assert G_PER_KWH["storage"] == G_PER_KWH["hydro"]


def test_only_what_burns_fossil_fuel_emits_directly() -> None:
    burning = {"coal": 760.0, "gas": 370.0, "oil": pytest.approx(77.4 * 3.6 / 0.38, abs=0.5), "unknown": 575.0}
    for fuel, factors in G_PER_KWH.items():
        assert factors["direct"] == burning.get(fuel, 0.0), fuel
        assert factors["direct"] <= factors["lifecycle"]
    assert {*ENTSOE_FUELS.values(), *EIA_FUELS.values()} <= set(G_PER_KWH)
