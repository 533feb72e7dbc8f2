"""What was planned beside what came: in total, by client, by day, and for every client and slot."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.accounting.reading import ClientSlot, Snapshot
from slackwater.planning.plan import Plan
from slackwater.units import iso

MOST_DEVIATIONS = 100
_CHUNK = 20_000
_SAME_KG = 5e-7
"""Half a milligram: what sums of the same numbers in another order may differ by, and nobody reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Planned and realised of one client or day."""

    name: str
    planned_kg: float
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
    """The plan that the run began with, against the ledger."""

    planned_kg: float
    """Up to the plan's end."""
    planned_kg_until_now: float
    """Up to the last slot that the run has reached."""
    realised_kg: float
    reached_slots: int
    planned_slots: int
    """Slots until the plan's end."""
    client_slots_planned: int
    client_slots_as_planned: int
    """Trained, for the planned kg."""
    client_slots_other_kg: int
    client_slots_missed: int
    """Of the slots that the run has reached."""
    client_slots_extra: int
    by_client: tuple[Beside, ...]
    by_day: tuple[Beside, ...]
    kg_by_slot: tuple[tuple[float, float], ...]
    """Planned and realised of every slot until the plan's end or the last one with a charge."""
    deviations: tuple[Deviation, ...]
    """The largest, in the order of time."""


def planned_and_realised(run: Snapshot) -> PlannedAndRealised:
    """The plan against the ledger."""
    plan, realised_slots = run.plan, run.kg_by_slot()
    stop = plan.problem.rounds + plan.end
    last = max(realised_slots, default=-1) + 1
    reached = max(stop, last) if run.status == "done" else last
    planned = planned_kg_by_slot(plan)
    length = max(stop, last)
    both = [(float(planned[t]) if t < len(planned) else 0.0, realised_slots.get(t, 0.0)) for t in range(length)]
    counts, deviations, trained = _compare(plan, run.client_slots(), reached)
    return PlannedAndRealised(
        planned_kg=plan.emissions_kg,
        planned_kg_until_now=math.fsum(kg for kg, _ in both[:reached]),
        realised_kg=run.spent_kg,
        reached_slots=reached,
        planned_slots=stop,
        client_slots_planned=int(plan.slots_per_client.sum()),
        client_slots_as_planned=counts["same"],
        client_slots_other_kg=counts["other kg"],
        client_slots_missed=counts["missed"],
        client_slots_extra=counts["extra"],
        by_client=_by_client(run, trained),
        by_day=_by_day(plan, both),
        kg_by_slot=tuple(both),
        deviations=deviations,
    )


def planned_kg_by_slot(plan: Plan) -> NDArray[np.float64]:
    """[slot], training, idle and server of the plan, kg; nothing after its end."""
    costs, stop = plan.problem.costs, plan.problem.rounds + plan.end
    kg = costs.idle_kg()
    kg[stop:] = 0.0
    active = np.zeros(costs.slots, dtype=bool)
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        chosen = np.unpackbits(plan.packed[part], axis=1, count=costs.slots).astype(bool)
        kg += (costs.dense(part) * chosen).sum(axis=0)
        active |= chosen.any(axis=0)
    if costs.server_kg is not None:
        kg += np.where(active, costs.server_kg, 0.0)
    return kg


def _compare(
    plan: Plan, realised: Iterable[ClientSlot], reached: int
) -> tuple[dict[str, int], tuple[Deviation, ...], dict[str, int]]:
    """How often what came, the largest deviations, and the slots in which each client trained."""
    costs, horizon = plan.problem.costs, plan.problem.horizon
    row_of = {str(name): row for row, name in enumerate(plan.problem.fleet.names)}
    open_slots = np.unpackbits(plan.packed, axis=1, count=horizon)
    open_slots[:, reached:] = 0
    counts = {"same": 0, "other kg": 0, "missed": 0, "extra": 0}
    trained: dict[str, int] = {}
    largest: list[tuple[float, int, Deviation]] = []

    def note(slot: int, client: str, what: str, planned_kg: float, realised_kg: float) -> None:
        counts[what] += 1
        start = iso(plan.problem.first_slot + slot * timedelta(minutes=plan.problem.traces.slot_minutes))
        found = Deviation(
            slot=slot, start=start, client=client, what=what, planned_kg=planned_kg, realised_kg=realised_kg
        )
        entry = (abs(realised_kg - planned_kg), -sum(counts.values()), found)
        (heapq.heappush if len(largest) < MOST_DEVIATIONS else heapq.heappushpop)(largest, entry)

    for one in realised:
        trained[one.client] = trained.get(one.client, 0) + 1
        row = row_of.get(one.client)
        if row is None or not 0 <= one.slot < horizon or not open_slots[row, one.slot]:
            note(one.slot, one.client, "extra", 0.0, one.kg)
            continue
        open_slots[row, one.slot] = 0
        planned_kg = float(costs.energy_kwh[row] * costs.intensity[costs.row[row], one.slot])
        if abs(planned_kg - one.kg) <= _SAME_KG:
            counts["same"] += 1
        else:
            note(one.slot, one.client, "other kg", planned_kg, one.kg)
    for row, slot in np.argwhere(open_slots):
        planned_kg = float(costs.energy_kwh[row] * costs.intensity[costs.row[row], slot])
        note(int(slot), str(plan.problem.fleet.names[row]), "missed", planned_kg, 0.0)
    ordered = sorted((found for _, _, found in largest), key=lambda found: (found.slot, found.client))
    return counts, tuple(ordered), trained


def _by_client(run: Snapshot, trained: dict[str, int]) -> tuple[Beside, ...]:
    plan = run.plan
    realised: dict[str, list[float]] = {}
    for one in run.work():
        realised.setdefault(one.client, []).append(one.kg)
    kg = plan.emissions.training_kg + plan.emissions.idle_kg
    names = [str(name) for name in plan.problem.fleet.names]
    planned = {name: (float(kg[i]), int(plan.slots_per_client[i])) for i, name in enumerate(names)}
    if plan.emissions.server_kg or "" in realised:
        planned[""] = (plan.emissions.server_kg, 0)
    both = [
        Beside(
            name=name,
            planned_kg=planned.get(name, (0.0, 0))[0],
            realised_kg=math.fsum(realised.get(name, ())),
            planned_slots=None if name == "" else planned.get(name, (0.0, 0))[1],
            realised_slots=None if name == "" else trained.get(name, 0),
        )
        for name in {**planned, **realised}
    ]
    return tuple(sorted(both, key=lambda one: (-one.realised_kg, one.name)))


def _by_day(plan: Plan, kg_by_slot: list[tuple[float, float]]) -> tuple[Beside, ...]:
    days: dict[str, list[tuple[float, float]]] = {}
    step = timedelta(minutes=plan.problem.traces.slot_minutes)
    for slot, both in enumerate(kg_by_slot):
        day = (plan.problem.first_slot + slot * step).date().isoformat()
        days.setdefault(day, []).append(both)
    return tuple(
        Beside(name=day, planned_kg=math.fsum(kg for kg, _ in part), realised_kg=math.fsum(kg for _, kg in part))
        for day, part in days.items()
    )
