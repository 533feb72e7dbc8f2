"""The joint optimum over schedules and end times: bound every end time, then solve those that could be best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import InfeasibleError
from slackwater.planning import selection
from slackwater.planning.problem import Problem
from slackwater.planning.stage import Groups, Stage, alike
from slackwater.planning.utility import utilities
from slackwater.units import iso

_TIE = 1e-12
"""Objectives this close, relative, are equal: more slots, then less carbon, then the earlier end decide."""
_CHUNK = 50_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The best schedule that a solver found, and its bound."""

    stage: Stage
    packed: NDArray[np.uint8]
    """[client, ceil(horizon / 8)], the schedule as bits."""
    upper_bound: float
    """Bound on the sum of f over all schedules and end times asked for."""
    level: float | None = None
    """Least utility of any client, where that comes first (max-min)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    """The best counts for one end time."""

    stage: Stage
    counts: NDArray[np.intp]
    """[client], slots before the window."""
    total: float
    """Sum of f over clients."""


def feasible_stages(problem: Problem, ends: Sequence[int]) -> list[Stage]:
    """A stage for each end time whose fixed part fits; if there is none, an error that says what would do."""
    groups = Groups(problem)
    stages: list[Stage] = []
    refused: list[str] = []
    cheapest: Stage | None = None
    for end in ends:
        stage = Stage.at(groups, end)
        if isinstance(stage, str):
            refused.append(stage)
        elif stage.room_kg >= 0:
            stages.append(stage)
            stage.forget()
        elif cheapest is None or stage.fixed_kg < cheapest.fixed_kg:
            cheapest = stage
    if not stages:
        raise _infeasible(problem, cheapest, refused)
    return stages


def search(
    problem: Problem,
    ends: Sequence[int],
    *,
    greedy: bool = False,
    select: Callable[[Stage], selection.Selection] | None = None,
) -> Found:
    """Best schedule over the end times. `select` takes the place of the exact solver for one of them (the MILP does that)."""
    stages = feasible_stages(problem, ends)
    level: float | None = None
    if problem.utility.kind == "max-min":
        stages, level = _at_best_level(stages)
    stages = [stage.with_everyone() for stage in stages]
    bounds = [_bound(stage) for stage in stages] if len(stages) > 1 else [math.inf]
    best: _Candidate | None = None
    proved = -math.inf
    for i in np.argsort(-np.array(bounds), kind="stable"):
        stage = stages[i]
        if best is not None and bounds[i] < best.total - _TIE * abs(best.total):
            break
        choice = select(stage) if select is not None else selection.select(stage, greedy=greedy)
        proved = max(proved, min(choice.upper_bound, bounds[i]))
        found = _Candidate(stage=stage, counts=choice.counts, total=_total(stage, choice.counts))
        if best is None or _better(found, best):
            best = found
    assert best is not None
    return Found(
        stage=best.stage, packed=pack_counts(best.stage, best.counts), upper_bound=max(proved, best.total), level=level
    )


def _bound(stage: Stage) -> float:
    value = selection.bound(stage)
    stage.forget()
    return value


def _at_best_level(stages: list[Stage]) -> tuple[list[Stage], float]:
    """The end times with the highest level that the budget allows, everybody raised to it; and the level."""
    level, best = -math.inf, list[Stage]()
    for stage in stages:
        noise = stage.groups.noise
        if level >= 0 and stage.at_level(level) is None:
            stage.forget()
            continue  # one look is enough for most end times
        raised = stage.at_best_level()
        stage.forget()
        if raised.least_utility > level + noise:
            level, best = raised.least_utility, []
        best.append(raised)
    return best, level


def pack_counts(stage: Stage, counts: NDArray[np.intp]) -> NDArray[np.uint8]:
    """The schedule as bits: each client's `counts` cheapest slots before the window, and the window."""
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
    """Rows [row, slot before the window] for clients of these kinds, with the window added, as bits."""
    groups = stage.groups
    rows = np.zeros((len(before), groups.costs.slots), dtype=bool)
    rows[:, : stage.before] = before
    stop = stage.before + groups.problem.fine_tune
    rows[:, stage.before : stop] = groups.available[kinds, stage.before : stop]
    return np.packbits(rows, axis=1)


def _total(stage: Stage, counts: NDArray[np.intp]) -> float:
    """Sum of f for counts [client]."""
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


def _infeasible(problem: Problem, cheapest: Stage | None, refused: list[str]) -> InfeasibleError:
    if cheapest is None:
        last = refused[-1]  # the latest end leaves most room
        more = f", and so for all {len(refused)} end times" if len(refused) > 1 else ""
        way_out = "or set window = 'available'" if "in the window" in last else "or ask for fewer slots"
        return InfeasibleError(
            f"No end time works, whatever the budget: {last}{more}. Give the client other hours, add slack, {way_out}."
        )
    need = cheapest.fixed_kg
    parts = [
        ("the fine-tuning window", cheapest.window_kg),
        ("idle power", cheapest.idle_kg),
        ("the least slots of clients (min_slots, required, recall)", need - cheapest.window_kg - cheapest.idle_kg),
    ]
    named = [f"{what} {kg:.6f} kg" for what, kg in parts if kg > 0]
    stop = problem.slot_start(problem.rounds + cheapest.end)
    return InfeasibleError(
        f"No schedule fits {problem.budget_kg:g} kg: at its cheapest (s={cheapest.end}, ending {iso(stop)}) what is fixed costs "
        f"{need:.6f} kg ({', '.join(named)}). Raise budget_kg to at least {_round_up(need)}, shorten fine_tune or add slack.",
        least_budget_kg=need,
        end=cheapest.end,
    )


def _round_up(kg: float) -> str:
    """The least budget with six decimals that is enough."""
    return f"{math.ceil(kg * 1e6 * (1 - 1e-12)) / 1e6:.6f}"
