"""Advice on budget and slack."""

from __future__ import annotations

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning.advice import NEARLY
from slackwater.planning.auto import CALIBRATION, FULL_ROUNDS, expected, quality
from slackwater.planning.schedule import no_slack_plan
from slackwater.units import iso


def problem() -> sw.Problem:
    traces = sw.load_traces("typical", zones=["FR", "DE"], hours=20)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]
    return sw.Problem(clients=clients, traces=traces, rounds=6, slack=12, budget_kg=0.6)


def test_the_recommended_pair_emits_the_least_of_those_that_train_nearly_as_well_as_the_best() -> None:
    advice = sw.advise(problem(), budgets=[0.3, 0.6], slacks=[0, 12])
    best = min(row.remaining_error for row in advice.rows)
    near = [row for row in advice.rows if row.remaining_error <= best + NEARLY]
    assert advice.recommended.emissions_kg == min(row.emissions_kg for row in near)
    assert len(advice.rows) + advice.infeasible == 4
    for row in advice.rows:
        assert row.saved_kg == pytest.approx(row.same_work_kg - row.emissions_kg)
        assert row.emissions_kg <= row.budget_kg * (1 + 1e-9)
        assert 0 < row.remaining_error < 1
    assert all(
        sum(row.knee for row in advice.rows if row.slack == slack) == 1 for slack in {row.slack for row in advice.rows}
    )


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
