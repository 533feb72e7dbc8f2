"""Periods as text, on slots. 2022-01-03 is a Monday."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from slackwater.errors import ScenarioError
from slackwater.planning.fleet import available_slots

MONDAY = datetime(2022, 1, 3, tzinfo=UTC)
HOUR, DAY, WEEK = 60, 24, 168


def away(period: str, *, start: datetime = MONDAY, slots: int = WEEK, slot_minutes: int = HOUR) -> set[int]:
    """Slots in which the client cannot train."""
    return set(np.flatnonzero(~available_slots([period], start, slots, slot_minutes)).tolist())


def hours(day: int, first: int, last: int) -> set[int]:
    return set(range(day * DAY + first, day * DAY + last))


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ("daily 08:00-18:00", set().union(*(hours(day, 8, 18) for day in range(7)))),
        ("daily", set(range(WEEK))),
        ("daily 00:00-24:00", set(range(WEEK))),
        ("mon", hours(0, 0, 24)),
        ("sat,sun", hours(5, 0, 24) | hours(6, 0, 24)),
        ("mon-wed 9:00-10:00", hours(0, 9, 10) | hours(1, 9, 10) | hours(2, 9, 10)),
        ("MON,Fri 09:00-10:00", hours(0, 9, 10) | hours(4, 9, 10)),
        ("sat-mon 12:00-13:00", hours(5, 12, 13) | hours(6, 12, 13) | hours(0, 12, 13)),
        ("mon,wed-thu 01:00-02:00", hours(0, 1, 2) | hours(2, 1, 2) | hours(3, 1, 2)),
        ("  tue 23:00-24:00 ", hours(1, 23, 24)),
    ],
)
def test_weekly_hours(period: str, expected: set[int]) -> None:
    assert away(period) == expected


def test_over_midnight_the_rest_belongs_to_the_day_it_began() -> None:
    assert away("fri 22:00-06:00") == hours(4, 22, 30)
    assert away("mon-fri 22:00-06:00") == set().union(*(hours(day, 22, 30) for day in range(5)))


def test_a_night_that_began_before_the_start_counts() -> None:
    assert away("sun 22:00-06:00", slots=DAY) == hours(0, 0, 6)
    tuesday_at_three = datetime(2022, 1, 4, 3, tzinfo=UTC)
    assert away("mon 22:00-06:00", start=tuesday_at_three, slots=DAY) == {0, 1, 2}


def test_an_interval_has_its_own_zone() -> None:
    assert away("2022-01-03T08:00Z/2022-01-03T10:00Z") == {8, 9}
    assert away("2022-01-03T09:00+01:00 / 2022-01-03T11:00+01:00") == {8, 9}
    assert away("2021-01-01T00:00Z/2022-01-03T02:00Z") == {0, 1}, "only what lies in the horizon"
    assert away("2023-01-01T00:00Z/2023-01-02T00:00Z") == set()


def test_a_slot_that_is_only_touched_is_gone() -> None:
    assert away("2022-01-03T08:59Z/2022-01-03T09:01Z") == {8, 9}
    assert away("mon 08:30-09:00") == {8}, "the end does not belong to the period"
    assert away("mon 10:00-10:10", slots=8, slot_minutes=180) == {3}


def test_short_slots() -> None:
    assert away("mon 00:20-00:40", slots=8, slot_minutes=15) == {1, 2}
    assert away("mon 00:30-01:00", slots=4, slot_minutes=30) == {1}


def test_several_periods_add_up() -> None:
    free = available_slots(["mon 00:00-02:00", "mon 04:00-05:00"], MONDAY, 6, HOUR)
    assert free.tolist() == [False, False, True, True, False, True]
    assert available_slots([], MONDAY, 3, HOUR).all()


@pytest.mark.parametrize(
    ("period", "message"),
    [
        ("", "'' is not understood"),
        ("noon", "'noon' is not a day or a range of days"),
        ("mon-fri-sun", "'mon-fri-sun' is not a day or a range of days"),
        ("mon,,tue", "'' is not a day"),
        ("mon 8-18", "is not understood. Write an interval like"),
        ("mon 25:00-26:00", "25:00 is not a time of day"),
        ("mon 08:60-09:00", "08:60 is not a time of day"),
        ("mon 24:01-24:02", "24:01 is not a time of day"),
        ("mon 08:00-08:00", "ends when it starts. For whole days leave the hours out: 'mon'"),
        ("2022-01-03T08:00Z/2022-01-03T08:00Z", "does not end after it starts"),
        ("2022-01-04T08:00Z/2022-01-03T08:00Z", "does not end after it starts"),
        ("2022-01-03/2022-01-04", "'2022-01-03T00:00:00' has no time zone"),
        ("0001-01-01T00:00+05:00/2022-01-03T08:00Z", "has a year outside 1 to 9999"),
        ("yesterday/today", "'yesterday' is not a time"),
        ("2022-01-03T08:00Z/2022-01-03T09:00Z/2022-01-03T10:00Z", "more than a start and an end"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_period(period: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        available_slots([period], MONDAY, 4, HOUR)
    assert message in str(refused.value)
    assert repr(period) in str(refused.value)


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(ScenarioError, match="unavailable period 5 is not text"):
        available_slots([5], MONDAY, 4, HOUR)  # type: ignore[list-item]
