"""Which clients train in a slot of a live run: by a fixed plan, or re-planned with the intensity known at that time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slackwater import time_source
from slackwater.errors import DataError
from slackwater.intensity.feed import ProviderFeed
from slackwater.intensity.forecast.base import Forecast, Forecaster, slots_per_day
from slackwater.intensity.traces import INTERPOLATED, Traces
from slackwater.ledger.journal import Replan
from slackwater.ledger.ledger import GIVEN_KG, WAITING, Cause, Charge, IntensityKind, Ledger, ModelledCharges
from slackwater.planning.emissions import waiting_kg
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.replanning.backtest import without_intensity
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.reserve import Bounds, PastPlans, past_plans
from slackwater.replanning.run_state import Settings, State

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """The decision for one slot."""

    slot: int
    trains: Mask  # [client]
    missing: Mask  # [client], planned but offline
    in_window: bool
    expected_kg: Mapping[tuple[str, str], float]
    """(client, cause) -> kg that the current plan expects of the slot, including clients that are offline or too expensive."""
    charges: tuple[Charge, ...]
    """Charges before the slot starts, at an upper bound if the actual is unknown."""
    protected_kg: float  # kept for the window, if it is still ahead
    left: NDArray[np.int64]  # [client], its planned slots before the window, including this one
    before: int  # slots before the window, as planned now
    work: Mapping[int, float] = field(default_factory=dict)  # client -> share of the local work, below full power
    replan: Replan | None = None
    messages: tuple[str, ...] = ()


class ScheduleSource(Protocol):
    """Decides slot by slot; `state` is its whole state."""

    @property
    def slot(self) -> int:
        """Return the next slot to decide."""

    @property
    def finished(self) -> bool:
        """Return whether all slots are decided."""

    def settle(self, ledger: Ledger) -> int:
        """Settle the charges whose actuals are known when the next slot starts; return the number of lines."""

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """Decide the next slot, by which clients are online [client]; plans leave out clients that are `away`."""

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Record the outcome of the last decided slot: which clients drew power, were used and were missing, [client]."""

    def lose(self, slot: int) -> None:
        """Count the work of an earlier slot as lost, because its model is lost."""

    def coming(self) -> NDArray[np.bool_]:
        """Return the schedule from the next slot on, [client, slot], including the window."""

    def to_come_kg(self) -> NDArray[np.float64] | None:
        """Return the emissions that the current plan predicts for each coming slot, kg; None without a plan."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON holds it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


class FixedPlan:
    """A fixed plan. Its intensity is charged, whether actual or forecast, so there is nothing to settle.

    Lost slots are not replaced, but the weights make up for them.
    """

    def __init__(self, plan: Plan, problem: Problem | None = None) -> None:
        """Follow a plan; `problem` replaces the plan's for charging, if the real model has another size."""
        self._expected, plan = ModelledCharges(plan), plan if problem is None else replace(plan, problem=problem)
        self.plan, self._matrix = plan, plan.matrix
        self._lines = ModelledCharges(plan)
        self._names = [str(name) for name in plan.problem.fleet.names]
        self._slot = 0
        self._stop = plan.problem.rounds + plan.end
        self._kg = plan.kg_by_slot
        self._waiting_kg = waiting_kg(plan.problem, plan.packed, plan.end)

    @property
    def slot(self) -> int:
        """Return the next slot to decide."""
        return self._slot

    @property
    def finished(self) -> bool:
        """Return whether the plan's last slot is decided."""
        return self._slot >= self._stop

    def settle(self, ledger: Ledger) -> int:
        """Return 0: there is nothing to settle."""
        return 0

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """Let the clients train that are planned and online; before the window, nobody if they are no quorum."""
        slot, before = self._slot, self.plan.before
        planned, least = self._matrix[:, slot], self.plan.problem.min_parallel
        trains = planned & present
        messages: tuple[str, ...] = ()
        if least is not None and slot < before and planned.any() and trains.sum() < least:
            messages = (
                f"Nobody trains in slot {slot}: only {trains.sum()} of {planned.sum()} planned clients can, and min_parallel "
                f"asks for at least {least}.",
            )
            trains = np.zeros_like(trains)
        who = {self._names[client] for client in np.flatnonzero(trains)}
        lines = [
            line
            for line in self._lines.of(slot, slot)
            if line.cause in WAITING or line.client in who or (line.cause == "server" and who)
        ]
        self._slot += 1
        return Decision(
            slot=slot, trains=trains, missing=planned & ~present, in_window=slot >= before,
            expected_kg={(line.client, line.cause): line.kg for line in self._expected.of(slot, slot)},
            charges=tuple(lines), protected_kg=self._protected_kg(slot),
            left=self._matrix[:, slot : max(before, slot)].sum(axis=1), before=before,
            work={client: work for client, work in self.plan.lower_work(slot).items() if trains[client]}, messages=messages,
        )  # fmt: skip

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Do nothing: the plan stays."""

    def lose(self, slot: int) -> None:
        """Do nothing: the plan stays."""

    def coming(self) -> NDArray[np.bool_]:
        """Return the rest of the plan."""
        coming = self._matrix.copy()
        coming[:, : self._slot] = False
        return coming

    def to_come_kg(self) -> NDArray[np.float64] | None:
        """Return the emissions of the rest of the plan, by slot."""
        return np.asarray(self._kg[self._slot : self._stop])

    def state(self) -> dict[str, Any]:
        """Return the next slot."""
        return {"slot": self._slot}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._slot = int(state["slot"])

    def _protected_kg(self, slot: int) -> float:
        """Return the kg of the window, and of idle draw and starts before it; inside it, of its remaining slots."""
        before = max(self.plan.before, slot + 1)
        return float(self._kg[before : self._stop].sum() + self._waiting_kg[slot + 1 : before].sum())


class IntensityFeed(Protocol):
    """A source of actuals and forecasts. `notes` reports missing values."""

    def until(self, slot: int) -> Traces:
        """Return the actuals known when a slot starts, without those of the slot itself."""

    def forecast(self, known: Traces) -> Forecast | None:
        """Return a forecast from the last actual to the end of the horizon; None without a forecast."""

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return the source of an actual, and its kind."""

    def past(self, known: Traces) -> PastPlans | None:
        """Return what plans before the run emitted beyond their prediction; None if unknown."""

    def notes(self) -> list[str]:
        """Return the notes collected since the last call, as sentences."""


class Playback:
    """Actuals from files, known `lag` slots after their end, and a forecaster that sees the same."""

    def __init__(self, problem: Problem, actuals: Traces, forecaster: Forecaster, *, lag: int = 1) -> None:
        self._problem, self._actuals, self._forecaster, self._lag = problem, actuals, forecaster, lag
        self._provenance = {known.zone: known for known in actuals.provenance}

    def until(self, slot: int) -> Traces:
        """Return all actuals that ended `lag` slots before; at the end of the files, all of them."""
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

    def past(self, known: Traces) -> PastPlans | None:
        """Return how plans before the run did, with the same forecaster."""
        return past_plans(self._problem, known, self._forecaster, slots=_ahead(self._problem, known), lag=self._lag)

    def notes(self) -> list[str]:
        """Return nothing: files give no notes."""
        return []


class Providers:
    """Asks providers during the run. While none answers, the last known values stay."""

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
        """Return the actuals of all zones when a slot starts; after the horizon, all known since."""
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
        """Return the blend of the providers' forecast and ours, or that of the named forecaster."""
        if self._expected is None or self._expected[0] != known.end:
            self._expected = known.end, self._feed.forecast(known, _ahead(self._problem, known))
        return self._expected[1]

    def origin(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return the provider that gave the value, and its kind."""
        return self._feed.origin(zone, self._problem.slot_start(slot))

    def past(self, known: Traces) -> PastPlans | None:
        """Return how past plans did, using measured actuals only."""
        self.forecast(known)  # fetch the newest forecasts first, so that past plans use them
        measured = self._feed.measured(known)
        if measured is None:
            return None
        lag = max(0, _slots(known.end, self._problem.first_slot, known))
        return past_plans(self._problem, measured, self._feed.forecaster, slots=_ahead(self._problem, known), lag=lag)

    def notes(self) -> list[str]:
        """Return the notes collected since the last call."""
        return self._feed.notes()


def intensity_at(known: Traces, zones: Sequence[str], moment: datetime) -> dict[str, float]:
    """Return zone -> actual intensity in the slot that starts at a moment, kg/kWh."""
    one = known.window(moment, 1)
    return {zone: float(one.intensity[one.index(zone), 0]) for zone in zones}


def _slots(start: datetime, end: datetime, traces: Traces) -> int:
    return int((end - start) // timedelta(minutes=traces.slot_minutes))


def _ahead(problem: Problem, known: Traces) -> int:
    """Return the slots to the end of the horizon, in whole days, so that a forecaster's fit can be reused for hours."""
    needed = _slots(known.end, problem.slot_start(problem.horizon), known)
    day = slots_per_day(known)
    return max(1, -(-needed // day)) * day


BOUND = "upper bound from the last {days} days"
_LATEST_ACTUAL = timedelta(days=1)
"""How long to wait for an actual, with its charge at the upper bound."""


class Replanned:
    """Re-plans the remaining slots with the controller of `slackwater.replanning`."""

    def __init__(
        self, problem: Problem, intensity: IntensityFeed, settings: Settings, first: Mask | None = None
    ) -> None:
        """Control a run of the problem; `first` [client, slot] is the plan until the first re-plan."""
        self.problem, self.intensity = without_intensity(problem), intensity
        self._first = np.zeros((len(problem.fleet), problem.horizon), dtype=bool) if first is None else first
        self.controller = Controller(self.problem, settings)
        self._names = [str(name) for name in problem.fleet.names]
        self._forecast: Forecast | None = None
        self._known: Traces | None = None
        self._ahead_kg: NDArray[np.float64] | None = None

    @property
    def slot(self) -> int:
        """Return the next slot to decide."""
        return self.controller.state.slot

    @property
    def finished(self) -> bool:
        """Return whether the controller has ended the run."""
        return self.controller.finished

    def settle(self, ledger: Ledger) -> int:
        """Replace charges at an upper bound by the actual; by an interpolated value only after a day without an actual."""
        known = self._known = self.intensity.until(self.slot if not self.finished else 2 * self.problem.horizon)
        settled = _slots_of(self.problem, known)
        by_slot: dict[int, list[Charge]] = {}
        for line in ledger.unsettled(before=settled):
            by_slot.setdefault(line.slot, []).append(line)
        done = 0
        for slot, lines in by_slot.items():
            actual = intensity_at(known, [line.zone for line in lines], self.problem.slot_start(slot))
            for line in lines:
                source, kind = self.intensity.origin(line.zone, slot)
                if source == INTERPOLATED and known.end < self.problem.slot_start(slot + 1) + _LATEST_ACTUAL:
                    continue
                ledger.settle(line, actual[line.zone], source=source, kind=kind)
                done += 1
        return done

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """Let the controller decide with the current data."""
        controller, state = self.controller, self.controller.state
        known = self._known if self._known is not None else self.intensity.until(self.slot)
        controller.problem = self._without(away)
        if state.slot == 0 and state.replay is None and state.planned_at is None and controller.settings.reserve:
            state.replay = self.intensity.past(known)
        messages: list[str] = []
        if present.any() and (controller.due or self._forecast is None):
            try:
                self._forecast = self.intensity.forecast(known)
            except DataError as error:
                messages.append(f"No forecast: {error}")
                self._forecast = None
        then = self._left()
        step = controller.step(
            known, self._forecast, measured_kg=self._measured_kg(ledger, known, state.slot), present=present
        )
        self._ahead_kg = step.ahead_kg
        left = self._left(step.slot)
        wanted = self._first[:, step.slot] & ~away if step.wanted is None else step.wanted
        replan = Replan(
            slot=step.slot,
            reason="due",
            changes={self._names[c]: (int(then[c]), int(left[c])) for c in np.flatnonzero(then != left)},
            reserve_kg=step.reserve_kg,
            planned_kg=step.planned_kg,
        )
        return Decision(
            slot=step.slot,
            trains=step.trains,
            missing=wanted & ~present,
            in_window=step.in_window,
            expected_kg=self._expected_kg(step, wanted),
            charges=tuple(self._lines(step, known)),
            protected_kg=step.protected_kg,
            left=left,
            before=state.window_at,
            work=self._work(step),
            replan=replan if step.replanned else None,
            messages=(*self.intensity.notes(), *messages, *(step.messages if present.any() else ())),
        )

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Report the outcome to the controller, with the slot's current charges."""
        held_kg = sum(ledger.slot_kg(self.slot - 1).values())
        self.controller.realise(drew=drew, used=used, missed=missed, held_kg=held_kg)

    def lose(self, slot: int) -> None:
        """Report the loss to the controller, which re-plans for it."""
        self.controller.lose(slot)

    def coming(self) -> NDArray[np.bool_]:
        """Return the current plan, with all clients in the window."""
        state, there = self.controller.state, self.controller.problem.costs.can_train()
        coming = state.plan.copy()
        coming[:, : state.slot] = False
        if state.planned_at is None or self.finished:
            return coming & False
        first = max(state.slot, state.window_at)
        last = min(self.problem.horizon, first + state.window_slots - state.window_done)
        coming[:, first:] = False
        coming[:, first:last] = there[:, first:last]
        return coming

    def to_come_kg(self) -> NDArray[np.float64] | None:
        """Return the emissions that the last plan still predicts, with the data of the last decision."""
        return np.empty(0) if self.finished else self._ahead_kg

    def state(self) -> dict[str, Any]:
        """Return the controller's state."""
        return self.controller.state.to_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the forecast is fetched again."""
        self._ahead_kg = None
        self.controller = Controller(self.problem, self.controller.settings, State.from_dict(dict(state)))

    def _without(self, away: Mask) -> Problem:
        """Return the problem without clients that are away, so that the window does not wait for them."""
        if not away.any():
            return self.problem
        free = self.problem.costs.can_train() & ~away[:, None]
        return self.problem.with_settings(available=free, window="available")

    def _left(self, since: int | None = None) -> NDArray[np.int64]:
        state = self.controller.state
        first = state.slot if since is None else since
        return np.asarray(state.plan[:, first : max(state.window_at, first)].sum(axis=1), dtype=np.int64)

    def _measured_kg(self, ledger: Ledger, known: Traces, now: int) -> NDArray[np.float64]:
        """Return the emissions of settled rounds from the ledger [client, slot], kg; NaN elsewhere."""
        measured = np.full((len(self._names), self.problem.horizon), np.nan)
        row = {name: client for client, name in enumerate(self._names)}
        for (slot, client), kg in ledger.round_kg(before=min(_slots_of(self.problem, known), now)).items():
            measured[row[client], slot] = kg
        return measured

    def _work(self, step: Step) -> dict[int, float]:
        """Return client -> work in a slot, of the clients that train there below full power."""
        work = self.problem.costs.level_work
        return {int(c): float(work[c, step.level[c]]) for c in np.flatnonzero(step.trains & (step.level > 0))}

    def _drawn(self, step: Step, trains: Mask) -> list[tuple[int, Cause, float]]:
        """Return client, cause and kWh of a slot in which these clients train [client]."""
        costs = self.problem.costs
        if self.controller.state.stopped_at is not None and not trains.any():  # the run ends before this slot
            return []
        drawn: list[tuple[int, Cause, float]] = []
        for waiting, kwh in zip(WAITING, (step.idle_kwh, step.startup_kwh), strict=True):
            drawn += [(int(c), waiting, kwh[c]) for c in np.flatnonzero(kwh)]
        by_level = {"training": costs.level_training_kwh, "evaluation": costs.level_evaluation_kwh}
        for cause, full in costs.round_kwh.items():
            kwh = full
            if cause in by_level and step.level.any():
                kwh = by_level[cause][np.arange(len(full)), step.level]
            drawn += [(int(c), cause, kwh[c]) for c in np.flatnonzero(trains) if cause == "training" or kwh[c] > 0]
        return drawn

    def _expected_kg(self, step: Step, wanted: Mask) -> dict[tuple[str, str], float]:
        """Return (client, cause) -> kg that the plan expects of a slot in which it wants these clients."""
        drawn = self._drawn(step, wanted)
        expected = {
            (self._names[client], str(cause)): float(kwh * step.intensity[client]) for client, cause, kwh in drawn
        }
        if self.problem.costs.server_kg is not None and wanted.any():
            expected["", "server"] = step.server_kg
        return expected

    def _lines(self, step: Step, known: Traces) -> list[Charge]:
        """Return lines that add up to the joint bound: the zones' bounds, scaled to it."""
        problem, fleet, settings = self.problem, self.problem.fleet, self.controller.settings
        drawn: list[tuple[str, str, Cause, float]] = [
            (self._names[client], str(fleet.zone[client]), cause, float(kwh))
            for client, cause, kwh in self._drawn(step, step.trains)
        ]
        given_kg, active = 0.0, bool(step.trains.any())
        if problem.server is not None and active:
            drawn.append(("", problem.server.zone, "server", problem.costs.server_kwh))
        elif problem.server_kg is not None and active:
            given_kg = step.server_kg
        if not drawn:
            return []
        bounds = Bounds(known, margin=settings.margin, lookback_days=settings.lookback_days)
        lead = step.slot - _slots_of(problem, known) + 1
        bound = {
            zone: bounds.kg(np.eye(len(known.zones))[known.index(zone)], lead)
            for zone in sorted({zone for _, zone, _, _ in drawn})
        }
        apart_kg = sum(kwh * bound[zone] for _, zone, _, kwh in drawn)
        scale = (step.held_kg - given_kg) / apart_kg if apart_kg > 0 else 1.0
        start = problem.slot_start(step.slot)
        lines = [
            Charge(
                slot=step.slot,
                slot_start=start,
                client=client,
                zone=zone,
                cause=cause,
                kg=kwh * bound[zone] * scale,
                energy_kwh=kwh,
                intensity_kg_per_kwh=bound[zone] * scale,
                intensity_source=BOUND.format(days=settings.lookback_days),
                intensity_kind="bound",
                factor=known.factor,
                started_at=start,
                ended_at=start + timedelta(minutes=problem.traces.slot_minutes),
            )
            for client, zone, cause, kwh in drawn
        ]
        if given_kg:
            lines.append(
                replace(
                    lines[0], client="", zone="", cause="server", kg=given_kg, energy_kwh=None, intensity_kg_per_kwh=None,
                    intensity_source=GIVEN_KG, intensity_kind="estimated",
                )
            )  # fmt: skip
        return lines


def _slots_of(problem: Problem, known: Traces) -> int:
    """Return the number of slots with known actuals; below 0 if they end before the run starts."""
    return int((known.end - problem.first_slot) // timedelta(minutes=problem.traces.slot_minutes))
