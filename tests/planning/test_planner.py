"""One verb: what it takes, what it finds in cases small enough to see, and what it says when nothing fits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning import highs, tied_search

SOLVERS = ("exact", "greedy", "milp")
TWO = np.array([[0.5, 0.4, 0.1, 0.3, 0.6], [0.3, 0.1, 0.5, 0.2, 0.2]])
FALLING = np.array([[0.5, 0.4, 0.1, 0.3]])
"""Windows of one slot: 0.4 for s = 0, 0.1 for s = 1, 0.3 for s = 2."""


def problem(costs: np.ndarray = FALLING, **settings: Any) -> sw.Problem:
    return sw.Problem.from_costs(costs, **({"rounds": 2, "slack": 2, "budget_kg": 1.0} | settings))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_best_end_is_found(solver: Any) -> None:
    plan = sw.plan(problem(budget_kg=0.5, alpha=1.0), solver=solver, planner="paper")
    # s = 1: window 0.1 and slot 1 for 0.4, u = 0.4 + 0.1; s = 2: window 0.3 and slot 2 for 0.1, u = 0.2 + 0.4.
    assert plan.end == 2
    assert plan.matrix.tolist() == [[False, False, True, True]]
    assert plan.objective == pytest.approx(0.6)
    assert plan.emissions_kg == pytest.approx(0.4)
    assert (plan.before, list(plan.window), plan.solver) == (3, [3], solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_end_can_be_fixed(solver: Any) -> None:
    plan = sw.plan(problem(budget_kg=0.5, alpha=1.0), end=np.int64(1), solver=solver, planner="paper")
    assert plan.end == 1
    assert plan.matrix.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("end", [-1, 3, 1.0, "1", True])
def test_an_end_outside_the_slack_is_refused(end: Any) -> None:
    with pytest.raises(sw.ScenarioError, match="end time s must be a whole number from 0 to the slack of 2, not"):
        sw.plan(problem(), end=end, planner="paper")


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(sw.ScenarioError, match="solver must be one of exact, greedy, milp, not 'gurobi'"):
        sw.plan(problem(), solver="gurobi", planner="paper")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [-1, -0.001, float("nan"), True, "60", None])
def test_a_time_limit_is_a_number_of_seconds(limit: Any) -> None:
    for solver in SOLVERS:
        with pytest.raises(sw.ScenarioError, match=f"time_limit_s must be a number of at least 0, not {limit!r}"):
            sw.plan(problem(), solver=solver, time_limit_s=limit, planner="paper")


@pytest.mark.parametrize("planner", ["paper", "auto"])
def test_the_time_limit_and_the_gap_reach_the_search(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[tuple[float, float]]()
    really = tied_search.search_tied

    def spied(problem: sw.Problem, ends: Any, effort: tied_search.Effort) -> Any:
        if not effort.first_look:
            given.append((round(effort.deadline - time.perf_counter(), 0), effort.gap))
        effort.deadline = time.perf_counter() + 30.0
        return really(problem, ends, effort)

    monkeypatch.setattr(tied_search, "search_tied", spied)
    one = problem(TWO, slack=3, max_parallel=1, fine_tune=0)
    sw.plan(one, time_limit_s=75.0, gap=0.25, planner=planner)
    sw.plan(one, planner=planner)
    assert given == [(75.0, 0.25), (60.0, 1e-3)]


@pytest.mark.parametrize("alpha", [0.5, "log", "max-min"])
@pytest.mark.parametrize("coupled", [{}, {"max_parallel": 1, "fine_tune": 0}])
def test_highs_never_has_more_than_what_is_left_of_the_time(
    alpha: Any, coupled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = 500.0, list[tuple[float, float]]()
    really = highs.Model.solve

    def counted(self: highs.Model, *, seconds: float, **more: Any) -> Any:
        nonlocal now
        left.append((seconds, 512.0 - now))
        now += 0.5
        return really(self, seconds=60.0, **more)

    monkeypatch.setattr(tied_search.time, "perf_counter", lambda: now)
    monkeypatch.setattr(highs.Model, "solve", counted)
    sw.plan(problem(TWO, slack=3, alpha=alpha, **coupled), solver="milp", time_limit_s=12.0, planner="paper")
    assert left or coupled  # tied clients may need no HiGHS
    assert all(0 < seconds <= rest for seconds, rest in left)


@pytest.mark.parametrize("solver", SOLVERS)
def test_too_small_a_budget_names_the_least_one_and_its_end(solver: Any) -> None:
    with pytest.raises(
        sw.InfeasibleError, match=r"fits 0\.05 kg: at its cheapest \(s=1, .*budget_kg to at least 0\.1"
    ) as no:
        sw.plan(problem(budget_kg=0.05), solver=solver, planner="paper")
    assert (no.value.least_budget_kg, no.value.end) == (pytest.approx(0.1), 1)
    assert no.value.least_budget_kg is not None
    assert sw.plan(problem(budget_kg=no.value.least_budget_kg), solver=solver, planner="paper").end == 1


def test_least_slots_count_in_the_least_budget() -> None:
    with pytest.raises(sw.InfeasibleError, match=r"min_slots, required") as no:
        sw.plan(problem(budget_kg=0.05, min_slots=1), planner="paper")
    # s = 0: 0.4 + 0.5; s = 1: 0.1 + 0.4; s = 2: 0.3 + 0.1
    assert (no.value.least_budget_kg, no.value.end) == (pytest.approx(0.4), 2)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_window_that_meets_an_absence_names_the_client(solver: Any) -> None:
    there = np.array([[True, True, False, True]])
    tight = problem(available=there, names=["lyon"])
    with pytest.raises(sw.InfeasibleError, match="s=1: client 'lyon' is not available in the window") as no:
        sw.plan(tight, end=1, solver=solver, planner="paper")
    assert no.value.least_budget_kg is None
    assert sw.plan(tight, solver=solver, planner="paper").end != 1
    alone = sw.plan(problem(available=there, window="available"), end=1, solver=solver, planner="paper")
    assert not alone.matrix[0, 2]


@pytest.mark.parametrize("solver", SOLVERS)
def test_least_slots_that_cannot_be_had_name_the_client(solver: Any) -> None:
    with pytest.raises(sw.InfeasibleError, match="client 'lyon' must get at least 4 slots") as no:
        sw.plan(problem(min_slots=4, names=["lyon"]), solver=solver, planner="paper")
    assert no.value.exit_code == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\xff", "cannot be read as a plan"),
        (b"{", "cannot be read as a plan"),
        (b"[]", "is not a plan made by Slackwater"),
        (
            json.dumps({"format": 999, "version": "9.9"}).encode(),
            r"was made by Slackwater 9\.9, a newer version .* Upgrade",
        ),
        (json.dumps({"format": 1}).encode(), "is damaged .* Plan again"),
    ],
)
def test_a_plan_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(sw.SlackwaterError, match=message):
        sw.Plan.load(tmp_path / "plan.json")
