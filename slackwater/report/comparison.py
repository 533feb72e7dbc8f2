"""Planned against actual emissions, and the same work without slack or at annual averages."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np

from slackwater.errors import InfeasibleError, SlackwaterError
from slackwater.intensity.load import TYPICAL, TYPICAL_SOURCE, available_zones
from slackwater.intensity.traces import FACTORS
from slackwater.ledger.queries import ClientSlot, PlanInForce, Work
from slackwater.ledger.run import FILE
from slackwater.ledger.schema import KINDS
from slackwater.live.folder import ACTUALS, load_actuals
from slackwater.planning.emissions import waiting_kg
from slackwater.planning.plan import Plan
from slackwater.planning.schedule import no_slack_plan
from slackwater.report.account import Snapshot, snapshot
from slackwater.units import iso

MOST_DEVIATIONS = 100
_SAME_KG = 5e-7
"""Half a milligram: more than sums of the same numbers in another order can differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVsActual:
    """Planned and actual emissions of one client or day."""

    name: str
    planned_kg: float | None
    """None if the run did not record what its plans expected."""
    realised_kg: float
    planned_slots: int | None = None
    """Client-slots of training; None if not counted."""
    realised_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A client-slot that differs from the plan."""

    slot: int
    start: str
    client: str
    what: str
    """`missed`, `extra` or `other kg`."""
    planned_kg: float
    realised_kg: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAndRealised:
    """The plans in force against the ledger."""

    planned_kg: float
    """Whole run: expected kg of the slots reached, plus the last plan's kg for the rest."""
    planned_kg_until_now: float
    """Up to the last slot reached."""
    to_come_kg: float
    """Expected by the last plan for the slots not reached yet."""
    expected_kg: float
    """Realised plus to come."""
    first_plan_kg: float
    """Expected by the first plan, for reference."""
    replans: int
    noted: bool
    """Whether the run recorded the expected kg of each slot; if not, only participation is compared."""
    realised_kg: float
    reached_slots: int
    planned_slots: int
    """Slots until the end."""
    client_slots_planned: int
    client_slots_as_planned: int
    """Trained with the planned kg."""
    client_slots_other_kg: int
    client_slots_missed: int
    """Among the slots reached."""
    client_slots_extra: int
    by_client: tuple[PlannedVsActual, ...]
    """If the run was re-planned, planned kg cover only the slots reached."""
    by_day: tuple[PlannedVsActual, ...]
    kg_by_slot: tuple[tuple[float | None, float], ...]
    """Planned and realised kg of every slot, up to the end or the last charge, whichever is later."""
    deviations: tuple[Deviation, ...]
    """The largest ones, in order of time."""


def planned_and_realised(run: Snapshot, in_force: PlanInForce) -> PlannedAndRealised:
    """Compare the plans in force with the ledger."""
    realised_slots = run.kg_by_slot()
    last = max(realised_slots, default=-1) + 1
    planned = in_force.kg_by_slot
    both = [
        (_known(planned[t]) if t < len(planned) else 0.0, realised_slots.get(t, 0.0))
        for t in range(max(in_force.end, last))
    ]
    counts, deviations, trained = _compare(in_force, run.client_slots())
    return PlannedAndRealised(
        planned_kg=in_force.planned_kg,
        planned_kg_until_now=in_force.until_now_kg,
        to_come_kg=in_force.to_come_kg,
        expected_kg=in_force.spent_kg + in_force.to_come_kg,
        first_plan_kg=in_force.first.emissions_kg,
        replans=len(in_force.replans),
        noted=in_force.is_noted,
        realised_kg=run.spent_kg,
        reached_slots=in_force.decided,
        planned_slots=in_force.end,
        client_slots_planned=int(in_force.wanted.sum()),
        client_slots_as_planned=counts["same"],
        client_slots_other_kg=counts["other kg"],
        client_slots_missed=counts["missed"],
        client_slots_extra=counts["extra"],
        by_client=_by_client(run, in_force, trained),
        by_day=_by_day(run.plan, both),
        kg_by_slot=tuple(both),
        deviations=deviations,
    )


def _compare(
    in_force: PlanInForce, realised: Iterable[ClientSlot]
) -> tuple[dict[str, int], tuple[Deviation, ...], dict[str, int]]:
    """Return the counts by outcome, the largest deviations, and the number of slots in which each client trained."""
    problem = in_force.first.problem
    step = timedelta(minutes=problem.traces.slot_minutes)
    open_slots = in_force.wanted.copy()
    open_slots[:, in_force.decided :] = False
    counts = {"same": 0, "other kg": 0, "missed": 0, "extra": 0}
    trained: dict[str, int] = {}
    largest: list[tuple[float, int, Deviation]] = []

    def note(slot: int, client: str, what: str, planned_kg: float, realised_kg: float) -> None:
        counts[what] += 1
        found = Deviation(
            slot=slot,
            start=iso(problem.first_slot + slot * step),
            client=client,
            what=what,
            planned_kg=planned_kg,
            realised_kg=realised_kg,
        )
        entry = (abs(realised_kg - planned_kg), -sum(counts.values()), found)
        (heapq.heappush if len(largest) < MOST_DEVIATIONS else heapq.heappushpop)(largest, entry)

    for one in realised:
        trained[one.client] = trained.get(one.client, 0) + 1
        row = in_force.row.get(one.client)
        if row is None or not 0 <= one.slot < open_slots.shape[1] or not open_slots[row, one.slot]:
            note(one.slot, one.client, "extra", 0.0, one.kg)
            continue
        open_slots[row, one.slot] = False
        planned_kg = in_force.training_kg(row, one.slot)
        if math.isnan(planned_kg) or abs(planned_kg - one.kg) <= _SAME_KG:
            counts["same"] += 1
        else:
            note(one.slot, one.client, "other kg", planned_kg, one.kg)
    for row, slot in np.argwhere(open_slots):
        planned_kg = in_force.training_kg(int(row), int(slot))
        note(int(slot), str(problem.fleet.names[row]), "missed", _known(planned_kg) or 0.0, 0.0)
    ordered = sorted((found for _, _, found in largest), key=lambda found: (found.slot, found.client))
    return counts, tuple(ordered), trained


def _by_client(run: Snapshot, in_force: PlanInForce, trained: dict[str, int]) -> tuple[PlannedVsActual, ...]:
    realised: dict[str, list[float]] = {}
    for one in run.work():
        realised.setdefault(one.client, []).append(one.kg)
    slots = dict(zip(in_force.row, in_force.wanted.sum(axis=1).tolist(), strict=True))
    planned = _planned_by_client(in_force)
    if "" in realised:
        planned.setdefault("", 0.0)
    names = {**slots, **planned, **realised}
    both = [
        PlannedVsActual(
            name=name,
            planned_kg=planned.get(name, 0.0) if in_force.is_noted else None,
            realised_kg=math.fsum(realised.get(name, ())),
            planned_slots=None if name == "" else slots.get(name, 0),
            realised_slots=None if name == "" else trained.get(name, 0),
        )
        for name in names
    ]
    return tuple(sorted(both, key=lambda one: (-one.realised_kg, one.name)))


def _planned_by_client(in_force: PlanInForce) -> dict[str, float]:
    """Return name -> expected kg, the server's name empty; if the run was re-planned, of the slots reached."""
    if in_force.is_first:
        found = in_force.first.emissions
        kg = dict(zip(in_force.row, found.client_kg.tolist(), strict=True))
        return kg | ({"": found.server_kg} if found.server_kg else {})
    parts: dict[str, list[float]] = {}
    for expected in in_force.noted.values():
        for (client, _), value in expected.items():
            parts.setdefault(client, []).append(value)
    return {name: math.fsum(part) for name, part in parts.items()}


def _by_day(plan: Plan, kg_by_slot: list[tuple[float | None, float]]) -> tuple[PlannedVsActual, ...]:
    days: dict[str, list[tuple[float | None, float]]] = {}
    step = timedelta(minutes=plan.problem.traces.slot_minutes)
    for slot, both in enumerate(kg_by_slot):
        day = (plan.problem.first_slot + slot * step).date().isoformat()
        days.setdefault(day, []).append(both)
    return tuple(
        PlannedVsActual(
            name=day,
            planned_kg=None if any(kg is None for kg, _ in part) else math.fsum(kg or 0.0 for kg, _ in part),
            realised_kg=math.fsum(kg for _, kg in part),
        )
        for day, part in days.items()
    )


def _known(kg: float) -> float | None:
    return None if math.isnan(kg) else float(kg)


BASELINE = "baseline"
"""Subfolder with the no-slack run that was trained for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameWork:
    """The same client-slots from the first slot on, without waiting."""

    kg: float | None
    """None if it cannot be computed."""
    forecast: bool = False
    """Whether it is counted at forecasts, but the run at what came: then the two cannot be compared."""
    reason: str
    """How it was computed, or why it could not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameBudget:
    """All clients in every slot until the budget is spent: the paper's baseline."""

    kg: float | None
    rounds: int
    client_rounds: int
    score: float | None
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnualAverage:
    """The same energy at one mean intensity per zone."""

    kg: float | None
    """Lines with energy at the zone's mean, others unchanged. None if a zone has no mean."""
    mean_kg_per_kwh: Mapping[str, float]
    basis: str


def as_it_came(plan: Plan, folder: Path) -> Plan:
    """Return the first plan of a rehearsal with the intensity recorded for its period, and that of any other run unchanged."""
    if not (folder / ACTUALS).is_file():
        return plan
    try:
        traces = load_actuals(folder).window(plan.problem.first_slot, plan.problem.horizon)
        return replace(plan, problem=plan.problem.with_settings(traces=traces))
    except SlackwaterError:  # a damaged file: the comparison then rests on forecasts, and says so
        return plan


def same_work_without_slack(
    plan: Plan, work: Iterable[Work], *, recorded: bool = False, simulated: bool = False
) -> SameWork:
    """Move each client's slots to the first in which it can train, with the ledger's energy by cause.

    As in the run, idle draw counts until the last of these slots, and the server in each of them. A client that sleeps
    starts again where that costs less than waiting.

    Args:
        plan: The first plan, whose intensity counts.
        work: Slots and energy of each client by cause.
        recorded: Whether that intensity is the one recorded for a rehearsal's period.
        simulated: Whether the run is charged at that intensity too.
    """
    costs = plan.problem.costs
    row_of = {str(name): row for row, name in enumerate(plan.problem.fleet.names)}
    parts, length = [], 0
    moved = np.zeros((costs.clients, (costs.slots + 7) // 8), dtype=np.uint8)
    for one in work:
        if one.cause in ("idle", "server", "startup") or one.slots == 0:  # counted below
            continue
        row = row_of.get(one.client)
        if row is None:
            return SameWork(kg=None, reason="A client of the ledger is not in the plan.")
        free = np.flatnonzero(costs.available[costs.mask[row]])
        free = free[free >= costs.lead[row]] if costs.sleeps[row] else free  # after its first start
        if len(free) < one.slots:
            return SameWork(kg=None, reason="The plan's intensity does not cover all the work without slack.")
        slots = free[: one.slots]
        if one.cause == "training":
            length = max(length, int(slots[-1]) + 1)
            moved[row] = np.packbits(np.isin(np.arange(costs.slots), slots))
        parts.append(one.energy_kwh / one.slots * float(costs.intensity[costs.row[row], slots].sum()))
    parts.append(float(waiting_kg(plan.problem, moved, length - plan.problem.rounds)[:length].sum()))
    if costs.server_kg is not None:
        parts.append(float(costs.server_kg[:length].sum()))
    forecast = bool(plan.problem.traces.forecast_zones())
    which = "the first plan's intensity, which is partly forecast" if forecast else "the plan's intensity"
    which = "the intensity recorded for the period" if recorded else which
    how = f"Each client's slots from the first slot on, without waiting, at {which}"
    return SameWork(
        kg=math.fsum(parts), forecast=forecast and not simulated, reason=f"{how}; done after {length} slots."
    )


def same_budget_without_slack(run: Snapshot, plan: Plan) -> SameBudget:
    """Return the no-slack run that was trained for comparison, or a no-slack plan of the plan's problem if there is none."""
    beside = run.folder / BASELINE
    if (beside / FILE).is_file():
        try:
            with snapshot(beside) as other:
                rounds, client_rounds = other.rounds_done()
                basis = f"trained for comparison ({BASELINE}/, {KINDS[other.kind].label}, {other.status})"
                return SameBudget(
                    kg=other.spent_kg,
                    rounds=rounds,
                    client_rounds=client_rounds,
                    score=other.score(),
                    basis=basis,
                )
        except SlackwaterError as error:
            return SameBudget(kg=None, rounds=0, client_rounds=0, score=None, basis=str(error))
    try:
        without = no_slack_plan(plan.problem)
    except InfeasibleError as error:
        return SameBudget(kg=None, rounds=0, client_rounds=0, score=None, basis=str(error))
    return SameBudget(
        kg=without.emissions_kg,
        rounds=without.problem.rounds,
        client_rounds=int(without.slots_per_client.sum()),
        score=None,
        basis="planned, not trained; limited by the plan's intensity data",
    )


def annual_average(
    plan: Plan, energy_by_zone: Mapping[str, float], kg_without_energy: float, data: str | None
) -> AnnualAverage:
    """Return the energy at each zone's annual mean, from the user's data, the typical year, or else the plan."""
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
    return means, f"mean over the plan's {hours:g} hours, not a year; give a year with --data"
