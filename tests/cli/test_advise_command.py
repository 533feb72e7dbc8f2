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


def test_the_line_of_the_scenarios_own_pair_has_the_figures_of_plan(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    told = json.loads(advise(tmp_path, "--slack", "20", "--json"))
    assert not any(row["own"] for row in told["rows"])  # its slack is 90
    told = json.loads(advise(tmp_path, "--slack", "90", "--budget", "3", "--json"))
    plan = json.loads(CliRunner().invoke(cli, ["plan", str(scenario), "--json"]).stdout)
    (row,) = told["rows"]
    assert row["own"]
    assert row["emissions_kg"] == plan["emissions_kg"]
    (line,) = json.loads(CliRunner().invoke(cli, ["compare", str(scenario), "--json"]).stdout)["points"]
    assert (line["emissions_kg"], line["saved_kg"]) == (row["emissions_kg"], row["saved_kg"])
    assert (line["slots"], line["remaining_error"]) == (row["slots"], row["remaining_error"])


def test_a_deadline_is_on_the_scenarios_clock(tmp_path: Path) -> None:
    advise(tmp_path, "--slack", "0", "--budget", "2")
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('time_zone = "Europe/Paris"\n' + scenario.read_text())
    shown = advise(tmp_path, "--deadline", "2022-01-02T09:00", "--budget", "2")
    assert "slack 22: finish by Sun 02 Jan 2022, 09:00 Europe/Paris" in shown
    (row,) = json.loads(advise(tmp_path, "--deadline", "2022-01-02T09:00", "--budget", "2", "--json"))["rows"]
    assert row["finish_by"] == "2022-01-02T08:00Z"


def test_a_line_has_slots_and_what_the_budget_pays_without_slack(tmp_path: Path) -> None:
    shown = advise(tmp_path, "--slack", "20", "--budget", "2")
    (row,) = json.loads(advise(tmp_path, "--slack", "20", "--budget", "2", "--json"))["rows"]
    assert f"{row['slots']} ({row['no_slack_slots']})" in shown
    assert f"{100 * row['remaining_error']:.0f} ({100 * row['no_slack_error']:.0f})" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 100


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    advise(tmp_path, "--slack", "0,12", "--budget", "1,2", "--chart", str(tmp_path / "advice.svg"))
    assert "are enough: error" in (tmp_path / "advice.svg").read_text(encoding="utf-8")
