"""Nobody is forgotten before the window: everybody who can trains in the last slots before it. (Optimality: test_exact.py.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning.schedule import plan_from_matrix

CHEAP, DEAR, DEAREST = 0.1, 0.5, 0.6


def problem(recall: int, *, budget_kg: float = 2.4, **settings: object) -> sw.Problem:
    """Two clients, twelve slots: one is cheap all along, one only in the first six."""
    g = np.array([[CHEAP] * 12, [CHEAP] * 6 + [DEAR] * 5 + [DEAREST]])
    return sw.Problem.from_costs(g, rounds=4, slack=8, budget_kg=budget_kg, recall=recall, **settings)  # type: ignore[arg-type]


def test_who_would_be_forgotten_gets_a_slot_late() -> None:
    plain, recalled = (sw.plan(problem(recall), end=8) for recall in (0, 3))
    assert not plain.matrix[1, 8:11].any()
    assert recalled.matrix[1, 8:11].sum() == 1
    assert recalled.status == "optimal"
    assert recalled.objective < plain.objective, "it costs something"
    assert recalled.emissions_kg == pytest.approx(2.4)
    assert plain.matrix.sum() - recalled.matrix.sum() == 4, "five cheap slots make room for it"


@pytest.mark.parametrize("solver", ["exact", "greedy", "milp"])
def test_every_solver_keeps_it(solver: str) -> None:
    made = sw.plan(problem(2, budget_kg=2.0), solver=solver)  # type: ignore[arg-type]
    assert made.matrix[:, made.before - 2 : made.before].any(axis=1).all()
    assert made.objective == pytest.approx(sw.plan(problem(2, budget_kg=2.0)).objective, rel=1e-6)


def test_who_cannot_be_there_is_not_asked() -> None:
    free = np.ones((2, 12), dtype=bool)
    free[1, 6:11] = False
    assert not sw.plan(problem(3, available=free), end=8).matrix[1, 6:11].any()


def test_who_trained_just_before_the_horizon_is_not_asked() -> None:
    g = np.array([[CHEAP] * 6, [DEAR] * 5 + [DEAREST]])
    asked = sw.Problem.from_costs(g, rounds=6, budget_kg=1.2, recall=6)
    with pytest.raises(sw.InfeasibleError):  # the window and one slot of each cost 1.3
        sw.plan(asked)
    assert not sw.plan(asked.with_settings(trained_ago=[np.inf, 1])).matrix[1, :5].any(), "six slots before the window"
    with pytest.raises(sw.InfeasibleError):
        sw.plan(asked.with_settings(trained_ago=[np.inf, 2]))
    with pytest.raises(sw.ScenarioError, match="trained_ago must hold a number of slots, at least 1"):
        asked.with_settings(trained_ago=[0, 1])


def test_a_budget_that_does_not_pay_it_is_told() -> None:
    with pytest.raises(sw.InfeasibleError, match="recall") as error:
        sw.plan(problem(3, budget_kg=1.25), end=8)
    assert error.value.least_budget_kg == pytest.approx(CHEAP + DEAREST + CHEAP + DEAR)


def test_it_holds_for_clients_that_are_tied_together() -> None:
    plan = sw.plan(problem(3, max_parallel=1))
    late = plan.matrix[:, plan.before - 3 : plan.before]
    assert late.any(axis=1).all()
    assert late.sum(axis=0).max() == 1
    with pytest.raises(sw.ScenarioError, match="recall must be"):
        problem(-1)


def test_a_given_schedule_must_keep_it() -> None:
    matrix = np.zeros((2, 12), dtype=bool)
    matrix[:, 11] = matrix[0, 10] = matrix[1, 0] = True
    assert plan_from_matrix(problem(0), matrix, end=8).matrix.sum() == 4
    with pytest.raises(sw.ScenarioError, match=r"'client-2' does not train in the last 3 slots .* \(slots 8 to 10\)"):
        plan_from_matrix(problem(3), matrix, end=8)


def test_it_is_kept_in_the_file(tmp_path: Path) -> None:
    made = sw.plan(problem(3), end=8)
    made.save(tmp_path / "plan.json")
    assert sw.Plan.load(tmp_path / "plan.json").problem.recall == 3
