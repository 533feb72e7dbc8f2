"""One decision: which clients train in this slot, and where the fine-tuning window goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import Traces
from slackwater.planning.problem import Problem, utilities
from slackwater.planning.states import sleepers_up, startup_kwh
from slackwater.replanning.remaining import RemainingPlan, remaining_problem, solve
from slackwater.replanning.reserve import Bounds, usable_share
from slackwater.replanning.run_state import Past, Settings, State, server_kg, sleeping_kwh

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
        self.up: Mask = self.nobody
        """[client], which of the clients that sleep are up in this slot, whether they train or not."""
        self.starting: Mask = self.nobody
        """[client], which of them are starting in this slot."""
        self.level: NDArray[np.uint8] = np.zeros(len(self.rows), dtype=np.uint8)
        """[client], level at which each client trains in this slot, if it trains; 0 in the window."""
        server = self.problem.server
        self.server_row = None if server is None else self.known.index(server.zone)

    @property
    def free_kg(self) -> float:
        """Return the budget that is neither spent nor charged for slots in flight, kg."""
        return self.problem.budget_kg - self.past.spent_kg - self.past.in_flight_kg

    @property
    def free_money(self) -> float:
        """Return what is left of the budget in money; infinite without one."""
        return np.inf if self.problem.budget_money is None else self.problem.budget_money - self.past.spent_money

    @cached_property
    def bounds(self) -> Bounds:
        """Return the upper bounds from the actuals known."""
        return Bounds(self.known, margin=self.settings.margin, lookback_days=self.settings.lookback_days)

    def lead(self, slot: int) -> int:
        """Return the distance of a slot from the last known one, in slots."""
        return slot - self.offset + 1

    def zone_kwh(self, client_kwh: Floats, active: bool) -> Floats:
        """Return the energy [zone] of clients [client] in a slot, kWh, with the server's if anyone trains."""
        energy = np.bincount(self.rows, weights=client_kwh, minlength=len(self.intensity)).astype(np.float64)
        if self.server_row is not None and active:
            energy[self.server_row] += self.problem.costs.server_kwh
        return energy

    def round_kwh(self) -> Floats:
        """Return the energy of a round in this slot [client], kWh, at the level of each client."""
        costs = self.problem.costs
        if self.state.levels is None:
            return costs.energy_kwh
        return costs.level_kwh[np.arange(len(self.level)), self.level]

    def window_kwh(self, trains: Mask) -> Floats:
        """Return the energy of a slot of the window [client], kWh; the idle draw of all is included."""
        costs = self.problem.costs
        return np.where(trains, costs.energy_kwh + costs.up_kwh, 0.0) + costs.idle_kwh

    def drawn_kwh(self, trains: Mask) -> Floats:
        """Return the energy of this slot if these clients train [client], kWh; with idle draw and starts."""
        idle_kwh, start_kwh = self.waiting_kwh(trains)
        return np.where(trains, self.round_kwh(), 0.0) + (idle_kwh + start_kwh)

    def waiting_kwh(self, trains: Mask) -> tuple[Floats, Floats]:
        """Return idle energy and energy of starts in this slot [client], kWh; a client that trains is up."""
        costs = self.problem.costs
        if not self.sleepers:
            return costs.idle_kwh, np.zeros(len(self.rows))
        up, off = self.up_if(trains), (self.past.up_slots == 0) & (self.past.start_left < 0)
        # Two columns, the slot before and this one: a block begins where a client was not up before.
        before = ~off & costs.sleeps
        columns = np.stack([before, up], axis=1), np.stack([self.nobody, self.starting & ~up], axis=1)
        idle_kwh, start_kwh = sleeping_kwh(self.problem, *columns)
        return costs.idle_kwh + idle_kwh[:, 1], start_kwh[:, 1]

    def up_if(self, trains: Mask) -> Mask:
        """Return which clients that sleep are up in this slot if these clients train [client]."""
        return self.up | (trains & self.problem.costs.sleeps)

    def hold_kg(self, trains: Mask, slot: int | None = None) -> float:
        """Return the upper bound of this slot's emissions, kg, or of another one in the window."""
        drawn = self.drawn_kwh(trains) if slot is None else self.window_kwh(trains)
        return self._bound_kg(drawn, self.slot if slot is None else slot, bool(trains.any()))

    def _bound_kg(self, client_kwh: Floats, slot: int, active: bool) -> float:
        kg, given = self.bounds.kg(self.zone_kwh(client_kwh, active), self.lead(slot)), self.problem.costs.server_kg
        return kg + float(given[slot]) if active and self.server_row is None and given is not None else kg

    def money(self, trains: Mask) -> float:
        """Return the price of the electricity of this slot if these clients train; 0 without prices."""
        return self._money(self.drawn_kwh(trains), self.slot, bool(trains.any()))

    def _money(self, client_kwh: Floats, slot: int, active: bool) -> float:
        costs = self.problem.costs
        if costs.price is None:
            return 0.0
        server = (
            costs.server_kwh * float(costs.server_price[slot]) if active and costs.server_price is not None else 0.0
        )
        return float(client_kwh @ costs.price[costs.row, slot]) + server

    def state_window(self, first: int, since: int) -> float:
        """State an upper bound of the window that begins at `first`; return it with idle draw and starts from `since`, kg.

        The state keeps the smallest bound stated. It stays valid: otherwise a window with enough budget kept might not fit when it is due.
        """
        waiting = 0.0
        if self.waits:
            path = self._until_window(first, since)
            waiting = sum(self._bound_kg(path[:, slot - since], slot, False) for slot in range(since, first))
            if path[:, -1].any():
                waiting += self._bound_kg(path[:, -1], first, False)
        bound = sum(self.hold_kg(self.there[:, slot], slot) for slot in range(first, first + self.state.window_slots))
        self.state.stated_kg[first] = min(bound, self.state.stated_kg[first])
        return waiting + float(self.state.stated_kg[first])

    def window_money(self, first: int, since: int) -> float:
        """Return the price of the window that begins at `first`, with idle draw and starts from `since`."""
        if self.problem.budget_money is None:
            return 0.0
        waiting, window = self._money_until
        money = window[first + self.state.window_slots] - window[first]
        if not self.sleepers:
            return float(money + waiting[first] - waiting[since])
        path = self._until_window(first, since)
        return float(money) + sum(self._money(path[:, slot - since], slot, False) for slot in range(since, first + 1))

    @cached_property
    def _money_until(self) -> tuple[Floats, Floats]:
        """Return the price of idle draw before each slot, and of the window's slots if all before it were in it [slot]."""
        slots = range(self.problem.horizon)
        waiting = [self._money(self.problem.costs.idle_kwh, slot, False) for slot in slots]
        window = [self._money(self.window_kwh(self.there[:, slot]), slot, True) for slot in slots]
        return np.concatenate([[0.0], np.cumsum(waiting)]), np.concatenate([[0.0], np.cumsum(window)])

    def _until_window(self, first: int, since: int) -> Floats:
        """Return the energy of waiting [client, slot] from `since` to `first`, kWh, if nobody trains before the window.

        The last column has the starts in the window's first slot. A client that sleeps and is up stays up until its block is
        long enough, and until the window if that draws less than another start.
        """
        costs = self.problem.costs
        path = np.repeat(costs.idle_kwh[:, None], first - since + 1, axis=1)
        path[:, -1] = 0.0
        if not self.sleepers:
            return path
        up_slots, start_left = self._states_at(since)
        for c in np.flatnonzero(
            costs.sleeps & self.there[:, first : first + max(self.state.window_slots, 1)].any(axis=1)
        ):
            lead, block, gap = int(costs.lead[c]), int(costs.min_block[c]), first - since
            if start_left[c] > 0:
                path[c, : start_left[c]] += costs.startup_kwh[c] / lead
            is_up, begins = up_slots[c] > 0 or start_left[c] >= 0, max(int(start_left[c]), 0)
            stays = begins + max(block - int(up_slots[c]), 0) if is_up else 0
            off = gap - stays
            if is_up and (off < lead or costs.up_kwh[c] * off <= costs.startup_kwh[c]):
                stays = gap
            path[c, begins : min(stays, gap)] += costs.up_kwh[c]
            if stays < gap or not is_up:
                if lead:
                    path[c, max(gap - lead, 0) : gap] += costs.startup_kwh[c] / lead
                else:
                    path[c, gap] += costs.startup_kwh[c]
        return path

    def _states_at(self, since: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return slots up in a row and slots that a start still takes [client], before this slot or after it."""
        past = self.past
        if since <= self.slot:
            return past.up_slots, past.start_left
        left = np.where(past.start_left > 0, past.start_left, self.problem.costs.lead) - 1
        return np.where(self.up, past.up_slots + 1, 0), np.where(self.starting, left, -1)

    def ready_at(self, since: int) -> NDArray[np.int64]:
        """Return the first slot from `since` on in which each client can be up [client]."""
        up_slots, start_left = self._states_at(since)
        needs = np.where(start_left >= 0, start_left, np.where(up_slots > 0, 0, self.problem.costs.lead))
        return np.asarray(since + np.where(self.problem.costs.sleeps, needs, 0), dtype=np.int64)

    @cached_property
    def can(self) -> Mask:
        """Return who can train in this slot [client]: clients that are available and, if they sleep, can be up."""
        return self.there[:, self.slot] & (self.ready_at(self.slot) <= self.slot)

    @cached_property
    def g_max(self) -> float:
        """Return the dearest client-slot of the whole horizon, settled or expected, kg."""
        costs = self.problem.costs
        if costs.price is None or not self.problem.price_weight:
            return float((costs.energy_kwh * self.intensity.max(axis=1)[self.rows]).max())
        weighed = self.intensity[self.rows] + self.problem.price_weight * costs.price[costs.row]
        return float((costs.energy_kwh * weighed.max(axis=1)).max())

    @cached_property
    def sleepers(self) -> bool:
        """Return whether any client is off between its blocks."""
        return bool(self.problem.costs.sleeps.any())

    @cached_property
    def waits(self) -> bool:
        """Return whether clients draw power while they wait."""
        return bool(self.problem.costs.idle_kwh.any()) or self.sleepers

    @cached_property
    def there(self) -> Mask:
        """Return who can train when [client, slot]."""
        return self.problem.costs.can_train()

    def places(self, since: int) -> NDArray[np.intp]:
        """Return possible first slots of the window from `since` on: it ends after `rounds`, within the horizon, with all clients.

        Clients that sleep can be up by then, and the budget in money pays for it.
        """
        width = self.state.window_slots
        places = np.arange(max(since, self.problem.rounds - width, 0), self.problem.horizon - width + 1)
        if self.problem.window == "all" and width:
            absent = np.concatenate([[0], np.cumsum(~self.there.all(axis=0))])
            places = places[absent[places + width] == absent[places]]
        if self.sleepers and width and len(places):
            ready = self.ready_at(since)
            late = [bool((self.there[:, at] & (ready > at)).any()) for at in places]
            places = places[~np.array(late)]
        if self.problem.budget_money is not None and width and len(places):
            fits = [self.window_money(int(at), since) <= self._money_room(since) for at in places]
            places = places[np.array(fits)]
        return places

    def _money_room(self, since: int) -> float:
        return self.free_money - (0.0 if since <= self.slot else self.money(self.nobody))


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
            self._set_states()
            self.held_kg = self.hold_kg(self.nobody) if self.waits else 0.0
            return
        if state.window_done:
            self._set_states()
            self._continue_window()
            return
        self._fit_window()
        if state.due(self.settings.replan_slots):
            self._replan()
        self._set_states()
        if self.slot >= state.window_at:
            if not self._at_window():
                return
            self._set_states()
        self._before_window()

    def wanted(self) -> Mask | None:
        """Return who the plan wants in this slot [client], after `decide`; None before the first plan.

        A client that is present but held back, because all together might cost too much, is no longer planned here.
        """
        state, there = self.state, self.can
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
            self._take(self._solved(left, quick=True))
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
        if state.levels is not None:
            state.levels[:, self.slot :] = 0 if rest is None or rest.levels is None else rest.levels
        if rest is not None:
            state.window_at = self.slot + rest.window_at
            return
        places = self.places(self.slot)
        state.window_at = self._cheapest(places) if len(places) else self.problem.horizon - state.window_slots

    def _solved(self, budget_kg: float, *, quick: bool = False) -> RemainingPlan | None:
        if budget_kg <= 0:
            return None
        chosen = self.settings.end
        for limits in (True, False):
            asked = remaining_problem(
                self.problem,
                self.past,
                slot=self.slot,
                budget_kg=budget_kg,
                window_slots=self.state.window_slots,
                expected=self.expected.traces(),
                g_max_kg=self.g_max,
                limits=limits,
            )
            end = None if chosen is None else self.problem.rounds + chosen - self.slot - asked.rounds
            rest = solve(asked, self._in_vain[self.slot :], quick=quick, end=end)
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
        # A recalled client must train in the slots chosen for it, and tied ones in those chosen for all of them.
        if every is None or self.problem.recall or self.problem.coupled or ahead.stop - ahead.start <= every:
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
        ahead = energy[:, self.expected.slots - drawn.shape[1] :]
        np.add.at(ahead, self.rows, drawn)
        if self.server_row is not None:
            ahead[self.server_row] += self.problem.costs.server_kwh * self._active()[self.slot :]
        return energy

    def _drawn_kwh(self) -> Floats:
        """Return the energy of the plan from this slot to the end of its window [client, slot], kWh."""
        costs, state, stop = self.problem.costs, self.state, self._window_stop
        kwh = costs.energy_kwh[:, None]
        if state.levels is not None:
            kwh = np.take_along_axis(costs.level_kwh, state.levels.astype(np.intp), axis=1)
            kwh[:, state.window_at : stop] = costs.energy_kwh[:, None]
        drawn: Floats = self._planned() * kwh + costs.idle_kwh[:, None]
        drawn[:, : self.slot] = drawn[:, stop:] = 0.0
        if self.sleepers and self.slot < stop:
            up, start = self._sleepers_ahead()
            drawn[:, self.slot : stop] += costs.up_kwh[:, None] * up + start
        return drawn

    def _planned(self) -> Mask:
        """Return who trains when by the plan, from this slot to the end of its window [client, slot]."""
        state, stop = self.state, self._window_stop
        planned = state.plan.copy()
        planned[:, state.window_at : stop] = self.there[:, state.window_at : stop]
        planned[:, : self.slot] = planned[:, stop:] = False
        return planned

    def _active(self) -> Mask:
        """Return whether anyone trains by the plan [slot]."""
        return np.asarray(self._planned().any(axis=0))

    def _server_ahead_kg(self) -> Floats:
        """Return the emissions of the server by the plan [slot], kg; 0 without a server."""
        if self.problem.costs.server_kg is None:
            return np.zeros(self.problem.horizon)
        at = None if self.server_row is None else self.intensity[self.server_row]
        return server_kg(self.problem, self._active(), at)

    def _sleepers_ahead(self) -> tuple[Mask, Floats]:
        """Return when clients that sleep are up, and the energy of their starts, kWh: [client, slot] from this slot to the end.

        It is the cheapest way to train as planned. A start in progress counts as being up until it is over.
        """
        problem, costs, past, first = self.problem, self.problem.costs, self.past, self.slot
        stop = max(self._window_stop, first + 1)
        asleep = np.flatnonzero(costs.sleeps)
        trains = self._planned()[asleep, first:stop]
        if (
            self.state.window_at < first and not self.state.window_done
        ):  # the window is due, and nobody could be reached
            stop = min(first + self.state.window_slots, problem.horizon)
            trains = self.there[asleep, first:stop]
        trains &= np.arange(first, stop)[None, :] >= self.ready_at(first)[asleep, None]
        left = past.start_left[asleep]
        coming = np.flatnonzero((left >= 0) & (left < stop - first))
        trains[coming, left[coming]] = True  # it cannot be stopped
        rest = problem.with_settings(
            traces=self.expected.traces(), start=problem.slot_start(first), rounds=stop - first, slack=0, fine_tune=0, recall=0,
            max_parallel=None, min_parallel=None, server=None, server_kg=None, price=None, price_weight=0.0,
            budget_money=None, available=None, earned_kg=None, trained_ago=None, g_max_kg=None,
            up_before=np.where(past.start_left >= 0, 1, past.up_slots),
        )  # fmt: skip
        up, start = np.zeros((len(self.rows), stop - first), dtype=bool), np.zeros((len(self.rows), stop - first))
        up[asleep] = sleepers_up(rest, asleep, trains, 0)
        start[asleep] = startup_kwh(rest, up[asleep], asleep)
        return up, start

    def _set_states(self) -> None:
        """Set which clients that sleep are up or starting in this slot, and the levels of the plan."""
        state, costs, left = self.state, self.problem.costs, self.past.start_left
        if state.levels is not None and self.slot < state.window_at:
            self.level = np.where(state.plan[:, self.slot], state.levels[:, self.slot], 0).astype(np.uint8)
        if not self.sleepers or (state.planned_at is None and not state.window_at and not state.window_done):
            return
        up, start = self._sleepers_ahead()
        self.starting = (left > 0) | ((left < 0) & ~up[:, 0] & (costs.lead > 0) & (start[:, 0] > 0))
        self.up = up[:, 0] & (left <= 0)

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
        there = self.there[:, slot]
        energy = self.zone_kwh(self.window_kwh(there), bool(there.any()))
        coming = energy @ self.intensity
        last = coming[slot - lead] if slot >= lead else energy @ self.known.intensity[:, -1]
        held = self.bounds.kg_from(energy, float(last), lead=lead, ahead=self.lead(slot))
        return max(0.0, held - float(coming[slot]))

    @property
    def _window_stop(self) -> int:
        return self.state.window_at + self.state.window_slots

    def _planned_kg(self) -> float:
        ahead_kg = float((self._drawn_kwh() * self.intensity[self.rows]).sum()) + float(self._server_ahead_kg().sum())
        return self.past.spent_kg + self.past.expected_kg + ahead_kg

    def ahead_kg(self) -> Floats | None:
        """Return the emissions that the plan expects after this slot, up to its end [slot], kg; None before the first plan."""
        state = self.state
        if state.planned_at is None and not state.window_at and not state.plan.any():
            return None
        expected: Floats = (self._drawn_kwh() * self.intensity[self.rows]).sum(axis=0) + self._server_ahead_kg()
        return expected[self.slot + 1 : self._window_stop]

    def _cheapest(self, places: NDArray[np.intp]) -> int:
        """Return the first slot of the window that is expected to emit least."""
        per_slot = (self.problem.costs.energy_kwh[:, None] * self.there * self.intensity[self.rows]).sum(axis=0)
        if self.server_row is not None:
            per_slot = per_slot + self.problem.costs.server_kwh * self.intensity[self.server_row]
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
        self._train_window(self.can & self.present, self.state_window(self.slot, self.slot))

    def _train_window(self, trains: Mask, most_kg: float) -> None:
        self.trains, self.level = trains, np.zeros_like(self.level)
        self.held_kg = min(self.hold_kg(self.trains), most_kg)
        self.in_window = True

    def _continue_window(self) -> None:
        """Train the next slot of a window that has begun, or end it early."""
        state = self.state
        wanted = self.can & self.present
        self.level = np.zeros_like(self.level)
        if not self._fits(wanted, self.free_kg, self.free_money):  # no budget was kept for clients absent at its start
            wanted &= (state.trained | state.lost)[:, state.window_at]
        if wanted.any() and self._fits(wanted, self.free_kg, self.free_money):
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
        room, waiting = self.free_kg - self.protected_kg, self.hold_kg(self.nobody) if self.waits else 0.0
        if room >= waiting:
            planned, money = state.plan[:, self.slot] & self.can, self.free_money - self._protected_money()
            self.trains = self._enough(self._affordable(planned & self.present, room, money), planned)
            if self.slot + 1 >= state.window_at and self.settings.replan_slots is not None:
                self._use_up(room, money)
            self.held_kg = self.hold_kg(self.trains) if self.waits or self.trains.any() else 0.0
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
        elif waiting > self.free_kg or self.money(self.nobody) > self.free_money:
            what = "The window is dropped, and the run stops" if state.window_slots else "The run stops"
            self.say(
                f"{what} before slot {self.slot}: idle draw alone may cost more than the {self.free_kg:.6g} kg left."
            )
            state.window_slots, state.stopped_at = 0, self.slot
            self.up = self.starting = self.nobody
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
        return least if self.waits else min(least, float(self.state.stated_kg[places].min()))

    def _protected_money(self) -> float:
        """Return the price of the window at its place, with the idle draw until then; 0 without a budget in money."""
        if self.problem.budget_money is None or not self.state.window_slots:
            return 0.0
        places = self.places(self.slot + 1)
        if not len(places):
            return 0.0
        first = self.state.window_at if self.state.window_at in places else int(places[0])
        return self.window_money(first, self.slot + 1)

    def _fits(self, trains: Mask, room_kg: float, money: float) -> bool:
        """Return whether a slot in which these clients train fits into both budgets, at its upper bound."""
        return self.hold_kg(trains) <= room_kg and (np.isinf(money) or self.money(trains) <= money)

    def _enough(self, trains: Mask, planned: Mask) -> Mask:
        """Return these clients if they are a quorum, else nobody, with a message."""
        least, count = self.problem.min_parallel, int(trains.sum())
        if least is None or count >= least or not planned.any():
            return trains
        self.say(
            f"Nobody trains in slot {self.slot}: only {count} of {int(planned.sum())} planned clients can, and min_parallel "
            f"asks for at least {least}."
        )
        return self.nobody

    def _affordable(self, wanted: Mask, room_kg: float, money: float) -> Mask:
        """Return as many of the wanted clients as fit at the upper bound, the best gain per kg first."""
        if not wanted.any() or self._fits(wanted, room_kg, money):
            return wanted
        order = self._by_gain(wanted)
        low, high = 0, int(wanted.sum())
        chosen = self.nobody
        while low < high:  # the bound grows with the number of clients, except for rare sets; the result is checked
            middle = (low + high + 1) // 2
            trial = self.nobody.copy()
            trial[order[:middle]] = True
            if self._fits(trial, room_kg, money):
                low, chosen = middle, trial
            else:
                high = middle - 1
        free = f"{room_kg:.6g} kg" + ("" if np.isinf(money) else f" or {money:.6g} {self._currency}")
        self.say(
            f"{int(chosen.sum())} of {int(wanted.sum())} planned clients train in slot {self.slot}: all of them might cost "
            f"more than the {free} that are free."
        )
        return chosen

    @property
    def _currency(self) -> str:
        return "" if self.problem.price is None else self.problem.price.currency

    def _use_up(self, room_kg: float, money: float) -> None:
        """Add clients that fit to the last slot before the window: budget left then is lost."""
        more = self.can & self.present & ~self.trains & (self.past.slots < self.problem.fleet.max_slots)
        self.level = np.where(self.trains, self.level, 0).astype(np.uint8)  # those that are added train at full power
        most, least = self.problem.max_parallel or len(more), self.problem.min_parallel or 1
        planned, added = self.trains, 0
        for client in self._by_gain(more)[: int(more.sum())]:
            trial = self.trains.copy()
            trial[client] = True
            if int(trial.sum()) <= most and self._fits(trial, room_kg, money):
                self.trains, added = trial, added + 1
        if added and int(self.trains.sum()) < least:
            self.trains, added = planned, 0
        if added:
            self.state.plan[:, self.slot] |= self.trains
            more_than = (
                "1 more client than planned trains" if added == 1 else f"{added} more clients than planned train"
            )
            self.say(f"{more_than} in slot {self.slot}, the last one before the window.")

    def _by_gain(self, wanted: Mask) -> NDArray[np.intp]:
        """Return the clients by their gain per kg in this slot, the wanted ones first."""
        costs, kwh = self.problem.costs, self.round_kwh()
        g = kwh * self.intensity[self.rows, self.slot]
        weighed, work = g, 1.0 if self.state.levels is None else costs.level_work[np.arange(len(g)), self.level]
        if costs.price is not None and self.problem.price_weight:
            weighed = g + self.problem.price_weight * kwh * costs.price[costs.row, self.slot]
        so_far, after = (
            self.problem.utility.of(
                utilities(self.past.work + more * work, self.past.training_kg + more * weighed, self.g_max)
            )
            for more in (0, 1)
        )
        return np.argsort(-np.where(wanted, (after - so_far) / np.maximum(g, 1e-300), -np.inf), kind="stable")
