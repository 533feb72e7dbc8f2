"""The receding horizon: at every slot settle what is known, plan anew if due, and decide who trains now.

Whenever somebody is let train before the window,

    spent + in flight at its upper bound + this slot at its upper bound + the window at its upper bound <= budget

and without the window's part that holds in every slot, the window's own included. So as long as actuals stay within
the bounds, the settled emissions never exceed the budget, whatever the forecasts say.
The controller does no input or output and looks at no clock: a back-test and a live run drive it alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import Traces
from slackwater.planning.problem import Problem
from slackwater.replanning.decision import Now
from slackwater.replanning.remaining import outlook
from slackwater.replanning.run_state import Settings, State, look_back


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """What was decided for one slot."""

    slot: int
    trains: NDArray[np.bool_]
    """[client]."""
    wanted: NDArray[np.bool_] | None
    """[client], who the plan in force wants in this slot, reachable and affordable or not; None before the first plan."""
    intensity: NDArray[np.float64]
    """[client], kg/kWh that is expected of this slot."""
    in_window: bool
    replanned: bool
    held_kg: float
    """Upper bound at which this slot is held until it is settled."""
    spent_kg: float
    """What settled slots really emitted."""
    in_flight_kg: float
    """What earlier slots that are not settled are held at."""
    protected_kg: float
    """Upper bound of the window, where it is still to come."""
    reserve_kg: float
    """Kept back because forecasts err, at the last planning."""
    planned_kg: float
    """All the run is expected to emit by the plan: spent, in flight and to come."""
    ahead_kg: NDArray[np.float64] | None
    """What the plan expects of every slot after this one, up to its end; None before the first plan."""
    messages: tuple[str, ...]


class Controller:
    """Steers one run. `step` decides the next slot; `state` is all it remembers."""

    def __init__(self, problem: Problem, settings: Settings | None = None, state: State | None = None) -> None:
        if problem.coupled:
            raise ScenarioError(
                "Re-planning does not know max_parallel and [server] yet: what ties clients together can only be "
                "planned from the start. Take them out of the scenario."
            )
        self.problem = problem
        """What is asked for. Its traces are never looked at: intensity comes in by `step`."""
        self.settings = settings or Settings()
        self.state = state or State.initial(problem)
        wanted = (len(problem.fleet), problem.horizon)
        if self.state.trained.shape != wanted:
            raise DataError(f"The state is of a run of {self.state.trained.shape}, the problem has {wanted}.")

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to decide."""
        return self.state.stopped_at is not None or self.state.slot >= self.problem.horizon

    @property
    def due(self) -> bool:
        """Whether the next step plans anew, so that a fresh forecast is worth its cost."""
        return self.state.due(self.settings.replan_slots)

    def step(
        self,
        known: Traces,
        forecast: Forecast | None,
        *,
        measured_kg: NDArray[np.float64] | None = None,
        present: NDArray[np.bool_] | None = None,
    ) -> Step:
        """Decide the next slot, from the actuals known by now (at least a week before the run) and a forecast or none.

        `known` ends where the truth ends: slots of the run after that are in flight. `measured_kg` [client, slot] is
        what settled training really emitted, where it was measured; NaN is modelled. `present` [client] is who can be
        reached now, everybody if not told; with nobody the slot goes by.
        """
        if self.finished:
            raise SlackwaterError("The run is over; there is no slot to decide.")
        problem, state = self.problem, self.state
        offset = self._offset(known)
        expected, lacking = outlook(known, forecast, problem.horizon - offset)
        actual = known.intensity[:, known.slots - offset :] if offset > 0 else np.empty((len(known.zones), 0))
        zones = np.concatenate([actual, expected.mean[:, max(0, -offset) :]], axis=1)
        rows = np.array([known.index(zone) for zone in problem.fleet.zone], dtype=np.intp)
        now = Now(
            problem=problem,
            settings=self.settings,
            state=state,
            known=known,
            expected=expected,
            offset=offset,
            intensity=zones,
            rows=rows,
            past=look_back(problem, state, zones[rows], max(offset, 0), measured_kg),
            present=np.ones(len(rows), dtype=bool) if present is None else present,
        )
        if lacking:
            now.say(f"At slot {state.slot} {lacking}.")
        now.decide()
        state.trained[:, state.slot] = now.trains
        state.held_kg[state.slot] = now.held_kg
        step = Step(
            slot=state.slot,
            trains=now.trains,
            wanted=now.wanted(),
            intensity=now.intensity[now.rows, state.slot],
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
        """What became of the slot last decided: who drew energy, whose work is used and who was missing, each [client].

        `held_kg` is what the slot is held at now. What was drawn in vain is spent, and nothing earned by it; for whoever
        missed its slot it is planned anew at the next one, unless the run plans only once. A slot of the window that was
        lost to all is done again.
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
        """Count the work of an earlier slot as drawn in vain, where the model that it went into is gone."""
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
        """Slots of the run that are settled; negative where the actuals end before it begins."""
        step = timedelta(minutes=self.problem.traces.slot_minutes)
        offset, rest = divmod(known.end - self.problem.first_slot, step)
        if known.slot_minutes != self.problem.traces.slot_minutes or rest:
            raise DataError("The actuals are not in the slots of the run; load them with its slot_minutes and start.")
        if offset > self.state.slot:
            raise DataError(
                f"The actuals reach {offset} slots into the run, which is about to decide slot {self.state.slot}: they "
                "are of the future."
            )
        return int(offset)
