import numpy as np
import pytest

from slackwater.errors import InfeasibleError
from slackwater.intensity.traces import Traces
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan

G = np.random.default_rng(5).uniform(0.01, 0.05, (3, 30))


def problem(budget_kg: float, **settings: object) -> Problem:
    return Problem.from_costs(G, rounds=4, slack=10, budget_kg=budget_kg, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("rounds", [1, 3, 4, 9, 20])
def test_everyone_in_as_many_rounds_as_the_budget_pays(rounds: int) -> None:
    """The paper's table: a budget of "N hours" is what all clients cost in the first N hours, to the last digit."""
    budget = float(G[:, :rounds].sum())
    plan = no_slack_plan(problem(budget))
    horizon = max(rounds, 14)
    assert plan.matrix.shape == (3, horizon)
    assert plan.matrix[:, :rounds].all()
    assert not plan.matrix[:, rounds:].any()
    assert plan.emissions_kg == pytest.approx(budget, rel=1e-12)
    assert plan.window == range(rounds, rounds)
    assert plan.before == rounds
    less = no_slack_plan(problem(budget * (1 - 1e-6))) if rounds > 1 else None
    assert less is None or less.slots_per_client.tolist() == [rounds - 1] * 3


def test_it_ends_with_the_traces() -> None:
    plan = no_slack_plan(problem(1e6))
    assert plan.matrix.shape == (3, 30)
    assert plan.matrix.all()


def test_too_small_a_budget_names_the_least() -> None:
    least = float(G[:, 0].sum())
    with pytest.raises(InfeasibleError, match="does not pay one round") as caught:
        no_slack_plan(problem(least * 0.99))
    assert caught.value.least_budget_kg == pytest.approx(least)


@pytest.mark.parametrize("alpha", [0.1, 1.0, "log", "max-min"])
def test_it_can_be_saved_and_claims_nothing(alpha: float | str, tmp_path: object) -> None:
    plan = no_slack_plan(problem(float(G[:, :5].sum()), alpha=alpha))
    assert plan.status == "within-gap"
    assert plan.objective <= plan.upper_bound
    plan.save(f"{tmp_path}/plan.json")
    again = Plan.load(f"{tmp_path}/plan.json")
    assert again.emissions_kg == plan.emissions_kg
    assert (again.matrix == plan.matrix).all()


def test_idle_server_and_absence_count() -> None:
    traces = Traces(zones=("A",), start="2022-01-01T00:00Z", intensity=np.full((1, 20), 0.5), factor="direct")  # type: ignore[arg-type]
    free = np.ones((2, 12), dtype=bool)
    free[1, 1] = False
    asked = Problem(
        clients=[Client(name=name, zone="A", power_w=200, idle_w=100) for name in "ab"],
        traces=traces,
        rounds=2,
        budget_kg=1.0,
        fine_tune=2,
        window="available",
        max_parallel=1,
        server_kg=np.full(15, 0.01),
        available=free,
    )
    plan = no_slack_plan(asked)
    # A slot costs 0.1 kg idle, 0.05 kg for each who trains and 0.01 kg for the server: 0.21, but 0.16 in the second.
    assert plan.slots_per_client.tolist() == [5, 4]
    assert plan.emissions_kg == pytest.approx(5 * 0.21 - 0.05)
    assert plan.emissions_kg <= 1.0
