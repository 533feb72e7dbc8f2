"""What is left to decide once the end time s is fixed: how many of its cheapest slots each client gets.

With the window paid for, a client's i-th cheapest slot before the window has both the lowest cost and the highest utility of those left,
and its gain falls with i. So some optimal schedule gives each client a prefix of its slots sorted by cost: a 0-1 knapsack. Where it must
train in the last slots before the window (`recall`), the cheapest of these comes first and is taken; for the others nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem
from slackwater.planning.utility import NOISE, Utility, utilities

BUDGET_ROUNDING = 1e-12
"""Relative: sums of the same costs in another order differ by this much, and a budget is often such a sum."""
_LARGE = ("order", "intensity", "summed")


class Groups:
    """Clients that share intensity, availability, energy and limits: they share the work. Made once for a problem."""

    def __init__(self, problem: Problem) -> None:
        costs, fleet = problem.costs, problem.fleet
        self.problem, self.costs = problem, costs
        self.g_max = problem.g_max
        self.noise = NOISE * self.g_max  # what utilities may be off by
        ago = [] if problem.trained_ago is None else [np.asarray(problem.trained_ago)]
        kind, one = alike(costs.row, costs.mask, *ago)
        self.trained_ago: NDArray[np.float64] = ago[0][one] if ago else np.full(len(one), np.inf)
        self.intensity: NDArray[np.float64] = costs.intensity[costs.row[one]]
        self.available: NDArray[np.bool_] = costs.available[costs.mask[one]]
        past = [] if problem.earned_kg is None else [np.asarray(problem.earned)]
        self.of_client, first = alike(kind, costs.energy_kwh, fleet.min_slots, fleet.max_slots, *past)
        self.size: NDArray[np.int64] = np.bincount(self.of_client)
        self.kind, self.energy = kind[first], costs.energy_kwh[first]
        self.min_slots, self.max_slots = fleet.min_slots[first], fleet.max_slots[first]
        self.earned: NDArray[np.float64] = past[0][first] if past else np.zeros(len(first))
        # Cheapest first, earlier first among equals; a slot that is not available costs infinitely much.
        self.price: NDArray[np.float64] = np.where(self.available, self.intensity, np.inf)
        self.order: NDArray[np.intp] = np.argsort(self.price, axis=1, kind="stable")
        self.idle_until: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(costs.idle_kg())])
        most = float(self.earned.max())
        self.utility: Utility = problem.utility.scaled(
            clients=len(fleet), least=self.noise or NOISE * most, largest=costs.slots * self.g_max + most
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The knapsack that remains for one end time. Arrays are [group] or [kind, i], i counting slots from the cheapest."""

    groups: Groups
    end: int
    before: int
    """Slots before the window."""
    window_slots: int
    """Client-slots in the window."""
    window_kg: float
    idle_kg: float
    base: NDArray[np.float64]
    """[group], utility from the window and from before the horizon."""
    recalled: NDArray[np.bool_]
    """[kind], whether it must train in the last slots before the window: its first slot is then the cheapest of these."""
    low: NDArray[np.intp]
    """[group], slots that are taken in any case."""
    high: NDArray[np.intp]
    """[group], most slots that can be taken."""

    @classmethod
    def at(cls, groups: Groups, end: int) -> Stage | str:
        """The stage for an end time, or why there is none."""
        problem = groups.problem
        stop = problem.rounds + end
        before = stop - problem.fine_tune
        if before < 0:
            return f"s={end}: the window of {problem.fine_tune} slots would begin before the first slot"
        there = groups.available[:, before:stop]
        if problem.window == "all" and not there.all():
            missing = (~there).any(axis=1)[groups.kind[groups.of_client]]  # type: ignore[index]
            return f"s={end}: client {problem.fleet.names[int(np.argmax(missing))]!r} is not available in the window"
        window_ci = np.where(there, groups.intensity[:, before:stop], 0.0).sum(axis=1)
        usable = groups.available[:, :before].sum(axis=1)[groups.kind]
        high = np.minimum(groups.max_slots, usable).astype(np.intp)
        recalled = groups.available[:, max(0, before - problem.recall) : before].any(axis=1)
        recalled &= groups.trained_ago + before > problem.recall
        low = np.maximum(groups.min_slots, np.minimum(recalled[groups.kind], high)).astype(np.intp)
        if np.any(low > high):
            client = int(np.argmax((low > high)[groups.of_client]))
            return (
                f"s={end}: client {problem.fleet.names[client]!r} must get at least {problem.fleet.min_slots[client]} slots "
                f"but can train in only {usable[groups.of_client[client]]} before the window"
            )
        server = groups.costs.server_kg
        return cls(
            groups=groups,
            end=end,
            before=before,
            window_slots=int(groups.size @ there.sum(axis=1)[groups.kind]),
            window_kg=float(groups.size @ (groups.energy * window_ci[groups.kind]))
            + (float(server[before:stop][there.any(axis=0)].sum()) if server is not None else 0.0),
            idle_kg=float(groups.idle_until[stop]),
            base=utilities(
                there.sum(axis=1)[groups.kind], groups.energy * window_ci[groups.kind], groups.g_max, groups.earned
            ),
            recalled=recalled,
            low=low,
            high=high,
        )

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """[kind, i], slot."""
        order = self.groups.order
        order = order[order < self.before].reshape(len(order), self.before)
        if not self.recalled.any():
            return order
        late = order >= self.before - self.groups.problem.recall
        first = np.where(self.recalled, np.argmax(late, axis=1), 0)[:, None]
        place = np.arange(self.before)[None, :]
        moved = np.where(place == 0, first, np.where(place <= first, place - 1, place))
        return np.take_along_axis(order, moved, axis=1)

    @cached_property
    def intensity(self) -> NDArray[np.float64]:
        """[kind, i], kg/kWh, cheapest first but for a recalled one; infinite where not available."""
        return np.take_along_axis(self.groups.price, self.order, axis=1)

    @cached_property
    def summed(self) -> NDArray[np.float64]:
        """[kind, n], intensity of the n cheapest slots together."""
        return np.concatenate([np.zeros((len(self.intensity), 1)), np.cumsum(self.intensity, axis=1)], axis=1)

    def cost(self, counts: NDArray[np.intp]) -> float:
        """Emissions of training before the window if each group's clients get their `counts` cheapest slots, kg."""
        groups = self.groups
        return float(groups.size @ (groups.energy * self.summed[groups.kind, counts]))

    def utilities(self, counts: NDArray[np.intp]) -> NDArray[np.float64]:
        """[group], utility of a client with these counts."""
        groups = self.groups
        return utilities(counts, groups.energy * self.summed[groups.kind, counts], groups.g_max, self.base)

    def value(self, counts: NDArray[np.intp]) -> float:
        """Sum of f over clients."""
        return float(self.groups.size @ self.groups.utility.of(self.utilities(counts)))

    @cached_property
    def fixed_kg(self) -> float:
        """What is spent in any case: idle draw, window, and the least slots."""
        return self.idle_kg + self.window_kg + self.cost(self.low)

    @property
    def room_kg(self) -> float:
        """What is left for the slots to choose, rounding allowed for; negative if the budget does not even pay what is fixed."""
        budget = self.groups.problem.budget_kg
        return budget * (1 + BUDGET_ROUNDING) - self.fixed_kg

    def raised(self, low: NDArray[np.intp]) -> Stage:
        """The same with at least these counts."""
        stage = replace(self, low=np.maximum(self.low, low))
        stage.__dict__.update({name: self.__dict__[name] for name in _LARGE if name in self.__dict__})
        return stage

    def forget(self) -> None:
        """Give up what can be computed again: a long slack has many stages."""
        for name in _LARGE:
            self.__dict__.pop(name, None)

    def with_free_slots(self) -> Stage:
        """The same with every slot that costs nothing taken."""
        groups = self.groups
        free = (self.intensity <= 0).sum(axis=1)
        if self.recalled.any():
            free = free + (self.recalled & (self.intensity[:, 0] > 0))
        free = free[groups.kind]
        free = np.where(groups.energy > 0, free, self.before)
        return self.raised(np.minimum(free, self.high)) if free.any() else self

    def with_everyone(self) -> Stage:
        """For the log utility: the same with a first slot for all who have none, if that fits.

        It is then in every optimum, and the logarithm stays finite; if it does not fit, the lift in the utility decides who gets one.
        """
        if self.groups.utility.kind != "log" or self.before == 0:
            return self
        first = np.minimum(1, self.high)
        helps = (self.utilities(self.low) <= 0) & (self.utilities(np.maximum(self.low, first)) > 0)
        if not helps.any():
            return self
        lifted = self.raised(np.where(helps, first, 0))
        return lifted if lifted.room_kg >= 0 else self

    def at_level(self, level: float) -> Stage | None:
        """For max-min: the same with every client's utility at least the level (but for rounding), or None where that cannot be had."""
        stage = self.raised(self.counts_reaching(level))
        reached = stage.least_utility >= level - 2 * self.groups.noise
        return stage if reached and stage.room_kg >= 0 else None

    def at_best_level(self) -> Stage:
        """For max-min: the same with the least utility of any client as high as the budget allows."""
        stage, reached = self, self.least_utility
        too_high = float(self.utilities(self.high).min()) + self.groups.noise / 2
        while too_high - reached > self.groups.noise:
            level = (reached + too_high) / 2
            if (raised := self.at_level(level)) is not None:
                stage, reached = raised, max(level, raised.least_utility)
            else:
                too_high = level
        return stage

    @cached_property
    def least_utility(self) -> float:
        """Utility of the client that has least, from what is fixed."""
        return float(self.utilities(self.low).min())

    def counts_reaching(self, level: float) -> NDArray[np.intp]:
        """[group], fewest slots with which a client's utility is at least the level, but for rounding (or all it can have)."""
        counts = self._first_reaching(np.full(len(self.low), level - self.groups.noise))
        # A slot that costs g_max adds nothing but noise: it is not worth its kg.
        return self._first_reaching(self.utilities(counts) - self.groups.noise)

    def _first_reaching(self, target: NDArray[np.float64]) -> NDArray[np.intp]:
        low, high = self.low.copy(), self.high.copy()
        while np.any(open_ := low < high):
            middle = (low + high) // 2
            enough = self.utilities(middle) >= target
            high = np.where(open_ & enough, middle, high)
            low = np.where(open_ & ~enough, middle + 1, low)
        return low


def alike(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number of the distinct combination of each entry, and one entry of each combination."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), dtype=bool)
    for column in columns:
        sorted_ = column[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]  # a difference would not do: there are infinities
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.cumsum(new)
    new[0] = True
    return number, order[new]
