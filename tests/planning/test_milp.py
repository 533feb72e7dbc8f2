"""The MILP against every schedule of small problems, against the exact solver, and on a problem of real size."""

from __future__ import annotations

import math
from typing import Any

import highspy
import numpy as np
import pytest
from brute_force import Small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import problem_of, small_problems

import slackwater as sw
from slackwater.planning.cells import Cells
from slackwater.planning.coupled import coupled_stages
from slackwater.planning.highs import Model, Outcome
from slackwater.planning.milp import solve_milp
from slackwater.planning.problem import Problem
from slackwater.planning.tangents import Fair

# HiGHS keeps rows and whole numbers to 1e-9, and f may be steep, so 1e-7 is all that can be promised in general. But the
# schedule is rounded to whole slots and counted anew; in thousands of random problems it was the optimum to 1e-13.
CLOSE = 1e-9
TRIES = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@given(small_problems(most_cells=11, coupled=True))
@settings(TRIES, max_examples=300)
def test_equals_brute_force(small: Small) -> None:
    best, problem = small.best(), problem_of(small)
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, solver="milp")
        return
    plan = sw.plan(problem, solver="milp")
    scale = max(1.0, abs(best.objective))
    if small.alpha == "log":
        assert np.count_nonzero(plan.emissions.utility) == best.primary
    if small.alpha == "max-min":
        assert plan.level == pytest.approx(best.primary, abs=CLOSE)
    assert plan.objective == pytest.approx(best.objective, abs=CLOSE * scale)
    assert plan.upper_bound >= best.objective - CLOSE * scale
    assert plan.gap <= 1e-8
    assert plan.emissions_kg <= small.budget_kg * (1 + 2e-12)
    before = plan.matrix[:, : plan.before]
    assert not (before & ~small.available[:, : plan.before]).any()
    assert np.all(before.sum(axis=1) >= small.min_slots)
    assert np.all(before.sum(axis=1) <= small.max_slots)
    assert small.max_parallel is None or before.sum(axis=0).max(initial=0) <= small.max_parallel


@given(small_problems(most_cells=11, coupled=True))
@settings(TRIES, max_examples=600)
def test_ties_equal_brute_force(small: Small) -> None:
    assert_breaks_ties(small)


@given(small_problems(most_cells=12, coupled=True, coarse=True))
@settings(TRIES, max_examples=600)
def test_many_ties_equal_brute_force(small: Small) -> None:
    assert_breaks_ties(small)


def assert_breaks_ties(small: Small) -> None:
    best = small.best()
    if best is None:
        return
    plan = sw.plan(problem_of(small), solver="milp")
    assert plan.objective == pytest.approx(best.objective, abs=CLOSE * max(1.0, abs(best.objective)))
    assert plan.matrix.sum() == best.slots, "ties: more slots"
    assert plan.emissions_kg == pytest.approx(best.kg, abs=1e-9), "then less carbon"
    assert plan.end == best.end, "then earlier"


@given(small_problems(most_cells=24))
@settings(TRIES, max_examples=200)
def test_without_ties_between_clients_equals_exact(small: Small) -> None:
    problem = problem_of(small)
    try:
        exact = sw.plan(problem, solver="exact")
    except sw.InfeasibleError:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, solver="milp")
        return
    milp = sw.plan(problem, solver="milp")
    assert milp.solver == "milp"
    assert milp.level == (None if exact.level is None else pytest.approx(exact.level, rel=CLOSE))
    assert milp.objective == pytest.approx(exact.objective, rel=CLOSE, abs=CLOSE)
    assert milp.gap <= 1e-8
    assert milp.matrix.sum() == exact.matrix.sum()


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6),
    st.floats(0.0, 2.0),
    st.sampled_from([1.0, 0.5, 0.1, 0.001, "log"]),
    st.floats(0.01, 1.2),
)
@settings(TRIES, max_examples=200)
def test_cuts_hold_for_every_schedule(worth: list[float], base: float, alpha: float | str, share: float) -> None:
    # One client, whose slots are worth what is drawn (a dear slot after the end makes g_max large enough for that).
    g_max = 2.0 + base
    g = np.array([[*(g_max - np.array(worth)), g_max - base, g_max]])
    problem = Problem.from_costs(
        g, rounds=len(worth) + 1, slack=1, budget_kg=100.0, alpha=alpha, server_kg=np.full(g.shape[1], 0.1)
    )
    cells = Cells.of(coupled_stages(problem, [0])[0])
    fair = Fair(cells)
    every = (np.arange(2 ** len(worth))[:, None] >> np.arange(len(worth))) & 1
    point = share * fair.reach[0][-1]
    for chosen in every.astype(bool):
        u = float(cells.utilities(chosen[None, :])[0]) / fair.scale
        if u > 0 or alpha != "log":
            assert float(fair.f(u)) <= fair._above(0, point, u, int(chosen.sum())) + 1e-9


def wavy(clients: int, slots: int) -> np.ndarray:
    """Costs like those of real zones, kg: levels that differ by a factor of ten, a daily wave, noise."""
    random = np.random.default_rng(0)
    level = np.geomspace(0.01, 0.12, clients)[:, None]
    wave = 1 + 0.3 * np.sin(np.arange(slots) / 24 * 2 * math.pi + random.uniform(0, 6, (clients, 1)))
    return np.asarray(level * wave * random.uniform(0.85, 1.15, (clients, slots)))


def realistic(**changes: object) -> Problem:
    g = wavy(7, 60)
    fields: dict[str, object] = {"budget_kg": 1.2 * float(g[:, :3].sum()), "max_parallel": 3, "server_kg": 0.3 * g[1]}
    return Problem.from_costs(g, rounds=3, slack=57, **(fields | changes))  # type: ignore[arg-type]


def test_a_problem_of_real_size_is_proved() -> None:
    problem = realistic()
    plan = sw.plan(problem, end=57, time_limit_s=60.0)  # 4 s on a free core
    assert plan.solver == "milp"
    assert plan.gap <= 1e-4
    assert plan.matrix[:, : plan.before].sum(axis=0).max() <= 3
    assert plan.emissions_kg <= problem.budget_kg * (1 + 1e-12)
    assert plan.objective >= sw.plan(problem, end=57, solver="greedy").objective


def test_a_proof_that_a_restart_of_highs_gets_wrong() -> None:
    # With restarts, HiGHS 1.15.1 called 6.545297 optimal here, at the same level.
    g = np.round(wavy(7, 153), 3)
    problem = Problem.from_costs(
        g, rounds=3, slack=150, budget_kg=float(g[:, :3].sum()), max_parallel=3, alpha="max-min"
    )
    plan = sw.plan(problem, end=146)
    assert plan.level == pytest.approx(0.389)
    assert plan.objective == pytest.approx(6.549239169)


def test_time_that_runs_out_leaves_an_honest_bound() -> None:
    problem = realistic(alpha="log")
    hurried = sw.plan(problem, solver="milp", time_limit_s=0.0)
    proved = sw.plan(problem, solver="milp", time_limit_s=60.0)
    assert hurried.status == "within-gap"
    assert hurried.objective <= proved.objective + 1e-9
    assert hurried.upper_bound >= proved.objective
    assert proved.gap <= 1e-4


def test_what_highs_has_not_found_in_time_is_the_greedys(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.from_costs(wavy(3, 12), rounds=3, slack=9, budget_kg=0.5)
    proved, greedy = sw.plan(problem), sw.plan(problem, solver="greedy")
    none = Outcome(columns=None, bound=float("inf"))
    monkeypatch.setattr("slackwater.planning.highs.Model.solve", lambda *_, **__: none)
    hurried = sw.plan(problem, solver="milp")
    assert hurried.objective == pytest.approx(greedy.objective)
    assert proved.objective <= hurried.upper_bound < float("inf")


def test_a_relaxation_that_finds_nothing_where_there_is_a_schedule_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = Model.solve

    def lying(self: Model, *, relaxed: bool = False, **more: Any) -> Outcome:
        none = Outcome(columns=None, bound=-math.inf, infeasible=True)
        return none if relaxed else really(self, **more)

    problem = Problem.from_costs(
        wavy(4, 8), rounds=3, slack=5, budget_kg=0.7, max_parallel=1, alpha="max-min", fine_tune=0
    )
    proved = sw.plan(problem, end=5)
    monkeypatch.setattr(Model, "solve", lying)
    assert sw.plan(problem, end=5).level == pytest.approx(proved.level)


@pytest.mark.parametrize("alpha", ["max-min", "max-min:1"])
def test_level_that_time_did_not_prove_shows_in_the_gap(alpha: str) -> None:
    hurried = sw.plan(realistic(alpha=alpha), solver="milp", time_limit_s=0.0)
    assert hurried.level is not None
    assert hurried.gap > 1e-9


def test_same_problem_same_schedule() -> None:
    problem = realistic(budget_kg=0.9)
    first, second = (sw.plan(problem, end=20, time_limit_s=30.0) for _ in range(2))
    assert np.array_equal(first.matrix, second.matrix)


def test_flat_trace_is_used() -> None:
    problem = Problem.from_costs(np.full((3, 6), 0.5), rounds=4, slack=2, budget_kg=4.0, fine_tune=0, max_parallel=1)
    plan = sw.plan(problem)
    assert plan.matrix.sum() == 6, "one client in each of six slots"
    assert plan.status == "optimal"


def test_ties_are_broken_at_an_end_time_nobody_had_to_look_at() -> None:
    # s=2 has the objective of s=3 already, which has one slot more, worth nothing.
    g = np.array([[0.25, 0.0, 0.5, 0.0, 0.25, 0.5, 1.0]])
    server = [0.0, 0.05, 0.05, 0.0, 0.0, 0.05, 0.0]
    plan = sw.plan(Problem.from_costs(g, rounds=4, slack=3, budget_kg=25.0, fine_tune=2, alpha=0.1, server_kg=server))
    assert plan.matrix.sum() == 7
    assert plan.end == 3


def test_ties_go_to_the_cheaper_server() -> None:
    # The second client opens slot 0 in any case. Opening slot 3 too gives nobody more utility, and costs its server.
    g = np.array([[0.125, 0.125, 0.5, 0.125], [0.125, 0.25, 0.5, 0.25]])
    server = [0.3, 0.0, 0.0, 0.05]
    plan = sw.plan(
        Problem.from_costs(g, rounds=4, budget_kg=1.5, fine_tune=0, alpha=0.5, max_slots=2, server_kg=server)
    )
    assert plan.matrix.sum() == 4
    assert plan.emissions_kg == pytest.approx(0.925)


def test_trouble_with_ties_leaves_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sw.SlackwaterError("HiGHS gave up")

    problem = Problem.from_costs(wavy(3, 12), rounds=3, slack=9, budget_kg=0.5, max_parallel=2)
    whole = sw.plan(problem)
    monkeypatch.setattr("slackwater.planning.ties.Ties.best_by", fail)
    plan = sw.plan(problem)
    assert plan.status == "optimal"
    assert plan.objective == pytest.approx(whole.objective, rel=1e-12)


def test_a_server_makes_clients_share_slots() -> None:
    g = np.array([[1.0, 1.1, 3.0], [1.1, 1.0, 3.0]])
    alone = sw.plan(Problem.from_costs(g, rounds=3, budget_kg=2.1, fine_tune=0, alpha=1))
    together = sw.plan(Problem.from_costs(g, rounds=3, budget_kg=3.1, fine_tune=0, alpha=1, server_kg=[1.0, 1.0, 1.0]))
    assert alone.matrix[:, :2].tolist() == [[True, False], [False, True]]
    assert together.matrix.sum(axis=0).tolist() in ([2, 0, 0], [0, 2, 0])


def test_infeasible_together() -> None:
    problem = Problem.from_costs(np.ones((3, 3)), rounds=3, budget_kg=99, min_slots=1, max_parallel=1)
    with pytest.raises(
        sw.InfeasibleError, match=r"whatever the budget: with at most 1 clients.*Raise max_parallel"
    ) as caught:
        sw.plan(problem)
    assert caught.value.least_budget_kg is None


@pytest.mark.parametrize("solver", ["exact", "greedy"])
def test_infeasible_says_the_least_budget(solver: str) -> None:
    g = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    settings_ = {"rounds": 3, "fine_tune": 1, "min_slots": 1, "max_parallel": 1, "server_kg": [0.5, 0.5, 0.5]}
    with pytest.raises(
        sw.InfeasibleError, match=r"at its cheapest \(s=0\).*Raise budget_kg to at least 12\.5"
    ) as caught:
        sw.plan(Problem.from_costs(g, budget_kg=11.9, **settings_), solver=solver)  # type: ignore[arg-type]
    assert caught.value.least_budget_kg == pytest.approx(12.5)
    plan = sw.plan(Problem.from_costs(g, budget_kg=caught.value.least_budget_kg, **settings_), solver=solver)  # type: ignore[arg-type]
    assert plan.emissions_kg == pytest.approx(12.5)


def test_trouble_in_highs_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highspy.Highs, "run", lambda _: highspy.HighsStatus.kError)
    with pytest.raises(sw.SlackwaterError, match=r"HiGHS gave up .* Try solver='greedy'"):
        solve_milp(realistic(), [57], time_limit_s=10.0)
