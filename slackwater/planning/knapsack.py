"""The 0-1 knapsack with real weights, solved exactly with a proof: Dantzig's bound, a greedy fill, and a small core.

Every other choice of items is the break solution (the items of best value per weight that fit) with some items flipped in
or out. Each flip has a price: its loss against the fractional bound. A choice better than the best known one can only use
flips whose prices sum to less than the gap, so few items near the break matter. Dynamic programming over them, with
dominance, closes the gap (after Pisinger).

Values and weights become integers on a fine grid, so that sums are exact. Every item gets a small bonus above its value,
larger than rounding to the grid. So among choices of equal value the one with more items wins, then the lighter one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_VALUE_BITS = 50
_WEIGHT_BITS = 50
_SLACK = 2**6
"""Added to the capacity, in units of weight, so that items that fit exactly still fit when rounded: 6e-14 of it."""
_BONUS = 2**10
"""Added to each item, in units of value: about 1e-12 of the most valuable item."""
_LARGEST = 2**61
"""States beyond this could overflow; they are dropped, and the bound accounts for them."""
_PRICE_NOISE = 1e-13
"""Prices are computed in floating point: this share of a value is never pruned."""
_MANY_STATES = 4096
"""From this many states on, a gap within the tolerance is good enough."""
MOST_WORK = 20_000_000
"""States examined in total before the search stops and reports its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The items taken, and a bound that no other choice exceeds."""

    taken: NDArray[np.bool_]
    upper_bound: float


def fractional_bound(values: NDArray[np.float64], weights: NDArray[np.float64], capacity: float) -> float:
    """Return Dantzig's bound: the best total value if the last item could be cut. Weights must be above 0."""
    return fractional(values, weights, capacity)[0]


def fractional(values: NDArray[np.float64], weights: NDArray[np.float64], capacity: float) -> tuple[float, float]:
    """Return Dantzig's bound and the value per weight of the item that is cut, 0 if all fit. Weights must be above 0."""
    fits = weights <= capacity
    values, weights = values[fits], weights[fits]
    order = np.argsort(-(values / weights))
    total = np.cumsum(weights[order])
    taken = int(np.searchsorted(total, capacity, side="right"))
    bound = float(values[order[:taken]].sum())
    if taken < len(order):
        last = order[taken]
        spent = float(total[taken - 1]) if taken else 0.0
        rate = float(values[last] / weights[last])
        return bound + rate * (capacity - spent), rate
    return bound, 0.0


def solve(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    capacity: float,
    *,
    tolerance: float = 1e-10,
    most_work: int | None = None,
    greedy: bool = False,
) -> Choice:
    """Return the best choice of items under the capacity. Values must not be negative, weights must be above 0.

    `tolerance` is the gap, relative to the bound, at which a large search may stop. `most_work` limits the states it
    examines in total. `greedy` skips the search.
    """
    taken = np.zeros(len(values), dtype=bool)
    inside = np.flatnonzero(weights <= capacity)
    if len(inside) == 0:
        return Choice(taken=taken, upper_bound=0.0)
    grid = _Grid.of(values[inside], weights[inside], capacity)
    chosen, bound = grid.greedy()
    proved = fractional = fractional_bound(values, weights, capacity)
    if not greedy:
        break_value = math.fsum(values[inside[grid.order[: grid.taken]]])
        chosen, bound, looked_at = grid.close(
            chosen, bound, tolerance * break_value / grid.unit, MOST_WORK if most_work is None else most_work
        )
        # Only examined items can differ from the break solution; each may have lost half a unit and its bonus.
        proved = break_value + (bound + (_BONUS + 0.5) * looked_at + 0.5) * grid.unit
    taken[inside[chosen]] = True
    return Choice(taken=taken, upper_bound=min(proved, fractional))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """The items in order of value per weight, as integers; totals are relative to the break solution, so they stay small."""

    value: NDArray[np.int64]
    weight: NDArray[np.int64]
    room: int
    """Capacity that the break solution leaves."""
    order: NDArray[np.intp]
    """Position in the caller's arrays."""
    taken: int
    """Length of the break solution."""
    unit: float
    """One unit of value in the caller's terms."""

    @classmethod
    def of(cls, values: NDArray[np.float64], weights: NDArray[np.float64], capacity: float) -> _Grid:
        unit = max(float(values.max()), 1e-300) / 2**_VALUE_BITS
        value = np.rint(values / unit).astype(np.int64) + _BONUS
        weight = np.maximum(np.rint(weights * (2.0**_WEIGHT_BITS / capacity)).astype(np.int64), 1)
        order = np.argsort(-(value / weight), kind="stable")
        value, weight = value[order], weight[order]
        room = 2**_WEIGHT_BITS + _SLACK
        near = (
            int(np.searchsorted(np.cumsum(weight, dtype=np.float64), 2.0 * room)) + 1
        )  # beyond, integers may overflow
        total = np.cumsum(weight[:near])
        taken = int(np.searchsorted(total, room, side="right"))
        spent = int(total[taken - 1]) if taken else 0
        return cls(value=value, weight=weight, room=room - spent, order=order, taken=taken, unit=unit)

    def greedy(self) -> tuple[NDArray[np.intp], int]:
        """Return the best value per weight first, then what still fits; and Dantzig's bound, in units above the break solution."""
        chosen = list(range(self.taken))
        if self.taken == len(self.value):
            return self.order, 0
        bound = self.room * int(self.value[self.taken]) // int(self.weight[self.taken])
        left, room = np.arange(self.taken + 1, len(self.value)), self.room
        while len(left := left[self.weight[left] <= room]):
            chosen.append(int(left[0]))
            room -= int(self.weight[left[0]])
            left = left[1:]
        # The greedy's guarantee needs this: one valuable item may beat all items of better value per weight.
        if float(self.value[self.taken]) > self.value[chosen].sum(dtype=np.float64):
            chosen = [self.taken]
        return self.order[chosen], bound

    def close(
        self, chosen: NDArray[np.intp], bound: int, tolerance: float, most_work: int
    ) -> tuple[NDArray[np.intp], int, int]:
        """Return the best choice, the proved bound and the number of items examined, from a good choice and its bound."""
        into = np.where(np.arange(len(self.value)) < self.taken, -1, 1)  # a flip puts an item in, or takes it out
        flipped = np.zeros(len(self.value), dtype=bool)
        flipped[self._position(chosen)] = True
        flipped[: self.taken] ^= True
        best = int((into * self.value)[flipped].sum())
        best_weight = int((into * self.weight)[flipped].sum())
        if self.taken == len(self.value) or best >= bound:
            return chosen, bound, self.taken
        rate = float(self.value[self.taken]) / float(self.weight[self.taken])
        noise = _PRICE_NOISE * float(self.value.max()) + 1.0
        price = np.maximum(into * (rate * self.weight - self.value), 0.0)
        core = np.flatnonzero(price <= bound - best + noise)
        core = core[np.argsort(price[core], kind="stable")]

        weight, value = np.zeros(1, np.int64), np.zeros(1, np.int64)  # of each state, relative to the break solution
        history: list[tuple[NDArray[np.intp], NDArray[np.bool_]]] = []
        found: tuple[int, int] | None = None
        work, proved, given_up = 0, True, -_LARGEST
        for step, item in enumerate(core):
            gap = bound - best + noise
            if price[item] > gap:
                break
            if work > most_work or (len(weight) > _MANY_STATES and bound - best <= tolerance):
                proved = False
                break
            # A state must still pay this flip or a dearer one: without a flip it is counted already.
            loss = rate * weight - value
            alive = np.flatnonzero(loss + price[item] <= gap)
            safe = np.abs(value[alive]) < _LARGEST - self.value[item]
            if not safe.all():
                given_up = max(given_up, bound - int(loss[alive[~safe]].min()))
                alive = alive[safe]
            if len(alive) == 0:
                break
            work += len(alive)
            both_weight = np.concatenate([weight[alive], weight[alive] + into[item] * self.weight[item]])
            both_value = np.concatenate([value[alive], value[alive] + into[item] * self.value[item]])
            by_weight = np.lexsort((-both_value, both_weight))
            rising = both_value[by_weight]
            undominated = np.ones(len(rising), dtype=bool)
            undominated[1:] = rising[1:] > np.maximum.accumulate(rising)[:-1]
            keep = by_weight[undominated]
            weight, value = both_weight[keep], both_value[keep]
            history.append((alive[keep % len(alive)], keep >= len(alive)))
            top = (
                int(np.searchsorted(weight, self.room, side="right")) - 1
            )  # value rises with weight: the best that fits
            if top >= 0 and (value[top], -weight[top]) > (best, -best_weight):
                best, best_weight, found = int(value[top]), int(weight[top]), (step, top)
        if proved:
            bound = min(bound, max(best, given_up))
        if found is None:
            return chosen, bound, len(core)
        inside = np.arange(len(self.value)) < self.taken
        last, state = found
        for step in range(last, -1, -1):
            parent, switched = history[step]
            if switched[state]:
                inside[core[step]] = ~inside[core[step]]
            state = int(parent[state])
        return self.order[inside], bound, len(core)

    def _position(self, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions of the caller's items in the order."""
        position = np.empty_like(self.order)
        position[self.order] = np.arange(len(self.order))
        return position[chosen]
