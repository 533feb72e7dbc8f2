"""`slackwater plan --planner auto`: what it shows and what it saves, and that docs/research/auto.md runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import slackwater as sw
from slackwater.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "research" / "auto.md"
SCENARIO = """
start = 2026-01-10T00:00:00Z
rounds = 4
slack = 12
budget_kg = 0.5

[[client]]
name = "lyon"
zone = "FR"
power_w = 300

[[client]]
name = "koeln"
zone = "DE"
power_w = 300
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def test_the_choice_is_shown_and_saved(scenario: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["plan", str(scenario), "--details", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "Recommended: aggregator echo (end" in done.stdout
    saved = sw.Plan.load(tmp_path / "run")
    assert saved.recommended is not None
    assert saved.recommended.settings["end"] == saved.end
    assert (
        " ".join(saved.recommended.why).split() == done.stdout.split()[-len(" ".join(saved.recommended.why).split()) :]
    )


def test_json_has_it(scenario: Path) -> None:
    done = CliRunner().invoke(cli, ["plan", str(scenario), "--json"])
    assert json.loads(done.stdout)["recommended"]["aggregator"] == "echo"
    without = CliRunner().invoke(cli, ["plan", str(scenario), "--paper", "--json"])
    assert "recommended" not in json.loads(without.stdout)


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(snippet, {})
    assert capsys.readouterr().out.startswith("echo ")
