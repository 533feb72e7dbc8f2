"""The benchmark of re-planning runs, on the smallest of what it does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scripts import REPOSITORY


def test_the_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "replanning.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/replanning.py", "--quick", "--out", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["violations"] == []
    assert [step["at_slot"] for step in result["steps"]] == [0, 12, 24] * 3
    assert len({step["case"] for step in result["steps"]}) == 3
    assert "a step that re-plans" in out.with_suffix(".md").read_text()
