"""Advise on budget and slack: plan a grid, and recommend the smallest pair that trains nearly as well as the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.lazy import Viewed
from slackwater.planning.auto import CALIBRATION_BAND, FULL_ROUNDS, Expected, expected, quality, without_slack
from slackwater.planning.ctrl_c import noticed
from slackwater.planning.emissions import emissions
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.goals import within_budget
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem
from slackwater.planning.states import reachable
from slackwater.units import iso, local_text, utc

NEARLY = 0.05
"""Pairs train nearly as well as the best one if their predicted remaining error is at most this much larger."""

_BUDGETS = 5
"""Budgets of the default grid, each twice the one before; the problem's own is among them."""
_ROWS = 10_000
"""Clients that are counted at once, so that a million of them take little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """One budget and slack, and the plan chosen for them."""

    budget_kg: float
    slack: int
    emissions_kg: float
    same_work_kg: float
    """Emissions of the same client-slots, each client in the first slots in which it can train."""
    saved_kg: float
    saved_share: float | None
    no_slack_slots: int
    """Client-slots that the same budget pays without slack."""
    slots: int
    ends_at: str
    finish_by: str
    """End of the last slot that this slack allows."""
    remaining_error: float
    """Predicted squared distance of the last model from the optimum, relative to the first model's. It ranks pairs; it is not an
    accuracy (docs/research/calibration.md)."""
    no_slack_error: float | None
    """The same for FedAvg with all clients at once on the same budget; None if that does not pay one round."""
    expected: Expected
    """What the predicted error meant for the score on measured tasks, relative to full training."""
    knee: bool
    """Smallest budget of its slack that trains nearly as well as the best of that slack."""
    own: bool
    """Whether this is the problem's own pair: with the goal "budget", the plan of `plan`."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(Viewed):
    """Rows of the grid, the recommended one, and why."""

    rows: tuple[AdviceRow, ...]
    recommended: AdviceRow
    why: str
    infeasible: int
    """Pairs of the grid for which there is no plan."""
    not_planned: int
    """Pairs of the grid that Ctrl-C left out."""
    time_zone: str
    """Time zone in which the times are shown; those of the rows are UTC."""
    synthetic: bool

    def __repr__(self) -> str:
        return f"Advice of {len(self.rows)} pairs: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        """Return the advice in plain types for JSON."""
        return asdict(self)


def advise(
    problem: Problem,
    *,
    budgets: Sequence[float] = (),
    slacks: Sequence[int] = (),
    deadlines: Sequence[str | datetime] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Plan every pair of budget and slack, and recommend one.

    The plans have the goal "budget". With another goal, the grid lies around the budget that this goal needs.

    Args:
        problem: The problem whose budget and slack are varied.
        budgets: Budgets in kg. Default: five, from a quarter of the problem's to four times, or less if more buys nothing.
        slacks: Slacks in slots. Default: five, from 0 to the problem's own, unless deadlines are given.
        deadlines: Times by which the run must end, beside or instead of slacks.
        progress: Called with the pairs done and all pairs. Ctrl-C advises on the pairs that are done.

    Raises:
        InfeasibleError: No pair has a plan.
    """
    problem = within_budget(problem)
    most = problem.horizon - problem.rounds
    by_time = [problem.with_settings(deadline=when) for when in deadlines]
    lengths = sorted({*slacks, *(one.horizon - one.rounds for one in by_time)})
    lengths = lengths or sorted({round(s) for s in np.linspace(0, most, 5)})
    kg = sorted(set(budgets)) or _around(problem)
    variants = [problem.with_settings(slack=slack, budget_kg=budget) for slack in lengths for budget in kg]
    made: list[tuple[Problem, Plan]] = []
    refused: list[InfeasibleError] = []
    with noticed() as stopped:
        try:
            for number, variant in enumerate(variants, 1):
                try:
                    plan = make_plan(variant)
                    if stopped():  # the best so far, not the best
                        raise KeyboardInterrupt
                    made.append((variant, plan))
                except InfeasibleError as error:
                    refused.append(error)
                if progress is not None:
                    progress(number, len(variants))
        except KeyboardInterrupt:
            if not made:
                raise
    if not made:
        raise refused[-1]
    errors = [quality(plan).error for _, plan in made]
    rows = tuple(
        _row(variant, plan, error, knee=_is_knee(number, made, errors),
             own=(variant.budget_kg, variant.horizon) == (problem.budget_kg, problem.horizon))
        for number, ((variant, plan), error) in enumerate(zip(made, errors, strict=True))
    )  # fmt: skip
    near = [row for row in rows if row.remaining_error <= min(errors) + NEARLY]
    chosen = min(near, key=lambda row: (row.emissions_kg, row.slack))
    return Advice(
        rows=rows,
        recommended=chosen,
        why=_why(chosen, rows, len(near), problem.time_zone),
        infeasible=len(refused),
        not_planned=len(variants) - len(rows) - len(refused),
        time_zone=problem.time_zone,
        synthetic=problem.traces.synthetic,
    )


def _around(problem: Problem) -> list[float]:
    """Return budgets around the problem's own, ascending: none above what all slots of all clients cost."""
    costs = problem.costs
    everything = emissions(problem, np.packbits(costs.can_train(), axis=1), problem.horizon - problem.rounds).total_kg
    everything *= 1 + 2 * BUDGET_ROUNDING
    own = min(problem.budget_kg, everything)
    kg = [own * factor for factor in (4.0, 2.0, 1.0) if own * factor <= everything]
    while len(kg) < _BUDGETS:
        kg.append(kg[-1] / 2)
    return kg[::-1]


def _why(chosen: AdviceRow, rows: Sequence[AdviceRow], near: int, zone: str) -> str:
    without = (
        ""
        if chosen.no_slack_error is None
        else f", against {_percent(chosen.no_slack_error)} for the same budget without slack"
    )
    said = (
        f"{chosen.budget_kg:.3g} kg and {chosen.slack:,} slots of slack: finish by {local_text(utc(chosen.finish_by), zone)}. "
        f"Predicted remaining error: {_percent(chosen.remaining_error)}{without}. "
    )
    if len(rows) > 1:
        best = _percent(min(row.remaining_error for row in rows))
        said += (
            f"The best of the {len(rows)} pairs has {best}; of those within {100 * NEARLY:.0f} points of it ({near}), this one "
            "emits the least. "
        )
    return said + (
        f"Expect {_missing(chosen.expected)} full training's ({FULL_ROUNDS} rounds of all clients); on tasks that were not "
        f"fitted, 80 % of the schedules were between {-100 * CALIBRATION_BAND[0]:.1f} points better and "
        f"{100 * CALIBRATION_BAND[1]:.1f} points worse."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _missing(figure: Expected) -> str:
    share = 100 * figure.missing
    return f"a gain in score {share:.1f} % below" if share >= 0.05 else "a gain in score equal to"


def same_work_kg(plan: Plan) -> float:
    """Return the emissions of the same client-slots at once: each client's in the first slots in which it can train."""
    can, slots = reachable(plan.problem), plan.slots_per_client
    for i in range(0, len(can), _ROWS):
        part = slice(i, i + _ROWS)
        can[part] &= np.cumsum(can[part], axis=1, dtype=np.int32) <= slots[part, None]
    used = np.flatnonzero(can.any(axis=0))
    stop = int(used[-1]) + 1 if len(used) else 0
    return emissions(plan.problem, np.packbits(can, axis=1), stop - plan.problem.rounds).total_kg


def _is_knee(number: int, made: Sequence[tuple[Problem, Plan]], errors: Sequence[float]) -> bool:
    here = [i for i, (variant, _) in enumerate(made) if variant.horizon == made[number][0].horizon]
    near = [i for i in here if errors[i] <= min(errors[j] for j in here) + NEARLY]
    return number == min(near, key=lambda i: made[i][0].budget_kg)


def _row(variant: Problem, plan: Plan, error: float, *, knee: bool, own: bool) -> AdviceRow:
    without = same_work_kg(plan)
    saved = without - plan.emissions_kg
    at_once = without_slack(variant)
    return AdviceRow(
        budget_kg=variant.budget_kg,
        slack=variant.horizon - variant.rounds,
        emissions_kg=plan.emissions_kg,
        same_work_kg=without,
        saved_kg=saved,
        saved_share=saved / without if without > 0 else None,
        no_slack_slots=0 if at_once is None else at_once[0],
        slots=int(plan.slots_per_client.sum()),
        ends_at=iso(plan.ends_at),
        finish_by=iso(variant.slot_start(variant.horizon)),
        remaining_error=error,
        no_slack_error=None if at_once is None else at_once[1],
        expected=expected(error, len(variant.fleet)),
        knee=knee,
        own=own,
    )
