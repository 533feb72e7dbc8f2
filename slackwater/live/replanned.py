"""A schedule that is re-planned as actuals and forecasts come in; unknown intensity is charged at an upper bound."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import INTERPOLATED, Traces
from slackwater.errors import DataError
from slackwater.forecasting.forecast import Forecast
from slackwater.ledger.journal import Replan
from slackwater.ledger.ledger import Cause, Charge, Ledger
from slackwater.live.guide import Decision, Mask
from slackwater.live.knowledge import IntensityFeed, intensity_at
from slackwater.planning.problem import Problem
from slackwater.replanning import Bounds, Controller, Settings, State, blind

BOUND = "upper bound from the last {days} days"
_LATEST_ACTUAL = timedelta(days=1)
"""An actual that came so late would still be waited for, with its charge at the upper bound."""


class Replanned:
    """Re-plans what is left with the controller of `slackwater.replanning`."""

    def __init__(
        self, problem: Problem, intensity: IntensityFeed, settings: Settings, first: Mask | None = None
    ) -> None:
        """Steer a run of the problem; `first` [client, slot] is the plan that is in force until it plans itself."""
        self.problem, self.intensity = blind(problem), intensity
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
        """Bring what was booked at its bound to the actual; to an interpolated value only after a day without one."""
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
        """Let the controller decide on what is known now."""
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
                messages.append(f"There is no forecast: {error}")
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
            expected_kg={
                (self._names[client], cause): float(energy * step.intensity[client])
                for client, cause, energy in self._drawn(wanted)
            },
            charges=tuple(self._lines(step.slot, step.trains, step.held_kg, known)),
            protected_kg=step.protected_kg,
            left=left,
            before=state.window_at,
            replan=replan if step.replanned else None,
            messages=(*self.intensity.notes(), *messages, *(step.messages if present.any() else ())),
        )

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Tell the controller, with what the ledger holds the slot at now."""
        held_kg = sum(ledger.slot_kg(self.slot - 1).values())
        self.controller.realise(drew=drew, used=used, missed=missed, held_kg=held_kg)

    def lose(self, slot: int) -> None:
        """Tell the controller, which re-plans for what was lost."""
        self.controller.lose(slot)

    def coming(self) -> NDArray[np.bool_]:
        """Return the current plan, with everybody in the window."""
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
        """Return what the last plan still expects, by what was known when the last slot was decided."""
        return np.empty(0) if self.finished else self._ahead_kg

    def state(self) -> dict[str, Any]:
        """Return the controller's state."""
        return self.controller.state.to_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; the forecast is asked for again."""
        self._ahead_kg = None
        self.controller = Controller(self.problem, self.controller.settings, State.from_dict(dict(state)))

    def _without(self, away: Mask) -> Problem:
        """Return the problem without clients that are away: the window does not wait for them."""
        if not away.any():
            return self.problem
        free = self.problem.costs.can_train() & ~away[:, None]
        return self.problem.with_settings(available=free, window="available")

    def _left(self, since: int | None = None) -> NDArray[np.int64]:
        state = self.controller.state
        first = state.slot if since is None else since
        return np.asarray(state.plan[:, first : max(state.window_at, first)].sum(axis=1), dtype=np.int64)

    def _measured_kg(self, ledger: Ledger, known: Traces, now: int) -> NDArray[np.float64]:
        """Return what the ledger says that settled rounds emitted [client, slot], kg; NaN elsewhere."""
        measured = np.full((len(self._names), self.problem.horizon), np.nan)
        row = {name: client for client, name in enumerate(self._names)}
        for (slot, client), kg in ledger.round_kg(before=min(_slots_of(self.problem, known), now)).items():
            measured[row[client], slot] = kg
        return measured

    def _drawn(self, trains: Mask) -> list[tuple[int, Cause, float]]:
        """Return client, cause and kWh of all that a slot draws if these clients train [client]."""
        costs = self.problem.costs
        if self.controller.state.stopped_at is not None and not trains.any():  # the run ends before this slot
            return []
        drawn: list[tuple[int, Cause, float]] = [
            (int(c), "idle", costs.idle_kwh[c]) for c in np.flatnonzero(costs.idle_kwh)
        ]
        for cause, kwh in costs.round_kwh.items():
            drawn += [(int(c), cause, kwh[c]) for c in np.flatnonzero(trains) if cause == "training" or kwh[c] > 0]
        return drawn

    def _lines(self, slot: int, trains: Mask, held_kg: float, known: Traces) -> list[Charge]:
        """Return lines that add up to the joint bound: the zones' bounds, scaled to it."""
        fleet, settings, drawn = self.problem.fleet, self.controller.settings, self._drawn(trains)
        if not drawn:
            return []
        bounds = Bounds(known, margin=settings.margin, lookback_days=settings.lookback_days)
        lead = slot - _slots_of(self.problem, known) + 1
        zone = {
            str(name): bounds.kg(np.eye(len(known.zones))[known.index(str(name))], lead)
            for name in np.unique(fleet.zone)
        }
        apart_kg = sum(energy * zone[str(fleet.zone[client])] for client, _, energy in drawn)
        scale = held_kg / apart_kg if apart_kg > 0 else 1.0
        start = self.problem.slot_start(slot)
        return [
            Charge(
                slot=slot,
                slot_start=start,
                client=self._names[client],
                zone=str(fleet.zone[client]),
                cause=cause,
                kg=float(energy) * zone[str(fleet.zone[client])] * scale,
                energy_kwh=float(energy),
                intensity_kg_per_kwh=zone[str(fleet.zone[client])] * scale,
                intensity_source=BOUND.format(days=settings.lookback_days),
                intensity_kind="bound",
                factor=known.factor,
                started_at=start,
                ended_at=start + timedelta(minutes=self.problem.traces.slot_minutes),
            )
            for client, cause, energy in drawn
        ]


def _slots_of(problem: Problem, known: Traces) -> int:
    """Return how many slots of the run have known actuals; below 0 where they end before it begins."""
    return int((known.end - problem.first_slot) // timedelta(minutes=problem.traces.slot_minutes))
