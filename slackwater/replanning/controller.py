"""The receding horizon: at every slot settle what is known, re-plan if due, and decide who trains now.

Whenever a client trains before the window,

    spent + in flight at its upper bound + this slot at its upper bound + the window at its upper bound <= budget

and without the window's part this holds in every slot, those of the window included. So as long as actuals stay within
the bounds, the settled emissions never exceed the budget, whatever the forecasts say.
The controller does no input or output and reads no clock: a back-test and a live run drive it alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, SlackwaterError
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import Traces
from slackwater.planning.problem import Problem
from slackwater.replanning.decision import SlotDecision
from slackwater.replanning.remaining import expected_intensity
from slackwater.replanning.run_state import Settings, State, look_back


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """The decision for one slot."""

    slot: int
    trains: NDArray[np.bool_]
    """[client], who trains."""
    wanted: NDArray[np.bool_] | None
    """[client], who the current plan wants in this slot, reachable and affordable or not; None before the first plan."""
    intensity: NDArray[np.float64]
    """[client], expected intensity of this slot, kg/kWh."""
    level: NDArray[np.uint8]
    """[client], level at which each client trains, if it trains; 0 is full power."""
    idle_kwh: NDArray[np.float64]
    """[client], idle energy of this slot, kWh; of a client that sleeps, if it is up."""
    startup_kwh: NDArray[np.float64]
    """[client], energy of starts in this slot, kWh."""
    server_kg: float
    """Expected emissions of the server if anyone trains in this slot; 0 without a server."""
    in_window: bool
    replanned: bool
    held_kg: float
    """Upper bound charged for this slot until it is settled."""
    spent_kg: float
    """Actual emissions of settled slots."""
    in_flight_kg: float
    """Upper bounds charged for earlier slots that are not settled."""
    protected_kg: float
    """Upper bound of the window while it is still to come."""
    reserve_kg: float
    """Reserve for forecast error, at the last planning."""
    planned_kg: float
    """Expected emissions of the run by the plan: spent, in flight and to come."""
    ahead_kg: NDArray[np.float64] | None
    """[slot], emissions that the plan expects after this slot, up to its end; None before the first plan."""
    messages: tuple[str, ...]


class Controller:
    """Steers one run: `step` decides the next slot, `state` is all it remembers."""

    def __init__(self, problem: Problem, settings: Settings | None = None, state: State | None = None) -> None:
        self.problem = problem
        """The problem. Its traces are never used: `step` brings the intensity."""
        self.settings = settings or Settings()
        self.state = state or State.initial(problem)
        wanted = (len(problem.fleet), problem.horizon)
        if self.state.trained.shape != wanted:
            raise DataError(
                f"The state belongs to a run of shape {self.state.trained.shape}; the problem has {wanted}."
            )

    @property
    def finished(self) -> bool:
        """Return whether there is no slot left to decide."""
        return self.state.stopped_at is not None or self.state.slot >= self.problem.horizon

    @property
    def due(self) -> bool:
        """Return whether the next step re-plans, so that a fresh forecast is worth its cost."""
        return self.state.due(self.settings.replan_slots)

    def step(
        self,
        known: Traces,
        forecast: Forecast | None,
        *,
        measured_kg: NDArray[np.float64] | None = None,
        present: NDArray[np.bool_] | None = None,
    ) -> Step:
        """Decide the next slot and return the decision.

        Args:
            known: Actuals up to now, from a week before the run or earlier. Later slots of the run are in flight.
            forecast: A forecast, or None.
            measured_kg: [client, slot], measured emissions of settled training; NaN is modelled.
            present: [client], who can be reached now. Default: all clients. With none, the slot passes.
        """
        if self.finished:
            raise SlackwaterError("The run is over; there is no slot to decide.")
        problem, state = self.problem, self.state
        offset = self._offset(known)
        expected, lacking = expected_intensity(known, forecast, problem.horizon - offset)
        actual = known.intensity[:, known.slots - offset :] if offset > 0 else np.empty((len(known.zones), 0))
        zones = np.concatenate([actual, expected.mean[:, max(0, -offset) :]], axis=1)
        rows = np.array([known.index(zone) for zone in problem.fleet.zone], dtype=np.intp)
        server = None if problem.server is None else zones[known.index(problem.server.zone)]
        now = SlotDecision(
            problem=problem,
            settings=self.settings,
            state=state,
            known=known,
            expected=expected,
            offset=offset,
            intensity=zones,
            rows=rows,
            past=look_back(problem, state, zones[rows], max(offset, 0), measured_kg, server),
            present=np.ones(len(rows), dtype=bool) if present is None else present,
        )
        if lacking:
            now.say(f"At slot {state.slot} {lacking}.")
        now.decide()
        ended = state.stopped_at is not None  # before this slot: nobody is up in it
        idle_kwh, startup_kwh = now.waiting_kwh(now.trains)
        server_now = problem.costs.server_kg if server is None else problem.costs.server_kwh * server
        state.trained[:, state.slot] = now.trains
        if state.levels is not None:
            state.levels[:, state.slot] = np.where(now.trains, now.level, 0)
        if state.up is not None and state.starting is not None and not ended:
            state.up[:, state.slot], state.starting[:, state.slot] = now.up_if(now.trains), now.starting
        state.held_kg[state.slot] = now.held_kg
        step = Step(
            slot=state.slot,
            trains=now.trains,
            wanted=now.wanted(),
            intensity=now.intensity[now.rows, state.slot],
            level=now.level,
            idle_kwh=idle_kwh,
            startup_kwh=startup_kwh,
            server_kg=0.0 if server_now is None else float(server_now[state.slot]),
            in_window=now.in_window,
            replanned=now.replanned,
            held_kg=now.held_kg,
            spent_kg=now.past.spent_kg,
            in_flight_kg=now.past.in_flight_kg,
            protected_kg=now.protected_kg,
            reserve_kg=state.reserve_kg,
            planned_kg=state.planned_kg,
            ahead_kg=now.ahead_kg(),
            messages=tuple(now.messages),
        )
        state.slot += 1
        state.window_done += now.in_window and bool(now.trains.any())
        if now.in_window and state.window_done >= state.window_slots:
            state.stopped_at = state.slot
        return step

    def realise(
        self, *, drew: NDArray[np.bool_], used: NDArray[np.bool_], missed: NDArray[np.bool_], held_kg: float
    ) -> None:
        """Record the slot last decided: who drew energy, whose work is used and who was missing, each [client].

        `held_kg` is the slot's charge now. Energy of unused work is spent and earns nothing. If a client missed its slot,
        the next slot re-plans, unless the run plans only once. A window slot that was lost for all clients is repeated.
        """
        state, every, slot = self.state, self.settings.replan_slots, self.state.slot - 1
        decided = state.trained[:, slot].copy()
        state.trained[:, slot], state.lost[:, slot] = drew & used, drew & ~used
        state.held_kg[slot] = held_kg
        if state.window_done and decided.any() and not used.any():
            state.window_done -= 1
            state.stopped_at = None
        if (missed | (decided & ~used)).any() and every is not None and state.planned_at is not None:
            state.planned_at = min(state.planned_at, state.slot - every)

    def lose(self, slot: int) -> None:
        """Count the work of an earlier slot as lost, because the model that used it is gone."""
        state, every = self.state, self.settings.replan_slots
        in_window = bool(state.window_done) and slot >= state.window_at and bool(state.trained[:, slot].any())
        state.lost[:, slot] |= state.trained[:, slot]
        state.trained[:, slot] = False
        if in_window:
            state.window_done -= 1
            state.stopped_at = None
        if every is not None and state.planned_at is not None:
            state.planned_at = min(state.planned_at, state.slot - every)

    def _offset(self, known: Traces) -> int:
        """Return the number of settled slots of the run; negative if the actuals end before it begins."""
        step = timedelta(minutes=self.problem.traces.slot_minutes)
        offset, rest = divmod(known.end - self.problem.first_slot, step)
        if known.slot_minutes != self.problem.traces.slot_minutes or rest:
            raise DataError("The actuals are not in the slots of the run; load them with its slot_minutes and start.")
        if offset > self.state.slot:
            raise DataError(
                f"The actuals reach {offset} slots into the run, which is about to decide slot {self.state.slot}: they "
                "lie in the future."
            )
        return int(offset)
