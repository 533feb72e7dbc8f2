"""Rule out end times without building them: the multipliers of one end time bound the objective of every end time.

For an end time s, with base utility b_c(s) from its window and a budget of R(s) before it, weak duality says that for any
theta_c > 0 and lambda >= 0 no schedule has a larger sum of f than

    D(s) = sum_c [ F*(theta_c) + theta_c b_c(s) ] + lambda R(s) + sum_{t before the window} sum_c max(0, theta_c d_ct - lambda g_ct)

where d = g_max - g and F*(theta) is the maximum of f(u) - theta u. The last term is a prefix sum over slots, so one pass
bounds all end times. Limits on a client's number of slots add a price nu_c per slot, and `recall` adds a price mu_c for
the slots just before the window.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning.exact import (
    BUDGET_ROUNDING,
    Groups,
    NoStageError,
    Stage,
    bound_and_price,
    counts_at,
    infeasible,
)

_ROUNDING = 1e-11
"""Relative: D(s) is raised by this much of its terms, so that rounding never rules out an end time."""
_CANCELLED = 1e-14
"""The same for terms that are small differences of large numbers, relative to the large ones."""
_LEAST_UTILITY = 1e-3
"""Share of g_max: smaller utilities take the slope of f here, which is infinite at 0."""
_CHUNK = 2_000_000
"""Entries [client, end] that are looked at together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """Multipliers of one end time."""

    carbon: float
    """lambda, f per kg."""
    utility: NDArray[np.float64]
    """[group], theta, f per kg of utility."""
    slot: NDArray[np.float64]
    """[group], nu: above 0 where the least number of slots is binding, below 0 where the most is."""
    late: NDArray[np.float64]
    """[group], mu, for training just before the window."""

    @classmethod
    def of(cls, stage: Stage, carbon: float) -> Prices:
        """Return the multipliers at the fractional optimum of a stage, where a kg is worth `carbon`."""
        groups, utility, g_max = stage.groups, stage.groups.utility, stage.groups.g_max
        stage = stage.with_free_slots()
        counts = counts_at(stage, carbon)
        recalled = stage.recalled[groups.kind] & (stage.high > 0)
        theta = utility.slope(np.maximum(stage.utilities(counts), _LEAST_UTILITY * g_max))
        nu, mu = np.zeros(len(theta)), np.zeros(len(theta))
        # At this theta a client would keep its last slot, and would not take a further one.
        kg, some = _slot_kg(stage, counts - 1)
        some &= ~(recalled & (counts == 1))  # the only slot may be one that recall asks for
        keeps = np.where(some, carbon * kg / np.where(some, g_max - kg, 1.0), 0.0)
        forced = some & (counts <= groups.min_slots) & (keeps > theta)
        nu[forced] = (carbon * kg - theta * (g_max - kg))[forced]
        kg, more = _slot_kg(stage, counts)
        takes = np.where(more, carbon * kg / np.where(more, g_max - kg, 1.0), np.inf)
        full = more & (counts >= groups.max_slots) & (takes < theta)
        nu[full] = (carbon * kg - theta * (g_max - kg))[full]
        if utility.alpha != 1.0 and carbon > 0:
            theta = np.where(forced | full, theta, np.maximum(np.minimum(theta, takes), keeps))
        if _from_nothing(groups):
            left_out = more & (counts == 0) & (groups.earned == 0)
            first = np.where(left_out, g_max - kg, 1.0)
            theta = np.where(left_out & ~full, np.minimum(utility.of(first) / first, takes), theta)
        if recalled.any():
            kg, some = _slot_kg(stage, np.zeros_like(counts))
            mu = np.where(recalled & some, np.maximum(carbon * kg - theta * (g_max - kg) - nu, 0.0), 0.0)
        return cls(carbon=carbon, utility=theta, slot=nu, late=mu)


def _slot_kg(stage: Stage, rank: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the kg of each group's slot of this rank, and whether it has one that adds utility; 0 where not."""
    groups = stage.groups
    there = (rank >= 0) & (rank < stage.before)
    kg = np.zeros(len(rank))
    price = stage.intensity[groups.kind[there], rank[there]]
    kg[there] = groups.energy[there] * np.where(np.isfinite(price), price, 0.0)
    there[there] = np.isfinite(price)
    there &= kg < groups.g_max
    return np.where(there, kg, 0.0), there


def _from_nothing(groups: Groups) -> bool:
    """Return whether clients start from a utility of 0 at every end time, and first take their cheapest slot."""
    problem = groups.problem
    return problem.fine_tune == 0 and problem.recall == 0 and groups.utility.alpha != 1.0


class EndTimes:
    """What the bounds of a problem's end times need. Arrays are [end] or [kind, end]."""

    def __init__(self, groups: Groups, ends: Sequence[int]) -> None:
        problem = groups.problem
        self.groups, self.ends = groups, np.asarray(ends, dtype=np.intp)
        stop = problem.rounds + self.ends
        self.before = np.maximum(stop - problem.fine_tune, 0)
        possible = stop >= problem.fine_tune
        window = sliding_window_view(groups.available, problem.fine_tune, axis=1)
        self.there: NDArray[np.int64] = window.sum(axis=2)[:, self.before]
        if problem.window == "all":
            possible &= (self.there == problem.fine_tune).all(axis=0)
        self.open: NDArray[np.float64] = np.where(groups.available, groups.intensity, 0.0)
        self.window: NDArray[np.float64] = sliding_window_view(self.open, problem.fine_tune, axis=1).sum(axis=2)[
            :, self.before
        ]
        spent = groups.idle_until[stop] + self._by_kind(groups.energy) @ self.window
        budget = problem.budget_kg * (1 + BUDGET_ROUNDING)
        self.room: NDArray[np.float64] = budget - spent
        self.least_kg: NDArray[np.float64] = np.where(possible, spent + self._least_slots(), np.inf) * (1 - _ROUNDING)
        """[end], a lower bound on what is spent in any case; infinite where the window cannot be held."""

    def bounds(self, prices: Prices) -> NDArray[np.float64]:
        """Return D, [end]; infinite where these multipliers say nothing."""
        groups = self.groups
        theta, nu, mu, carbon = prices.utility, prices.slot, prices.late, prices.carbon
        level, slope = theta * groups.g_max + nu, (theta + carbon) * groups.energy
        limits = np.where(nu > 0, nu * groups.min_slots, np.where(nu < 0, nu * groups.max_slots, 0.0))
        fixed = float(groups.size @ (theta * groups.earned - limits))
        base = self._by_kind(theta) * groups.g_max @ self.there - self._by_kind(theta * groups.energy) @ self.window
        gain = self._gain(level, slope)
        slots = np.concatenate([[0.0], np.cumsum(gain.sum(axis=0))])[self.before]
        terms = [self._conjugate(theta), base, carbon * self.room, slots]
        if mu.any():
            terms.append(self._late(self._gain(level + mu, slope) - gain, self._by_kind(mu)))
        # A slot counts as g_max less its kg: where these are close, rounding is relative to g_max.
        large = float(groups.size @ (theta * groups.g_max + np.abs(nu) + mu)) * (self.before + 1)
        sizes = abs(fixed) + np.abs(terms).sum(axis=0)
        total = fixed + np.sum(terms, axis=0) + _ROUNDING * sizes + _CANCELLED * large
        return np.where(np.isnan(total), np.inf, total)

    def _conjugate(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """[end], the sum of F* over clients.

        A utility of 0 is followed by that of the cheapest slot. Between them f is replaced by its chord, which is far lower.
        """
        groups, utility = self.groups, self.groups.utility
        full = utility.conjugate(theta)
        total = np.full(len(self.ends), float(groups.size @ full))
        if not _from_nothing(groups):
            return total
        peak = utility.peak(theta)
        most = groups.g_max - groups.energy * self.open.min(axis=1)[groups.kind]
        some = np.flatnonzero((groups.earned == 0) & (peak < most))
        for part in np.split(some, range(_CHUNK // len(total) + 1, len(some), _CHUNK // len(total) + 1)):
            kg = groups.energy[part, None] * self._cheapest[groups.kind[part]]
            first = np.maximum(groups.g_max - kg, 0.0)
            there = self._until[groups.kind[part]][:, self.before] > 0
            low = np.maximum(utility.of(first) - theta[part, None] * first, 0.0)
            exact = np.where(there, np.where(peak[part, None] <= first, low, full[part, None]), 0.0)
            total += groups.size[part] @ (exact - full[part, None])
        return total

    def _late(self, more: NDArray[np.float64], price: NDArray[np.float64]) -> NDArray[np.float64]:
        """[end], what the price of training just before the window adds where recall asks for it."""
        more = np.concatenate([np.zeros((len(more), 1)), np.cumsum(more, axis=1)], axis=1)
        added = more[:, self.before] - more[:, self._late_from] - price[:, None]
        return np.asarray(np.where(self._recalled, added, 0.0).sum(axis=0))

    def _gain(self, level: NDArray[np.float64], slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """[kind, slot], the sum over clients of max(0, level - slope * intensity) where they are available."""
        groups = self.groups
        order, first = self._members
        if len(order) == len(first):
            gain = np.maximum(level[order, None] - slope[order, None] * self.open, 0.0) * groups.size[order, None]
            return np.where(groups.available, gain, 0.0)
        gain = np.empty_like(self.open)
        # A client takes part below an intensity of its own: sorted by that, all clients of a kind need two cumulative sums.
        limit = np.where(level > 0, np.divide(level, slope, out=np.full(len(level), np.inf), where=slope > 0), -np.inf)
        ranked = np.lexsort((limit, groups.kind))
        for kind, members in enumerate(np.split(ranked, first[1:])):
            size = groups.size[members]
            levels, slopes = (
                np.concatenate([np.cumsum((size * values[members])[::-1])[::-1], [0.0]]) for values in (level, slope)
            )
            place = np.searchsorted(limit[members], self.open[kind], side="right")
            gain[kind] = levels[place] - slopes[place] * self.open[kind]
        return np.where(groups.available, gain, 0.0)

    @cached_property
    def _members(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Groups by kind, and where each kind begins."""
        order = np.argsort(self.groups.kind, kind="stable")
        return order, np.flatnonzero(np.diff(self.groups.kind[order], prepend=-1))

    @cached_property
    def _late_from(self) -> NDArray[np.intp]:
        """[end], the first slot that counts for recall."""
        return np.asarray(np.maximum(self.before - self.groups.problem.recall, 0))

    @cached_property
    def _until(self) -> NDArray[np.int64]:
        """[kind, n], how many of the first n slots are available."""
        until = np.zeros((len(self.open), self.open.shape[1] + 1), dtype=np.int64)
        np.cumsum(self.groups.available, axis=1, out=until[:, 1:])
        return until

    @cached_property
    def _cheapest(self) -> NDArray[np.float64]:
        """[kind, end], the least intensity before the window, 0 where no slot is available."""
        least = np.minimum.accumulate(self.groups.price, axis=1)[:, np.maximum(self.before - 1, 0)]
        return np.where(np.isfinite(least) & (self.before > 0), least, 0.0)

    @cached_property
    def _recalled(self) -> NDArray[np.bool_]:
        """[kind, end], as `Stage.recalled`."""
        groups = self.groups
        some = self._until[:, self.before] > self._until[:, self._late_from]
        return np.asarray(some & (groups.trained_ago[:, None] + self.before > groups.problem.recall))

    def _least_slots(self) -> NDArray[np.float64]:
        """[end], a lower bound on what the least slots of all clients cost, kg."""
        groups = self.groups
        if not groups.min_slots.any() and not groups.problem.recall:
            return np.zeros(len(self.ends))
        least = self._by_kind(groups.energy * groups.min_slots) @ self._cheapest
        if groups.problem.recall:
            asked = groups.energy * (groups.max_slots > 0)
            late = np.array(
                [
                    groups.price[:, a:b].min(axis=1, initial=np.inf)
                    for a, b in zip(self._late_from, self.before, strict=True)
                ]
            ).T
            late = np.where(self._recalled, late, 0.0)
            only = self._by_kind(asked * (groups.min_slots == 0))
            beside = self._by_kind(asked * (groups.min_slots > 0))
            least = least + only @ late + beside @ np.maximum(late - self._cheapest, 0.0)
        return least

    def _by_kind(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """[kind], the sum over clients."""
        groups = self.groups
        sums = np.bincount(groups.kind, weights=groups.size * values, minlength=len(groups.intensity))
        return sums.astype(np.float64, copy=False)


def best_first(groups: Groups, ends: Sequence[int]) -> Iterator[tuple[Stage, float]]:
    """Yield the end times whose fixed part fits, as stages with Dantzig's bounds, from the largest bound down.

    Equal bounds come in the order of `ends`. A stage is built only if its end time may have the largest bound of those left.

    Raises:
        InfeasibleError: No end time fits.
    """
    times = EndTimes(groups, ends)
    tops = np.where(times.least_kg <= groups.problem.budget_kg * (1 + BUDGET_ROUNDING), np.inf, -np.inf)
    known: list[tuple[float, int]] = []
    built: tuple[int, Stage] | None = None
    while True:
        i = len(tops) - 1 - int(np.argmax(tops[::-1]))  # the latest end first: its multipliers say most of the others
        if tops[i] == -np.inf and built is None:
            raise _infeasible(times)
        if known and -known[0][0] > tops[i]:
            top, i = heapq.heappop(known)
            if built is None or built[0] != i:
                built = i, Stage.at(groups, ends[i]).with_everyone()
            yield built[1], -top
            continue
        if tops[i] == -np.inf:
            return
        tops[i] = -np.inf
        try:
            stage = Stage.at(groups, ends[i])
        except NoStageError:
            continue
        if stage.room_kg < 0:
            continue
        built = i, stage.with_everyone()
        top, price = bound_and_price(built[1])
        heapq.heappush(known, (-top, i))
        if groups.g_max > 0 and np.any(tops > -np.inf):
            tops = np.minimum(tops, times.bounds(Prices.of(built[1], price)))


def _infeasible(times: EndTimes) -> InfeasibleError:
    """Return the error that names the cheapest end time, or the last one's reason if no budget would do."""
    groups = times.groups
    cheapest: tuple[float, int, Stage] | None = None
    refused: dict[int, str] = {}
    for i in np.argsort(times.least_kg, kind="stable").tolist():
        if cheapest is not None and times.least_kg[i] > cheapest[0]:
            break
        try:
            stage = Stage.at(groups, int(times.ends[i]))
        except NoStageError as error:
            refused[i] = str(error)
            continue
        if cheapest is None or (stage.fixed_kg, i) < cheapest[:2]:
            cheapest = stage.fixed_kg, i, stage
    return infeasible(groups.problem, cheapest and cheapest[2], [refused[i] for i in sorted(refused)])
