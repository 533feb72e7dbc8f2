"""The expected intensity, and the problem that remains from the next slot to the end."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, InfeasibleError
from slackwater.intensity.forecast.base import Forecast, SameHourMean
from slackwater.intensity.traces import HIGHEST_KG_PER_KWH, Traces
from slackwater.planning.exact import search
from slackwater.planning.fleet import NO_LIMIT, Fleet
from slackwater.planning.problem import Problem
from slackwater.planning.tied_search import Effort, search_tied

if TYPE_CHECKING:  # the state of a run needs past plans, which are made here
    from slackwater.replanning.run_state import Past

_COVERAGE = 0.8
_GAP, _SECONDS = 1e-3, 5.0
"""Gap at which a search over tied clients ends, far below what a forecast is wrong by, and a limit of its time."""
_LEAST_STEPS, _MOST_STEPS, _CELLS = 2, 8, 10_000
"""Steps of such a search, each of which takes up one end time: fewer for many client-slots, which take longer. Steps and not
seconds usually end it, so that a run can be repeated."""


class NoForecastError(DataError):
    """There is no forecast; the run continues without one."""


def expected_intensity(known: Traces, forecast: Forecast | None, slots: int) -> tuple[Forecast, str | None]:
    """Return a forecast of the `slots` slots after the last known one, and a note on values filled from the last week.

    A forecast with another factor or slot length is ignored: its numbers mean something else.
    """
    usable = forecast is not None and (forecast.factor, forecast.slot_minutes) == (known.factor, known.slot_minutes)
    if forecast is None or not usable:
        said = "there is no forecast" if forecast is None else "the forecast has another factor or slot length"
        return _profile(known, slots), f"{said}; the last week's hours are used"
    offset = (known.end - forecast.start) // timedelta(minutes=known.slot_minutes)
    first, last = max(offset, 0), min(offset + slots, forecast.slots)
    covered = slice(first - offset, max(last - offset, first - offset))
    rows = [row for row, zone in enumerate(known.zones) if zone in forecast.zones]
    whole = len(rows) == len(known.zones) and covered == slice(0, slots)
    base = forecast if whole else _profile(known, slots)
    arrays = []
    for values, filled in ((forecast.mean, base.mean), (forecast.low, base.low), (forecast.high, base.high)):
        merged = np.array(filled[:, :slots]) if not whole else np.empty((len(known.zones), slots))
        taken = [forecast.zones.index(known.zones[row]) for row in rows]
        merged[rows, covered] = values[taken, first : first + covered.stop - covered.start]
        arrays.append(np.minimum(merged, HIGHEST_KG_PER_KWH))  # a forecast above any grid is wrong, but ends no run
    lacking = sorted(set(known.zones) - set(forecast.zones))
    missing = [f"zones {', '.join(lacking)}"] if lacking else []
    if covered != slice(0, slots):
        missing.append(f"{slots - (covered.stop - covered.start)} of {slots} slots")
    said_of = f"the forecast lacks {' and '.join(missing)}; the last week's hours are used there" if missing else None
    return Forecast(
        zones=known.zones,
        start=known.end,
        mean=arrays[0],
        low=arrays[1],
        high=arrays[2],
        coverage=forecast.coverage,
        factor=known.factor,
        source=forecast.source,
        slot_minutes=known.slot_minutes,
    ), said_of


def _profile(known: Traces, slots: int) -> Forecast:
    return SameHourMean(coverage=_COVERAGE).forecast(known, slots)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemainingPlan:
    """A plan for the rest of a run, on the best forecast."""

    matrix: NDArray[np.bool_]
    """[client, slot], counted from the slot to decide; False in and after the window."""
    window_at: int
    """First slot of the window, counted from the slot to decide."""
    levels: NDArray[np.uint8] | None = None
    """[client, slot], level at which a client trains; None: always full power."""


def remaining_problem(
    problem: Problem,
    past: Past,
    *,
    slot: int,
    budget_kg: float,
    window_slots: int,
    expected: Traces,
    g_max_kg: float,
    limits: bool = True,
) -> Problem:
    """Return the problem from `slot` on: fairness counts the utility of the past, limits count its slots.

    g_max is that of the whole horizon as far as known: settled actuals and the expectation of the rest. The run still
    ends after its `rounds` at the earliest. `limits=False` drops the least slots and the recall. What ties clients
    together stays; the server pays the expected intensity of its zone.
    """
    left = problem.horizon - slot
    rounds = max(problem.rounds - slot, window_slots, 1)
    free = None if problem.available is None else np.asarray(problem.available, dtype=bool)[:, slot:]
    up_before = None
    if problem.costs.sleeps.any():
        # A start in progress is planned as being up, without training until it is over.
        up_before = np.where(past.start_left >= 0, 1, past.up_slots)
        if (past.start_left > 0).any():
            free = np.ones((len(problem.fleet), left), dtype=bool) if free is None else free.copy()
            free &= np.arange(free.shape[1])[None, :] >= past.start_left[:, None]
    return problem.with_settings(
        clients=_limited(problem.fleet, past.slots, limits),
        traces=expected,
        start=problem.slot_start(slot),
        rounds=rounds,
        slack=left - rounds,
        budget_kg=budget_kg,
        fine_tune=window_slots,
        recall=problem.recall if limits else 0,
        trained_ago=past.trained_ago if problem.recall else None,
        server_kg=None if problem.server_kg is None else np.asarray(problem.server_kg)[slot:],
        budget_money=None if problem.budget_money is None else problem.budget_money - past.spent_money,
        available=free,
        earned_kg=past.earned_kg(g_max_kg),
        up_before=up_before,
        g_max_kg=g_max_kg,
    )


def solve(
    rest: Problem, in_vain_kg: NDArray[np.float64] | None = None, *, quick: bool = False, end: int | None = None
) -> RemainingPlan | None:
    """Return a schedule for the rest, over promising end times only; None if none fits.

    `end` is tried first, and kept if a schedule fits.

    Clients that are not tied get a greedy schedule, tied ones a search to a small gap; with `quick` it ends with the first
    schedule that it finds.
    An end time is skipped if a later window, with the idle draw until then, costs at most as much: all that fits before
    the earlier window fits before the later one too. That loses next to nothing compared with the error of a forecast,
    and makes re-planning fast. `in_vain_kg` [slot] is the unused margin of a window slot: its bound less its emissions.
    It counts as a cost of the window here.
    """
    kept = [[end]] if end is not None and 0 <= end <= rest.horizon - rest.rounds else []
    for ends in (*kept, promising_ends(rest, in_vain_kg)):
        with contextlib.suppress(InfeasibleError):
            found = (
                search_tied(rest, ends, _effort(rest, quick=quick)) if rest.coupled else search(rest, ends, greedy=True)
            )
            break
    else:
        return None
    before = found.stage.before
    matrix = np.unpackbits(found.packed, axis=1, count=rest.horizon).astype(bool)
    matrix[:, before:] = False
    return RemainingPlan(matrix=matrix, window_at=before, levels=found.levels)


def _effort(rest: Problem, *, quick: bool) -> Effort:
    """Return how long to search; what sleeps takes longer."""
    gaps: list[float] = []
    most = _MOST_STEPS if not rest.costs.sleeps.any() else _LEAST_STEPS
    steps = min(max(_CELLS // (rest.costs.clients * rest.costs.slots), _LEAST_STEPS), most)
    return Effort(
        gap=_GAP,
        deadline=time.perf_counter() + _SECONDS,
        report=lambda _, gap: gaps.append(gap),
        stop=lambda: len(gaps) >= steps,
        first_look=quick,
    )


def promising_ends(problem: Problem, in_vain_kg: NDArray[np.float64] | None = None) -> list[int]:
    """Return end times s whose fixed cost (window, its unused margin, idle draw) is below that of all later ones."""
    costs, width = problem.costs, problem.fine_tune
    there = costs.can_train()
    per_slot = (costs.dense() * there).sum(axis=0) + (0.0 if in_vain_kg is None else in_vain_kg)
    if costs.server_kg is not None:
        per_slot = per_slot + np.where(there.any(axis=0), costs.server_kg, 0.0)
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
