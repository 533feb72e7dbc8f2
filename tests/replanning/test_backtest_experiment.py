"""The experiment's script works, on the smallest of what it does."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from scripts import REPOSITORY, script


def test_cells_are_stored_and_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    module, runner = script("experiments/backtests.py"), CliRunner()
    small = ["run", "--study", "small", "--starts", "2", "--results", str(tmp_path)]
    assert "There are no back-tests" in runner.invoke(module.main, ["table", "--results", str(tmp_path)]).output
    first = runner.invoke(module.main, [*small, "--only", "persistence"])
    assert first.exit_code == 0, (first.output, first.exception)
    stored = tmp_path / "backtest_small.csv"
    lines = stored.read_text().splitlines()
    stored.write_text("\n".join([*lines[:-1], lines[-1][:30]]) + "\n")  # as a stopped sweep leaves it
    assert runner.invoke(module.main, small).exit_code == 0
    with stored.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert len({(row["forecast"], row["replan"], row["start"]) for row in rows}) == 6
    assert all(float(row["overspend_kg"]) == 0 or int(row["breaches"]) for row in rows)
    shown = runner.invoke(module.main, ["table", "--results", str(tmp_path)]).output
    assert "| persistence | 6h | 1 |" in shown
    assert "6 runs; over the budget: " in shown


def test_first_plans_are_counted(tmp_path: Path) -> None:
    module, runner = script("experiments/backtests.py"), CliRunner()
    asked = ["first-plans", "--study", "small", "--starts", "2", "--results", str(tmp_path)]
    assert "no first plans" in runner.invoke(module.main, ["first-plans-table", "--results", str(tmp_path)]).output
    for _ in range(2):  # what is stored is not done again
        done = runner.invoke(module.main, asked)
        assert done.exit_code == 0, (done.output, done.exception)
    with (tmp_path / "backtest_first_plans.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["reserve"]) for row in rows] == [0.6, 0.8, 0.9] * 2
    assert [int(row["replays"]) for row in rows] == [0] * 3 + [20] * 3
    shown = runner.invoke(module.main, ["first-plans-table", "--results", str(tmp_path)]).output
    assert "| small | persistence | 2 |" in shown


def test_the_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "replanning.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/replanning.py", "--quick", "--out", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["violations"] == []
    assert [step["at_slot"] for step in result["steps"]] == [0, 12, 24]
    assert "a step that re-plans" in out.with_suffix(".md").read_text()
