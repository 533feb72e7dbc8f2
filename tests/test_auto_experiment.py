"""experiments/auto.py on the smallest of what it does, and its fast trainer against `slackwater.train`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import slackwater as sw

FOLDER = Path(__file__).resolve().parents[1] / "experiments"
MODULES = ("auto", "auto_cells", "auto_candidates", "auto_cnn", "auto_sets", "auto_small", "auto_tables")


@pytest.fixture(scope="module")
def auto() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import auto
        import auto_candidates
        import auto_cells
        import auto_cnn
        import auto_small
        import auto_tables

        yield SimpleNamespace(
            commands=auto,
            candidates=auto_candidates,
            cells=auto_cells,
            cnn=auto_cnn,
            small=auto_small,
            tables=auto_tables,
        )
    finally:
        sys.path.remove(str(FOLDER))
        for name in MODULES:
            sys.modules.pop(name, None)


def cells(auto: Any, *rules: str, **other: Any) -> list[Any]:
    return [auto.cells.Cell(task="digits", hours=3, end=8, steps=3, rule=rule, **other) for rule in rules]


@pytest.mark.parametrize("rule", ["stride", "ufedavg", "memory:0.8"])
def test_the_fast_trainer_is_algorithm_1(auto: Any, rule: str) -> None:
    (cell,) = cells(auto, rule, beta=0.1)
    plan = auto.cells.Maker("typical").plan(cell)
    task = auto.small.small_task("digits", None, cell.beta, cell.seed)
    slow = sw.train(plan, task, aggregator=rule, local_steps=cell.steps, lr=cell.lr, seed=cell.seed, threads=1)
    run = auto.small.Run(rule=auto.candidates.make(rule, plan), seed=cell.seed)
    beside = auto.small.Run(rule=auto.candidates.make("fedavg", plan), seed=1)
    tasks = {0: task, 1: auto.small.small_task("digits", None, cell.beta, 1)}
    fast, _ = auto.small.train(plan, tasks, [run, beside], local_steps=cell.steps)
    assert fast.accuracy == pytest.approx(slow.accuracy, abs=0.006)
    assert fast.worst_client == pytest.approx(slow.worst_client_accuracy, abs=0.02)


def test_cells_are_stored_and_not_trained_again(auto: Any, tmp_path: Path) -> None:
    store, maker = auto.cells.Store(tmp_path / "cells.jsonl"), auto.cells.Maker("typical")
    wanted = cells(auto, "stride", "fedavg")
    assert sum(len(rows) for rows in auto.cells.train_cells(wanted, store, maker, None)) == 2
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell": {"hou')  # killed while writing
    again = auto.cells.Store(tmp_path / "cells.jsonl")
    assert list(auto.cells.train_cells(wanted, again, maker, None)) == []
    assert again.rows == store.rows
    more = list(auto.cells.train_cells(cells(auto, "mifa"), again, maker, None))
    assert len(more) == 1
    assert len(auto.cells.Store(tmp_path / "cells.jsonl").rows) == 3


@pytest.mark.parametrize(
    "rule",
    ["mem:0.9+p=0.5+slots", "mem:0.9+even", "mem:0.9+q=0.5+cap=0.5", "mem:0.9+own=0.5+r=0.5", "mem:0.9+exp=0.5+clip",
     "mem:0.9+norm=1+fresh+throughout", "mem:0.9+norm=1+clip+unit", "models:0.9", "awe:5", "given:1", "memory:0.9+mom=0.5",
     "fedavg+vel=0.5", "memory+step=1.3+fade=0.5", "echo+ahead"],
)  # fmt: skip
def test_every_kind_of_candidate_trains(auto: Any, rule: str, tmp_path: Path) -> None:
    (rows,) = auto.cells.train_cells(
        cells(auto, rule), auto.cells.Store(tmp_path / "x"), auto.cells.Maker("typical"), None, others=True
    )
    assert rows[0]["status"] == "trained"
    assert 0 < rows[0]["accuracy"] <= 1


def test_stride_is_the_candidate_it_came_from(auto: Any) -> None:
    plan = auto.cells.Maker("typical").plan(cells(auto, "stride")[0])
    task = auto.small.small_task("digits", None, 0.5, 0)
    runs = [
        auto.small.Run(rule=auto.candidates.make(rule, plan), seed=0) for rule in ("stride", "mem:0.95+norm=1+clip")
    ]
    ours, candidate = auto.small.train(plan, {0: task}, runs, local_steps=3)
    assert ours.accuracy == pytest.approx(candidate.accuracy, abs=0.003)


def test_commands(auto: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "cells.jsonl")
    monkeypatch.setattr(auto.commands, "SETS", {"small": lambda maker, store: cells(auto, "stride", "ufedavg")})
    run = CliRunner().invoke(auto.commands.main, ["run", "small", "--data", "typical", "--store", path])
    assert run.exit_code == 0, (run.output, run.exception)
    again = CliRunner().invoke(auto.commands.main, ["run", "small", "--data", "typical", "--store", path])
    assert "trained 0 cells" in again.stderr
    shown = CliRunner().invoke(auto.commands.main, ["table", "collapse", "rules", "--store", path])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "| rule | end times | lowest |" in shown.stdout
    wrong = CliRunner().invoke(auto.commands.main, ["run", "nothing", "--data", "typical", "--store", path])
    assert wrong.exit_code != 0
    assert "There is no set 'nothing'" in wrong.output


def test_the_confirmation_with_the_cnn_can_be_started(auto: Any, tmp_path: Path) -> None:
    small = ["--task", "digits", "--budgets", "3", "--seeds", "0", "--local-steps", "1", "--cells", str(tmp_path)]
    small += ["--grid", "10,20,20/2", "--grid-seeds", "0,1"]
    shown = CliRunner().invoke(auto.cnn.main, [*small, "--paper-cells", str(tmp_path / "none")])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "| T | no slack | paper's best cell | of | our best cell | of | echo | of |" in shown.stdout
    assert "t_ft=1; of 2 |" in shown.stdout
    assert len(list(tmp_path.glob("*_echo_*.json"))) == 7
    assert len(list(tmp_path.glob("*_s20_ft2_*_echo_*.json"))) == 2


def test_the_papers_method_is_chosen_on_seed_0_and_shown_on_the_others(auto: Any, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    small = ["--task", "digits", "--budgets", "3", "--seeds", "0,1", "--local-steps", "1", "--cells", str(tmp_path)]
    shown = CliRunner().invoke(auto.cnn.main, [*small, "--paper", "--paper-cells", str(theirs)])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "; of 6 |" in shown.stdout
    (other,) = (json.loads(path.read_text()) for path in theirs.glob("*seed1.json"))
    assert f"| {100 * other['accuracy']:.2f} (1), worst" in shown.stdout


def test_another_skew_has_cells_of_its_own(auto: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto.cnn, "STORE", tmp_path / "auto" / "cells.jsonl")
    small = ["--task", "digits", "--budgets", "3", "--seeds", "0", "--local-steps", "1"]
    for beta in ("0.5", "1000"):
        assert CliRunner().invoke(auto.cnn.main, [*small, "--beta", beta]).exit_code == 0
    usual, even = (
        json.loads(next((tmp_path / "auto" / name).glob("*.json")).read_text()) for name in ("cnn", "cnn_beta1000")
    )
    assert (usual["cell"], usual["beta"], even["beta"]) == (even["cell"], 0.5, 1000.0)
    assert usual["accuracy"] != even["accuracy"]


def test_spearman(auto: Any) -> None:
    assert auto.tables.spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert auto.tables.spearman([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    assert auto.tables.spearman([(1, 1), (2, 1), (3, 2), (4, 2)]) == pytest.approx(0.894, abs=1e-3)
