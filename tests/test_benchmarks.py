"""Smoke tests of benchmarks: they run, and what must hold on any machine holds. Times are not looked at."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


class Run(NamedTuple):
    code: int
    result: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("benchmark") / "planner.json"
    sizes = ["--clients", "3", "200", "--fleets", "50", "1000"]
    done = subprocess.run(
        [sys.executable, "benchmarks/planner.py", "--quick", "--skip-cvxpy", "--out", str(out), *sizes],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert out.exists(), done.stderr
    return Run(done.returncode, json.loads(out.read_text()), out.with_suffix(".md").read_text())


def test_planner_compares_the_paths_at_the_same_end_times(planner: Run) -> None:
    (size,) = planner.result["paper_size"]
    assert planner.result["settings"]["sizes_without_enough_zones"] == [200]
    assert size["clients"] == 3
    assert list(size["paths"]) == ["ours exact", "ours greedy", "HiGHS knapsack"]
    assert size["gap"] <= 1e-9
    for path in size["paths"].values():
        assert path["not_allowed"] == 0
        assert min(path["below_ours"]) >= -1e-9
        assert path["lead"] <= 1e-12
        assert path["seconds_all_s"]
    assert size["paths"]["HiGHS knapsack"]["scaled_from_s"] == [75]


def test_planner_measures_every_fleet_in_every_step(planner: Run) -> None:
    fleets = planner.result["fleets"]
    assert {(f["clients"], f["powers"], f["alpha"]) for f in fleets} == {
        (n, powers, alpha) for n in (50, 1000) for powers in ("all different", "three classes") for alpha in (1.0, 0.1)
    }
    for fleet in fleets:
        assert list(fleet["seconds"]) == ["build", "plan", "metrics", "save", "load"]
        assert fleet["gap"] <= 1e-6
        assert fleet["emissions_kg_recounted"] <= fleet["budget_kg"] * (1 + 1e-10)
        assert fleet["objective"] == pytest.approx(fleet["objective_recounted"], rel=1e-10)
        assert fleet["matrix_mib"] == fleet["clients"] * 336 / 8 / 2**20
        assert fleet["peak_gib"] > 0


def test_planner_says_what_was_measured_and_on_what(planner: Run) -> None:
    assert {"python", "numpy", "highspy", "cvxpy", "scip"} <= set(planner.result["environment"]["versions"])
    assert planner.result["settings"]["seeds"] == [1]
    for part in ("benchmarks/planner.py --quick", "HiGHS knapsack", "three classes", "growth exponent", "at most"):
        assert part in planner.text


def test_planner_finds_nothing_wrong(planner: Run) -> None:
    assert planner.result["violations"] == []
    assert planner.code == 0


def test_both_searches_over_end_times_agree(tmp_path: Path) -> None:
    out = tmp_path / "joint.json"
    small = ["--quick", "--cases", "paper", "fleet-recall", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "benchmarks/joint.py", *small], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads(out.read_text())["cases"]
    assert [(case["name"], case["same"]) for case in cases] == [("paper", True), ("fleet-recall", True)]
    assert all(len(runs) == 1 for case in cases for runs in case["seconds"].values())
    assert "fleet-recall (54 x 336)" in out.with_suffix(".md").read_text()


def test_the_live_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "live.json"
    small = ["--parts", "race,many", "--repeats", "1", "--rounds", "2", "--clients", "9", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "benchmarks/live.py", *small], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["race"]["runs"]["in-process"]
    assert "9 clients in process" in out.with_suffix(".md").read_text()


def test_the_benchmark_of_the_state_runs(tmp_path: Path) -> None:
    out = tmp_path / "state.json"
    small = ["--clients", "4", "--parameters", "200000", "--participants", "2,4", "--rounds", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "benchmarks/state.py", *small], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["violations"] == []
    assert [(run["way"], run["participants"]) for run in result["runs"]] == [("files", 2), ("blobs", 2), ("files", 4)]
    for run in result["runs"]:
        assert len(run["written_bytes"]) == 2
        assert run["disk_bytes"] >= 5 * 800_000, "all parts are on the disk"
    assert run["same_bits"]
    assert "4 clients x 200,000 parameters" in out.with_suffix(".md").read_text()


def test_a_year_is_planned_three_ways(tmp_path: Path) -> None:
    out = tmp_path / "year.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/year.py", "--quick", "--out", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(out.read_text())["cases"]
    assert (case["clients"], case["slots"], case["over"]) == (7, 100, False)
    assert {way: len(runs) for way, runs in case["seconds"].items()} == {"joint": 1, "auto": 1, "compare": 1}
    assert "auto / joint" in out.with_suffix(".md").read_text()
