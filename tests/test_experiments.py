"""The experiments' scripts work, on the smallest of what they do."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scripts import script


def run(module: Any, *args: str) -> Any:
    result = CliRunner().invoke(module.main, args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_aggregation(tmp_path: Path) -> None:
    module, results = script("experiments/aggregation.py"), tmp_path / "aggregation"
    small = ("--task", "digits", "--seeds", "0", "--ends", "5", "--aggregators", "memory", "--local-steps", "2")
    run(module, "run", *small, "--results", str(results))
    cells = rows(results)
    assert {cell["aggregator"] for cell in cells} == {"memory", "no-slack"}
    assert all(0 < cell["accuracy"] <= 1 for cell in cells)
    assert run(module, "run", *small, "--results", str(results)).stderr == "", "what is stored is not done again"
    shown = run(module, "table", "--results", str(results)).stdout
    assert "| memory | " in shown
    assert len(list(csv.DictReader((tmp_path / "aggregation.csv").read_text().splitlines()))) == 2


def test_correlation(tmp_path: Path) -> None:
    module, results = script("experiments/correlation.py"), tmp_path / "correlation"
    small = ("--seeds", "0", "--cells", "HE-TC-SC", "--aggregators", "ufedavg", "--slots", "15", "--local-steps", "1")
    run(module, "run", *small, "--results", str(results))
    cells = rows(results)
    assert sorted(cell["fine_tune"] for cell in cells) == [0, 10]
    assert all(cell["rho_h"] == pytest.approx(1.6) and cell["rho_s"] == pytest.approx(0.46) for cell in cells)
    assert run(module, "run", *small, "--results", str(results)).stderr == ""
    shown = run(module, "table", "--results", str(results)).stdout
    assert "| HE-TC-SC | 1.600 | 0.800 | 0.460 | 0.800 | " in shown
    assert "ufedavg, t_ft=10" in shown
    assert len(list(csv.DictReader((tmp_path / "correlation.csv").read_text().splitlines()))) == 2
    wrong = CliRunner().invoke(module.main, ["run", "--cells", "HE", "--results", str(results)])
    assert "There is no cell 'HE'. There are: HO-TU-SU" in wrong.output
    assert (
        "There are no cells in" in CliRunner().invoke(module.main, ["table", "--results", str(tmp_path / "x")]).output
    )


def test_the_window_is_full_and_the_rest_is_the_process(tmp_path: Path) -> None:
    module = script("experiments/correlation.py")
    (process,) = (one for one in module.cells(7) if one.name == "HE-TC-SU")
    with_window, without = (module.schedule(process, 30, fine_tune, 3) for fine_tune in (10, 0))
    assert with_window.matrix[:, 20:].all()
    assert np.array_equal(with_window.matrix[:, :20], without.matrix[:, :20])
    assert not without.matrix[:, 20:].all()
    assert list(with_window.window) == list(range(20, 30))
