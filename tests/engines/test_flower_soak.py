"""The soak's tables; the soak itself takes an hour, and its parts are what the other tests here use."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripts import REPOSITORY

SAME = {
    "slots": 22, "slot_seconds": 30.0, "rounds": 22, "rounds_in_window": 2, "supernodes": 7, "trained": 60, "lost": 0,
    "spent_kg": 1.0, "budget_kg": 1.5, "largest_difference": 1e-8,
}  # fmt: skip


def cell(kind: str, recovered_s: float | None, exact: bool = True) -> dict[str, Any]:
    return {"kind": kind, "recovered_s": recovered_s, "lost": 1, "exact": exact, "slot_seconds": 25.0}


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(REPOSITORY)  # the study uses this folder's modules
    return import_module("slackwater.lab.studies.soak")


def test_tables_go_between_the_marks_and_can_be_written_again(soak: Any, tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "soak.jsonl"
    page.write_text("# Reliability\n\n<!-- Filled in from the soak. -->\n\nThe end.\n")
    faults = [cell("node", 60.0), cell("node", 100.0), cell("disk", None, exact=False)]
    rows = [{"part": "same", **SAME}, *({"part": "faults", **fault} for fault in faults)]
    results.write_text("".join(json.dumps({"at": str(number), **row}) + "\n" for number, row in enumerate(rows)))
    for _ in range(2):
        done = CliRunner().invoke(soak.main, ["table", "--results", str(results), "--page", str(page)])
        assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("# Reliability\n\n<!-- soak")
    assert text.endswith("\n\nThe end.\n")
    assert text.count("| SIGKILL of a SuperNode in training | 2 | 2 | 2 | 1 | 80 s (100 s) |") == 1
    assert "| 1 | 0 | 0 | 1 | - |" in text
    assert "differs from the same run in process by at most 1.0e-08" in text


def test_every_kind_of_fault_can_be_done(soak: Any) -> None:
    assert all(callable(getattr(soak._Session, f"_do_{kind.replace('-', '_')}")) for kind in soak.KINDS)
