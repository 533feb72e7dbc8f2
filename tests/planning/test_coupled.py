"""The greedy for clients that are tied together: within its bound, and nothing left that fits and helps."""

from __future__ import annotations

import time

import numpy as np
import pytest
from brute_force import Small
from hypothesis import HealthCheck, given, settings
from strategies import problem_of, small_problems

import slackwater as sw
from slackwater.planning.problem import Problem

TRIES = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@given(small_problems(most_cells=11, coupled=True))
@settings(TRIES, max_examples=300)
def test_within_its_bound_and_nothing_left_that_fits(small: Small) -> None:
    best, problem = small.best(), problem_of(small)
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, solver="greedy", planner="paper")
        return
    plan = sw.plan(problem, solver="greedy", planner="paper")
    scale = max(1.0, abs(best.objective))
    if small.alpha == "max-min":
        assert plan.level is not None
        assert plan.level <= best.primary + 1e-9
    else:
        assert plan.upper_bound >= best.objective - 1e-9 * scale
    if small.alpha not in ("max-min", "log"):
        assert plan.objective <= best.objective + 1e-9 * scale
    assert plan.gap >= 0
    assert plan.emissions_kg <= small.budget_kg * (1 + 2e-12)

    before = plan.matrix[:, : plan.before]
    assert not (before & ~small.available[:, : plan.before]).any()
    assert np.all(before.sum(axis=1) >= small.min_slots)
    assert np.all(before.sum(axis=1) <= small.max_slots)
    limit = len(before) if small.max_parallel is None else small.max_parallel
    assert before.sum(axis=0).max(initial=0) <= limit
    left = small.budget_kg - plan.emissions_kg
    for client, slot in np.argwhere(~before & small.available[:, : plan.before]):
        full = before[client].sum() >= small.max_slots[client] or before[:, slot].sum() >= limit
        kg = small.g[client, slot] + (0.0 if before[:, slot].any() else small.server_kg[slot])
        assert full or kg > left - 1e-12, f"client {client} could still buy slot {slot}"


def test_least_slots_that_cheapest_first_would_miss() -> None:
    # Cheapest first gives slot 0 to the first client, and then the second has nowhere to go.
    g = np.array([[1.0, 1.5, 9.0], [1.0, 9.0, 9.0]])
    available = np.array([[True, True, True], [True, False, True]])
    problem = Problem.from_costs(
        g, rounds=2, fine_tune=0, budget_kg=2.6, available=available, min_slots=1, max_parallel=1, slack=0
    )
    plan = sw.plan(problem, solver="greedy", planner="paper")
    assert plan.matrix.tolist() == [[False, True], [True, False]]


def test_least_slots_share_a_server_when_only_that_fits() -> None:
    # The cheapest slot of each alone is not the cheapest way for both: together they pay the server once.
    g = np.array([[1.0, 1.4, 9.0], [1.9, 1.4, 9.0]])
    problem = Problem.from_costs(
        g, rounds=2, fine_tune=0, budget_kg=3.85, min_slots=1, server_kg=[1.0, 1.0, 1.0], alpha=0.5
    )
    plan = sw.plan(problem, solver="greedy", planner="paper")
    assert plan.matrix.tolist() == [[False, True], [False, True]]


def test_max_min_raises_whoever_has_least() -> None:
    g = np.array([[0.1] * 6 + [1.0], [0.9] * 6 + [1.0]])
    problem = Problem.from_costs(g, rounds=6, slack=1, fine_tune=0, budget_kg=5.6, alpha="max-min", max_parallel=1)
    plan = sw.plan(problem, solver="greedy", end=1, planner="paper")
    assert plan.level == pytest.approx(0.5), "five slots for the dear client, one for the other"


def test_flat_trace_is_used() -> None:
    plan = sw.plan(
        Problem.from_costs(np.full((3, 6), 0.5), rounds=6, budget_kg=2.0, fine_tune=0, max_parallel=2),
        solver="greedy",
        planner="paper",
    )
    assert plan.matrix.sum() == 4
    assert plan.matrix.argmax(axis=1).min() == 0, "the earliest of equals"


def test_many_slots_are_quick() -> None:
    random = np.random.default_rng(0)
    g = random.uniform(0.01, 0.2, (7, 190))
    problem = Problem.from_costs(g, rounds=190, budget_kg=0.3 * g.sum(), max_parallel=4, server_kg=np.full(190, 0.05))
    began = time.perf_counter()
    plan = sw.plan(problem, solver="greedy", end=0, planner="paper")
    assert time.perf_counter() - began < 2.0, "it takes about 0.1 s on one core"
    assert plan.gap < 0.5
