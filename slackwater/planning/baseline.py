"""The paper's baseline: no slack, no selection. Everyone trains in every slot until the carbon budget is spent."""

from __future__ import annotations

import time

import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.planning.given import unproved_plan
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.stage import BUDGET_ROUNDING

SOLVER = "no-slack"


def no_slack_plan(problem: Problem) -> Plan:
    """Everyone in slots 0 .. n-1, with n the most whole rounds that the budget pays, as far as the traces reach.

    The rounds, slack, fine-tuning window and `max_parallel` of the problem do not matter; idle and server draw count,
    and who is unavailable in a slot is not there. The plan's own problem has `rounds` = n and no window: its end is s =
    0.
    """
    began = time.perf_counter()
    longest = _reach(problem)
    everyone = problem.with_settings(
        rounds=longest, slack=0, deadline=None, fine_tune=0, recall=0, max_parallel=None, window="available"
    )
    costs = everyone.costs
    there = costs.can_train()
    per_slot = (costs.dense() * there).sum(axis=0) + costs.idle_kg()
    if costs.server_kg is not None:
        per_slot = per_slot + np.where(there.any(axis=0), costs.server_kg, 0.0)
    paid = int(np.searchsorted(np.cumsum(per_slot), problem.budget_kg * (1 + BUDGET_ROUNDING), side="right"))
    if paid == 0:
        least = float(per_slot[0])
        raise InfeasibleError(
            f"The budget of {problem.budget_kg:.6g} kg does not pay one round of all {len(problem.fleet)} clients: in "
            "the "
            f"first slot that costs {least:.6g} kg. Without slack there is no cheaper one; raise the budget to that.",
            least_budget_kg=least,
        )
    slack = max(0, problem.horizon - paid)
    shown = everyone.with_settings(rounds=paid, slack=slack)
    matrix = np.zeros((len(problem.fleet), paid + slack), dtype=bool)
    matrix[:, :paid] = there[:, :paid]
    return unproved_plan(shown, np.packbits(matrix, axis=1), end=0, solver=SOLVER, began=began)


def _reach(problem: Problem) -> int:
    """Slots from the problem's start for which everything is known: the traces, and arrays given by slot."""
    offset = (problem.first_slot - problem.traces.start).total_seconds() / 60 / problem.traces.slot_minutes
    reach = problem.traces.slots - round(offset)
    if problem.available is not None:
        reach = min(reach, int(np.asarray(problem.available).shape[1]))
    if problem.server_kg is not None:
        reach = min(reach, len(np.asarray(problem.server_kg)))
    return reach
