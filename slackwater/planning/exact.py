"""The exact planner: the problem of one end time, its knapsack, and the search over all end times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning import knapsack
from slackwater.planning.problem import NOISE, Problem, Utility, utilities
from slackwater.units import iso

BUDGET_ROUNDING = 1e-12
"""Relative allowance: sums of the same costs in another order differ by this much, and a budget is often such a sum."""
_LARGE = ("order", "intensity", "summed")


class Groups:
    """Groups of clients with equal intensity, availability, energy and limits, which share work. Made once per problem."""

    def __init__(self, problem: Problem) -> None:
        costs, fleet = problem.costs, problem.fleet
        self.problem, self.costs = problem, costs
        self.g_max = problem.g_max
        self.noise = NOISE * self.g_max  # rounding error of utilities
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
        # Cheapest first, earlier first among equals; an unavailable slot has an infinite price.
        self.price: NDArray[np.float64] = np.where(self.available, self.intensity, np.inf)
        self.order: NDArray[np.intp] = np.argsort(self.price, axis=1, kind="stable")
        self.idle_until: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(costs.idle_kg())])
        most = float(self.earned.max())
        self.utility: Utility = problem.utility.scaled(
            clients=len(fleet), least=self.noise or NOISE * most, largest=costs.slots * self.g_max + most
        )


class NoStageError(ValueError):
    """Raised for an end time that no schedule can have, with the reason."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The knapsack of one end time. Arrays are [group] or [kind, i], where i counts slots from the cheapest."""

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
    """[kind], whether it must train in the last slots before the window; its first slot is then the cheapest of these."""
    low: NDArray[np.intp]
    """[group], slots that are always taken."""
    high: NDArray[np.intp]
    """[group], most slots that can be taken."""

    @classmethod
    def at(cls, groups: Groups, end: int) -> Stage:
        """Return the stage for an end time; raise NoStageError, with the reason, if there is none."""
        problem = groups.problem
        stop = problem.rounds + end
        before = stop - problem.fine_tune
        if before < 0:
            raise NoStageError(f"s={end}: the window of {problem.fine_tune} slots would begin before the first slot")
        there = groups.available[:, before:stop]
        if problem.window == "all" and not there.all():
            missing = (~there).any(axis=1)[groups.kind[groups.of_client]]  # type: ignore[index]
            name = problem.fleet.names[int(np.argmax(missing))]
            raise NoStageError(f"s={end}: client {name!r} is not available in the window")
        window_ci = np.where(there, groups.intensity[:, before:stop], 0.0).sum(axis=1)
        usable = groups.available[:, :before].sum(axis=1)[groups.kind]
        high = np.minimum(groups.max_slots, usable).astype(np.intp)
        recalled = groups.available[:, max(0, before - problem.recall) : before].any(axis=1)
        recalled &= groups.trained_ago + before > problem.recall
        low = np.maximum(groups.min_slots, np.minimum(recalled[groups.kind], high)).astype(np.intp)
        if np.any(low > high):
            client = int(np.argmax((low > high)[groups.of_client]))
            raise NoStageError(
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
        """Return the slots [kind, i], in order of price."""
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
        """Return the intensity [kind, i], kg/kWh, cheapest first except for a recalled slot; infinite where unavailable."""
        return np.take_along_axis(self.groups.price, self.order, axis=1)

    @cached_property
    def summed(self) -> NDArray[np.float64]:
        """Return the summed intensity of the n cheapest slots [kind, n], kg/kWh."""
        return np.concatenate([np.zeros((len(self.intensity), 1)), np.cumsum(self.intensity, axis=1)], axis=1)

    def cost(self, counts: NDArray[np.intp]) -> float:
        """Return the emissions of training before the window, in the `counts` cheapest slots of each group's clients, kg."""
        groups = self.groups
        return float(groups.size @ (groups.energy * self.summed[groups.kind, counts]))

    def utilities(self, counts: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the utility of a client of each group with these counts [group], kg."""
        groups = self.groups
        return utilities(counts, groups.energy * self.summed[groups.kind, counts], groups.g_max, self.base)

    def value(self, counts: NDArray[np.intp]) -> float:
        """Return the sum of f over clients."""
        return float(self.groups.size @ self.groups.utility.of(self.utilities(counts)))

    @cached_property
    def fixed_kg(self) -> float:
        """Return the emissions that are always spent, kg: idle draw, window and least slots."""
        return self.idle_kg + self.window_kg + self.cost(self.low)

    @property
    def room_kg(self) -> float:
        """Return the budget for the slots to choose, rounding allowed for, kg; negative if it does not pay the fixed part."""
        budget = self.groups.problem.budget_kg
        return budget * (1 + BUDGET_ROUNDING) - self.fixed_kg

    def raised(self, low: NDArray[np.intp]) -> Stage:
        """Return the stage with at least these counts."""
        stage = replace(self, low=np.maximum(self.low, low))
        stage.__dict__.update({name: self.__dict__[name] for name in _LARGE if name in self.__dict__})
        return stage

    def forget(self) -> None:
        """Drop arrays that can be computed again: a long slack has many stages."""
        for name in _LARGE:
            self.__dict__.pop(name, None)

    def with_free_slots(self) -> Stage:
        """Return the stage with every free slot taken."""
        groups = self.groups
        free = (self.intensity <= 0).sum(axis=1)
        if self.recalled.any():
            free = free + (self.recalled & (self.intensity[:, 0] > 0))
        free = free[groups.kind]
        free = np.where(groups.energy > 0, free, self.before)
        return self.raised(np.minimum(free, self.high)) if free.any() else self

    def with_everyone(self) -> Stage:
        """Return the stage with a first slot for every client that has none, if that fits (log utility only).

        It is then in every optimum, and the logarithm stays finite. Otherwise the lift in the utility decides who gets one.
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
        """Return the stage with every client's utility at least the level, up to rounding; None if infeasible (max-min)."""
        stage = self.raised(self.counts_reaching(level))
        reached = stage.least_utility >= level - 2 * self.groups.noise
        return stage if reached and stage.room_kg >= 0 else None

    def at_best_level(self) -> Stage:
        """Return the stage with the least utility of any client as high as the budget allows (max-min)."""
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
        """Return the least utility of any client from the fixed part, kg."""
        return float(self.utilities(self.low).min())

    def counts_reaching(self, level: float) -> NDArray[np.intp]:
        """Return the fewest slots with which a client reaches the level, up to rounding, or all it can have [group]."""
        counts = self._first_reaching(np.full(len(self.low), level - self.groups.noise))
        # A slot that costs g_max adds only noise: it is not worth its kg.
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
    """Return the number of each entry's distinct combination, and one entry of each combination."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), dtype=bool)
    for column in columns:
        sorted_ = column[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]  # not by difference: there are infinities
    number = np.empty(len(order), dtype=np.intp)
    number[order] = np.cumsum(new)
    new[0] = True
    return number, order[new]


_MOST_ITEMS = 400_000
"""More undecided items than this are first narrowed to those near the break of the fractional solution."""
_WORK_NEAR_BREAK = 1_000_000
"""Search work for narrowed items: the greedy is within 1e-6 of the bound already, so a short search is enough."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """The number of its cheapest slots that each client gets."""

    counts: NDArray[np.intp]
    """[client]."""
    upper_bound: float
    """No schedule with this end time has a larger sum of f."""


def select(stage: Stage, *, greedy: bool = False) -> Selection:
    """Return the best counts for a stage whose fixed part fits."""
    stage = stage.with_free_slots()
    low, high = stage.low, stage.high
    whole = int(stage.groups.size @ (high - low)) <= _MOST_ITEMS
    if not whole:
        low, high = _narrow(stage)
    items = Items.between(stage, low, high)
    room = stage.room_kg - (stage.cost(low) - stage.cost(stage.low))
    if stage.groups.utility.alpha == 1.0:
        choice = _cheapest(items, room)
    else:
        # Of many items only those near the break are listed: closing their gap improves the choice; the bound is that of all.
        if whole:
            choice = knapsack.solve(items.value, items.weight, room, greedy=greedy)
        else:
            choice = knapsack.solve(
                items.value, items.weight, room, greedy=greedy, tolerance=1e-8, most_work=_WORK_NEAR_BREAK
            )
            choice = replace(choice, upper_bound=knapsack.fractional_bound(items.value, items.weight, room))
    bound = choice.upper_bound
    return Selection(counts=items.counts(choice.taken), upper_bound=stage.value(low) + bound)


def _cheapest(items: Items, room: float) -> knapsack.Choice:
    """Return the cheapest slots, optimal for alpha = 1: m slots are worth m g_max less their cost, and no larger m fits."""
    order = np.argsort(items.weight, kind="stable")
    taken = np.zeros(len(order), dtype=bool)
    taken[order[: int(np.searchsorted(np.cumsum(items.weight[order]), room, side="right"))]] = True
    return knapsack.Choice(taken=taken, upper_bound=math.fsum(items.value[taken]))


def bound(stage: Stage) -> float:
    """Return Dantzig's bound on the sum of f for a stage whose fixed part fits."""
    return bound_and_price(stage)[0]


def bound_and_price(stage: Stage) -> tuple[float, float]:
    """Return Dantzig's bound on the sum of f for a stage whose fixed part fits, and the f that a further kg is worth."""
    stage = stage.with_free_slots()
    low, high = stage.low, stage.high
    if int(stage.groups.size @ (high - low)) > _MOST_ITEMS:
        low, high = _narrow(stage)
    items = Items.between(stage, low, high)
    room = stage.room_kg - (stage.cost(low) - stage.cost(stage.low))
    gain, price = knapsack.fractional(items.value, items.weight, room)
    return stage.value(low) + gain, price


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """The client-slots that are still open: entry [j] is the next slot of one client."""

    stage: Stage
    low: NDArray[np.intp]
    group: NDArray[np.intp]
    rank: NDArray[np.intp]
    """Number of the client among the equal ones of its group."""
    value: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def between(cls, stage: Stage, low: NDArray[np.intp], high: NDArray[np.intp]) -> Items:
        """Return the items that a stage leaves open between these counts."""
        groups = stage.groups
        width = high - low
        group = np.repeat(np.arange(len(width)), width)
        count = np.arange(len(group)) - np.repeat(np.cumsum(width) - width, width) + low[group] + 1
        # f at 0 .. width further slots of every group, so that the gains telescope without loss of digits
        reach = np.repeat(np.arange(len(width)), width + 1)
        reached = np.arange(len(reach)) - np.repeat(np.cumsum(width + 1) - (width + 1), width + 1) + low[reach]
        kind = groups.kind[reach]
        spent = groups.energy[reach] * stage.summed[kind, reached]
        f = groups.utility.of(utilities(reached, spent, groups.g_max, stage.base[reach]))
        gain = np.diff(f)[np.diff(reach) == 0] if len(f) else f
        weight = groups.energy[group] * stage.intensity[groups.kind[group], count - 1]
        size = groups.size[group]
        if np.all(size == 1):
            rank = np.zeros(len(group), dtype=np.intp)
        else:
            rank = (np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)).astype(np.intp)
            group, gain, weight = np.repeat(group, size), np.repeat(gain, size), np.repeat(weight, size)
        return cls(stage=stage, low=low, group=group, rank=rank, value=np.maximum(gain, 0.0), weight=weight)

    def counts(self, taken: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the total slots of each client [client]; equal clients of a group are ranked by their order."""
        groups = self.stage.groups
        clients = np.argsort(groups.of_client, kind="stable")
        start = np.cumsum(groups.size) - groups.size
        more = np.bincount(clients[start[self.group] + self.rank], weights=taken, minlength=len(clients))
        return self.low[groups.of_client] + more.astype(np.intp)


def _narrow(stage: Stage) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return counts that the fractional solution reaches and does not exceed, close enough to list the items between.

    Each pass takes a median of the open gains per kg as the price of carbon, and computes what clients buy at that price.
    """
    groups = stage.groups
    low, high = stage.low.copy(), stage.high.copy()
    spent = stage.cost(low)
    room = stage.room_kg + spent
    while int(groups.size @ (high - low)) > _MOST_ITEMS:
        open_ = np.flatnonzero(low < high)
        rates = _rate(stage, open_, (low + high)[open_] // 2)
        by_rate = np.argsort(rates)
        share = np.cumsum((groups.size * (high - low))[open_][by_rate])
        price = rates[by_rate[np.searchsorted(share, share[-1] / 2)]]
        bought = _counts_at(stage, open_, low, high, price, strict=False)
        if stage.cost(bought) <= room:
            low = bought
            continue
        dearer = _counts_at(stage, open_, low, high, price, strict=True)
        high = bought
        if stage.cost(dearer) <= room:  # this price is the break itself: all open items gain the same per kg
            low = dearer
            break
        high = dearer
    return low, high


def _rate(stage: Stage, group: NDArray[np.intp], count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the gain per kg of the slot after the `count` cheapest."""
    groups = stage.groups
    kind, energy = groups.kind[group], groups.energy[group]
    weight = energy * stage.intensity[kind, count]
    before, after = (
        groups.utility.of(utilities(n, energy * stage.summed[kind, n], groups.g_max, stage.base[group]))
        for n in (count, count + 1)
    )
    return (after - before) / weight


def counts_at(stage: Stage, price: float) -> NDArray[np.intp]:
    """Return what clients buy, [group], if a kg costs `price` of f."""
    return _counts_at(stage, np.flatnonzero(stage.low < stage.high), stage.low, stage.high, price, strict=True)


def _counts_at(
    stage: Stage,
    group: NDArray[np.intp],
    low: NDArray[np.intp],
    high: NDArray[np.intp],
    price: float,
    *,
    strict: bool,
) -> NDArray[np.intp]:
    """Return what clients buy between low and high [group], if a kg costs `price` of f."""
    bottom, top = low[group], high[group]
    while len(active := np.flatnonzero(bottom < top)):
        middle = (bottom[active] + top[active]) // 2
        rates = _rate(stage, group[active], middle)
        buys = rates > price if strict else rates >= price
        bottom[active] = np.where(buys, middle + 1, bottom[active])
        top[active] = np.where(buys, top[active], middle)
    counts = low.copy()
    counts[group] = bottom
    return counts


_TIE = 1e-12
"""Relative difference up to which objectives tie: then more slots, less carbon and the earlier end decide."""
_CHUNK = 50_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The best schedule that a solver found, and its bound."""

    stage: Stage
    packed: NDArray[np.uint8]
    """[client, ceil(horizon / 8)], the schedule as bits."""
    upper_bound: float
    """Bound on the sum of f over all schedules and requested end times."""
    level: float | None = None
    """Least utility of any client, for max-min only."""
    levels: NDArray[np.uint8] | None = None
    """[client, slot], the power level; None: full power everywhere."""
    alone: float | None = None
    """Sum of f of the window alone; None: the stage tells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    """The best counts for one end time."""

    stage: Stage
    counts: NDArray[np.intp]
    """[client], slots before the window."""
    total: float
    """Sum of f over clients."""


def feasible_stages(problem: Problem, ends: Sequence[int]) -> list[Stage]:
    """Return a stage for each end time whose fixed part fits; if none does, raise an error that says what would help."""
    return list(_feasible(Groups(problem), ends))


def _feasible(groups: Groups, ends: Sequence[int]) -> Iterator[Stage]:
    """Yield the stages of `feasible_stages` one by one, so that they need not all be kept."""
    refused: list[str] = []
    cheapest: Stage | None = None
    some = False
    for end in ends:
        try:
            stage = Stage.at(groups, end)
        except NoStageError as error:
            refused.append(str(error))
            continue
        if stage.room_kg >= 0:
            some = True
            stage.forget()
            yield stage
        elif cheapest is None or stage.fixed_kg < cheapest.fixed_kg:
            cheapest = stage
    if not some:
        raise infeasible(groups.problem, cheapest, refused)


def search(
    problem: Problem,
    ends: Sequence[int],
    *,
    greedy: bool = False,
    solve: Callable[[Stage], Selection] | None = None,
) -> Found:
    """Return the best schedule over the end times. `solve` replaces the exact solver for one end time (used by the MILP)."""
    from slackwater.planning.multipliers import best_first  # it builds on this module

    groups = Groups(problem)
    level: float | None = None
    if problem.utility.kind == "max-min":
        stages, level = _at_best_level(_feasible(groups, ends))
        ordered = _by_bound(stages)
    elif len(ends) == 1:
        ordered = _by_bound([stage.with_everyone() for stage in _feasible(groups, ends)])
    else:
        ordered = best_first(groups, ends)
    best: _Candidate | None = None
    proved = -math.inf
    for stage, top in ordered:
        if best is not None and top < best.total - _TIE * abs(best.total):
            break
        choice = solve(stage) if solve is not None else select(stage, greedy=greedy)
        proved = max(proved, min(choice.upper_bound, top))
        found = _Candidate(stage=stage, counts=choice.counts, total=_total(stage, choice.counts))
        if best is None or _better(found, best):
            best = found
    assert best is not None
    return Found(
        stage=best.stage, packed=pack_counts(best.stage, best.counts), upper_bound=max(proved, best.total), level=level
    )


def _by_bound(stages: list[Stage]) -> Iterator[tuple[Stage, float]]:
    """Yield stages and their bounds, from the largest bound down; a single stage needs none."""
    bounds = [_bound(stage) for stage in stages] if len(stages) > 1 else [math.inf]
    for i in np.argsort(-np.array(bounds), kind="stable"):
        yield stages[i], bounds[i]


def _bound(stage: Stage) -> float:
    value = bound(stage)
    stage.forget()
    return value


def _at_best_level(stages: Iterable[Stage]) -> tuple[list[Stage], float]:
    """Return the end times with the highest affordable level, all clients raised to it, and the level."""
    level, best = -math.inf, list[Stage]()
    for stage in stages:
        noise = stage.groups.noise
        if level >= 0 and stage.at_level(level) is None:
            stage.forget()
            continue  # one check is enough for most end times
        raised = stage.at_best_level()
        stage.forget()
        if raised.least_utility > level + noise:
            level, best = raised.least_utility, []
        best.append(raised)
    return best, level


def pack_counts(stage: Stage, counts: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Return the schedule as bits: each client's `counts` cheapest slots before the window, and the window."""
    groups = stage.groups
    # Clients of a kind with the same count share a row, so a million clients need few of them.
    row, one = alike(groups.kind[groups.of_client], counts)
    place = np.empty_like(stage.order)  # [kind, slot], how many slots of the kind are cheaper
    np.put_along_axis(place, stage.order, np.arange(stage.before)[None, :], axis=1)
    packed = np.empty((len(one), (groups.costs.slots + 7) // 8), dtype=np.uint8)
    for first in range(0, len(one), _CHUNK):
        part = one[first : first + _CHUNK]
        kinds = groups.kind[groups.of_client[part]]
        packed[first : first + _CHUNK] = pack_matrix(stage, kinds, place[kinds] < counts[part, None])
    return packed[row]


def pack_matrix(stage: Stage, kinds: NDArray[np.intp], before: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return rows [row, slot before the window] of clients of these kinds as bits, with the window added."""
    groups = stage.groups
    rows = np.zeros((len(before), groups.costs.slots), dtype=bool)
    rows[:, : stage.before] = before
    stop = stage.before + groups.problem.fine_tune
    rows[:, stage.before : stop] = groups.available[kinds, stage.before : stop]
    return np.packbits(rows, axis=1)


def _total(stage: Stage, counts: NDArray[np.intp]) -> float:
    """Return the sum of f for counts [client]."""
    groups = stage.groups
    group = groups.of_client
    spent = groups.energy[group] * stage.summed[groups.kind[group], counts]
    return math.fsum(groups.utility.of(utilities(counts, spent, groups.g_max, stage.base[group])))


def _better(new: _Candidate, old: _Candidate) -> bool:
    margin = _TIE * max(abs(new.total), abs(old.total))
    if abs(new.total - old.total) > margin:
        return new.total > old.total

    def rank(found: _Candidate) -> tuple[int, float, int]:
        stage, groups = found.stage, found.stage.groups
        group = groups.of_client
        kg = float((groups.energy[group] * stage.summed[groups.kind[group], found.counts]).sum())
        return -int(found.counts.sum()) - stage.window_slots, round(kg + stage.window_kg + stage.idle_kg, 12), stage.end

    return rank(new) < rank(old)


def infeasible(problem: Problem, cheapest: Stage | None, refused: list[str]) -> InfeasibleError:
    """Return the error for a problem without a schedule, from its cheapest end time or from why there is none."""
    if cheapest is None:
        last = refused[-1]  # the latest end leaves the most slots
        more = f"; none of the {len(refused)} end times works" if len(refused) > 1 else ""
        way_out = "or set window = 'available'" if "in the window" in last else "or ask for fewer slots"
        return InfeasibleError(
            f"No end time works, whatever the budget: {last}{more}. Give the client other hours, add slack, {way_out}."
        )
    need = cheapest.fixed_kg
    parts = [
        ("the fine-tuning window", cheapest.window_kg),
        ("idle power", cheapest.idle_kg),
        ("the clients' least slots (min_slots, required, recall)", need - cheapest.window_kg - cheapest.idle_kg),
    ]
    named = [f"{what} {kg:.6f} kg" for what, kg in parts if kg > 0]
    stop = problem.slot_start(problem.rounds + cheapest.end)
    return InfeasibleError(
        f"No schedule fits {problem.budget_kg:g} kg: at its cheapest (s={cheapest.end}, ending {iso(stop)}) the fixed part costs "
        f"{need:.6f} kg ({', '.join(named)}). Raise budget_kg to at least {round_up(need)}, shorten fine_tune or add slack.",
        least_budget_kg=need,
        end=cheapest.end,
    )


def round_up(kg: float) -> str:
    """Return the least sufficient budget with six decimals, kg."""
    return f"{math.ceil(kg * 1e6 * (1 - 1e-12)) / 1e6:.6f}"
