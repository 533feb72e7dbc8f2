"""A plan that is made anew as actuals and forecasts come in; what is not known yet is held at an upper bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError
from slackwater.forecasting.forecast import Forecast
from slackwater.ledger.journal import Replan
from slackwater.ledger.ledger import Cause, Charge, Ledger
from slackwater.live.guide import Decision, Mask
from slackwater.live.knowledge import Knowledge, intensity_at
from slackwater.planning.problem import Problem
from slackwater.replanning import Bounds, Controller, Settings, State, blind

BOUND = "upper bound from the last {days} days"


class Replanned:
    """What is left is planned anew as actuals and forecasts come in: the controller of `slackwater.replanning`."""

    def __init__(self, problem: Problem, knowledge: Knowledge, settings: Settings) -> None:
        self.problem, self.knowledge = blind(problem), knowledge
        self.controller = Controller(self.problem, settings)
        self._names = [str(name) for name in problem.fleet.names]
        self._forecast: Forecast | None = None
        self._known: Traces | None = None

    @property
    def slot(self) -> int:
        """The next slot to decide."""
        return self.controller.state.slot

    @property
    def finished(self) -> bool:
        """Whether the controller has ended the run."""
        return self.controller.finished

    def settle(self, ledger: Ledger) -> int:
        """Bring what was booked at its bound to the actual."""
        known = self._known = self.knowledge.until(self.slot if not self.finished else 2 * self.problem.horizon)
        settled = _slots_of(self.problem, known)
        by_slot: dict[int, list[Charge]] = {}
        for line in ledger.unsettled(before=settled):
            by_slot.setdefault(line.slot, []).append(line)
        for slot, lines in by_slot.items():
            actual = intensity_at(known, [line.zone for line in lines], self.problem.slot_start(slot))
            for line in lines:
                source, kind = self.knowledge.origin(line.zone, slot)
                ledger.settle(line, actual[line.zone], source=source, kind=kind)
        return sum(map(len, by_slot.values()))

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """By the controller, on what is known now."""
        controller, state = self.controller, self.controller.state
        known = self._known if self._known is not None else self.knowledge.until(self.slot)
        controller.problem = self._without(away)
        if state.slot == 0 and state.replay is None and state.planned_at is None and controller.settings.reserve:
            state.replay = self.knowledge.past(known)
        messages: list[str] = []
        if present.any() and (controller.due or self._forecast is None):
            try:
                self._forecast = self.knowledge.forecast(known)
            except DataError as error:
                messages.append(f"There is no forecast: {error}")
                self._forecast = None
        then = self._left()
        step = controller.step(
            known, self._forecast, measured_kg=self._measured_kg(ledger, known, state.slot), present=present
        )
        left = self._left(step.slot)
        missing = self._wanted(step.slot, in_window=step.in_window or bool(state.window_done)) & ~present
        return Decision(
            slot=step.slot,
            trains=step.trains,
            missing=missing & ~away,
            in_window=step.in_window,
            charges=tuple(self._lines(step.slot, step.trains, step.held_kg, known)),
            protected_kg=step.protected_kg,
            left=left,
            before=state.window_at,
            replan=self._replan(step.slot, then, left, step.reserve_kg, step.planned_kg) if step.replanned else None,
            messages=(*self.knowledge.notes(), *messages, *(step.messages if present.any() else ())),
        )

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Tell the controller, with what the ledger holds the slot at now."""
        held_kg = sum(ledger.slot_kg(self.slot - 1).values())
        self.controller.realise(drew=drew, used=used, missed=missed, held_kg=held_kg)

    def coming(self) -> NDArray[np.bool_]:
        """The plan as it is now, with everybody in the window."""
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

    def state(self) -> dict[str, Any]:
        """The controller's."""
        return self.controller.state.to_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it up; the forecast is asked for anew."""
        self.controller = Controller(self.problem, self.controller.settings, State.from_dict(dict(state)))

    def _without(self, away: Mask) -> Problem:
        """The problem without those who are away: the window does not wait for them."""
        if not away.any():
            return self.problem
        free = self.problem.costs.can_train() & ~away[:, None]
        return self.problem.with_settings(available=free, window="available")

    def _wanted(self, slot: int, *, in_window: bool) -> Mask:
        there = self.problem.costs.can_train()[:, slot]
        return there if in_window else self.controller.state.plan[:, slot] & there

    def _left(self, since: int | None = None) -> NDArray[np.int64]:
        state = self.controller.state
        first = state.slot if since is None else since
        return np.asarray(state.plan[:, first : max(state.window_at, first)].sum(axis=1), dtype=np.int64)

    def _replan(
        self, slot: int, then: NDArray[np.int64], now: NDArray[np.int64], reserve_kg: float, planned_kg: float
    ) -> Replan:
        changed = {self._names[c]: (int(then[c]), int(now[c])) for c in np.flatnonzero(then != now)}
        return Replan(slot=slot, reason="due", changes=changed, reserve_kg=reserve_kg, planned_kg=planned_kg)

    def _measured_kg(self, ledger: Ledger, known: Traces, now: int) -> NDArray[np.float64]:
        """[client, slot], what the ledger says that settled training emitted; NaN elsewhere."""
        measured = np.full((len(self._names), self.problem.horizon), np.nan)
        row = {name: client for client, name in enumerate(self._names)}
        for (slot, client), kg in ledger.training_kg(before=min(_slots_of(self.problem, known), now)).items():
            measured[row[client], slot] = kg
        return measured

    def _lines(self, slot: int, trains: Mask, held_kg: float, known: Traces) -> list[Charge]:
        """Lines that add up to what the controller holds: the bounds of the zones, scaled to that of all together."""
        costs, fleet, settings = self.problem.costs, self.problem.fleet, self.controller.settings
        drawn: list[tuple[int, Cause, float]] = [
            (int(c), "idle", costs.idle_kwh[c]) for c in np.flatnonzero(costs.idle_kwh)
        ]
        drawn += [(int(c), "training", costs.energy_kwh[c]) for c in np.flatnonzero(trains)]
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
        line = Charge(
            slot=slot,
            slot_start=start,
            client="",
            zone="",
            kg=0.0,
            energy_kwh=0.0,
            intensity_kg_per_kwh=0.0,
            intensity_source=BOUND.format(days=settings.lookback_days),
            intensity_kind="bound",
            factor=known.factor,
            started_at=start,
            ended_at=start + timedelta(minutes=self.problem.traces.slot_minutes),
        )
        return [
            replace(
                line,
                client=self._names[client],
                zone=str(fleet.zone[client]),
                cause=cause,
                energy_kwh=float(energy),
                intensity_kg_per_kwh=zone[str(fleet.zone[client])] * scale,
                kg=float(energy) * zone[str(fleet.zone[client])] * scale,
            )
            for client, cause, energy in drawn
        ]


def _slots_of(problem: Problem, known: Traces) -> int:
    """Slots of the run whose actuals are known; below 0 where they end before it begins."""
    return int((known.end - problem.first_slot) // timedelta(minutes=problem.traces.slot_minutes))
