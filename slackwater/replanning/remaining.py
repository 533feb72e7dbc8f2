"""The problem that is left: from the slot to decide to the end of the horizon, with what is left of the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import InfeasibleError
from slackwater.planning.fleet import NO_LIMIT, Fleet
from slackwater.planning.problem import Problem
from slackwater.planning.search import search


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rest:
    """A plan for what is left, as the best forecast sees it."""

    matrix: NDArray[np.bool_]
    """[client, slot] from the slot to decide on, before the window; False in and after it."""
    window_at: int
    """First slot of the window, counted from the slot to decide."""


def remaining_problem(
    problem: Problem,
    *,
    slot: int,
    budget_kg: float,
    window_slots: int,
    expected: Traces,
    earned_kg: NDArray[np.float64],
    done: NDArray[np.int64],
    trained_ago: NDArray[np.float64] | None = None,
    g_max_kg: float,
    limits: bool = True,
) -> Problem:
    """What is left from `slot` on: fairness counts what clients have earned, limits what they have `done`, [client].

    g_max is that of the whole horizon, as far as it is known: its settled actuals and the expectation of the rest. The
    run still ends no earlier than after its `rounds`. `limits=False` gives up the least slots and the recall.
    """
    left = problem.horizon - slot
    rounds = max(problem.rounds - slot, window_slots, 1)
    return problem.with_settings(
        clients=_limited(problem.fleet, done, limits),
        traces=expected,
        start=problem.slot_start(slot),
        rounds=rounds,
        slack=left - rounds,
        budget_kg=budget_kg,
        fine_tune=window_slots,
        recall=problem.recall if limits else 0,
        trained_ago=trained_ago,
        max_parallel=None,
        server=None,
        server_kg=None,
        available=None if problem.available is None else np.asarray(problem.available, dtype=bool)[:, slot:],
        earned_kg=earned_kg,
        g_max_kg=g_max_kg,
    )


def solve(rest: Problem, in_vain_kg: NDArray[np.float64] | None = None) -> Rest | None:
    """A schedule for what is left; None where none fits. Greedy, and over promising end times only.

    An end time is passed over where a later one has a window, with the idle draw until then, that costs no more: all that
    can be done before the earlier window can be done before the later one too. That loses next to nothing beside the
    error of a forecast, and makes re-planning fast. `in_vain_kg` [slot] is what a slot of the window is held at beyond
    what it emits; it counts as a cost of the window here.
    """
    try:
        found = search(rest, promising_ends(rest, in_vain_kg), greedy=True)
    except InfeasibleError:
        return None
    before = found.stage.before
    matrix = np.unpackbits(found.packed, axis=1, count=rest.horizon).astype(bool)
    matrix[:, before:] = False
    return Rest(matrix=matrix, window_at=before)


def promising_ends(problem: Problem, in_vain_kg: NDArray[np.float64] | None = None) -> list[int]:
    """End times s to which no later one is cheaper in what is fixed: window, with what is held in vain, and idle draw."""
    costs, width = problem.costs, problem.fine_tune
    there = costs.can_train()
    per_slot = (costs.dense() * there).sum(axis=0) + (0.0 if in_vain_kg is None else in_vain_kg)
    training, idle = (np.concatenate([[0.0], np.cumsum(kg)]) for kg in (per_slot, costs.idle_kg()))
    stop = np.arange(problem.rounds, problem.horizon + 1)
    fixed = training[stop] - training[stop - width] + idle[stop]
    if problem.window == "all":
        absent = np.concatenate([[0], np.cumsum(~there.all(axis=0))])
        fixed = np.where(absent[stop] > absent[stop - width], np.inf, fixed)
    cheapest_later = np.minimum.accumulate(fixed[::-1])[::-1]
    kept = np.flatnonzero(np.append(fixed[:-1] < cheapest_later[1:], True))
    return [int(end) for end in kept]


def _limited(fleet: Fleet, done: NDArray[np.int64], limits: bool) -> Fleet:
    least = np.maximum(fleet.min_slots - done, 0) if limits else np.zeros_like(fleet.min_slots)
    most = np.where(fleet.max_slots == NO_LIMIT, NO_LIMIT, np.maximum(fleet.max_slots - done, 0))
    return replace(fleet, min_slots=least.astype(np.int32), max_slots=most.astype(np.int32))
