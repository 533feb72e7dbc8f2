"""From the relaxation of tied clients to a schedule: round at the prices, repair, fill, exchange.

All steps weigh a client-slot by its true gain in F against its priced cost: lambda x kg, plus mu_t, what a place in the
slot is worth where places are scarce. Ranking by gain per kg alone ignores scarce slots and loses a quarter and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.relaxation import Relaxed
from slackwater.planning.tied import Array, Mask, Prices, Tied

Cells = NDArray[np.intp]
_TINY = 1e-12
_CORE = 3_000
"""Client-slots near the break that take part in exchanges."""
_MOST_MOVES = 40_000
_TRIALS = 60
"""Promising exchanges that are checked in full before the search ends."""
_MOST_ROUNDS = 60
_HALF = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """Who trains when before the window, and at which level [client, slot]."""

    chosen: Mask
    level: NDArray[np.intp]
    value: float
    """Sum of F over clients."""
    least: float
    """Least utility of any client."""


class Draft:
    """A schedule that is being changed, with its sums at hand."""

    def __init__(self, tied: Tied, prices: Prices, chosen: Mask, level: NDArray[np.intp] | None = None) -> None:
        self.tied, self.prices = tied, prices
        self.level = tied.level_at(prices) if level is None else level.copy()
        self.chosen = chosen & tied.open
        self._price()

    def _price(self) -> None:
        tied, prices = self.tied, self.prices
        self.gain, self.cost = tied.effective(self.level)
        self.priced: Array = np.einsum("b,bct->ct", prices.budget, self.cost)
        self.priced_fixed: Array = prices.budget @ tied.fixed
        worth = np.where(tied.open, prices.utility[:, None] * self.gain + prices.slot[:, None] - self.priced, -np.inf)
        self.worth = worth
        self.scarce = np.zeros(tied.open.shape[1])
        if tied.parallel < len(worth):
            self.scarce = np.maximum(-np.partition(-worth, tied.parallel, axis=0)[tied.parallel], 0.0)
        self._sum()

    def _sum(self) -> None:
        tied, chosen = self.tied, self.chosen
        self.u: Array = tied.base + np.where(chosen, self.gain, 0.0).sum(axis=1)
        self.count = chosen.sum(axis=1)
        self.load = chosen.sum(axis=0)
        self.spent: Array = np.where(chosen, self.cost, 0.0).sum(axis=(1, 2)) + tied.fixed[:, self.load > 0].sum(axis=1)

    def copy(self) -> Draft:
        """Return a copy that can be changed by itself."""
        other = object.__new__(Draft)
        other.__dict__.update(self.__dict__)
        for name in ("chosen", "level", "u", "count", "load", "spent"):
            setattr(other, name, getattr(self, name).copy())
        return other

    @property
    def value(self) -> float:
        """Return the sum of F over clients."""
        return math.fsum(self.tied.fairness.of(self.u))

    @property
    def fits(self) -> bool:
        """Return whether every budget is kept."""
        return bool((self.spent <= self.tied.room).all())

    @property
    def allowed(self) -> bool:
        """Return whether every constraint is met, by plain sums."""
        tied = self.tied
        self._sum()
        held = self.load[self.load > 0]
        late = (self.chosen[:, tied.late :] & True).any(axis=1)
        return (
            self.fits
            and bool(((self.count >= tied.low) & (self.count <= tied.high)).all())
            and bool(((held >= tied.fewest) & (held <= tied.parallel)).all())
            and bool((late | ~tied.recalled).all())
            and bool((self.u >= tied.least * (1 - 1e-9)).all())
            and not bool((self.chosen & ~np.take_along_axis(tied.usable, self.level[None], axis=0)[0]).any())
        )

    def put(self, client: int, slot: int, on: bool = True) -> None:
        """Let a client train in a slot, or not."""
        if self.chosen[client, slot] == on:
            return
        sign = 1 if on else -1
        self.chosen[client, slot] = on
        self.u[client] += sign * self.gain[client, slot]
        self.count[client] += sign
        self.load[slot] += sign
        self.spent += sign * self.cost[:, client, slot]
        if self.load[slot] == (1 if on else 0):
            self.spent += sign * self.tied.fixed[:, slot]

    def schedule(self) -> Schedule:
        """Return the schedule."""
        self._sum()
        return Schedule(
            chosen=self.chosen.copy(),
            level=np.where(self.chosen, self.level, 0),
            value=self.value,
            least=float(self.u.min()),
        )

    # Requirements

    def meet(self) -> bool:
        """Change the schedule so that it meets every constraint but the budget; return whether that worked."""
        tied = self.tied
        for client in np.flatnonzero(self.count > tied.high):
            own = np.flatnonzero(self.chosen[client])
            for slot in own[np.argsort(self.worth[client, own])[: self.count[client] - tied.high[client]]]:
                self.put(int(client), int(slot), on=False)
        for slot in np.flatnonzero(self.load > tied.parallel):
            own = np.flatnonzero(self.chosen[:, slot])
            for client in own[np.argsort(self.worth[own, slot])[: self.load[slot] - tied.parallel]]:
                self.put(int(client), int(slot), on=False)
        self._complete()
        for client in np.flatnonzero(tied.recalled):
            if not self.chosen[client, tied.late :].any() and not self._join(int(client), tied.late):
                return False
        for client in np.flatnonzero(self.count < tied.low):
            while self.count[client] < tied.low[client]:
                if not self._join(int(client), 0):
                    return False
        return True

    def _complete(self) -> None:
        """Bring every used slot to the quorum, or close it."""
        tied = self.tied
        if tied.fewest <= 1:
            return
        for slot in np.flatnonzero((self.load > 0) & (self.load < tied.fewest)):
            others = self._who_can(int(slot))
            missing = tied.fewest - self.load[slot]
            others = others[np.argsort(-self.worth[others, slot])][:missing]
            if len(others) == missing:
                for client in others:
                    self.put(int(client), int(slot))
            else:
                for client in np.flatnonzero(self.chosen[:, slot]):
                    self.put(int(client), int(slot), on=False)

    def _who_can(self, slot: int) -> Cells:
        free = self.tied.open[:, slot] & ~self.chosen[:, slot] & (self.count < self.tied.high)
        return np.flatnonzero(free)

    def _join(self, client: int, first: int) -> bool:
        """Give a client its best further slot from `first` on, with the others that a quorum asks for."""
        tied = self.tied
        worth = np.where(self.chosen[client] | ~tied.open[client], -np.inf, self.worth[client])
        worth = np.where(self.load == 0, worth - self.priced_fixed, worth)
        worth[:first] = -np.inf
        full = self.load >= tied.parallel
        for slot in np.argsort(-np.where(full, worth - 1e6, worth), kind="stable"):
            if worth[slot] == -np.inf:
                return False
            if full[slot]:  # somebody makes room
                own = np.flatnonzero(self.chosen[:, slot] & (self.count > tied.low))
                givers = [
                    c
                    for c in own
                    if not (tied.recalled[c] and slot >= tied.late and self.chosen[c, tied.late :].sum() == 1)
                ]
                if not givers:
                    continue
                self.put(int(min(givers, key=lambda c: self.worth[c, slot])), int(slot), on=False)
            missing = tied.fewest - self.load[slot] - 1
            if missing > 0:
                others = self._who_can(int(slot))
                others = others[others != client]
                if len(others) < missing:
                    continue
                for other in others[np.argsort(-self.worth[others, slot])][:missing]:
                    self.put(int(other), int(slot))
            self.put(client, int(slot))
            return True
        return False

    # Budget

    def repair(self) -> bool:
        """Drop what loses least per priced kg until the budgets are kept; return whether that worked."""
        tied, f = self.tied, self.tied.fairness.of
        while not self.fits:
            over = self.spent > tied.room
            weight = np.where(over, np.maximum(self.prices.budget, 1e-9), 0.0)
            frees = np.einsum("b,bct->ct", weight, self.cost)
            fixed = weight @ tied.fixed
            may = self.chosen & self._may_drop() & (frees + np.where(self.load == 1, fixed, 0.0) > 0)
            loss = f(self.u)[:, None] - f(np.maximum(self.u[:, None] - self.gain, 0.0)) - self.scarce
            alone = (self.load > max(tied.fewest, 1)) | (self.load == tied.fewest if tied.fewest == 1 else False)
            each = np.where(
                may & alone, loss / np.maximum(frees + np.where(self.load == 1, fixed, 0.0), 1e-300), np.inf
            )
            closing = np.full(len(fixed), np.inf)
            used = np.flatnonzero(self.load > 1)
            if len(used) and (tied.fewest > 1 or fixed.any()):
                every = (may | ~self.chosen)[:, used].all(axis=0)
                lost = np.where(self.chosen[:, used], loss[:, used], 0.0).sum(axis=0)
                freed = np.where(self.chosen[:, used], frees[:, used], 0.0).sum(axis=0) + fixed[used]
                closing[used] = np.where(every, lost / np.maximum(freed, 1e-300), np.inf)
            client, slot = np.unravel_index(int(each.argmin()), each.shape) if each.size else (0, 0)
            if not each.size or min(float(each[client, slot]), float(closing.min(initial=np.inf))) == np.inf:
                return False
            if closing.min(initial=np.inf) < each[client, slot]:
                shut = int(closing.argmin())
                for one in np.flatnonzero(self.chosen[:, shut]):
                    self.put(int(one), shut, on=False)
            else:
                self.put(int(client), int(slot), on=False)
        return True

    def _may_drop(self) -> Mask:
        """Return which client-slots their client can give up [client, slot]."""
        tied = self.tied
        may = np.broadcast_to((self.count > tied.low)[:, None], self.chosen.shape)
        if tied.recalled.any():
            last = tied.recalled & (self.chosen[:, tied.late :].sum(axis=1) == 1)
            may = may & ~(last[:, None] & (np.arange(self.chosen.shape[1]) >= tied.late))
        if (tied.least > 0).any():
            may = may & (self.u[:, None] - self.gain >= tied.least[:, None])
        return may

    def fill(self) -> None:
        """Add the client-slot, or open the slot, with the most gain per price, until nothing fits; then those without gain."""
        self._fill(by_gain=True)
        self._fill(by_gain=False)

    def _fill(self, *, by_gain: bool) -> None:
        tied, f = self.tied, self.tied.fairness.of
        left = tied.room - self.spent
        can = tied.open & ~self.chosen & (self.load < tied.parallel) & (self.count < tied.high)[:, None]
        gain = f(self.u[:, None] + self.gain) - f(self.u)[:, None]
        opens = tied.fewest > 1 or bool(tied.fixed.any())
        while True:
            joins = can & (self.load >= tied.fewest) if tied.fewest > 1 else can
            extra = np.where(self.load == 0, 1.0, 0.0)
            fits = (self.cost + (extra * tied.fixed)[:, None, :] <= left[:, None, None]).all(axis=0)
            price = self.priced + extra * self.priced_fixed + self.scarce + _TINY
            wanted = joins & fits & (gain > _TINY) if by_gain else joins & fits
            score = np.where(wanted, gain / price if by_gain else 1.0 / price, 0.0)
            best = int(score.argmax()) if score.size else 0
            top = float(score.flat[best]) if score.size else 0.0
            moves: list[tuple[int, int]] = []
            if opens and (found := self._best_opening(gain, can, left, by_gain)) is not None and found[0] > top:
                moves = [(int(c), found[1]) for c in found[2]]
            elif top > 0:
                moves = [divmod(best, score.shape[1])]
            if not moves:
                return
            for client, slot in moves:
                self.put(client, slot)
                can[client, slot] = False
                if self.count[client] >= tied.high[client]:
                    can[client] = False
                gain[client] = f(self.u[client] + self.gain[client]) - f(self.u[client : client + 1])
            if self.load[slot] >= tied.parallel:
                can[:, slot] = False
            left = tied.room - self.spent

    def _best_opening(self, gain: Array, can: Mask, left: Array, by_gain: bool) -> tuple[float, int, Cells] | None:
        """Return the best unused slot to open: its score, its number and its clients."""
        tied = self.tied
        unused = np.flatnonzero((self.load == 0) & (can.sum(axis=0) >= tied.fewest))
        unused = unused[(tied.fixed[:, unused] <= left[:, None]).all(axis=0)]
        if not len(unused):
            return None
        net = np.where(can[:, unused], gain[:, unused] - self.priced[:, unused] - self.scarce[unused], -np.inf)
        most = min(tied.parallel, len(net))
        order = np.argsort(-net, axis=0, kind="stable")[:most]
        taken = np.take_along_axis(net, order, axis=0)
        use = taken > (0.0 if by_gain else np.inf)
        use[: tied.fewest] = taken[: tied.fewest] > -np.inf
        gained = np.where(use, np.take_along_axis(gain[:, unused], order, axis=0), 0.0).sum(axis=0)
        priced = np.where(
            use, np.take_along_axis(self.priced[:, unused], order, axis=0) + self.scarce[unused], 0.0
        ).sum(axis=0)
        priced = priced + self.priced_fixed[unused] + _TINY
        cost = np.stack(
            [np.where(use, np.take_along_axis(one[:, unused], order, axis=0), 0.0).sum(axis=0) for one in self.cost]
        )
        fits = (cost + tied.fixed[:, unused] <= left[:, None]).all(axis=0) & (use.sum(axis=0) >= tied.fewest)
        score = np.where(
            fits & ((gained > _TINY) | (not by_gain)), (gained if by_gain else use.sum(axis=0)) / priced, 0.0
        )
        best = int(score.argmax())
        if score[best] <= 0:
            return None
        return float(score[best]), int(unused[best]), order[use[:, best], best]

    def at_level(self) -> Draft | None:
        """Return the schedule with the least utility of any client raised as far as it goes (max-min)."""
        best, draft = self.copy(), self
        for _ in range(2):
            draft._raise_least()
            if draft.allowed and draft.u.min() > best.u.min():
                best = draft.copy()
            # What the better-off hold may pay for the worst-off: begin again with only what is asked for.
            draft = Draft(self.tied, self.prices, np.zeros_like(self.chosen))
            if not (draft.meet() and draft.repair()):
                break
        return best

    def _raise_least(self) -> None:
        tied = self.tied
        while True:
            client = int(self.u.argmin())
            if self.count[client] >= tied.high[client]:
                return
            left = tied.room - self.spent
            can = tied.open[client] & ~self.chosen[client] & (self.load < tied.parallel) & (self.gain[client] > 0)
            can &= (self.load > 0) | (tied.open.sum(axis=0) >= tied.fewest)
            price = self.cost[:, client] + np.where(self.load == 0, tied.fixed, 0.0)
            can &= (price <= left[:, None]).all(axis=0)
            score = np.where(can, self.gain[client] / (self.prices.budget @ price + self.scarce + _TINY), 0.0)
            for slot in np.argsort(-score, kind="stable"):
                if score[slot] <= 0:
                    return
                trial = self.copy() if tied.fewest > 1 and self.load[slot] == 0 else self
                trial.put(client, int(slot))
                if trial is self:
                    break
                trial._complete()
                if trial.fits and trial.chosen[client, slot]:
                    self.__dict__.update(trial.__dict__)
                    break
            else:
                return

    def relevel(self) -> None:
        """Let chosen client-slots use the level that pays best with the budget that is left."""
        tied, f = self.tied, self.tied.fairness.of
        if len(tied.gains) == 1 or not self.chosen.any():
            return
        for _ in range(_MOST_ROUNDS * 10):
            now_g, now_c = self.gain, self.cost
            dv = f(np.maximum(self.u[None, :, None] - now_g + tied.gains, 0.0)) - f(self.u)[None, :, None]
            dc = tied.costs - now_c[:, None]
            ok = (
                tied.usable
                & self.chosen
                & (self.spent[:, None, None, None] + dc <= tied.room[:, None, None, None]).all(axis=0)
            )
            ok &= self.u[None, :, None] - now_g + tied.gains >= tied.least[None, :, None]
            net = np.where(ok, dv, -np.inf)
            # What costs less and gains, or gains most per price.
            price = np.einsum("b,blct->lct", np.maximum(self.prices.budget, _TINY), dc)
            score = np.where(net > _TINY, np.where(price <= 0, np.inf, net / np.maximum(price, 1e-300)), -np.inf)
            best = int(score.argmax())
            if score.flat[best] == -np.inf:
                return
            level, client, slot = np.unravel_index(best, score.shape)
            self.u[client] += tied.gains[level, client, slot] - now_g[client, slot]
            self.spent += dc[:, level, client, slot]
            self.level[client, slot] = level
            self.gain, self.cost = self.gain.copy(), self.cost.copy()
            self.gain[client, slot] = tied.gains[level, client, slot]
            self.cost[:, client, slot] = tied.costs[:, level, client, slot]


def best_at(tied: Tied, prices: Prices) -> Mask:
    """Return the schedule that is best at these prices, whatever the budget [client, slot]."""
    worth = tied.worth(prices)
    order = np.argsort(-worth, axis=0, kind="stable")
    ranked = np.take_along_axis(worth, order, axis=0)
    rank = np.arange(len(worth))[:, None]
    use = ((rank < tied.parallel) & (ranked > 0)) | ((rank < tied.fewest) & (tied.fewest > 1))
    use &= ranked > -np.inf
    total = np.where(use, ranked, 0.0).sum(axis=0) - prices.budget @ tied.fixed
    use &= (total > 0) & (use.sum(axis=0) >= tied.fewest)
    chosen = np.zeros_like(tied.open)
    np.put_along_axis(chosen, order, use, axis=0)
    return chosen


def nearest(tied: Tied, x: Array) -> Mask:
    """Return the schedule that takes what the relaxation takes to more than half."""
    x = np.where(tied.open, x, 0.0)
    chosen = x > _HALF
    if tied.parallel < len(x):
        order = np.argsort(-x, axis=0, kind="stable")[: tied.parallel]
        keep = np.zeros_like(chosen)
        np.put_along_axis(keep, order, True, axis=0)
        chosen &= keep
    return chosen


def round_off(tied: Tied, relaxed: Relaxed) -> Draft | None:
    """Return the better of two roundings, repaired and filled; None if neither meets the constraints."""
    best: Draft | None = None
    for chosen in (nearest(tied, relaxed.x), best_at(tied, relaxed.prices)):
        draft = complete(tied, relaxed.prices, chosen)
        if draft is not None and (best is None or draft.value > best.value):
            best = draft
    return best


def complete(tied: Tied, prices: Prices, chosen: Mask, level: NDArray[np.intp] | None = None) -> Draft | None:
    """Return a schedule near this one that meets every constraint and leaves no room; None if none was found."""
    draft = Draft(tied, prices, chosen, level)
    if not (draft.meet() and draft.repair()):
        draft = Draft(tied, prices, np.zeros_like(chosen))
        if not (draft.meet() and draft.repair()):
            return None
    draft.relevel()
    draft.fill()
    draft.relevel()
    draft.fill()
    return draft if draft.allowed else None


class Exchange:
    """Single and double exchanges near the break: add, drop, swap in a slot, shift a client, open or close a slot."""

    def __init__(self, draft: Draft, bound: float) -> None:
        self.draft, self.bound = draft, bound
        red = np.abs(np.where(draft.tied.open, draft.worth - draft.scarce, np.inf))
        if red.size > _CORE:
            red = np.where(red <= np.partition(red.ravel(), _CORE)[_CORE], red, np.inf)
        self.core: Mask = np.isfinite(red)

    def run(self, enough: float, stop: Callable[[], bool]) -> Draft:
        """Exchange until the value reaches `enough`, or nothing helps."""
        for _ in range(_MOST_ROUNDS):
            if self.draft.value >= enough or stop() or not self._once():
                break
        return self.draft

    def _once(self) -> bool:
        draft, tied = self.draft, self.draft.tied
        kind, a, b, dv, dc = self._moves()
        if not len(kind):
            return False
        left = float((tied.room - draft.spent)[0])
        lam = float(draft.prices.budget[0])
        value = draft.value
        loss = lam * dc - dv
        keep = np.flatnonzero(loss < max(2 * (self.bound - value), _TINY))
        if len(keep) > _MOST_MOVES:
            keep = keep[np.argpartition(loss[keep], _MOST_MOVES)[:_MOST_MOVES]]
        if not len(keep):
            return False
        order = keep[np.argsort(dc[keep], kind="stable")]
        dcs, dvs = dc[order], dv[order]
        best = np.maximum.accumulate(dvs)
        which = np.maximum.accumulate(np.where(dvs == best, np.arange(len(order)), 0))
        partner = np.searchsorted(dcs, left - dcs, side="right") - 1
        pair = np.where(partner >= 0, dvs + best[np.maximum(partner, 0)], -np.inf)
        single = np.where(dcs <= left, dvs, -np.inf)
        tries: list[tuple[float, int, int | None]] = [
            (float(single[i]), int(i), None) for i in np.argsort(-single)[:_TRIALS]
        ]
        tries += [(float(pair[i]), int(i), int(which[partner[i]])) for i in np.argsort(-pair)[:_TRIALS]]
        tries.sort(key=lambda one: -one[0])
        for gain, first, second in tries[:_TRIALS]:
            if gain <= 1e-12 * max(abs(value), 1.0):
                return False
            new = draft.copy()
            for i in (first, second):
                if i is not None:
                    self._apply(new, int(kind[order[i]]), int(a[order[i]]), int(b[order[i]]))
            if new.fits and new.value > value + 1e-13 * max(abs(value), 1.0) and new.allowed:
                new.fill()
                self.draft = new
                return True
        return False

    def _moves(self) -> tuple[Cells, Cells, Cells, Array, Array]:
        draft, tied, f = self.draft, self.draft.tied, self.draft.tied.fairness.of
        slots, cost = draft.chosen.shape[1], draft.cost[0]
        fu = f(draft.u)[:, None]
        up = f(draft.u[:, None] + draft.gain) - fu
        down = f(np.maximum(draft.u[:, None] - draft.gain, 0.0)) - fu
        fixed = tied.fixed[0]
        dear = cost + np.where(draft.load == 0, fixed, 0.0)
        frees = cost + np.where(draft.load == 1, fixed, 0.0)
        on = draft.chosen & self.core
        off = ~draft.chosen & self.core & tied.open
        roomy = off & (draft.load < tied.parallel) & ((draft.load > 0) | (tied.fewest <= 1))
        parts: list[tuple[int, Cells, Cells, Array, Array]] = []
        add = np.flatnonzero(roomy)
        parts.append((0, add, add, up.flat[add], dear.flat[add]))
        drop = np.flatnonzero(on)
        parts.append((1, drop, drop, down.flat[drop], -frees.flat[drop]))
        for slot in np.flatnonzero(on.any(axis=0) & off.any(axis=0)):
            out, into = np.flatnonzero(on[:, slot]), np.flatnonzero(off[:, slot])
            i, j = (part.ravel() for part in np.meshgrid(out, into, indexing="ij"))
            parts.append(
                (2, i * slots + slot, j * slots + slot, down[i, slot] + up[j, slot], cost[j, slot] - cost[i, slot])
            )
        for client in np.flatnonzero(on.any(axis=1) & roomy.any(axis=1)):
            out, into = np.flatnonzero(on[client]), np.flatnonzero(roomy[client])
            i, j = (part.ravel() for part in np.meshgrid(out, into, indexing="ij"))
            moved = f(np.maximum(draft.u[client] - draft.gain[client, i] + draft.gain[client, j], 0.0)) - fu[client]
            parts.append((2, client * slots + i, client * slots + j, moved, dear[client, j] - frees[client, i]))
        if fixed.any() or tied.fewest > 1:
            used = np.flatnonzero(draft.load > 0)
            closed = -np.where(draft.chosen[:, used], cost[:, used], 0.0).sum(axis=0) - fixed[used]
            parts.append((3, used, used, np.where(draft.chosen[:, used], down[:, used], 0.0).sum(axis=0), closed))
            unused = np.flatnonzero((draft.load == 0) & (tied.open.sum(axis=0) >= tied.fewest))
            if len(unused):
                net = np.where(tied.open[:, unused], up[:, unused] - draft.priced[:, unused], -np.inf)
                order = np.argsort(-net, axis=0, kind="stable")[: tied.parallel]
                ranked = np.take_along_axis(net, order, axis=0)
                use = (ranked > 0) | ((np.arange(len(order)) < tied.fewest)[:, None] & (ranked > -np.inf))
                self.openings = {int(t): order[use[:, k], k] for k, t in enumerate(unused)}
                gained = np.where(use, np.take_along_axis(up[:, unused], order, axis=0), 0.0).sum(axis=0)
                paid = (
                    np.where(use, np.take_along_axis(cost[:, unused], order, axis=0), 0.0).sum(axis=0) + fixed[unused]
                )
                parts.append((4, unused, unused, gained, paid))
        kinds = np.concatenate([np.full(len(p[1]), p[0], dtype=np.intp) for p in parts])
        a, b = (np.concatenate([np.asarray(p[k], dtype=np.intp) for p in parts]) for k in (1, 2))
        dv, dc = (np.concatenate([np.asarray(p[k], dtype=float) for p in parts]) for k in (3, 4))
        return kinds, a, b, dv, dc

    def _apply(self, draft: Draft, kind: int, a: int, b: int) -> None:
        slots = draft.chosen.shape[1]
        if kind == 0:
            draft.put(*divmod(a, slots))
        elif kind == 1:
            client, slot = divmod(a, slots)
            draft.put(client, slot, on=False)
        elif kind == 2:
            client, slot = divmod(a, slots)
            draft.put(client, slot, on=False)
            draft.put(*divmod(b, slots))
        elif kind == 3:
            for client in np.flatnonzero(draft.chosen[:, a]):
                draft.put(int(client), a, on=False)
        else:
            for client in self.openings[a]:
                draft.put(int(client), a)
