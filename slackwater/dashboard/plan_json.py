"""Plans as JSON for the page: plain types, a compact schedule, and savings against no slack."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.charts.schedule_chart import has_times
from slackwater.errors import InfeasibleError
from slackwater.planning.advice import same_work_kg
from slackwater.planning.auto import expected, quality
from slackwater.planning.emissions import emissions
from slackwater.planning.plan import Plan
from slackwater.planning.planner import Solver, optimise, plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan
from slackwater.planning.states import reachable
from slackwater.units import G_PER_KG, iso, time_zone

FRONT_POINTS, FRONT_POINTS_OF_MANY = 15, 8
_MANY = 300
"""With more clients than this, a point takes over a second."""
_FRONT_REACH = 6.0
"""The front spans a sixth to six times the current budget, within the feasible range."""
_NEXT_TO_NOTHING = 1e-9
_BEST_S = 20.0
"""Time limit for problems with tied clients; the gap is shown."""
_QUICK_GAP, _QUICK_S = 0.01, 1.0
"""The same while a slider moves: the best plan over all end times follows."""
_MANY_CELLS = 100_000
"""With more client-slots than this, proving the optimum takes longer than a slider may wait. The greedy's gap is below 1e-5."""


def quick_answer(problem: Problem, end: int) -> dict[str, Any]:
    """Return the schedule for one end time under the settings on show, without metrics: fast enough for a slider."""
    return plan_answer(_quick(problem, end), all_ends=False)


def joint_answer(problem: Problem, end: int | None) -> dict[str, Any]:
    """Return the schedule with the largest objective over all end times, under the settings on show, without metrics."""
    return plan_answer(_quick(problem, end), all_ends=end is None)


def best_answer(problem: Problem, end: int | None) -> dict[str, Any]:
    """Return the plan of `slackwater plan`, over all end times or for the one given, with metrics and the baseline."""
    return settled_answer(plan(problem, end=end, time_limit_s=_BEST_S), all_ends=end is None)


def settled_answer(best: Plan, *, all_ends: bool) -> dict[str, Any]:
    """Return a plan with metrics and the baseline without slack."""
    return plan_answer(best, all_ends=all_ends) | {
        "metrics": metrics_answer(best),
        "no_slack": no_slack_answer(best.problem),
        "recommended": None if best.recommended is None else best.recommended.settings,
    }


def _quick(problem: Problem, end: int | None) -> Plan:
    cells = len(problem.fleet) * problem.horizon
    solver: Solver = "greedy" if cells > _MANY_CELLS and not problem.coupled else "exact"
    return optimise(problem, end=end, solver=solver, gap=_QUICK_GAP, time_limit_s=_QUICK_S)


def front_answer(problem: Problem, end: int | None) -> dict[str, Any]:
    """Return objective by budget at one end time, from the smallest feasible budget."""
    assert end is not None
    everything = np.packbits(reachable(problem), axis=1)
    most = emissions(problem, everything, end).total_kg
    least = problem.budget_kg / _FRONT_REACH
    try:
        optimise(problem.with_settings(budget_kg=least, free=problem.free), end=end, solver="greedy")
    except InfeasibleError as error:
        least = (error.least_budget_kg or problem.budget_kg) * (1 + _NEXT_TO_NOTHING)
    highest = max(min(_FRONT_REACH * problem.budget_kg, most), least)
    points, count = [], FRONT_POINTS if len(problem.fleet) <= _MANY else FRONT_POINTS_OF_MANY
    for budget in np.unique(np.geomspace(least, highest, count)):
        try:
            found = _quick(problem.with_settings(budget_kg=float(budget), free=problem.free), end)
        except InfeasibleError:
            continue
        points.append({"budget_kg": float(budget), "objective": found.objective, "emissions_kg": found.emissions_kg})
    return {"end": end, "points": points, "proved": not problem.coupled}


def plan_answer(found: Plan, *, all_ends: bool) -> dict[str, Any]:
    """Return a plan for the page."""
    problem, spent, saved = found.problem, found.emissions, savings_answer(found)
    return {
        "status": found.status,
        "message": found.message,
        "end": found.end,
        "all_ends": all_ends,
        "ends_at": iso(found.ends_at),
        "window": [found.window.start, found.window.stop],
        "objective": found.objective,
        "upper_bound": found.upper_bound,
        "gap": found.gap,
        "level": found.level,
        "solver": found.solver,
        "seconds": found.seconds,
        "budget_kg": problem.budget_kg,
        "emissions_kg": found.emissions_kg,
        **{f"{cause}_kg": kg for cause, kg in spent.by_cause_kg.items()},
        **money_answer(found),
        "network_counted": problem.model_mb is not None,
        "client_kg": rounded(spent.client_kg),
        "client_slots": found.slots_per_client.tolist(),
        "slots": int(found.slots_per_client.sum()),
        "savings": saved,
        "tiles": tiles_answer(found, saved),
        **curves_answer(found),
        "schedule": bits(found.packed),
        "settings": settings_answer(problem),
    }


def tiles_answer(found: Plan, saved: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows first: what the plan saves, when it ends, what quality to expect and who takes part."""
    problem, slots, names = found.problem, found.slots_per_client, found.problem.fleet.names
    zone = time_zone(problem.time_zone)
    early = problem.horizon - problem.rounds - found.end
    before = np.unpackbits(found.packed, axis=1, count=found.before)
    return {
        "saved": {"kg": saved["saved_kg"], "share": saved["share"], "without_kg": saved["without_kg"]},
        "ends": {
            "at": iso(found.ends_at),
            "local": f"{found.ends_at.astimezone(zone):%a %d %b %Y, %H:%M}",
            "time_zone": problem.time_zone,
            "early_hours": early * problem.slot_hours,
        },
        "quality": expected_quality(found),
        "people": {
            "rounds": found.rounds_held,
            "clients": len(slots),
            "min_slots": int(slots.min()),
            "max_slots": int(slots.max()),
            "window_only": int(np.count_nonzero(~before.any(axis=1) & (slots > 0))),
            "rarest": str(names[int(np.argmin(slots))]),
            "most_frequent": str(names[int(np.argmax(slots))]),
        },
    }


def expected_quality(found: Plan) -> dict[str, Any]:
    """Return the predicted remaining error of a plan and of the same budget without slack, and what it meant for scores."""
    try:
        without = quality(no_slack_plan(found.problem), fedavg=True).error
    except InfeasibleError:
        without = None
    error = quality(found).error
    return {
        "remaining_error": error,
        "without_slack_error": without,
        "below_full": asdict(expected(error, len(found.problem.fleet))),
        "name": "ranking score",
    }


def curves_answer(found: Plan) -> dict[str, Any]:
    """Return kg and power by slot, mean intensity by client while it trains, and sums by zone."""
    costs, matrix = found.problem.costs, found.matrix
    if found.levels is None:
        kwh = matrix * costs.energy_kwh[:, None]
    else:
        at_level = np.take_along_axis(costs.level_kwh, found.levels.astype(np.intp), axis=1)
        kwh = np.where(matrix, at_level, 0.0)
    used = kwh.sum(axis=1)
    weighted = np.einsum("cs,cs->c", kwh, costs.intensity[costs.row][:, : kwh.shape[1]])
    mean = np.round(G_PER_KG * np.divide(weighted, used, out=np.full(len(used), np.nan), where=used > 0), 1)
    zones = costs.row
    return {
        "client_g_per_kwh": [None if math.isnan(one) else one for one in mean.tolist()],
        "kg_by_slot": rounded(found.kg_by_slot),
        "power_w_by_slot": rounded(1000.0 * kwh.sum(axis=0) / found.problem.slot_hours, 1),
        "by_zone": {
            "clients": np.bincount(zones).tolist(),
            "slots": np.bincount(zones, weights=found.slots_per_client).astype(int).tolist(),
            "kg": rounded(np.bincount(zones, weights=found.emissions.client_kg).astype(np.float64)),
        },
    }


def money_answer(found: Plan) -> dict[str, Any]:
    """Return the price of the electricity and its budget; nothing without prices."""
    price = found.problem.price
    if price is None:
        return {}
    return {"money": found.money, "currency": price.currency, "budget_money": found.problem.budget_money}


def settings_answer(problem: Problem) -> dict[str, Any]:
    """Return the settings of the sliders."""
    return {
        "budget_kg": problem.budget_kg,
        "slack": problem.horizon - problem.rounds,
        "alpha": problem.alpha,
        "fine_tune": problem.fine_tune,
        "recall": problem.recall,
        "planner": problem.planner,
        "free": sorted(problem.free) if problem.planner == "auto" else [],
        "g_max_kg": problem.g_max,
        "rounds": problem.rounds,
        "horizon": problem.horizon,
    }


def times_answer(problem: Problem) -> dict[str, Any]:
    """Return the time of the first slot, None without times, and the length of a slot."""
    return {
        "start": iso(problem.first_slot) if has_times(problem) else None,
        "slot_minutes": problem.traces.slot_minutes,
    }


def savings_answer(found: Plan) -> dict[str, Any]:
    """Return the savings against no waiting: each client's slots moved to the first in which it can train."""
    without = same_work_kg(found)
    saved = without - found.emissions_kg
    return {"without_kg": without, "saved_kg": saved, "share": saved / without if without > 0 else None}


def no_slack_answer(problem: Problem) -> dict[str, Any]:
    """Return the rounds that the budget pays if all clients train from the first slot on."""
    within = replace(problem, traces=problem.traces.window(problem.first_slot, problem.horizon), deadline=None)
    try:
        made = no_slack_plan(within)
    except InfeasibleError as error:
        return {"rounds": 0, "message": str(error)}
    return {
        "rounds": made.problem.rounds,
        "emissions_kg": made.emissions_kg,
        "kg_by_slot": rounded(made.kg_by_slot),
        "slots": int(made.slots_per_client.sum()),
        "message": f"Without slack the budget pays {made.problem.rounds} rounds of all clients, from the first slot on.",
    }


def metrics_answer(found: Plan) -> dict[str, Any]:
    """Return the metrics of the schedule; infinity is the text "inf", because JSON lacks it."""
    figures, names = found.metrics, found.problem.fleet.names
    return {
        "rho_h": "inf" if math.isinf(figures.rho_h) else figures.rho_h,
        "tv_distance": figures.tv_distance,
        "rho_t": figures.rho_t,
        "rho_s": figures.rho_s,
        "rho_ts": figures.rho_ts,
        "effective_updates": figures.effective_updates,
        "longest_absence": int(figures.longest_absence.max()),
        "lone_slots": figures.lone_slots,
        "never": [str(names[client]) for client in figures.never[:20]],
        "never_count": len(figures.never),
    }


def bits(packed: NDArray[np.uint8]) -> dict[str, Any]:
    """Return a bit matrix in 1/20 of its size as JSON lists."""
    return {
        "rows": len(packed),
        "row_bytes": int(packed.shape[1]),
        "encoding": "base64 of rows of bits, the first slot in the highest bit",
        "data": base64.b64encode(np.ascontiguousarray(packed).tobytes()).decode(),
    }


def rounded(values: NDArray[np.float64], digits: int = 6) -> list[float]:
    """Return rounded numbers for JSON."""
    listed: list[float] = np.round(values, digits).tolist()
    return listed
