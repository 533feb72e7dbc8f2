"""slackwater backtest: a table, a picture, files, and sentences for what is wrong."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from slackwater.cli.main import cli

SCENARIO = """
start = 2022-06-01T00:00:00Z
rounds = 3
slack = 9
budget_kg = 1.0
{more}
[[client]]
name = "a"
zone = "FR"
power_w = 300
[[client]]
name = "b"
zone = "DE"
power_w = 300
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return _scenario(tmp_path)


def _scenario(folder: Path, more: str = "") -> Path:
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(more=more))
    return path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["backtest", *map(str, arguments)], prog_name="slackwater")


def _archive(folder: Path, days: int = 20) -> Path:
    """What a provider issued once a day for 48 hours, and what came."""
    start = datetime(2023, 5, 1, tzinfo=UTC)
    folder.mkdir()
    for zone, level in (("FR", 60.0), ("DE", 400.0)):
        lines = ["issued_at_utc,valid_at_utc,forecast_g_per_kwh,actual_g_per_kwh"]
        for day in range(days):
            issued = start + timedelta(days=day)
            for hour in range(48 if day < days - 1 else 24):
                at = issued + timedelta(hours=hour)
                actual = level * (1 + 0.3 * np.sin(at.hour / 24 * 2 * np.pi))
                lines.append(f"{issued:%Y-%m-%dT%H:%MZ},{at:%Y-%m-%dT%H:%MZ},{1.1 * actual:.2f},{actual:.2f}")
        (folder / f"{zone}_test_forecast.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_network_and_evaluation_are_in_the_costs(tmp_path: Path) -> None:
    budgets = []
    for more in ("", "model_mb = 1500\nnetwork_kwh_per_gb = 0.1\nevaluation_share = 0.25"):
        arguments = ["--repeat", 1, "--forecast", "persistence", "--replan", "never", "--budget-rounds", 3, "--json"]
        done = _run(_scenario(tmp_path, more), *arguments)
        assert done.exit_code == 0, (done.output, done.exception)
        (row,) = json.loads(done.stdout)["runs"]
        budgets.append(row["budget_kg"])
    assert budgets[1] == pytest.approx(budgets[0] * (1 + 0.25 + 0.3 / 0.3))  # 0.3 kWh sent beside 0.3 kWh of training


def test_a_table_a_picture_and_files(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, chart = tmp_path / "out", tmp_path / "picture.png"
    ways = ["--forecast", "persistence,missing", "--replan", "6h,never", "--budget-rounds", 3]
    done = _run(scenario, "--repeat", 2, *ways, "--out", out, "--chart", chart)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "persistence" in done.stdout
    assert "never" in done.stdout
    assert "synthetic intensity" in done.stdout
    with (out / "backtests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["forecast"] for row in rows] == ["persistence"] * 4 + ["missing"] * 4
    for row in rows:
        assert float(row["realised_kg"]) <= float(row["budget_kg"]) * (1 + 1e-9) or int(row["breaches"])
    assert {one["replan_slots"] for one in json.loads((out / "summary.json").read_text())["summary"]} == {6, None}
    assert chart.stat().st_size > 10_000


def test_json_has_every_run_with_its_messages(scenario: Path) -> None:
    done = _run(scenario, "--repeat", 1, "--forecast", "missing", "--start", "2022-03-01T05:00Z", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    data = json.loads(done.stdout)
    (run,) = data["runs"]
    assert run["start"] == "2022-03-01T05:00Z"
    assert "there is no forecast" in run["messages"][0]
    assert data["synthetic"] is True
    assert data["summary"][0]["runs"] == 1
    assert data["settings"]["margin"] == 1.5, "the bound is stated"


def test_a_providers_forecasts_are_settled_with_their_own_actuals(scenario: Path, tmp_path: Path) -> None:
    folder = _archive(tmp_path / "forecasts")
    done = _run(
        scenario, "--repeat", 2, "--forecast", "file", "--forecasts", folder, "--actuals", "forecasts", "--json"
    )
    assert done.exit_code == 0, (done.output, done.exception)
    data = json.loads(done.stdout)
    assert data["synthetic"] is False
    assert [run["start"][:10] for run in data["runs"]] == ["2023-05-15", "2023-05-20"]


def test_a_start_that_no_schedule_fits_is_named(scenario: Path) -> None:
    scenario.write_text(scenario.read_text().replace("budget_kg = 1.0", "budget_kg = 0.001"))
    done = _run(scenario, "--repeat", 1)
    assert done.exit_code == 3
    assert done.stderr.startswith(
        "error: The run from 2022-01-15T00:00Z is infeasible even with perfect foresight: No schedule fits 0.001 kg: at its "
        "cheapest (s=7, ending 2022-01-15T10:00Z) the fixed part costs 0.144930 kg "
    )


def test_a_deadline_becomes_the_same_slack_at_every_start(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.format(more="").replace("slack = 9", "deadline = 2022-06-01T12:00:00Z"))
    done = _run(path, "--repeat", 1, "--forecast", "oracle", "--replan", "never", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)["runs"][0]["stop"] <= 12


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--forecast", "crystal-ball"],
            "There is no forecast 'crystal-ball'. Choose one of blend, error-model, oracle, ",
        ),
        (["--forecast", "file"], "The forecast 'file' needs the provider's forecasts: give --forecasts FOLDER."),
        (["--actuals", "forecasts"], "--actuals forecasts needs forecast files. Name them with --forecasts FOLDER."),
        (["--forecasts", "nowhere"], "nowhere does not exist. Name forecasts with --forecasts FOLDER."),
        (
            ["--replan", "soon"],
            "Invalid value for '--replan': 'soon' in 'soon' is not a period like 24h, 6h or 1h, or never.",
        ),
        (["--replan", "0h"], "'0h' in '0h' is not a period like 24h, 6h or 1h, or never."),
        (["--reserve", "0.2"], "reserve is 0.2; give a probability from 0.5 to below 1, or 0 to keep nothing back."),
        (["--bound", "0.5"], "The bound's margin is 0.5; give a factor from 1 to 10, like 1.5."),
        (
            ["--start", "2022-01-03T00:00Z"],
            "The first start 2022-01-03T00:00Z is too early: the actuals begin 2022-01-01T00:00Z, and forecasts and upper "
            "bounds need 14 days before a run. Start at 2022-01-15T00:00Z or later.",
        ),
        (["--budget-rounds", "99"], "--budget-rounds 99 is longer than the horizon of 12 slots."),
    ],
)
def test_what_is_wrong_is_said(scenario: Path, arguments: list[str], sentence: str) -> None:
    done = _run(scenario, "--repeat", 1, *arguments)
    assert done.exit_code in (1, 2)
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("slot_minutes = 240", "--replan 6h is not a whole number of slots of 240 minutes."),
        ('data = {source = ["neso"]}', "Providers need a period. Give --start TIME, or use files with --data FOLDER."),
    ],
)
def test_a_scenario_that_cannot_be_run_is_refused(tmp_path: Path, more: str, sentence: str) -> None:
    done = _run(_scenario(tmp_path, more), "--repeat", 1)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {sentence}")
