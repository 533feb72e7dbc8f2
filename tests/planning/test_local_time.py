"""Unavailable hours, starts and deadlines on the local clock, through changes of the clock, and charts that show it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import slackwater as sw
from slackwater.charts.schedule_chart import time_marks, time_title
from slackwater.errors import ScenarioError
from slackwater.planning.fleet import available_slots, localised

SCENARIO = """
time_zone = "Europe/Paris"
start = 2022-03-25T00:00:00
deadline = "2022-03-29T00:00"
rounds = 5
budget_kg = 2.0
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
unavailable = ["mon-fri 08:00-18:00"]
[[client]]
name = "dublin"
zone = "IE"
power_w = 300
time_zone = "Europe/Dublin"
unavailable = ["daily 08:00-18:00", "2022-03-26T00:00Z/2022-03-26T02:00Z"]
"""


def brute(days: set[int], low: int, high: int, zone: str, start: datetime, slots: int, minutes: int) -> list[bool]:
    """Look at every minute of every slot on the local clock."""
    local, free = ZoneInfo(zone), []
    for slot in range(slots):
        times = [(start + timedelta(minutes=slot * minutes + minute)).astimezone(local) for minute in range(minutes)]
        free.append(not any(t.weekday() in days and low <= 60 * t.hour + t.minute < high for t in times))
    return free


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
@pytest.mark.parametrize("month", [3, 4, 10, 11])
def test_weekly_hours_follow_the_local_clock(zone: str, month: int) -> None:
    start = datetime(2022, month, 1, 7, tzinfo=UTC)
    found = available_slots([f"mon-fri 09:00-17:30 {zone}"], start, 24 * 30, 60)
    assert found.tolist() == brute(set(range(5)), 9 * 60, 17 * 60 + 30, zone, start, 24 * 30, 60)


def test_hours_over_midnight_and_whole_days() -> None:
    start = datetime(2022, 3, 26, tzinfo=UTC)  # clocks go forward on the 27th at 01:00 UTC
    night = available_slots(["daily 22:00-06:00 Europe/Paris"], start, 48, 60)
    assert np.flatnonzero(night).tolist() == [*range(5, 21), *range(28, 44)]  # 06:00 is 05 UTC, then 04 UTC
    sunday = available_slots(["sun Europe/Paris"], start, 48, 60)
    assert np.flatnonzero(~sunday).tolist() == list(range(23, 46))  # a day of 23 hours


def test_intervals_without_an_offset_are_local_and_others_stay() -> None:
    start = datetime(2022, 7, 1, tzinfo=UTC)
    free = available_slots(["2022-07-01T08:00/2022-07-01T10:00 Europe/Paris"], start, 12, 60)
    assert np.flatnonzero(~free).tolist() == [6, 7]
    free = available_slots(["2022-07-01T08:00Z/2022-07-01T10:00Z Europe/Paris"], start, 12, 60)
    assert np.flatnonzero(~free).tolist() == [8, 9]
    assert localised("sat,sun", "UTC") == "sat,sun"
    assert localised("sat,sun UTC", "Europe/Paris") == "sat,sun UTC"


def test_utc_by_name_is_utc() -> None:
    start = datetime(2022, 3, 26, 5, tzinfo=UTC)
    for period in ("mon-fri 22:00-06:00", "sat,sun", "daily 00:00-24:00", "daily 08:00-18:00"):
        plain = available_slots([period], start, 100, 60)
        assert plain.tolist() == available_slots([f"{period} UTC"], start, 100, 60).tolist()


def test_an_unknown_time_zone_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="There is no time zone 'Europe/Pari'"):
        available_slots(["daily 08:00-09:00 Europe/Pari"], datetime(2022, 1, 1, tzinfo=UTC), 5, 60)
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO.replace("Europe/Paris", "Paris/Europe"))
    with pytest.raises(ScenarioError, match="There is no time zone 'Paris/Europe'"):
        sw.load_scenario(path)


@pytest.fixture
def scenario(tmp_path: Path) -> sw.Scenario:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return sw.load_scenario(path)


def test_a_scenario_in_local_time(scenario: sw.Scenario) -> None:
    assert scenario.start == datetime(2022, 3, 24, 23, tzinfo=UTC)
    assert scenario.deadline == datetime(2022, 3, 28, 22, tzinfo=UTC)  # summer time by then
    problem = scenario.problem()
    assert problem.horizon == 95  # four days of which one has 23 hours
    assert problem.fleet.unavailable[0] == ("mon-fri 08:00-18:00 Europe/Paris",)
    assert problem.fleet.unavailable[1] == (
        "daily 08:00-18:00 Europe/Dublin",
        "2022-03-26T00:00Z/2022-03-26T02:00Z Europe/Dublin",
    )
    free = problem.costs.can_train()
    assert not free[0, 8]  # Friday, 08:00 in Lyon
    assert free[1, 8]  # 07:00 in Dublin


def test_a_problem_reads_bare_times_in_its_time_zone(scenario: sw.Scenario) -> None:
    problem = scenario.problem()
    local = problem.with_settings(start="2022-03-25T00:00", deadline="2022-03-29T00:00")
    assert (local.first_slot, local.horizon) == (problem.first_slot, problem.horizon)
    with pytest.raises(ScenarioError, match="has no time zone"):
        problem.with_settings(deadline="2022-03-29T00:00", time_zone="UTC")


def test_a_plan_keeps_its_time_zone_and_charts_show_it(scenario: sw.Scenario, tmp_path: Path) -> None:
    plan = sw.plan(scenario.problem())
    plan.save(tmp_path / "plan.json")
    problem = sw.Plan.load(tmp_path / "plan.json").problem
    assert problem.time_zone == "Europe/Paris"
    assert time_title(problem, problem.horizon) == "Europe/Paris, 2022"
    marks = dict(time_marks(problem, problem.horizon, 5))
    assert marks == {0.0: "25 Mar", 24.0: "26 Mar", 48.0: "27 Mar", 71.0: "28 Mar"}  # Sunday has 23 hours
    assert dict(time_marks(problem.with_settings(time_zone="UTC"), problem.horizon, 5))[1.0] == "25 Mar"


def test_without_a_time_zone_a_bare_time_is_still_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO.replace('time_zone = "Europe/Paris"', ""))
    with pytest.raises(ScenarioError, match="has no time zone"):
        sw.load_scenario(path)
