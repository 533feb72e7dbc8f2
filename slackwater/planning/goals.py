"""Goals other than the best training in a budget: given work at the least carbon, and enough training.

Work. Every client trains in at least N slots (or all together in N client-slots), window included. For each end time s

    kg(s) = idle draw until the end + window + cheapest client-slots before it

where clients are free, and a client that is recalled takes one of the late slots first. One pass over the slots gives a
lower bound of kg(s) for all s: the cheapest slots so far, without recall and limits, kept in heaps. End times are taken up
from the lowest bound on, and solved exactly (by sorting, or by HiGHS where clients are tied together), until no bound is
below the best schedule.

Enough. The least budget, on a grid, from which on no further step lowers the predicted error by the share asked for.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError, SlackwaterError
from slackwater.planning.auto import quality
from slackwater.planning.exact import BUDGET_ROUNDING, Groups, round_up
from slackwater.planning.plan import OPTIMAL_GAP, Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import too_dear, unproved_plan
from slackwater.planning.tied import EndTimes

Counts = NDArray[np.intp]
_STEP = 1.1
"""Budgets of `enough` grow by 10 %."""
_MOST_STEPS = 60
_PATIENCE = 5
"""Steps without enough gain after which `enough` stops: slots are whole, so one step may buy nothing."""
_SAME = 1e-12
"""Relative rounding of sums of kg."""


class _Work:
    """What each end time needs, and a lower bound of its kg."""

    def __init__(self, problem: Problem, counts: Counts | None, end: int | None) -> None:
        slack = problem.horizon - problem.rounds
        ends = range(slack + 1) if end is None else [end]
        self.times = times = EndTimes(problem, ends, Groups(problem))
        times.usable[1:] = False  # a round that was asked for is a round at full power
        self.problem = problem
        summed = np.concatenate(
            [np.zeros((len(problem.fleet), 1)), np.cumsum(problem.costs.can_train(), axis=1)], axis=1
        )
        first = np.maximum(times.before, 0)
        window = (summed[:, problem.rounds + times.ends] - summed[:, first]).T.astype(np.intp)
        self.missing = np.zeros(len(times.ends), dtype=np.intp)
        """[end], client-slots to hold before the window, of all clients together."""
        if counts is None and problem.rounds_total is not None:
            self.missing = np.maximum(problem.rounds_total - window.sum(axis=1), 0)
        else:
            asked = np.full(len(problem.fleet), problem.rounds_each or 0) if counts is None else counts
            times.low = np.maximum(times.low, asked[None, :] - window)
        self.possible = times.possible & (times.low <= times.high).all(axis=1)
        self.possible &= self.missing <= times.high.sum(axis=1)
        self.fixed = problem.budget_kg * (1 + BUDGET_ROUNDING) - times.room[:, 0] * times.unit
        """[end], kg of idle draw and window."""

    def bounds(self) -> NDArray[np.float64]:
        """Return a lower bound of the kg of each end time [end]; infinite where nothing is possible."""
        times, fine = self.times, self.possible
        if not fine.any():
            return np.full(len(fine), np.inf)
        cells = np.where(times.usable[0], times.costs[0, 0], np.inf)
        least = times.low[fine].min(axis=0)
        each = sum(_cheapest_so_far(row, int(n)) for row, n in zip(cells, least, strict=True))
        together = int(self.missing[fine].min())
        before = np.maximum(times.before, 0)
        bound = np.asarray(each)[before]
        if together:
            bound = np.maximum(bound, _cheapest_so_far(cells, together)[before])
        total = self.fixed + bound * times.unit
        return np.where(fine, total * (1 - _SAME), np.inf)

    def free(self, i: int) -> NDArray[np.bool_]:
        """Return the cheapest slots before the window [client, slot] where no client is tied to another."""
        times = self.times
        before = int(times.before[i])
        cost = np.where(times.usable[0, :, :before], times.costs[0, 0, :, :before], np.inf)
        if times.recalled[i].any():  # the cheapest late slot comes first in a recalled client's order
            late = int(times.late[i])
            rows = np.flatnonzero(times.recalled[i])
            at = late + cost[rows, late:].argmin(axis=1)
            cost[rows, at] = -1.0
        order = np.argsort(cost, axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(before)[None, :], axis=1)
        chosen: NDArray[np.bool_] = np.asarray(rank < times.low[i][:, None])
        more = int(self.missing[i] - chosen.sum())
        if more > 0:
            open_ = ~chosen & (rank < times.high[i][:, None]) & np.isfinite(cost)
            where = np.flatnonzero(open_)
            cheap = where[np.argsort(cost.ravel()[where], kind="stable")[:more]]
            chosen.ravel()[cheap] = True
        return chosen

    def tied(self, i: int, seconds: float, gap: float) -> tuple[NDArray[np.bool_] | None, float]:
        """Return the cheapest schedule before the window by HiGHS, None if there is none, and a lower bound, kg."""
        from slackwater.planning.core import Core, Kept
        from slackwater.planning.highs import INFINITE

        tied = self.times.at(i)
        if np.any(tied.open.sum(axis=1) < tied.low):
            return None, math.inf
        core = Core(tied, Kept(tied, None, -math.inf), aim="kg")
        if self.missing[i]:
            core.model.row([core.x], [1.0], float(self.missing[i]), INFINITE)
        for budget in range(1, len(tied.room)):
            waiting = np.concatenate([np.zeros(0, dtype=np.int32), *core.waiting])
            costs = [core.cost[budget], tied.fixed[budget][core.y_slot], core.waiting_cost[budget]]
            core.model.row([core.x, core.y, waiting], costs, -INFINITE, float(tied.room[budget]))
        outcome = core.model.solve(seconds=seconds, gap=gap * self.fixed_and(0.0, i) / self.times.unit / 2)
        if outcome.infeasible:
            return None, math.inf
        bound = self.fixed_and(max(-outcome.bound, 0.0) * self.times.unit, i) if math.isfinite(outcome.bound) else 0.0
        if outcome.columns is None:
            return None, bound
        chosen = np.zeros_like(tied.open)
        on = outcome.columns[core.x] > 0.5
        chosen[core.client[on], core.slot[on]] = True
        return chosen, bound

    def fixed_and(self, kg: float, i: int) -> float:
        """Return kg with the fixed part of an end time; for a gap, at least the dearest client-slot counts."""
        return float(max(self.fixed[i], 0.0) + kg) if kg else float(max(self.fixed[i], self.times.unit))

    def plan(self, i: int, chosen: NDArray[np.bool_], solver: str, began: float) -> Plan:
        """Return the schedule with its window as a plan, counted anew."""
        problem, end = self.problem, int(self.times.ends[i])
        stop, before = problem.rounds + end, int(self.times.before[i])
        matrix = np.zeros((len(problem.fleet), problem.horizon), dtype=bool)
        matrix[:, :before] = chosen
        matrix[:, before:stop] = problem.costs.can_train()[:, before:stop]
        return unproved_plan(problem, np.packbits(matrix, axis=1), end=end, solver=solver, began=began)


def _cheapest_so_far(costs: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the sum of the `count` cheapest cells [slot] or [client, slot] before each slot; infinite with fewer."""
    slots = costs.shape[-1]
    found = np.full(slots + 1, np.inf if count else 0.0)
    if not count:
        return found
    heap: list[float] = []
    total = 0.0
    for t, new in enumerate(costs.T.reshape(slots, -1).tolist()):
        for cost in new:
            if cost == math.inf:
                continue
            if len(heap) < count:
                heapq.heappush(heap, -cost)
                total += cost
            elif cost < -heap[0]:
                total += cost + heapq.heapreplace(heap, -cost)
        if len(heap) == count:
            found[t + 1] = max(total, 0.0)
    return found


def plan_work(
    problem: Problem,
    *,
    end: int | None = None,
    gap: float = 1e-3,
    time_limit_s: float = 60.0,
    counts: NDArray[np.intp] | None = None,
) -> Plan:
    """Return the schedule with the least kg that holds the rounds asked for, with a proof.

    The plan's problem has the answer as its budget (or the budget given, as a limit), and the number of slots of each
    client as its limits: a run that re-plans then trains what was asked for and nothing else.

    Args:
        problem: A problem with `rounds_each` or `rounds_total`; its `budget_kg` is a limit.
        end: The end time s. Default: the best of all.
        gap: Relative gap in kg at which a search over tied clients may end.
        time_limit_s: Time limit where clients are tied together, seconds.
        counts: [client], slots of each client, window included, instead of the problem's.

    Raises:
        InfeasibleError: No schedule holds that many rounds, or the limit does not pay for them.
    """
    began = time.perf_counter()
    costs = problem.costs
    everything = float(costs.dense().sum() + costs.idle_kg().sum())
    everything += 0.0 if costs.server_kg is None else float(costs.server_kg.sum())
    waiting = (costs.startup_kwh + costs.up_kwh)[:, None] * costs.intensity[costs.row]
    everything += float(waiting.sum())
    work = _Work(problem.with_settings(budget_kg=2 * everything + 1.0, price_weight=0.0), counts, end)
    tied = work.problem.coupled and not _only_levels(work.problem)
    bounds = work.bounds()
    best: tuple[float, Plan] | None = None
    lower, unsolved = math.inf, False
    for i in np.argsort(bounds, kind="stable").tolist():
        if not math.isfinite(bounds[i]):
            break
        allowed = gap if tied else 0.0
        if best is not None and bounds[i] >= best[0] * (1 - allowed):
            lower = min(lower, float(bounds[i]))
            break
        if not tied:
            chosen, bound = work.free(i), math.inf
        else:
            left = began + time_limit_s - time.perf_counter()
            if left <= 0:
                lower, unsolved = min(lower, float(bounds[i])), True
                break
            found, bound = work.tied(i, left, gap)
            lower = min(lower, max(bound, float(bounds[i])))
            if found is None:
                unsolved |= math.isfinite(bound)
                continue
            chosen = found
        made = work.plan(i, chosen, "exact", began)
        if not too_dear(problem, made.money) and (best is None or made.emissions_kg < best[0] * (1 - _SAME)):
            best = made.emissions_kg, made
    if best is None:
        if unsolved:
            raise SlackwaterError(
                f"No schedule with these rounds was found within {time_limit_s:g} s. Raise time_limit_s (--time-limit), "
                "or add slack."
            )
        raise _too_much(problem, work)
    kg, made = best
    lower = min(lower, kg) if tied else kg
    if kg - lower <= OPTIMAL_GAP * kg:
        lower = kg
    if kg > problem.budget_kg * (1 + BUDGET_ROUNDING):
        raise InfeasibleError(
            f"budget_kg = {problem.budget_kg:g} is too low for {asked(problem)}, which emit at least {round_up(kg)} kg "
            f"(s = {made.end}). Raise budget_kg to that or leave it out, ask for fewer rounds, or add slack.",
            least_budget_kg=kg,
            end=made.end,
        )
    before = made.matrix[:, : made.before].sum(axis=1)
    held = problem.with_settings(
        budget_kg=problem.budget_kg if math.isfinite(problem.budget_kg) else kg * (1 + BUDGET_ROUNDING),
        clients=replace(problem.fleet, min_slots=before.astype(np.int32), max_slots=before.astype(np.int32)),
    )
    gap_kg = (kg - lower) / kg if kg > 0 else 0.0
    return replace(
        made,
        problem=held,
        upper_bound=made.objective,
        gap=gap_kg,
        seconds=time.perf_counter() - began,
        lower_bound_kg=lower,
    )


def within_budget(problem: Problem) -> Problem:
    """Return the problem with the goal "budget", and the kg that its own goal needs as the budget."""
    if problem.goal == "budget":
        return problem
    return problem.for_budget(budget_kg=make_plan(problem).emissions_kg * (1 + BUDGET_ROUNDING))


def with_room(plan: Plan, given: Problem, factor: float) -> Plan:
    """Return a plan for a live run: where the goal "work" found the budget, with `factor` times it.

    Forecasts fall short. Held to what they say, a run would leave out rounds that were asked for.
    """
    if given.goal != "work" or math.isfinite(given.budget_kg):
        return plan
    return replace(plan, problem=plan.problem.with_settings(budget_kg=factor * plan.emissions_kg))


def _only_levels(problem: Problem) -> bool:
    """Return whether power levels are all that ties clients: rounds that were asked for are held at full power."""
    costs = problem.costs
    limited = problem.max_parallel is not None and problem.max_parallel < len(problem.fleet)
    return not (
        limited
        or (problem.min_parallel or 1) > 1
        or costs.server_kg is not None
        or costs.sleeps.any()
        or problem.budget_money is not None
    )


def asked(problem: Problem) -> str:
    """Return the work that was asked for, in words."""
    if problem.rounds_total is not None:
        return f"{problem.rounds_total:,} client-rounds in total"
    rounds = problem.rounds_each or 0
    return f"{rounds:,} round{'s' * (rounds != 1)} for each client"


def _too_much(problem: Problem, work: _Work) -> InfeasibleError:
    """Return the error that the work cannot be held, with what can."""
    times = work.times
    first, stop = np.maximum(times.before, 0), problem.rounds + times.ends
    free = np.concatenate([np.zeros((len(problem.fleet), 1)), np.cumsum(times.there, axis=1)], axis=1)
    most = (times.high + (free[:, stop] - free[:, first]).T)[times.possible].astype(int)
    if not len(most):
        can = "No end time has a window that its clients can hold"
    elif problem.rounds_total is not None:
        can = f"At most {int(most.sum(axis=1).max()):,} client-rounds are possible"
    else:
        row = int(most.min(axis=1).argmax())
        who = int(most[row].argmin())
        can = f"{problem.fleet.names[who]!s} can train in at most {most[row, who]:,} slots"
    return InfeasibleError(
        f"No schedule holds {asked(problem)}, whatever the budget. {can} (availability, max_slots), and the other limits "
        "must hold too (max_parallel, min_parallel, recall, budget_money). Ask for fewer rounds, or add slack."
    )


def plan_enough(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan:
    """Return the plan at the least budget from which on 10 % more lowers the predicted error by less than `enough_share`.

    The share is one of the first model's error, as the predicted error is.

    The plan's problem has that budget, so that a run does not spend more; `budget_limit_kg` of the plan is the limit given.

    Args:
        problem: Its `budget_kg` is the limit, its `enough_share` the share.
        planned: Plans a problem with the goal "budget".

    Raises:
        InfeasibleError: Not even the limit suffices for the window and the least slots.
    """
    began = time.perf_counter()
    limit = problem.budget_kg
    errors: dict[int, tuple[float, Plan]] = {}
    try:
        planned(problem.for_budget(budget_kg=limit * _STEP**-_MOST_STEPS))
        least = limit * _STEP**-_MOST_STEPS
    except InfeasibleError as error:
        if error.least_budget_kg is None or error.least_budget_kg > limit:
            planned(problem.for_budget())  # raises the error for the limit itself
            raise
        least = error.least_budget_kg * (1 + 1e-9)
    # The grid starts at the least budget, not at the limit: another limit then finds the same plan.
    steps = max(0, math.floor(math.log(limit / least) / math.log(_STEP) + 1e-9)) if limit > least else 0

    def at(step: int) -> tuple[float, Plan]:
        if step not in errors:
            made = planned(problem.for_budget(budget_kg=min(least * _STEP**step, limit)))
            errors[step] = quality(made).error, made
        return errors[step]

    (best_error, kept), last = at(0), 0
    for step in range(1, steps + 1):
        left, made = at(step)
        if left < best_error - problem.enough_share * (step - last):
            best_error, kept, last = left, made, step
        elif step - last >= _PATIENCE:
            break
    bought = problem.with_settings(
        free=problem.free,
        budget_kg=max(kept.emissions_kg, np.finfo(float).tiny) * (1 + BUDGET_ROUNDING),
        **{name: getattr(kept.problem, name) for name in ("fine_tune", "recall", "alpha")},
    )
    return replace(kept, problem=bought, seconds=time.perf_counter() - began, budget_limit_kg=limit)


def about_goal(plan: Plan) -> str | None:
    """Return a sentence on the rounds held and the rounds asked for; None if there is nothing to say."""
    problem, slots, held = plan.problem, plan.slots_per_client, plan.rounds_held
    if problem.goal == "work":
        if problem.rounds_total is not None:
            above = int(slots.sum()) > problem.rounds_total
        else:
            above = bool((slots > (problem.rounds_each or 0)).any())
        more = " The window or a limit (min_slots, recall, min_parallel) asks for more." if above else ""
        return f"asked for {asked(problem)}, held at the least carbon.{more}"
    if problem.goal == "enough":
        most, kg, more = (
            plan.budget_limit_kg,
            f"for {plan.emissions_kg:.4g} kg",
            f"{100 * (_STEP - 1):.0f} % more budget",
        )
        error, share = f"{100 * quality(plan).error:.2g} %", f"{100 * problem.enough_share:.2g} points"
        length = f" rounds = {problem.rounds:,} is the length without slack." if held != problem.rounds else ""
        if most is not None and plan.emissions_kg * _STEP**_PATIENCE > most:
            return (
                f"{held:,} are held, {kg}. The predicted remaining error is {error}. The limit of {most:.4g} kg ends the "
                f"search; a larger one may lower the error further.{length}"
            )
        limit = "" if most is None else f" of the {most:.4g} kg allowed"
        return (
            f"{held:,} are enough, {kg}{limit}. The predicted remaining error is {error}; {more} would lower it by less "
            f"than {share}.{length}"
        )
    if held > problem.rounds:
        return (
            f"{held:,} are held, more than the {problem.rounds:,} of the scenario, because the budget pays for them. For "
            'less carbon set goal = "enough", or goal = "work" with rounds_each.'
        )
    if held < problem.rounds:
        return f"{held:,} are held of the {problem.rounds:,} of the scenario: the budget and the limits allow no more."
    return None
