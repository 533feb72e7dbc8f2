"""What a problem means, in numbers worked out by hand; and what it refuses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning.problem import Problem

START = datetime(2022, 1, 3, tzinfo=UTC)  # a Monday
X = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
Y = [0.4, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]


def traces(slot_minutes: int = 60) -> sw.Traces:
    return sw.Traces(
        zones=("X", "Y"), start=START, intensity=np.array([X, Y]), factor="direct", slot_minutes=slot_minutes
    )


def client(**settings: Any) -> sw.Client:
    return sw.Client(**({"name": "a", "zone": "X", "power_w": 1000.0} | settings))


def problem(*clients: sw.Client, **settings: Any) -> Problem:
    return Problem(
        **(
            {"clients": clients or [client()], "traces": traces(), "rounds": 2, "slack": 1, "budget_kg": 100.0}
            | settings
        )
    )


def test_a_training_slot_costs_what_it_adds_to_idle_times_pue() -> None:
    costs = problem(client(idle_w=200.0, pue=1.5), client(name="b", zone="Y", power_w=500.0)).costs
    assert costs.energy_kwh == pytest.approx([(1.0 - 0.2) * 1.5, 0.5])
    assert costs.idle_kwh == pytest.approx([0.2 * 1.5, 0.0])
    assert costs.dense() == pytest.approx(np.array([[0.12, 0.24, 0.36], [0.2, 0.05, 0.1]]))
    assert costs.idle_kg() == pytest.approx([0.03, 0.06, 0.09])
    assert costs.g_max == pytest.approx(0.36)


def test_energy_of_a_round_stands_beside_idle_and_does_not_depend_on_its_length() -> None:
    costs = problem(client(power_w=None, energy_kwh=0.5, idle_w=100.0, pue=2.0), round_minutes=15).costs
    assert costs.energy_kwh == pytest.approx([0.5 * 2.0])
    assert costs.idle_kwh == pytest.approx([0.1 * 2.0])


def test_a_short_round_trains_for_its_minutes_and_idles_for_the_slot() -> None:
    costs = problem(client(idle_w=200.0), round_minutes=15).costs
    assert costs.energy_kwh == pytest.approx([0.8 / 4])
    assert costs.idle_kwh == pytest.approx([0.2])


@pytest.mark.parametrize(("minutes", "hours"), [(15, 0.25), (30, 0.5), (60, 1.0), (180, 3.0)])
def test_the_length_of_a_slot(minutes: int, hours: float) -> None:
    timed = problem(client(idle_w=200.0), traces=traces(minutes))
    assert timed.slot_hours == hours
    assert timed.costs.energy_kwh == pytest.approx([0.8 * hours])
    assert timed.costs.idle_kwh == pytest.approx([0.2 * hours])
    assert (timed.slot_start(4) - START).total_seconds() == 4 * hours * 3600


@pytest.mark.parametrize(
    ("deadline", "slots"),
    [
        ("2022-01-03T10:00Z", 10),
        ("2022-01-03T09:59Z", 9),
        ("2022-01-03T10:00+01:00", 9),
        ("2022-01-03T02:00Z", 2),
    ],
)
def test_a_deadline_becomes_slack_in_whole_slots(deadline: str, slots: int) -> None:
    timed = problem(slack=None, deadline=deadline)
    assert (timed.horizon, timed.slack) == (slots, slots - 2)


def test_a_deadline_with_odd_minutes_and_short_slots() -> None:
    assert problem(slack=None, deadline="2022-01-03T02:07Z", traces=traces(15)).horizon == 8


def test_slack_is_none_without_either() -> None:
    assert problem(slack=None).slack == 0


def test_the_server_costs_its_zone_in_slots_in_which_anyone_trains() -> None:
    served = problem(server=sw.Server(zone="Y", power_w=100.0, pue=1.5))
    assert served.costs.server_kg == pytest.approx([0.06, 0.015, 0.03])
    assert served.coupled
    assert problem(server_kg=[1, 2, 3, 4]).costs.server_kg == pytest.approx([1, 2, 3])
    assert not problem().coupled
    assert not problem(max_parallel=1).coupled, "one client alone cannot be too many"
    assert problem(client(), client(name="b"), max_parallel=1).coupled


def test_emissions_of_a_plan_by_hand() -> None:
    plan = sw.plan(
        problem(
            client(idle_w=200.0, pue=1.5),
            client(name="b", zone="Y", power_w=None, energy_kwh=0.5, pue=2.0),
            server=sw.Server(zone="Y", power_w=100.0),
        )
    )
    assert plan.matrix.all(), "the budget pays everything, and a slot worth nothing is used all the same"
    assert plan.end == 1
    assert plan.emissions.training_kg == pytest.approx([1.2 * (0.1 + 0.2 + 0.3), 1.0 * (0.4 + 0.1 + 0.2)])
    assert plan.emissions.idle_kg == pytest.approx([0.3 * (0.1 + 0.2 + 0.3), 0.0])
    assert plan.emissions.server_kg == pytest.approx(0.1 * (0.4 + 0.1 + 0.2))
    assert plan.emissions_kg == pytest.approx(0.72 + 0.7 + 0.18 + 0.07)


def test_idle_is_charged_to_everybody_in_all_slots_up_to_the_end() -> None:
    clients = [client(idle_w=200.0), client(name="away", idle_w=100.0, unavailable=["daily"])]
    plan = sw.plan(problem(*clients, slack=3, window="available"), end=1)
    assert plan.slots_per_client.tolist() == [3, 0]
    assert plan.emissions.idle_kg == pytest.approx([0.2 * 0.6, 0.1 * 0.6]), "T + s = 3 slots, not the 5 of the horizon"
    assert plan.emissions.training_kg == pytest.approx([0.8 * 0.6, 0.0])


def test_required_is_min_slots_of_one() -> None:
    clean, dirty = client(power_w=10.0), client(name="dirty", zone="Y", power_w=1000.0)
    budget = {"budget_kg": 0.5, "rounds": 3, "slack": 0, "alpha": 1.0}
    free = sw.plan(problem(clean, dirty, **budget))
    for settings in ({"required": True}, {"min_slots": 1}):
        forced = sw.plan(problem(clean, client(name="dirty", zone="Y", **settings), **budget))
        assert forced.matrix[1, :2].any()
        assert forced.matrix[1].tolist() == [False, True, True], "its cheapest slot before the window, and the window"
    assert free.emissions_kg <= 0.5


def test_availability_of_clients_and_array_are_joined() -> None:
    mask = np.ones((2, 4), dtype=bool)
    mask[1, 0] = False
    clients = [client(unavailable=["mon 01:00-02:00"]), client(name="b", unavailable=["mon 02:00-03:00"])]
    costs = problem(*clients, available=mask).costs
    assert costs.can_train().tolist() == [[True, False, True], [False, True, False]]
    alone = problem(*clients).costs
    assert alone.can_train().tolist() == [[True, False, True], [True, True, False]]


def test_a_start_within_the_traces() -> None:
    later = problem(start="2022-01-03T05:00+01:00")
    assert later.first_slot == datetime(2022, 1, 3, 4, tzinfo=UTC)
    assert later.costs.dense() == pytest.approx(np.array([[0.5, 0.6, 0.7]]))


def test_with_settings() -> None:
    timed = problem(slack=None, deadline="2022-01-03T08:00Z")
    assert timed.with_settings(budget_kg=5).horizon == 8
    assert timed.with_settings(rounds=4).slack == 4, "the deadline stays"
    assert timed.with_settings(slack=1).horizon == 3
    assert timed.with_settings(slack=1).deadline is None
    assert timed.with_settings(deadline="2022-01-03T05:00Z").horizon == 5
    assert timed.with_settings(deadline=None).horizon == 8, "as many slots, without the date"
    assert problem().with_settings(deadline="2022-01-03T05:00Z").horizon == 5
    assert problem().with_settings(alpha="log").alpha == "log"
    with pytest.raises(sw.ScenarioError, match="no setting 'budget'; did you mean 'budget_kg'"):
        problem().with_settings(budget=3)
    with pytest.raises(sw.ScenarioError, match="slack of 1 and a deadline of"):
        problem().with_settings(slack=1, deadline="2022-01-03T05:00Z")


def test_numbers_of_numpy_are_numbers() -> None:
    kept = problem(rounds=np.int64(2), slack=np.int32(1), budget_kg=np.float32(2), alpha=np.float32(0.5))
    assert (kept.rounds, kept.slack, kept.budget_kg, kept.alpha) == (2, 1, 2.0, 0.5)
    assert [type(v) for v in (kept.rounds, kept.slack, kept.budget_kg, kept.alpha)] == [int, int, float, float]
    assert sw.plan(kept).ends_at == datetime(2022, 1, 3, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": []}, "There are no clients"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"rounds": 2.5}, "rounds must be a whole number of at least 1, not 2.5"),
        ({"rounds": True}, "rounds must be a whole number of at least 1, not True"),
        ({"slack": -1}, "slack must be a whole number of at least 0, not -1"),
        ({"fine_tune": -1}, "fine_tune must be a whole number of at least 0"),
        ({"fine_tune": 4}, "window of 4 slots is longer than the horizon of 3 (rounds + slack). Shorten fine_tune"),
        ({"budget_kg": 0}, "budget_kg must be a number above 0, in kg, not 0"),
        ({"budget_kg": -1.0}, "budget_kg must be a number above 0, in kg, not -1.0"),
        ({"budget_kg": float("nan")}, "budget_kg must be a number above 0, in kg, not nan"),
        ({"budget_kg": float("inf")}, "budget_kg must be a number above 0, in kg, not inf"),
        ({"budget_kg": True}, "budget_kg must be a number above 0, in kg, not True"),
        ({"budget_kg": "2 kg"}, "budget_kg must be a number above 0, in kg, not '2 kg'"),
        ({"alpha": 0}, "alpha must be above 0 and at most 1"),
        ({"alpha": 1.1}, "it is 1.1"),
        ({"alpha": float("nan")}, "it is nan"),
        ({"alpha": True}, "alpha must be a number or 'log' or 'max-min', not True"),
        ({"alpha": "fair"}, "it is 'fair'"),
        ({"round_minutes": 61}, "at most the slot's 60 minutes, not 61. Raise slot_minutes"),
        ({"round_minutes": 0}, "round_minutes must be above 0"),
        ({"round_minutes": "long"}, "round_minutes must be above 0"),
        ({"window": "some"}, "window must be 'all' or 'available', not 'some'"),
        ({"max_parallel": 0}, "max_parallel must be a whole number of at least 1, not 0"),
        ({"start": 5}, "start must be a time with a zone, like 2022-01-01T00:00Z, not 5"),
        ({"start": "2022-01-03T01:00"}, "start '2022-01-03T01:00:00' has no time zone"),
        ({"start": datetime(2022, 1, 3)}, "has no time zone"),
        ({"start": "2022-01-03T00:30Z"}, "is not the start of a 60-minute slot"),
        ({"deadline": "2022-01-03T05:00Z"}, "a slack of 1 and a deadline of 2022-01-03T05:00Z. Give one of them"),
        ({"deadline": "2022-01-03T01:30Z", "slack": None}, "leaves 1 slots after the start 2022-01-03T00:00Z, fewer"),
        ({"deadline": "2021-01-01T00:00Z", "slack": None}, "leaves 0 slots"),
        ({"server": "Y"}, "server must be a Server with a zone and power_w, not 'Y'"),
        ({"server": sw.Server(zone="Z", power_w=1), "slack": 0}, "There is no trace for zone 'Z'. Loaded: X, Y"),
        ({"server": sw.Server(zone="Y", power_w=1), "server_kg": [1]}, "not both"),
        ({"server_kg": "x"}, "server_kg must be an array of numbers"),
        ({"server_kg": [1]}, "server_kg must hold a finite cost, not below 0, for each of the 3 slots"),
        ({"server_kg": [1, -1, 1]}, "server_kg must hold a finite cost"),
        ({"available": [[True]]}, "available has shape (1, 1); it needs 1 clients x 3 slots"),
        ({"clients": [client(zone="Z")]}, "There is no trace for zone 'Z'"),
        ({"clients": [client(unavailable=["noon"])]}, "Client 'a': unavailable period 'noon'"),
        ({"clients": [client(unavailable=[7])]}, "Client 'a': unavailable period 7 is not text"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(sw.ScenarioError, match=re.escape(message)):
        problem(**settings)


def test_outside_the_traces_is_an_error_of_data() -> None:
    with pytest.raises(sw.DataError, match=r"cover 2022-01-03T00:00Z to 2022-01-03T10:00Z; .* is outside"):
        problem(slack=9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"power_w": -1.0}, "The server's power_w must be a number of at least 0, not -1.0"),
        ({"power_w": float("inf")}, "The server's power_w must be a number of at least 0, not inf"),
        ({"power_w": "x"}, "The server's power_w must be a number"),
        ({"pue": 0.5}, "The server's pue must be a number of at least 1, not 0.5"),
        ({"zone": 3}, "The server's zone must be text, not 3"),
    ],
)
def test_servers_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(sw.ScenarioError, match=re.escape(message)):
        sw.Server(**({"zone": "Y", "power_w": 1.0} | settings))


@pytest.mark.parametrize(
    ("g_kg", "error", "message"),
    [
        ([0.1, 0.2], sw.ScenarioError, "must be a filled array [client, slot], not of shape (2,)"),
        ([["a"]], sw.ScenarioError, "g_kg must be an array of numbers"),
        ([[0.1], [0.1, 0.2]], sw.ScenarioError, "g_kg must be an array of numbers"),
        ([[0.1, float("nan")]], sw.DataError, "g_kg[0, 1] is nan; costs must be finite and not negative"),
        ([[0.1, -1.0]], sw.DataError, "g_kg[0, 1] is -1.0"),
    ],
)
def test_costs_that_are_refused(g_kg: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Problem.from_costs(g_kg, rounds=1, budget_kg=1.0)
