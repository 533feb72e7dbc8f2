"""The study of back-tests, on the smallest of what it does."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from slackwater.lab.store import Store
from slackwater.lab.studies import backtests


def test_cells_are_stored_and_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, runner = tmp_path / "backtests.jsonl", CliRunner()
    small = ["run", "--study", "small", "--starts", "2", "--results", str(path)]
    assert "There are no back-tests" in runner.invoke(backtests.main, ["table", "--results", str(path)]).output
    first = runner.invoke(backtests.main, [*small, "--only", "persistence"])
    assert first.exit_code == 0, (first.output, first.exception)
    path.write_text(path.read_text()[:-30])  # as a stopped sweep leaves it
    assert runner.invoke(backtests.main, small).exit_code == 0
    rows = Store(path, backtests.Cell, {"study": "small"}).rows()
    assert len(rows) == len(path.read_text().splitlines()) == 6
    assert all(row["overspend_kg"] == 0 or row["breaches"] for row in rows)
    shown = runner.invoke(backtests.main, ["table", "--results", str(path)]).output
    assert "| persistence | 6h | 1 |" in shown
    assert "6 runs; over the budget: " in shown


def test_tied_clients_are_back_tested_too(tmp_path: Path) -> None:
    path, runner = tmp_path / "backtests.jsonl", CliRunner()
    asked = ["run", "--study", "small-tied", "--starts", "1", "--results", str(path)]
    done = runner.invoke(backtests.main, asked)
    assert done.exit_code == 0, (done.output, done.exception)
    (row,) = Store(path, backtests.Cell, {"study": "small-tied"}).rows()
    assert row["ties"] == "server, at most 3, at least 2"
    assert 0.5 < row["share"] <= 1.001
    assert row["overspend_kg"] == 0
    shown = runner.invoke(backtests.main, ["table", "--results", str(path)]).output
    assert "| persistence, server, at most 3, at least 2 | 24h | 1 |" in shown


def test_first_plans_are_counted(tmp_path: Path) -> None:
    path, runner = tmp_path / "first_plans.jsonl", CliRunner()
    asked = ["first-plans", "--study", "small", "--starts", "2", "--results", str(path)]
    assert "no first plans" in runner.invoke(backtests.main, ["first-plans-table", "--results", str(path)]).output
    for _ in range(2):  # what is stored is not done again
        done = runner.invoke(backtests.main, asked)
        assert done.exit_code == 0, (done.output, done.exception)
    rows = Store(path, backtests.FirstPlan, {"study": "small"}).rows()
    assert len(path.read_text().splitlines()) == 6
    assert [row["reserve"] for row in rows] == [0.6, 0.8, 0.9] * 2
    assert [row["replays"] for row in rows] == [0] * 3 + [20] * 3
    shown = runner.invoke(backtests.main, ["first-plans-table", "--results", str(path)]).output
    assert "| small | persistence | 2 |" in shown
