"""Choosing everything from the carbon data: the choice is the best of what was looked at, kept in the file, and spends what is left."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning import auto
from slackwater.planning import auto as quality
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.schedule import plan_from_matrix
from slackwater.training.aggregators import Stride, make_aggregator

ZONES = ["BE", "GB", "FI", "FR"]


def problem(budget_kg: float = 0.5, slack: int = 30, **settings: object) -> sw.Problem:
    traces = sw.load_traces(zones=ZONES, start="2026-01-10T00:00Z", hours=60)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in ZONES]
    return sw.Problem(
        clients=clients,
        traces=traces,
        rounds=4,
        slack=slack,
        budget_kg=budget_kg,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def made() -> sw.Plan:
    return sw.plan(problem(), planner="auto")


def test_the_choice_is_kept_with_the_plan(made: sw.Plan, tmp_path: Path) -> None:
    recommended = made.recommended
    assert recommended is not None
    assert isinstance(make_aggregator(recommended.aggregator), Stride)
    assert recommended.settings == {
        "end": made.end,
        "fine_tune": made.problem.fine_tune,
        "recall": made.problem.recall,
        "alpha": made.problem.alpha,
    }
    assert recommended.error == pytest.approx(quality.quality(made).error)
    assert recommended.why
    assert all(sentence.endswith(".") for sentence in recommended.why)
    made.save(tmp_path / "plan.json")
    assert sw.Plan.load(tmp_path / "plan.json").recommended == recommended


def test_the_papers_plan_has_no_recommendation(tmp_path: Path) -> None:
    plain = sw.plan(problem(), planner="paper")
    assert plain.recommended is None
    plain.save(tmp_path / "plan.json")
    assert "recommended" not in json.loads((tmp_path / "plan.json").read_text())
    assert sw.Plan.load(tmp_path / "plan.json").recommended is None


def test_no_end_time_that_was_looked_at_promises_more(made: sw.Plan) -> None:
    assert made.recommended is not None
    row = made.problem
    for end in range(0, 31, 10):
        other = sw.plan(row, end=end, solver="greedy")
        assert quality.quality(other).error >= made.recommended.error * (1 - 1e-6)


def test_a_schedule_that_ends_on_one_clients_rounds_is_worth_less() -> None:
    costs = np.full((2, 40), 0.1)
    row = sw.Problem.from_costs(costs, rounds=1, slack=39, fine_tune=1, budget_kg=9.0)
    rows = np.zeros((2, 40), dtype=bool)
    rows[0, :39] = True
    rows[:, 39] = True  # the window
    early, late = rows.copy(), rows.copy()
    early[1, :10] = True  # 29 rounds before the window, of which 20 are remembered
    late[1, 29:39] = True
    forgets, remembers = (plan_from_matrix(row, matrix, end=39) for matrix in (early, late))
    assert (quality.forgotten(forgets), quality.forgotten(remembers)) == (0.5, 0.0)
    same = quality.Quality(unlearned=0.1, uneven=0.0)
    ranks = [auto._Looked(plan=plan, quality=same).rank for plan in (forgets, remembers)]
    assert ranks == pytest.approx([0.15, 0.1])


@pytest.mark.parametrize(("slack", "most"), [(0, 16), (15, 16), (150, 160), (600, 160), (43_819, 32)])
def test_end_times_are_all_or_dense_where_a_small_budget_is_spent(slack: int, most: int) -> None:
    ends = auto._ends(slack, most)
    assert ends == sorted(set(ends))
    assert ends[0] == 0
    assert ends[-1] == slack
    assert len(ends) <= most or len(ends) == slack + 1
    steps = [later / max(early, 1) for early, later in pairwise(ends) if early >= 8]
    assert max(steps, default=1) < 2.6  # no end time is far from one that is compared
    if slack < most:
        assert len(ends) == slack + 1


def test_a_long_slack_does_not_hide_the_first_days() -> None:
    zones = ["DE", "FR", "SE-SE3"]
    traces = sw.load_traces(zones=zones, start="2022-01-01T00:00Z", hours=8760)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in zones]
    long = sw.Problem(clients=clients, traces=traces, rounds=4, slack=8000, budget_kg=1.0)
    short = sw.plan(long.with_settings(slack=80))
    found = sw.plan(long)
    assert quality.quality(found).error < 1.3 * quality.quality(short).error


def test_a_client_left_out_before_the_window_costs_but_does_not_forbid_a_schedule() -> None:
    """With two-hour slots a small budget leaves some client out of every longer schedule: s = 0 was always chosen then."""
    costs = np.full((2, 40), 0.1)
    row = sw.Problem.from_costs(costs, rounds=1, slack=39, fine_tune=1, budget_kg=9.0)
    both = np.zeros((2, 40), dtype=bool)
    both[:, 30:] = True
    one = both.copy()
    one[1, :39] = False
    same = quality.Quality(unlearned=0.1, uneven=0.0)
    left_out, present = (auto._Looked(plan=plan_from_matrix(row, m, end=39), quality=same).rank for m in (one, both))
    assert left_out == pytest.approx(present * (1 + auto.LATE_COST / 2) * 1.5)  # it is a forgotten client too
    better = quality.Quality(unlearned=0.1 * present / left_out / 1.01, uneven=0.0)
    assert auto._Looked(plan=plan_from_matrix(row, one, end=39), quality=better).rank < present


def test_a_recalled_schedule_must_promise_a_fifth_less() -> None:
    costs = np.full((2, 12), 0.1)
    plain = sw.plan(sw.Problem.from_costs(costs, rounds=4, slack=8, budget_kg=2.0), end=8)
    recalled = sw.plan(plain.problem.with_settings(recall=10), end=8)
    ranks = {
        error: auto._Looked(plan=recalled, quality=quality.Quality(unlearned=error, uneven=0.0)).rank
        for error in (0.079, 0.081)
    }
    at = auto._Looked(plan=plain, quality=quality.Quality(unlearned=0.1, uneven=0.0)).rank
    assert ranks[0.079] < at < ranks[0.081]


def test_everybody_is_recalled_where_that_promises_more() -> None:
    """Long slack and one clean grid: the others would be forgotten."""
    zones = ["DE", "IE", "BE", "SE-SE3"]
    traces = sw.load_traces(zones=zones, start="2026-01-10T00:00Z", hours=130)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in zones]
    made = sw.plan(sw.Problem(clients=clients, traces=traces, rounds=4, slack=100, budget_kg=4.0), planner="auto")
    assert made.problem.recall == auto.RECALL
    assert made.matrix[:, made.before - auto.RECALL : made.before].any(axis=1).all()
    assert made.recommended is not None
    assert "every client once in the 10 slots before it" in made.recommended.why[0]
    assert made.status == "optimal"


def test_the_plan_is_the_solvers_own_for_what_was_chosen(made: sw.Plan) -> None:
    again = sw.plan(made.problem, end=made.end)
    assert np.array_equal(again.matrix, made.matrix)
    assert made.status == "optimal"
    assert made.emissions_kg <= made.problem.budget_kg * (1 + BUDGET_ROUNDING)


def test_it_is_the_same_each_time(made: sw.Plan) -> None:
    again = sw.plan(problem(), planner="auto")
    assert np.array_equal(again.packed, made.packed)
    assert again.recommended == made.recommended


def test_an_end_that_is_given_is_kept() -> None:
    assert sw.plan(problem(), planner="auto", end=7).end == 7


def test_a_budget_that_pays_no_window_is_refused_with_the_least_that_would_do() -> None:
    with pytest.raises(sw.InfeasibleError) as refused:
        sw.plan(problem(budget_kg=0.001), planner="auto")
    least = refused.value.least_budget_kg
    assert least is not None
    assert sw.plan(problem(budget_kg=least * (1 + 1e-9)), planner="auto").recommended is not None


def test_clients_tied_together_are_planned_too() -> None:
    tied = sw.plan(problem(slack=6, max_parallel=2), planner="auto", solver="greedy")
    assert tied.recommended is not None
    assert tied.matrix[:, : tied.before].sum(axis=0).max() <= 2


def test_every_gram_is_spent() -> None:
    row = problem()
    full = sw.plan(row, end=20)
    matrix = full.matrix
    for client in range(len(ZONES)):
        matrix[client, np.flatnonzero(matrix[client, : full.before])[:1]] = False
    some = plan_from_matrix(row, matrix, end=20)
    spent = auto.spend(some)
    left = row.budget_kg - spent.emissions_kg
    prices = row.costs.dense()[:, : spent.before][~spent.matrix[:, : spent.before]]
    assert 0 <= left < prices.min()
    assert spent.objective > some.objective
    assert spent.matrix[matrix].all()
    assert spent.upper_bound >= spent.objective


def test_spending_keeps_limits() -> None:
    row = problem(budget_kg=3.0, max_parallel=2, server_kg=np.full(34, 0.01))
    nobody = np.zeros((len(ZONES), row.horizon), dtype=bool)
    nobody[:, 24 - row.fine_tune : 24] = True
    spent = auto.spend(plan_from_matrix(row, nobody, end=20))
    assert spent.matrix[:, : spent.before].sum(axis=0).max() <= 2
    assert spent.emissions_kg <= row.budget_kg * (1 + BUDGET_ROUNDING)
    assert spent.matrix.sum() > nobody.sum()


def test_nothing_is_bought_from_nothing(made: sw.Plan) -> None:
    assert auto.spend(made) is made


def test_constants_are_those_of_the_rule() -> None:
    rule = Stride()
    assert (rule.gamma, rule.most) == (quality.ECHO_GAMMA, quality.ECHO_MOST)


def test_what_is_left_buys_nothing_that_ties_forbid() -> None:
    flat = np.full((3, 6), 0.2)
    matrix = np.zeros((3, 6), dtype=bool)
    matrix[:, 5] = True
    matrix[:2, 0] = True
    settings: dict[str, Any] = {"rounds": 6, "fine_tune": 1, "budget_kg": 99.0, "min_parallel": 2}
    asked = sw.Problem.from_costs(flat, **settings)
    more = auto.spend(plan_from_matrix(asked, matrix, end=0))
    assert more.matrix.sum(axis=0).tolist() == [3, 0, 0, 0, 0, 3], "no slot is opened by one client"
    zones = tuple(asked.fleet.zone)
    price = sw.Prices(zones=zones, start=asked.first_slot, per_kwh=np.ones((3, 6)))
    poor = asked.with_settings(min_parallel=None, price=price, budget_money=7.5)
    assert auto.spend(plan_from_matrix(poor, matrix, end=0)).matrix.sum() == 7, "5 cost 5, and 2.5 buy two more"
    sleeping = sw.Fleet.of(zones, energy_kwh=1.0, startup_kwh=[0.5, 0, 0])
    mixed = asked.with_settings(clients=sleeping, min_parallel=None)
    assert auto.spend(plan_from_matrix(mixed, matrix, end=0)).slots_per_client.tolist() == [2, 6, 6]


def test_what_is_left_keeps_the_levels() -> None:
    fleet = sw.Fleet.of(["A"], power_w=100, levels={0: [sw.Level(100, 1.0), sw.Level(50, 0.6)]})
    traces = sw.Traces(
        zones=("A",), start=datetime(2022, 1, 1, tzinfo=UTC), intensity=np.full((1, 3), 0.2), factor="direct"
    )
    asked = sw.Problem(clients=fleet, traces=traces, rounds=3, fine_tune=1, budget_kg=9.0)
    made = plan_from_matrix(asked, [[1, 0, 1]], end=0, levels=[[1, 0, 0]])
    more = auto.spend(made)
    assert more.matrix.all()
    assert more.work.tolist() == [[0.6, 1.0, 1.0]]
    assert more.objective == plan_from_matrix(asked, [[1, 1, 1]], end=0, levels=[[1, 0, 0]]).objective


def test_ctrl_c_takes_the_best_of_the_schedules_so_far_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def progress(done: Any) -> None:
        told.append(done.schedules)
        if len(told) == 5:
            raise KeyboardInterrupt

    stopped = sw.plan(problem(), progress=progress)
    assert told == [1, 2, 3, 4, 5]
    assert "Stopped: this is the best of the 5 schedules compared so far." in caplog.text
    assert stopped.end in range(5)
    assert stopped.emissions_kg <= 0.5 * (1 + BUDGET_ROUNDING)
