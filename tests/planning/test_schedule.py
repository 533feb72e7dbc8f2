from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.lab.markov_participation import cells, generate
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import plan_from_matrix

G = np.random.default_rng(3).uniform(0.01, 0.05, (3, 8))


def problem(**settings: Any) -> Problem:
    return Problem.from_costs(
        G, **{"rounds": 4, "slack": 4, "budget_kg": 9.0, "fine_tune": 2, "names": list("abc")} | settings
    )


def schedule(*extra: tuple[int, int]) -> np.ndarray:
    """Ends at s = 2 with a window in slots 4 and 5; `extra` is turned over."""
    matrix = np.zeros((3, 8), dtype=bool)
    matrix[:, 4:6] = True
    matrix[0, 1] = matrix[1, 3] = True
    for client, slot in extra:
        matrix[client, slot] = not matrix[client, slot]
    return matrix


@pytest.mark.parametrize("alpha", [0.1, 1.0, "log", "max-min"])
def test_the_optimum_given_back_is_worth_what_the_planner_says(alpha: float | str, tmp_path: Path) -> None:
    best = plan(problem(alpha=alpha, budget_kg=0.4))
    given = plan_from_matrix(best.problem, best.matrix, end=best.end)
    assert given.objective == pytest.approx(best.objective, rel=1e-9)
    assert given.upper_bound >= given.objective
    assert (given.emissions_kg, given.solver, given.window) == (best.emissions_kg, "given", best.window)
    assert np.array_equal(given.matrix, best.matrix)
    given.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert (again.solver, again.objective, again.emissions_kg) == ("given", given.objective, given.emissions_kg)


def test_what_is_counted() -> None:
    made = plan_from_matrix(problem(), schedule().astype(int).tolist(), end=np.int64(2))  # type: ignore[arg-type]
    assert made.emissions_kg == pytest.approx(float(G[schedule()].sum()))
    assert made.metrics.pi.tolist() == [0.25, 0.25, 0.0]
    assert made.status == "within-gap"
    assert "Feasible" in made.message


@pytest.mark.parametrize(
    ("matrix", "end", "message"),
    [
        (schedule()[:, :6], 2, r"has the shape \(3, 6\); the problem has 3 clients and 8 slots"),
        (schedule()[:2], 2, r"has the shape \(2, 8\)"),
        ([[1, 0], [1]], 2, "rows differ in length"),
        (schedule() * 2, 2, "must hold only 0 and 1"),
        (schedule() * np.nan, 2, "must hold only 0 and 1"),
        (schedule(), 5, "from 0 to the slack of 4, not 5"),
        (schedule(), -1, "from 0 to the slack of 4, not -1"),
        (schedule(), True, "from 0 to the slack of 4, not True"),
        (schedule((2, 6)), 2, r"'c' trains in slot 6 \(1970-01-01T06:00Z\), but the run ends after 6 slots"),
        (
            schedule((1, 5)),
            2,
            r"'b' does not train in slot 5 .*fine-tuning window \(slots 4 to 5\)\. All clients must train there",
        ),
        (schedule(), 1, "'a' trains in slot 5"),
    ],
)
def test_what_does_not_fit(matrix: Any, end: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        plan_from_matrix(problem(), matrix, end=end)


def test_over_budget_names_the_least() -> None:
    needs = float(G[schedule()].sum())
    assert plan_from_matrix(problem(budget_kg=needs), schedule(), end=2).emissions_kg == pytest.approx(needs)
    with pytest.raises(InfeasibleError, match="over the budget of") as caught:
        plan_from_matrix(problem(budget_kg=needs * 0.999), schedule(), end=2)
    assert caught.value.least_budget_kg == pytest.approx(needs)
    assert caught.value.end == 2


def test_absence_and_limits() -> None:
    free = np.ones((3, 8), dtype=bool)
    free[0, 1] = free[2, 4] = False
    with pytest.raises(ScenarioError, match=r"'a' trains in slot 1 .*, when it is not available"):
        plan_from_matrix(problem(available=free), schedule(), end=2)
    absent = schedule((0, 1), (2, 4))
    with pytest.raises(ScenarioError, match="'c' does not train in slot 4"):
        plan_from_matrix(problem(available=free), absent, end=2)
    assert plan_from_matrix(problem(available=free, window="available"), absent, end=2).matrix[2].sum() == 1
    with pytest.raises(
        ScenarioError, match=r"'c' has 0 slots before the window; it must have at least 1 \(min_slots\)"
    ):
        plan_from_matrix(problem(min_slots=[0, 0, 1]), schedule(), end=2)
    with pytest.raises(ScenarioError, match=r"'a' has 2 slots before the window; it must have at most 1 \(max_slots\)"):
        plan_from_matrix(problem(max_slots=[1, 1, 1]), schedule((0, 2)), end=2)
    with pytest.raises(ScenarioError, match="2 clients train in slot 1; max_parallel allows 1"):
        plan_from_matrix(problem(max_parallel=1), schedule((1, 1)), end=2)
    assert plan_from_matrix(problem(max_parallel=1), schedule(), end=2).end == 2


def test_a_window_longer_than_the_run() -> None:
    with pytest.raises(ScenarioError, match="the window of 6 slots would begin before the first slot"):
        plan_from_matrix(problem(fine_tune=6), np.zeros((3, 8)), end=0)


def test_generated_participation_becomes_a_plan() -> None:
    (process,) = (one for one in cells(5) if one.name == "HE-TC-SC")
    matrix = generate(process, 40, seed=1)
    whole = Problem.from_costs(np.ones((5, 40)), rounds=40, fine_tune=0, budget_kg=200.0)
    made = plan_from_matrix(whole, matrix, end=0)
    assert made.metrics.pi.tolist() == matrix.mean(axis=1).tolist()
    assert made.emissions_kg == matrix.sum()
