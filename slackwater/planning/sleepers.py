"""Sleeping clients in the search over tied clients: starts, blocks, and the idle draw while up.

At given prices a sleeping client's best way through the slots (off, starting, up and idle, training) is a longest path. It
is its share of the bound, and the slots in which it is up are a proposal for the schedule. Once these are fixed, what
remains is a problem without sleeping clients: they cannot train elsewhere, and the budget is less by starts and idle draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem
from slackwater.planning.states import reachable, sleepers_up, up_starts

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_USUAL_BLOCK = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """The best ways of all sleeping clients up to every slot, at some prices."""

    off: Array
    """[slot, client], the most that can be had before the slot, if the client is off just before it."""
    up: Array
    """[slot, client, j], the same including the slot, if it is up in it as the j-th in a row (cut at the longest block)."""
    inside: Array
    """[client, slot], what a slot up gives: training where that pays, less the idle draw."""
    starts: Array
    """[client, slot], what a start costs whose block begins in the slot; infinite where it cannot."""


class Sleepers:
    """The sleeping clients of a problem; costs are [budget, client, slot], in the units of the search."""

    def __init__(self, problem: Problem, units: list[float]) -> None:
        costs = problem.costs
        self.problem = problem
        self.clients: NDArray[np.intp] = np.flatnonzero(costs.sleeps)
        who = self.clients
        self.lead, self.block = costs.lead[who], costs.min_block[who]
        before = np.zeros(costs.clients) if problem.up_before is None else np.asarray(problem.up_before)
        self.up_before = np.minimum(before[who].astype(np.intp), self.longest)
        rates = [costs.intensity[costs.row[who]] / units[0]]
        if len(units) > 1:
            assert costs.price is not None
            rates.append(costs.price[costs.row[who]] / units[1])
        self.idle: Array = np.stack([costs.up_kwh[who, None] * rate for rate in rates])
        self.start: Array = np.stack([self._start(costs.startup_kwh[who], rate) for rate in rates])
        """[budget, client, slot], cost of a start whose block begins in the slot."""
        self.can_start: Mask = np.arange(costs.slots)[None, :] >= self.lead[:, None]
        self.there: Mask = reachable(problem)[who]
        """[client, slot], whether the client can train; in a window it must be up only there."""

    @property
    def longest(self) -> int:
        """Return the longest least block of any client."""
        return int(self.block.max(initial=1))

    def _start(self, kwh: Array, rate: Array) -> Array:
        summed = np.concatenate([np.zeros((len(rate), 1)), np.cumsum(rate, axis=1)], axis=1)
        slots = np.arange(rate.shape[1])
        first = np.maximum(slots[None, :] - self.lead[:, None], 0)
        before = np.take_along_axis(summed, first, axis=1)
        spread = (summed[:, :-1] - before) / np.maximum(self.lead, 1)[:, None]
        return np.asarray(kwh[:, None] * np.where(self.lead[:, None] > 0, spread, rate))

    def cost(self, up: Mask) -> Array:
        """Return the cost of starts and idle draw of given slots up [budget, client]; up is [client, slot]."""
        stop = up.shape[1]
        first = up_starts(self.problem, up, self.clients)
        idle = np.where(up, self.idle[:, :, :stop], 0.0).sum(axis=2)
        return np.asarray(idle + np.where(first, self.start[:, :, :stop], 0.0).sum(axis=2))

    def overhead(self) -> Array:
        """Return a first guess of what starts and idle draw add to a slot of training [budget, client]."""
        return np.asarray(self.idle.mean(axis=2) + self.start.mean(axis=2) / np.maximum(self.block, _USUAL_BLOCK))

    def cheapest_up(self, trains: Mask, end: int) -> Mask:
        """Return in which slots the clients are up, at the least kg, if they train in these [client, slot]."""
        whole = np.zeros((len(self.clients), self.problem.horizon), dtype=bool)
        whole[:, : trains.shape[1]] = trains
        return sleepers_up(self.problem, self.clients, whole, end)[:, : trains.shape[1]]

    def ways(self, worth: Array, price: Array) -> Ways:
        """Return the best ways, if training in a slot gives `worth` [client, slot] (-inf: it cannot) at these prices."""
        count, slots = worth.shape
        last, who = self.longest, np.arange(count)
        inside = np.maximum(worth, 0.0) - np.einsum("b,bct->ct", price, self.idle[:, :, :slots])
        starts = np.einsum("b,bct->ct", price, self.start[:, :, :slots])
        starts = np.where(self.can_start[:, :slots], starts, np.inf)
        off = np.full((slots + 1, count), -np.inf)
        up = np.full((slots + 1, count, last + 1), -np.inf)
        off[0] = np.where(self.up_before == 0, 0.0, np.where(self.up_before >= self.block, 0.0, -np.inf))
        before = np.full((count, last + 1), -np.inf)
        before[who, self.up_before] = np.where(self.up_before > 0, 0.0, -np.inf)
        enough = np.arange(last + 1)[None, :] >= np.maximum(self.block, 1)[:, None]
        for t in range(slots):
            now = up[t]
            now[:, 2:] = before[:, 1:-1]
            now[:, last] = np.maximum(now[:, last], before[:, last])
            begun = off[np.maximum(t - self.lead, 0), who] - starts[:, t]
            now[:, 1] = np.maximum(now[:, 1], begun)
            now += inside[:, t, None]
            off[t + 1] = np.maximum(off[t], np.where(enough, now, -np.inf).max(axis=1))
            before = now
        return Ways(off=off, up=up, inside=inside, starts=starts)

    def total(self, ways: Ways, before: int, stop: int, price: Array) -> Array:
        """Return the most that each client can have [client] if it is up from slot `before` until `stop`.

        A window keeps it up from its first slot on. Without one it may end in any state; a block that the end cuts may be
        short.
        """
        who = np.arange(len(self.clients))
        if before == stop:
            ended = ways.up[stop - 1].max(axis=1) if stop else np.full(len(who), -np.inf)
            ended = np.where((stop == 0) & (self.up_before > 0), 0.0, ended)
            return np.asarray(np.maximum(ways.off[stop], ended))
        stays = ways.up[before - 1].max(axis=1) if before else np.where(self.up_before > 0, 0.0, -np.inf)
        starts = np.einsum("b,bc->c", price, self.start[:, :, before])
        begun = np.where(self.can_start[:, before], ways.off[np.maximum(before - self.lead, 0), who] - starts, -np.inf)
        there = self.there[:, before:stop]
        held = np.einsum("b,bct,ct->c", price, self.idle[:, :, before:stop], there)
        # Where a client misses a part of the window, its start there is not counted: the bound only rises.
        anyhow = np.where(there.all(axis=1), np.maximum(stays, begun), np.maximum(stays, ways.off[before]))
        return np.asarray(anyhow - held)

    def up_at(self, ways: Ways, before: int, stop: int) -> Mask:
        """Return in which slots the clients are up on their best ways [client, slot], window included."""
        up = np.zeros((len(self.clients), stop), dtype=bool)
        if before < stop:  # up from the first to the last slot of the window in which it can train
            there = self.there[:, before:stop]
            onward = np.logical_or.accumulate(there, axis=1)
            back = np.logical_or.accumulate(there[:, ::-1], axis=1)[:, ::-1]
            up[:, before:] = onward & back
        for c in range(len(self.clients)):
            t, length = self._last(ways, c, before, stop)
            while t >= 0:
                if length == 0:  # off before slot t
                    if t == 0:
                        break
                    ended = ways.up[t - 1, c, int(self.block[c]) :]
                    if len(ended) and ended.max() > ways.off[t - 1, c]:
                        t, length = t - 1, int(self.block[c]) + int(ended.argmax())
                    else:
                        t -= 1
                    continue
                up[c, t] = True
                began = t - int(self.lead[c])
                if length == 1 and began >= 0 and self._starts_here(ways, c, t):
                    t, length = began, 0
                    continue
                t -= 1
                if t < 0:
                    break
                if length == self.longest and ways.up[t, c, length] >= ways.up[t, c, length - 1]:
                    continue
                length -= 1
                if length == 0:  # up since before the horizon
                    length = 1
        return up

    def _starts_here(self, ways: Ways, c: int, t: int) -> bool:
        """Return whether the first slot up is better reached by a start than by having been up before."""
        if self.longest > 1:
            return t > 0 or self.up_before[c] == 0  # a longer stay would count as more than one slot
        stayed = ways.up[t - 1, c, 1] if t else (0.0 if self.up_before[c] else -np.inf)
        return bool(ways.off[t - self.lead[c], c] - ways.starts[c, t] >= stayed)

    def legal(self, up: Mask) -> bool:
        """Return whether every block [client, slot] has a start that fits, finds the client off, and is long enough."""
        stop = up.shape[1]
        for c, t in np.argwhere(up_starts(self.problem, up, self.clients)):
            lead, off = int(self.lead[c]), np.flatnonzero(~up[c, t:])
            if t < lead or up[c, t - lead : t].any():
                return False
            if len(off) and off[0] < self.block[c] and t + off[0] < stop:
                return False
        return True

    def _last(self, ways: Ways, c: int, before: int, stop: int) -> tuple[int, int]:
        """Return the last slot before the window and the state in it: (slot, length) if up, (slot after, 0) if off."""
        if before == stop:
            ended = ways.up[stop - 1, c]
            return (stop - 1, int(ended.argmax())) if ended.max() > ways.off[stop, c] else (stop, 0)
        stays = ways.up[before - 1, c].max() if before else (0.0 if self.up_before[c] else -np.inf)
        lead = int(self.lead[c])
        if not self.there[c, before:stop].all():
            return (
                (before - 1, int(ways.up[before - 1, c].argmax()))
                if stays > ways.off[before, c] and before
                else (before, 0)
            )
        begun = (
            ways.off[before - lead, c] - ways.starts[c, before]
            if self.can_start[c, before] and before < ways.starts.shape[1]
            else -np.inf
        )
        if begun >= stays:
            return max(before - lead, 0), 0
        return before - 1, int(ways.up[before - 1, c].argmax())
