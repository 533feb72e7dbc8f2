"""What if: the same problem planned for other budgets, other slacks, other notions of fairness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from slackwater.errors import DataError, InfeasibleError
from slackwater.planning.planner import Solver, plan
from slackwater.planning.problem import Problem
from slackwater.planning.utility import Alpha
from slackwater.units import iso

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One row: the settings, and what the best plan for them is like; None where there is no plan."""

    alpha: Alpha
    slack: int
    budget_kg: float
    status: str
    """`optimal`, `within-gap` or `infeasible`."""
    end: int | None
    """The paper's s."""
    objective: float | None
    """Comparable among rows of the same alpha and the same `g_max_kg` only."""
    upper_bound: float | None
    gap: float | None
    emissions_kg: float | None
    slots: int | None
    """Client-slots of training, window included."""
    rho_h: float | None
    """Heterogeneity of selection; inf if a client never trains before the window."""
    message: str
    """The status in a sentence; of an infeasible row, the least budget that would do."""
    g_max_kg: float
    """The dearest client-slot of the horizon, from which utilities are counted; a longer slack may raise it."""
    synthetic: bool
    """Whether any intensity is synthetic; every output says so."""


def compare(
    problem: Problem,
    *,
    alphas: Sequence[Alpha] = (),
    slacks: Sequence[int] = (),
    budgets: Sequence[float] = (),
    solver: Solver = "exact",
    time_limit_s: float = 60.0,
) -> list[WhatIf]:
    """Plan every combination of fairness, slack and budget, and return a row for each.

    Args:
        problem: The problem whose settings are varied.
        alphas: Fairness values, the outermost loop. Default: the problem's own.
        slacks: Slacks in slots. Default: the problem's own.
        budgets: Budgets in kg. Default: the problem's own.
        solver: As for `plan`.
        time_limit_s: Time limit of the MILP for each row, seconds.
    """
    own_slack = problem.horizon - problem.rounds
    lengths = _distinct(slacks, own_slack)
    _check_reach(problem, max(lengths))
    variants = [
        problem.with_settings(alpha=alpha, slack=slack, budget_kg=budget_kg)
        for alpha, slack, budget_kg in product(
            _distinct(alphas, problem.alpha), lengths, _distinct(budgets, problem.budget_kg)
        )
    ]  # all before the first is planned: a bad setting should not be found after an hour
    return [_row(variant, solver, time_limit_s) for variant in variants]


def _row(problem: Problem, solver: Solver, time_limit_s: float) -> WhatIf:
    settings = {
        "alpha": problem.alpha,
        "slack": problem.horizon - problem.rounds,
        "budget_kg": problem.budget_kg,
        "g_max_kg": problem.costs.g_max,
        "synthetic": problem.traces.synthetic,
    }
    try:
        best = plan(problem, solver=solver, time_limit_s=time_limit_s)
    except InfeasibleError as error:
        return WhatIf(
            **settings,  # type: ignore[arg-type]
            status="infeasible",
            end=None,
            objective=None,
            upper_bound=None,
            gap=None,
            emissions_kg=None,
            slots=None,
            rho_h=None,
            message=str(error),
        )
    return WhatIf(
        **settings,  # type: ignore[arg-type]
        status=best.status,
        end=best.end,
        objective=best.objective,
        upper_bound=best.upper_bound,
        gap=best.gap,
        emissions_kg=best.emissions_kg,
        slots=int(best.slots_per_client.sum()),
        rho_h=best.metrics.rho_h,
        message=best.message,
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
