"""Advise on budget and slack: plan a grid, and recommend the smallest pair that trains nearly as well as the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.planning.auto import (
    CALIBRATION_BAND,
    FULL_ROUNDS,
    Expected,
    auto_plan,
    expected,
    quality,
    without_slack,
)
from slackwater.planning.emissions import emissions
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.states import reachable
from slackwater.units import iso

NEARLY = 0.05
"""Pairs train nearly as well as the best one if their predicted remaining error is at most this much larger."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Rows of the grid, the recommended one, and why."""

    rows: tuple[AdviceRow, ...]
    recommended: AdviceRow
    why: str
    infeasible: int
    """Pairs of the grid for which there is no plan."""
    synthetic: bool

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

    Args:
        problem: The problem whose budget and slack are varied.
        budgets: Budgets in kg. Default: six, from a quarter of the problem's to four times.
        slacks: Slacks in slots. Default: five, from 0 to the problem's own, unless deadlines are given.
        deadlines: Times by which the run must end, beside or instead of slacks.
        progress: Called with the pairs done and all pairs. Ctrl-C advises on the pairs that are done.

    Raises:
        InfeasibleError: No pair has a plan.
    """
    most = problem.horizon - problem.rounds
    kg = sorted(set(budgets)) or [problem.budget_kg * factor for factor in np.geomspace(0.25, 4.0, 6).tolist()]
    own = [problem.with_settings(deadline=when) for when in deadlines]
    lengths = sorted({*slacks, *(one.horizon - one.rounds for one in own)})
    lengths = lengths or sorted({round(s) for s in np.linspace(0, most, 5)})
    variants = [problem.with_settings(slack=slack, budget_kg=budget) for slack in lengths for budget in kg]
    made: list[tuple[Problem, Plan]] = []
    refused: InfeasibleError | None = None
    try:
        for number, variant in enumerate(variants, 1):
            try:
                made.append((variant, auto_plan(variant)))
            except InfeasibleError as error:
                refused = error
            if progress is not None:
                progress(number, len(variants))
    except KeyboardInterrupt:
        if not made:
            raise
    if not made:
        assert refused is not None
        raise refused
    errors = [quality(plan).error for _, plan in made]
    rows = tuple(
        _row(variant, plan, error, knee=_is_knee(number, made, errors))
        for number, ((variant, plan), error) in enumerate(zip(made, errors, strict=True))
    )
    best = min(errors)
    near = [row for row in rows if row.remaining_error <= best + NEARLY]
    chosen = min(near, key=lambda row: (row.emissions_kg, row.slack))
    without = (
        ""
        if chosen.no_slack_error is None
        else f", against {chosen.no_slack_error:.0%} for the same budget without slack"
    )
    why = (
        f"{chosen.budget_kg:.3g} kg and {chosen.slack} slots of slack (finish by {chosen.finish_by}). "
        f"Its predicted remaining error is {chosen.remaining_error:.0%}{without}; the best of {len(rows)} pairs has {best:.0%}. "
        f"Of the {len(near)} pairs within {100 * NEARLY:.0f} points of the best it emits the least. "
        f"Expect {_missing(chosen.expected)} full training's ({FULL_ROUNDS} rounds of all clients); on tasks that were not "
        f"fitted, 80 % of the schedules were within {100 * CALIBRATION_BAND[1]:.1f} points of this figure."
    )
    return Advice(
        rows=rows, recommended=chosen, why=why, infeasible=len(variants) - len(rows),
        synthetic=problem.traces.synthetic,
    )  # fmt: skip


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


def _row(variant: Problem, plan: Plan, error: float, *, knee: bool) -> AdviceRow:
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
    )
