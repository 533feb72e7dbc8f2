"""Slot lengths: auto is never below the baseline in the stored cells, the page shows them, and a small sweep runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.lab.store import Store
from slackwater.lab.studies import slot_lengths
from slackwater.lab.studies.slot_lengths import AUTO, HOURS, MINUTES, NO_SLACK, TASKS, Cell

REPOSITORY = Path(__file__).parents[2]
STORED = REPOSITORY / "experiments" / "results" / "slot_lengths.jsonl"


def test_auto_is_never_below_the_baseline_and_the_page_says_so() -> None:
    store = Store(STORED, Cell)
    ours = [cell for cell, _ in store.cells() if cell.method == AUTO]
    assert len(ours) == len(MINUTES) * len(HOURS) * len(TASKS) * 3
    for cell in ours:
        assert store.accuracy(cell) > store.accuracy(replace(cell, method=NO_SLACK))
    page = (REPOSITORY / "docs" / "research" / "auto.md").read_text(encoding="utf-8")
    assert "\n".join(slot_lengths.report(store)) in page


def test_a_small_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_lengths, "MINUTES", (120,))
    monkeypatch.setattr(slot_lengths, "HOURS", (3,))
    monkeypatch.setattr(slot_lengths, "SLACK", 10)
    monkeypatch.setattr(slot_lengths, "LOCAL_STEPS", 2)
    slot_lengths.schedule.cache_clear()
    where = ["--results", str(tmp_path / "cells.jsonl")]
    done = CliRunner().invoke(slot_lengths.main, ["run", "--tasks", "digits", "--seeds", "1", *where])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(slot_lengths.main, ["table", *where]).output
    assert "| Digits 8 x 8 | 3 | 120 |" in shown
    slot_lengths.schedule.cache_clear()
