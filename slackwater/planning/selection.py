"""The knapsack of a stage, from one client to millions: which counts of cheapest slots are best, and a bound on all others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slackwater.planning import knapsack
from slackwater.planning.stage import Stage
from slackwater.planning.utility import utilities

_MOST_ITEMS = 400_000
"""More undecided items than this are first narrowed down to those near the break of the fractional solution."""
_WORK_NEAR_BREAK = 1_000_000
"""Among so many items the greedy is within 1e-6 of the bound already; a short search improves on that."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """How many of its cheapest slots each client gets."""

    counts: NDArray[np.intp]
    """[client]."""
    upper_bound: float
    """No schedule with this end time has a larger sum of f."""


def select(stage: Stage, *, greedy: bool = False) -> Selection:
    """Best counts for a stage whose fixed part fits."""
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
        # Among many items only those near the break are listed: closing their gap improves the choice, the bound is that of all.
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
    """For alpha = 1 the cheapest slots first are optimal: m slots are worth m g_max less their cost, and no more than these fit."""
    order = np.argsort(items.weight, kind="stable")
    taken = np.zeros(len(order), dtype=bool)
    taken[order[: int(np.searchsorted(np.cumsum(items.weight[order]), room, side="right"))]] = True
    return knapsack.Choice(taken=taken, upper_bound=math.fsum(items.value[taken]))


def bound(stage: Stage) -> float:
    """Dantzig's bound on the sum of f for a stage whose fixed part fits."""
    stage = stage.with_free_slots()
    low, high = stage.low, stage.high
    if int(stage.groups.size @ (high - low)) > _MOST_ITEMS:
        low, high = _narrow(stage)
    items = Items.between(stage, low, high)
    room = stage.room_kg - (stage.cost(low) - stage.cost(stage.low))
    return stage.value(low) + knapsack.fractional_bound(items.value, items.weight, room)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """Client-slots that are still open: entry [j] is the next slot of one client."""

    stage: Stage
    low: NDArray[np.intp]
    group: NDArray[np.intp]
    rank: NDArray[np.intp]
    """Which of the group's equal clients it is."""
    value: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def between(cls, stage: Stage, low: NDArray[np.intp], high: NDArray[np.intp]) -> Items:
        """What a stage leaves open between these counts."""
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
        """[client], slots in all; equal clients of a group are ranked by their order."""
        groups = self.stage.groups
        clients = np.argsort(groups.of_client, kind="stable")
        start = np.cumsum(groups.size) - groups.size
        more = np.bincount(clients[start[self.group] + self.rank], weights=taken, minlength=len(clients))
        return self.low[groups.of_client] + more.astype(np.intp)


def _narrow(stage: Stage) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Counts that the fractional solution reaches and does not exceed, close enough for what is between to be listed.

    Each pass takes a median of the open gains per kg as the price of carbon, and sees what the clients would buy at that price.
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
        if stage.cost(dearer) <= room:  # this price is the break itself: what is open gains the same per kg
            low = dearer
            break
        high = dearer
    return low, high


def _rate(stage: Stage, group: NDArray[np.intp], count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Gain per kg of the slot after the `count` cheapest."""
    groups = stage.groups
    kind, energy = groups.kind[group], groups.energy[group]
    weight = energy * stage.intensity[kind, count]
    before, after = (
        groups.utility.of(utilities(n, energy * stage.summed[kind, n], groups.g_max, stage.base[group]))
        for n in (count, count + 1)
    )
    return (after - before) / weight


def _counts_at(
    stage: Stage,
    group: NDArray[np.intp],
    low: NDArray[np.intp],
    high: NDArray[np.intp],
    price: float,
    *,
    strict: bool,
) -> NDArray[np.intp]:
    """[group], what clients buy, between low and high, if a kg costs `price` of f."""
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
