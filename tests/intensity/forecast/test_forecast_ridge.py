"""Our own forecast: it looks only back, learns, and copes with short, constant and odd histories."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
from forecast_cases import changed, traces

from slackwater.errors import ScenarioError
from slackwater.intensity.forecast.base import Forecaster, Persistence, SameHourMean
from slackwater.intensity.forecast.ridge import (
    EDGES_H,
    FEATURES,
    Past,
    Ridge,
    fit,
    fit_pooled,
    lead_parts,
    pooled_weights,
    without_glitches,
)
from slackwater.intensity.forecast.skill import backtest, window_starts
from slackwater.intensity.traces import Traces


@pytest.mark.parametrize("method", [Persistence(), SameHourMean(), Ridge()], ids=lambda method: method.name)
def test_the_future_changes_nothing(method: Forecaster) -> None:
    truth = traces(60)
    for slot in (200, 700, 1001):
        made, other = (method.forecast(one.window(one.start, slot), 96) for one in (truth, changed(truth, slot)))
        assert np.array_equal(made.mean, other.mean)
        assert np.array_equal(made.high, other.high)
        many = method.means(changed(truth, slot), [slot], 96)  # type: ignore[attr-defined]
        assert np.array_equal(many[0], made.mean), "also where many are made at once"


def test_many_at_once_are_the_same() -> None:
    truth, method = traces(70), Ridge()
    origins = [30, 191, 192, 500, 671, 672, 700, 701, 1400, 1679]
    one_by_one = [method.forecast(truth.window(truth.start, origin), 96).mean for origin in origins]
    assert np.allclose(Ridge().means(truth, origins, 96), one_by_one, rtol=0, atol=1e-12)


def test_it_beats_both_naive_methods() -> None:
    truth = traces(150, 5)
    starts = window_starts(truth, every=89)
    ours, last, mean = (
        backtest(method, truth, starts, replanning=()).mape.mean(axis=0)
        for method in (Ridge(), Persistence(), SameHourMean())
    )
    assert np.all(ours < last)
    assert np.all(ours < mean)


def test_the_interval_holds_what_it_promises() -> None:
    truth = traces(150, 5)
    starts = window_starts(truth, every=131)
    test = backtest(Ridge(), truth, starts, replanning=())
    assert test.coverage.mean() == pytest.approx(0.8, abs=0.05)
    narrow = backtest(Ridge(coverage=0.5), truth, starts, replanning=())
    assert narrow.coverage.mean() == pytest.approx(0.5, abs=0.06)


def test_far_ahead_it_keeps_day_and_week() -> None:
    hours = np.arange(70 * 24)
    row = 0.3 + 0.1 * np.sin(2 * np.pi * hours / 24) - 0.08 * (hours // 24 % 7 >= 5)
    truth = Traces(zones=("A",), start=traces(1).start, intensity=row[None, :], factor="lifecycle")
    made = Ridge().forecast(truth.window(truth.start, 56 * 24), 240)
    assert np.corrcoef(made.mean[0], row[56 * 24 : 66 * 24])[0, 1] > 0.97


def test_a_short_history_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    truth = traces(7)
    with caplog.at_level(logging.WARNING):
        method = Ridge()
        made, *_ = (method.forecast(truth, 30) for _ in range(2))
    assert np.array_equal(made.mean, SameHourMean().forecast(truth, 30).mean)
    assert "7.0 of 8 days of history" in made.source
    assert len(caplog.records) == 1
    assert Ridge().forecast(traces(8), 30).source == "ridge"


@pytest.mark.parametrize("days", [8, 9, 12, 20, 29, 30])
def test_weeks_that_are_few_will_do(days: int) -> None:
    truth = traces(days)
    made = Ridge().forecast(truth.window(truth.start, truth.slots - 7), 240)
    assert np.all(np.isfinite(made.high))
    assert np.all(made.high > made.low)


def test_a_constant_zone_stays_constant() -> None:
    values = np.zeros((2, 60 * 24))
    values[1] = 0.02
    truth = Traces(zones=("A", "B"), start=traces(1).start, intensity=values, factor="direct")
    made = Ridge().forecast(truth, 96)
    assert np.array_equal(made.mean[0], np.zeros(96))
    assert made.mean[1] == pytest.approx(0.02)
    assert np.all(made.high - made.low < 1e-9)


def test_never_negative() -> None:
    truth = traces(60, 1)
    values = np.maximum(truth.intensity - 0.3, 0.0)
    made = Ridge().forecast(Traces(zones=truth.zones, start=truth.start, intensity=values, factor="direct"), 96)
    assert made.mean.min() >= 0.0
    assert made.low.min() >= 0.0


@pytest.mark.parametrize("slot_minutes", [15, 30, 120, 360, 1440])
def test_other_slots(slot_minutes: int) -> None:
    truth = traces(40, slot_minutes=slot_minutes)
    made = Ridge().forecast(truth, 4 * 1440 // slot_minutes)
    assert np.all(np.isfinite(made.mean))
    assert made.slot_minutes == slot_minutes


def test_a_glitch_of_the_feed_is_passed_over() -> None:
    truth = traces(40, 1)
    broken = truth.intensity.copy()
    broken[0, -1] = 0.0
    made, other = (
        Ridge().forecast(Traces(zones=("A",), start=truth.start, intensity=values, factor="lifecycle"), 6).mean
        for values in (truth.intensity, broken)
    )
    assert np.abs(made - other).max() < 0.05
    often = np.where(np.arange(500) % 10 == 0, 0.0, 0.1)[None, :]
    assert np.array_equal(without_glitches(often, 24)[:, 1:], often[:, 1:]), "a grid that often is at 0 means it"


def test_it_is_quick() -> None:
    truth = traces(90, 20)
    Ridge().forecast(truth, 96)
    began = time.process_time()
    Ridge().forecast(truth, 96)
    assert (time.process_time() - began) / 20 < 0.05, "seconds a zone, the fit included"


def test_features_are_zero_where_every_day_is_alike() -> None:
    day = np.sin(2 * np.pi * np.arange(24) / 24) + 2.0
    past = Past(np.tile(day, 40)[None, :], 24)
    origins, leads = np.array([30 * 24, 35 * 24 + 7, 40 * 24]), np.arange(200)
    assert past.profile(origins, leads)[0] == pytest.approx(day[(origins[:, None] + leads) % 24])
    assert np.abs(past.features(origins, leads)).max() < 1e-12


def test_parts_of_the_leads_cover_them_once() -> None:
    for slots, day in ((1, 24), (96, 24), (300, 24), (384, 96), (4, 1), (12, 4)):
        parts = lead_parts(slots, day)
        assert [first for _, first, _ in parts] == [0, *(end for _, _, end in parts[:-1])]
        assert parts[-1][2] == slots


def test_the_fit_goes_from_the_prior_to_the_data() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, 4000, 2))
    target = features @ np.array([0.5, -0.2]) + 0.1 * rng.standard_normal((1, 4000))
    prior = np.array([1.0, 1.0])
    free = fit(features, target, prior, strength=1e-6, days=100)
    held = fit(features, target, prior, strength=1e9, days=100)
    assert free.weights[0] == pytest.approx([0.5, -0.2], abs=0.01)
    assert held.weights[0] == pytest.approx(prior, abs=1e-3)
    assert free.errors.std() == pytest.approx(0.1, rel=0.1)
    low, high = free.reach(0.8)
    assert low[0] == pytest.approx(-0.128, abs=0.02)
    assert high[0] == pytest.approx(0.128, abs=0.02)


def test_the_pooled_weights_are_those_of_such_a_fit() -> None:
    assert pooled_weights().shape == (len(EDGES_H), len(FEATURES))
    found = fit_pooled(traces(300, 5))
    assert found[0, 0] == pytest.approx(pooled_weights()[0, 0], abs=0.4), "the last hour counts most in the next"
    assert abs(found[-1, 0]) < 0.3


def test_settings_are_checked() -> None:
    with pytest.raises(ScenarioError, match="train_days is 0"):
        Ridge(train_days=0)
    with pytest.raises(ScenarioError, match="strength is 0"):
        Ridge(strength=0.0)
