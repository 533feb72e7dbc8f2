import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import ScenarioError
from slackwater.intensity.traces import ZoneSeries, check_slots, describe_gaps, fill, gaps_of, hours_in, to_slots

NAN = float("nan")
DAY = 18_993 * 1440  # 2022-01-01T00:00Z


def series(values: list[float], step_minutes: int = 60, start_minute: int = DAY) -> ZoneSeries:
    return ZoneSeries(
        zone="DE",
        source="ci/DE_2022.csv",
        start_minute=start_minute,
        step_minutes=step_minutes,
        steps=len(values),
        intensity={"direct": np.array(values)},
    )


def accepted(slot_minutes: int) -> bool:
    try:
        check_slots(slot_minutes, 0)
    except ScenarioError:
        return False
    return True


def test_a_slot_divides_an_hour_or_is_whole_hours_that_divide_a_day() -> None:
    parts_of_an_hour = [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]
    whole_hours = [120, 180, 240, 360, 480, 720, 1440]
    assert [minutes for minutes in range(-60, 3000) if accepted(minutes)] == parts_of_an_hour + whole_hours
    with pytest.raises(ScenarioError, match="slot_minutes is 90; a slot is a whole part of an hour"):
        check_slots(90, 0)


def test_the_longest_gap_to_fill_is_not_negative() -> None:
    check_slots(60, 0)
    with pytest.raises(ScenarioError, match="fill_hours is -1; give 0 to fill no gaps"):
        check_slots(60, -1)


def gap_texts(one: ZoneSeries) -> list[str]:
    return [str(gap) for gap in gaps_of(one, "direct")]


def test_gaps() -> None:
    assert gap_texts(series([1, 2, 3])) == []
    assert gap_texts(series([1, NAN, 3, NAN, NAN, 6])) == ["1 h from 2022-01-01T01:00Z", "2 h from 2022-01-01T03:00Z"]
    assert gap_texts(series([1, NAN, 3], step_minutes=15)) == ["0.25 h from 2022-01-01T00:15Z"]
    assert [gap.at_edge for gap in gaps_of(series([NAN, 2, NAN, 4, NAN, NAN]), "direct")] == [True, False, True]


def test_hours_with_a_missing_value_are_counted_once_and_only_inside() -> None:
    gaps = gaps_of(series([1, NAN, 3, NAN, NAN, NAN, 6, 7], step_minutes=30), "direct")
    assert hours_in(gaps, DAY, DAY + 240) == [DAY, DAY + 60, DAY + 120]
    assert hours_in(gaps, DAY + 120, DAY + 240) == [DAY + 120]
    assert hours_in(gaps, DAY + 180, DAY + 240) == []


def test_fill_draws_straight_lines_over_the_gaps_given() -> None:
    one = series([1, NAN, 3, NAN, NAN, 9])
    values, gaps = one.intensity["direct"], gaps_of(one, "direct")
    assert fill(values, gaps).tolist() == [1, 2, 3, 5, 7, 9]
    np.testing.assert_array_equal(fill(values, gaps[:1]), [1, 2, 3, NAN, NAN, 9])
    assert np.isnan(values[1])


@given(
    step=st.sampled_from([5, 10, 15, 20, 30, 60]),
    slot=st.sampled_from([1, 5, 15, 20, 30, 60, 120, 180, 360, 720]),
    first=st.integers(0, 20),
    count=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_slots_are_means_over_their_minutes(step: int, slot: int, first: int, count: int, seed: int) -> None:
    begin, end = DAY + first * slot, DAY + (first + count) * slot
    start = DAY // step * step
    values = np.random.default_rng(seed).random(-((start - end) // step)).tolist()
    by_minute = np.repeat(values, step)[begin - start : end - start].reshape(count, slot)
    slots = to_slots(series(values, step, start), np.array(values), begin, end, slot)
    np.testing.assert_allclose(slots, by_minute.mean(axis=1), atol=1e-12)


@pytest.mark.parametrize(
    ("values", "fill_hours", "parts"),
    [
        (
            [1, NAN, 3, 4, 5],
            0,
            [
                "Zone DE (ci/DE_2022.csv) lacks 1 hour of direct intensity: 1 h from 2022-01-01T01:00Z.",
                "the longest is 3 h from 2022-01-01T02:00Z",
                "fill_hours=1 (--fill 1)",
            ],
        ),
        ([1, *[NAN] * 8, 3], 3, ["lacks 8 hours", "that fill_hours=3 does not fill", "a guess over that many hours"]),
        ([NAN, 2, 3], 5, ["lacks 1 hour", "A gap at the edge of the data is never filled"]),
        ([1, NAN] * 8 + [1], 0, ["lacks 8 hours", "2022-01-01T09:00Z and 3 more gaps"]),
    ],
)
def test_gaps_in_words(values: list[float], fill_hours: int, parts: list[str]) -> None:
    one = series(values)
    text = describe_gaps(one, "direct", gaps_of(one, "direct"), one.start_minute, one.end_minute, fill_hours)
    for part in parts:
        assert part in text
