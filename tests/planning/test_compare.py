import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from slackwater.errors import DataError, InfeasibleError, ScenarioError
from slackwater.intensity.traces import Provenance, Traces
from slackwater.planning import auto
from slackwater.planning import planner as module
from slackwater.planning.auto import quality
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.planner import compare, plan
from slackwater.planning.problem import Planner, Problem

START = datetime(2022, 1, 1, tzinfo=UTC)


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(3)
    intensity = np.array([[0.4], [0.1], [0.02]]) * rng.uniform(0.5, 1.5, (3, 40))
    zones = ("DE", "FR", "SE")
    return Problem(
        clients=[Client(name=zone, zone=zone, power_w=300.0) for zone in zones],
        traces=Traces(
            zones=zones,
            start=START,
            intensity=intensity,
            factor="direct",
            provenance=tuple(Provenance(zone=zone, source="made up") for zone in zones),
        ),
        rounds=6,
        slack=10,
        budget_kg=0.6,
    )


def test_rows_are_what_plan_finds(problem: Problem) -> None:
    rows = compare(problem, alphas=[0.1, 1.0, "log"], slacks=[0, 20], budgets=[0.4, 0.8])
    settings = [(a, s, b) for a in (0.1, 1.0, "log") for s in (0, 20) for b in (0.4, 0.8)]
    assert [(row.alpha, row.slack, row.budget_kg) for row in rows] == settings
    for row in rows:
        best = plan(problem.with_settings(alpha=row.alpha, slack=row.slack, budget_kg=row.budget_kg))
        assert (row.status, row.end, row.objective) == (best.status, best.end, best.objective)
        assert (row.upper_bound, row.gap, row.message) == (best.upper_bound, best.gap, best.message)
        assert row.emissions_kg == best.emissions_kg <= row.budget_kg * (1 + 1e-9)
        assert row.slots == best.matrix.sum()
        assert row.rho_h == best.metrics.rho_h
        assert row.remaining_error == quality(best).error
        assert row.g_max_kg == best.problem.costs.g_max
        assert not row.synthetic


@pytest.mark.parametrize("planner", ["auto", "paper"])
def test_the_problems_own_settings_give_the_plan_itself(problem: Problem, planner: Planner) -> None:
    (row,) = compare(problem, planner=planner)
    made = plan(problem, planner=planner)
    assert (row.alpha, row.slack, row.budget_kg) == (made.problem.alpha, 10, 0.6)
    assert (row.objective, row.end, row.emissions_kg) == (made.objective, made.end, made.emissions_kg)


def test_the_two_planners_differ_here(problem: Problem) -> None:
    assert compare(problem)[0].objective != compare(problem, planner="paper")[0].objective


def test_a_budget_that_is_the_answer_is_shown(problem: Problem) -> None:
    work = problem.with_settings(goal="work", rounds_each=4, budget_kg=np.inf)
    (row,) = compare(work)
    assert row.budget_kg == row.emissions_kg == plan(work).emissions_kg
    assert row.slots == 12


def test_more_budget_and_more_slack_never_hurt(problem: Problem) -> None:
    rows = compare(problem, alphas=[1.0], budgets=[0.3, 0.5, 0.9], planner="paper")
    objectives = [row.objective for row in rows]
    assert objectives == sorted(objectives, key=lambda value: value or 0.0)


def test_ctrl_c_during_a_row_leaves_it_out_and_ends(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The planner would return its best schedule so far, which is not that of the row."""
    made: list[float] = []
    greedy = auto.optimise

    def optimise(one: Problem, **settings: Any) -> Plan:
        made.append(one.budget_kg)
        if len([kg for kg in made if kg == 0.6]) == 3:  # the third schedule of the second row
            signal.raise_signal(signal.SIGINT)
        return greedy(one, **settings)

    monkeypatch.setattr(auto, "optimise", optimise)
    before = signal.getsignal(signal.SIGINT)
    (row,) = compare(problem, budgets=[0.4, 0.6, 0.8])
    assert row.budget_kg == 0.4
    assert 0.8 not in made
    assert "the best of the 2 schedules compared so far" in caplog.text
    assert signal.getsignal(signal.SIGINT) is before
    made.clear()
    with pytest.raises(KeyboardInterrupt):
        compare(problem, budgets=[0.6])


def test_ctrl_c_returns_the_rows_that_are_done(problem: Problem) -> None:
    told: list[tuple[int, int]] = []

    def stop_after_two(done: int, of: int) -> None:
        told.append((done, of))
        if done == 2:
            raise KeyboardInterrupt

    assert len(compare(problem, budgets=[0.4, 0.6, 0.8], progress=stop_after_two)) == 2
    assert told == [(1, 3), (2, 3)]


def test_duplicates_are_planned_once(problem: Problem) -> None:
    rows = compare(problem, alphas=[0.1, 0.1], slacks=[5, 0, 5], budgets=[0.5, 0.5])
    assert [row.slack for row in rows] == [5, 0]


def test_a_deadline_gives_way_to_the_slacks(problem: Problem) -> None:
    timed = replace(problem, slack=None, deadline="2022-01-01T12:00Z")
    assert [row.slack for row in compare(timed)] == [6]
    assert [row.slack for row in compare(timed, slacks=[2, 8])] == [2, 8]


def test_an_infeasible_row_carries_the_least_budget(problem: Problem) -> None:
    tiny, fine = compare(problem, budgets=[1e-6, 0.6])
    assert tiny.status == "infeasible"
    assert (tiny.end, tiny.objective, tiny.upper_bound, tiny.gap) == (None, None, None, None)
    assert (tiny.emissions_kg, tiny.slots, tiny.rho_h) == (None, None, None)
    assert fine.status == "optimal"
    with pytest.raises(InfeasibleError) as refused:
        plan(problem.with_settings(budget_kg=1e-6))
    assert tiny.message == str(refused.value)
    least = refused.value.least_budget_kg
    assert least is not None
    assert f"{least:.6f}" in tiny.message
    assert compare(problem, budgets=[least * (1 + 1e-6)])[0].status == "optimal"


def test_traces_that_are_too_short_are_said_before_any_planning(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(DataError, match=r"slack of 35 needs 41 slots \(rounds \+ slack\).*slacks of at most 34"):
        compare(problem, slacks=[0, 35])


def test_a_bad_setting_is_said_before_any_planning(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "plan", lambda *_, **__: pytest.fail("planned"))
    with pytest.raises(ScenarioError, match="alpha must be above 0"):
        compare(problem, alphas=[0.1, 2.0])


def test_the_solver_is_passed_on(problem: Problem) -> None:
    (row,) = compare(problem, solver="greedy")
    best = plan(problem, solver="greedy")
    assert (row.objective, row.upper_bound) == (best.objective, best.upper_bound)


def test_synthetic_intensity_is_said_in_every_row(problem: Problem) -> None:
    traces = replace(problem.traces, provenance=(Provenance(zone="DE", source="typical", synthetic=True),))
    rows = compare(replace(problem, traces=traces), budgets=[1e-6, 0.6])
    assert all(row.synthetic for row in rows)
