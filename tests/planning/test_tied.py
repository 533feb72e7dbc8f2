"""Tied clients: against every schedule of small problems, against the exact solver, and on a problem of real size."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from typing import Any

import highspy
import numpy as np
import pytest
from brute_force import Small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import problem_of, small_problems
from tied_brute_force import random_small

import slackwater as sw
from slackwater.planning import tied_search
from slackwater.planning.core import Core, Kept
from slackwater.planning.exact import Groups
from slackwater.planning.highs import Model, Outcome
from slackwater.planning.problem import Problem
from slackwater.planning.relaxation import relax
from slackwater.planning.schedule import plan_from_matrix
from slackwater.planning.tied import EndTimes, Prices

# HiGHS keeps rows and whole numbers to 1e-9, and f may be steep: then this is all that can be promised.
CLOSE = 1e-7
CASES = int(os.environ.get("SLACKWATER_TIED_CASES", "25"))
"""Random problems of each kind; SLACKWATER_TIED_CASES=2500 takes a quarter of an hour."""
TRIES = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.parametrize("gap", [0.0, 1e-3])
@pytest.mark.parametrize("sleeping", [False, True])
def test_equals_brute_force_in_all_combinations(gap: float, sleeping: bool) -> None:
    for seed in range(CASES):
        small = random_small(np.random.default_rng([seed, sleeping]), sleeping=sleeping)
        if small is not None:
            check(small, gap, f"seed {seed}")


def check(small: Any, gap: float, told: str) -> None:
    best, problem = small.best(), small.problem
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, gap=gap, planner="paper")
        return
    plan = sw.plan(problem, gap=gap, planner="paper")
    primary, objective = best
    near = CLOSE * max(1.0, abs(objective))
    assert plan.emissions_kg <= problem.budget_kg * (1 + 2e-12), told
    if problem.alpha == "max-min":
        assert plan.level is not None
        assert plan.level <= primary * (1 + CLOSE) + 1e-12, told
        if plan.status == "optimal":
            assert plan.level == pytest.approx(primary, rel=1e-6, abs=1e-9), told
            assert plan.objective >= objective - near, told
        return
    assert plan.objective <= objective + near, told
    assert plan.upper_bound >= objective - near, f"{told}: the bound is below the optimum"
    assert plan.gap <= max(gap, 1e-4), told
    if plan.status == "optimal":
        assert plan.objective >= objective - near, told


@pytest.mark.parametrize("seed", range(8))
def test_no_multipliers_bound_below_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    for _ in range(CASES // 4):
        small = random_small(rng, sleeping=bool(seed % 2))
        if small is None or isinstance(small.problem.alpha, str) or not small.problem.coupled:
            continue
        best = small.best()
        if best is None:
            continue
        problem = small.problem
        ends = range(problem.horizon - problem.rounds + 1)
        times = EndTimes(problem, ends, Groups(problem))
        clients, slots = len(problem.fleet), problem.horizon
        prices = Prices(
            budget=rng.exponential(2.0, len(times.fixed)),
            utility=rng.exponential(1.0, clients),
            slot=rng.normal(0.0, 0.5, clients) * (rng.random(clients) < 0.5),
            late=rng.exponential(0.5, clients) * (rng.random(clients) < 0.5),
            place=rng.normal(0.0, 0.3, (clients, slots)),
        )
        bounds = times.bounds(prices)
        for i, end in enumerate(ends):
            at_end = small._at(end)
            if at_end is None:
                continue
            told = times.slope * bounds[i] + clients * times.shift
            assert told >= at_end[1] - 1e-9 * max(1.0, abs(at_end[1]))
            own = times.slope * times.at(i).bound(prices) + clients * times.shift
            assert own >= at_end[1] - 1e-9 * max(1.0, abs(at_end[1]))


@given(small_problems(most_cells=11, coupled=True))
@settings(TRIES, max_examples=300)
def test_equals_brute_force(small: Small) -> None:
    best, problem = small.best(), problem_of(small)
    if best is None:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, gap=0.0, planner="paper")
        return
    plan = sw.plan(problem, gap=0.0, planner="paper")
    scale = max(1.0, abs(best.objective))
    if small.alpha == "log":
        assert np.count_nonzero(plan.emissions.utility) == best.primary
    if small.alpha == "max-min":
        assert plan.level == pytest.approx(best.primary, abs=CLOSE)
    assert plan.objective == pytest.approx(best.objective, abs=CLOSE * scale)
    assert plan.upper_bound >= best.objective - CLOSE * scale
    assert plan.gap <= 1e-6
    assert plan.emissions_kg <= small.budget_kg * (1 + 2e-12)
    before = plan.matrix[:, : plan.before]
    assert not (before & ~small.available[:, : plan.before]).any()
    assert np.all(before.sum(axis=1) >= small.min_slots)
    assert np.all(before.sum(axis=1) <= small.max_slots)
    assert small.max_parallel is None or before.sum(axis=0).max(initial=0) <= small.max_parallel


@given(small_problems(most_cells=24))
@settings(TRIES, max_examples=200)
def test_without_ties_between_clients_equals_exact(small: Small) -> None:
    problem = problem_of(small)
    try:
        exact = sw.plan(problem, solver="exact", planner="paper")
    except sw.InfeasibleError:
        with pytest.raises(sw.InfeasibleError):
            sw.plan(problem, solver="milp", planner="paper")
        return
    milp = sw.plan(problem, solver="milp", planner="paper")
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
@settings(TRIES, max_examples=100)
def test_cuts_hold_for_every_schedule(worth: list[float], base: float, alpha: float | str, share: float) -> None:
    # One client, whose slots are worth what is drawn (a dear slot after the end makes g_max large enough for that).
    g_max = 2.0 + base
    g = np.array([[*(g_max - np.array(worth)), g_max - base, g_max]])
    problem = Problem.from_costs(
        g, rounds=len(worth) + 1, slack=1, budget_kg=100.0, alpha=alpha, server_kg=np.full(g.shape[1], 0.1)
    )
    tied = EndTimes(problem, [0], Groups(problem)).at(0)
    every = (np.arange(2 ** len(worth))[:, None] >> np.arange(len(worth))) & 1
    for chosen in every.astype(bool):
        core = Core(tied, Kept(tied, None, -math.inf))
        core._cut(0, [share * core.reach[0][-1]], plain=True)
        own = chosen[core.slot].astype(float)
        core.model.fix(core.x, own)
        u = float(tied.base[0] + (core.gain * own).sum())
        top = core.model.solve(seconds=10.0).bound
        assert top >= float(tied.fairness.of(np.array([u]))[0]) - 1e-7


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
    plan = sw.plan(problem, end=57, planner="paper")
    assert plan.solver == "exact"
    assert plan.gap <= 1e-3
    assert plan.matrix[:, : plan.before].sum(axis=0).max() <= 3
    assert plan.emissions_kg <= problem.budget_kg * (1 + 1e-12)
    assert plan.objective >= sw.plan(problem, end=57, solver="greedy", planner="paper").objective
    assert sw.plan(problem, end=57, gap=0.01, planner="paper").gap <= 0.01


@pytest.mark.parametrize("limits", [{"max_parallel": 3}, {"min_parallel": 2}, {"min_parallel": 3, "max_parallel": 4}])
@pytest.mark.parametrize("recall", [0, 8])
def test_many_clients_keep_every_limit(limits: dict[str, int], recall: int) -> None:
    g = wavy(20, 80)
    problem = Problem.from_costs(
        g,
        rounds=30,
        slack=50,
        budget_kg=0.15 * float(g.sum()),
        server_kg=0.3 * g[1],
        min_slots=1,
        recall=recall,
        **limits,
    )
    plan = sw.plan(problem, planner="paper")
    together = plan.matrix[:, : plan.before].sum(axis=0)
    used = together[together > 0]
    assert plan.gap <= 1e-3
    assert used.max() <= limits.get("max_parallel", 20)
    assert used.min() >= limits.get("min_parallel", 1)
    assert (plan.matrix[:, : plan.before].sum(axis=1) >= 1).all()
    if recall:
        assert plan.matrix[:, plan.before - recall : plan.before].any(axis=1).all()


def test_time_that_runs_out_leaves_an_honest_bound() -> None:
    problem = realistic(alpha="log")
    hurried = sw.plan(problem, gap=0.0, time_limit_s=0.0, planner="paper")
    proved = sw.plan(problem, gap=1e-5, planner="paper")
    assert hurried.status == "within-gap"
    assert hurried.objective <= proved.objective + 1e-9
    assert hurried.upper_bound >= proved.objective
    assert hurried.objective >= sw.plan(problem, solver="greedy", time_limit_s=0.0, planner="paper").objective - 1e-9


def test_the_time_limit_holds_for_all_that_highs_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call may use what is left of the time, not the whole of it."""
    now = [0.0]
    given_: list[tuple[float, float]] = []

    def slow(self: Model, *, seconds: float, **_: Any) -> Outcome:
        given_.append((now[0], seconds))
        now[0] += min(seconds, 3.0)
        return Outcome(columns=None, bound=math.inf)

    monkeypatch.setattr(tied_search.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Model, "solve", slow)
    sw.plan(realistic(), gap=0.0, time_limit_s=10.0, planner="paper")
    assert given_
    assert all(at + seconds <= 10.0 + 1e-9 for at, seconds in given_)


def test_highs_stops_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.planning.highs._LOOK_S", 0.001)
    g = wavy(20, 100)
    problem = Problem.from_costs(
        g, rounds=3, slack=97, budget_kg=float(g[:, :4].sum()), max_parallel=3, min_parallel=2, server_kg=0.3 * g[1]
    )
    tied = EndTimes(problem, [97], Groups(problem)).at(0)
    core = Core(tied, Kept(tied, None, -math.inf))
    asked = []

    def stop() -> bool:
        asked.append(True)
        return True

    began = time.perf_counter()
    outcome = core.model.solve(seconds=600.0, stop=stop)
    assert asked, "the solve takes longer than one look"
    assert time.perf_counter() - began < 300.0
    assert outcome.bound > -math.inf


def test_ctrl_c_returns_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tied_search._Race, "_sharpen", interrupted)
    plan = sw.plan(realistic(), gap=0.0, planner="paper")
    assert plan.status == "within-gap"
    assert "this is the best plan found so far" in caplog.text


def test_ctrl_c_ends_both_searches_of_max_min(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def interrupted(self: tied_search._Race, *_: object) -> None:
        asked.append(self.level)
        raise KeyboardInterrupt

    monkeypatch.setattr(tied_search._Race, "_sharpen", interrupted)
    plan = sw.plan(realistic(alpha="max-min"), gap=0.0, planner="paper")
    assert plan.level is not None
    assert asked == [True]


def test_ctrl_c_before_the_first_plan_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tied_search, "relax", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sw.plan(realistic(), planner="paper")


def test_progress_tells_time_and_gap() -> None:
    told: list[tuple[float, float]] = []
    plan = sw.plan(
        realistic(),
        gap=0.0,
        time_limit_s=5.0,
        progress=lambda done: told.append((done.seconds, done.gap or 0.0)),
        planner="paper",
    )
    assert told
    assert all(seconds >= 0 for seconds, _ in told)
    assert told[-1][1] == pytest.approx(plan.gap, rel=1e-3, abs=1e-9)
    assert [gap for _, gap in told] == sorted((gap for _, gap in told), reverse=True)


def test_it_is_never_worse_than_the_greedy() -> None:
    g = wavy(12, 60)
    for server in (None, 0.5 * g[1]):
        problem = Problem.from_costs(
            g, rounds=20, slack=40, budget_kg=0.1 * float(g[:, :20].sum()), max_parallel=2, server_kg=server
        )
        assert (
            sw.plan(problem, planner="paper").objective >= sw.plan(problem, solver="greedy", planner="paper").objective
        )


def test_highs_agrees() -> None:
    problem = Problem.from_costs(
        wavy(4, 10), rounds=4, slack=6, budget_kg=0.7, max_parallel=2, min_parallel=2, server_kg=0.2 * wavy(4, 10)[0]
    )
    ours, theirs = sw.plan(problem, gap=0.0, planner="paper"), sw.plan(problem, solver="milp", gap=0.0, planner="paper")
    assert theirs.solver == "milp"
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-7)


def test_what_highs_has_not_found_in_time_is_the_greedys(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.from_costs(wavy(3, 12), rounds=3, slack=9, budget_kg=0.5)
    proved, greedy = sw.plan(problem, planner="paper"), sw.plan(problem, solver="greedy", planner="paper")
    none = Outcome(columns=None, bound=float("inf"))
    monkeypatch.setattr("slackwater.planning.highs.Model.solve", lambda *_, **__: none)
    hurried = sw.plan(problem, solver="milp", planner="paper")
    assert hurried.objective == pytest.approx(greedy.objective)
    assert proved.objective <= hurried.upper_bound < float("inf")


def test_same_problem_same_schedule() -> None:
    problem = realistic(budget_kg=0.9)
    first, second = (sw.plan(problem, end=20, time_limit_s=30.0, planner="paper") for _ in range(2))
    assert np.array_equal(first.matrix, second.matrix)


def test_flat_trace_is_used() -> None:
    problem = Problem.from_costs(np.full((3, 6), 0.5), rounds=4, slack=2, budget_kg=4.0, fine_tune=0, max_parallel=1)
    plan = sw.plan(problem, planner="paper")
    assert plan.matrix.sum() == 6, "one client in each of six slots"
    assert plan.status == "optimal"


def test_a_server_makes_clients_share_slots() -> None:
    g = np.array([[1.0, 1.1, 3.0], [1.1, 1.0, 3.0]])
    alone = sw.plan(Problem.from_costs(g, rounds=3, budget_kg=2.1, fine_tune=0, alpha=1), planner="paper")
    together = sw.plan(
        Problem.from_costs(g, rounds=3, budget_kg=3.1, fine_tune=0, alpha=1, server_kg=[1.0, 1.0, 1.0]), planner="paper"
    )
    assert alone.matrix[:, :2].tolist() == [[True, False], [False, True]]
    assert together.matrix.sum(axis=0).tolist() in ([2, 0, 0], [0, 2, 0])


def test_infeasible_together() -> None:
    problem = Problem.from_costs(np.ones((3, 3)), rounds=3, budget_kg=99, min_slots=1, max_parallel=1)
    with pytest.raises(
        sw.InfeasibleError, match=r"whatever the budget: with at most 1 clients.*Loosen max_parallel"
    ) as caught:
        sw.plan(problem, planner="paper")
    assert caught.value.least_budget_kg is None


@pytest.mark.parametrize("solver", ["exact", "greedy"])
def test_infeasible_says_the_least_budget(solver: str) -> None:
    g = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    settings_ = {"rounds": 3, "fine_tune": 1, "min_slots": 1, "max_parallel": 1, "server_kg": [0.5, 0.5, 0.5]}
    with pytest.raises(
        sw.InfeasibleError, match=r"at its cheapest \(s=0\).*Raise budget_kg to at least 12\.5"
    ) as caught:
        sw.plan(Problem.from_costs(g, budget_kg=11.9, **settings_), solver=solver, planner="paper")  # type: ignore[arg-type]
    assert caught.value.least_budget_kg == pytest.approx(12.5)
    plan = sw.plan(
        Problem.from_costs(g, budget_kg=caught.value.least_budget_kg, **settings_), solver=solver, planner="paper"
    )  # type: ignore[arg-type]
    assert plan.emissions_kg == pytest.approx(12.5)


def test_trouble_in_highs_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highspy.Highs, "getModelStatus", lambda _: highspy.HighsModelStatus.kSolveError)
    with pytest.raises(sw.SlackwaterError, match=r"HiGHS gave up .* Try solver='greedy'"):
        sw.plan(realistic(), end=57, solver="milp", time_limit_s=10.0, planner="paper")


def test_a_highs_that_cannot_be_loaded_is_told_in_words() -> None:
    code = (
        "import sys; sys.modules['highspy'] = None\n"
        "import slackwater as sw\n"
        "try:\n    import slackwater.planning.highs\n"
        "except sw.SlackwaterError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HiGHS (the package highspy) cannot be loaded" in done.stdout
    assert "import slackwater.planning.highs before it" in done.stdout.replace("\n", " ")


def test_a_g_max_of_the_same_numbers_is_accepted_in_spite_of_rounding() -> None:
    g = wavy(3, 12)
    problem = Problem.from_costs(g, rounds=3, slack=9, budget_kg=0.5)
    nearly = problem.costs.g_max * (1 - 1e-12)
    assert problem.with_settings(g_max_kg=nearly).g_max == nearly
    with pytest.raises(sw.ScenarioError, match="g_max_kg must be at least"):
        problem.with_settings(g_max_kg=0.999 * problem.costs.g_max)


def test_a_given_schedule_counts_training_before_the_horizon_as_recall() -> None:
    problem = Problem.from_costs(wavy(2, 6), rounds=4, slack=2, budget_kg=9.0, recall=3, fine_tune=1)
    matrix = np.zeros((2, 6), dtype=bool)
    matrix[:, 3] = True  # the window of s = 0
    with pytest.raises(sw.ScenarioError, match="does not train in the last 3 slots"):
        plan_from_matrix(problem, matrix, end=0)
    # Before the window there are three slots: whoever trained one slot before the horizon is in the recall of 4.
    recent = problem.with_settings(recall=4, trained_ago=[1.0, 1.0])
    assert plan_from_matrix(recent, matrix, end=0).matrix.sum() == 2


def test_a_second_budget_is_kept() -> None:
    small = next(
        one
        for one in (random_small(np.random.default_rng(seed), sleeping=False) for seed in range(500))
        if one is not None and one.problem.budget_money is not None and one.best() is not None
    )
    plan = sw.plan(small.problem, planner="paper")
    assert plan.money is not None
    assert small.problem.budget_money is not None
    assert plan.money <= small.problem.budget_money * (1 + 1e-9)


def test_the_relaxation_is_certified_by_its_multipliers_alone() -> None:
    problem = realistic(max_parallel=2)
    tied = EndTimes(problem, range(58), Groups(problem)).at(57)
    found = relax(tied, tied.gains[0], tied.costs[:, 0], tolerance=1e-6)
    assert found.bound == tied.bound(found.prices)
    assert 0 <= found.bound - found.value <= 1e-5 * (found.bound - tied.alone)
