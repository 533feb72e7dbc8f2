"""`slackwater forecast`: tables, JSON, chart, back-test, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from forecast_cases import archive, traces, write_file

from slackwater.cli.main import cli
from slackwater.intensity.load import typical_zones


def run(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["forecast", *args], env={"COLUMNS": "110"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = archive(traces(45, 2), horizon=48)
    path = tmp_path_factory.mktemp("forecasts")
    for zone in made.zones:
        write_file(made, zone, path / f"{zone}_Test_forecast.csv")
    return path


def test_a_forecast_by_day_with_bars() -> None:
    shown = run("DE,FR", "--at", "2022-03-01T00:00Z").stdout
    assert "2022-03-01T" in shown
    assert "80% interval" in shown
    assert "by ridge" in shown
    assert "synthetic" in shown
    assert sum("▁" in line and "█" in line for line in shown.splitlines()) == 2


def test_json_and_methods() -> None:
    data = json.loads(run("DE", "--hours", "30", "--method", "persistence", "--json").stdout)
    (one,) = data
    assert one["start"] == "2023-01-01T00:00Z"
    assert one["source"] == "persistence"
    assert len(one["zones"][0]["mean_kg_per_kwh"]) == 30
    assert one["zones"][0]["low_kg_per_kwh"] <= one["zones"][0]["high_kg_per_kwh"]


def test_a_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    many = [zone for zone in typical_zones() if zone.startswith("US-")][:13]
    for zones in ("DE", "DE,FR,FI", ",".join(many)):
        target = tmp_path / f"{len(zones)}.png"
        result = run(zones, "--at", "2022-03-01T00:00Z", "--chart", str(target))
        assert target.stat().st_size > 10_000
        assert "drew" in result.stderr
    run("DE,FR", "--at", "2022-03-01T00:00Z", "--chart", str(tmp_path / "a.svg"))
    told = json.loads(run("DE,FR", "--at", "2022-03-01T00:00Z", "--json").stdout)[0]
    mean = next(one["mean_kg_per_kwh"] for one in told["zones"] if one["zone"] == "FR")
    svg = (tmp_path / "a.svg").read_text()
    assert f"Least expected: {1000 * min(mean):.0f} g CO$_2$e/kWh in FR at 2022-03-0" in svg
    assert "synthetic intensity" in svg


def test_a_back_test_beside_the_naive_methods() -> None:
    result = run("DE,FR", "--backtest", "--repeat", "2")
    for word in ("ridge", "persistence", "same-hour-mean", "day 4", "oracle", "hourly", "ridge, by zone", "FR"):
        assert word in result.stdout
    data = json.loads(run("DE", "--backtest", "--repeat", "1", "--hours", "24", "--json").stdout)
    assert [test["method"] for test in data["tests"]] == ["ridge", "persistence", "same-hour-mean"]
    assert data["tests"][0]["take"] == 6
    assert data["synthetic"] is True


def test_with_a_provider(folder: Path) -> None:
    shown = run("--forecasts", str(folder)).stdout
    assert "by blend of Test" in shown
    tested = run("Z0", "--forecasts", str(folder), "--backtest", "--repeat", "1").stdout
    for word in ("blend of Test", "Test", "ridge"):
        assert word in tested
    assert "by Test" in run("Z1", "--forecasts", str(folder), "--method", "provider").stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("XX",), "There is no zone 'XX' in the typical profiles. Known: AU, AU-NSW, "),
        (("DE", "--method", "rigde"), "There is no forecaster 'rigde'. Did you mean 'ridge'? Known: "),
        (
            ("DE", "--method", "oracle"),
            "The method 'oracle' knows the future. Use it with: slackwater backtest --forecast oracle\n",
        ),
        (
            ("DE", "--method", "blend"),
            "The method 'blend' needs a provider's forecasts. Name them with --forecasts.\n",
        ),
        (
            ("DE", "--method", ""),
            "Invalid value for '--method': it is empty; give a value or leave the option out.\n",
        ),
        (
            ("DE", "--at", "2022-03-01T00:10Z"),
            "--at 2022-03-01T00:10Z is not a full hour of the data. Give a full hour after ",
        ),
        (
            ("DE", "--at", "2024-03-01T00:00Z"),
            "--at 2024-03-01T00:00Z is not a full hour of the data. Give a full hour after 2022-01-01T00:00Z, at the latest "
            "2023-01-01T00:00Z.\n",
        ),
        (("DE", "--backtest", "--chart", "x.png"), "A back-test has no chart. Leave out --chart or --backtest.\n"),
        (("DE", "--hours", "0"), "Invalid value for '--hours': 0 is not in the range x>=1.\n"),
    ],
)
def test_mistakes_are_said(args: tuple[str, ...], said: str) -> None:
    assert run(*args, code=2).stderr.startswith(f"error: {said}")


def test_mistakes_with_forecasts(folder: Path) -> None:
    both = run("--forecasts", str(folder), "--data", "x", code=2)
    assert both.stderr == "error: Give --data or --forecasts, not both: a forecast file has its own actual values.\n"
    missing = run("DE", "--forecasts", str(folder), code=2)
    assert missing.stderr == f"error: There is no forecast file for zone 'DE' in {folder}. Known: Z0, Z1.\n"
