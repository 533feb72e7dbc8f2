"""What the same work would have been: without slack, and by annual averages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slackwater.accounting.reading import Snapshot, snapshot
from slackwater.carbon.load import TYPICAL, TYPICAL_SOURCE, available_zones
from slackwater.carbon.traces import FACTORS
from slackwater.errors import InfeasibleError, SlackwaterError
from slackwater.ledger.kinds import KINDS
from slackwater.ledger.queries import Work
from slackwater.ledger.run import FILE
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import Plan

BASELINE = "baseline"
"""Folder in a run's folder with the run without slack that was trained beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameWork:
    """The same client-slots from the first slot on, without waiting."""

    kg: float | None
    """None where it cannot be said."""
    reason: str
    """Why not, or how it was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameBudget:
    """Everyone in every slot until the budget is spent: the paper's baseline."""

    kg: float | None
    rounds: int
    client_rounds: int
    accuracy: float | None
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnualAverage:
    """The same energy at one mean intensity for each zone."""

    kg: float | None
    """Of the lines with energy at the zone's mean; the others as they are. None where a zone has no mean."""
    mean_kg_per_kwh: Mapping[str, float]
    basis: str


def same_work_without_slack(plan: Plan, work: Iterable[Work]) -> SameWork:
    """Move each client's slots to the first in which it can train; its energy is the ledger's, cause by cause.

    Idle draw counts until the last of them is done, the server in every one of these slots: the method is the run's.
    """
    costs = plan.problem.costs
    row_of = {str(name): row for row, name in enumerate(plan.problem.fleet.names)}
    parts, length = [], 0
    for one in work:
        if one.cause in ("idle", "server") or one.slots == 0:  # counted below
            continue
        row = row_of.get(one.client)
        if row is None:
            return SameWork(kg=None, reason="A client of the ledger is not in the plan.")
        free = np.flatnonzero(costs.available[costs.mask[row]])
        if len(free) < one.slots:
            return SameWork(kg=None, reason="The plan's intensity does not reach over all the work without slack.")
        slots = free[: one.slots]
        length = max(length, int(slots[-1]) + 1) if one.cause == "training" else length
        parts.append(one.energy_kwh / one.slots * float(costs.intensity[costs.row[row], slots].sum()))
    parts.append(float(costs.idle_kg()[:length].sum()))
    if costs.server_kg is not None:
        parts.append(float(costs.server_kg[:length].sum()))
    how = "Each client's slots from the first slot on, without waiting, at the intensity that the plan holds for them"
    return SameWork(kg=math.fsum(parts), reason=f"{how}; over after {length} slots.")


def same_budget_without_slack(run: Snapshot) -> SameBudget:
    """Return the run without slack that was trained beside this one, or its plan if there is none."""
    beside = run.folder / BASELINE
    if (beside / FILE).is_file():
        try:
            with snapshot(beside) as other:
                rounds, client_rounds = other.rounds_done()
                basis = f"trained beside this run ({BASELINE}/, {KINDS[other.kind].label}, {other.status})"
                return SameBudget(
                    kg=other.spent_kg,
                    rounds=rounds,
                    client_rounds=client_rounds,
                    accuracy=other.accuracy(),
                    basis=basis,
                )
        except SlackwaterError as error:
            return SameBudget(kg=None, rounds=0, client_rounds=0, accuracy=None, basis=str(error))
    try:
        plan = no_slack_plan(run.plan.problem)
    except InfeasibleError as error:
        return SameBudget(kg=None, rounds=0, client_rounds=0, accuracy=None, basis=str(error))
    return SameBudget(
        kg=plan.emissions_kg,
        rounds=plan.problem.rounds,
        client_rounds=int(plan.slots_per_client.sum()),
        accuracy=None,
        basis="planned, not trained; as far as the intensity of the plan reaches",
    )


def annual_average(
    plan: Plan, energy_by_zone: Mapping[str, float], kg_without_energy: float, data: str | None
) -> AnnualAverage:
    """Return the energy at each zone's annual mean: of the user's data, of the typical year, or else of the plan."""
    means, basis = _means(plan, data)
    lacking = sorted(zone for zone, energy in energy_by_zone.items() if energy and zone not in means)
    used = {zone: means[zone] for zone in sorted(energy_by_zone) if zone in means}
    if lacking:
        return AnnualAverage(kg=None, mean_kg_per_kwh=used, basis=f"{basis}; it has no zone {lacking[0]!r}")
    parts = [energy * means[zone] for zone, energy in energy_by_zone.items() if energy]
    return AnnualAverage(kg=math.fsum([*parts, kg_without_energy]), mean_kg_per_kwh=used, basis=basis)


def _means(plan: Plan, data: str | None) -> tuple[dict[str, float], str]:
    traces = plan.problem.traces
    known = traces.factor in FACTORS
    typical = bool(traces.provenance) and all(one.source == TYPICAL_SOURCE for one in traces.provenance)
    if known and (data is not None or typical):
        found = available_zones(TYPICAL if data is None else Path(data))
        means = {one.zone: one.mean_kg_per_kwh[traces.factor] for one in found if traces.factor in one.mean_kg_per_kwh}
        spans = sorted({(one.first.date().isoformat(), one.last.date().isoformat()) for one in found})
        source = "the embedded typical year (synthetic)" if data is None else Path(data).name or data
        span = f"{spans[0][0]} to {spans[-1][1]}" if spans else "no hours"
        return means, f"annual mean, {traces.factor}, of {source}, {span}"
    means = dict(zip(traces.zones, map(float, traces.intensity.mean(axis=1)), strict=True))
    hours = traces.slots * traces.slot_minutes / 60
    return means, f"not a year: the mean over the {hours:g} hours of the plan; give a year with --data"
