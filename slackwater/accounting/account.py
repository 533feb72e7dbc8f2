"""The account of a run: what its ledger says was emitted, in total and by client, zone, day, source, kind and method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from slackwater.accounting.reading import Snapshot
from slackwater.ledger.queries import Cell

SERVER = "server"
"""What the reports call the line without a client's name."""
CAUSES = {
    "training": "training computation",
    "network": "communication (network)",
    "evaluation": "evaluation",
    "idle": "idle",
    "server": "server and aggregation",
    "startup": "start-up",
}
"""Causes of a charge, named after the phases of a federated run in arXiv 2602.00343, in the order of the reports."""
MOST_EVENTS = 50
NEAR_ZERO_KG = 1e-6
"""A milligram. Percentages of less than that would be percentages of rounding errors, and are not printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines of the ledger that share something."""

    key: tuple[str, ...]
    """What they share, as the ledger has it; the client's name is empty for the server."""
    kg: float
    energy_kwh: float
    """Of the lines that have it."""
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The whole ledger, split one way: the groups add up to the total."""

    by: tuple[str, ...]
    """Names of the parts of a group's key."""
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Corrections or settlements together."""

    kind: str
    lines: int
    """Charges that were changed."""
    charged_kg: float
    """What these charges had been."""
    kg: float
    absolute_kg: float
    """The sum without signs: what was wrong, also where it cancels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A warning or an error that the run noted."""

    at: str
    level: str
    slot: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the ledger says."""

    total_kg: float
    """The ledger's own sum."""
    energy_kwh: float
    """Of the lines that have it."""
    kg_without_energy: float
    """Of the lines that have none: their kg were given as such."""
    lines: int
    last_line: int
    """Number of the last line that is in the account: a run that goes on adds others behind it."""
    by_client: Breakdown
    by_zone: Breakdown
    by_day: Breakdown
    by_source: Breakdown
    by_cause: Breakdown
    by_kind: Breakdown
    by_method: Breakdown
    differences: tuple[Difference, ...]
    """Corrections and settlements; they are in the total."""
    retried_lines: int
    retried_kg: float
    """Of second and later attempts."""
    slots_without_round: int
    kg_without_round: float
    """Charged for training of which no round is recorded."""
    event_count: int
    events: tuple[Event, ...]
    """The last warnings and errors."""


def share_of(part_kg: float, whole_kg: float | None) -> str:
    """Return a share as text, empty where the whole is next to nothing."""
    if whole_kg is None or abs(whole_kg) < NEAR_ZERO_KG:
        return ""
    return f"{100 * part_kg / whole_kg:.1f} %"


def account(run: Snapshot, cells: list[Cell]) -> Account:
    """Return everything the ledger says about emissions."""
    retried_lines, retried_kg = run.retried()
    slots_without_round, kg_without_round = run.without_round()
    event_count, events = run.events(MOST_EVENTS)

    def by(*names: str) -> Breakdown:
        return _breakdown(cells, names)

    return Account(
        total_kg=run.spent_kg,
        energy_kwh=math.fsum(cell.energy_kwh for cell in cells),
        kg_without_energy=math.fsum(cell.kg_without_energy for cell in cells),
        lines=sum(cell.lines for cell in cells),
        last_line=run.last_line(),
        by_client=by("client", "zone"),
        by_zone=by("zone"),
        by_day=by("day"),
        by_source=by("intensity_source", "intensity_kind", "factor", "kind"),
        by_cause=by("cause"),
        by_kind=by("kind"),
        by_method=by("method"),
        differences=tuple(
            Difference(kind=kind, lines=lines, charged_kg=charged, kg=kg, absolute_kg=absolute)
            for kind, lines, charged, kg, absolute in run.differences()
        ),
        retried_lines=retried_lines,
        retried_kg=retried_kg,
        slots_without_round=slots_without_round,
        kg_without_round=kg_without_round,
        event_count=event_count,
        events=tuple(Event(at=at, level=level, slot=slot, message=text) for at, level, slot, text in events),
    )


def _breakdown(cells: Iterable[Cell], names: tuple[str, ...]) -> Breakdown:
    grouped: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(tuple(str(getattr(cell, name)) for name in names), []).append(cell)
    groups = [
        Group(
            key=shared,
            kg=math.fsum(cell.kg for cell in part),
            energy_kwh=math.fsum(cell.energy_kwh for cell in part),
            lines=sum(cell.lines for cell in part),
        )
        for shared, part in grouped.items()
    ]
    # Days in their order; everything else with the largest first.
    groups.sort(key=lambda group: group.key if names == ("day",) else (-group.kg, group.key))
    return Breakdown(by=names, groups=tuple(groups))
