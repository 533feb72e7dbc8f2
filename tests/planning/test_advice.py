"""Advice on budget and slack."""

from __future__ import annotations

import pytest

import slackwater as sw
from slackwater.planning.advice import NEARLY


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
