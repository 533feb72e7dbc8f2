"""Cells as one table: a row for each method and budget, mean and deviation over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from slackwater.rivals.cells import DIVERGED, INFEASIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method at one budget; NaN is what was not measured, and deviations are 0 for one seed."""

    budget_kg: float
    method: str
    seeds: int
    """Cells that were trained, diverged ones included."""
    accuracy: float
    """Mean; a run that diverged counts as chance."""
    accuracy_sd: float
    worst_client: float
    worst_client_sd: float
    kg: float
    slots: float
    """Until the last round."""
    rounds: float
    client_rounds: float
    rho_h: float
    """Mean over the seeds in which everybody trained; infinite if there is none."""
    target: float
    reached: int
    """Seeds that reached the target accuracy."""
    hours_to_target: float
    """Mean over those."""
    hours_to_target_sd: float
    kg_to_target: float
    kg_to_target_sd: float
    diverged: int
    infeasible: int
    """Seeds for which the budget pays no schedule of the method."""


def lines(rows: Iterable[dict[str, Any]], target: float) -> list[Line]:
    """By budget, the most accurate first."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((float(row["budget_kg"]), str(row["method"])), []).append(row)
    made = [_line(budget, method, group, target) for (budget, method), group in groups.items()]
    return sorted(made, key=lambda one: (one.budget_kg, -one.accuracy if not math.isnan(one.accuracy) else 1.0))


def to_csv(table: Sequence[Line]) -> str:
    """As text; figures to six digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(Line)])
    for line in table:
        values = asdict(line).values()
        writer.writerow(["" if _unknown(v) else f"{v:.6g}" if isinstance(v, float) else v for v in values])
    return out.getvalue()


def _line(budget: float, method: str, group: list[dict[str, Any]], target: float) -> Line:
    tried = [row for row in group if row["status"] != INFEASIBLE]
    done = [row for row in tried if row["status"] != DIVERGED]
    ways = [way for row in done if (way := _way(row, target)) is not None]
    rho = [float(row["rho_h"]) for row in done if row["rho_h"] != "inf"]
    return Line(
        budget_kg=budget,
        method=method,
        seeds=len(tried),
        accuracy=_mean([row["accuracy"] for row in tried]),
        accuracy_sd=_deviation([row["accuracy"] for row in tried]),
        worst_client=_mean([row["worst_client"] for row in done if row["worst_client"] is not None]),
        worst_client_sd=_deviation([row["worst_client"] for row in done if row["worst_client"] is not None]),
        kg=_mean([row["kg"] for row in done]),
        slots=_mean([row["slots"] for row in done]),
        rounds=_mean([row["rounds"] for row in done]),
        client_rounds=_mean([row["client_rounds"] for row in done]),
        rho_h=_mean(rho) if rho else math.inf if done else math.nan,
        target=target,
        reached=len(ways),
        hours_to_target=_mean([hours for hours, _ in ways]),
        hours_to_target_sd=_deviation([hours for hours, _ in ways]),
        kg_to_target=_mean([kg for _, kg in ways]),
        kg_to_target_sd=_deviation([kg for _, kg in ways]),
        diverged=len(tried) - len(done),
        infeasible=len(group) - len(tried),
    )


def _way(row: dict[str, Any], target: float) -> tuple[float, float] | None:
    """Hours and kg until the model first had the target accuracy."""
    return next(((hours, kg) for hours, kg, accuracy in row["curve"] if accuracy >= target), None)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _deviation(values: Sequence[float]) -> float:
    """Of the sample, n - 1."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 if len(values) else math.nan


def _unknown(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
