"""Network and evaluation are parts of what a client-slot costs, and of every sum of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slackwater as sw
from slackwater.errors import ScenarioError
from slackwater.ledger.ledger import ModelledCharges
from slackwater.planning.schedule import no_slack_plan
from slackwater.planning.storage import plan_from_dict, plan_to_dict
from slackwater.replanning.remaining import remaining_problem
from slackwater.replanning.run_state import State, look_back

BOTH = {"model_mb": 500.0, "evaluation_share": 0.1}


def problem(**more: Any) -> sw.Problem:
    traces = sw.load_traces(zones=["FR", "DE", "PL"], start="2026-03-01T00:00Z", hours=30)
    clients = [
        sw.Client(name="lyon", zone="FR", power_w=300, idle_w=20, pue=1.5),
        sw.Client(name="köln", zone="DE", energy_kwh=0.2),
        sw.Client(name="łódź", zone="PL", power_w=400, pue=1.2),
    ]
    return sw.Problem(clients=clients, traces=traces, rounds=6, slack=18, **{"budget_kg": 1.5} | more)


def test_what_each_part_of_a_round_draws() -> None:
    costs = problem(model_mb=12.5, network_kwh_per_gb=0.04, evaluation_share=0.25).costs
    assert costs.training_kwh == pytest.approx([0.28 * 1.5, 0.2, 0.4 * 1.2])
    assert costs.network_kwh == pytest.approx([0.04 * 2 * 0.0125] * 3)  # no PUE: it is not drawn at the site
    assert costs.evaluation_kwh == pytest.approx(0.25 * costs.training_kwh)
    assert costs.energy_kwh == pytest.approx(costs.training_kwh + costs.network_kwh + costs.evaluation_kwh)
    assert list(costs.round_kwh) == ["training", "network", "evaluation"]
    assert problem(model_mb=1.0).costs.network_kwh[0] == pytest.approx(0.01 * 2 / 1000)


def test_without_the_keys_nothing_changes() -> None:
    plain = problem().costs
    assert not plain.network_kwh.any()
    assert not plain.evaluation_kwh.any()
    assert list(plain.round_kwh) == ["training"]
    assert np.array_equal(plain.energy_kwh, plain.training_kwh)
    found = sw.plan(problem()).emissions
    assert found.total_kg == math.fsum(found.training_kg) + math.fsum(found.idle_kg)
    assert found.by_cause_kg["network"] == found.by_cause_kg["evaluation"] == 0.0


def test_a_plan_pays_for_network_and_evaluation_out_of_the_budget() -> None:
    asked = problem(**BOTH)
    made, plain = sw.plan(asked), sw.plan(problem())
    found = made.emissions
    assert made.emissions_kg <= asked.budget_kg * (1 + 1e-9)
    assert made.slots_per_client.sum() < plain.slots_per_client.sum()
    assert found.total_kg == pytest.approx(sum(found.by_cause_kg.values()), rel=1e-12)
    g, chosen = asked.costs.dense(), made.matrix
    assert found.client_kg - found.idle_kg == pytest.approx((g * chosen).sum(axis=1), rel=1e-12)
    lit = (asked.costs.intensity[asked.costs.row] * chosen).sum(axis=1)
    assert found.network_kg == pytest.approx(0.01 * lit, rel=1e-12)  # 0.01 kWh/GB x 2 x 0.5 GB
    assert found.evaluation_kg == pytest.approx(0.1 * found.training_kg, rel=1e-12)
    u = (chosen * (asked.g_max - g)).sum(axis=1)
    assert found.utility == pytest.approx(u, rel=1e-12)


def test_the_schedule_is_that_of_the_whole_cost() -> None:
    asked = problem(**BOTH)
    costs = asked.costs
    whole = sw.Problem(
        clients=[
            sw.Client(name=c.name, zone=c.zone, energy_kwh=float(costs.energy_kwh[i]), idle_w=c.idle_w, pue=1.0)
            for i, c in enumerate(asked.fleet)
        ],
        traces=asked.traces,
        rounds=6,
        slack=18,
        budget_kg=1.5,
    )
    idle = asked.fleet.idle_w * asked.fleet.pue
    whole = whole.with_settings(clients=replace(whole.fleet, idle_w=idle))
    one, other = sw.plan(asked), sw.plan(whole)
    assert np.array_equal(one.packed, other.packed)
    assert one.objective == pytest.approx(other.objective, rel=1e-12)


@pytest.mark.parametrize("more", [{}, {"max_parallel": 2}, {"server": sw.Server(zone="FR", power_w=50)}])
def test_the_modelled_charges_are_the_plan_cause_by_cause(more: dict[str, Any]) -> None:
    made = sw.plan(problem(**BOTH, **more), time_limit_s=20)
    sums: dict[str, float] = {}
    lines = ModelledCharges(made)
    for line in lines.of(0, lines.slots - 1):
        sums[line.cause] = sums.get(line.cause, 0.0) + line.kg
        assert line.energy_kwh is not None
        assert line.intensity_kg_per_kwh is not None
        assert line.kg == pytest.approx(line.energy_kwh * line.intensity_kg_per_kwh, rel=1e-12)
    expected = {cause: kg for cause, kg in made.emissions.by_cause_kg.items() if kg}
    assert sums == pytest.approx(expected, rel=1e-12)


def test_the_baseline_pays_for_them_too() -> None:
    asked = problem(**BOTH, budget_kg=6.0)
    per_slot = asked.costs.dense().sum(axis=0) + asked.costs.idle_kg()
    made = no_slack_plan(asked)
    paid = int(np.searchsorted(np.cumsum(per_slot), 6.0, side="right"))
    assert made.problem.rounds == paid < no_slack_plan(problem(budget_kg=6.0)).problem.rounds
    assert made.emissions.by_cause_kg["network"] > 0
    assert made.emissions_kg == pytest.approx(per_slot[:paid].sum(), rel=1e-12)


def test_what_is_left_of_a_run_costs_the_same() -> None:
    asked = problem(**BOTH, network_kwh_per_gb=0.02)
    state = replace(State.initial(asked), slot=4)
    intensity = asked.costs.intensity[asked.costs.row]
    rest = remaining_problem(
        asked,
        look_back(asked, state, intensity, settled=4),
        slot=4,
        budget_kg=1.0,
        window_slots=1,
        expected=asked.traces,
        g_max_kg=asked.g_max,
    )
    assert np.array_equal(rest.costs.energy_kwh, asked.costs.energy_kwh)
    assert np.array_equal(rest.costs.dense(), asked.costs.dense()[:, 4:])


def _overheads(problem: sw.Problem) -> list[float | None]:
    return [problem.model_mb, problem.network_kwh_per_gb, problem.evaluation_share]


def test_a_stored_plan_counts_the_same(tmp_path: Path) -> None:
    made = sw.plan(problem(**BOTH, network_kwh_per_gb=0.02))
    made.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    again = sw.Plan.load(tmp_path)
    assert _overheads(again.problem) == _overheads(made.problem)
    assert again.emissions.by_cause_kg == made.emissions.by_cause_kg == data["emissions_by_cause_kg"]
    assert (data["format"], data["network_counted"]) == (2, True)  # an older version would plan it too cheap


def test_a_plan_from_before_is_read_as_it_was() -> None:
    made = sw.plan(problem())
    data = plan_to_dict(made)
    assert (data["format"], data["network_counted"]) == (1, False)
    for key in ("model_mb", "network_kwh_per_gb", "evaluation_share"):
        del data["problem"][key]
    del data["emissions_by_cause_kg"], data["network_counted"]
    again = plan_from_dict(data, "an old plan")
    assert again.emissions_kg == made.emissions_kg
    assert _overheads(again.problem) == _overheads(made.problem)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model_mb": 0}, r"model_mb must be the size of the model in MB .* not 0"),
        ({"model_mb": 2.5e8}, r"at most 1e\+07, not 250000000.0"),
        ({"model_mb": "12"}, "model_mb must be"),
        ({"network_kwh_per_gb": -0.01}, "network_kwh_per_gb must be a number of at least 0, not -0.01"),
        ({"evaluation_share": float("nan")}, "evaluation_share must be a number of at least 0, not nan"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        problem(**wrong)
