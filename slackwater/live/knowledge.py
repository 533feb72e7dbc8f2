"""What is known of the intensity when a slot begins: played back from files, or asked from providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError
from slackwater.forecasting.forecast import Forecast, Forecaster
from slackwater.forecasting.naive import slots_per_day
from slackwater.ledger.ledger import IntensityKind
from slackwater.planning.problem import Problem
from slackwater.providers import Cache, Chain, Context, Source, to_traces
from slackwater.providers.values import Answer, Kind
from slackwater.replanning.replay import Replay, replay
from slackwater.replanning.settings import Settings
from slackwater.units import iso

_LOOKBACK_DAYS = Settings().lookback_days


class Knowledge(Protocol):
    """A source of actuals and forecasts. What cannot be had is said in `notes`, and done without where that is safe."""

    def until(self, slot: int) -> Traces:
        """Actuals that are known when a slot begins; those of the slot itself are not among them."""
        ...

    def forecast(self, known: Traces) -> Forecast | None:
        """From the end of what is known to the end of the horizon; None where there is none to be had."""
        ...

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Where an actual is from, and what it is."""
        ...

    def past(self, known: Traces) -> Replay | None:
        """What plans of the time before the run emitted beyond what they said; None where that cannot be known."""
        ...

    def notes(self) -> list[str]:
        """What was odd since this was last asked, in sentences."""
        ...


class Playback:
    """Actuals from files, `lag` slots after their end, and a forecaster that sees no more."""

    def __init__(self, problem: Problem, actuals: Traces, forecaster: Forecaster, *, lag: int = 1) -> None:
        self._problem, self._actuals, self._forecaster, self._lag = problem, actuals, forecaster, lag
        self._provenance = {known.zone: known for known in actuals.provenance}

    def until(self, slot: int) -> Traces:
        """All that ended `lag` slots before; at the end of the files all there is."""
        end = min(self._problem.slot_start(slot - self._lag), self._actuals.end)
        return self._actuals.window(self._actuals.start, _slots(self._actuals.start, end, self._actuals))

    def forecast(self, known: Traces) -> Forecast | None:
        """What the forecaster makes of it."""
        return self._forecaster.forecast(known, _ahead(self._problem, known))

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """As the files say."""
        known = self._provenance.get(zone)
        if known is None:
            return "unknown", "estimated"
        start, end = self._problem.slot_start(slot), self._problem.slot_start(slot + 1)
        return known.source, known.certainty(start, end)

    def past(self, known: Traces) -> Replay | None:
        """With the same forecaster, before the run."""
        return replay(self._problem, known, self._forecaster, slots=_ahead(self._problem, known), lag=self._lag)

    def notes(self) -> list[str]:
        """Files are never odd."""
        return []


class Providers:
    """Asked as the run goes on. While nobody answers, what was known before is all that is known."""

    def __init__(
        self,
        problem: Problem,
        *,
        data: Mapping[str, Any],
        folder: Path,
        forecaster: Forecaster | None = None,
        source: Source | None = None,
    ) -> None:
        """`data` is the scenario's, `folder` that of the scenario. Without a forecaster the providers' own is asked."""
        factor = data.get("factor", "lifecycle")
        self._mix = factor == "mixed"
        context = Context.usual(factor="lifecycle" if self._mix else factor, folder=folder)
        self._source = source or Chain(data["source"], context=context, cache=Cache(), mix_factors=self._mix)
        self._problem, self._forecaster = problem, forecaster
        self._fill_hours = int(data.get("fill_hours", 0))
        self._zones = sorted({str(zone) for zone in problem.fleet.zone})
        self._known: Traces | None = None
        self._kinds: dict[tuple[str, datetime], tuple[str, Kind]] = {}
        self._notes: list[str] = []

    def until(self, slot: int) -> Traces:
        """What all zones have by now; where asking fails, what they had before."""
        start = self._problem.first_slot - timedelta(days=_LOOKBACK_DAYS)
        end = self._problem.slot_start(slot)
        try:
            answer = self._source.fetch(self._zones, start, end, "actual")
            self._notes += answer.notes
            known = self._traces(answer, *self._common(answer, start, end))
        except DataError as error:
            if self._known is None:
                raise
            self._notes.append(f"No new actual intensity: {error}")
        else:
            if self._known is None or known.end >= self._known.end:
                self._known = known
                self._kinds |= {(r.zone, r.start): (r.source, r.kind) for r in answer.readings}
        return self._known.window(
            self._known.start, min(self._known.slots, _slots(self._known.start, end, self._known))
        )

    def forecast(self, known: Traces) -> Forecast | None:
        """By the forecaster, else the providers' own; None if it cannot be had."""
        slots = _ahead(self._problem, known)
        if self._forecaster is not None:
            return self._forecaster.forecast(known, slots)
        end = self._problem.slot_start(self._problem.horizon)
        try:
            answer = self._source.fetch(self._zones, known.end, end, "forecast")
            mean = self._traces(answer, *self._common(answer, known.end, end))
        except DataError as error:
            self._notes.append(f"There is no forecast from the providers: {error}")
            return None
        return Forecast(
            zones=mean.zones,
            start=mean.start,
            mean=mean.intensity,
            low=mean.intensity,
            high=mean.intensity,
            coverage=0.0,
            factor=mean.factor,
            source="; ".join(dict.fromkeys(one.source for one in mean.provenance)),
            slot_minutes=mean.slot_minutes,
        )

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """The provider that gave the value; of several readings in a slot the first."""
        source, kind = self._kinds.get((zone, self._problem.slot_start(slot)), ("interpolated", "estimated"))
        return source, kind

    def past(self, known: Traces) -> Replay | None:
        """Only with a forecaster of our own: what a provider said in the past it does not tell."""
        if self._forecaster is None:
            return None
        return replay(self._problem, known, self._forecaster, slots=_ahead(self._problem, known))

    def notes(self) -> list[str]:
        """What was odd since this was last asked."""
        said, self._notes = list(dict.fromkeys(self._notes)), []
        return said

    def _common(self, answer: Answer, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """From the first to the last slot that all zones have; gaps between are for `to_traces` to judge."""
        step = timedelta(minutes=self._problem.traces.slot_minutes)
        readings = [answer.of(zone) for zone in self._zones]
        first = max(max(min((r.start for r in one), default=end) for one in readings), start)
        first = start + -((start - first) // step) * step
        last = min(min(max((r.end for r in one), default=start) for one in readings), end)
        slots = (last - first) // step
        if slots < 1:
            answer.expect()
            raise DataError(f"No provider has values of {', '.join(self._zones)} from {iso(start)} to {iso(end)}.")
        return first, first + slots * step

    def _traces(self, answer: Answer, start: datetime, end: datetime) -> Traces:
        return to_traces(
            answer,
            self._zones,
            start,
            end,
            mix_factors=self._mix,
            slot_minutes=self._problem.traces.slot_minutes,
            fill_hours=self._fill_hours,
        )


def intensity_at(known: Traces, zones: Sequence[str], moment: datetime) -> dict[str, float]:
    """Zone -> actual intensity in the slot that begins at a moment, kg/kWh."""
    one = known.window(moment, 1)
    return {zone: float(one.intensity[one.index(zone), 0]) for zone in zones}


def _slots(start: datetime, end: datetime, traces: Traces) -> int:
    return int((end - start) // timedelta(minutes=traces.slot_minutes))


def _ahead(problem: Problem, known: Traces) -> int:
    """Slots to the end of the horizon, in whole days: a forecaster's fit then serves for hours."""
    needed = _slots(known.end, problem.slot_start(problem.horizon), known)
    day = slots_per_day(known)
    return max(1, -(-needed // day)) * day
