"""Smoke test of the dashboard's benchmark: it runs and says what it measured. Times are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def test_it_measures_and_reports(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "dashboard.json"
    command = [
        sys.executable,
        "benchmarks/dashboard.py",
        "--clients",
        "3",
        "--moves",
        "4",
        "--settles",
        "1",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert 100_000 < result["page_bytes"] < 130_000, "the whole page, compressed"
    (fleet,) = result["fleets"]
    assert len(fleet["dragging_ms"]) == 4
    assert all(ms > 0 for key in ("dragging_ms", "from_rest_ms", "joint_ms", "planned_ms") for ms in fleet[key])
    text = out.with_suffix(".md").read_text()
    for part in ("3 x 336", "dragging", "joint optimum", "Chromium"):
        assert part in text
