"""The study of forecasts, on the smallest of what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from forecast_cases import archive, traces, write_file

from slackwater.lab.store import Store
from slackwater.lab.studies import forecasts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = archive(traces(45, 2), horizon=48)
    path = tmp_path / "forecasts"
    path.mkdir()
    for zone in made.zones:
        write_file(made, zone, path / f"{zone}_Test_forecast.csv")
    return path


def test_every_measure_is_stored_and_shown(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "forecasts.jsonl"
    common = ["--results", str(path)]
    for args in (
        ["archives", "--forecasts", str(folder), "--zones", "Z0", "--every", "9", *common],
        ["limits", "--forecasts", str(folder), "--zones", "Z0", "--every", "9", *common],
        ["actuals", "--zones", "DE,FR", "--windows", "1", *common],
        ["errors", "--zones", "DE,FR", "--every", "2000", *common],
    ):
        first = CliRunner().invoke(forecasts.main, args)
        assert first.exit_code == 0, (first.output, first.exception)
        again = CliRunner().invoke(forecasts.main, args)
        assert again.stderr == "", "what is stored is not done again"
    shown = CliRunner().invoke(forecasts.main, ["table", *common]).stdout
    assert "| blend | held out | 1 |" in shown
    assert "| ridge | " in shown
    assert "| next 48 h known | held out | 1 |" in shown
    row = Store(path, forecasts.Cell).get(forecasts.Cell(measure="archives", group="Z0", method="blend"))
    assert row is not None
    assert {"half", "zone", "method", "windows", "mape_day1", "share_hourly"} <= set(row["rows"][0])


def test_the_weights_can_be_fitted_anew(tmp_path: Path) -> None:
    made = archive(traces(45, 1))
    write_file(made, "Z0", tmp_path / "Z0_Test_forecast.csv")
    args = ["weights", "--data", "typical", "--forecasts", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(forecasts.main, args)
    assert result.exit_code == 0, (result.output, result.exception)
    assert (tmp_path / "out" / "ridge_prior.csv").read_text().startswith("from_hour,last,")
    assert (tmp_path / "out" / "blend_prior.csv").read_text().count("\n") == 15
