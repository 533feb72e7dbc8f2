"""Forecasts from files: only what had been issued by then, and clear words on what is wrong in a file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from forecast_cases import archive, traces, write_file

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, Issues, forecast_files, read_archive

HEADER = "issued_at_utc,valid_at_utc,forecast_g_per_kwh,actual_g_per_kwh\n"


def test_it_shows_only_what_was_issued() -> None:
    truth = traces(30, 1)
    made = archive(truth, every=24)
    before = made.forecast(truth.window(truth.start, 10 * 24 - 1), 40)
    after = made.forecast(truth.window(truth.start, 10 * 24), 40)
    assert np.array_equal(before.mean[0, :25], made.issues["Z0"].values[9, 23:48])
    assert np.array_equal(after.mean[0], made.issues["Z0"].values[10, :40])
    issues = made.issues["Z0"]
    cut = ForecastArchive({"Z0": issues.by(issues.issued[9])})
    assert np.array_equal(cut.forecast(truth.window(truth.start, 10 * 24 - 1), 40).mean, before.mean)


def test_beyond_its_horizon_it_takes_the_same_hour_mean() -> None:
    truth = traces(30, 1)
    made = archive(truth, horizon=48).forecast(truth.window(truth.start, 240), 60)
    week = truth.intensity[0, 240 - 7 * 24 : 240].reshape(7, 24).mean(axis=0)
    assert made.mean[0, 48:60] == pytest.approx(week[:12])


def test_the_interval_is_that_of_its_past_errors() -> None:
    truth = traces(60, 2)
    exact, wrong = (archive(truth, error=error).forecast(truth.window(truth.start, 1200), 48) for error in (0.0, 0.5))
    assert np.all(exact.high - exact.low < 1e-12)
    assert np.all(wrong.high - wrong.low > 0.01)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    made = archive(traces(12, 2))
    for zone in made.zones:
        write_file(made, zone, tmp_path / f"{zone}_Test_forecast.csv")
    read = read_archive(tmp_path)
    assert read.zones == ("Z0", "Z1")
    assert read.name == "Test"
    assert np.allclose(read.issues["Z1"].values, made.issues["Z1"].values, atol=1e-6)
    assert np.array_equal(read.issues["Z1"].first, made.issues["Z1"].first)
    assert np.allclose(read.actuals["Z0"].intensity, made.actuals["Z0"].intensity, atol=1e-6)
    assert read_archive(tmp_path, ["Z1"]).zones == ("Z1",)
    assert read_archive(tmp_path / "Z1_Test_forecast.csv").zones == ("Z1",)


def test_gaps_are_filled_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "A_x_forecast.csv"
    rows = [
        "2023-01-01T00:30Z,2023-01-01T01:00Z,100,110",
        "2023-01-01T00:30Z,2023-01-01T02:00Z,,",
        "2023-01-01T00:30Z,2023-01-01T03:00Z,120,130",
        "2023-01-01T02:00Z,2023-01-01T04:00Z,140,",
        "2023-01-01T02:00Z,2023-01-01T05:00Z,140,150",
    ]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    read = read_archive(path)
    assert read.actuals["A"].intensity[0] == pytest.approx([0.11, 0.12, 0.13, 0.14, 0.15])
    assert list(read.missing["A"]) == [False, True, False, True, False]
    assert read.actuals["A"].provenance[0].filled_hours == ("2023-01-01T02:00Z", "2023-01-01T04:00Z")
    assert np.isnan(read.issues["A"].values[0, 1])
    assert read.issues["A"].issued[0] % 1 == 0.5


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "A_x_forecast.csv"
    path.write_text("time,value\n1,2\n")
    with pytest.raises(DataError, match=r"A_x_forecast.csv has the columns .*'time'"):
        read_archive(path)
    path.write_text(HEADER + "2023-01-01T00:00Z,2023-01-01T00:00Z,1,2\n2023-01-01T00:00Z,2023-01-01T01:00Z,many,2\n")
    with pytest.raises(DataError, match=r"line 3: could not convert"):
        read_archive(path)
    path.write_text(HEADER + "2023-01-01T00:00Z,2023-01-01T00:00,1,2\n")
    with pytest.raises(DataError, match=r"line 2: .*no time zone"):
        read_archive(path)
    path.write_text(HEADER + "2023-01-01T00:00Z,2023-01-01T00:00Z,-1,2\n")
    with pytest.raises(DataError, match="not an intensity"):
        read_archive(path)
    path.write_text(HEADER)
    with pytest.raises(DataError, match="no forecasts or no actuals"):
        read_archive(path)
    with pytest.raises(DataError, match="no forecast files"):
        forecast_files(tmp_path / "nowhere")
    with pytest.raises(ScenarioError, match="no forecast file for zone 'B'"):
        read_archive(tmp_path, ["B"])


GOOD = "2023-01-01T00:00Z,2023-01-01T00:00Z,1,2\n"
DAMAGED = {
    "no UTF-8": HEADER.encode() + b"\xff\xfe,1,2,3\n",
    "a null": HEADER.encode() + b"2023-01-01T00:00Z,\x00,1,2\n",
    "a long cell": HEADER.encode() + b"x" * 200_000 + b",1,2,3\n",
    "a short line": HEADER.encode() + b"2023-01-01T00:00Z\n",
    "a long line": HEADER.encode() + b"2023-01-01T00:00Z,2023-01-01T00:00Z,x,2,3,4\n",
    "no time of issue": HEADER.encode() + b",2023-01-01T00:00Z,1,2\n",
    "a time of issue without a zone": HEADER.encode() + b"2023-01-01T00:00,2023-01-01T00:00Z,1,2\n",
    "the end of the calendar": HEADER.encode() + b"2023-01-01T00:00Z,9999-12-31T23:59:59-23:59,1,2\n",
    "an issue before the calendar": HEADER.encode() + b"0001-01-01T00:00+23:59,2023-01-01T00:00Z,1,2\n",
    "an infinite value": HEADER.encode() + b"2023-01-01T00:00Z,2023-01-01T00:00Z,1e999,2\n",
    "years apart": f"{HEADER}{GOOD}2023-01-01T00:00Z,9023-01-01T00:00Z,1,2\n".encode(),
    "actuals years apart": f"{HEADER}{GOOD}9023-01-01T00:00Z,9023-01-01T00:00Z,1,2\n".encode(),
    "a folder": None,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "A_x_forecast.csv"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"A_x_forecast\.csv"):
        read_archive(tmp_path)


def test_a_few_lines_do_not_fill_the_memory(tmp_path: Path) -> None:
    """One year that is mistyped would make a row of 8,000 years for each issue."""
    path = tmp_path / "A_x_forecast.csv"
    issues = "".join(f"2023-01-{day:02d}T00:00Z,2023-01-{day:02d}T00:00Z,1,2\n" for day in range(1, 29))
    path.write_text(f"{HEADER}{issues}2023-01-05T00:00Z,3023-01-05T00:00Z,1,\n")
    with pytest.raises(DataError, match=r"covers 2023-01-01 to 3023-01-05, .* Is a year mistyped\?"):
        read_archive(path)


@pytest.mark.parametrize(
    "spoilt",
    [{"issued_h": [1.0]}, {"first_h": []}, {"kg_per_kwh": []}, {"kg_per_kwh": [1.0, 2.0]}, {"kg_per_kwh": [[[1.0]]]}],
)
def test_an_archive_whose_parts_do_not_fit_is_refused(spoilt: dict[str, object]) -> None:
    good = {"issued_h": [1.0, 2.0], "first_h": [1, 2], "kg_per_kwh": [[0.1, None], [0.2, 0.3]]}
    whole = {"name": "x", "factor": "direct", "sources": {}, "issues": {"FR": good}}
    assert ForecastArchive.from_dict(whole).zones == ("FR",)
    with pytest.raises(ValueError, match=r"forecasts of shape|inhomogeneous"):
        ForecastArchive.from_dict(whole | {"issues": {"FR": good | spoilt}})


def test_other_zones_and_slots_are_refused() -> None:
    truth = traces(12, 1)
    with pytest.raises(DataError, match="no forecasts for zone 'Z1'"):
        archive(truth).forecast(traces(12, 2), 10)
    with pytest.raises(ScenarioError, match="hourly"):
        archive(truth).forecast(traces(12, 1, slot_minutes=30), 10)


def test_an_archive_without_issues_says_nothing() -> None:
    none = Issues(issued=np.array([]), first=np.array([], dtype=np.int64), values=np.empty((0, 96)))
    assert np.isnan(none.at(5, 3)).all()


def test_the_real_files(shared_data: Path) -> None:
    read = read_archive(shared_data / "forecasts", ["FI", "GB"])
    assert read.issues["FI"].values.shape == (184, 96)
    assert int((read.issues["FI"].values == 0).sum()) == 78
    assert int(read.missing["GB"].sum()) == 208
    history = read.actuals["GB"].window(read.actuals["GB"].start, 24 * 40)
    assert history.end - history.start == timedelta(days=40)
    assert np.isfinite(read.forecast(history, 96).mean).all()
