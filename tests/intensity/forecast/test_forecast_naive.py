"""Persistence and the same-hour mean, the oracle, and finding forecasters by name."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from forecast_cases import START, traces

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import Persistence, SameHourMean
from slackwater.intensity.forecast.forecasters import (
    FORECASTERS,
    Oracle,
    forecaster,
    forecaster_names,
    register_forecaster,
)
from slackwater.intensity.forecast.ridge import Ridge
from slackwater.intensity.traces import Traces


def test_persistence_repeats_the_last_day() -> None:
    truth = traces(10)
    made = Persistence().forecast(truth, 60)
    assert np.array_equal(made.mean[:, :24], truth.intensity[:, -24:])
    assert np.array_equal(made.mean[:, 24:48], truth.intensity[:, -24:])
    assert made.start == truth.end
    assert made.source == "persistence"


def test_the_same_hour_mean() -> None:
    truth = traces(10)
    made = SameHourMean(days=3).forecast(truth, 30)
    assert made.mean[1, 25] == pytest.approx(truth.intensity[1, [-23, -47, -71]].mean())


def test_slots_of_other_lengths() -> None:
    truth = traces(10, slot_minutes=15)
    assert np.array_equal(Persistence().forecast(truth, 96).mean, truth.intensity[:, -96:])
    day = traces(20, slot_minutes=1440)
    assert np.array_equal(Persistence().forecast(day, 2).mean, day.intensity[:, [-1, -1]])


def test_the_interval_holds_what_it_promises() -> None:
    truth = traces(200, 4)
    inside = []
    for slot in range(40 * 24, 190 * 24, 131):
        made = SameHourMean(coverage=0.8).forecast(truth.window(truth.start, slot), 96)
        came = truth.intensity[:, slot : slot + 96]
        inside.append(((came >= made.low) & (came <= made.high)).mean())
    assert np.mean(inside) == pytest.approx(0.8, abs=0.06)


def test_a_short_history_is_said(caplog: pytest.LogCaptureFixture) -> None:
    truth = traces(2).window(START, 5)
    with caplog.at_level(logging.WARNING):
        method = Persistence()
        made, *_ = (method.forecast(truth, 10) for _ in range(3))
    assert made.mean == pytest.approx(np.repeat(truth.intensity.mean(axis=1, keepdims=True), 10, axis=1))
    assert "5 of 24 slots of history" in made.source
    assert len(caplog.records) == 1, "said once, not at every re-planning"


def test_what_cannot_be_forecast() -> None:
    empty = Traces(zones=("A",), start=START, intensity=np.zeros((1, 0)), factor="direct")
    with pytest.raises(DataError, match="no history"):
        Persistence().forecast(empty, 3)
    with pytest.raises(ScenarioError, match="slots is 0"):
        Persistence().forecast(traces(2), 0)
    with pytest.raises(ScenarioError, match=r"coverage is 1\.5"):
        Persistence(coverage=1.5)
    with pytest.raises(ScenarioError, match="days is 0"):
        SameHourMean(0)


def test_the_oracle_knows_and_ends_with_the_truth() -> None:
    truth = traces(10)
    made = Oracle(truth).forecast(truth.window(truth.start, 100), 40)
    assert np.array_equal(made.mean, truth.intensity[:, 100:140])
    with pytest.raises(DataError, match="is outside"):
        Oracle(truth).forecast(truth.window(truth.start, 239), 2)
    with pytest.raises(DataError, match="load both with the same settings"):
        Oracle(truth).forecast(traces(3, slot_minutes=30), 2)


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FORECASTERS, "own", dict(FORECASTERS.own))
    assert {"persistence", "same-hour-mean", "ridge", "blend", "oracle", "error-model"} <= set(forecaster_names())
    made = forecaster("Same-Hour-Mean ", days=3)
    assert isinstance(made, SameHourMean)
    assert made.days == 3
    with pytest.raises(ScenarioError, match="Did you mean 'ridge'"):
        forecaster("rigde")
    with pytest.raises(ScenarioError, match="does not accept these options"):
        forecaster("oracle")
    register_forecaster("mine", Ridge)
    assert isinstance(forecaster("mine"), Ridge)
    with pytest.raises(ScenarioError, match="already"):
        register_forecaster("ridge", Persistence)
    with pytest.raises(ScenarioError, match="needs a name"):
        register_forecaster("", Persistence)


def test_other_packages_bring_forecasters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "theirs"

        def load(self) -> Any:
            return Persistence

    monkeypatch.setattr(
        "slackwater.registry.entry_points", lambda group: [Point()] if group == "slackwater.forecasters" else []
    )
    assert "theirs" in forecaster_names()
    assert isinstance(forecaster("theirs"), Persistence)
