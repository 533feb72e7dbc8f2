"""The soak's tables; the soak itself takes an hour, and its parts are what the other tests here use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from scripts import script

SAME = {
    "slots": 22, "slot_seconds": 30.0, "rounds": 22, "rounds_in_window": 2, "supernodes": 7, "trained": 60, "lost": 0,
    "spent_kg": 1.0, "budget_kg": 1.5, "largest_difference": 1e-8,
}  # fmt: skip


def cell(kind: str, recovered_s: float | None, exact: bool = True) -> dict[str, Any]:
    return {"kind": kind, "recovered_s": recovered_s, "lost": 1, "exact": exact, "slot_seconds": 25.0}


def test_tables_go_between_the_marks_and_can_be_written_again(tmp_path: Path) -> None:
    module, page, results = script("experiments/soak.py"), tmp_path / "page.md", tmp_path / "soak.json"
    page.write_text("# Reliability\n\n<!-- Filled in from the soak. -->\n\nThe end.\n")
    faults = [cell("node", 60.0), cell("node", 100.0), cell("disk", None, exact=False)]
    results.write_text(json.dumps({"same": SAME, "faults": faults}))
    for _ in range(2):
        done = CliRunner().invoke(module.main, ["table", "--results", str(results), "--page", str(page)])
        assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("# Reliability\n\n<!-- soak")
    assert text.endswith("\n\nThe end.\n")
    assert text.count("| SIGKILL of a SuperNode in training | 2 | 2 | 2 | 1 | 80 s (100 s) |") == 1
    assert "| 1 | 0 | 0 | 1 | - |" in text
    assert "differs from that of the same run in process by at most 1.0e-08" in text


def test_every_kind_of_fault_can_be_done() -> None:
    module = script("experiments/soak.py")
    assert all(callable(getattr(module._Session, f"_do_{kind.replace('-', '_')}")) for kind in module.KINDS)
