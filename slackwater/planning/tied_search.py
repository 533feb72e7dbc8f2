"""The best schedule of tied clients over all end times, with a bound that is proved for all of them.

Multipliers of one end time bound every end time (`tied`), so the end time with the largest bound is taken up again and
again, each time with a dearer method: the relaxation and its rounding, exchanges, the MILP over what remains. The search
ends when the largest bound is within the gap of the best schedule.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.planning.exact import Found, Groups, NoStageError, Stage, feasible_stages, pack_matrix
from slackwater.planning.problem import Problem
from slackwater.planning.relaxation import Planes, Relaxed, relax
from slackwater.planning.rounding import Draft, Exchange, complete, round_off
from slackwater.planning.tied import Array, EndTimes, Fairness, Prices, Tied

logger = logging.getLogger(__name__)
_SURE = 5e-10
"""Smallest gap that is worked for: half of what is called optimal."""
_FIRST_TOLERANCE, _FINE_TOLERANCE = 2e-4, 1e-6
_MOST_LEVEL_ROUNDS = 3
_MOST_PLANES = 2
_MOST_TRIES = 4
_MOST_OVERHEADS = 3
_BUDGET_FACTORS = (1.0, 0.9, 1.1, 0.8, 1.25)
_MOST_ASLEEP = 1_500
"""Client-slots up to which HiGHS is asked where clients sleep."""
_CHEAPEST_S = 60.0
_NO_GAP, _SAME_LEVEL = 1e-11, 1e-9
_SHARP, _SHARP_LEAST = -12.0, 1e6
_MOST_LINEAR_WORK = 5e8
_LINEAR_WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
_RELAXED, _EXCHANGED, _SOLVED = 1, 2, 3
Stop = Callable[[], bool]
Report = Callable[[float, float], None]
"""Called with the best objective so far and its gap."""


@dataclass(eq=False)
class _End:
    """What is known of one end time."""

    tied: Tied
    done: int = 0
    relaxed: Relaxed | None = None
    draft: Draft | None = None
    asked: float = -math.inf
    """Value that was asked for: nothing is said about schedules below it."""
    tries: int = 0


@dataclass(kw_only=True, eq=False)
class Effort:
    """How hard to try: the gap to reach, and when to stop."""

    gap: float
    deadline: float
    stop: Stop = field(default=lambda: False)
    report: Report | None = None
    first_look: bool = False
    """Round the most promising end time, without exchanges and MILP."""
    milp: bool = False
    """Leave the choice to HiGHS, with nothing fixed."""

    def over(self) -> bool:
        """Return whether to stop."""
        return time.perf_counter() >= self.deadline or self.stop()


@np.errstate(all="ignore")  # multipliers of a point far from the optimum may overflow: such bounds are not used
def search_tied(problem: Problem, ends: Sequence[int], effort: Effort) -> Found:
    """Return the best schedule over the end times, and the bound on all of them."""
    groups = Groups(problem)
    times = EndTimes(problem, ends, groups)
    earns = (times.costs < 0).any(axis=(1, 2, 3)) | (times.fixed < 0).any(axis=1)  # slots with a negative price
    payable = times.possible & ((times.room >= 0) | earns).all(axis=1)
    if not payable.any():
        feasible_stages(problem, ends)  # raises, with the reason
        raise _infeasible(problem, times, ends)
    if problem.utility.kind != "max-min":
        race = _Race(times, payable, effort)
        race.run()
        if race.best is None:
            raise _infeasible(problem, times, ends)
        return _found(times, race, None, None)
    half = time.perf_counter() + (effort.deadline - time.perf_counter()) / 2
    lower = _Race(times, payable, Effort(**(vars(effort) | {"deadline": half})), level=True)
    lower.run()
    if lower.best is None:
        raise _infeasible(problem, times, ends)
    if lower.interrupted:
        effort.deadline = 0.0  # Ctrl-C ends the search for the sum above the level too
    level = float(lower.best[1].u.min())
    least = np.full(len(times.base[0]), level)
    reaching = payable & (lower.bounds >= level * (1 - 1e-9)) & (times.lows(least) <= times.high).all(axis=1)
    upper = _Race(times, reaching, effort, least=least, start=lower.best)
    upper.run()
    return _found(times, upper, level, max(float(lower.bounds.max()), level))


class _Race:
    """The search for one aim: the sum of F, or with `level` the least utility of any client."""

    def __init__(
        self,
        times: EndTimes,
        payable: np.ndarray,
        effort: Effort,
        *,
        level: bool = False,
        least: Array | None = None,
        start: tuple[int, Draft] | None = None,
    ) -> None:
        self.times, self.effort, self.level, self.least = times, effort, level, least
        self.bounds: Array = np.where(payable, np.inf, -np.inf)
        self.ends: dict[int, _End] = {}
        self.best: tuple[int, Draft] | None = None
        self.interrupted = False
        if start is not None:
            end, known = self._end(start[0]), start[1]
            tied = end.tied if end.tied.sleepers is None else replace(known.tied, least=end.tied.least)
            self._offer(start[0], end, complete(tied, known.prices, known.chosen, known.level))

    def _end(self, i: int) -> _End:
        if i not in self.ends:
            self.ends[i] = _End(self.times.at(i, least=self.least))
        return self.ends[i]

    def _measure(self, draft: Draft) -> float:
        return float(draft.u.min()) if self.level else draft.value

    @property
    def value(self) -> float:
        """Return the value of the best schedule."""
        return -math.inf if self.best is None else self._measure(self.best[1])

    @property
    def worth(self) -> float:
        """Return what can be gained beyond the window, at most."""
        if self.best is None:
            return math.inf
        tied = self.ends[self.best[0]].tied
        top = float(self.bounds.max())
        if self.level:
            return max(top - tied.alone_level, 0.0)
        nothing = float(tied.fairness.of(tied.base).sum())
        return max(min(top - nothing, max(top - tied.alone, tied.least_worth)), 0.0)

    @property
    def gap(self) -> float:
        """Return the relative gap between the best schedule and the largest bound."""
        if self.best is None:
            return math.inf
        above = float(self.bounds.max()) - self.value
        least = (_SAME_LEVEL if self.level else _NO_GAP) * max(abs(self.value), 1.0)
        return 0.0 if above <= least else above / max(self.worth, 1e-300)

    def run(self) -> None:
        """Search until the gap is reached, time is up or nothing is left to try."""
        i = int(np.flatnonzero(np.isfinite(self.bounds) | (self.bounds > 0))[-1])
        try:
            while True:
                self._take_up(i)
                if self.effort.report is not None and self.best is not None:
                    self.effort.report(self.value, self.gap)
                if self.best is not None and (self.gap <= max(self.effort.gap, _SURE) or self.effort.over()):
                    return
                left = [k for k, b in enumerate(self.bounds) if b > max(self.value, -math.inf) and self._open(k)]
                if not left:
                    return
                i = max(left, key=lambda k: self.bounds[k])
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = True
            logger.warning("Planning was stopped: this is the best plan found so far, with the gap proved so far.")

    def _open(self, i: int) -> bool:
        done = self.ends[i].done if i in self.ends else 0
        if self.effort.first_look and self.best is not None:
            return done == 0 and self.bounds[i] == math.inf
        return done < _SOLVED

    def _take_up(self, i: int) -> None:
        end = self._end(i)
        if end.relaxed is None:
            self._relax(i, end, max(self.effort.gap / 5, _FINE_TOLERANCE))
            end.done = _RELAXED
        elif end.done == _RELAXED and not self.effort.milp and self._linear_work() > _MOST_LINEAR_WORK:
            self._sharpen(i, end)
            end.done = _EXCHANGED
            if self.bounds[i] > self.value:
                self._exchange(i, end)
        elif end.done == _RELAXED and not self.effort.milp:
            self._solve_linear()
        else:
            self._solve(i, end)
            end.done = _SOLVED
            # Little was left to gain, so that what was asked for above the best was much of it: ask for less.
            if self.bounds[i] <= end.asked and self.gap > max(self.effort.gap, _SURE) and end.tries < _MOST_TRIES:
                end.tries += 1
                end.done = _RELAXED if self.level else _EXCHANGED

    def _relax(self, i: int, end: _End, tolerance: float) -> None:
        tied = end.tied
        if tied.sleepers is not None:
            self._relax_sleeping(i, end, tolerance)
            return
        if not (tied.best_gain > 0).any():
            prices = Prices(
                budget=np.zeros(len(tied.room)),
                utility=np.ones(len(tied.base)),
                slot=np.zeros(len(tied.base)),
                late=np.zeros(len(tied.base)),
            )
            bound = tied.alone_level if self.level else float(tied.fairness.of(tied.base).sum())
            end.relaxed = Relaxed(x=np.zeros(tied.open.shape), prices=prices, bound=bound, value=bound, steps=0)
        else:
            level = _first_levels(tied)
            for _ in range(_MOST_LEVEL_ROUNDS):
                gain, cost = tied.effective(level)
                found = relax(tied, gain, cost, tolerance=tolerance, level=self.level, stop=self.effort.over)
                self._bound_all(found.prices)
                if end.relaxed is None or found.bound < end.relaxed.bound:
                    end.relaxed = found
                new = tied.level_at(found.prices)
                if np.array_equal(new, level):
                    break
                level = new
        assert end.relaxed is not None
        self.bounds[i] = min(self.bounds[i], end.relaxed.bound)
        if self.bounds[i] > self.value and not self.effort.milp:
            self._offer(i, end, self._round(tied, end.relaxed))

    def _relax_sleeping(self, i: int, end: _End, tolerance: float) -> None:
        """Relax with the overhead of starts and idle draw spread over the slots of training, and learn it from the result."""
        tied = end.tied
        sleepers = tied.sleepers
        assert sleepers is not None
        who, stop = sleepers.clients, self.effort.over
        overhead = sleepers.overhead()
        first = np.where(sleepers.up_before > 0, 0, sleepers.lead)[:, None]
        ups = [np.arange(tied.stop)[None, :] >= first]  # up as soon as possible, until the end
        for _ in range(_MOST_OVERHEADS):
            costs = tied.costs.copy()
            costs[:, :, who] += overhead[:, None, :, None]
            plain = replace(tied, costs=costs, sleepers=None)
            found = relax(plain, plain.gains[0], costs[:, 0], tolerance=tolerance, level=self.level, stop=stop)
            prices = found.prices
            self._learn(i, end, replace(found, bound=math.inf), prices)
            up = tied.up_on(prices)
            trains = up[:, : tied.open.shape[1]] & (tied.worth(prices)[who] > 0)
            overhead = (overhead + sleepers.cost(up) / np.maximum(trains.sum(axis=1), 1)) / 2
            ups.append(up)
            if stop():
                break
        assert end.relaxed is not None
        if not self.level:
            for factor in _BUDGET_FACTORS:
                prices = replace(end.relaxed.prices, budget=found.prices.budget * factor)
                prices = tied.tuned(prices)
                self._learn(i, end, found, prices)
                ups.append(tied.up_on(prices))
                if stop():
                    break
        for up in {one.tobytes(): one for one in ups}.values():
            if self.bounds[i] <= self.value or (stop() and self.best is not None):
                return
            self._offer(i, end, self._while_up(tied, up))

    def _bound_all(self, prices: Prices) -> None:
        if prices.sound:
            self.bounds = np.minimum(self.bounds, self.times.bounds(prices, self.least, level=self.level))

    def _learn(self, i: int, end: _End, found: Relaxed, prices: Prices) -> None:
        """Bound all end times by these prices, and keep them if they are the best of this one."""
        bound = end.tied.level_bound(prices) if self.level else end.tied.bound(prices)
        if not prices.sound:
            end.relaxed = end.relaxed or replace(found, bound=math.inf)
            return
        self._bound_all(prices)
        self.bounds[i] = min(self.bounds[i], bound)
        if end.relaxed is None or bound < end.relaxed.bound or not math.isfinite(end.relaxed.bound):
            end.relaxed = replace(found, prices=prices, bound=bound)

    def _while_up(self, tied: Tied, up: np.ndarray) -> Draft | None:
        """Return the best schedule with sleeping clients up in these slots, then with what they save by being up less."""
        assert tied.sleepers is not None
        if not tied.sleepers.legal(up):
            return None
        rest, draft = tied.while_up(up), None
        for _ in range(2):
            if (rest.room < 0).any():
                break
            relaxed = relax(
                rest,
                *rest.effective(_first_levels(rest)),
                tolerance=_FIRST_TOLERANCE,
                level=self.level,
                stop=self.effort.over,
            )
            new = self._round(rest, relaxed)
            if new is None or (draft is not None and self._measure(new) <= self._measure(draft)):
                break
            draft = new
            rest = tied.while_up(self._least_up(tied, draft))
        return draft

    def _sharpen(self, i: int, end: _End) -> None:
        """Relax again, with planes that know that utility comes by whole slots."""
        if end.tied.sleepers is not None:
            return
        if self.level:
            self._sharpen_level(i, end)
            return
        tied, relaxed = end.tied, end.relaxed
        assert relaxed is not None
        if not relaxed.steps:
            return
        for _ in range(_MOST_PLANES):
            gain, cost = tied.effective(tied.level_at(relaxed.prices))
            near = Planes.around(tied, tied.base + (gain * relaxed.x).sum(axis=1), relaxed.x.sum(axis=1))
            found = relax(tied, gain, cost, tolerance=_FINE_TOLERANCE, planes=near, stop=self.effort.over)
            self._bound_all(found.prices)
            self.bounds[i] = min(self.bounds[i], found.bound)
            improved = found.bound < end.relaxed.bound - _FINE_TOLERANCE * self.worth if end.relaxed else True
            if end.relaxed is None or found.bound < end.relaxed.bound:
                end.relaxed = found
            if self.bounds[i] <= self._enough_here() or not improved or self.effort.over():
                break
            relaxed = found
        if self.bounds[i] > self.value and end.relaxed is not None:
            self._offer(i, end, self._round(tied, end.relaxed))

    def _sharpen_level(self, i: int, end: _End) -> None:
        """Ask for a level above the best: every client then needs a whole number of slots, which the bound can use."""
        if self.best is None:
            return
        wanted = self._enough_here()
        least = np.full(len(end.tied.base), wanted)
        fine: np.ndarray = np.asarray((self.times.lows(least) <= self.times.high).all(axis=1))
        self.bounds = np.where(fine, self.bounds, np.minimum(self.bounds, wanted))
        if not fine[i]:
            return
        tied = self.times.at(i, least=least)
        gain, cost = tied.effective(np.zeros(tied.open.shape, dtype=np.intp))
        found = relax(tied, gain, cost, tolerance=_FINE_TOLERANCE, level=True, stop=self.effort.over)
        if math.isfinite(found.bound):
            every = self.times.bounds(found.prices, least, level=True)
            self.bounds = np.minimum(self.bounds, np.maximum(every, wanted))
            self.bounds[i] = min(self.bounds[i], max(found.bound, wanted))
        end.tied, end.relaxed, end.asked = tied, found, wanted
        if self.bounds[i] > wanted:
            self._offer(i, end, self._round(tied, found))

    def _enough_here(self) -> float:
        return self.value + max(self.effort.gap, _SURE) * (self.worth if self.best is not None else 0.0)

    def _round(self, tied: Tied, relaxed: Relaxed) -> Draft | None:
        if not self.level:
            return round_off(tied, relaxed)
        # The least utility is nearly the sum of a sharply concave F, for which rounding and exchange are made.
        scale = max(relaxed.value, 1e-3)
        sharp = replace(
            tied,
            gains=tied.gains / scale,
            base=tied.base / scale,
            fairness=Fairness(alpha=_SHARP, least=-_SHARP_LEAST),
        )
        prices = replace(relaxed.prices, utility=relaxed.prices.utility * scale)
        draft = round_off(sharp, replace(relaxed, prices=prices))
        if draft is None:
            return None
        draft = Exchange(draft, math.inf).run(math.inf, self.effort.over)
        return Draft(tied, relaxed.prices, draft.chosen, draft.level).at_level()

    def _offer(self, i: int, end: _End, draft: Draft | None) -> None:
        if draft is None or not self._payable(end.tied, draft):
            return
        if end.draft is None or self._measure(draft) > self._measure(end.draft):
            end.draft = draft
        new = self._measure(draft)
        if self.best is None or new > self.value:
            self.best = (i, draft)

    def _payable(self, tied: Tied, draft: Draft) -> bool:
        """Return whether the budgets hold with sleeping clients up where that takes the least kg, as plans count it."""
        if tied.sleepers is None or len(tied.room) == 1:
            return True
        up = self._least_up(tied, draft)
        draft._sum()
        waiting = tied.sleepers.cost(up).sum(axis=1)
        return bool((draft.spent + waiting <= tied.room + 1e-12 * np.abs(tied.room)).all())

    def _least_up(self, tied: Tied, draft: Draft) -> np.ndarray:
        assert tied.sleepers is not None
        window = self.times.there[tied.sleepers.clients, tied.open.shape[1] : tied.stop]
        trains = np.concatenate([draft.chosen[tied.sleepers.clients], window], axis=1)
        return tied.sleepers.cheapest_up(trains, tied.stop - self.times.problem.rounds)

    def _enough(self) -> float:
        return float(self.bounds.max()) - max(self.effort.gap, _SURE) * self.worth

    def _exchange(self, i: int, end: _End) -> None:
        if end.draft is None or self.level:
            return
        began = end.draft.copy()
        improved = Exchange(began, float(self.bounds[i])).run(self._enough(), self.effort.over)
        if improved.allowed:
            self._offer(i, end, improved)

    def _linear_work(self) -> float:
        """Return the work of `_solve_linear`; infinite if it does not apply."""
        times = self.times
        plain = len(times.gains) == 1 and len(times.fixed) == 1 and self.least is None and not self.level
        plain &= times.sleepers is None and not times.problem.costs.price_weight
        limited = times.low.any() or (times.high < times.usable_slots).any() or times.recalled.any()
        if times.fairness.alpha != 1.0 or not plain or limited:
            return math.inf
        slots, places = times.gains.shape[2], times.parallel
        return float(slots * places) ** 2

    def _solve_linear(self) -> None:
        """Bound all end times by dynamic programmes for alpha = 1: n slots are worth n less the kg of their clients.

        The least kg of n client-slots among the first t slots is a knapsack over slots: in each, none or its j cheapest
        clients, and the server once. One pass gives every end time. Without a server this is exact. With one, what is
        gained counts the clients' kg and the budget counts the server's too: a weighted sum of both, for several weights,
        bounds the best.
        """
        times = self.times
        paid = bool(times.fixed.any())
        alive = np.flatnonzero(self.bounds > -np.inf)
        size = times.gains.shape[2] * times.parallel + 1
        counts = np.arange(size)
        tops = np.full((len(times.ends), size), np.inf)
        ways: list[tuple[float, list[np.ndarray]]] = []
        for weight in _LINEAR_WEIGHTS if paid else (math.inf,):
            least, choices = self._least(*((1.0, 1.0) if math.isinf(weight) else (1.0 + weight, weight)))
            ways.append((weight, choices))
            for i in alive.tolist():
                room, own = float(times.room[i, 0]), least[int(times.before[i])]
                full = np.full(size, np.inf)
                full[: len(own)] = own
                if math.isinf(weight):
                    kg = full if not paid else np.zeros(size)
                    tops[i] = np.minimum(tops[i], np.where(full <= room, counts - kg, -np.inf))
                else:
                    tops[i] = np.minimum(tops[i], counts + weight * room - full)
        for i in alive.tolist():
            total = float(times.fairness.of(times.base[i]).sum()) + float(tops[i].max())
            self.bounds[i] = min(self.bounds[i], total + 1e-12 * max(abs(total), 1.0))
        i = int(max(alive, key=lambda k: self.bounds[k]))
        for one in alive:
            self._end(int(one)).done = _EXCHANGED if paid else _SOLVED
        for _, choices in ways:
            # Among equal values more slots; the exact one first, then its neighbours, which may fit where it does not.
            n = int(size - 1 - tops[i][::-1].argmax())
            for count in (n, n - 1, n + 1):
                self._offer(i, self._end(i), self._from_choices(i, choices, count))

    def _least(self, by_client: float, by_server: float) -> tuple[list[Array], list[np.ndarray]]:
        """Return the least weighted kg of n client-slots in the first t slots [t][n], and how many the t-th then has."""
        times = self.times
        cost = np.where(times.usable[0], times.costs[0, 0], np.inf)
        cheapest = np.cumsum(np.sort(cost, axis=0)[: times.parallel], axis=0)
        fits = cheapest + times.fixed[0] <= float(times.room.max())
        fits[: times.fewest - 1] = False
        weighted = by_client * cheapest + by_server * times.fixed[0]
        least, choices = [np.zeros(1)], []
        for slot in range(int(times.before.max(initial=0))):
            old, sizes = least[-1], np.flatnonzero(fits[:, slot])
            grown = np.full(len(old) + (int(sizes[-1]) + 1 if len(sizes) else 0), np.inf)
            grown[: len(old)] = old
            choice = np.zeros(len(grown), dtype=np.int32)
            for j in sizes:
                part = slice(int(j) + 1, int(j) + 1 + len(old))
                new = old + weighted[j, slot]
                better = new < grown[part]
                grown[part] = np.where(better, new, grown[part])
                choice[part] = np.where(better, j + 1, choice[part])
            least.append(grown)
            choices.append(choice)
        return least, choices

    def _from_choices(self, i: int, choices: list[np.ndarray], n: int) -> Draft | None:
        """Return the schedule of n client-slots that a dynamic programme chose."""
        times, end = self.times, self._end(i)
        cost = np.where(times.usable[0], times.costs[0, 0], np.inf)
        order = np.argsort(cost, axis=0, kind="stable")
        chosen = np.zeros_like(end.tied.open)
        for slot in range(int(times.before[i]) - 1, -1, -1):
            if not 0 <= n < len(choices[slot]):
                return None
            j = int(choices[slot][n])
            chosen[order[:j, slot], slot] = True
            n -= j
        relaxed = end.relaxed or next(e.relaxed for e in self.ends.values() if e.relaxed is not None)
        return complete(end.tied, relaxed.prices, chosen)

    def _solve(self, i: int, end: _End) -> None:
        from slackwater.planning.core import Core, Kept  # HiGHS is loaded only when it is needed

        assert end.relaxed is not None
        tied, prices = end.tied, end.relaxed.prices
        slack = max(self.effort.gap, _SURE) * self.worth / 2 if self.best is not None else 1e-9
        above = self.value + slack if self.best is not None else -math.inf
        asleep = tied.sleepers is not None
        if asleep and tied.open.size > _MOST_ASLEEP and self.best is not None and not self.effort.milp:
            return
        fixed = self.best is not None and not self.level and not self.effort.milp and not asleep
        kept = Kept(tied, prices if fixed else None, above)
        core = Core(tied, kept, aim="level" if self.level else "value")
        draft, bound = core.solve(end.draft, prices, slack=slack, deadline=self.effort.deadline, stop=self.effort.over)
        if draft is not None and draft.allowed:
            self._offer(i, end, draft)
        elif self.effort.milp and self.best is None and bound > -math.inf:
            self._offer(i, end, self._round(tied, end.relaxed))  # HiGHS found nothing in time
        if fixed:
            end.asked = above
        self.bounds[i] = min(self.bounds[i], max(bound, end.asked))


def _first_levels(tied: Tied) -> np.ndarray:
    """Return the first usable level of every client-slot [client, slot]."""
    return np.asarray(tied.usable.argmax(axis=0))


def _found(times: EndTimes, race: _Race, level: float | None, level_bound: float | None) -> Found:
    assert race.best is not None
    i, draft = race.best
    problem, groups = times.problem, times.groups
    stage = Stage.at(groups, int(times.ends[i]))
    clients = len(draft.u)
    bound = max(float(race.bounds.max()), draft.value)
    if bound - draft.value <= _NO_GAP * max(abs(draft.value), clients):
        bound = draft.value  # bounds are differences of numbers of this size
    total = times.slope * draft.value + clients * times.shift
    upper = times.slope * bound + clients * times.shift
    if level is not None and level_bound is not None:
        upper = _with_level(times, race, upper, total, float(draft.u.min()), level_bound)
        level = float(draft.u.min()) * times.unit
    packed = pack_matrix(stage, groups.kind[groups.of_client], draft.chosen)
    levels = None
    if len(draft.tied.gains) > 1:
        levels = np.zeros((clients, problem.horizon), dtype=np.uint8)
        levels[:, : draft.chosen.shape[1]] = np.where(draft.chosen, draft.level, 0)
    alone = times.slope * float(draft.tied.fairness.of(draft.tied.base).sum()) + clients * times.shift
    return Found(stage=stage, packed=packed, upper_bound=upper, level=level, levels=levels, alone=alone)


def _with_level(times: EndTimes, race: _Race, upper: float, total: float, level: float, bound: float) -> float:
    """Return the bound raised so that the gap is at least that of the level, which comes first."""
    assert race.best is not None
    if bound - level <= _SAME_LEVEL * max(level, 1.0):
        return upper
    tied = race.ends[race.best[0]].tied
    alone = times.slope * float(tied.fairness.of(tied.base).sum()) + len(tied.base) * times.shift
    open_ = 1 - (level - tied.alone_level) / max(bound - tied.alone_level, 1e-300)
    if open_ >= 1 or upper - total >= open_ * (upper - alone):
        return max(upper, total + (total - alone)) if open_ >= 1 else upper
    return max((total - open_ * alone) / (1 - open_), upper)


def _infeasible(problem: Problem, times: EndTimes, ends: Sequence[int]) -> InfeasibleError:
    """Return the error that what the constraints ask for does not fit, with the least sufficient budget if there is one."""
    from slackwater.planning.core import cheapest

    needs: list[tuple[float, int]] = []
    groups = times.groups
    for i, end in enumerate(ends):
        try:
            stage = Stage.at(groups, end)
        except NoStageError:
            continue
        if not times.possible[i]:
            continue
        times.room[i] = np.inf
        tied = times.at(i)
        prices = Prices(
            budget=np.ones(len(tied.room)),
            utility=np.zeros(len(tied.base)),
            slot=np.zeros(len(tied.base)),
            late=np.zeros(len(tied.base)),
        )
        if (least := cheapest(tied, prices, _CHEAPEST_S)) is not None:
            kg = float(
                np.where(least.chosen, tied.costs[0, 0], 0.0).sum() + tied.fixed[0][least.chosen.any(axis=0)].sum()
            )
            needs.append((kg * times.unit + stage.window_kg + stage.idle_kg, end))
    limits = [
        f"at most {problem.max_parallel} clients in a slot" if problem.max_parallel is not None else "",
        f"at least {times.fewest} clients in a slot or none" if times.fewest > 1 else "",
        "the server paid for" if problem.costs.server_kg is not None else "",
    ]
    tied_by = " and ".join(one for one in limits if one) or "these limits"
    if not needs:
        return InfeasibleError(
            f"No end time works, whatever the budget: with {tied_by}, the least slots of all clients "
            "(min_slots, required, recall) do not fit together. Loosen max_parallel or min_parallel, ask for fewer slots or "
            "add slack."
        )
    need, end = min(needs)
    return InfeasibleError(
        f"No schedule fits {problem.budget_kg:g} kg: at its cheapest (s={end}) the fine-tuning window, idle power and "
        f"the least slots of clients (min_slots, required, recall), with {tied_by}, cost {need:.6f} kg. Raise budget_kg to at "
        f"least {math.ceil(need * 1e6 * (1 - 1e-12)) / 1e6:.6f}, ask for fewer slots or add slack.",
        least_budget_kg=need,
        end=end,
    )
