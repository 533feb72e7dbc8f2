"""The study of emissions to a target: its definition, a whole small sweep, and what a plan may see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.lab.studies import carbon_targets, carbon_to_target
from slackwater.lab.studies.carbon_to_target import Cell, Sources, schedule
from slackwater.training import tasks


def row(kg: float, score: float, curve: list[list[float]]) -> dict[str, object]:
    return {"status": "trained", "kg": kg, "score": score, "hours_taken": 10.0 * kg, "curve": curve}


def test_the_target_of_auroc_is_a_share_of_the_gain() -> None:
    assert carbon_targets.target(0.8, 0.95, "accuracy") == pytest.approx(0.76)
    assert carbon_targets.target(0.8, 0.5, "AUROC") == pytest.approx(0.65)


def test_emissions_to_a_target_are_the_least_over_rounds_and_budgets() -> None:
    runs = [row(1.0, 0.5, [[1, 0.5, 0.4], [2, 1.0, 0.5]]), row(2.0, 0.9, [[1, 1.9, 0.2], [2, 2.0, 0.9]])]
    hours, kg = carbon_targets.to_target(runs, 0.7) or (0.0, 0.0)
    assert (hours, kg) == pytest.approx((15.0, 1.5))  # across budgets: half-way from 0.5 to 0.9
    assert carbon_targets.to_target(runs, 0.45) == pytest.approx((1.5, 0.75))  # within the first run
    assert carbon_targets.to_target(runs, 0.95) is None


def test_it_tunes_trains_continues_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carbon_to_target, "RATES", (0.1,))
    monkeypatch.setattr(carbon_to_target, "LOCAL_STEPS", 3)
    monkeypatch.setattr(carbon_to_target, "FULL_HOURS", 6)
    results = str(tmp_path / "cells.jsonl")
    asked = ["--tasks", "digits", "--results", results]
    few = ["--methods", "auto,no-slack,threshold", "--budgets", "3", "--seeds", "1"]
    done = CliRunner().invoke(carbon_to_target.main, ["run", *asked, *few])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in Path(results).read_text().splitlines()]
    assert (
        len(rows) == 6 + 4
    )  # five settings and full training on the tuning seed, then three methods and full training
    assert {r["seed"] for r in rows} == {carbon_to_target.TUNING_SEED, 0}
    assert all(r["kg"] <= max(r["hours"], 3) for r in rows)
    again = CliRunner().invoke(carbon_to_target.main, ["run", *asked, *few])
    assert again.exit_code == 0
    assert len(Path(results).read_text().splitlines()) == len(rows)
    shown = CliRunner().invoke(carbon_to_target.main, ["table", *asked]).output
    assert "| Digits 8 x 8 | ours (auto) |" in shown
    assert "not run" in shown
    picture = tmp_path / "picture.png"
    drawn = CliRunner().invoke(carbon_to_target.main, ["chart", *asked, "--out", str(picture)])
    assert drawn.exit_code == 0, drawn.output
    assert picture.stat().st_size > 0


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    done = CliRunner().invoke(carbon_to_target.main, ["run", "--tasks", "nothing"])
    assert done.exit_code == 1
    assert "There is no task 'nothing'. There are: mnist-small" in done.output


def test_autos_schedule_is_made_without_any_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a schedule must not read the task")

    for name in ("make", "make_for"):
        monkeypatch.setattr(tasks, name, refuse)
    monkeypatch.setattr(Sources, "load", refuse)
    schedule.cache_clear()
    cell = Cell(task="digits", method="auto", hours=3, lr=0.1, seed=0)
    plan, aggregator = schedule(Sources(), cell.task, cell.method, cell.hours)
    assert plan.matrix.any()
    assert aggregator == plan.aggregator
