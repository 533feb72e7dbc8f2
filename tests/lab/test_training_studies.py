"""The studies that train by `slackwater.train`, on the smallest of what they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click import ClickException
from click.testing import CliRunner

from slackwater.lab.__main__ import main
from slackwater.lab.studies import correlation


def run(*args: str) -> Any:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_aggregation(tmp_path: Path) -> None:
    results = tmp_path / "aggregation.jsonl"
    small = ("--task", "digits", "--seeds", "1", "--ends", "5", "--aggregators", "memory", "--local-steps", "2")
    run("aggregation", "run", *small, "--results", str(results))
    cells = rows(results)
    assert {cell["aggregator"] for cell in cells} == {"memory", "no-slack"}
    assert all(0 < cell["accuracy"] <= 1 for cell in cells)
    assert run("aggregation", "run", *small, "--results", str(results)).stderr == "", "what is stored is not done again"
    shown = run("aggregation", "table", "--results", str(results)).stdout
    assert "| memory | " in shown


def test_missing_data_is_answered_with_a_sentence(tmp_path: Path) -> None:
    asked = ["aggregation", "run", "--task", "mnist", "--task-data", str(tmp_path / "nothing"), "--seeds", "1"]
    found = CliRunner().invoke(main, [*asked, "--results", str(tmp_path / "x.jsonl")])
    assert found.exit_code == 2
    assert found.stderr.startswith(f"error: data '{tmp_path / 'nothing'}' is not a folder. Name a folder with")
    assert "Traceback" not in found.stderr


def test_correlation(tmp_path: Path) -> None:
    results = tmp_path / "correlation.jsonl"
    small = ("--seeds", "1", "--cells", "HE-TC-SC", "--aggregators", "ufedavg", "--slots", "15", "--local-steps", "1")
    run("correlation", "run", *small, "--results", str(results))
    cells = rows(results)
    assert sorted(cell["fine_tune"] for cell in cells) == [0, 10]
    assert all(cell["rho_h"] == pytest.approx(1.6) and cell["rho_s"] == pytest.approx(0.46) for cell in cells)
    assert run("correlation", "run", *small, "--results", str(results)).stderr == ""
    shown = run("correlation", "table", "--results", str(results)).stdout
    assert "| HE-TC-SC | 1.600 | 0.800 | 0.460 | 0.800 | " in shown
    assert "ufedavg, t_ft=10" in shown
    wrong = CliRunner().invoke(main, ["correlation", "run", "--cells", "HE", "--results", str(results)])
    assert "There is no cell 'HE'. There are: HO-TU-SU" in wrong.output
    assert (
        "There are no cells in"
        in CliRunner().invoke(main, ["correlation", "table", "--results", str(tmp_path / "x")]).output
    )


def test_the_window_is_full_and_the_rest_is_the_process(tmp_path: Path) -> None:
    process = correlation.PROCESSES["HE-TC-SU"]
    with_window, without = (correlation.random_plan(process, 30, fine_tune, 3) for fine_tune in (10, 0))
    assert with_window.matrix[:, 20:].all()
    assert np.array_equal(with_window.matrix[:, :20], without.matrix[:, :20])
    assert not without.matrix[:, 20:].all()
    assert list(with_window.window) == list(range(20, 30))


def test_studies_are_listed_and_a_wrong_one_is_said() -> None:
    shown = run("--help").stdout
    assert "auto-cnn" in shown
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


def test_a_study_on_the_tests_says_where_to_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.lab.studies import use_tests

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClickException, match="Start it from the top of the repository"):
        use_tests("world")
