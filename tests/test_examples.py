"""The examples run as they are, and say what they promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *args: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *args], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    found = re.search(r"accuracy (0\.\d+) with (\d\.\d+) kg", run("my_task.py", folder=tmp_path))
    assert found is not None
    assert float(found[1]) > 0.75
    assert float(found[2]) <= 1.5


def test_cross_device(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    figures = tmp_path_factory.mktemp("out") / "figures.json"
    small = ("--devices", "12", "--devices-per-slot", "3", "--rounds", "4", "--slack", "20", "--local-steps", "2")
    said = run("cross_device.py", *small, "--out", str(figures), folder=tmp_path)
    found = re.search(r"7 regions of 12 devices each, digits: accuracy (0\.\d+)\n(\d\.\d+) of (\d\.\d+) kg", said)
    assert found is not None, said
    assert float(found[1]) > 0.5
    assert float(found[2]) <= float(found[3])
    assert ("stays unbiased" in said) != ("estimate is biased" in said)
    assert json.loads(figures.read_text())["accuracy"] == pytest.approx(float(found[1]), abs=1e-3)
