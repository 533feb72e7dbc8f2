"""What a schedule's picture shows, for the chart and the terminal alike: its rows and the marks of its time axis."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem

_CHUNK = 20_000
_STEPS_MIN = (
    15,
    30,
    60,
    120,
    180,
    360,
    720,
    1440,
    2880,
    4 * 1440,
    7 * 1440,
    14 * 1440,
    28 * 1440,
    84 * 1440,
    364 * 1440,
)
_GROUPS = 20
_NO_TIMES = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A schedule by client, or by groups of clients where there are too many to show."""

    by: Literal["client", "zone", "intensity"]
    """What a row is: a client, a zone's clients, or the clients of zones of about the same intensity."""
    labels: tuple[str, ...]
    clients: NDArray[np.int64]
    """[row], how many clients it stands for."""
    share: NDArray[np.float64]
    """[row, slot], share of them that train: 0 or 1 where a row is one client."""
    able: NDArray[np.float64]
    """[row, slot], share of them that could train."""
    intensity: NDArray[np.float64]
    """[row, slot], kg/kWh, the mean over its clients."""
    slots: NDArray[np.int64]
    """[row], client-slots of training, window included."""
    kg: NDArray[np.float64]
    """[row], kg CO2e, idle draw included."""

    @property
    def grouped(self) -> bool:
        """Return whether a row is more than one client."""
        return self.by != "client"


def schedule_rows(plan: Plan, most: int) -> Rows:
    """Return rows by client up to `most` clients, else by zone, else by zones of similar intensity."""
    fleet, costs = plan.problem.fleet, plan.problem.costs
    kg = plan.emissions.client_kg
    if len(fleet) <= most:
        return Rows(
            by="client",
            labels=tuple(fleet.names),
            clients=np.ones(len(fleet), dtype=np.int64),
            share=plan.matrix.astype(np.float64),
            able=costs.can_train().astype(np.float64),
            intensity=costs.intensity[costs.row],
            slots=plan.slots_per_client,
            kg=kg,
        )
    zones = sorted(set(fleet.zone))  # in this order the costs number them
    group_of_zone = np.arange(len(zones))
    labels: tuple[str, ...] = tuple(zones)
    by: Literal["zone", "intensity"] = "zone"
    if len(zones) > max(most, _GROUPS):
        rank = np.argsort(np.argsort(costs.intensity.mean(axis=1), kind="stable"), kind="stable")
        group_of_zone = rank * _GROUPS // len(zones)
        sizes = np.bincount(group_of_zone)
        ends = np.cumsum(sizes)
        labels = tuple(f"rank {end - size + 1}–{end}" for size, end in zip(sizes, ends, strict=True))
        by = "intensity"
    return _grouped(plan, labels, group_of_zone[costs.row], kg, by)


def _grouped(
    plan: Plan,
    labels: tuple[str, ...],
    group: NDArray[np.intp],
    kg: NDArray[np.float64],
    by: Literal["zone", "intensity"],
) -> Rows:
    costs, count = plan.problem.costs, len(labels)
    clients = np.bincount(group, minlength=count)
    share = np.zeros((count, costs.slots))
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        order = np.argsort(group[part], kind="stable")
        here, starts = np.unique(group[part][order], return_index=True)
        chosen = np.unpackbits(plan.packed[part][order], axis=1, count=costs.slots)
        share[here] += np.add.reduceat(chosen, starts, axis=0, dtype=np.int64)
    return Rows(
        by=by,
        labels=labels,
        clients=clients,
        share=share / clients[:, None],
        able=_mean(costs.available, costs.mask, group, clients),
        intensity=_mean(costs.intensity, costs.row, group, clients),
        slots=np.bincount(group, weights=plan.slots_per_client, minlength=count).astype(np.int64),
        kg=np.bincount(group, weights=kg, minlength=count).astype(np.float64),
    )


def _mean(
    values: NDArray[np.generic], which: NDArray[np.intp], group: NDArray[np.intp], clients: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return [group, slot], the mean over clients of values[which]; a million clients share few pairs of group and row."""
    pairs, times = np.unique(group * len(values) + which, return_counts=True)
    sums = np.zeros((len(clients), values.shape[1]))
    np.add.at(sums, pairs // len(values), values[pairs % len(values)] * times[:, None])
    return sums / clients[:, None]


def has_times(problem: Problem) -> bool:
    """Return whether slots have real times: bare costs are counted from 1970, which would mislead."""
    return problem.traces.start != _NO_TIMES


def time_marks(problem: Problem, slots: int, most: int) -> list[tuple[float, str]]:
    """Return at most about `most` round times within the first `slots` slots: position in slots, and label (UTC)."""
    most = max(most, 1)
    if not has_times(problem):
        step = next(s for e in range(9) for s in (10**e, 2 * 10**e, 5 * 10**e) if slots / s <= most)
        return [(float(slot), str(slot)) for slot in range(0, slots, step)]
    length, first = problem.traces.slot_minutes, problem.first_slot
    minutes = slots * length
    step = next((s for s in _STEPS_MIN if s >= length and minutes / s <= most), _STEPS_MIN[-1])
    midnight = first.replace(hour=0, minute=0)
    marks, offset = [], -(-((first - midnight) // timedelta(minutes=1)) // step) * step
    while (moment := midnight + timedelta(minutes=offset)) < first + timedelta(minutes=minutes):
        day = moment.hour == moment.minute == 0
        label = f"{moment.day} {moment:%b}" if day else f"{moment:%H:%M}"
        marks.append(((moment - first) / timedelta(minutes=length), label))
        offset += step
    return marks


def time_title(problem: Problem, slots: int) -> str:
    """Return the title of the time axis."""
    if not has_times(problem):
        return "slot"
    first, last = problem.first_slot.year, problem.slot_start(slots - 1).year
    return f"UTC, {first}" if first == last else f"UTC, {first} to {last}"
