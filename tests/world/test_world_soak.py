"""The week in the test world, at its smallest, and the table that is made of it."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripts import REPOSITORY


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(REPOSITORY)  # the study uses this folder's modules
    return import_module("slackwater.lab.studies.world")


def test_a_short_run_is_stored_and_becomes_a_row(world: Any, tmp_path: Path) -> None:
    results, page = tmp_path / "world.jsonl", tmp_path / "page.md"
    page.write_text("# Reliability\n")
    small = ["run", "--slots", "6", "--sites", "2", "--kinds", "missed", "--results", str(results)]
    for _ in range(2):
        done = CliRunner().invoke(world.main, small)
        assert done.exit_code == 0, (done.output, done.exception)
    assert done.stderr == "", "what is stored is not done again"
    (cell,) = (json.loads(line) for line in results.read_text().splitlines())
    assert (cell["unsettled"], cell["exact"], cell["status"]) == (0, True, "done")
    assert cell["spent_when_done_kg"] <= cell["budget_kg"]
    for _ in range(2):
        done = CliRunner().invoke(world.main, ["table", "--results", str(results), "--page", str(page)])
        assert done.exit_code == 0, (done.output, done.exception)
    text = page.read_text()
    assert text.startswith("# Reliability\n\n## A week in the test world\n\n<!-- world")
    row = f"| electricitymaps | kill -9, and a restart 5 slots later | {cell['rounds']} | {cell['spent_kg']:.2f} of "
    assert text.count(row) == 1


def test_every_fault_of_the_table_happens(world: Any) -> None:
    for kind in world.KINDS:
        assert bool(world._faults(kind, 168) or world._script(kind, 168)) == (kind != "none")
    assert {fault.kind for fault in world._faults("all", 168)} == set(world.ANSWERS)
    assert [event.what for event in world._script("all", 168)] == ["close", "open", "kill", "kill", "kill", "kill"]
