"""Coupled problems by HiGHS: best-first over end times, always sharpening the largest remaining bound."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import SlackwaterError
from slackwater.planning import exact as selection
from slackwater.planning import knapsack
from slackwater.planning.cells import TIE, Candidate, Cells
from slackwater.planning.coupled import coupled_infeasible, coupled_stages, greedy, grow, uncoupled_bound
from slackwater.planning.exact import Found, Items, Selection, Stage, search
from slackwater.planning.highs import INFINITE, Model
from slackwater.planning.problem import Problem
from slackwater.planning.tangents import Fair, Rows
from slackwater.planning.ties import Ties, optimistic

logger = logging.getLogger(__name__)
_GAP = 1e-9
"""Relative gap at which a schedule counts as optimal, as in `plan.OPTIMAL_GAP`."""
_MOST_ROUNDS = 30
_HALF = 0.5
_CHEAPEST_S = 60.0
Goal = Literal["value", "level"]


def solve_milp(problem: Problem, ends: Sequence[int], *, time_limit_s: float) -> Found:
    """Return the best schedule over the end times, by HiGHS. End times that were not solved in time count in the bound."""
    deadline = time.perf_counter() + time_limit_s
    if not problem.coupled:
        return search(problem, ends, solve=lambda stage: _knapsack(stage, deadline))
    stages = coupled_stages(problem, ends)
    if problem.utility.kind != "max-min":
        race = _Race("value", deadline)
        best = race.run([_Task(stage=stage, bound=uncoupled_bound(stage)) for stage in stages])
        if best is None:
            raise coupled_infeasible(problem, ends)
        return best.found(race.bound)
    # First the level, in half of the time; then the sum of f with all clients at it, at end times that can reach it.
    race = _Race("level", time.perf_counter() + time_limit_s / 2)
    tasks = [_Task(stage=stage, bound=stage.at_best_level().least_utility) for stage in stages]
    lowest = race.run(tasks)
    if lowest is None:
        raise coupled_infeasible(problem, ends)
    above = _Race("value", deadline, best=lowest)
    reaching = [task.stage for task in tasks if task.bound >= lowest.level * (1 - _GAP)]
    best = above.run([_Task(stage=stage, bound=uncoupled_bound(stage, lowest.level)) for stage in reaching])
    assert best is not None
    return best.found(above.bound, race.bound)


def cheapest(cells: Cells) -> NDArray[np.bool_] | None:
    """Return the clients' least slots at the least cost, whatever the budget; None if they do not fit together."""
    if np.any(cells.open.sum(axis=1) < cells.low):
        return None
    rows = Rows(cells, budget=False)
    rows.model.maximise(np.concatenate([rows.x, rows.y]), -rows.kg)
    outcome = rows.model.solve(seconds=_CHEAPEST_S)
    return None if outcome.columns is None else rows.matrix(outcome.columns)


@dataclass(kw_only=True, eq=False)
class _Task:
    """An end time that may still hold the best schedule."""

    stage: Stage
    bound: float
    cells: Cells | None = None
    own: Candidate | None = None
    """Its best schedule so far."""
    positive: int = 0
    """For the logarithm: how many active clients can have a positive utility together."""
    points: frozenset[tuple[int, float]] = frozenset()
    """Active client and utility of each cut made."""
    seconds: float = math.inf
    """Time that HiGHS may use on it next."""
    behind: bool = False
    """Whether it is proved not even to tie."""


class _Race:
    """Best-first search over end times: examine the one with the largest bound, until that bound is attained."""

    def __init__(self, goal: Goal, deadline: float, best: Candidate | None = None) -> None:
        self.goal, self.deadline, self.best = goal, deadline, best
        self.level = 0.0 if best is None else best.level
        self.bound = -math.inf
        """No schedule is better, at any end time."""

    def run(self, tasks: list[_Task]) -> Candidate | None:
        """Return the best schedule found; None if there is none."""
        heap = [(-task.bound, task.stage.end, task) for task in tasks if task.bound > -math.inf]
        heapq.heapify(heap)
        while heap and not (self.best is not None and (self._left() <= 0 or self._beaten(heap[0][2]))):
            task = heapq.heappop(heap)[2]
            if task.cells is None:
                closed = self._first_look(task)
                task.seconds = math.inf if not heap else self._left() / 2
            else:
                closed = self._close(task)
                task.seconds *= 2
            logger.debug("s=%d: bound %.12g%s", task.stage.end, task.bound, ", closed" if closed else "")
            if closed:
                self.bound = max(self.bound, task.bound)
            elif task.bound > -math.inf:
                heapq.heappush(heap, (-task.bound, task.stage.end, task))
        self.bound = max([self.bound, *(task.bound for _, _, task in heap)])
        if self.best is not None and self.goal == "value":
            self._break_ties(tasks)
        return self.best

    def _break_ties(self, tasks: list[_Task]) -> None:
        """Examine every end time that may tie with the best: the best one first, then the most promising."""
        assert self.best is not None
        even = [task for task in tasks if self._may_tie(task)]
        looks = [(optimistic(task.cells or Cells.of(task.stage)), task) for task in even]
        looks.sort(key=lambda look: (look[1].own is not self.best, -look[0].slots, look[0].kg, look[0].end))
        try:
            for rank, task in looks:
                if self._left() > 0 and rank.ahead_of(self.best.rank) and self._may_tie(task):
                    if task.own is None:
                        self._first_look(task)
                    if task.own is not None and self._may_tie(task) and self._left() > 0:
                        self.best = Ties(task.own, self.best, task.positive, task.points).best_by(self.deadline)
        except SlackwaterError as error:
            logger.warning("Ties between schedules are not broken. %s", error)  # the objective is proved anyway

    def _may_tie(self, task: _Task) -> bool:
        assert self.best is not None
        return not task.behind and task.bound >= self.best.total - TIE * abs(self.best.total)

    def _left(self) -> float:
        return self.deadline - time.perf_counter()

    def _measure(self, found: Candidate) -> float:
        return found.total if self.goal == "value" else found.level

    def _slack(self) -> float:
        """Return how far the bound may stay above the best."""
        assert self.best is not None
        if self.goal == "level":
            return _GAP * self.best.level / 2
        stage = self.best.cells.stage
        return _GAP * max(self.best.total - stage.value(np.zeros_like(stage.low)), TIE * abs(self.best.total)) / 2

    def _beaten(self, task: _Task) -> bool:
        assert self.best is not None
        best = self._measure(self.best)
        if task.cells is None or task.cells.flat:  # it may tie with more slots
            return task.bound < best - TIE * abs(best)
        return task.bound <= best + self._slack()

    def _offer(self, task: _Task, matrix: NDArray[np.bool_]) -> None:
        assert task.cells is not None
        new = Candidate.of(task.cells, matrix)
        if new.beats(task.own):
            task.own = new
        if new.level >= self.level * (1 - _GAP) and new.beats(self.best):
            self.best = new

    def _first_look(self, task: _Task) -> bool:
        """Run the greedy and bound by the relaxation; return whether that settles the end time."""
        task.cells = cells = Cells.of(task.stage)
        matrix = greedy(cells)
        if matrix is None:
            task.bound = -math.inf
            return True
        self._offer(task, matrix)
        assert task.own is not None
        if cells.flat:
            task.bound = min(task.bound, self._measure(task.own))
            return True
        assert self.best is not None
        if self._left() <= 0:
            return False
        model = Fair(cells, least=max(self.level, self.best.level if self.goal == "level" else 0.0))
        if self.goal == "level":
            model.for_level()
            relaxed = model.scale * model.model.solve(seconds=self._left(), relaxed=True).bound
        else:
            task.positive = self._positive(model, task)
            model.for_value(task.positive)
            model.first_cuts()
            relaxed = model.offset(task.positive) + model.unit * model.relax(self.deadline)
            task.points = frozenset(model.points)
        if relaxed > -math.inf:
            task.bound = min(task.bound, relaxed)
            return False
        # Nothing reaches the level here. Without a level there is a schedule, so HiGHS must be wrong: no proof.
        ahead = self.best.cells is not cells and (self.goal == "level" or self.level > 0)
        task.bound = -math.inf if ahead else task.bound
        return ahead

    def _positive(self, model: Fair, task: _Task) -> int:
        """Return how many active clients can have a positive utility together (log); a bound if time runs out."""
        assert task.own is not None
        if not model.barred.any():
            return len(model.active)
        if bool(np.all(task.own.cells.utilities(task.own.matrix)[model.active] > 0)):
            return len(model.active)
        model.for_positive()
        outcome = model.model.solve(seconds=self._left(), gap=0.5, start=model.start(task.own.matrix))
        if outcome.columns is not None:
            self._take(task, model, outcome.columns)
        return len(model.active) if math.isinf(outcome.bound) else math.floor(outcome.bound + 1e-6)

    def _close(self, task: _Task) -> bool:
        """Solve by HiGHS, with new cuts until its optimum is a true one; return whether the end time is settled."""
        cells = task.cells
        assert cells is not None
        assert task.own is not None
        assert self.best is not None
        best, stop = self._measure(self.best), time.perf_counter() + min(task.seconds, self._left())
        # Where another end time is ahead, only schedules that beat it matter.
        rival = self._measure(task.own) < best - TIE * abs(best)
        model = Fair(cells, least=max(self.level, best if self.goal == "level" else 0.0))
        unit, offset = (model.unit, model.offset(task.positive)) if self.goal == "value" else (model.scale, 0.0)
        if self.goal == "level":
            model.for_level()
        else:
            even = best - TIE * abs(best)
            model.for_value(task.positive, (even - offset) / unit - _GAP if rival else -INFINITE)
            for i, point in sorted(task.points):
                model.cut(i, [point], plain=True)
        tightened = False
        for _ in range(_MOST_ROUNDS):
            start = None if rival else model.start(task.own.matrix)
            gap = max(self._slack() / unit / 2, 1e-10)
            outcome = model.model.solve(seconds=stop - time.perf_counter(), gap=gap, start=start)
            if outcome.infeasible:
                below = task.own.level < self.level * (1 - _GAP)
                if (rival or below) and not tightened:
                    task.bound = min(task.bound, best)
                    task.behind = rival
                break  # else it contradicts a known schedule: the bound stays
            if not tightened:
                task.bound = min(task.bound, offset + unit * outcome.bound)
            if outcome.columns is None:
                break
            within = self._take(task, model, outcome.columns)
            rival &= self._measure(task.own) < best - TIE * abs(best)
            if self._beaten(task):
                break
            new = self.goal == "value" and model.cut_at(outcome.columns)
            if not within and not new:
                model.tighten()
                tightened = True
            elif not new:
                break
            if time.perf_counter() >= stop:
                break
        task.points = frozenset(model.points)
        return self._beaten(task) or time.perf_counter() < stop

    def _take(self, task: _Task, model: Fair, columns: NDArray[np.float64]) -> bool:
        """Offer the schedule of a solution, with all slots that still fit; return whether it kept the budget by plain sums."""
        assert task.cells is not None
        matrix = model.matrix(columns)
        if not task.cells.allows(matrix):
            return False
        self._offer(task, grow(task.cells, matrix))
        return True


def _knapsack(stage: Stage, deadline: float) -> Selection:
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
