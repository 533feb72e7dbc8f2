"""The goals "work" and "enough": least carbon equal to enumeration, files, messages."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tied_brute_force import Small, random_small

import slackwater as sw
from slackwater.errors import InfeasibleError, ScenarioError
from slackwater.planning.auto import quality
from slackwater.planning.goals import about_goal, plan_work, within_budget
from slackwater.planning.plan import Plan
from slackwater.planning.planner import optimise
from slackwater.planning.schedule import no_slack_plan

CASES = int(os.environ.get("SLACKWATER_GOALS_CASES", "60"))
"""Problems that can be solved, of free and of tied clients each."""


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


def drawn(rng: np.random.Generator, kind: str) -> Small:
    """Return a small problem whose rounds are held at full power, with clients that are tied together or free."""
    while True:
        small = random_small(rng, sleeping=kind == "tied")
        if small is None:
            continue
        small = replace(small, levels=[own[:1] for own in small.levels])
        if kind == "free":
            loose = small.problem.with_settings(
                max_parallel=None, min_parallel=None, server=None, server_kg=None, budget_money=None
            )
            nothing = np.zeros_like(small.server_kg)
            small = replace(small, problem=loose, server_kg=nothing, server_money=nothing)
        if small.problem.coupled == (kind == "tied"):
            return small


@pytest.mark.parametrize("kind", ["free", "tied"])
def test_work_is_the_least_carbon_of_all_schedules(kind: str) -> None:
    rng, solved, infeasible = np.random.default_rng(25), 0, 0
    while solved < CASES:
        small = drawn(rng, kind)
        each, total = (int(rng.integers(1, 4)), None) if rng.random() < 0.5 else (None, int(rng.integers(1, 8)))
        problem = small.problem.with_settings(
            goal="work", rounds_each=each, rounds_total=total, budget_kg=np.inf, price_weight=0.0
        )
        best = least_kg(small, each, total)
        if best is None:
            with pytest.raises(InfeasibleError):
                plan_work(problem, gap=0.0)
            infeasible += 1
            continue
        found = plan_work(problem, gap=0.0)
        assert found.emissions_kg == pytest.approx(best, rel=1e-7, abs=1e-10)
        assert found.lower_bound_kg is not None
        assert found.lower_bound_kg <= best * (1 + 1e-7) + 1e-10
        slots = found.slots_per_client
        assert slots.min() >= each if each is not None else slots.sum() >= (total or 0)
        solved += 1
    assert infeasible > 0


@pytest.mark.parametrize("kind", ["free", "tied"])
def test_work_emits_at_most_what_a_plan_of_the_same_counts_does(kind: str) -> None:
    rng, compared, less = np.random.default_rng(26), 0, 0
    while compared < (4 * CASES if kind == "free" else CASES // 3):  # tied clients take longer
        problem = drawn(rng, kind).problem
        try:
            made = sw.plan(problem, planner="auto" if compared % 4 == 0 else "paper")
        except InfeasibleError:
            continue
        if made.levels is not None and (made.levels > 0).any():
            continue  # a slot below full power is less than a round
        work = plan_work(made.problem, counts=made.slots_per_client, gap=0.0)
        assert work.emissions_kg <= made.emissions_kg * (1 + 1e-9)
        assert (work.slots_per_client >= made.slots_per_client).all()
        less += work.emissions_kg < made.emissions_kg * (1 - 1e-6)
        compared += 1
    assert less > 0  # otherwise this shows nothing


def _free(**settings: object) -> sw.Problem:
    costs = np.random.default_rng(3).uniform(0.1, 1.0, (3, 24))
    return sw.Problem.from_costs(costs, **{"rounds": 6, "slack": 18, **settings})


def test_a_limit_below_the_least_carbon_is_refused_with_that_number() -> None:
    least = sw.plan(_free(goal="work", rounds_each=5))
    with pytest.raises(InfeasibleError, match="is too low for 5 rounds for each client") as refused:
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
    small, large = (sw.plan(_free(goal="enough", budget_kg=kg, planner="paper")) for kg in (40.0, 80.0))
    assert large.emissions_kg == small.emissions_kg
    assert large.budget_limit_kg == 80.0
    assert large.problem.budget_kg < 40.0


def test_what_is_enough_stops_well_before_the_last_slot_and_no_step_gains_the_share() -> None:
    made = sw.plan(_free(goal="enough", budget_kg=80.0, planner="paper"))
    everything = sw.plan(_free(budget_kg=80.0, planner="paper"))
    assert made.emissions_kg < everything.emissions_kg / 2
    error = quality(made).error
    for step in range(1, 6):
        more = sw.plan(made.problem.for_budget(budget_kg=made.emissions_kg * 1.1**step))
        assert quality(more).error >= error - (step + 1) * made.problem.enough_share
    told = about_goal(made) or ""
    assert told.startswith(f"{made.rounds_held} are enough, for {made.emissions_kg:.4g} kg of the 80 kg allowed.")
    assert "10 % more budget would lower it by less than 0.5 points" in told
    assert f"rounds = {made.problem.rounds} is the length without slack" in told


def test_a_limit_that_stops_the_search_is_not_called_enough() -> None:
    made = sw.plan(_free(goal="enough", budget_kg=4.0, planner="paper"))
    enough = sw.plan(_free(goal="enough", budget_kg=80.0, planner="paper"))
    assert made.emissions_kg < enough.emissions_kg
    told = about_goal(made) or ""
    assert told.startswith(f"{made.rounds_held} are held, for {made.emissions_kg:.4g} kg.")
    assert "The limit of 4 kg ends the search; a larger one may lower the error further." in told


def test_a_smaller_share_buys_more() -> None:
    little, much = (
        sw.plan(_free(goal="enough", budget_kg=80.0, enough_share=share, planner="paper")) for share in (0.05, 0.001)
    )
    assert little.emissions_kg < much.emissions_kg


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


def test_without_a_budget_what_needs_one_says_so() -> None:
    work = _free(goal="work", rounds_each=5)
    for needs in (optimise, no_slack_plan):
        with pytest.raises(ScenarioError, match=r"This needs a budget.*Give budget_kg"):
            needs(work)
    found = within_budget(work)
    assert (found.goal, found.rounds_each) == ("budget", None)
    assert found.budget_kg == pytest.approx(sw.plan(work).emissions_kg)
    assert within_budget(found) is found


def test_rounds_held_and_rounds_asked_for_are_explained_where_they_differ() -> None:
    generous, tight = sw.plan(_free(budget_kg=8.0)), sw.plan(_free(budget_kg=1.2))
    assert generous.rounds_held > 6 > tight.rounds_held
    assert (about_goal(generous) or "").startswith(
        f"{generous.rounds_held} are held, more than the 6 of the scenario, because the budget pays for them."
    )
    assert about_goal(tight) == (
        f"{tight.rounds_held} are held of the 6 of the scenario: the budget and the limits allow no more."
    )
    same = _free(budget_kg=1.0, slack=0).with_settings(budget_kg=100.0)
    assert about_goal(sw.plan(same)) is None
