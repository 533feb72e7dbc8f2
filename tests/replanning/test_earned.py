"""What was earned before the horizon counts: the planner still finds the best of all schedules."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slackwater as sw

_COST = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]) | st.floats(0.01, 1.0).map(lambda x: round(x, 3))


@st.composite
def _rest_of_a_run(draw: st.DrawFn) -> sw.Problem:
    clients, horizon = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rounds = draw(st.integers(1, horizon))
    g = np.array([[draw(_COST) for _ in range(horizon)] for _ in range(clients)])
    problem = sw.Problem.from_costs(
        g,
        rounds=rounds,
        slack=horizon - rounds,
        fine_tune=draw(st.integers(0, min(1, rounds))),
        alpha=draw(st.sampled_from([1.0, 0.5, 0.1, "log", "max-min"])),
        budget_kg=max(1e-6, draw(st.sampled_from([0.2, 0.5, 0.8])) * float(g.sum())),
    )
    return problem.with_settings(
        earned_kg=[draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])) for _ in range(clients)],
        g_max_kg=float(g.max()) + draw(st.sampled_from([0.0, 0.5])),
    )


def _best(problem: sw.Problem) -> tuple[float, float] | None:
    """(what comes first, objective) of the best schedule, every one tried."""
    g, earned = problem.costs.dense(), np.asarray(problem.earned)
    found: list[tuple[float, float]] = []
    for end in range(problem.horizon - problem.rounds + 1):
        stop = problem.rounds + end
        before = stop - problem.fine_tune
        for bits in itertools.product([False, True], repeat=len(g) * before):
            matrix = np.zeros((len(g), stop), dtype=bool)
            matrix[:, :before] = np.reshape(bits, (len(g), before))
            matrix[:, before:] = True
            if (matrix * g[:, :stop]).sum() > problem.budget_kg * (1 + 1e-12):
                continue
            u = earned + (matrix * (problem.g_max - g[:, :stop])).sum(axis=1)
            u = np.where(u > 1e-11 * problem.g_max, u, 0.0)
            if problem.alpha == "log":
                found.append((float((u > 0).sum()), float(np.log(u[u > 0]).sum())))
            elif problem.alpha == "max-min":
                found.append((float(u.min()), float((u**0.1).sum())))
            else:
                found.append((0.0, float((u ** float(problem.alpha)).sum())))
    if not found:
        return None
    first = max(primary for primary, _ in found)
    return first, max(objective for primary, objective in found if primary >= first - 1e-9)


@given(_rest_of_a_run())
@settings(max_examples=400, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_equals_brute_force(problem: sw.Problem) -> None:
    best = _best(problem)
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, planner="paper")
        return
    plan = sw.plan(problem, planner="paper")
    assert plan.objective == pytest.approx(best[1], abs=1e-9 * max(1.0, abs(best[1])))
    assert plan.gap <= 1e-9
    if problem.alpha == "max-min":
        assert plan.level == pytest.approx(best[0], abs=1e-9)


def test_a_grid_without_emissions_keeps_what_was_earned() -> None:
    free = sw.Problem.from_costs(np.zeros((1, 1)), rounds=1, alpha="log", budget_kg=1.0)
    assert sw.plan(free.with_settings(earned_kg=[0.25], g_max_kg=0.0), planner="paper").objective == pytest.approx(
        np.log(0.25)
    )


def test_who_had_less_gets_more() -> None:
    g = np.full((2, 6), 0.1)
    g[:, 0] = 0.5  # so that a slot is worth something
    problem = sw.Problem.from_costs(g, rounds=1, slack=5, fine_tune=0, budget_kg=0.45)
    assert sw.plan(problem, planner="paper").slots_per_client.tolist() == [2, 2]
    assert sw.plan(problem.with_settings(earned_kg=[2.0, 0.0]), planner="paper").slots_per_client.tolist() == [0, 4]


def test_nothing_earned_is_the_plain_problem() -> None:
    g = np.random.default_rng(1).uniform(0.1, 1, (4, 20))
    problem = sw.Problem.from_costs(g, rounds=3, slack=17, budget_kg=10)
    plain, with_past = (
        sw.plan(problem, planner="paper"),
        sw.plan(problem.with_settings(earned_kg=np.zeros(4), g_max_kg=float(g.max())), planner="paper"),
    )
    assert np.array_equal(plain.matrix, with_past.matrix)
    assert plain.objective == with_past.objective


def test_what_does_not_fit_is_refused() -> None:
    g = np.array([[0.1, 0.4], [0.2, 0.3]])
    problem = sw.Problem.from_costs(g, rounds=1, slack=1, budget_kg=1)
    for wrong in ([1.0], [1.0, -1.0], [np.nan, 0.0]):
        with pytest.raises(sw.ScenarioError, match="earned_kg must hold a finite number"):
            problem.with_settings(earned_kg=wrong)
    with pytest.raises(sw.ScenarioError, match=r"at least the 0\.4 kg of the dearest"):
        problem.with_settings(g_max_kg=0.3)
    rest = sw.plan(problem.with_settings(earned_kg=[0.0, 1.0]), planner="paper")
    for store in (rest.to_dict, lambda: rest.save("never-written.json")):
        with pytest.raises(sw.ScenarioError, match="keep the state of the run"):
            store()
    assert replace(problem).earned_kg is None
