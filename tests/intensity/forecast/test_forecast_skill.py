"""The back-test: the oracle gets all there is, re-planning keeps what ran, undefined stays undefined."""

from __future__ import annotations

import numpy as np
import pytest
from forecast_cases import traces

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import Forecast, Persistence
from slackwater.intensity.forecast.forecasters import ErrorModel, Oracle
from slackwater.intensity.forecast.skill import backtest, cheapest, run, window_starts
from slackwater.intensity.traces import Traces


def test_the_oracle_gets_everything() -> None:
    truth = traces(50, 3)
    test = backtest(Oracle(truth), truth, window_starts(truth, every=72))
    for name in ("one-shot", "daily", "hourly"):
        assert test.share(name) == pytest.approx(np.ones(3))
    assert test.mape == pytest.approx(np.zeros((3, 4)))
    assert np.all(test.oracle > 0.05)
    assert np.all(test.coverage == 1.0)


def test_replanning_helps_with_errors_that_shrink() -> None:
    truth = traces(70, 4)
    test = backtest(ErrorModel(truth, issued_every_hours=1), truth, window_starts(truth, every=96))
    once, daily, hourly = (test.share(name).mean() for name in ("one-shot", "daily", "hourly"))
    assert 0.3 < once < daily < hourly < 1.0


def test_what_ran_stays_and_the_number_is_kept() -> None:
    rng = np.random.default_rng(0)
    noisy = {at: rng.random((5, 96 - at)) for at in range(96)}
    for every in (96, 24, 1):
        ran = run(lambda at: noisy[at], 5, 96, 24, every)
        assert np.all(ran.sum(axis=1) == 24)
    assert np.array_equal(run(lambda at: noisy[at], 5, 96, 24, 96), cheapest(noisy[0], 24))


def test_equals_go_to_the_earlier() -> None:
    assert np.array_equal(cheapest(np.ones((1, 5)), 2), [[True, True, False, False, False]])
    assert np.array_equal(cheapest(np.ones((2, 3)), np.array([0, 3])), [[False] * 3, [True] * 3])


def test_zones_at_zero_are_not_defined() -> None:
    truth = traces(40, 2)
    values = truth.intensity.copy()
    values[0] = 0.0
    zero = Traces(zones=truth.zones, start=truth.start, intensity=values, factor="direct")
    test = backtest(Persistence(), zero, window_starts(zero, every=72))
    assert np.isnan(test.mape[0]).all()
    assert np.isnan(test.share("hourly")[0])
    assert np.isfinite(test.share("hourly")[1])
    assert test.to_dict()["zones"][1]["share_of_oracle"]["daily"] == pytest.approx(test.share("daily")[1])


def test_forecasters_without_the_shortcut_do_too() -> None:
    class Plain:
        name = "plain"

        def forecast(self, history: Traces, slots: int) -> Forecast:
            return Persistence().forecast(history, slots)

    truth = traces(40, 1)
    starts = window_starts(truth, every=96)
    plain, quick = (backtest(method, truth, starts) for method in (Plain(), Persistence()))
    assert plain.share("hourly") == pytest.approx(quick.share("hourly"))


def test_what_cannot_be_tested() -> None:
    truth = traces(10)
    with pytest.raises(DataError, match="too few for a test"):
        window_starts(truth)
    with pytest.raises(ScenarioError, match="take is 99"):
        backtest(Persistence(), truth, [30], take=99)
    with pytest.raises(ScenarioError, match="no re-planning 'weekly'"):
        backtest(Persistence(), truth, [30], replanning=("weekly",))


def test_progress_is_told() -> None:
    truth, told = traces(40, 1), list[int]()
    backtest(Persistence(), truth, [700, 800], replanning=(), progress=told.append)
    assert told == [1, 2]
