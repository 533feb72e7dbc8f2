"""What rounding leaves open, by HiGHS: the MILP over those client-slots that can still matter.

Forcing a client-slot in or out, a slot open or shut, or a client's number of slots lowers the bound of `tied` in closed
form. Whatever lowers it below the value that is asked for is fixed, so that few binaries remain. The concave F is replaced
by cuts. A tangent alone makes a weak relaxation, because u grows by whole slots: between n - 1 and n slots the smooth F
lies above what any schedule attains. With reach(n) the utility of a client's n best slots, and reach(m-1) < p <= reach(m),

    z <= F(p) + F'(p) (u - p) - b (m - n),   b = F(p) + F'(p) (reach(m-1) - p) - F(reach(m-1)) >= 0

holds for every schedule with n slots. For n >= m it is weaker than the tangent. For n < m, u is at most reach(n), where
the tangent is above F by at least b (m - n): that distance is convex in u, 0 at p and b at reach(m-1), and the steps of
reach do not shrink towards 0 slots. With p = reach(m) the cut meets F at both m - 1 and m slots.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.planning import exact as selection
from slackwater.planning import knapsack
from slackwater.planning.exact import Items, Selection, Stage
from slackwater.planning.highs import INFINITE, Model
from slackwater.planning.rounding import Draft, Schedule
from slackwater.planning.sleepers import Sleepers
from slackwater.planning.tied import Array, Mask, Prices, Tied, client_values

_VIOLATED = 1e-10
_TIGHTEN = 2e-9
_MOST_ROUNDS = 40
_HALF = 0.5
_NEAR = (0.001, 0.004, 0.015, 0.06)
"""Relative distances from a known utility at which tangents are added in advance: the optimum is near."""
Aim = Literal["value", "level", "kg"]


class Kept:
    """Which client-slots, slots and counts can still lead to more than `above`, by the bound at some prices."""

    def __init__(self, tied: Tied, prices: Prices | None, above: float) -> None:
        slots = tied.open.shape[1]
        self.can: Mask = tied.open.copy()
        self.must: Mask = np.zeros_like(tied.open)
        self.option: Mask = tied.usable.copy()
        self.may_open: Mask = np.ones(slots, dtype=bool)
        self.must_open: Mask = np.zeros(slots, dtype=bool)
        self.low, self.high = tied.low.copy(), tied.high.copy()
        if prices is None:
            return
        bound = tied.bound(prices)
        margin = 1e-9 * max(abs(bound), 1.0)
        room = bound - above + margin
        self._slots(tied, prices, room)
        self._counts(tied, prices, room)

    def _slots(self, tied: Tied, prices: Prices, room: float) -> None:
        worth = tied.worth(prices)
        clients = len(worth)
        fixed = prices.budget @ tied.fixed
        order = np.argsort(-worth, axis=0, kind="stable")
        ranked = np.take_along_axis(worth, order, axis=0)
        there = (ranked > -np.inf).sum(axis=0)
        safe = np.where(ranked > -np.inf, ranked, 0.0)
        summed = np.concatenate([np.zeros((1, worth.shape[1])), np.cumsum(safe, axis=0)])
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(clients)[:, None], axis=0)
        positive = (ranked > 0).sum(axis=0)
        most, least = min(tied.parallel, clients), tied.fewest

        def best(size: NDArray[np.intp]) -> Array:
            return np.asarray(np.take_along_axis(summed, size[None], axis=0)[0])

        size = np.clip(positive, min(least, clients), most)
        whole = np.where(there >= least, best(np.minimum(size, there)) - fixed, -np.inf)
        now = np.maximum(whole, 0.0)

        def others(lower: int, upper: int) -> Array:
            """Return the best sum of between `lower` and `upper` clients without this one [client, slot]."""
            size = np.clip(positive - (worth > 0), lower, upper)
            size = np.minimum(size, np.maximum(there - 1, 0))
            first = np.take_along_axis(summed, size, axis=0)
            skips = np.take_along_axis(summed, np.minimum(size + 1, clients), axis=0) - np.where(
                np.isfinite(worth), worth, 0.0
            )
            return np.where(size <= rank, first, skips)

        inside = np.where(there >= least, others(max(least - 1, 0), most - 1) + worth - fixed, -np.inf)
        without = np.where(there - 1 >= least, others(least if least > 1 else 0, most) - fixed, -np.inf)
        without = np.maximum(without, 0.0)
        self.can &= now - inside <= room
        self.must |= self.can & (now - without > room)
        self.may_open &= now - whole <= room
        self.must_open |= self.may_open & (now > room)
        self.can &= self.may_open
        self.must &= self.can
        if len(tied.gains) > 1:
            each = prices.utility[:, None] * tied.gains - np.einsum("b,blct->lct", prices.budget, tied.costs)
            top = np.where(tied.usable, each, -np.inf).max(axis=0)
            self.option &= tied.usable & self.can & (now - inside + np.where(self.can, top, 0.0) - each <= room)
        else:
            self.option &= self.can

    def _counts(self, tied: Tied, prices: Prices, room: float) -> None:
        value = client_values(tied, prices)  # [client, n]
        fine = value.max(axis=1, keepdims=True) - value <= room
        n = np.arange(value.shape[1])
        self.low = np.maximum(self.low, np.where(fine, n, value.shape[1]).min(axis=1))
        self.high = np.minimum(self.high, np.where(fine, n, -1).max(axis=1))


class Core:
    """The MILP of one end time, over what is kept."""

    def __init__(self, tied: Tied, kept: Kept, *, aim: Aim = "value") -> None:
        self.tied, self.kept, self.aim = tied, kept, aim
        self.model = model = Model()
        self.level, self.client, self.slot = np.nonzero(kept.option)
        single = kept.option.sum(axis=0) == 1
        lower = (kept.must & single)[self.client, self.slot].astype(float)
        self.x = model.columns(len(self.client), lower, 1.0, whole=True)
        self.gain = tied.gains[self.level, self.client, self.slot]
        self.cost = tied.costs[:, self.level, self.client, self.slot]
        slots = tied.open.shape[1]
        self.active_slots = tied.fewest > 1 or bool(tied.fixed.any())
        at = np.flatnonzero(kept.may_open & kept.can.any(axis=0)) if self.active_slots else np.zeros(0, dtype=np.intp)
        self.y = model.columns(len(at), kept.must_open[at].astype(float), 1.0, whole=True)
        self.y_slot = at
        column = np.full(slots, -1, dtype=np.int32)
        column[at] = self.y
        self._slot_rows(column)
        self._level_rows()
        self.waiting: list[NDArray[np.int32]] = []
        self.waiting_cost: Array = np.zeros((len(tied.fixed), 0))
        if tied.sleepers is not None:
            self._sleeping_rows(tied.sleepers)
        waiting = np.concatenate([np.zeros(0, dtype=np.int32), *self.waiting])
        self.budgets = []
        self.room = np.array(tied.room, dtype=float)
        if aim != "kg":
            for cost, fixed, extra, room in zip(self.cost, tied.fixed, self.waiting_cost, self.room, strict=True):
                columns = [self.x, self.y, waiting]
                self.budgets.append(model.row(columns, [cost, fixed[at], extra], -INFINITE, float(room)))
        self._client_rows()

    def _sleeping_rows(self, sleepers: Sleepers) -> None:
        """Off, starting or up: columns for being up and for blocks that begin, window included."""
        tied, model = self.tied, self.model
        before, stop = tied.open.shape[1], tied.stop
        costs: list[Array] = []
        for c, client in enumerate(sleepers.clients):
            lead, block, was = int(sleepers.lead[c]), int(sleepers.block[c]), int(sleepers.up_before[c])
            slots = np.arange(stop)
            held = ((slots >= before) & sleepers.there[c, :stop]) | (slots < (block - was if 0 < was < block else 0))
            up = model.columns(stop, held.astype(float), 1.0, whole=True)
            begins = model.columns(stop, 0.0, (slots >= lead).astype(float), whole=True)
            self.waiting += [up, begins]
            costs += [sleepers.idle[:, c, :stop], sleepers.start[:, c, :stop]]
            for t in range(stop):
                if t:
                    model.row([up[[t]], up[[t - 1]], begins[[t]]], [1.0, -1.0, -1.0], -INFINITE, 0.0)
                elif not was:
                    model.row([up[[t]], begins[[t]]], [1.0, -1.0], -INFINITE, 0.0)
                # A block is long enough, or lasts until the end; its start finds the client off.
                recent = begins[max(t - block + 1, 0) : t + 1]
                model.row([recent, up[[t]]], [1.0, -1.0], -INFINITE, 0.0)
                for k in range(max(t - max(lead, 1), 0), t):
                    model.row([begins[[t]], up[[k]]], [1.0, 1.0], -INFINITE, 1.0)
            if was:
                model.row([begins[[0]]], [1.0], 0.0, 0.0)
            own = np.flatnonzero(self.client == client)
            pairs = np.stack([self.x[own], up[self.slot[own]]], axis=1)
            model.rows(pairs, np.broadcast_to([1.0, -1.0], pairs.shape), -INFINITE, 0.0)
        self.waiting_cost = np.concatenate(costs, axis=1)

    def _slot_rows(self, column: NDArray[np.int32]) -> None:
        tied, model = self.tied, self.model
        by_slot = np.argsort(self.slot, kind="stable")
        edges = np.searchsorted(self.slot[by_slot], np.arange(tied.open.shape[1] + 1))
        for slot in range(tied.open.shape[1]):
            inside = self.x[by_slot[edges[slot] : edges[slot + 1]]]
            if not len(inside):
                continue
            y = column[[slot]]
            if y[0] >= 0:
                model.row([inside, y], [1.0, -float(tied.parallel)], -INFINITE, 0.0)
                if tied.fewest > 1:
                    model.row([inside, y], [1.0, -float(tied.fewest)], 0.0, INFINITE)
            elif tied.parallel < len(inside):
                model.row([inside], [1.0], -INFINITE, float(tied.parallel))
        if self.active_slots and len(self.x) and len(tied.gains) == 1:
            pairs = np.stack([self.x, column[self.slot]], axis=1)
            model.rows(pairs, np.broadcast_to([1.0, -1.0], pairs.shape), -INFINITE, 0.0)

    def _level_rows(self) -> None:
        """One level in a client-slot, and none in a slot that is shut."""
        if len(self.tied.gains) == 1:
            return
        column = dict(zip(self.y_slot.tolist(), self.y.tolist(), strict=True))
        place = self.client * self.tied.open.shape[1] + self.slot
        order = np.argsort(place, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
            if not len(own):
                continue
            client, slot = int(self.client[own[0]]), int(self.slot[own[0]])
            low = 1.0 if self.kept.must[client, slot] else 0.0
            if slot in column:
                self.model.row([self.x[own], np.array([column[slot]], dtype=np.int32)], [1.0, -1.0], -INFINITE, 0.0)
            if len(own) > 1 or low:
                self.model.row([self.x[own]], [1.0], low, 1.0)

    def _client_rows(self) -> None:
        tied, model, kept = self.tied, self.model, self.kept
        gain = np.where(kept.option, tied.gains, 0.0).max(axis=0)
        ordered = np.sort(np.where(kept.can, gain, -np.inf), axis=1)[:, ::-1]
        clients = np.arange(len(tied.base))
        self.of_client = [np.flatnonzero(self.client == c) for c in clients.tolist()]
        self.reach = []
        for c in clients.tolist():
            own = ordered[c][ordered[c] > 0][: kept.high[c]]
            self.reach.append(tied.base[c] + np.concatenate([[0.0], np.cumsum(own)]))
        top = np.array([r[-1] for r in self.reach])
        least = np.minimum(np.maximum(tied.base, tied.least * (1 - 1e-10)), top)
        self.u = model.columns(len(clients), least, np.maximum(top, least))
        # Only slots that gain something count in the cuts: a client may have a slot and no utility.
        self.n = model.columns(len(clients), 0.0, [len(r) - 1 for r in self.reach])
        self.z = model.columns(len(clients), -INFINITE, tied.fairness.of(np.maximum(top, 0.0)))
        late = self.slot >= tied.late
        for c, own in enumerate(self.of_client):
            model.row([self.x[own], self.u[[c]]], [-self.gain[own], 1.0], float(tied.base[c]), float(tied.base[c]))
            model.row([self.x[own[self.gain[own] > 0]], self.n[[c]]], [-1.0, 1.0], 0.0, 0.0)
            if kept.low[c] > 0 or kept.high[c] < len(own):
                model.row([self.x[own]], [1.0], float(kept.low[c]), float(kept.high[c]))
            if tied.recalled[c]:
                model.row([self.x[own[late[own]]]], [1.0], 1.0, INFINITE)
            if len(self.reach[c]) == 1:
                model.row([self.z[[c]]], [1.0], -INFINITE, float(tied.fairness.of(tied.base[c : c + 1])[0]))
        self.points: set[tuple[int, float, bool]] = set()
        if self.aim == "value":
            model.maximise(self.z, 1.0)
        elif self.aim == "level":
            self.least = model.columns(1, float(tied.base.min()), float(top.min()))
            for c in clients.tolist():
                model.row([self.u[[c]], self.least], [1.0, -1.0], 0.0, INFINITE)
            model.maximise(self.least, 1.0)
        else:
            every = np.concatenate([self.x, self.y, *self.waiting])
            model.maximise(every, -np.concatenate([self.cost[0], tied.fixed[0][self.y_slot], self.waiting_cost[0]]))

    def _cut(self, client: int, points: Iterable[float], *, plain: bool = False) -> bool:
        """Add cuts of a client at these utilities, with `plain` also the tangent; return whether any was new."""
        fair, reach, new = self.tied.fairness, self.reach[client], False
        for point in points:
            key = (client, float(f"{point:.13g}"), plain)
            if point <= 0 or key in self.points or len(reach) == 1:
                continue
            new = True
            self.points.add(key)
            m = int(np.searchsorted(reach, point * (1 - 1e-12)))
            slope = float(fair.slope(np.array(point)))
            value = float(fair.of(np.array(point)))
            strength = 0.0
            if 1 <= m < len(reach):
                below = reach[m - 1]
                strength = max(value - float(fair.of(np.array(below))) + slope * (below - point), 0.0)
            for b, k in {(strength, m), (0.0, 0)} if plain else {(strength, m)}:
                columns = [self.z[[client]], self.u[[client]], self.n[[client]]]
                self.model.row(columns, [1.0, -slope, -b], -INFINITE, value - slope * point - b * k)
        return new

    def cuts_near(self, u: Array, n: NDArray[np.intp]) -> None:
        """Add cuts around known utilities and counts."""
        for c, reach in enumerate(self.reach):
            last = len(reach) - 1
            counts = {*range(max(int(n[c]) - 3, 0), min(int(n[c]) + 4, last + 1)), *range(min(3, last + 1))}
            counts |= set(np.geomspace(1, max(last, 1), 6).astype(int).tolist())
            self._cut(c, [reach[min(m, last)] for m in sorted(counts)])
            self._cut(c, [u[c] * (1 + way * by) for by in _NEAR for way in (-1, 1)], plain=True)

    def _cut_at(self, columns: Array) -> bool:
        """Cut off a solution whose z exceed F(u); return whether a new cut was made."""
        new = False
        u, z = columns[self.u], columns[self.z]
        above = z - self.tied.fairness.of(np.maximum(u, 0.0))
        for c in np.flatnonzero(above > _VIOLATED):
            reach = self.reach[c]
            m = min(int(np.searchsorted(reach, u[c] * (1 - 1e-12))), len(reach) - 1)
            new |= self._cut(int(c), [u[c], reach[m]], plain=True)
        return new

    def _start(self, draft: Draft) -> Array:
        chosen, level = draft.chosen[self.client, self.slot], draft.level[self.client, self.slot]
        fair = self.tied.fairness
        parts = [
            (chosen & (level == self.level)).astype(float),
            (draft.load[self.y_slot] > 0).astype(float),
            draft.u,
            (draft.chosen & (draft.gain > 0)).sum(axis=1).astype(float),
            fair.of(draft.u),
        ]
        if self.aim == "level":
            parts.append(np.array([draft.u.min()]))
        return np.concatenate(parts)

    def _draft(self, columns: Array, like: Prices) -> Draft:
        chosen = np.zeros_like(self.tied.open)
        level = np.zeros(chosen.shape, dtype=np.intp)
        on = columns[self.x] > _HALF
        chosen[self.client[on], self.slot[on]] = True
        level[self.client[on], self.slot[on]] = self.level[on]
        tied = self.tied
        if tied.sleepers is not None:
            up = [columns[self.waiting[2 * c]] > _HALF for c in range(len(tied.sleepers.clients))]
            tied = tied.while_up(np.stack(up))
        return Draft(tied, like, chosen, level)

    def solve(
        self, best: Draft | None, prices: Prices, *, slack: float, deadline: float, stop: Callable[[], bool]
    ) -> tuple[Draft | None, float]:
        """Return the best schedule and a bound on all of them, to a gap of `slack` or until the deadline."""
        bound, tightened = math.inf, False
        if best is not None:
            self.cuts_near(best.u, best.count)
        for _ in range(_MOST_ROUNDS):
            seconds = deadline - time.perf_counter()
            if seconds <= 0 or stop():
                break
            known = best is not None and self.tied.sleepers is None and self._holds(best)
            start = self._start(best) if best is not None and known else None
            outcome = self.model.solve(seconds=seconds, gap=max(slack / 3, 1e-10), start=start, stop=stop)
            if outcome.infeasible:
                return best, -math.inf if not tightened else bound
            if not tightened:
                bound = min(bound, outcome.bound)
            if outcome.columns is None:
                break
            draft = self._draft(outcome.columns, prices)
            within = draft.allowed
            if within:
                if self.aim == "value":
                    draft.fill()
                if best is None or self._measure(draft) > self._measure(best):
                    best = draft
            if best is not None and bound - self._measure(best) <= slack:
                break
            if self.aim == "value" and self._cut_at(outcome.columns):
                continue
            if within:
                break
            for row, room in zip(self.budgets, self.room, strict=True):  # kept only within the tolerance of HiGHS
                self.model.limit(row, float(room) - _TIGHTEN * max(abs(float(room)), 1.0))
            self.room = self.room - _TIGHTEN * np.maximum(np.abs(self.room), 1.0)
            tightened = True
        return best, bound

    def _holds(self, draft: Draft) -> bool:
        """Return whether a schedule is among those that are kept."""
        inside = self.kept.option[draft.level, *np.indices(draft.chosen.shape)]
        return not bool((draft.chosen & ~inside).any() or (self.kept.must & ~draft.chosen).any())

    def _measure(self, draft: Draft) -> float:
        if self.aim == "value":
            return draft.value
        return float(draft.u.min()) if self.aim == "level" else -float(draft.spent[0])


def cheapest(tied: Tied, prices: Prices, seconds: float) -> Schedule | None:
    """Return what the constraints ask for at the least kg, whatever the budget; None if they cannot be met together."""
    if np.any(tied.open.sum(axis=1) < tied.low):
        return None
    core = Core(tied, Kept(tied, None, -math.inf), aim="kg")
    outcome = core.model.solve(seconds=seconds)
    return None if outcome.columns is None else core._draft(outcome.columns, prices).schedule()


def knapsack_choice(stage: Stage, deadline: float) -> Selection:
    """Return the best counts without coupling: HiGHS on the 0-1 knapsack that `exact` solves; exact without cuts."""
    fallback = selection.select(stage, greedy=True)
    stage = stage.with_free_slots()
    items = Items.between(stage, stage.low, stage.high)
    value, weight, room = items.value, items.weight, stage.room_kg
    fits = weight <= room
    if not np.any(value[fits] > 0) or time.perf_counter() >= deadline:
        return fallback
    top = float(value.max())
    model = Model()
    x = model.columns(len(value), 0.0, np.where(fits, 1.0, 0.0), whole=True)
    model.row([x], [weight / room], -INFINITE, 1.0)
    model.maximise(x, value / top)
    limit = knapsack.fractional_bound(value, weight, room)
    outcome = model.solve(seconds=deadline - time.perf_counter(), gap=max(1e-11 * limit / top, 1e-11))
    bound = stage.value(stage.low) + min(limit, top * outcome.bound)
    if outcome.columns is None:
        return Selection(counts=fallback.counts, upper_bound=min(bound, fallback.upper_bound))
    taken = outcome.columns > _HALF
    left = room - float(weight[taken].sum())
    if left < 0:  # within the tolerance of HiGHS, but not within the budget
        return Selection(counts=fallback.counts, upper_bound=bound)
    for j in np.argsort(weight, kind="stable"):  # ties: slots without gain are taken too
        if not taken[j] and weight[j] <= left:
            taken[j] = True
            left -= weight[j]
    return Selection(counts=items.counts(taken), upper_bound=bound)
