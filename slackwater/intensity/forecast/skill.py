"""How good a forecast is for planning: the share of the oracle's savings that it captures.

The task is that of a single site: run in `take` of the coming `window` hours, planned once, every day or every hour. Each
re-plan chooses the remaining hours by the forecast at that time. Savings are relative to the mean of the window, which is
the expected emission of a random start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import Forecaster, slots_per_day
from slackwater.intensity.traces import Traces

Floats = NDArray[np.float64]

REPLANNING = ("one-shot", "daily", "hourly")
WARM_UP_DAYS = 28
"""Days of history before the first window."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BackTest:
    """Results by zone, as shares from 0 to 1; NaN if undefined."""

    zones: tuple[str, ...]
    method: str
    windows: int
    window: int
    """Slots of a window."""
    take: int
    """Slots to run in it."""
    mape: Floats
    """[zone, day ahead]: mean absolute error as a share of the actual; slots with an actual of 0 are skipped."""
    coverage: Floats
    """[zone, day ahead]: share of actuals inside the interval."""
    oracle: Floats
    """[zone]: savings of perfect foresight, mean over the windows."""
    saved: dict[str, Floats]
    """By re-planning interval, [zone]: savings of planning with the forecast."""

    def share(self, replanning: str) -> Floats:
        """Return savings [zone] as a share of the oracle's; NaN in a zone without any."""
        share = np.full(len(self.zones), np.nan)
        np.divide(self.saved[replanning], self.oracle, out=share, where=self.oracle > 1e-9)
        return share

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON holds it."""
        return {
            "method": self.method,
            "windows": self.windows,
            "window": self.window,
            "take": self.take,
            "zones": [
                {
                    "zone": zone,
                    "mape_by_day": self.mape[row].tolist(),
                    "coverage_by_day": self.coverage[row].tolist(),
                    "oracle_saves": float(self.oracle[row]),
                    "share_of_oracle": {name: float(self.share(name)[row]) for name in self.saved},
                }
                for row, zone in enumerate(self.zones)
            ],
        }


def window_starts(truth: Traces, *, window: int = 96, every: int = 24, warm_up: int | None = None) -> list[int]:
    """Return the slots at which a window can start, at a fixed distance after the warm-up."""
    day = slots_per_day(truth)
    first = WARM_UP_DAYS * day if warm_up is None else warm_up
    starts = list(range(first, truth.slots - window + 1, every))
    if not starts:
        raise DataError(
            f"{truth.slots} slots are too few for a test: it needs {first} of history and a window of {window}."
        )
    return starts


def backtest(
    forecaster: Forecaster, truth: Traces, starts: Sequence[int], *, window: int = 96, take: int = 24,
    replanning: Sequence[str] = REPLANNING, progress: Callable[[int], None] = lambda done: None,
) -> BackTest:  # fmt: skip
    """Plan and re-plan every window with the forecasts of its time; all zones have the same windows."""
    if not 0 < take <= window:
        raise ScenarioError(f"take is {take}; choose between 1 and {window} of the {window} slots.")
    if unknown := [name for name in replanning if name not in REPLANNING]:
        raise ScenarioError(f"There is no re-planning {unknown[0]!r}. Known: {', '.join(REPLANNING)}.")
    day = slots_per_day(truth)
    steps = {"one-shot": window, "daily": day, "hourly": max(day // 24, 1)}
    known: dict[int, Floats] = {}
    """Forecasts [zone, slot] by origin; windows overlap, and each forecast is made once."""
    errors, inside, oracle = [], [], []
    saved: dict[str, list[Floats]] = {name: [] for name in replanning}
    for done, start in enumerate(sorted(starts)):
        known = {origin: values for origin, values in known.items() if origin >= start}
        actual = truth.intensity[:, start : start + window]
        first = forecaster.forecast(truth.window(truth.start, start), window)
        known[start] = first.mean
        errors.append(_by_day(_relative_error(first.mean, actual), day))
        inside.append(_by_day(((actual >= first.low) & (actual <= first.high)).astype(np.float64), day))
        oracle.append(_saving(actual, cheapest(actual, take)))

        every = min((steps[name] for name in replanning), default=window)
        wanted = [start + at for at in range(0, window, every) if start + at not in known]
        known.update(zip(wanted, _means(forecaster, truth, wanted, window), strict=True))

        def ahead(at: int, start: int = start, known: dict[int, Floats] = known) -> Floats:
            return known[start + at][:, : window - at]

        for name in replanning:
            saved[name].append(_saving(actual, run(ahead, len(truth.zones), window, take, steps[name])))
        progress(done + 1)
    return BackTest(
        zones=truth.zones, method=forecaster.name, windows=len(starts), window=window, take=take,
        mape=_mean(errors), coverage=_mean(inside), oracle=_mean(oracle),
        saved={name: _mean(values) for name, values in saved.items()},
    )  # fmt: skip


def _means(forecaster: Forecaster, truth: Traces, origins: Sequence[int], window: int) -> Sequence[Floats]:
    """Return forecasts at many origins; a forecaster with `means` makes them at once, which is much quicker."""
    many = getattr(forecaster, "means", None)
    if many is not None and origins:
        made: Floats = many(truth, origins, window)
        return list(made)
    return [
        forecaster.forecast(truth.window(truth.start, origin), min(window, truth.slots - origin)).mean
        for origin in origins
    ]


def run(ahead: Callable[[int], Floats], zones: int, window: int, take: int, every: int) -> NDArray[np.bool_]:
    """Return [zone, slot], where each zone runs, re-planned at a fixed interval with `ahead(slot)`."""
    ran = np.zeros((zones, window), dtype=np.bool_)
    for at in range(0, window, every):
        left = take - ran.sum(axis=1)
        if not left.any():
            break
        upto = min(at + every, window)
        ran[:, at:upto] = cheapest(ahead(at), left)[:, : upto - at]
    return ran


def cheapest(values: Floats, count: int | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return [zone, slot], the `count` lowest of each row, the earlier of equals."""
    rank = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1, kind="stable")
    chosen: NDArray[np.bool_] = rank < np.reshape(count, (-1, 1))
    return chosen


def _saving(actual: Floats, ran: NDArray[np.bool_]) -> Floats:
    """Return by which share [zone] the chosen slots are below the mean of all; NaN if nothing is emitted."""
    mean = actual.mean(axis=1)
    share = np.full(len(actual), np.nan)
    np.divide((actual * ran).sum(axis=1) / ran.sum(axis=1), mean, out=share, where=mean > 0.0)
    return 1.0 - share


def _relative_error(forecast: Floats, actual: Floats) -> Floats:
    error = np.full(actual.shape, np.nan)
    np.divide(np.abs(forecast - actual), actual, out=error, where=actual > 0.0)
    return error


def _by_day(values: Floats, day: int) -> Floats:
    """Return [zone, day]: the mean over each day without NaN."""
    return np.array([_mean(list(values[:, first : first + day].T)) for first in range(0, values.shape[1], day)]).T


def _mean(parts: list[Floats]) -> Floats:
    """Return the mean over the parts without NaN; NaN if all are NaN."""
    stacked = np.array(parts)
    there = ~np.isnan(stacked)
    count = there.sum(axis=0)
    return np.where(count > 0, np.where(there, stacked, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
