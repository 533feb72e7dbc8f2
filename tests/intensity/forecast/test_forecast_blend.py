"""The blend: better than either, free of the provider's bias, without a step, and blind to the future."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forecast_cases import archive, changed, traces

from slackwater.intensity.forecast.archive import ForecastArchive, Issues, read_archive
from slackwater.intensity.forecast.blend import FEATURES, Blend, fit_pooled, pooled_weights
from slackwater.intensity.forecast.forecasters import forecaster
from slackwater.intensity.forecast.ridge import EDGES_H, Ridge
from slackwater.intensity.forecast.skill import backtest, window_starts
from slackwater.intensity.traces import Traces
from slackwater.units import iso


def mape(method: Blend | Ridge | ForecastArchive, truth: Traces) -> float:
    return float(backtest(method, truth, window_starts(truth, every=139), replanning=()).mape.mean())


def test_it_is_better_than_both() -> None:
    truth = traces(120, 2)
    made = archive(truth, error=0.6)
    blended, provider, ours = (mape(method, truth) for method in (Blend(made), made, Ridge()))
    assert blended < provider
    assert blended < ours


@pytest.mark.parametrize("bias", [2.0, 0.5])
def test_a_bias_is_removed(bias: float) -> None:
    truth = traces(120, 1)
    fair, biased = (Blend(archive(truth, bias=one, error=0.3)) for one in (1.0, bias))
    assert mape(biased, truth) < 1.1 * mape(fair, truth)
    assert mape(archive(truth, bias=bias), truth) > 0.4


def test_a_useless_provider_does_little_harm() -> None:
    truth = traces(150, 1)
    other = traces(150, 1, seed=50)
    useless = archive(other, error=0.0)
    assert mape(Blend(useless), truth) < 1.15 * mape(Ridge(), truth)


def test_the_future_changes_nothing() -> None:
    truth = traces(60, 1)
    made = archive(truth)
    issues = made.issues["Z0"]
    for slot in (300, 900, 1111):
        known = int(np.searchsorted(issues.issued, issues.issued[0] + slot, side="right"))
        values = issues.values.copy()
        values[known:] = 9.0
        other = ForecastArchive({"Z0": Issues(issued=issues.issued, first=issues.first, values=values)})
        history = truth.window(truth.start, slot)
        one, two = Blend(made).forecast(history, 96), Blend(other).forecast(history, 96)
        assert np.array_equal(one.mean, two.mean)
        assert np.array_equal(one.low, two.low)
        many = Blend(other).means(changed(truth, slot), [slot], 96)
        assert np.allclose(many[0], one.mean, rtol=0, atol=1e-12)


def test_many_at_once_are_the_same() -> None:
    truth = traces(60, 2)
    made = archive(truth, horizon=48, every=6)
    origins = [100, 250, 600, 800, 1000, 1001, 1300]
    one_by_one = [Blend(made).forecast(truth.window(truth.start, origin), 96).mean for origin in origins]
    assert np.allclose(Blend(made).means(truth, origins, 96), one_by_one, rtol=0, atol=1e-12)


def test_there_is_no_step_where_the_provider_ends() -> None:
    truth = traces(90, 1)
    made = archive(truth, horizon=48, error=0.2)
    steps, usual = [], []
    method = Blend(made)
    for slot in range(40 * 24, 80 * 24, 71):
        mean = method.forecast(truth.window(truth.start, slot), 96).mean[0]
        steps.append(abs(mean[48] - mean[47]))
        usual.append(np.abs(np.diff(mean[:40])).mean())
    assert np.mean(steps) < 2.0 * np.mean(usual)


def test_far_beyond_the_horizon_it_is_ours() -> None:
    truth = traces(60, 1)
    history = truth.window(truth.start, 1200)
    blended, ours = Blend(archive(truth, horizon=48)).forecast(history, 240), Ridge().forecast(history, 240)
    assert blended.mean[0, 150:] == pytest.approx(ours.mean[0, 150:], abs=1e-4)
    assert np.all(blended.low <= blended.mean)


def test_holes_zeros_and_a_late_provider() -> None:
    truth = traces(60, 1)
    made = archive(truth)
    values = made.issues["Z0"].values.copy()
    values[::3, 10:14] = 0.0
    values[1::5, 30:33] = np.nan
    broken = ForecastArchive(
        {"Z0": Issues(issued=made.issues["Z0"].issued, first=made.issues["Z0"].first, values=values)}
    )
    assert mape(Blend(broken), truth) < 1.15 * mape(Blend(made), truth)
    late = ForecastArchive({"Z0": made.issues["Z0"].by(made.issues["Z0"].issued[20])})
    history = truth.window(truth.start, 1200)
    assert np.array_equal(Blend(late).forecast(history, 96).mean, Ridge().forecast(history, 96).mean)


def test_zones_without_a_provider_have_ours() -> None:
    truth = traces(60, 2)
    made = archive(truth)
    part = ForecastArchive({"Z0": made.issues["Z0"]})
    history = truth.window(truth.start, 1200)
    blended, ours = Blend(part).forecast(history, 96), Ridge().forecast(history, 96)
    assert np.array_equal(blended.mean[1], ours.mean[1])
    assert not np.array_equal(blended.mean[0], ours.mean[0])
    assert blended.source == "blend of provider"
    assert "of 8 days of history" in Blend(part).forecast(truth.window(truth.start, 50), 24).source


@pytest.mark.parametrize("minutes", [30, 120])
def test_other_slots_are_forecast_by_the_hour(minutes: int) -> None:
    whole = traces(40, 2)
    issued = archive(whole, error=0.1)
    truth = whole.window(whole.start, 36 * 24)
    hourly = Blend(issued).forecast(truth, 48)
    per_hour = 60 // minutes or 1
    history = (
        replace(truth, intensity=np.repeat(truth.intensity, per_hour, axis=1), slot_minutes=minutes)
        if minutes < 60
        else replace(truth, intensity=truth.intensity.reshape(2, -1, 2).mean(axis=2), slot_minutes=minutes)
    )
    made = Blend(issued).forecast(history, 48 * 60 // minutes)
    assert (made.slot_minutes, made.slots, made.start) == (minutes, 48 * 60 // minutes, truth.end)
    if minutes < 60:
        assert np.allclose(made.mean[:, ::per_hour], hourly.mean)
        late = Blend(issued).forecast(history.window(history.start, history.slots - 1), 4)
        earlier = Blend(issued).forecast(truth.window(truth.start, truth.slots - 1), 4)
        assert np.allclose(late.mean, earlier.mean[:, [0, 1, 1, 2]]), "the half-hour that is known is left out"
    assert set(made.traces().forecast_zones()) == set(truth.zones)


def test_without_a_provider_the_blend_is_ours() -> None:
    truth = traces(30, 2)
    for made in (Blend().forecast(truth, 24), forecaster("blend").forecast(truth, 24)):
        assert np.array_equal(made.mean, Ridge().forecast(truth, 24).mean)


def test_what_was_issued_after_the_last_actual_counts_where_actuals_are_late() -> None:
    truth = traces(40, 1)
    issued = archive(truth, error=0.0, every=1)
    now = truth.window(truth.start, truth.slots - 96)
    late = truth.window(truth.start, now.slots - 6)
    stale, fresh = (Blend(issued, lag_hours=hours).forecast(late, 48) for hours in (0, 6))
    newest = [one.traces().provenance[0].origins[-1].issued_at for one in (stale, fresh)]
    assert newest == [iso(late.end), iso(now.end)]


def test_the_pooled_weights_are_those_of_such_a_fit() -> None:
    assert pooled_weights().shape == (len(EDGES_H), len(FEATURES))
    found = fit_pooled(archive(traces(120, 3), error=0.2), 0.5)
    assert found[8, FEATURES.index("provider")] > 0.4


def test_a_twofold_bias_in_real_forecasts(shared_data: Path) -> None:
    real = read_archive(shared_data / "forecasts", ["FI"])
    truth = real.actuals["FI"]
    starts = window_starts(truth, every=24 * 5)
    blended, raw = (backtest(method, truth, starts, replanning=()).mape.mean() for method in (Blend(real), real))
    assert raw > 0.9
    assert blended < 0.45
