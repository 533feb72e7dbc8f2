"""Cloud regions as zones, and units that cannot be right, in Python too."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import numpy as np
import pytest

import slackwater as sw
from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.cloud import REGIONS, grid_zone

START = datetime(2022, 1, 1, tzinfo=UTC)


def test_a_region_is_the_zone_of_its_place() -> None:
    assert grid_zone("aws:eu-west-3") == grid_zone("gcp:europe-west9") == grid_zone("azure:FranceCentral") == "FR"
    assert [grid_zone(zone) for zone in ("DE", "site:7", "aws")] == ["DE", "site:7", "aws"]
    assert len(REGIONS) > 90
    assert all(re.fullmatch(r"[A-Z]{2}(-[A-Z0-9]+)*", zone) for zone in REGIONS.values())


@pytest.mark.parametrize(
    ("zone", "sentence"),
    [
        ("aws:eu-west-33", "There is no zone for the cloud region 'aws:eu-west-33'. Did you mean 'aws:eu-west-3'?"),
        ("aws:us-west-2", "Name the electricity zone of its place instead"),
    ],
)
def test_an_unknown_region_is_a_sentence(zone: str, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(sentence)):
        sw.Client(name="a", zone=zone, power_w=300)


def test_a_region_whose_zone_has_no_data_is_named() -> None:
    with pytest.raises(ScenarioError) as refused:
        sw.load_traces(zones=["azure:japaneast"], start=START, hours=4)
    said = str(refused.value)
    assert said.startswith(
        "There is no zone 'JP-TK' in the typical profiles. It is the grid of the cloud regions aws:ap-northeast-1, "
        "gcp:asia-northeast1, azure:japaneast. Known: AU, "
    )
    assert "Did you mean" not in said


def test_clients_fleets_servers_and_traces_take_regions() -> None:
    traces = sw.load_traces(zones=["aws:eu-west-3", "FR", "gcp:europe-west3"], start=START, hours=4)
    assert traces.zones == ("FR", "DE")
    clients = [sw.Client(name="a", zone="aws:eu-west-3", power_w=300)]
    server = sw.Server(zone="azure:germanywestcentral", power_w=100)
    problem = sw.Problem(clients=clients, traces=traces, rounds=2, budget_kg=1.0, server=server)
    assert (problem.fleet.zone[0], server.zone) == ("FR", "DE")
    assert list(sw.Fleet.of(["aws:eu-west-3", "IE"], power_w=300.0).zone) == ["FR", "IE"]


def test_grams_where_kilograms_are_meant_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"Zone DE: an intensity of 380 kg/kWh is above any grid .* g/kWh: divide by 1000"
    ):
        sw.Traces(zones=("FR", "DE"), start=START, intensity=np.array([[80.0], [380.0]]), factor="lifecycle")
    sw.Traces(zones=("FR",), start=START, intensity=np.array([[1.8]]), factor="lifecycle")


def test_bare_costs_may_be_any_number() -> None:
    assert sw.Problem.from_costs([[80.0, 90.0]], rounds=1, budget_kg=100.0).budget_kg == 100.0


def test_kilowatts_where_watts_are_meant_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sw.Fleet.of(["FR", "DE", "IE"], power_w=[0.4, 300.0, 0.35])
    (record,) = caplog.records
    assert record.getMessage() == (
        "Client 'client-1' draws 0.4 W. If that is kW, write power_w = 400. 1 more draws under 1 W."
    )
    caplog.clear()
    sw.Fleet.of(["FR"], power_w=3.0)
    assert not caplog.records
    sw.Server(zone="FR", power_w=0.15)
    assert caplog.records[0].getMessage() == "The server draws 0.15 W. If that is kW, write power_w = 150."
    caplog.clear()
    sw.Server(zone="FR", power_w=0.0)
    assert not caplog.records
