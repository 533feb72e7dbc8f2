"""What was planned beside what came: in total, by client, by day, and for every client and slot.

Planned is what the plan in force expected when the slot was decided; see `slackwater.ledger.queries.PlanInForce`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from slackwater.accounting.reading import Snapshot
from slackwater.ledger.queries import ClientSlot, PlanInForce
from slackwater.planning.plan import Plan
from slackwater.units import iso

MOST_DEVIATIONS = 100
_SAME_KG = 5e-7
"""Half a milligram: what sums of the same numbers in another order may differ by, and nobody reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Planned and realised of one client or day."""

    name: str
    planned_kg: float | None
    """None where the run does not say what its plans expected."""
    realised_kg: float
    planned_slots: int | None = None
    """Client-slots of training; None where they are not counted."""
    realised_slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A client's slot that came otherwise than planned."""

    slot: int
    start: str
    client: str
    what: str
    """missed, extra or other kg."""
    planned_kg: float
    realised_kg: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAndRealised:
    """The plans in force against the ledger."""

    planned_kg: float
    """Up to the end: what was expected of the slots reached, and what the last plan expects of the rest."""
    planned_kg_until_now: float
    """Up to the last slot that the run has reached."""
    to_come_kg: float
    """What the last plan expects of the slots that the run has not reached."""
    expected_kg: float
    """Realised and to come."""
    first_plan_kg: float
    """What the plan that the run began with expected, for reference."""
    replans: int
    noted: bool
    """Whether the run says what was expected of each slot; if not, only who trained is compared."""
    realised_kg: float
    reached_slots: int
    planned_slots: int
    """Slots until the end."""
    client_slots_planned: int
    client_slots_as_planned: int
    """Trained, for the planned kg."""
    client_slots_other_kg: int
    client_slots_missed: int
    """Of the slots that the run has reached."""
    client_slots_extra: int
    by_client: tuple[Beside, ...]
    """Of a run that re-plans, planned is what was expected of the slots reached."""
    by_day: tuple[Beside, ...]
    kg_by_slot: tuple[tuple[float | None, float], ...]
    """Planned and realised of every slot until the end or the last one with a charge."""
    deviations: tuple[Deviation, ...]
    """The largest, in the order of time."""


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
    """Return how often what came, the largest deviations, and the slots in which each client trained."""
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


def _by_client(run: Snapshot, in_force: PlanInForce, trained: dict[str, int]) -> tuple[Beside, ...]:
    realised: dict[str, list[float]] = {}
    for one in run.work():
        realised.setdefault(one.client, []).append(one.kg)
    slots = dict(zip(in_force.row, in_force.wanted.sum(axis=1).tolist(), strict=True))
    planned = _planned_by_client(in_force)
    if "" in realised:
        planned.setdefault("", 0.0)
    names = {**slots, **planned, **realised}
    both = [
        Beside(
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
    """Return name -> kg that was expected, empty for the server; of a run that re-plans, of the slots reached."""
    if in_force.is_first:
        found = in_force.first.emissions
        kg = dict(zip(in_force.row, found.client_kg.tolist(), strict=True))
        return kg | ({"": found.server_kg} if found.server_kg else {})
    parts: dict[str, list[float]] = {}
    for expected in in_force.noted.values():
        for (client, _), value in expected.items():
            parts.setdefault(client, []).append(value)
    return {name: math.fsum(part) for name, part in parts.items()}


def _by_day(plan: Plan, kg_by_slot: list[tuple[float | None, float]]) -> tuple[Beside, ...]:
    days: dict[str, list[tuple[float | None, float]]] = {}
    step = timedelta(minutes=plan.problem.traces.slot_minutes)
    for slot, both in enumerate(kg_by_slot):
        day = (plan.problem.first_slot + slot * step).date().isoformat()
        days.setdefault(day, []).append(both)
    return tuple(
        Beside(
            name=day,
            planned_kg=None if any(kg is None for kg, _ in part) else math.fsum(kg or 0.0 for kg, _ in part),
            realised_kg=math.fsum(kg for _, kg in part),
        )
        for day, part in days.items()
    )


def _known(kg: float) -> float | None:
    return None if math.isnan(kg) else float(kg)
