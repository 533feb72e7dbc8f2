"""Levels, starts and prices in what a schedule costs: in costs, emissions, plan files and checks of a schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slackwater as sw
from slackwater.errors import InfeasibleError, ScenarioError, SlackwaterError
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Traces
from slackwater.planning.emissions import emissions, kg_by_slot, waiting_kg
from slackwater.planning.fleet import Client, Fleet, Level
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem, Server
from slackwater.planning.schedule import no_slack_plan, plan_from_matrix
from slackwater.planning.storage import plan_from_dict, plan_to_dict

START = datetime(2022, 1, 1, tzinfo=UTC)
INTENSITY = np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.2], [0.5, 0.4, 0.3, 0.2, 0.1, 0.3]])
PRICE = np.array([[0.1, -0.2, 0.3, 0.1, 0.1, 0.2], [0.4, 0.4, 0.1, 0.2, 0.1, 0.3]])
LEVELS = (Level(300, 1.0), Level(180, 0.85), Level(100, 0.4))
ROWS = ["..xx.x", "x..x.x"]
NUMBERS = [[0, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 0]]


def problem(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None, **more: Any) -> Problem:
    traces = Traces(zones=("A", "B"), start=START, intensity=INTENSITY, factor="direct")
    clients = [
        Client(name="a", zone="A", **{"power_w": 300, "idle_w": 20, "pue": 1.5} | (first or {})),
        Client(name="b", zone="B", **{"power_w": 200} | (second or {})),
    ]
    return Problem(clients=clients, traces=traces, **{"rounds": 6, "fine_tune": 1, "budget_kg": 5.0} | more)


def rich(**more: Any) -> Problem:
    """A client with levels, one that sleeps, a server, network, evaluation and prices."""
    sleeps = {"idle_w": 40, "startup_kwh": 0.05, "min_block_slots": 2, "pue": 1.2}
    settings = {
        "server": Server(zone="B", power_w=50, pue=1.1),
        "model_mb": 500.0,
        "evaluation_share": 0.1,
        "price": Prices(zones=("B", "A"), start=START, per_kwh=PRICE[::-1], source="market.csv"),
    }
    return problem({"levels": LEVELS}, sleeps, **settings | more)


def matrix(rows: list[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([[mark == "x" for mark in row] for row in rows])


def made(asked: Problem | None = None, rows: list[str] = ROWS, levels: Any = NUMBERS) -> Plan:
    return plan_from_matrix(asked or rich(), matrix(rows), end=0, levels=levels)


def test_what_a_level_draws() -> None:
    costs = problem({"levels": LEVELS}, model_mb=500.0, evaluation_share=0.1).costs
    added = np.array([0.28, 0.16, 0.08]) * 1.5
    assert costs.level_training_kwh[0] == pytest.approx(added)
    assert costs.level_kwh[0] == pytest.approx(1.1 * added + 0.01)
    assert costs.level_work.tolist() == [[1.0, 0.85, 0.4], [1.0, 0.0, 0.0]]
    assert costs.level_kwh[:, 0].tolist() == costs.energy_kwh.tolist()
    assert np.isnan(costs.level_kwh[1, 1:]).all()
    assert (costs.levels(0), costs.levels(1)) == (3, 1)
    assert costs.g_max == problem(model_mb=500.0, evaluation_share=0.1).costs.g_max, "g_max is that of full power"


def test_one_level_of_work_1_is_no_level() -> None:
    plain, one = problem(), problem({"power_w": None, "levels": [{"power_w": 300, "work": 1.0}]})
    assert one.fleet.levels == {}
    assert one.fleet[0] == plain.fleet[0]
    first, second = sw.plan(plain), sw.plan(one)
    assert (first.objective, first.emissions_kg) == (second.objective, second.emissions_kg)
    same = plan_to_dict(first) | {"seconds": 0.0}
    assert same == plan_to_dict(second) | {"seconds": 0.0}


def test_levels_are_sorted_and_power_w_may_be_left_out() -> None:
    client = Client(name="a", zone="A", levels=LEVELS[::-1])
    assert client.levels == LEVELS
    fleet = Fleet.from_clients([client])
    assert fleet.power_w.tolist() == [300.0]
    assert fleet[0].levels == LEVELS
    assert Fleet.of(["A", "B"], power_w=200, levels={1: [Level(200, 1), Level(90, 0.5)]}).levels[1][1].work == 0.5


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"levels": [Level(300, 1.0), Level(310, 0.9)]}, "draws 310 W, more than the 300 W of full power"),
        ({"levels": [Level(300, 1.0), Level(200, 1.0)]}, "2 levels have work = 1; exactly one is full power"),
        ({"levels": [Level(250, 1.0)]}, "power_w = 300, but its level of work 1 has 250 W"),
        ({"levels": [Level(300, 1.0), Level(10, 0.1)]}, "has a level of 10 W, below its idle_w of 20 W"),
        ({"levels": [{"power_w": 300}]}, "a level has power_w and work, not {'power_w': 300}"),
        (
            {"levels": [{"power_w": 300, "work": 1.5}]},
            "Client 'a': A level's work must be a number above 0 and at most 1",
        ),
        ({"levels": "fast"}, "levels must be a list"),
        (
            {"power_w": None, "energy_kwh": 1.0, "levels": LEVELS},
            "has both power_w and energy_kwh|levels and energy_kwh",
        ),
        ({"startup_kwh": float("nan")}, "startup_kwh must be a finite number"),
        ({"startup_minutes": "soon"}, "startup_minutes must be a finite number"),
        ({"min_block_slots": True}, "min_block_slots must be a whole number"),
    ],
)
def test_clients_that_are_wrong(client: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        problem(client)
    with pytest.raises(ScenarioError, match="levels names client 3; clients are numbered 0 to 0"):
        Fleet.of(["A"], power_w=1, levels={3: [Level(1, 1)]})


def test_every_part_of_a_schedule_with_everything() -> None:
    plan = made()
    out, costs = plan.emissions, plan.problem.costs
    a, b, money_a, money_b = INTENSITY[0], INTENSITY[1], PRICE[0], PRICE[1]
    kwh = {0: 0.28 * 1.5, 1: 0.16 * 1.5, 2: 0.08 * 1.5}
    drawn_a = np.array([0, 0, kwh[1], kwh[2], 0, kwh[0]])
    drawn_b = np.array([1, 0, 0, 1, 0, 1]) * 0.16 * 1.2
    assert out.training_kg == pytest.approx([drawn_a @ a, drawn_b @ b])
    assert out.evaluation_kg == pytest.approx(0.1 * out.training_kg)
    slots = matrix(ROWS)
    assert out.network_kg == pytest.approx([0.01 * (slots[0] @ a), 0.01 * (slots[1] @ b)])
    up = np.array([1, 1, 0, 1, 1, 1])  # two blocks: 0 and 1, which is the least block, then 3 to the end
    starts = np.array([0.05, 0, 0, 0.05, 0, 0]) * 1.2
    assert out.idle_kg == pytest.approx([0.02 * 1.5 * a.sum(), 0.04 * 1.2 * (up @ b)])
    assert out.startup_kg == pytest.approx([0.0, starts @ b])
    active = slots.any(axis=0)
    assert out.server_kg == pytest.approx(0.05 * 1.1 * (active @ b))
    assert list(out.by_cause_kg) == ["training", "idle", "server", "network", "evaluation", "startup"]
    assert out.total_kg == pytest.approx(out.client_kg.sum() + out.server_kg)
    all_a = 1.1 * drawn_a + 0.01 * slots[0] + 0.02 * 1.5
    all_b = 1.1 * drawn_b + 0.01 * slots[1] + 0.04 * 1.2 * up + starts
    assert out.client_money is not None
    assert out.client_money == pytest.approx([all_a @ money_a, all_b @ money_b])
    assert out.server_money == pytest.approx(0.05 * 1.1 * (active @ money_b))
    assert plan.money == pytest.approx(out.client_money.sum() + out.server_money)
    assert plan.kg_by_slot.sum() == pytest.approx(out.total_kg, rel=1e-12)
    assert plan.kg_by_slot[1] == pytest.approx(0.03 * a[1] + 0.048 * b[1]), "idle draw alone"
    waiting = waiting_kg(plan.problem, plan.packed, plan.end)
    assert waiting.sum() == pytest.approx(out.idle_kg.sum() + out.startup_kg.sum())
    work = np.array([0.85 + 0.4 + 1.0, 3.0])
    spent = out.training_kg + out.network_kg + out.evaluation_kg
    assert out.utility == pytest.approx(work * costs.g_max - spent), "starts and idle draw are not in the utility"
    assert plan.work[0].tolist() == [0, 0, 0.85, 0.4, 0, 1.0]
    assert plan.lower_work(3) == {0: 0.4}
    assert plan.lower_work(5) == {}


def test_without_levels_every_slot_is_at_full_power() -> None:
    plan = made(levels=None)
    zeros = np.zeros((2, 6), dtype=np.uint8)
    same = emissions(plan.problem, plan.packed, 0, zeros)
    assert plan.emissions.utility == pytest.approx(same.utility, rel=1e-12)
    assert plan.emissions.total_kg == pytest.approx(same.total_kg, rel=1e-12)
    assert plan.money == pytest.approx(same.money, rel=1e-12)
    assert plan.kg_by_slot == pytest.approx(kg_by_slot(plan.problem, plan.packed, 0, zeros), rel=1e-12)
    assert plan.lower_work(2) == {}
    assert plan.work.tolist() == matrix(ROWS).astype(float).tolist()


def test_a_weight_makes_prices_count_in_the_utility_only() -> None:
    plain, weighed = made(rich()), made(rich(price_weight=0.7))
    assert weighed.emissions_kg == plain.emissions_kg
    assert weighed.money == plain.money
    costs = weighed.problem.costs
    assert costs.weighed == pytest.approx(INTENSITY + 0.7 * PRICE)
    g = costs.energy_kwh[:, None] * (INTENSITY + 0.7 * PRICE)
    assert costs.g_max == pytest.approx(g.max())
    kwh = np.array([[0, 0, costs.level_kwh[0, 1], costs.level_kwh[0, 2], 0, costs.level_kwh[0, 0]]])
    expected = 2.25 * g.max() - (kwh * (INTENSITY[0] + 0.7 * PRICE[0])).sum()
    assert weighed.emissions.utility[0] == pytest.approx(expected)


def test_nothing_of_it_is_in_other_plans() -> None:
    plan = sw.plan(problem())
    out = plan.emissions
    assert "startup" not in out.by_cause_kg
    assert (plan.money, plan.levels, out.client_money) == (None, None, None)
    data = plan_to_dict(plan)
    assert data["format"] == 1
    assert not {"levels", "price", "money", "currency"} & set(data)
    assert not {"min_parallel", "price_weight", "budget_money"} & set(data["problem"])
    assert set(data["clients"][0]) == {
        "name", "zone", "power_w", "idle_w", "pue", "energy_kwh", "unavailable", "min_slots", "max_slots",
    }  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_file_holds_everything(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if packed:
        monkeypatch.setattr("slackwater.planning.storage._READABLE", 3)
    plan = made(rich(min_parallel=1, price_weight=0.5, budget_money=9.0))
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["format"] == 3
    assert (data["money"], data["currency"]) == (plan.money, "EUR")
    assert again.levels is not None
    assert again.levels.tolist() == NUMBERS
    assert (again.emissions_kg, again.money) == (plan.emissions_kg, plan.money)
    assert again.emissions.utility.tolist() == plan.emissions.utility.tolist()
    asked = again.problem
    assert (asked.min_parallel, asked.price_weight, asked.budget_money) == (1, 0.5, 9.0)
    assert asked.price is not None
    assert (asked.price.source, asked.price.zones) == ("market.csv", ("B", "A"))
    assert asked.fleet[0] == plan.problem.fleet[0]
    assert asked.fleet[1] == plan.problem.fleet[1]
    assert plan_to_dict(again) == plan_to_dict(plan)


@pytest.mark.parametrize("number", [3, -1, 0.5, "x", None])
def test_a_plan_file_with_a_level_that_does_not_exist(number: Any) -> None:
    data = plan_to_dict(made())
    data["levels"][0][2] = number
    with pytest.raises(SlackwaterError, match="damaged"):
        plan_from_dict(data, "plan.json")
    data["levels"] = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    with pytest.raises(SlackwaterError, match="a level that its client does not have"):
        plan_from_dict(data, "plan.json")


def test_damaged_prices_and_clients() -> None:
    for spoil in (
        lambda data: data["price"].update(per_kwh=[[0.1]]),
        lambda data: data["price"].update(zones="A"),
        lambda data: data["price"].pop("currency"),
        lambda data: data["clients"][0].update(levels=[{"power_w": 300}]),
        lambda data: data["clients"][1].update(startup_kwh="much"),
        lambda data: data["problem"].update(min_parallel="two"),
    ):
        data = json.loads(json.dumps(plan_to_dict(made())))
        spoil(data)
        with pytest.raises(SlackwaterError, match="damaged"):
            plan_from_dict(data, "plan.json")


def test_the_rest_of_a_run_is_not_stored() -> None:
    plan = made(levels=None)
    with pytest.raises(ScenarioError, match="cannot be saved on its own"):
        replace(plan, problem=plan.problem.with_settings(up_before=[0, 1])).to_dict()


def test_a_schedule_that_breaks_a_rule_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"Slot 0 has 1 of the 2 clients that min_parallel asks for"):
        made(rich(min_parallel=2))
    assert made(rich(min_parallel=2), ["..xx.x", "..xx.x"]).problem.min_parallel == 2
    cost = made().money
    assert cost is not None
    with pytest.raises(InfeasibleError, match=r"over budget_money = 0\.1\. Raise budget_money"):
        made(rich(budget_money=0.1))
    assert made(rich(budget_money=cost)).money == cost
    for wrong in ([[0] * 6], [[0] * 5 + [7], [0] * 6], [[0] * 6, [1] * 6]):
        with pytest.raises(ScenarioError, match="levels"):
            made(levels=wrong)
    with pytest.raises(ScenarioError, match="its start takes 1 slot "):
        made(problem(None, {"startup_minutes": 5}), levels=None)


def test_without_slack_clients_start_first() -> None:
    sleeps = {"startup_minutes": 90, "startup_kwh": 0.4, "idle_w": 10}
    asked = problem(None, sleeps)
    whole = no_slack_plan(asked)
    assert whole.matrix.astype(int).tolist() == [[1] * 6, [0, 0, 1, 1, 1, 1]]
    assert whole.emissions.startup_kg[1] == pytest.approx(0.2 * (0.5 + 0.4))
    four = emissions(asked, np.packbits(matrix(["xxxx..", "..xx.."]), axis=1), -2).total_kg
    for budget, rounds in ((four, 4), (four * 0.999, 3)):
        made_of = no_slack_plan(asked.with_settings(budget_kg=budget))
        assert made_of.problem.rounds == rounds
        assert made_of.emissions_kg <= budget * (1 + 1e-9)
    with pytest.raises(InfeasibleError, match="does not pay one round"):
        no_slack_plan(asked.with_settings(budget_kg=0.001))


def test_without_slack_the_money_lasts_as_long() -> None:
    price = Prices(zones=("A", "B"), start=START, per_kwh=np.full((2, 6), 0.5))
    asked = problem({"idle_w": 0, "pue": 1.0}, price=price, budget_money=0.5 * 0.5 * 3)
    assert no_slack_plan(asked).problem.rounds == 3
    with pytest.raises(InfeasibleError, match=r"budget_money = 0\.1 does not pay one round"):
        no_slack_plan(asked.with_settings(budget_money=0.1))


def test_prices_that_do_not_fit() -> None:
    for price, message in (
        ("cheap", "price must be Prices"),
        (Prices(zones=("A", "B"), start=START, per_kwh=PRICE, slot_minutes=30), "slots of 30 minutes"),
        (Prices(zones=("A",), start=START, per_kwh=PRICE[:1]), "no price for zone 'B'"),
    ):
        with pytest.raises(ScenarioError, match=message):
            problem(price=price)


def test_lone_slots_are_counted_before_the_window() -> None:
    plan = made(problem(), ["x.xx.x", "x..x.x"], None)
    assert plan.metrics.lone_slots == pytest.approx(1 / 3)
    assert made(problem(), [".....x", ".....x"], None).metrics.lone_slots == 0.0
    assert made(problem(), ["x.x..x", ".....x"], None).metrics.lone_slots == 1.0
