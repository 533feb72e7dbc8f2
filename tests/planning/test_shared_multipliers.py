"""The multipliers of one end time bound every end time, and the search that uses them finds what bounding them all finds."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from brute_force import Small
from exhaustive import exhaustive_search
from hypothesis import HealthCheck, given, settings
from strategies import problem_of, small_problems

import slackwater as sw
from slackwater.intensity.traces import Traces
from slackwater.planning import exact
from slackwater.planning.exact import Found, Groups, NoStageError, Stage
from slackwater.planning.multipliers import EndTimes, Prices

ALPHAS = (1.0, 0.9, 0.5, 0.1, 0.1, 0.001, "log", "log", "max-min", "max-min:0.5")
INSTANCES, BRUTE_FORCE = 2000, 300


def random_problem(seed: int) -> sw.Problem:
    """Return a problem of up to 9 clients and 40 slots with any mix of the options of the free planner."""
    rng = np.random.default_rng(seed)
    zones, slots = int(rng.integers(1, 5)), int(rng.integers(2, 41))
    clients = int(rng.integers(1, 10))
    zone = rng.integers(0, zones, clients)

    def maybe(share: float = 0.3) -> bool:
        return bool(rng.random() < share)

    intensity = (
        rng.choice([0.0, 0.125, 0.25, 0.5, 1.0], (zones, slots)) if maybe() else rng.uniform(0, 1, (zones, slots))
    )
    if maybe(0.1):
        intensity[:] = intensity[:, :1]
    if maybe(0.5):  # hours are alike, as on a real grid
        intensity = np.round(0.5 * intensity + 0.5 * np.sin(np.arange(slots) / 4) ** 2, 3)
    if maybe(0.1):  # utilities are small differences of large costs
        intensity = 1.0 - 1e-6 * intensity
    energy = rng.choice([0.0, 0.5, 1.0, 2.0], clients) if maybe() else rng.uniform(0.1, 2, clients)
    energy = np.full(clients, 1.0) if maybe() else energy
    rounds = int(rng.integers(1, slots + 1))
    low = rng.choice([0, 0, 0, 1, 2, 4], clients) if maybe() else np.zeros(clients, dtype=int)
    high = low + rng.choice([0, 1, 3, 99], clients) if maybe() else np.full(clients, 9999)
    recall = int(rng.integers(1, 8)) if maybe() else 0
    options: dict[str, Any] = {
        "rounds": rounds,
        "slack": slots - rounds,
        "fine_tune": int(rng.integers(0, min(4, rounds) + 1)),
        "alpha": ALPHAS[int(rng.integers(len(ALPHAS)))],
        "window": "available" if maybe() else "all",
        "recall": recall,
    }
    if maybe():
        options["available"] = rng.random((clients, slots)) < rng.choice([0.5, 0.9, 0.99])
    if recall and maybe():
        options["trained_ago"] = rng.choice([1.0, 3.0, 9.0, np.inf], clients)
    if maybe():
        options["earned_kg"] = rng.choice([0.0, 0.1, 3.0], clients)
    if maybe(0.15):
        options |= {"model_mb": 500.0, "evaluation_share": 0.2}
    idle = rng.choice([0.0, 5.0, 50.0], clients) if maybe() else np.zeros(clients)
    problem = sw.Problem(
        clients=sw.Fleet.of([f"z{i}" for i in zone], energy_kwh=energy, idle_w=idle, min_slots=low, max_slots=high),
        traces=Traces(
            zones=tuple(f"z{i}" for i in range(zones)),
            start=datetime(2022, 1, 1, tzinfo=UTC),
            intensity=intensity,
            factor="direct",
        ),
        budget_kg=1.0,
        **options,
    )
    total = float(problem.costs.dense().sum())
    budget = float(rng.choice([0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.1])) * total
    return problem.with_settings(
        budget_kg=max(budget, 1e-9), g_max_kg=1.5 * problem.costs.g_max if maybe(0.2) and problem.costs.g_max else None
    )


def outcome(search: Any, problem: sw.Problem, **options: Any) -> tuple[Any, ...]:
    """Return all that a search says, with every bit of its numbers, or its error."""
    try:
        found: Found = search(problem, range(problem.horizon - problem.rounds + 1), **options)
    except sw.InfeasibleError as error:
        return str(error), error.end, error.least_budget_kg
    return found.stage.end, found.packed.tobytes(), found.upper_bound.hex(), found.level


def assert_bounds_hold(problem: sw.Problem, tops: dict[int, float] | None = None) -> int:
    """Check the bounds from every end time's multipliers against the fractional optimum of all; return how many."""
    groups, ends = Groups(problem), range(problem.horizon - problem.rounds + 1)
    times = EndTimes(groups, ends)
    stages: dict[int, Stage] = {}
    for end in ends:
        with contextlib.suppress(NoStageError):
            stages[end] = Stage.at(groups, end)
    for end, stage in stages.items():
        assert times.least_kg[end] <= stage.fixed_kg * (1 + 1e-12)
    fits = {end: stage.with_everyone() for end, stage in stages.items() if stage.room_kg >= 0}
    known = {end: exact.bound_and_price(stage) for end, stage in fits.items()}
    tops = {end: bound for end, (bound, _) in known.items()} if tops is None else tops
    for end, stage in fits.items():
        bounds = times.bounds(Prices.of(stage, known[end][1]))
        for other, top in tops.items():
            assert bounds[other] >= top - 1e-12 * abs(top), (end, other)
    return len(fits)


@pytest.mark.parametrize("block", range(10))
def test_the_search_finds_what_bounding_all_end_times_finds(block: int) -> None:
    for seed in range(block, INSTANCES, 10):
        problem = random_problem(seed)
        greedy = seed % 7 == 0
        assert outcome(exact.search, problem, greedy=greedy) == outcome(exhaustive_search, problem, greedy=greedy), seed


@pytest.mark.parametrize("block", range(5))
def test_no_bound_is_below_the_fractional_optimum_of_its_end_time(block: int) -> None:
    checked = 0
    for seed in range(block, INSTANCES // 2, 5):
        problem = random_problem(seed)
        if problem.utility.kind != "max-min" and problem.costs.g_max > 0:
            checked += assert_bounds_hold(problem)
    assert checked > 500


@given(small_problems(most_cells=10))
@settings(
    max_examples=BRUTE_FORCE,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_no_bound_is_below_the_best_of_all_schedules(small: Small) -> None:
    if isinstance(small.alpha, str) or not small.g.any():
        return
    best = {end: small.best(range(end, end + 1)) for end in range(small.slack + 1)}
    assert_bounds_hold(problem_of(small), {end: one.objective for end, one in best.items() if one is not None})


@pytest.mark.parametrize("alpha", [1.0, 0.1, "log"])
def test_end_times_that_are_ruled_out_are_not_built(alpha: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = sw.load_traces(start="2022-02-01T00:00Z", hours=240)
    fleet = sw.Fleet.of(traces.zones[:20], power_w=np.linspace(50, 700, 20))
    problem = sw.Problem(clients=fleet, traces=traces, rounds=40, slack=200, alpha=alpha, budget_kg=1.0)
    problem = problem.with_settings(budget_kg=0.2 * float(problem.costs.dense()[:, :40].sum()))
    expected = outcome(exhaustive_search, problem)
    built = list[int]()
    really = Stage.at.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Stage, "at", classmethod(lambda cls, groups, end: built.append(end) or really(cls, groups, end))
    )
    assert outcome(exact.search, problem) == expected
    assert 1 <= len(built) <= 20, "of 201"
