"""`slackwater advise`: the recommended pair first, and the same figures as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from slackwater.cli.main import cli


def advise(folder: Path, *options: str) -> str:
    scenario = folder / "scenario.toml"
    if not scenario.exists():
        CliRunner().invoke(cli, ["init", str(scenario)], catch_exceptions=False)
    done = CliRunner().invoke(cli, ["advise", str(scenario), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_advise_recommends_one_pair_and_says_why(tmp_path: Path) -> None:
    told = json.loads(advise(tmp_path, "--slack", "0,12", "--budget", "1,2", "--json"))
    assert len(told["rows"]) + told["infeasible"] == 4
    assert told["recommended"] in told["rows"]
    assert told["synthetic"] is True
    assert told["why"].startswith(f"{told['recommended']['budget_kg']:.3g} kg")


def test_the_table_starts_with_the_recommended_pair_and_calls_the_error_a_ranking_score(tmp_path: Path) -> None:
    shown = advise(tmp_path, "--slack", "0,12", "--budget", "1,2")
    assert shown.lstrip().startswith("Recommended: ")
    assert "a ranking score and not an accuracy" in shown
    assert "synthetic" in shown


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    advise(tmp_path, "--slack", "0,12", "--budget", "1,2", "--chart", str(tmp_path / "advice.svg"))
    assert "are enough: error" in (tmp_path / "advice.svg").read_text(encoding="utf-8")
