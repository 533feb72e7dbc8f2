"""From a problem to a plan: one verb, three solvers."""

from __future__ import annotations

import math
import time
from typing import Literal, get_args

import numpy as np

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.search import Found, search
from slackwater.planning.stage import BUDGET_ROUNDING

Solver = Literal["exact", "greedy", "milp"]
_ROUNDING = 1e-14
"""Relative rounding of the sum of f over clients."""


def plan(
    problem: Problem,
    *,
    end: int | None = None,
    solver: Solver = "exact",
    time_limit_s: float = 60.0,
    auto: bool = False,
) -> Plan:
    """Return the best schedule of a problem, with a proof of how good it is.

    Args:
        problem: Clients, intensity, budget and settings.
        end: The end time s to plan for. Default: the best of all.
        solver: "exact" proves the optimum (with `max_parallel` or a server by the MILP). "greedy" takes the largest gain
            per kg first and bounds its distance to the optimum. "milp" solves the same problem with HiGHS.
        time_limit_s: Time limit of the MILP, seconds.
        auto: Choose s, `fine_tune`, `recall`, `alpha` and the aggregator by how well the schedule would train; see
            `Plan.recommended`.

    Raises:
        InfeasibleError: No schedule fits; the error has the least budget that would do.
    """
    if solver not in get_args(Solver):
        raise ScenarioError(f"solver must be one of {', '.join(get_args(Solver))}, not {solver!r}.")
    slack = problem.horizon - problem.rounds
    if end is not None and (isinstance(end, bool) or not isinstance(end, (int, np.integer)) or not 0 <= end <= slack):
        raise ScenarioError(f"The end time s must be a whole number from 0 to the slack of {slack}, not {end!r}.")
    if isinstance(time_limit_s, bool) or not isinstance(time_limit_s, (int, float)) or not time_limit_s >= 0:
        raise ScenarioError(f"time_limit_s must be a number of seconds, not {time_limit_s!r}.")
    if auto:
        from slackwater.planning.auto import auto_plan

        return auto_plan(problem, end=end, solver=solver, time_limit_s=time_limit_s)
    began = time.perf_counter()
    ends = range(slack + 1) if end is None else [int(end)]
    if solver == "milp" or (problem.coupled and solver == "exact"):
        from slackwater.planning.milp import solve_milp  # HiGHS is loaded only when it is needed

        found, used = solve_milp(problem, ends, time_limit_s=time_limit_s), "milp"
    elif problem.coupled:
        from slackwater.planning.coupled import solve_coupled_greedy

        found, used = solve_coupled_greedy(problem, ends), "greedy"
    else:
        found, used = search(problem, ends, greedy=solver == "greedy"), solver
    return _certified(problem, found, used, began)


def _certified(problem: Problem, found: Found, solver: str, began: float) -> Plan:
    """The plan, with objective and emissions counted anew from the matrix."""
    utility, stage = found.stage.groups.utility, found.stage
    draft = Plan(
        problem=problem,
        end=stage.end,
        packed=found.packed,
        objective=math.nan,
        upper_bound=math.nan,
        gap=math.nan,
        seconds=0.0,
        solver=solver,
        level=found.level,
    )
    if draft.emissions_kg > problem.budget_kg * (1 + 2 * BUDGET_ROUNDING):
        raise SlackwaterError(
            f"The {solver} solver returned a schedule of {draft.emissions_kg!r} kg, over the budget of {problem.budget_kg!r} kg. "
            "It is not used. This is a defect: please report it with the scenario."
        )
    u = draft.emissions.utility
    total = math.fsum(utility.of(u))
    bound = max(found.upper_bound, total)
    window_alone = stage.value(np.zeros_like(stage.low))
    positive = int(np.count_nonzero(u > 0))
    worth, above = bound - window_alone, bound - total
    if above <= _ROUNDING * abs(bound):  # where there is nothing to win, the rounding of the sums is no gap
        above = 0.0
    plan = Plan(
        problem=problem,
        end=stage.end,
        packed=found.packed,
        objective=utility.reported(total, positive),
        upper_bound=utility.reported(bound, positive),
        gap=above / worth if worth > 0 else 0.0,
        seconds=time.perf_counter() - began,
        solver=solver,
        level=found.level,
    )
    plan.__dict__["emissions"] = draft.emissions
    return plan
