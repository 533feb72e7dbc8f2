"""Plans survive the trip to a file, small and readable or large and packed; damage is told, not guessed around."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from brute_force import Small
from hypothesis import HealthCheck, given, settings
from strategies import problem_of, small_problems

import slackwater as sw


@given(small=small_problems())
@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_plan_comes_back_the_same(tmp_path: Path, small: Small) -> None:
    try:
        plan = sw.plan(problem_of(small))
    except sw.InfeasibleError:
        return
    plan.save(tmp_path / "plan.json")
    _assert_same(sw.Plan.load(tmp_path / "plan.json"), plan)


def test_every_setting_comes_back(tmp_path: Path) -> None:
    traces = sw.load_traces(zones=["FR", "DE", "SE-SE3"], start="2026-03-01T00:00Z", hours=48, slot_minutes=30)
    problem = sw.Problem(
        clients=[
            sw.Client(name="lyon", zone="FR", power_w=300, idle_w=20, pue=1.2, min_slots=1, max_slots=9),
            sw.Client(name="köln", zone="DE", energy_kwh=0.2, unavailable=("daily 08:00-10:00",), required=True),
        ],
        traces=traces,
        rounds=8,
        deadline="2026-03-01T20:15Z",
        fine_tune=2,
        alpha="max-min:0.5",
        budget_kg=5.0,
        round_minutes=20,
        window="available",
        max_parallel=1,
        server=sw.Server(zone="SE-SE3", power_w=100, pue=1.1),
    )
    plan = sw.plan(problem, solver="greedy")
    plan.save(tmp_path / "plan.json")
    again = sw.Plan.load(tmp_path)  # a run folder will do
    _assert_same(again, plan)
    for name in (
        "rounds",
        "slack",
        "deadline",
        "fine_tune",
        "alpha",
        "budget_kg",
        "round_minutes",
        "window",
        "max_parallel",
        "server",
    ):
        assert getattr(again.problem, name) == getattr(problem, name), name
    assert list(again.problem.fleet) == list(problem.fleet)
    assert again.problem.costs.dense() == pytest.approx(problem.costs.dense(), rel=0, abs=0)
    assert again.problem.traces.synthetic
    assert again.problem.traces.provenance == problem.traces.provenance


def test_the_file_has_the_documented_names(tmp_path: Path) -> None:
    plan = sw.plan(sw.Problem.from_costs(np.array([[0.1, 0.2, 0.3]]), rounds=1, slack=2, fine_tune=1, budget_kg=0.35))
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["matrix"] == [[1, 1, 0]]
    assert (data["end"], data["status"], data["version"]) == (1, "optimal", sw.__version__)
    assert data["emissions_kg"] == pytest.approx(0.3)
    assert len(data["slot_starts"]) == 3
    assert {
        "objective",
        "upper_bound",
        "gap",
        "seconds",
        "metrics",
        "clients",
        "provenance",
        "factor",
        "synthetic",
    } <= set(data)


@pytest.mark.parametrize("clients", [400, 20_000])
def test_a_large_plan_is_packed(tmp_path: Path, clients: int) -> None:
    rng = np.random.default_rng(0)
    traces = sw.load_traces(zones=["FR", "DE"], start="2022-01-01T00:00Z", hours=300)
    fleet = sw.Fleet.of(
        [("FR", "DE")[i % 2] for i in range(clients)], power_w=rng.uniform(50, 700, clients), min_slots=1
    )
    problem = sw.Problem(clients=fleet, traces=traces, rounds=10, slack=290, budget_kg=0.5 * clients)
    plan = sw.plan(problem, end=290)
    plan.save(tmp_path / "plan.json")
    assert isinstance(json.loads((tmp_path / "plan.json").read_text())["matrix"], dict)
    assert (tmp_path / "plan.json").stat().st_size < 200 * clients + 200_000
    _assert_same(sw.Plan.load(tmp_path / "plan.json"), plan)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(sw.SlackwaterError, match=r"no plan at .* slackwater plan"):
        sw.Plan.load(path)
    path.write_text("{")
    with pytest.raises(sw.SlackwaterError, match="cannot be read as a plan"):
        sw.Plan.load(path)
    path.write_text("[1, 2]")
    with pytest.raises(sw.SlackwaterError, match="not a plan made by Slackwater"):
        sw.Plan.load(path)
    path.write_text('{"format": 999, "version": "9.9"}')
    with pytest.raises(sw.SlackwaterError, match=r"made by Slackwater 9\.9, a newer version"):
        sw.Plan.load(path)
    path.write_text('{"format": 1}')
    with pytest.raises(sw.SlackwaterError, match="is damaged"):
        sw.Plan.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("end", 99), ("end", "x"), ("matrix", [[1, 0]]), ("matrix", [[1, 0], [1]]), ("format", "1"), ("format", None)],
)
def test_a_file_that_was_tampered_with_is_refused(tmp_path: Path, key: str, value: object) -> None:
    plan = sw.plan(sw.Problem.from_costs(np.array([[0.1, 0.2, 0.3]]), rounds=1, slack=2, fine_tune=1, budget_kg=0.35))
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict() | {key: value}))
    with pytest.raises(sw.SlackwaterError, match="damaged"):
        sw.Plan.load(tmp_path / "plan.json")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    plan = sw.plan(sw.Problem.from_costs(np.array([[0.1, 0.2]]), rounds=1, slack=1, budget_kg=0.35))
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(sw.SlackwaterError, match="cannot be written"):
        plan.save(tmp_path / "plan.json")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"], "no temporary file is left behind"


def _assert_same(again: sw.Plan, plan: sw.Plan) -> None:
    assert np.array_equal(again.matrix, plan.matrix)
    for name in ("end", "objective", "upper_bound", "gap", "emissions_kg", "seconds", "solver", "level", "status"):
        assert getattr(again, name) == getattr(plan, name), name
    assert again.metrics.to_dict() == plan.metrics.to_dict()
