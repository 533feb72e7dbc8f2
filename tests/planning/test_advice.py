"""Advice on budget and slack."""

from __future__ import annotations

import contextlib
import signal
from datetime import timedelta

import numpy as np
import pytest

import slackwater as sw
from slackwater.charts.terminal import advice_notes
from slackwater.errors import ScenarioError
from slackwater.planning import advice as advice_module
from slackwater.planning.advice import NEARLY
from slackwater.planning.auto import CALIBRATION, FULL_ROUNDS, expected, quality
from slackwater.planning.schedule import no_slack_plan
from slackwater.units import iso, local_text


def problem() -> sw.Problem:
    traces = sw.load_traces("typical", zones=["FR", "DE"], hours=20)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]
    return sw.Problem(clients=clients, traces=traces, rounds=6, slack=12, budget_kg=0.6)


def test_the_recommended_pair_emits_the_least_of_those_that_train_nearly_as_well_as_the_best() -> None:
    advice = sw.advise(problem(), budgets=[0.3, 1.0], slacks=[0, 9, 12])
    best = min(row.remaining_error for row in advice.rows)
    near = [row for row in advice.rows if row.remaining_error <= best + NEARLY]
    assert advice.recommended.emissions_kg == min(row.emissions_kg for row in near)
    assert advice.recommended != near[0]
    assert len(advice.rows) + advice.infeasible == 6
    for row in advice.rows:
        assert row.saved_kg == pytest.approx(row.same_work_kg - row.emissions_kg)
        assert row.emissions_kg <= row.budget_kg * (1 + 1e-9)
        assert 0 < row.remaining_error < 1
    assert all(
        sum(row.knee for row in advice.rows if row.slack == slack) == 1 for slack in {row.slack for row in advice.rows}
    )


def test_the_default_grid_holds_the_problems_own_pair_which_is_the_plan() -> None:
    advice = sw.advise(problem())
    (own,) = [row for row in advice.rows if row.own]
    made = sw.plan(problem())
    assert (own.budget_kg, own.slack) == (0.6, 12)
    assert (own.emissions_kg, own.slots) == (made.emissions_kg, int(made.slots_per_client.sum()))
    assert own.remaining_error == quality(made).error
    # 2.4 kg are more than all slots cost, and 0.075 kg pay no window.
    assert sorted({row.budget_kg for row in advice.rows}) == pytest.approx([0.15, 0.3, 0.6, 1.2])
    assert (advice.infeasible, advice.not_planned) == (5, 0)
    assert advice_notes(advice)[-1] == "5 pairs of the grid have no plan."
    assert sorted({row.slack for row in advice.rows}) == [0, 3, 6, 9, 12]


def test_no_budget_of_the_default_grid_is_above_what_all_slots_cost() -> None:
    generous = problem().with_settings(budget_kg=1000.0)
    everything = sw.plan(generous, planner="paper").emissions_kg
    advice = sw.advise(generous, slacks=[12])
    assert max(row.budget_kg for row in advice.rows) == pytest.approx(everything)
    assert len(advice.rows) == 5


@pytest.mark.parametrize(
    "goal", [{"goal": "work", "rounds_each": 5, "budget_kg": np.inf}, {"goal": "enough", "budget_kg": 1000.0}]
)
def test_with_another_goal_the_grid_lies_around_the_budget_that_it_needs(goal: dict[str, object]) -> None:
    wanted = problem().with_settings(**goal)
    advice = sw.advise(wanted, slacks=[12])
    (own,) = [row for row in advice.rows if row.own]
    assert own.budget_kg == pytest.approx(sw.plan(wanted).emissions_kg)
    assert np.isfinite([row.budget_kg for row in advice.rows]).all()
    assert "inf" not in advice.why


def test_the_papers_planner_is_kept() -> None:
    paper = problem().with_settings(planner="paper")
    (row,) = sw.advise(paper, budgets=[0.6], slacks=[12]).rows
    assert row.emissions_kg == sw.plan(paper).emissions_kg != sw.plan(problem()).emissions_kg


def test_times_are_read_and_said_in_the_problems_time_zone() -> None:
    local = problem().with_settings(time_zone="Europe/Paris")
    there = (local.slot_start(12) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")  # winter time
    advice = sw.advise(local, budgets=[0.6], deadlines=[there])
    assert advice.rows[0].slack == 6
    assert f"finish by {local_text(local.slot_start(12), 'Europe/Paris')}" in advice.why
    assert "Europe/Paris" in advice.why
    with pytest.raises(ScenarioError, match="has no time zone"):
        sw.advise(problem(), budgets=[0.6], deadlines=[there])


def test_without_any_plan_the_error_says_so() -> None:
    with pytest.raises(sw.InfeasibleError):
        sw.advise(problem(), budgets=[1e-6], slacks=[0])


def test_a_deadline_is_a_slack() -> None:
    by_time = sw.advise(problem(), budgets=[0.6], deadlines=[problem().slot_start(12)])
    by_slack = sw.advise(problem(), budgets=[0.6], slacks=[6])
    assert by_time == by_slack
    assert by_time.rows[0].finish_by == iso(problem().slot_start(12))


def test_a_figure_is_relative_to_full_training_and_to_no_slack() -> None:
    row = sw.advise(problem(), budgets=[0.6], slacks=[12]).recommended
    everybody = no_slack_plan(problem())
    assert row.no_slack_error == pytest.approx(quality(everybody, fedavg=True).error)
    assert row.no_slack_error > row.remaining_error
    full = no_slack_plan(flat().with_settings(budget_kg=1e9, slack=0))
    assert int(full.slots_per_client.max()) == FULL_ROUNDS
    assert expected(quality(full, fedavg=True).error, 2).missing == pytest.approx(0.0, abs=1e-9)
    assert expected(1.0, 2).missing == pytest.approx(CALIBRATION[0])
    assert row.expected == expected(row.remaining_error, 2)
    assert row.expected.low < row.expected.missing < row.expected.high


def flat() -> sw.Problem:
    return sw.Problem.from_costs(np.full((2, FULL_ROUNDS), 0.1), rounds=FULL_ROUNDS, fine_tune=0, budget_kg=100.0)


def test_ctrl_c_during_a_pair_leaves_it_out_and_advises_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    plan = advice_module.make_plan

    def interrupted(one: sw.Problem) -> sw.Plan:
        asked.append(one.budget_kg)
        if len(asked) == 2:
            with contextlib.suppress(KeyboardInterrupt):  # as a planner that returns its best so far
                signal.raise_signal(signal.SIGINT)
        return plan(one)

    monkeypatch.setattr(advice_module, "make_plan", interrupted)
    advice = sw.advise(problem(), budgets=[0.3, 0.45, 0.6], slacks=[12])
    assert asked == [0.3, 0.45]
    assert [row.budget_kg for row in advice.rows] == [0.3]
    assert (advice.infeasible, advice.not_planned) == (0, 2)
    assert advice_notes(advice)[-1] == "Stopped: 2 pairs of the grid were not planned."
