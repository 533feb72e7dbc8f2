"""Predicted against measured error: the stored points give the constants of the planner and the table of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.lab.studies import calibration
from slackwater.lab.studies.calibration import FITTED, Point, band, fit, load
from slackwater.planning.auto import CALIBRATION, CALIBRATION_BAND, FULL_ROUNDS

REPOSITORY = Path(__file__).parents[2]
STORED = REPOSITORY / "experiments" / "results" / "calibration_points.jsonl"


def test_the_planners_constants_are_those_of_the_stored_points() -> None:
    found = load(STORED)
    a, b = fit([point for point in found if point.task == FITTED])
    assert pytest.approx((a, b), abs=1e-4) == CALIBRATION
    assert pytest.approx(band(found, a, b), abs=5e-4) == CALIBRATION_BAND
    assert calibration.FULL_HOURS == FULL_ROUNDS


def test_the_page_has_the_table_of_the_stored_points() -> None:
    page = (REPOSITORY / "docs" / "research" / "calibration.md").read_text(encoding="utf-8")
    shown = CliRunner().invoke(calibration.main, ["table", "--points", str(STORED)])
    assert shown.exit_code == 0, shown.output
    rows = [text for text in shown.output.splitlines() if text.startswith("|") and "---" not in text]
    assert len(rows) >= 5
    for row in rows[1:]:
        assert row in page


def test_a_known_curve_is_found_and_drawn(tmp_path: Path) -> None:
    points = [
        Point(task=task, hours=3, end=1, predicted=x, measured=0.2 * x**0.5 + off)
        for x in (0.01, 0.05, 0.1, 0.5, 0.9)
        for task, off in ((FITTED, 0.0), ("digits", 0.01))
    ]
    a, b = fit([point for point in points if point.task == FITTED])
    assert (a, b) == pytest.approx((0.2, 0.5), abs=1e-6)
    assert band(points, a, b) == pytest.approx((0.01, 0.01))
    assert calibration.draw(points, tmp_path / "picture.png").stat().st_size > 0
