"""One decision: which clients train in this slot, and where the fine-tuning window goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import Traces
from slackwater.planning.problem import Problem, utilities
from slackwater.replanning.remaining import RemainingPlan, remaining_problem, solve
from slackwater.replanning.reserve import Bounds, usable_share
from slackwater.replanning.run_state import Past, Settings, State

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(kw_only=True, eq=False)
class Headroom:
    """What is known when a slot is decided: the free budget, and the upper bounds of slots and the window."""

    problem: Problem
    settings: Settings
    state: State
    known: Traces
    expected: Forecast
    """Forecast from the last actual to the end of the horizon."""
    offset: int
    """Settled slots of the run; negative if the actuals end before it begins."""
    intensity: Floats
    """[zone, slot] of the horizon, kg/kWh: actual where settled, expected after that."""
    rows: NDArray[np.intp]
    """[client], row of the intensity."""
    past: Past

    def __post_init__(self) -> None:
        self.slot = self.state.slot
        self.nobody: Mask = np.zeros(len(self.rows), dtype=bool)

    @property
    def free_kg(self) -> float:
        """Return the budget that is neither spent nor charged for slots in flight, kg."""
        return self.problem.budget_kg - self.past.spent_kg - self.past.in_flight_kg

    @cached_property
    def bounds(self) -> Bounds:
        """Return the upper bounds from the actuals known."""
        return Bounds(self.known, margin=self.settings.margin, lookback_days=self.settings.lookback_days)

    def lead(self, slot: int) -> int:
        """Return the distance of a slot from the last known one, in slots."""
        return slot - self.offset + 1

    def energy_kwh(self, trains: Mask) -> Floats:
        """Return the energy of a slot if these clients train [zone], kWh; the idle draw of all is included."""
        costs = self.problem.costs
        weights = np.where(trains, costs.energy_kwh, 0.0) + costs.idle_kwh
        return np.bincount(self.rows, weights=weights, minlength=len(self.intensity)).astype(np.float64)

    def hold_kg(self, trains: Mask, slot: int) -> float:
        """Return the upper bound of a slot's emissions, kg."""
        return self.bounds.kg(self.energy_kwh(trains), self.lead(slot))

    def state_window(self, first: int, since: int) -> float:
        """State an upper bound of the window that begins at `first`; return it with the idle draw from `since`, kg.

        The state keeps the smallest bound stated. It stays valid: otherwise a window with enough budget kept might not fit when it is due.
        """
        waiting = sum(self.hold_kg(self.nobody, slot) for slot in range(since, first)) if self.idle else 0.0
        bound = sum(self.hold_kg(self.there[:, slot], slot) for slot in range(first, first + self.state.window_slots))
        self.state.stated_kg[first] = min(bound, self.state.stated_kg[first])
        return waiting + float(self.state.stated_kg[first])

    @cached_property
    def g_max(self) -> float:
        """Return the dearest client-slot of the whole horizon, settled or expected, kg."""
        return float((self.problem.costs.energy_kwh * self.intensity.max(axis=1)[self.rows]).max())

    @cached_property
    def idle(self) -> bool:
        """Return whether clients draw power while they wait."""
        return bool(self.problem.costs.idle_kwh.any())

    @cached_property
    def there(self) -> Mask:
        """Return who can train when [client, slot]."""
        return self.problem.costs.can_train()

    def places(self, since: int) -> NDArray[np.intp]:
        """Return possible first slots of the window from `since` on: it ends after `rounds`, within the horizon, with all clients."""
        width = self.state.window_slots
        places = np.arange(max(since, self.problem.rounds - width, 0), self.problem.horizon - width + 1)
        if self.problem.window == "all" and width:
            absent = np.concatenate([[0], np.cumsum(~self.there.all(axis=0))])
            places = places[absent[places + width] == absent[places]]
        return places


_LATER, _LEARNT = 0.04, 0.45
"""How much dearer a slot of a later plan may look and still be preferred: the most, and per growth of the interval."""
_LARGE_RESERVE = 1 / 3
"""Share of the budget above which a reserve is announced."""
_NOT_REPLAYED = (
    "The reserve is computed from the forecast's interval, widened, so its probability is approximate: there are too "
    "few past forecasts to measure how far plans fell short."
)


@dataclass(kw_only=True, eq=False)
class SlotDecision(Headroom):
    """The decision for one slot, made step by step."""

    present: Mask
    """[client], who can be reached in this slot; the plan for later slots ignores it."""
    trains: Mask = field(init=False)
    held_kg: float = 0.0
    protected_kg: float = 0.0
    in_window: bool = False
    replanned: bool = False
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trains = self.nobody.copy()

    def say(self, message: str) -> None:
        """Add a message for the run's owner."""
        self.messages.append(message)

    def decide(self) -> None:
        """Set `trains` and `held_kg`, and move the window in the state if necessary."""
        state = self.state
        if not self.present.any():
            self.held_kg = self.hold_kg(self.nobody, self.slot) if self.idle else 0.0
            return
        if state.window_done:
            self._continue_window()
            return
        self._fit_window()
        if state.due(self.settings.replan_slots):
            self._replan()
        if self.slot >= state.window_at and not self._at_window():
            return
        self._before_window()

    def wanted(self) -> Mask | None:
        """Return who the plan wants in this slot [client], after `decide`; None before the first plan.

        A client that is present but held back, because all together might cost too much, is no longer planned here.
        """
        state, there = self.state, self.there[:, self.slot]
        if state.stopped_at is not None:
            return self.nobody
        if self.in_window:
            return there
        if not self.present.any():  # nothing was planned or moved now
            if state.planned_at is None and not state.window_at:
                return None
            if state.window_slots and self.slot >= state.window_at:
                return there
        return state.plan[:, self.slot] & there & (self.trains | ~self.present)

    # -- planning

    def _replan(self) -> None:
        """Re-plan the rest on the mean of the forecast, less the reserve or the window's unused margin."""
        state, probability = self.state, self.settings.reserve
        left = self.problem.budget_kg - self.past.spent_kg - self.past.expected_kg
        if state.planned_at is None:  # the reserve is computed from a plan: the last one, or a first draft
            if probability and state.replay is None and self.slot == 0:
                self.say(_NOT_REPLAYED)
            self._take(self._solved(left))
        usable = usable_share(self.expected, self._planned_energy(), probability, state.replay)
        before_kg, state.reserve_kg = state.reserve_kg, max(left, 0.0) * (1 - usable)
        self._announce_reserve(before_kg)
        # The window's unused margin also covers other slots that emit beyond the plan, and vice versa: subtract the larger.
        self._take(self._solved(left - max(state.reserve_kg, self._in_vain_kg())))
        self._leave_for_later()
        self.replanned, state.planned_at = True, self.slot
        state.planned_kg = self._planned_kg()

    def _announce_reserve(self, before_kg: float) -> None:
        """Add a message when the reserve becomes large, with the reason."""
        state, most_kg = self.state, self.problem.budget_kg * _LARGE_RESERVE
        if state.reserve_kg <= most_kg or before_kg > most_kg:
            return
        why = (
            "the forecast's interval is wide"
            if state.replay is None
            else "plans of past weeks emitted more than they predicted"
        )
        self.say(
            f"{state.reserve_kg:.3g} kg ({state.reserve_kg / self.problem.budget_kg:.0%} of the budget) are kept in "
            f"reserve at slot {self.slot}: {why}. They are released as forecasts come true. To keep less, lower the "
            "reserve probability."
        )

    def _take(self, rest: RemainingPlan | None) -> None:
        """Adopt this plan; without one, plan only the window at its cheapest place."""
        state = self.state
        state.plan[:, self.slot :] = False if rest is None else rest.matrix
        if rest is not None:
            state.window_at = self.slot + rest.window_at
            return
        places = self.places(self.slot)
        state.window_at = self._cheapest(places) if len(places) else self.problem.horizon - state.window_slots

    def _solved(self, budget_kg: float) -> RemainingPlan | None:
        if budget_kg <= 0:
            return None
        for limits in (True, False):
            rest = solve(
                remaining_problem(
                    self.problem,
                    slot=self.slot,
                    budget_kg=budget_kg,
                    window_slots=self.state.window_slots,
                    expected=self.expected.traces(),
                    earned_kg=self.past.earned_kg(self.g_max),
                    done=self.past.slots,
                    trained_ago=self.past.trained_ago if self.problem.recall else None,
                    g_max_kg=self.g_max,
                    limits=limits,
                ),
                self._in_vain[self.slot :],
            )
            if rest is not None or not (self.problem.fleet.min_slots.any() or self.problem.recall):
                return rest
        return None

    def _leave_for_later(self) -> None:
        """Exchange slots that this plan decides for later ones that are expected to cost a little more.

        A later plan knows better which of its slots are cheap and buys only those, so they cost less than their mean
        says now. How much less follows from the interval, which is wider for slots further ahead. Each client keeps
        its number of slots.
        """
        state, every, ahead = self.state, self.settings.replan_slots, slice(self.slot, self.state.window_at)
        # A recalled client must train in the slots chosen for it.
        if every is None or self.problem.recall or ahead.stop - ahead.start <= every:
            return
        wider = self._half_width()[ahead] - self._half_width()[self.slot : self.slot + every].mean()
        wider[:every] = 0.0
        less = np.minimum(_LATER, _LEARNT * np.maximum.accumulate(np.maximum(wider, 0.0)))
        price = self.intensity[self.rows, ahead] * (1 - less)
        order = np.argsort(np.where(self.there[:, ahead], price, np.inf), axis=1, kind="stable")
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.arange(order.shape[1])[None, :], axis=1)
        state.plan[:, ahead] = place < state.plan[:, ahead].sum(axis=1, keepdims=True)

    def _half_width(self) -> Floats:
        """Return half the interval's width as a share of the mean, all zones together [slot]; 0 where settled."""
        expected, width = self.expected, np.zeros(self.problem.horizon)
        mean = np.maximum(expected.mean.sum(axis=0), 1e-300)
        ahead = ((expected.high - expected.low).sum(axis=0) / 2 / mean)[max(0, -self.offset) :]
        width[len(width) - len(ahead) :] = ahead
        return width

    def _planned_energy(self) -> Floats:
        """Return the energy of the plan with its window [zone, slot], from the last actual on, kWh."""
        energy = np.zeros_like(self.expected.mean)
        drawn = self._drawn_kwh()[:, self.slot :]
        np.add.at(energy[:, self.expected.slots - drawn.shape[1] :], self.rows, drawn)
        return energy

    def _drawn_kwh(self) -> Floats:
        """Return the energy of the plan from this slot to the end of its window [client, slot], kWh."""
        costs, state, stop = self.problem.costs, self.state, self._window_stop
        planned = state.plan.copy()
        planned[:, state.window_at : stop] = self.there[:, state.window_at : stop]
        drawn: Floats = planned * costs.energy_kwh[:, None] + costs.idle_kwh[:, None]
        drawn[:, : self.slot] = drawn[:, stop:] = 0.0
        return drawn

    def _in_vain_kg(self) -> float:
        """Return the window's unused margin, kg: its bound less its emissions. No slot after the window can use it."""
        return float(self._in_vain[self.state.window_at : self._window_stop].sum())

    @cached_property
    def _in_vain(self) -> Floats:
        """Return the unused margin of each slot if the window were there [slot], kg; 0 before this slot."""
        in_vain = np.zeros(self.problem.horizon)
        if self.state.window_slots:
            lead = self.lead(self.slot)
            in_vain[self.slot :] = [self._in_vain_at(slot, lead) for slot in range(self.slot, self.problem.horizon)]
        return in_vain

    def _in_vain_at(self, slot: int, lead: int) -> float:
        energy = self.energy_kwh(self.there[:, slot])
        coming = energy @ self.intensity
        last = coming[slot - lead] if slot >= lead else energy @ self.known.intensity[:, -1]
        held = self.bounds.kg_from(energy, float(last), lead=lead, ahead=self.lead(slot))
        return max(0.0, held - float(coming[slot]))

    @property
    def _window_stop(self) -> int:
        return self.state.window_at + self.state.window_slots

    def _planned_kg(self) -> float:
        ahead_kg = float((self._drawn_kwh() * self.intensity[self.rows]).sum())
        return self.past.spent_kg + self.past.expected_kg + ahead_kg

    def ahead_kg(self) -> Floats | None:
        """Return the emissions that the plan expects after this slot, up to its end [slot], kg; None before the first plan."""
        state = self.state
        if state.planned_at is None and not state.window_at and not state.plan.any():
            return None
        expected: Floats = (self._drawn_kwh() * self.intensity[self.rows]).sum(axis=0)
        return expected[self.slot + 1 : self._window_stop]

    def _cheapest(self, places: NDArray[np.intp]) -> int:
        """Return the first slot of the window that is expected to emit least."""
        per_slot = (self.problem.costs.energy_kwh[:, None] * self.there * self.intensity[self.rows]).sum(axis=0)
        total = np.concatenate([[0.0], np.cumsum(per_slot)])
        return int(places[np.argmin(total[places + self.state.window_slots] - total[places])])

    # -- the window

    def _fit_window(self) -> None:
        """Shorten the window to the slots left: slots may have passed while no client could be reached."""
        left = self.problem.horizon - self.slot
        if self.state.window_slots > left:
            self.say(f"The window is shortened from {self.state.window_slots} to {left} slots: no more are left.")
        while self.state.window_slots > left:
            self.state.shorten_window()

    def _begin_window(self) -> None:
        self.state.window_at = self.slot
        self._train_window(self.there[:, self.slot] & self.present, self.state_window(self.slot, self.slot))

    def _train_window(self, trains: Mask, most_kg: float) -> None:
        self.trains = trains
        self.held_kg = min(self.hold_kg(self.trains, self.slot), most_kg)
        self.in_window = True

    def _continue_window(self) -> None:
        """Train the next slot of a window that has begun, or end it early."""
        state = self.state
        wanted = self.there[:, self.slot] & self.present
        if self.hold_kg(wanted, self.slot) > self.free_kg:  # no budget was kept for clients absent at its start
            wanted &= (state.trained | state.lost)[:, state.window_at]
        if self.hold_kg(wanted, self.slot) <= self.free_kg and wanted.any():
            self._train_window(wanted, self.free_kg)
            return
        self.say(
            f"The window is shortened from {state.window_slots} to {state.window_done} slots: slot {self.slot} may cost "
            f"more than the {self.free_kg:.6g} kg that are left."
        )
        state.window_slots = state.window_done
        state.stopped_at = self.slot

    def _at_window(self) -> bool:
        """Begin the window that is due, or move, shorten or drop it; return whether the slot is still to be decided."""
        state = self.state
        if state.window_slots == 0:
            state.stopped_at = self.slot
            return False
        while state.window_slots:
            places, need = self.places(self.slot), self.state_window(self.slot, self.slot)
            if self.slot in places and need <= self.free_kg:
                self._begin_window()
                return False
            why = f"{need:.6g} kg may be needed at slot {self.slot}, {self.free_kg:.6g} kg are left"
            if len(later := places[places > self.slot]):
                state.window_at = self._cheapest(later)
                self.say(f"The window is moved from slot {self.slot} to {state.window_at}: {why}.")
                return True
            state.shorten_window()
            what = f"shortened to {state.window_slots} slots" if state.window_slots else "dropped"
            self.say(f"The window is {what}: {why}, and no later place is possible.")
        state.window_at, state.planned_at = self.problem.horizon, None
        return True

    def _before_window(self) -> None:
        """Choose the planned clients that train in this slot, without endangering the window."""
        state = self.state
        self.protected_kg = self._protected_kg()
        room, waiting = self.free_kg - self.protected_kg, self.hold_kg(self.nobody, self.slot) if self.idle else 0.0
        if room >= waiting:
            self.trains = self._affordable(state.plan[:, self.slot] & self.there[:, self.slot] & self.present, room)
            if self.slot + 1 >= state.window_at and self.settings.replan_slots is not None:
                self._use_up(room)
            self.held_kg = self.hold_kg(self.trains, self.slot) if self.idle or self.trains.any() else 0.0
            return
        if (
            state.window_slots
            and self.slot in self.places(self.slot)
            and self.state_window(self.slot, self.slot) <= self.free_kg
        ):
            self.say(
                f"The window is moved from slot {state.window_at} forward to {self.slot}: later it may cost more than the "
                f"{self.free_kg:.6g} kg that are left."
            )
            self.protected_kg = 0.0
            self._begin_window()
        elif waiting > self.free_kg:
            what = "The window is dropped, and the run stops" if state.window_slots else "The run stops"
            self.say(
                f"{what} before slot {self.slot}: idle draw alone may cost more than the {self.free_kg:.6g} kg left."
            )
            state.window_slots, state.stopped_at = 0, self.slot
        else:
            self.held_kg = waiting

    def _protected_kg(self) -> float:
        """Return the least upper bound of the window at its place, as soon as possible, or at any stated place, kg.

        One of these then stays affordable: if the budget suffices for one place only, the window begins there.
        """
        places = self.places(self.slot + 1)
        if not self.state.window_slots or not len(places):
            return 0.0
        soonest = int(places[0])
        least = min(self.state_window(first, self.slot + 1) for first in {soonest, max(self.state.window_at, soonest)})
        # Only the first two include idle draw until then, and a stated place may be far.
        return least if self.idle else min(least, float(self.state.stated_kg[places].min()))

    def _affordable(self, wanted: Mask, room_kg: float) -> Mask:
        """Return as many of the wanted clients as fit at the upper bound, the best gain per kg first."""
        if not wanted.any() or self.hold_kg(wanted, self.slot) <= room_kg:
            return wanted
        order = self._by_gain(wanted)
        low, high = 0, int(wanted.sum())
        chosen = self.nobody
        while low < high:  # the bound grows with the number of clients, except for rare sets; the result is checked
            middle = (low + high + 1) // 2
            trial = self.nobody.copy()
            trial[order[:middle]] = True
            if self.hold_kg(trial, self.slot) <= room_kg:
                low, chosen = middle, trial
            else:
                high = middle - 1
        self.say(
            f"{int(chosen.sum())} of {int(wanted.sum())} planned clients train in slot {self.slot}: all of them might cost "
            f"more than the {room_kg:.6g} kg that are free."
        )
        return chosen

    def _use_up(self, room_kg: float) -> None:
        """Add clients that fit to the last slot before the window: budget left then is lost."""
        more = self.there[:, self.slot] & self.present & ~self.trains & (self.past.slots < self.problem.fleet.max_slots)
        added = 0
        for client in self._by_gain(more)[: int(more.sum())]:
            trial = self.trains.copy()
            trial[client] = True
            if self.hold_kg(trial, self.slot) <= room_kg:
                self.trains, added = trial, added + 1
        if added:
            self.state.plan[:, self.slot] |= self.trains
            self.say(f"{added} more clients than planned train in slot {self.slot}, the last one before the window.")

    def _by_gain(self, wanted: Mask) -> NDArray[np.intp]:
        """Return the clients by their gain per kg in this slot, the wanted ones first."""
        g = self.problem.costs.energy_kwh * self.intensity[self.rows, self.slot]
        so_far, after = (
            self.problem.utility.of(utilities(self.past.slots + more, self.past.training_kg + more * g, self.g_max))
            for more in (0, 1)
        )
        return np.argsort(-np.where(wanted, (after - so_far) / np.maximum(g, 1e-300), -np.inf), kind="stable")
