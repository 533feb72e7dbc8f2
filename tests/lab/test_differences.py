"""The study of what explains differences from the paper's tables: each change, and a whole small sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from slackwater.lab.paper.setting import Source
from slackwater.lab.studies import differences
from slackwater.lab.studies.differences import CHANGES, ITEMS, Cell, Item

CELL = Cell(item="window", fine_tune=3, hours=4, end=10, alpha=0.1, change="none", lr=0.1, seed=0)


def test_each_change_changes_one_thing() -> None:
    plan = differences.paper_cell(CELL).schedule(Source())
    _, start = differences.changed(plan, CELL)
    assert start == {"aggregator": "ufedavg", "local_steps": 45, "batch_size": 32, "lr": 0.1}
    expected = {
        "normalised": {"aggregator": "normalised"}, "fedavg": {"aggregator": "fedavg"}, "no-decay": {"weight_decay": 0.0},
        "epoch": {"local_epochs": 1, "batch_size": 128}, "momentum": {}, "over-T": {"server_lr": 4 / 11},
    }  # fmt: skip
    for change, changed in expected.items():
        same, how = differences.changed(plan, replace(CELL, change=change))
        assert same is plan
        assert how == start | changed


def test_u_fedavg_in_the_window_keeps_the_schedule_and_counts_pi_over_all_slots() -> None:
    plan = differences.paper_cell(CELL).schedule(Source())
    other, _ = differences.changed(plan, replace(CELL, change="window"))
    assert np.array_equal(other.matrix, plan.matrix)
    assert len(plan.window) == 3
    assert len(other.window) == 0
    assert other.before == plan.before + 3


def test_the_cells_on_fairness_are_those_of_the_paper_at_two_kilograms() -> None:
    for _, hours, _, alpha in ITEMS["alpha"].keys:
        cell = Cell(item="alpha", fine_tune=0, hours=hours, end=0, alpha=alpha, change="more", lr=0.1, seed=1)
        theirs = differences.paper_cell(cell)
        assert (theirs.budget_kg, theirs.alpha, theirs.aggregator, theirs.seed) == (2.0, alpha, "fedavg", 1)


def test_a_small_sweep_continues_and_shows_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    changes = ("none", "over-T", "momentum", "epoch")
    monkeypatch.setitem(
        ITEMS, "window", Item(title="small", keys=((3, 4, 10, 0.1),), changes=changes, rates=(0.1, 0.01))
    )
    results = tmp_path / "differences.jsonl"
    asked = ["run", "--task", "digits", "--items", "window", "--seeds", "1", "--results", str(results)]
    first = CliRunner().invoke(differences.main, asked)
    assert first.exit_code == 0, first.output
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert {row["change"] for row in rows} == set(changes)
    assert len({row["accuracy"] for row in rows}) > 4  # the changes act
    assert CliRunner().invoke(differences.main, asked).output == ""
    assert len(results.read_text().splitlines()) == len(rows) == 8
    shown = CliRunner().invoke(differences.main, ["table", "--items", "window", "--results", str(results)]).output
    assert "| the paper | 91.09 |  |" in shown
    for change in changes:
        assert f"| {CHANGES[change]} | " in shown
    unknown = CliRunner().invoke(differences.main, ["table", "--items", "nothing"])
    assert "There is no item 'nothing'. There are: window, slack, alpha." in unknown.output
