"""Many back-tests in a few numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from slackwater.replanning.backtest import Backtest


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Back-tests with one forecast and one way of re-planning; shares are of 1."""

    forecast: str
    replan_slots: int | None
    runs: int
    share_mean: float
    """Of the oracle's objective."""
    share_least: float
    slots_share_mean: float
    """Client-slots trained, of the oracle's."""
    planned_mean: float
    """What the first plan expected to emit, of the budget."""
    realised_mean: float
    """What was emitted, of the budget."""
    first_plan_kept: float
    """Share of runs in which the first plan, followed to the letter, would have kept the budget."""
    unused_mean: float
    unused_most: float
    oracle_unused_mean: float
    overspent: int
    """Runs that emitted more than the budget."""
    overspent_within_bounds: int
    """Of those, the runs in which every slot stayed within its upper bound: there must be none."""
    breaches: int
    """Slots above their upper bound, in all runs."""
    window_kept: int
    window_moved: int
    window_shortened: int
    window_dropped: int

    def to_dict(self) -> dict[str, object]:
        """As JSON holds it."""
        return asdict(self)


def summarise(runs: Sequence[Backtest]) -> list[Summary]:
    """One summary for each forecast and way of re-planning, in the order in which they came."""
    groups: dict[tuple[str, int | None], list[Backtest]] = {}
    for run in runs:
        groups.setdefault((run.forecast, run.replan_slots), []).append(run)
    return [_summary(*key, group) for key, group in groups.items()]


def _summary(forecast: str, replan_slots: int | None, runs: Sequence[Backtest]) -> Summary:
    shares = np.array([run.share for run in runs])
    budget = np.array([run.budget_kg for run in runs])
    over = [run for run in runs if run.overspend_kg > 0]

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    def count(window: str) -> int:
        return sum(run.window == window for run in runs)

    return Summary(
        forecast=forecast,
        replan_slots=replan_slots,
        runs=len(runs),
        share_mean=float(shares.mean()),
        share_least=float(shares.min()),
        slots_share_mean=mean([run.slots / max(run.oracle_slots, 1) for run in runs]),
        planned_mean=float((np.array([run.planned_kg for run in runs]) / budget).mean()),
        realised_mean=float((np.array([run.realised_kg for run in runs]) / budget).mean()),
        first_plan_kept=mean([run.first_plan_kg <= run.budget_kg for run in runs]),
        unused_mean=mean([run.unused for run in runs]),
        unused_most=max(run.unused for run in runs),
        oracle_unused_mean=mean([1 - run.oracle_kg / run.budget_kg for run in runs]),
        overspent=len(over),
        overspent_within_bounds=sum(run.breaches == 0 for run in over),
        breaches=sum(run.breaches for run in runs),
        window_kept=count("kept"),
        window_moved=count("moved"),
        window_shortened=count("shortened"),
        window_dropped=count("dropped"),
    )


def as_csv(runs: Sequence[Backtest]) -> str:
    """A line for each back-test."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(runs[0].row()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(run.row() for run in runs)
    return text.getvalue()
