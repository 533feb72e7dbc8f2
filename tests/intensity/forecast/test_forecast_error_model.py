"""The error model errs as it is told to: slope by day, memory, and the same in every run of a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forecast_cases import traces
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.archive import read_archive
from slackwater.intensity.forecast.forecasters import Calibration, ErrorModel, forecaster
from slackwater.intensity.forecast.skill import backtest, window_starts
from slackwater.intensity.traces import Traces

Floats = NDArray[np.float64]


def simulated(truth: Traces, **options: object) -> tuple[Floats, Floats, Floats]:
    """Actual and forecast [issue, hour] and the mean they shrink to, of daily issues."""
    model = ErrorModel(truth, **options)  # type: ignore[arg-type]
    actual, made, mean = [], [], []
    for slot in range(28 * 24, truth.slots - 96, 24):
        history = truth.window(truth.start, slot)
        actual.append(truth.intensity[0, slot : slot + 96])
        made.append(model.forecast(history, 96).mean[0])
        mean.append(history.intensity[0, -28 * 24 :].mean())
    return np.array(actual), np.array(made), np.array(mean)[:, None]


def test_slopes_and_memory_are_the_calibrated_ones() -> None:
    actual, made, mean = simulated(traces(700, 1))
    deviation, forecast = actual - mean, made - mean
    residuals = []
    for day, slope in enumerate(Calibration().slope):
        part = slice(24 * day, 24 * day + 24)
        found = (deviation[:, part] * forecast[:, part]).sum() / (deviation[:, part] ** 2).sum()
        assert found == pytest.approx(slope, abs=0.06)
        residuals.append(forecast[:, part] - slope * deviation[:, part])
        size = residuals[-1].std() / actual.std()
        assert size == pytest.approx(Calibration().residual[day], rel=0.15)
    first = residuals[0]
    lag_1 = np.corrcoef(first[:, :-1].ravel(), first[:, 1:].ravel())[0, 1]
    assert lag_1 == pytest.approx(Calibration().autocorrelation, abs=0.02)
    again = np.corrcoef(residuals[1][:-1].ravel(), residuals[0][1:].ravel())[0, 1]
    assert again == pytest.approx(Calibration().shared, abs=0.08), "of the same hour, a day later"


def test_the_same_seed_gives_the_same_and_a_later_hour_the_same_issue() -> None:
    truth = traces(60, 2)
    history = truth.window(truth.start, 1200)
    one, two, other = (ErrorModel(truth, seed=seed).forecast(history, 96) for seed in (1, 1, 2))
    assert np.array_equal(one.mean, two.mean)
    assert not np.array_equal(one.mean, other.mean)
    still = ErrorModel(truth, seed=1, calibration=Calibration(slope=(1.0,), residual=(0.5,)))
    now, later = (still.forecast(truth.window(truth.start, slot), 40).mean for slot in (1200, 1205))
    # Only the spread over the history, which sets the size of the residual, moves with the hour.
    assert now[:, 5:] == pytest.approx(later[:, :35], rel=0.02)


def test_without_errors_it_is_the_oracle() -> None:
    truth = traces(60, 2)
    none = forecaster("error-model", truth=truth, calibration=Calibration(slope=(1.0,), residual=(0.0,)))
    assert none.forecast(truth.window(truth.start, 1000), 96).mean == pytest.approx(truth.intensity[:, 1000:1096])


def test_a_zone_has_its_own_errors_in_any_company() -> None:
    truth = traces(60, 2)
    both = ErrorModel(truth).forecast(truth.window(truth.start, 1000), 48)
    alone = Traces(zones=("Z1",), start=truth.start, intensity=truth.intensity[1:], factor=truth.factor)
    assert np.array_equal(ErrorModel(alone).forecast(alone.window(alone.start, 1000), 48).mean[0], both.mean[1])


def test_it_ends_with_the_truth_and_checks_its_settings() -> None:
    truth = traces(20)
    with pytest.raises(DataError, match="is outside"):
        ErrorModel(truth).forecast(truth, 1)
    with pytest.raises(ScenarioError, match="issued_every_hours is 0"):
        ErrorModel(truth, issued_every_hours=0)


def test_planning_on_it_costs_what_planning_on_real_forecasts_does(shared_data: Path) -> None:
    real = read_archive(shared_data / "forecasts", ["ES", "IT", "NL", "SE"])
    shares: dict[str, list[float]] = {"real": [], "model": []}
    for zone in real.zones:
        truth = real.actuals[zone]
        starts = window_starts(truth, every=48)
        for name, method in (("real", real), ("model", ErrorModel(truth))):
            test = backtest(method, truth, starts, replanning=("one-shot",))
            shares[name].append(float(test.share("one-shot")[0]))
    assert np.mean(shares["model"]) == pytest.approx(np.mean(shares["real"]), abs=0.1)
