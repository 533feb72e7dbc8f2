"""Plan a problem with one of three solvers, and compare it under other settings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from slackwater.errors import DataError, InfeasibleError, ScenarioError, SlackwaterError
from slackwater.planning.ctrl_c import noticed
from slackwater.planning.exact import BUDGET_ROUNDING, Found, search
from slackwater.planning.plan import Plan
from slackwater.planning.problem import DEFAULTS, Alpha, Planner, Problem
from slackwater.units import iso

Solver = Literal["exact", "greedy", "milp"]
DEFAULT_GAP = 1e-3
"""Gap at which a search over tied clients ends by default. Clients that are not tied are always planned exactly."""
_ROUNDING = 1e-14
"""Relative rounding of the sum of f over clients."""
_SAME_MONEY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a long search has done so far."""

    seconds: float
    """Since its start."""
    gap: float | None = None
    """Gap proved so far, where clients are tied together."""
    schedules: int | None = None
    """Schedules compared so far by the planner "auto"."""


Progress = Callable[[Done], None]


def plan(
    problem: Problem,
    *,
    end: int | None = None,
    solver: Solver = "exact",
    gap: float = DEFAULT_GAP,
    time_limit_s: float = 60.0,
    planner: Planner | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return a schedule for a problem, with a proof of how good it is.

    The planner "auto" chooses the end time, and every setting that the problem leaves free, by how well the schedule
    should train. The planner "paper" maximises the paper's objective; see `optimise`.

    Ctrl-C returns the best plan so far, if there is one.

    Args:
        problem: Clients, intensity, budget and settings.
        end: The end time s to plan for. Default: the best of all.
        solver: "exact" proves the optimum; where clients are tied together (`max_parallel`, `min_parallel`, a server, starts,
            power levels, prices) it is proved to within `gap`. "greedy" takes one good schedule and bounds its distance to
            the optimum. "milp" leaves the choice to HiGHS.
        gap: Relative gap at which a search over tied clients may end; 0 searches for a proof of the optimum.
        time_limit_s: Time limit of a search over tied clients, seconds; the best plan so far is returned with its gap.
        planner: "auto" or "paper". Default: the problem's. `Plan.recommended` says what "auto" chose, and why.
        progress: Called with what is done so far, in a long search.

    Raises:
        InfeasibleError: No schedule fits; the error has the least sufficient budget, kg.
    """
    if planner not in (None, *get_args(Planner)):
        raise ScenarioError(f"planner must be 'auto' or 'paper', not {planner!r}.")
    _check(problem, end, solver, gap, time_limit_s)
    if problem.goal == "work":
        from slackwater.planning.goals import plan_work

        return plan_work(problem, end=end, gap=gap, time_limit_s=time_limit_s)
    if problem.goal == "enough":
        from slackwater.planning.goals import plan_enough

        return plan_enough(
            problem,
            lambda one: plan(
                one, end=end, solver=solver, gap=gap, time_limit_s=time_limit_s, planner=planner, progress=progress
            ),
        )
    if (planner or problem.planner) == "paper":
        return optimise(_paper(problem), end=end, solver=solver, gap=gap, time_limit_s=time_limit_s, progress=progress)
    from slackwater.planning.auto import auto_plan

    auto = problem.with_settings(planner="auto", free=problem.free) if problem.planner != "auto" else problem
    return auto_plan(auto, end=end, solver=solver, gap=gap, time_limit_s=time_limit_s, progress=progress)


def _paper(problem: Problem) -> Problem:
    """Return the problem with the paper's values for all settings that are free."""
    changes = {name: DEFAULTS[name] for name in problem.free if getattr(problem, name) != DEFAULTS[name]}
    if problem.planner == "paper" and not changes:
        return problem
    return problem.with_settings(planner="paper", free=problem.free, **changes)


def _check(problem: Problem, end: int | None, solver: Solver, gap: float, time_limit_s: float) -> None:
    """Raise an error for an argument of `plan` that is out of range."""
    if solver not in get_args(Solver):
        raise ScenarioError(f"solver must be one of {', '.join(get_args(Solver))}, not {solver!r}.")
    slack = problem.horizon - problem.rounds
    if end is not None and (isinstance(end, bool) or not isinstance(end, (int, np.integer)) or not 0 <= end <= slack):
        raise ScenarioError(f"The end time s must be a whole number from 0 to the slack of {slack}, not {end!r}.")
    for name, value in (("time_limit_s", time_limit_s), ("gap", gap)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ScenarioError(f"{name} must be a number of at least 0, not {value!r}.")


def optimise(
    problem: Problem,
    *,
    end: int | None = None,
    solver: Solver = "exact",
    gap: float = DEFAULT_GAP,
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
) -> Plan:
    """Return the schedule with the largest objective under the problem's settings; the arguments are those of `plan`.

    Raises:
        InfeasibleError: No schedule fits; the error has the least sufficient budget, kg.
    """
    _check(problem, end, solver, gap, time_limit_s)
    problem.need_budget()
    slack = problem.horizon - problem.rounds
    began = time.perf_counter()
    ends = range(slack + 1) if end is None else [int(end)]
    if problem.coupled:
        from slackwater.planning.tied_search import Effort, search_tied

        effort = Effort(
            gap=gap,
            deadline=began + time_limit_s,
            report=None
            if progress is None
            else lambda _, so_far: progress(Done(seconds=time.perf_counter() - began, gap=so_far)),
            first_look=solver == "greedy",
            milp=solver == "milp",
        )
        found = search_tied(problem, ends, effort)
    elif solver == "milp":
        from slackwater.planning.core import knapsack_choice  # HiGHS is loaded only when it is needed

        found = search(problem, ends, solve=lambda stage: knapsack_choice(stage, began + time_limit_s))
    else:
        found = search(problem, ends, greedy=solver == "greedy")
    return _certified(problem, found, solver, began)


def _certified(problem: Problem, found: Found, solver: str, began: float) -> Plan:
    """Return the plan, with objective and emissions recomputed from the matrix."""
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
        levels=found.levels,
    )
    if draft.emissions_kg > problem.budget_kg * (1 + 2 * BUDGET_ROUNDING):
        raise SlackwaterError(
            f"The {solver} solver returned a schedule of {draft.emissions_kg!r} kg, over the budget of {problem.budget_kg!r} kg. "
            "It is not used. This is a defect: please report it with the scenario."
        )
    if problem.budget_money is not None and (draft.money or 0.0) > problem.budget_money + _SAME_MONEY * max(
        abs(problem.budget_money), 1.0
    ):
        raise SlackwaterError(
            f"The {solver} solver returned a schedule that costs {draft.money!r}, over budget_money = {problem.budget_money!r}. "
            "It is not used. This is a defect: please report it with the scenario."
        )
    u = draft.emissions.utility
    total = math.fsum(utility.of(u))
    bound = max(found.upper_bound, total)
    window_alone = stage.value(np.zeros_like(stage.low)) if found.alone is None else found.alone
    positive = int(np.count_nonzero(u > 0))
    worth, above = bound - window_alone, bound - total
    if above <= _ROUNDING * abs(bound):  # where nothing can be gained, the rounding of the sums is no gap
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
        levels=found.levels,
    )
    plan.__dict__["emissions"] = draft.emissions
    return plan


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One row of a comparison: settings and the figures of their best plan; None where there is no plan."""

    alpha: Alpha
    """Of an infeasible row that leaves it to the planner, the problem's."""
    slack: int
    budget_kg: float
    """The budget given; where the goal "work" finds it, the answer."""
    status: str
    """`optimal`, `within-gap` or `infeasible`."""
    end: int | None
    """The paper's s."""
    objective: float | None
    """Comparable among rows of the same alpha and the same `g_max_kg` only."""
    upper_bound: float | None
    gap: float | None
    emissions_kg: float | None
    saved_kg: float | None
    """Against the same client-slots at once: each client's in the first slots in which it can train."""
    saved_share: float | None
    """`saved_kg` as a share of the emissions of the same client-slots at once; None if those are 0."""
    slots: int | None
    """Client-slots of training, window included."""
    remaining_error: float | None
    """Predicted remaining error, comparable among all rows. It ranks plans; it is not an accuracy."""
    rho_h: float | None
    """Heterogeneity of selection; inf if a client never trains before the window."""
    message: str
    """The status as a sentence; of an infeasible row, with the least sufficient budget."""
    g_max_kg: float
    """The dearest client-slot of the horizon, the reference of utilities; a longer slack may raise it."""
    synthetic: bool
    """Whether any intensity is synthetic; every output says so."""


def compare(
    problem: Problem,
    *,
    alphas: Sequence[Alpha] = (),
    slacks: Sequence[int] = (),
    budgets: Sequence[float] = (),
    solver: Solver = "exact",
    gap: float = DEFAULT_GAP,
    time_limit_s: float = 60.0,
    planner: Planner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[WhatIf]:
    """Plan every combination of fairness, slack and budget as `plan` does, and return a row for each.

    Args:
        problem: The problem whose settings are varied.
        alphas: Fairness values, the outermost loop. Default: the problem's own, or what the planner chooses.
        slacks: Slacks in slots. Default: the problem's own.
        budgets: Budgets in kg. Default: the problem's own.
        solver: As for `plan`.
        gap: As for `plan`.
        time_limit_s: Time limit for each row, seconds.
        planner: As for `plan`.
        progress: Called with the rows done and all rows. Ctrl-C returns the rows that are done.
    """
    own_slack = problem.horizon - problem.rounds
    lengths = _distinct(slacks, own_slack)
    _check_reach(problem, max(lengths))
    fairness: list[dict[str, Any]] = [{"alpha": alpha} for alpha in dict.fromkeys(alphas)] or [{}]
    variants = [
        problem.with_settings(**fair, slack=slack, budget_kg=budget_kg)
        for fair, slack, budget_kg in product(fairness, lengths, _distinct(budgets, problem.budget_kg))
    ]  # all are made before the first is planned, so that a bad setting fails at once
    rows: list[WhatIf] = []
    with noticed() as stopped:
        try:
            for variant in variants:
                row = _row(
                    variant, lambda one: plan(one, solver=solver, gap=gap, time_limit_s=time_limit_s, planner=planner)
                )
                if stopped():  # this row's plan is the best so far, not the best
                    raise KeyboardInterrupt
                rows.append(row)
                if progress is not None:
                    progress(len(rows), len(variants))
        except KeyboardInterrupt:
            if not rows:
                raise
    return rows


def _row(problem: Problem, planned: Callable[[Problem], Plan]) -> WhatIf:
    from slackwater.planning.advice import same_work_kg
    from slackwater.planning.auto import quality

    slack, traces = problem.horizon - problem.rounds, problem.traces
    try:
        best = planned(problem)
    except InfeasibleError as error:
        return WhatIf(
            alpha=problem.alpha, slack=slack, budget_kg=problem.budget_kg, status="infeasible", end=None, objective=None,
            upper_bound=None, gap=None, emissions_kg=None, saved_kg=None, saved_share=None, slots=None, remaining_error=None,
            rho_h=None, message=str(error), g_max_kg=problem.costs.g_max, synthetic=traces.synthetic,
        )  # fmt: skip
    without = same_work_kg(best)
    saved = without - best.emissions_kg
    return WhatIf(
        alpha=best.problem.alpha,
        slack=slack,
        budget_kg=problem.budget_kg if math.isfinite(problem.budget_kg) else best.emissions_kg,
        status=best.status,
        end=best.end,
        objective=best.objective,
        upper_bound=best.upper_bound,
        gap=best.gap,
        emissions_kg=best.emissions_kg,
        saved_kg=saved,
        saved_share=saved / without if without > 0 else None,
        slots=int(best.slots_per_client.sum()),
        remaining_error=quality(best).error,
        rho_h=best.metrics.rho_h,
        message=best.message,
        g_max_kg=best.problem.costs.g_max,
        synthetic=traces.synthetic,
    )


def _distinct(values: Sequence[T], own: T) -> list[T]:
    return list(dict.fromkeys(values)) or [own]


def _check_reach(problem: Problem, slack: int) -> None:
    slots, traces = problem.rounds + slack, problem.traces
    if problem.slot_start(slots) > traces.end:
        fits = int((traces.end - problem.first_slot).total_seconds() // 60) // traces.slot_minutes - problem.rounds
        raise DataError(
            f"A slack of {slack} needs {slots} slots (rounds + slack), from {iso(problem.first_slot)} to "
            f"{iso(problem.slot_start(slots))}, but the traces end at {iso(traces.end)}. Load longer traces, or "
            f"compare slacks of at most {fits}."
        )
