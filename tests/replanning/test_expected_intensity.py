"""What is expected where a forecast says nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from worlds import daily, forecast, traces

from slackwater.intensity.traces import HIGHEST_KG_PER_KWH
from slackwater.replanning.remaining import expected_intensity

KNOWN = traces(daily(3, 10 * 24, seed=7))


def test_a_whole_forecast_is_taken_as_it_is() -> None:
    given = forecast(KNOWN, daily(3, 30), 0.2)
    seen, said = expected_intensity(KNOWN, given, 30)
    assert said is None
    assert np.array_equal(seen.mean, given.mean)
    assert np.array_equal(seen.high, given.high)


def test_an_older_forecast_is_used_from_now_on() -> None:
    older = traces(KNOWN.intensity[:, :-6])
    given = forecast(older, daily(3, 40))
    seen, said = expected_intensity(KNOWN, given, 20)
    assert said is None
    assert np.array_equal(seen.mean, given.mean[:, 6:26])


def test_what_a_forecast_lacks_comes_from_the_last_week() -> None:
    short = forecast(KNOWN, daily(3, 10))
    seen, said = expected_intensity(KNOWN, short, 30)
    assert said == "the forecast lacks 20 of 30 slots; the last week's hours are used there"
    assert np.array_equal(seen.mean[:, :10], short.mean)
    week = KNOWN.intensity[:, -7 * 24 :].reshape(3, 7, 24).mean(axis=1)
    assert np.allclose(seen.mean[:, 10:24], week[:, 10:])
    fewer = replace(short, zones=("z0", "z2"), mean=short.mean[:2], low=short.low[:2], high=short.high[:2])
    seen, said = expected_intensity(KNOWN, fewer, 10)
    assert said is not None
    assert "zones z1" in said
    assert np.array_equal(seen.mean[2], short.mean[1])
    past = forecast(traces(KNOWN.intensity[:, :-50]), daily(3, 10))
    seen, said = expected_intensity(KNOWN, past, 10)
    assert said is not None
    assert "10 of 10 slots" in said


def test_without_a_forecast_or_with_one_of_another_kind_the_last_week_counts() -> None:
    _, said = expected_intensity(KNOWN, None, 5)
    assert said == "there is no forecast; the last week's hours are used"
    _, said = expected_intensity(KNOWN, replace(forecast(KNOWN, daily(3, 5)), factor="lifecycle"), 5)
    assert said is not None
    assert "another factor" in said


def test_a_forecast_above_any_grid_ends_no_run() -> None:
    seen, _ = expected_intensity(KNOWN, forecast(KNOWN, np.full((3, 30), 50.0)), 30)
    assert seen.traces().intensity.max() == HIGHEST_KG_PER_KWH
