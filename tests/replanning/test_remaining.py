"""The problem that is left."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import daily, forecast, problem, traces

import slackwater as sw
from slackwater.replanning.remaining import promising_ends, remaining_problem, solve
from slackwater.replanning.run_state import State, look_back


@pytest.mark.parametrize(("recall", "cut"), [(0, 12), (4, 12), (4, 22), (6, 21)])
def test_the_rest_of_a_plan_is_the_plan_for_the_rest(recall: int, cut: int) -> None:
    """With nothing unforeseen, planning anew at any slot keeps what was planned, who was heard late included."""
    truth = traces(daily(4, 40, seed=1), sw.units.utc("2023-03-01T00:00Z"))
    asked = problem(truth, rounds=5, slack=30, hours=6).with_settings(recall=recall)
    first = sw.plan(asked, planner="paper")
    g = asked.costs.dense()
    done = first.matrix[:, :cut]
    state = State.initial(asked)
    state.slot, state.trained[:, :cut] = cut, done
    rest = remaining_problem(
        asked,
        look_back(asked, state, truth.intensity, cut),
        slot=cut,
        budget_kg=asked.budget_kg - float((done * g[:, :cut]).sum()),
        window_slots=1,
        expected=forecast(traces(truth.intensity[:, :cut], truth.start), truth.intensity[:, cut:]).traces(),
        g_max_kg=asked.g_max,
    )
    again = sw.plan(rest, planner="paper")
    assert again.objective == pytest.approx(first.objective, rel=1e-9)
    assert again.ends_at == first.ends_at


def test_promising_ends_lose_next_to_nothing() -> None:
    for seed in range(8):
        asked = problem(traces(daily(5, 300, seed=seed)), rounds=5, slack=60, hours=8, idle_w=20.0 * (seed % 2))
        ends = promising_ends(asked)
        assert len(ends) < 40
        assert ends[-1] == 60
        best = sw.plan(asked, planner="paper")
        kept = max(sw.plan(asked, end=end, planner="paper").objective for end in ends)
        assert kept >= best.objective * (1 - 1e-3)


def test_what_a_window_is_held_at_in_vain_counts_as_its_cost() -> None:
    asked = problem(traces(np.full((2, 300), 0.5)), rounds=2, slack=4, hours=2)
    assert promising_ends(asked) == [4], "all windows cost the same: the last one leaves most slots before it"
    in_vain = np.array([0.0, 0.1, 0.1, 0.2, 0.1, 0.3])
    assert promising_ends(asked, in_vain) == [3, 4]  # slots 4 and 5
    found = solve(asked, in_vain)
    assert found is not None
    assert found.window_at == 4
    longer = asked.with_settings(fine_tune=2)
    assert promising_ends(longer, in_vain) == [0, 1, 3, 4]  # 0.1, 0.2, 0.3, 0.3 and 0.4 kg


def test_where_nothing_fits_there_is_no_plan() -> None:
    asked = problem(traces(daily(2, 300)), hours=None, budget_kg=1e-6)
    assert solve(asked) is None


def test_limits_count_what_was_done() -> None:
    truth = traces(daily(2, 300, seed=3))
    asked = problem(truth, rounds=2, slack=10, hours=5)
    fleet = sw.Fleet.of(["z0", "z1"], power_w=1000, min_slots=[3, 0], max_slots=[5, 2])
    state = State.initial(asked)
    state.slot, state.trained[:, 1:3] = 4, True
    rest = remaining_problem(
        asked.with_settings(clients=fleet),
        look_back(asked, state, truth.intensity, 4),
        slot=4,
        budget_kg=1.0,
        window_slots=1,
        expected=truth,
        g_max_kg=2.0,
    )
    assert rest.fleet.min_slots.tolist() == [1, 0]
    assert rest.fleet.max_slots.tolist() == [3, 0]
    assert rest.horizon == asked.horizon - 4
    assert rest.rounds == 1, "the rounds that were asked for are over"
