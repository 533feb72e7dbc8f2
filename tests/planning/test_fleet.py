from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from slackwater.errors import ScenarioError
from slackwater.planning.fleet import NO_LIMIT, Client, Fleet


def client(**settings: Any) -> Client:
    return Client(**({"name": "lyon", "zone": "FR", "power_w": 300.0} | settings))


def test_clients_survive_the_trip_through_columns() -> None:
    clients = [
        client(idle_w=20.0, pue=1.2, min_slots=2, max_slots=9, unavailable=["sat,sun"]),
        client(name="köln", zone="DE", power_w=None, energy_kwh=0.25),
    ]
    fleet = Fleet.from_clients(clients)
    assert list(fleet) == clients
    assert clients[0].unavailable == ("sat,sun",)
    assert Fleet.from_clients(fleet) is fleet
    assert len(fleet) == 2


def test_required_is_at_least_one_slot() -> None:
    fleet = Fleet.from_clients([client(required=True), client(name="b", required=True, min_slots=3), client(name="c")])
    assert fleet.min_slots.tolist() == [1, 3, 0]
    assert fleet.max_slots.tolist() == [NO_LIMIT] * 3


def test_one_value_will_do_for_a_column() -> None:
    fleet = Fleet.of(["FR", "DE", "DE"], power_w=[100, 200, 300], pue=1.5)
    assert fleet.pue.tolist() == [1.5] * 3
    assert fleet.names == ["client-1", "client-2", "client-3"]
    assert fleet[1].power_w == 200.0
    assert fleet[1].energy_kwh is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": 7}, "Client 7: name must be text, not 7"),
        ({"zone": None}, "Client 'lyon': zone must be text, not None"),
        ({"power_w": "300"}, "power_w must be a finite number, not '300'"),
        ({"power_w": True}, "power_w must be a finite number, not True"),
        ({"power_w": float("nan")}, "power_w must be a finite number, not nan"),
        ({"power_w": float("inf")}, "power_w must be a finite number, not inf"),
        ({"idle_w": None}, "idle_w must be a finite number, not None"),
        ({"pue": "1.2"}, "pue must be a finite number"),
        ({"min_slots": -1}, "min_slots must be a whole number from 0 to"),
        ({"min_slots": 1.5}, "min_slots must be a whole number from 0 to"),
        ({"min_slots": True}, "min_slots must be a whole number from 0 to"),
        ({"min_slots": 10**11}, "not 100000000000"),
        ({"max_slots": -1}, "max_slots must be a whole number from 0 to"),
        ({"required": 1}, "required must be true or false, not 1"),
        ({"unavailable": "daily"}, "unavailable is the text 'daily'; give a list, like ['daily']"),
    ],
)
def test_a_client_is_checked_when_it_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        client(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"power_w": 0}, "Client 'lyon' has power_w = 0; it must be above 0 W"),
        ({"power_w": -5}, "Client 'lyon' has power_w = -5; it must be above 0 W"),
        ({"power_w": 1e300}, "has power_w = 1e+300; that is more than 1e+09 W"),
        ({"power_w": None}, "Client 'lyon' needs power_w (or energy_kwh, the energy of one round)"),
        ({"energy_kwh": 0.3}, "has both power_w and energy_kwh; give one of them"),
        ({"power_w": None, "energy_kwh": -1}, "has energy_kwh = -1; it must be 0 kWh or more"),
        ({"power_w": None, "energy_kwh": 1e20}, "has energy_kwh = 1e+20; that is more than"),
        ({"idle_w": -1}, "has idle_w = -1; it must be 0 W or more"),
        ({"idle_w": 301}, "has idle_w = 301; it draws more when idle than when training"),
        ({"pue": 0.9}, "has pue = 0.9; a power usage effectiveness is from 1"),
        ({"pue": 11}, "has pue = 11; a power usage effectiveness is from 1"),
        ({"min_slots": 3, "max_slots": 2}, "has max_slots = 2; that is below its min_slots"),
        ({"required": True, "max_slots": 0}, "has max_slots = 0; that is below its min_slots (required counts"),
    ],
)
def test_a_client_that_makes_no_sense_is_refused_with_its_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        Fleet.from_clients([client(name="fine"), client(**settings)])


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "There are no clients. Add at least one [[client]]"),
        ([client(), client()], "Two clients are called 'lyon'"),
        ([client(name="")], "A client has an empty name"),
        (client(), "clients is a single client ('lyon'); give a list"),
        (["lyon"], "'lyon' is neither"),
    ],
)
def test_lists_that_make_no_sense_are_refused(clients: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        Fleet.from_clients(clients)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"zone": []}, "There are no clients"),
        ({"zone": "FR"}, "zone is the text 'FR'; give a list"),
        ({"names": "ab"}, "names is the text 'ab'; give a list"),
        ({"names": ["a"]}, "There are 1 names for 2 clients"),
        ({"power_w": [1, 2, 3]}, "power_w has the shape (3,); give one value, or one for each of the 2 clients"),
        ({"power_w": "much"}, "power_w must be numbers, not 'much'"),
        ({"power_w": np.nan}, "needs power_w"),
        ({"min_slots": [1, 1.5]}, "min_slots must be whole numbers from 0 to 2147483647, not 1.5"),
        ({"min_slots": np.array([0, 2**40])}, "min_slots must be whole numbers from 0 to"),
        ({"min_slots": np.array([0, -1])}, "min_slots must be whole numbers from 0 to 2147483647, not -1"),
        ({"idle_w": np.inf}, "has idle_w = inf"),
        ({"unavailable": {2: ("daily",)}}, "unavailable names client 2; clients are numbered 0 to 1"),
    ],
)
def test_columns_that_make_no_sense_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        Fleet.of(**({"zone": ["FR", "DE"], "power_w": 300.0} | columns))
