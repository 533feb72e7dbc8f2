"""Exact means exact: against every schedule of small problems, and proved on the paper's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from brute_force import Small
from hypothesis import HealthCheck, given, settings
from strategies import problem_of, small_problems

import slackwater as sw

PAPER_ZONES = ["BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"]
TABLE_ROUNDS = [3, 4, 5, 9, 10, 20, 30, 40]
EXHAUSTIVE = settings(
    max_examples=2500,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(small_problems())
@EXHAUSTIVE
def test_equals_brute_force(small: Small) -> None:
    best = small.best()
    problem = problem_of(small)
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, planner="paper")
        return
    plan = sw.plan(problem, planner="paper")
    scale = max(1.0, abs(best.objective))
    if small.alpha == "log":
        assert np.count_nonzero(plan.emissions.utility > 1e-12 * small.g.max()) == best.primary
    if small.alpha == "max-min":
        assert plan.level == pytest.approx(best.primary, abs=1e-9)
    assert plan.objective == pytest.approx(best.objective, abs=1e-9 * scale)
    assert plan.upper_bound >= best.objective - 1e-9 * scale
    assert plan.gap <= 1e-9
    assert plan.status == "optimal"
    assert plan.matrix.sum() == best.slots, "ties: more slots"
    assert plan.emissions_kg == pytest.approx(best.kg, abs=1e-9), "then less carbon"
    assert plan.end == best.end, "then earlier"
    _assert_keeps_its_promises(small, plan)


@given(small_problems(most_cells=10))
@settings(EXHAUSTIVE, max_examples=400)
def test_fixed_end_equals_brute_force(small: Small) -> None:
    problem = problem_of(small)
    for end in range(small.slack + 1):
        best = small.best(range(end, end + 1))
        if best is None:
            with pytest.raises(sw.InfeasibleError):
                sw.plan(problem, end=end, planner="paper")
        else:
            plan = sw.plan(problem, end=end, planner="paper")
            assert plan.end == end
            assert plan.objective == pytest.approx(best.objective, abs=1e-9 * max(1.0, abs(best.objective)))


@given(small_problems())
@settings(EXHAUSTIVE, max_examples=600)
def test_greedy_is_within_its_bound_and_leaves_nothing_that_fits(small: Small) -> None:
    best = small.best()
    if best is None:
        return
    plan = sw.plan(problem_of(small), solver="greedy", planner="paper")
    _assert_keeps_its_promises(small, plan)
    if small.alpha != "max-min":
        assert plan.upper_bound >= best.objective - 1e-9 * max(1.0, abs(best.objective))
    left = small.budget_kg - plan.emissions_kg
    matrix = plan.matrix
    for client, slot in np.argwhere(~matrix[:, : plan.before] & small.available[:, : plan.before]):
        full = matrix[client, : plan.before].sum() >= small.max_slots[client]
        assert full or small.g[client, slot] > left - 1e-12, f"client {client} could still buy slot {slot}"


@pytest.mark.parametrize("rounds", TABLE_ROUNDS)
@pytest.mark.parametrize("alpha", [0.1, 0.001])
def test_proved_on_the_papers_data_for_every_end(shared_data: Path, rounds: int, alpha: float) -> None:
    problem = paper_problem(shared_data, rounds, alpha)
    joint = sw.plan(problem, planner="paper")
    best = -np.inf
    for end in range(1, 151):
        plan = sw.plan(problem, end=end, planner="paper")
        assert plan.gap <= 1e-9
        assert plan.emissions_kg <= problem.budget_kg * (1 + 1e-12)
        best = max(best, plan.objective)
    assert joint.objective >= best - 1e-12
    assert joint.gap <= 1e-9


def test_where_the_papers_objective_peaks(shared_data: Path) -> None:
    """The end times that `docs/concepts/planning.md` names; g_max over the whole horizon."""
    assert sw.plan(paper_problem(shared_data, 3, 0.1), planner="paper").end in (43, 44)
    assert 136 <= sw.plan(paper_problem(shared_data, 10, 0.1), planner="paper").end <= 139


def test_a_flat_trace_is_still_used() -> None:
    plan = sw.plan(
        sw.Problem.from_costs(np.full((3, 10), 0.1), rounds=2, slack=8, fine_tune=1, budget_kg=1.5), planner="paper"
    )
    assert plan.objective == 0
    assert plan.matrix.sum() == 15
    assert plan.end == 3, "the earliest end at which the twelve slots beside the window can be had"


def test_free_slots_are_all_taken() -> None:
    g = np.array([[0.0, 0.5, 0.0, 0.7], [0.6, 0.6, 0.6, 0.6]])
    plan = sw.plan(sw.Problem.from_costs(g, rounds=1, slack=3, fine_tune=0, budget_kg=0.1), planner="paper")
    assert plan.matrix.tolist() == [[True, False, True, False], [False, False, False, False]]
    assert plan.emissions_kg == 0


def test_equal_clients_share_the_budget_evenly() -> None:
    """Clients with the same grid and power form one group; the odd slot goes to the first of them."""
    g = np.tile([0.1, 0.2, 0.3, 0.4], (5, 1))
    plan = sw.plan(sw.Problem.from_costs(g, rounds=1, slack=3, fine_tune=0, alpha=0.1, budget_kg=0.71), planner="paper")
    assert plan.matrix.sum(axis=1).tolist() == [2, 1, 1, 1, 1]


def test_no_budget_for_the_window_says_what_would_do() -> None:
    g = np.array([[0.3, 0.1, 0.2], [0.3, 0.2, 0.2]])
    with pytest.raises(sw.InfeasibleError) as caught:
        sw.plan(sw.Problem.from_costs(g, rounds=1, slack=2, fine_tune=1, budget_kg=0.29), planner="paper")
    assert caught.value.end == 1
    assert caught.value.least_budget_kg == pytest.approx(0.3)
    assert "at least 0.300000" in str(caught.value)
    assert sw.plan(sw.Problem.from_costs(g, rounds=1, slack=2, fine_tune=1, budget_kg=0.3), planner="paper").end == 1


def test_an_unavailable_client_is_named() -> None:
    free = np.ones((2, 3), dtype=bool)
    free[1] = False
    problem = sw.Problem.from_costs(
        np.full((2, 3), 0.1), rounds=1, slack=2, fine_tune=1, budget_kg=9, available=free, names=["here", "away"]
    )
    with pytest.raises(sw.InfeasibleError, match="'away' is not available in the window"):
        sw.plan(problem, planner="paper")
    plan = sw.plan(problem.with_settings(window="available"), planner="paper")
    assert plan.matrix[0].all()
    assert not plan.matrix[1].any()


def paper_problem(shared_data: Path, rounds: int, alpha: float) -> sw.Problem:
    """The paper's setting: seven clients of 300 W, direct intensity, a budget of everybody for the first hours."""
    traces = sw.load_traces(
        shared_data / "ci_paper7", zones=PAPER_ZONES, start="2022-01-01T00:00Z", hours=190, factor="direct"
    )
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in PAPER_ZONES]
    problem = sw.Problem(
        clients=clients, traces=traces, rounds=rounds, slack=150, fine_tune=1, alpha=alpha, budget_kg=1.0
    )
    return problem.with_settings(budget_kg=float(problem.costs.dense()[:, :rounds].sum()))


def _assert_keeps_its_promises(small: Small, plan: sw.Plan) -> None:
    matrix, before = plan.matrix, plan.before
    counts = matrix[:, :before].sum(axis=1)
    assert not matrix[:, small.rounds + plan.end :].any(), "nobody trains after the end"
    assert not (matrix & ~small.available).any(), "nobody trains when unavailable"
    assert np.array_equal(matrix[:, plan.window], small.available[:, plan.window]), "everybody who is there fine-tunes"
    assert np.all(counts >= small.min_slots)
    assert np.all(counts <= small.max_slots)
    assert plan.emissions_kg <= small.budget_kg * (1 + 1e-12)
