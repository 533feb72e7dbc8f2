"""The goals "work" and "enough": least carbon equal to enumeration, files, messages."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tied_brute_force import Small, random_small

import slackwater as sw
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.planning.goals import about_goal, plan_work
from slackwater.planning.plan import Plan

CASES = int(os.environ.get("SLACKWATER_GOALS_CASES", "60"))


def least_kg(small: Small, each: int | None, total: int | None) -> float | None:
    """Return the least kg over all schedules of full-power rounds, or None if the work cannot be held."""
    p, best = small.problem, None
    for end in range(p.horizon - p.rounds + 1):
        stop = p.rounds + end
        before = stop - p.fine_tune
        if before < 0 or (p.window == "all" and not small.available[:, before:stop].all()):
            continue
        ways = [small._ways(c, before, stop) for c in range(len(small.levels))]
        if any(not way for way in ways):
            continue
        pick = np.stack([one.ravel() for one in np.meshgrid(*(np.arange(len(way)) for way in ways), indexing="ij")], 1)
        kg = sum(np.array([w["kg"] for w in way])[pick[:, c]] for c, way in enumerate(ways))
        money = sum(np.array([w["money"] for w in way])[pick[:, c]] for c, way in enumerate(ways))
        trains = np.stack([np.array([w["trains"] for w in way])[pick[:, c]] for c, way in enumerate(ways)], axis=1)
        load, counts = trains.sum(axis=1), trains.sum(axis=2)
        kg = kg + ((load > 0) * small.server_kg[:stop]).sum(axis=1)
        money = money + ((load > 0) * small.server_money[:stop]).sum(axis=1)
        ok = (counts >= each).all(axis=1) if each is not None else counts.sum(axis=1) >= (total or 0)
        if p.budget_money is not None:
            ok &= money <= p.budget_money + 1e-11 * abs(p.budget_money)
        early = load[:, :before]
        if p.max_parallel is not None:
            ok &= (early <= p.max_parallel).all(axis=1)
        if p.min_parallel is not None:
            ok &= ((early == 0) | (early >= p.min_parallel)).all(axis=1)
        if ok.any():
            best = min(float(kg[ok].min()), np.inf if best is None else best)
    return best


def test_work_is_the_least_carbon_of_all_schedules() -> None:
    rng = np.random.default_rng(25)
    seen = {"free": 0, "tied": 0, "infeasible": 0}
    while sum(seen.values()) < CASES:
        small = random_small(rng)
        if small is None:
            continue
        small = Small(**{**small.__dict__, "levels": [own[:1] for own in small.levels]})  # rounds at full power
        each, total = (int(rng.integers(1, 4)), None) if rng.random() < 0.5 else (None, int(rng.integers(1, 8)))
        problem = small.problem.with_settings(
            goal="work", rounds_each=each, rounds_total=total, budget_kg=np.inf, price_weight=0.0
        )
        best = least_kg(small, each, total)
        if best is None:
            with pytest.raises(InfeasibleError):
                plan_work(problem, gap=0.0)
            seen["infeasible"] += 1
            continue
        found = plan_work(problem, gap=0.0)
        assert found.emissions_kg == pytest.approx(best, rel=1e-7, abs=1e-10)
        assert found.lower_bound_kg is not None
        assert found.lower_bound_kg <= best * (1 + 1e-7) + 1e-10
        slots = found.slots_per_client
        assert slots.min() >= each if each is not None else slots.sum() >= (total or 0)
        seen["tied" if problem.coupled else "free"] += 1
    assert min(seen.values()) > 0
    print(seen)


def _free(**settings: object) -> sw.Problem:
    costs = np.random.default_rng(3).uniform(0.1, 1.0, (3, 24))
    return sw.Problem.from_costs(costs, **{"rounds": 6, "slack": 18, **settings})


def test_work_never_emits_more_than_a_budget_plan_with_the_same_counts() -> None:
    for budget in (2.0, 4.0, 8.0):
        made = sw.plan(_free(budget_kg=budget))
        work = plan_work(made.problem, counts=made.slots_per_client)
        assert work.emissions_kg <= made.emissions_kg * (1 + 1e-12)
        assert (work.slots_per_client >= made.slots_per_client).all()


def test_a_limit_below_the_least_carbon_is_refused_with_that_number() -> None:
    least = sw.plan(_free(goal="work", rounds_each=5))
    with pytest.raises(InfeasibleError, match="least carbon") as refused:
        sw.plan(_free(goal="work", rounds_each=5, budget_kg=least.emissions_kg / 2))
    assert refused.value.least_budget_kg == pytest.approx(least.emissions_kg)
    with pytest.raises(InfeasibleError, match="at most 24 slots"):
        sw.plan(_free(goal="work", rounds_each=25))


def test_a_work_plan_is_stored_with_its_goal(tmp_path) -> None:
    made = sw.plan(_free(goal="work", rounds_total=9))
    made.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert (again.problem.goal, again.problem.rounds_total) == ("work", 9)
    assert again.lower_bound_kg == made.lower_bound_kg
    assert again.message == made.message
    assert "asked for 9 client-rounds" in (about_goal(again) or "")


def test_a_larger_limit_does_not_raise_what_is_enough() -> None:
    small, large = (sw.plan(_free(goal="enough", budget_kg=kg)) for kg in (40.0, 80.0))
    assert large.emissions_kg <= small.emissions_kg * 1.0001
    assert large.budget_limit_kg == 80.0
    assert large.problem.budget_kg < 80.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "Only goal"),
        ({"goal": "work"}, "Give one of them"),
        ({"goal": "work", "rounds_each": 2, "rounds_total": 2}, "not both"),
        ({"budget_kg": 1.0, "rounds_each": 2}, "needs goal"),
        ({"budget_kg": 1.0, "enough_share": 0.1}, "needs goal"),
        ({"budget_kg": 1.0, "goal": "enough", "enough_share": 2.0}, "below 1"),
        ({"goal": "fast"}, "goal must be"),
    ],
)
def test_contradictory_settings_are_sentences(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        _free(**settings)
