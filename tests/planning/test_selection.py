"""Large fleets: narrowing down to the break must give what listing every item gives."""

from __future__ import annotations

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning import exact as selection

ZONES = ("FR", "DE", "GB", "SE-SE3", "PL")


def _problem(clients: int, alpha: float | str, *, classes: bool, share: float = 0.2) -> sw.Problem:
    rng = np.random.default_rng(3)
    traces = sw.load_traces(zones=ZONES, start="2022-02-01T00:00Z", hours=120)
    power = rng.choice([70.0, 300.0, 700.0], clients) if classes else rng.uniform(50, 700, clients)
    fleet = sw.Fleet.of([ZONES[i] for i in rng.integers(0, len(ZONES), clients)], power_w=power)
    problem = sw.Problem(clients=fleet, traces=traces, rounds=20, slack=100, alpha=alpha, budget_kg=1.0)
    return problem.with_settings(budget_kg=share * float(problem.costs.dense()[:, :20].sum()))


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.1, 0.001, "log", "max-min"])
@pytest.mark.parametrize("classes", [True, False])
def test_narrowing_agrees_with_listing_everything(
    monkeypatch: pytest.MonkeyPatch, alpha: float | str, classes: bool
) -> None:
    problem = _problem(3000, alpha, classes=classes)
    listed = sw.plan(problem, end=100, planner="paper")
    monkeypatch.setattr(selection, "_MOST_ITEMS", 20_000)
    narrowed = sw.plan(problem, end=100, planner="paper")
    # Above a max-min level little is left to choose, so that one slot weighs more.
    allowed = 1e-5 if alpha == "max-min" else 1e-6
    assert listed.gap <= allowed
    assert narrowed.gap <= allowed
    assert narrowed.objective == pytest.approx(listed.objective, rel=allowed)
    assert narrowed.upper_bound >= listed.objective * (1 - 1e-12)
    assert narrowed.emissions_kg <= problem.budget_kg


def test_many_equal_clients_are_one_group() -> None:
    traces = sw.load_traces(zones=["FR"], start="2022-02-01T00:00Z", hours=60)
    fleet = sw.Fleet.of(["FR"] * 50_000, power_w=300.0)
    problem = sw.Problem(clients=fleet, traces=traces, rounds=10, slack=50, budget_kg=1.0)
    problem = problem.with_settings(budget_kg=0.1 * 60 * 50_000 * float(problem.costs.dense(slice(1)).mean()))
    plan = sw.plan(problem, end=50, planner="paper")
    counts = np.unique(plan.slots_per_client)
    assert plan.gap <= 1e-6
    assert len(counts) <= 2
    assert counts.max() - counts.min() <= 1, (
        "equal clients are treated alike, but for the last slots that the budget buys"
    )
    assert plan.packed.nbytes == 50_000 * 8


def test_everything_fits() -> None:
    problem = _problem(40, 0.1, classes=False, share=100.0)
    plan = sw.plan(problem, planner="paper")
    assert plan.matrix.all()
    assert plan.end == 100
