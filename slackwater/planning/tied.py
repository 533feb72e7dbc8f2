"""Tied clients: at most or at least so many in a slot, a server that is paid per slot, power levels, a second budget.

Here a client's cheapest slots need not be its best ones, so the prefixes of `exact` do not apply: each client-slot is
decided by itself. For any multipliers theta_c >= 0 (utility), nu_c (number of slots), lambda >= 0 (budgets) weak duality
bounds every schedule with end time s by

    sum_c max over (u, n) of [ F(u) - theta_c (u - b_c) - nu_c n ]  +  lambda R(s)  +  sum_{t before the window} slot_t

where slot_t = max(0, best sum of between `fewest` and `parallel` of the w_ct, less lambda h_t), and w_ct = theta_c d_ct +
nu_c - lambda g_ct at the level that is best. The last term is a prefix sum over t, so one pass bounds all end times. Every
bound that is reported is computed here, whatever found the multipliers. Utilities and kg are in units of g_max.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.exact import BUDGET_ROUNDING, Groups
from slackwater.planning.problem import NOISE, Problem
from slackwater.planning.sleepers import Sleepers
from slackwater.planning.states import reachable

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_FROM_NOTHING = 0.01
_HUGE = 1e100
_TUNE_WIDTH, _TUNE_STEPS = 1.5, 10
_ROUNDING = 1e-12
"""Share of its terms by which a bound is raised, so that rounding never makes it false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """F(v) = (v^alpha - 1) / alpha, which is log v for alpha = 0: a well-scaled form of the sum that a plan maximises."""

    alpha: float
    least: float
    """F(0): the logarithm has the finite value that `Utility` gives a client without utility."""

    def of(self, v: Array) -> Array:
        """Return F(v), elementwise."""
        positive = v > 0
        safe = np.where(positive, v, 1.0)
        value = np.log(safe) if self.alpha == 0 else (np.power(safe, self.alpha) - 1.0) / self.alpha
        return np.where(positive, value, self.least)

    def slope(self, v: Array) -> Array:
        """Return F'(v) for v > 0."""
        return np.power(v, self.alpha - 1.0)

    def curvature(self, v: Array) -> Array:
        """Return -F''(v) for v > 0."""
        return (1.0 - self.alpha) * np.power(v, self.alpha - 2.0)

    def peak(self, slope: Array) -> Array:
        """Return the v at which F has this slope; for alpha = 1, where F rises faster than the slope, infinity."""
        if self.alpha == 1.0:
            return np.where(slope >= 1.0, 0.0, np.inf)
        with np.errstate(divide="ignore"):
            return np.power(slope, 1.0 / (self.alpha - 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """Multipliers of the bound."""

    budget: Array
    """[budget], lambda."""
    utility: Array
    """[client], theta."""
    slot: Array
    """[client], nu: above 0 where the least number of slots is binding, below 0 where the most is."""
    late: Array
    """[client], for the slot that `recall` asks for."""
    place: Array | None = None
    """[client, slot], what a place in a slot costs a sleeping client; only its rows for sleeping clients count."""

    @property
    def sound(self) -> bool:
        """Return whether all are finite, and small enough for sums of products."""
        every = (self.budget, self.utility, self.slot, self.late, *(() if self.place is None else (self.place,)))
        return all(bool((np.abs(one) < _HUGE).all()) for one in every)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tied:
    """The client-slots before the window of one end time. Arrays are [client], [slot], [client, slot] or [.., client, slot]."""

    gains: Array
    """[level, client, slot], utility."""
    costs: Array
    """[budget, level, client, slot]."""
    usable: Mask
    """[level, client, slot], whether the level may be used."""
    fixed: Array
    """[budget, slot], paid once if anyone trains."""
    room: Array
    """[budget], what the window and idle draw leave."""
    base: Array
    """[client], utility from the window and from before the horizon."""
    low: NDArray[np.intp]
    high: NDArray[np.intp]
    recalled: Mask
    """[client], whether it must train in one of the late slots."""
    late: int
    """First of the late slots."""
    fewest: int
    parallel: int
    fairness: Fairness
    least: Array
    """[client], utility that each client must reach (max-min)."""
    sleepers: Sleepers | None = None
    """The sleeping clients, whose starts and idle draw the budgets pay too."""
    stop: int = 0
    """End of the window; with sleeping clients only."""

    @cached_property
    def open(self) -> Mask:
        """Return whether a client can train in a slot at all [client, slot]."""
        return np.asarray(self.usable.any(axis=0))

    @cached_property
    def best_gain(self) -> Array:
        """Return the most utility of a client-slot [client, slot]; 0 where it cannot train."""
        return np.asarray(np.where(self.usable, self.gains, 0.0).max(axis=0))

    @cached_property
    def reach(self) -> Array:
        """Return the most utility that n slots give, above the base [client, n]."""
        return reach_of(self.best_gain)

    @cached_property
    def alone(self) -> float:
        """Return the sum of F to measure gaps from: of the window alone, with a first slot for clients it gives nothing."""
        first = np.where(self.base > 0, self.base, self.best_gain.max(axis=1, initial=0.0))
        return float(self.fairness.of(first).sum())

    @cached_property
    def least_worth(self) -> float:
        """Return what can be gained at least, in F: clients from nothing make `alone` a guess, which may be too high."""
        return _FROM_NOTHING * int(np.count_nonzero(self.base <= 0))

    @cached_property
    def alone_level(self) -> float:
        """Return the least utility of any client from the window alone."""
        return float(self.base.min())

    def level_at(self, prices: Prices) -> NDArray[np.intp]:
        """Return the level that is worth most at these prices [client, slot]."""
        return np.asarray(self._worth(prices).argmax(axis=0))

    def effective(self, level: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return the gains [client, slot] and costs [budget, client, slot] at given levels."""
        if len(self.gains) == 1:
            return self.gains[0], self.costs[:, 0]
        take = level[None]
        gain = np.take_along_axis(self.gains, take, axis=0)[0]
        return gain, np.stack([np.take_along_axis(one, take, axis=0)[0] for one in self.costs])

    def _worth(self, prices: Prices) -> Array:
        worth = prices.utility[:, None] * self.gains - np.einsum("b,blct->lct", prices.budget, self.costs)
        return np.where(self.usable, worth, -np.inf)

    def worth(self, prices: Prices) -> Array:
        """Return w, what a client-slot is worth at these prices [client, slot]; -inf where it cannot train."""
        w = self._worth(prices)
        w = (w[0] if len(w) == 1 else w.max(axis=0)) + prices.slot[:, None]
        if self.recalled.any():
            w[:, self.late :] += np.where(self.recalled, prices.late, 0.0)[:, None]
        return np.asarray(w)

    def slot_terms(self, worth: Array, prices: Prices) -> Array:
        """Return what a slot adds to the bound [slot]."""
        return np.maximum(best_sets(worth, self.fewest, self.parallel) - prices.budget @ self.fixed, 0.0)

    def awake(self, worth: Array, prices: Prices) -> tuple[Array, Array]:
        """Return the worth of client-slots to the slots, and what sleeping clients have from it on their best ways.

        A sleeping client pays `prices.place` for a place in a slot, and keeps the rest of the worth for itself.
        """
        if self.sleepers is None:
            return worth, np.zeros(1)
        who = self.sleepers.clients
        place = np.zeros_like(worth[who]) if prices.place is None else prices.place[who, : worth.shape[1]]
        ways = self.sleepers.ways(worth[who] - place, prices.budget)
        own = self.sleepers.total(ways, worth.shape[1], self.stop, prices.budget)
        outside = worth.copy()
        outside[who] = np.where(self.open[who], place, -np.inf)
        return outside, own

    def while_up(self, up: Mask) -> Tied:
        """Return the problem that remains once sleeping clients are up in given slots [client, slot], window included."""
        assert self.sleepers is not None
        usable = self.usable.copy()
        usable[:, self.sleepers.clients] &= up[None, :, : usable.shape[2]]
        room = self.room - self.sleepers.cost(up).sum(axis=1)
        return replace(self, usable=usable & affordable(self.costs, self.fixed, room), room=room, sleepers=None)

    def up_on(self, prices: Prices) -> Mask:
        """Return in which slots sleeping clients are up on their best ways at these prices, window included."""
        assert self.sleepers is not None
        worth, who = self.worth(prices), self.sleepers.clients
        place = np.zeros_like(worth[who]) if prices.place is None else prices.place[who, : worth.shape[1]]
        ways = self.sleepers.ways(worth[who] - place, prices.budget)
        return self.sleepers.up_at(ways, worth.shape[1], self.stop)

    def tuned(self, prices: Prices) -> Prices:
        """Return the prices with each sleeping client's price of utility where its share of the bound is least."""
        assert self.sleepers is not None
        who = self.sleepers.clients
        centre = np.log(np.maximum(prices.utility[who], 1e-12))
        low, high = centre - _TUNE_WIDTH, centre + _TUNE_WIDTH

        def share(log_theta: Array) -> Array:
            theta = prices.utility.copy()
            theta[who] = np.exp(log_theta)
            now = replace(prices, utility=theta)
            worth = self.worth(now)[who]
            place = np.zeros_like(worth) if prices.place is None else prices.place[who, : worth.shape[1]]
            ways = self.sleepers.ways(worth - place, prices.budget)  # type: ignore[union-attr]
            own = self.sleepers.total(ways, worth.shape[1], self.stop, prices.budget)  # type: ignore[union-attr]
            terms = client_terms(self, self.base, now, self.reach, self.low, self.high, self.least)
            return np.asarray(terms[who] + own)

        golden = (math.sqrt(5) - 1) / 2
        left, right = high - golden * (high - low), low + golden * (high - low)
        at_left, at_right = share(left), share(right)
        for _ in range(_TUNE_STEPS):
            keep_left = at_left <= at_right
            low, high = np.where(keep_left, low, left), np.where(keep_left, right, high)
            left, right = high - golden * (high - low), low + golden * (high - low)
            at_left, at_right = share(left), share(right)
        theta = prices.utility.copy()
        theta[who] = np.exp((low + high) / 2)
        return replace(prices, utility=theta)

    def bound(self, prices: Prices) -> float:
        """Return the bound on the sum of F at these multipliers."""
        worth, own = self.awake(self.worth(prices), prices)
        slots = self.slot_terms(worth, prices)
        clients = client_terms(self, self.base, prices, self.reach, self.low, self.high, self.least)
        clients = clients - np.where(self.recalled, prices.late, 0.0)
        return raised(clients, prices.budget * self.room, slots, own)

    def level_bound(self, prices: Prices) -> float:
        """Return the bound on the least utility of any client; `prices.utility` sums to 1."""
        worth, own = self.awake(self.worth(prices), prices)
        slots = self.slot_terms(worth, prices)
        counts = -np.minimum(prices.slot * self.low, prices.slot * self.high)
        clients = prices.utility * self.base + counts - np.where(self.recalled, prices.late, 0.0)
        high = np.minimum(self.high, self.reach.shape[1] - 1)
        most = float((self.base + self.reach[np.arange(len(high)), high]).min())
        return min(raised(clients, prices.budget * self.room, slots, own), most)


def affordable(costs: Array, fixed: Array, room: Array) -> Mask:
    """Return which client-slots do not exceed a budget by themselves [level, client, slot].

    Where a price is negative, another slot may pay for one that does.
    """
    plain = (costs >= 0).all(axis=(1, 2, 3)) & (fixed >= 0).all(axis=1)
    return np.asarray(
        (costs + fixed[:, None, None, :] <= np.where(plain, room, np.inf)[:, None, None, None]).all(axis=0)
    )


def reach_of(gain: Array) -> Array:
    """Return the sums of each client's n largest gains [client, n]."""
    ordered = np.sort(gain, axis=1)[:, ::-1]
    return np.concatenate([np.zeros((len(gain), 1)), np.cumsum(ordered, axis=1)], axis=1)


def raised(*terms: Array) -> float:
    """Return the sum of the terms, raised by what rounding may have lost."""
    return sum(math.fsum(one.ravel()) for one in terms) + _ROUNDING * sum(float(np.abs(one).sum()) for one in terms)


def best_sets(worth: Array, fewest: int, parallel: int) -> Array:
    """Return the largest sum of between `fewest` and `parallel` entries of each column; -inf where too few can train."""
    clients = len(worth)
    if fewest > min(clients, parallel):
        return np.full(worth.shape[1], -np.inf)
    top = worth if parallel >= clients else -np.partition(-worth, parallel - 1, axis=0)[:parallel]
    if fewest <= 1:
        return np.asarray(np.maximum(top, 0.0).sum(axis=0))
    top = -np.partition(-top, fewest - 1, axis=0)
    return np.asarray(top[:fewest].sum(axis=0) + np.maximum(top[fewest:], 0.0).sum(axis=0))


def client_terms(
    tied: Tied, base: Array, prices: Prices, reach: Array, low: NDArray[np.intp], high: NDArray[np.intp], least: Array
) -> Array:
    """Return what each client adds to the bound, without recall; arrays may be [end, client]."""
    fair, theta = tied.fairness, prices.utility
    peak = fair.peak(np.maximum(theta, 1e-300))
    floor = np.maximum(base, least)
    most = base + reach[np.arange(len(theta)), np.minimum(high, reach.shape[1] - 1)]
    u = np.maximum(np.minimum(np.maximum(peak, floor), most), floor)
    value = fair.of(u) - theta * (u - base)
    if fair.alpha == 0:
        value = np.where(floor <= 0, np.maximum(value, fair.least), value)
    priced = np.flatnonzero(prices.slot)
    if not len(priced):
        return np.asarray(value)
    # Where slots have a price, the best number of them is looked for; few clients have one.
    n = np.arange(reach.shape[1])
    for c in priced:
        b, f = np.atleast_1d(base[..., c]), np.atleast_1d(floor[..., c])
        lo, hi = np.atleast_1d(low[..., c]), np.atleast_1d(high[..., c])
        top = b[:, None] + reach[c]
        at = np.maximum(np.minimum(np.maximum(peak[c], f)[:, None], top), f[:, None])
        each = fair.of(at) - theta[c] * (at - b[:, None]) - prices.slot[c] * n
        each = np.where((n >= lo[:, None]) & (n <= hi[:, None]) & (top >= f[:, None] * (1 - 1e-9)), each, -np.inf)
        best = each.max(axis=1)
        if fair.alpha == 0:
            best = np.where((f <= 0) & (lo <= 0), np.maximum(best, fair.least), best)
        value[..., c] = best if value.ndim > 1 else best[0]
    return np.asarray(value)


def client_values(tied: Tied, prices: Prices) -> Array:
    """Return what a client adds to the bound if it gets n slots [client, n]; -inf where it cannot have n."""
    fair, theta, base = tied.fairness, prices.utility[:, None], tied.base[:, None]
    n = np.arange(tied.reach.shape[1])
    floor = np.maximum(tied.base, tied.least)[:, None]
    top = base + tied.reach
    u = np.maximum(np.minimum(np.maximum(fair.peak(np.maximum(theta, 1e-300)), floor), top), floor)
    value = fair.of(u) - theta * (u - base) - prices.slot[:, None] * n
    if fair.alpha == 0:
        value = np.where(floor <= 0, np.maximum(value, fair.least - prices.slot[:, None] * n), value)
    fine = (n >= tied.low[:, None]) & (n <= tied.high[:, None]) & (top >= floor * (1 - 1e-9))
    return np.where(fine, value, -np.inf)


def _fairness(groups: Groups, unit: float) -> tuple[Fairness, float, float]:
    """Return F, and the two factors with which the sum of f is `slope` x (sum of F) + clients x `shift`."""
    utility = groups.utility
    if utility.kind == "log":
        shift = math.log(unit) - utility.reported(0.0, 1)
        return Fairness(alpha=0.0, least=-shift), 1.0, shift
    scale = unit**utility.alpha
    return Fairness(alpha=utility.alpha, least=-1.0 / utility.alpha), utility.alpha * scale, scale


class EndTimes:
    """All end times of a problem with tied clients: what each needs, and their bounds in one pass."""

    def __init__(self, problem: Problem, ends: Sequence[int], groups: Groups) -> None:
        self.problem, self.groups = problem, groups
        costs, fleet = problem.costs, problem.fleet
        self.unit = groups.g_max or 1.0
        """kg of one unit of utility and of the first budget."""
        clients = costs.clients
        self.there: Mask = reachable(problem)
        self._cells()
        self.fairness, self.slope, self.shift = _fairness(groups, self.unit)
        self.fewest = problem.min_parallel or 1
        self.parallel = min(problem.max_parallel or clients, clients)
        self.ends = np.asarray(ends, dtype=np.intp)
        self.before = problem.rounds + self.ends - problem.fine_tune
        self._windows()
        summed = np.concatenate([np.zeros((clients, 1)), np.cumsum(self.there, axis=1)], axis=1)
        first = np.maximum(self.before, 0)
        self.usable_slots = summed[:, first].T.astype(np.intp)
        """[end, client], slots before the window in which it can train."""
        self.high = np.minimum(fleet.max_slots[None, :], self.usable_slots).astype(np.intp)
        self.late = np.maximum(first - problem.recall, 0)
        recalled = summed[:, first] - summed[:, self.late] > 0
        ago = np.full(clients, np.inf) if problem.trained_ago is None else np.asarray(problem.trained_ago)
        recalled &= (ago[:, None] + first > problem.recall) & bool(problem.recall)
        self.recalled: Mask = recalled.T & (self.high > 0)
        self.low: NDArray[np.intp] = np.maximum(fleet.min_slots[None, :], self.recalled).astype(np.intp)
        self.possible &= (self.low <= self.high).all(axis=1)
        self.least = np.zeros(clients)
        self.sleepers = Sleepers(problem, self.budget_units) if costs.sleeps.any() else None
        self._reach = reach_of(np.where(self.usable, self.gains, 0.0).max(axis=0))

    def _cells(self) -> None:
        """Set gains, costs and fixed costs of all client-slots of the horizon, by level and budget."""
        problem, costs, unit = self.problem, self.problem.costs, self.unit
        there, levels = self.there, costs.level_kwh.shape[1]
        kwh = np.where(np.isnan(costs.level_kwh), 0.0, costs.level_kwh).T[:, :, None]
        weighed, intensity = costs.weighed[costs.row], costs.intensity[costs.row]
        gains = costs.level_work.T[:, :, None] * (self.groups.g_max / unit) - kwh * weighed / unit
        self.gains: Array = np.where(gains > NOISE, gains, 0.0)
        # A lower level is used only where it gains something; full power may gain nothing.
        exists = (costs.level_work.T > 0)[:, :, None] & ((gains > NOISE) | (np.arange(levels) == 0)[:, None, None])
        self.usable: Mask = there[None] & exists
        kg = [kwh * intensity / unit]
        fixed = [np.zeros(costs.slots) if costs.server_kg is None else costs.server_kg / unit]
        self.budget_units = [unit]
        if problem.budget_money is not None:
            assert costs.price is not None
            money = kwh * costs.price[costs.row]
            scale = float(np.abs(money).max()) or 1.0
            self.budget_units.append(scale)
            kg.append(money / scale)
            server = 0.0 if costs.server_price is None else costs.server_kwh * costs.server_price / scale
            fixed.append(np.broadcast_to(server, (costs.slots,)))
        self.costs: Array = np.stack(kg)
        self.fixed: Array = np.stack(fixed)

    def _windows(self) -> None:
        """Set what the window and the idle draw take and give, for all end times."""
        problem, costs = self.problem, self.problem.costs
        stop, first = problem.rounds + self.ends, np.maximum(self.before, 0)
        self.possible: Mask = self.before >= 0

        def window(values: Array) -> Array:
            """Return sums over the window [.., end]."""
            summed = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
            return np.asarray(summed[..., stop] - summed[..., first])

        free = costs.can_train()
        if problem.window == "all":
            self.possible &= (np.rint(window(free.astype(float))) == problem.fine_tune).all(axis=0)
        # A client that is free but cannot be up yet cannot hold the window.
        self.possible &= (np.rint(window((free & ~self.there).astype(float))) == 0).all(axis=0)
        earned = np.broadcast_to(np.asarray(problem.earned, dtype=float) / self.unit, (costs.clients,))
        base = earned[:, None] + window(np.where(self.there, self.gains[0], 0.0))
        self.base: Array = np.where(base > NOISE, base, 0.0).T.copy()
        """[end, client]."""
        spent = window(np.where(self.there, self.costs[:, 0], 0.0).sum(axis=1))
        spent = spent + window(self.fixed * self.there.any(axis=0))
        rooms = [problem.budget_kg * (1 + BUDGET_ROUNDING) - self.groups.idle_until[stop]]
        if problem.budget_money is not None:
            assert costs.price is not None
            per_row = np.bincount(costs.row, weights=costs.idle_kwh, minlength=len(costs.price))
            idle = np.concatenate([[0.0], np.cumsum(per_row @ costs.price)])[stop]
            rooms.append(problem.budget_money + BUDGET_ROUNDING * abs(problem.budget_money) - idle)
        self.room: Array = (np.stack(rooms) / np.array(self.budget_units)[:, None] - spent).T.copy()
        """[end, budget]."""

    def at(self, i: int, *, least: Array | None = None) -> Tied:
        """Return the client-slots of an end time; those that alone exceed the budget are closed."""
        before = int(self.before[i])
        cost = self.costs[..., :before]
        fits = affordable(cost, self.fixed[:, :before], self.room[i])
        return Tied(
            gains=self.gains[..., :before],
            costs=cost,
            usable=self.usable[..., :before] & fits,
            fixed=self.fixed[:, :before],
            room=self.room[i],
            base=self.base[i],
            low=self.lows(least)[i],
            high=self.high[i],
            recalled=self.recalled[i],
            late=int(self.late[i]),
            fewest=self.fewest,
            parallel=self.parallel,
            fairness=self.fairness,
            least=self.least if least is None else least,
            sleepers=self.sleepers,
            stop=int(self.before[i]) + self.problem.fine_tune,
        )

    def bounds(self, prices: Prices, least: Array | None = None, *, level: bool = False) -> Array:
        """Return bounds for all end times at one set of multipliers [end]."""
        whole, before = self.whole, np.maximum(self.before, 0)
        worth = whole.worth(prices)
        awake: Array = np.zeros(len(before))
        if self.sleepers is not None:
            awake, worth = self._awake(worth, prices)
        terms = np.concatenate([[0.0], np.cumsum(whole.slot_terms(worth, prices))])
        slots = terms[before]
        if prices.late.any():
            # The late slots of each end time are worth more to the recalled.
            late = np.concatenate([[0.0], np.cumsum(whole.slot_terms(worth + prices.late[:, None], prices))])
            slots = terms[self.late] + late[before] - late[self.late]
        low = self.lows(least)
        if level:
            clients = prices.utility * self.base - np.minimum(prices.slot * low, prices.slot * self.high)
        else:
            clients = client_terms(
                whole, self.base, prices, self._reach, low, self.high, self.least if least is None else least
            )
        clients = clients - np.where(self.recalled, prices.late, 0.0)
        budgets = self.room * prices.budget
        total = clients.sum(axis=1) + budgets.sum(axis=1) + slots + awake
        size = np.abs(clients).sum(axis=1) + np.abs(budgets).sum(axis=1) + np.abs(slots) + np.abs(awake)
        fine = self.possible & (low <= self.high).all(axis=1) & (total > -np.inf)
        return np.where(fine, total + _ROUNDING * np.where(fine, size, 0.0), -np.inf)

    def _awake(self, worth: Array, prices: Prices) -> tuple[Array, Array]:
        """Return what sleeping clients have on their best ways [end], and the worth of client-slots to the slots."""
        assert self.sleepers is not None
        who = self.sleepers.clients
        place = np.zeros_like(worth[who])
        if prices.place is not None:
            place[:, : prices.place.shape[1]] = prices.place[who, : place.shape[1]]
        # What recall pays for a late slot is added everywhere: that only raises the bound.
        ways = self.sleepers.ways(worth[who] + prices.late[who, None] - place, prices.budget)
        own = [
            float(self.sleepers.total(ways, int(a), int(a) + self.problem.fine_tune, prices.budget).sum())
            if a >= 0
            else 0.0
            for a in self.before
        ]
        outside = worth.copy()
        outside[who] = np.where(self.there[who], place, -np.inf)
        return np.array(own), outside

    def lows(self, least: Array | None) -> NDArray[np.intp]:
        """Return the least slots [end, client], with those that every client needs to reach a utility."""
        if least is None or not least.any():
            return self.low
        needed = np.empty_like(self.low)
        for client, reach in enumerate(self._reach):
            missing = least[client] - self.base[:, client]
            needed[:, client] = np.searchsorted(reach, missing - 1e-9 * (1 + np.abs(missing)))
        return np.asarray(np.maximum(self.low, needed))

    @cached_property
    def whole(self) -> Tied:
        """Return all client-slots of the horizon, for the prefix sums."""
        clients = len(self.base[0])
        return Tied(
            gains=self.gains,
            costs=self.costs,
            usable=self.usable,
            fixed=self.fixed,
            room=np.zeros(len(self.fixed)),
            base=np.zeros(clients),
            low=np.zeros(clients, dtype=np.intp),
            high=np.full(clients, self.gains.shape[-1], dtype=np.intp),
            recalled=np.zeros(clients, dtype=bool),
            late=0,
            fewest=self.fewest,
            parallel=self.parallel,
            fairness=self.fairness,
            least=self.least,
        )
