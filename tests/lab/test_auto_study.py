"""The studies of `plan --planner auto` on the smallest of what they do, and their fast trainer against `slackwater.train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import slackwater as sw
from slackwater.lab.store import Store, sweep
from slackwater.lab.studies import auto, auto_cells, auto_cnn, auto_rules, auto_trainer
from slackwater.lab.studies.carbon_to_target import Sources, schedule


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cells(*rules: str, **other: Any) -> list[Any]:
    return [auto_cells.Cell(task="digits", hours=3, end=8, steps=3, rule=rule, **other) for rule in rules]


@pytest.mark.parametrize("rule", ["stride", "ufedavg", "memory:0.8"])
def test_the_fast_trainer_is_algorithm_1(rule: str) -> None:
    (cell,) = cells(rule, beta=0.1)
    plan = auto_cells.Maker("typical").plan(cell)
    task = auto_trainer.small_task("digits", None, cell.beta, cell.seed)
    slow = sw.train(plan, task, aggregator=rule, local_steps=cell.steps, lr=cell.lr, seed=cell.seed, threads=1)
    run = auto_trainer.Run(rule=auto_rules.make(rule, plan), seed=cell.seed)
    beside = auto_trainer.Run(rule=auto_rules.make("fedavg", plan), seed=1)
    tasks = {0: task, 1: auto_trainer.small_task("digits", None, cell.beta, 1)}
    fast, _ = auto_trainer.train(plan, tasks, [run, beside], local_steps=cell.steps)
    assert fast.accuracy == pytest.approx(slow.accuracy, abs=0.006)
    assert fast.worst_client == pytest.approx(slow.worst_client_accuracy, abs=0.02)


def train(wanted: list[Any], path: Path, **other: Any) -> list[dict[str, Any]]:
    store = Store(path, auto_cells.Cell)
    batches = auto_cells.Batches(wanted, store, auto_cells.Maker("typical"), None, **other)
    return list(sweep(wanted, batches.measure, store))


def test_auto_chooses_every_setting_itself() -> None:
    chosen = auto_cells.auto_cell(auto_cells.Maker("typical"), auto_cells.Cell(hours=20))
    assert (chosen.fine_tune, chosen.recall, chosen.alpha) == (3, 10, 0.01)  # none is what a cell has by default
    plan, _ = schedule(Sources(), "mnist-small", "auto", 20)
    assert (plan.end, plan.problem.fine_tune, plan.problem.recall) == (chosen.end, chosen.fine_tune, chosen.recall)


def test_cells_are_stored_and_not_trained_again(tmp_path: Path) -> None:
    path, wanted = tmp_path / "cells.jsonl", cells("stride", "fedavg")
    rows = train(wanted, path)
    assert len(rows) == 2
    with path.open("a") as file:
        file.write('{"hou')  # killed while writing
    assert train(wanted, path) == []
    assert Store(path, auto_cells.Cell).rows() == rows
    assert len(train(cells("mifa"), path)) == 1
    assert len(Store(path, auto_cells.Cell).rows()) == 3


@pytest.mark.parametrize(
    "rule",
    ["mem:0.9+p=0.5+slots", "mem:0.9+even", "mem:0.9+q=0.5+cap=0.5", "mem:0.9+own=0.5+r=0.5", "mem:0.9+exp=0.5+clip",
     "mem:0.9+norm=1+fresh+throughout", "mem:0.9+norm=1+clip+unit", "models:0.9", "awe:5", "given:1", "memory:0.9+mom=0.5",
     "fedavg+vel=0.5", "memory+step=1.3+fade=0.5", "echo+ahead"],
)  # fmt: skip
def test_every_kind_of_candidate_trains(rule: str, tmp_path: Path) -> None:
    rows = train(cells(rule), tmp_path / "x", others=True)
    assert rows[0]["status"] == "trained"
    assert 0 < rows[0]["accuracy"] <= 1


def test_stride_is_the_candidate_it_came_from() -> None:
    plan = auto_cells.Maker("typical").plan(cells("stride")[0])
    task = auto_trainer.small_task("digits", None, 0.5, 0)
    runs = [auto_trainer.Run(rule=auto_rules.make(rule, plan), seed=0) for rule in ("stride", "mem:0.95+norm=1+clip")]
    ours, candidate = auto_trainer.train(plan, {0: task}, runs, local_steps=3)
    assert ours.accuracy == pytest.approx(candidate.accuracy, abs=0.003)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "cells.jsonl")
    monkeypatch.setattr(auto, "SETS", {"small": lambda maker, store: cells("stride", "ufedavg")})
    run = CliRunner().invoke(auto.main, ["run", "small", "--data", "typical", "--results", path])
    assert run.exit_code == 0, (run.output, run.exception)
    again = CliRunner().invoke(auto.main, ["run", "small", "--data", "typical", "--results", path])
    assert "trained 0 cells" in again.stderr
    shown = CliRunner().invoke(auto.main, ["table", "collapse", "rules", "--results", path])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "| rule | end times | lowest |" in shown.stdout
    wrong = CliRunner().invoke(auto.main, ["run", "nothing", "--data", "typical", "--results", path])
    assert wrong.exit_code != 0
    assert "There is no set 'nothing'" in wrong.output


def test_the_confirmation_with_the_cnn_can_be_started(tmp_path: Path) -> None:
    small = ["--task", "digits", "--budgets", "3", "--seeds", "1", "--local-steps", "1"]
    small += ["--results", str(tmp_path / "ours")]
    small += ["--grid", "10,20,20/2", "--grid-seeds", "2"]
    shown = CliRunner().invoke(auto_cnn.main, [*small, "--paper-cells", str(tmp_path / "none")])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "| T | no slack | paper's best cell | of | our best cell | of | echo | of |" in shown.stdout
    assert "t_ft=1; of 2 |" in shown.stdout
    rows = read(tmp_path / "ours")
    assert [row["aggregator"] for row in rows] == ["echo"] * 7
    assert sum((row["end"], row["fine_tune"]) == (20, 2) for row in rows) == 2


def test_the_papers_method_is_chosen_on_seed_0_and_shown_on_the_others(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    small = ["--task", "digits", "--budgets", "3", "--seeds", "2", "--local-steps", "1"]
    small += ["--results", str(tmp_path / "ours")]
    shown = CliRunner().invoke(auto_cnn.main, [*small, "--paper", "--paper-cells", str(theirs)])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "; of 6 |" in shown.stdout
    (other,) = (row for row in read(theirs) if row["seed"] == 1)
    assert f"| {100 * other['accuracy']:.2f} (1), worst" in shown.stdout


def test_another_skew_has_cells_of_its_own(tmp_path: Path) -> None:
    small = ["--task", "digits", "--budgets", "3", "--seeds", "1", "--local-steps", "1"]
    small += ["--results", str(tmp_path / "ours"), "--paper-cells", str(tmp_path / "none")]
    for beta in ("0.5", "1000"):
        assert CliRunner().invoke(auto_cnn.main, [*small, "--beta", beta]).exit_code == 0
    usual, even = read(tmp_path / "ours")
    assert (usual["cell"], usual["beta"], even["beta"]) == (even["cell"], 0.5, 1000.0)
    assert usual["accuracy"] != even["accuracy"]


def test_spearman() -> None:
    assert auto.spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert auto.spearman([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    assert auto.spearman([(1, 1), (2, 1), (3, 2), (4, 2)]) == pytest.approx(0.894, abs=1e-3)
