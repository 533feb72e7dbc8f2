"""What is known of the intensity when a slot begins: played back from files, or asked from providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from slackwater import time_source
from slackwater.carbon.traces import Traces
from slackwater.forecasting.forecast import Forecast, Forecaster
from slackwater.forecasting.naive import slots_per_day
from slackwater.intensity import ProviderFeed
from slackwater.ledger.ledger import IntensityKind
from slackwater.planning.problem import Problem
from slackwater.replanning.replay import Replay, replay


class IntensityFeed(Protocol):
    """A source of actuals and forecasts. What is missing is told in `notes`."""

    def until(self, slot: int) -> Traces:
        """Return the actuals known when a slot begins; those of the slot itself are not among them."""

    def forecast(self, known: Traces) -> Forecast | None:
        """Return a forecast from the end of what is known to the end of the horizon; None where there is none."""

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return where an actual is from, and its kind."""

    def past(self, known: Traces) -> Replay | None:
        """Return what plans before the run emitted beyond their prediction; None where that cannot be known."""

    def notes(self) -> list[str]:
        """Return the notes collected since the last call, as sentences."""


class Playback:
    """Actuals from files, `lag` slots after their end, and a forecaster that sees no more."""

    def __init__(self, problem: Problem, actuals: Traces, forecaster: Forecaster, *, lag: int = 1) -> None:
        self._problem, self._actuals, self._forecaster, self._lag = problem, actuals, forecaster, lag
        self._provenance = {known.zone: known for known in actuals.provenance}

    def until(self, slot: int) -> Traces:
        """Return all that ended `lag` slots before; at the end of the files all there is."""
        end = min(self._problem.slot_start(slot - self._lag), self._actuals.end)
        return self._actuals.window(self._actuals.start, _slots(self._actuals.start, end, self._actuals))

    def forecast(self, known: Traces) -> Forecast | None:
        """Return the forecaster's forecast."""
        return self._forecaster.forecast(known, _ahead(self._problem, known))

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return the origin that the files state."""
        known = self._provenance.get(zone)
        if known is None:
            return "unknown", "estimated"
        return known.origin(self._problem.slot_start(slot), self._problem.slot_start(slot + 1))

    def past(self, known: Traces) -> Replay | None:
        """Return how plans before the run did, with the same forecaster."""
        return replay(self._problem, known, self._forecaster, slots=_ahead(self._problem, known), lag=self._lag)

    def notes(self) -> list[str]:
        """Return nothing: files give no notes."""
        return []


class Providers:
    """Asks providers during the run. While nobody answers, it knows what it knew before."""

    def __init__(
        self,
        problem: Problem,
        feed: ProviderFeed,
        *,
        now: Callable[[], datetime] = time_source.now,
    ) -> None:
        self._problem, self._feed, self._now = problem, feed, now
        self._expected: tuple[datetime, Forecast] | None = None

    def until(self, slot: int) -> Traces:
        """Return what all zones have when a slot begins; after the horizon, all that has come since."""
        self._expected = None
        if slot <= self._problem.horizon:
            return self._feed.until(self._problem.slot_start(slot))
        over, step = (
            self._problem.slot_start(self._problem.horizon),
            timedelta(minutes=self._problem.traces.slot_minutes),
        )
        at = over + max(0, (self._now() - over) // step) * step
        return self._feed.until(at, since=self._problem.first_slot)

    def forecast(self, known: Traces) -> Forecast:
        """Return the blend of the providers' forecast and ours, or what the named forecaster says."""
        if self._expected is None or self._expected[0] != known.end:
            self._expected = known.end, self._feed.forecast(known, _ahead(self._problem, known))
        return self._expected[1]

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return the provider that gave the value, and its kind."""
        return self._feed.origin(zone, self._problem.slot_start(slot))

    def past(self, known: Traces) -> Replay | None:
        """Return how plans of the past did; only what was measured tells."""
        self.forecast(known)  # the newest forecasts are asked for first, so that plans of the past are made with them
        measured = self._feed.measured(known)
        if measured is None:
            return None
        lag = max(0, _slots(known.end, self._problem.first_slot, known))
        return replay(self._problem, measured, self._feed.forecaster, slots=_ahead(self._problem, known), lag=lag)

    def notes(self) -> list[str]:
        """Return what was odd since the last call."""
        return self._feed.notes()


def intensity_at(known: Traces, zones: Sequence[str], moment: datetime) -> dict[str, float]:
    """Return zone -> actual intensity in the slot that begins at a moment, kg/kWh."""
    one = known.window(moment, 1)
    return {zone: float(one.intensity[one.index(zone), 0]) for zone in zones}


def _slots(start: datetime, end: datetime, traces: Traces) -> int:
    return int((end - start) // timedelta(minutes=traces.slot_minutes))


def _ahead(problem: Problem, known: Traces) -> int:
    """Return the slots to the end of the horizon, in whole days: a forecaster's fit then serves for hours."""
    needed = _slots(known.end, problem.slot_start(problem.horizon), known)
    day = slots_per_day(known)
    return max(1, -(-needed // day)) * day
