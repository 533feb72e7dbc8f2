"""The account of a run: one snapshot of its ledger, in total and by client, zone, day, source, kind and measurement."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.queries import LAST_SLOT, Cell, LedgerQueries, one_moment
from slackwater.ledger.run import FILE
from slackwater.ledger.schema import RunKind, connect, kind_of_old
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict

RUN, TOKEN, FLOP = "training run", "training token", "FLOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """Choices for SCI, the annual means and the uncertainty, and who reports; checked here for every way in."""

    functional_unit: str = RUN
    """What SCI is per: `training run`, `round`, `client-round`, `accuracy point`, `training token` with `tokens`, `FLOP`
    with `flops`, or a text of one's own with `units`."""
    units: float | None = None
    """R, how many functional units the run made; None counts it where the run knows it."""
    embodied_kg: float | None = None
    """TE of one client's device, kg CO2e."""
    embodied_total_kg: float | None = None
    """M of everything, kg CO2e, instead."""
    lifetime_years: float = 4.0
    """EL, of a device."""
    pue: float | None = None
    """Of the sites for which the scenario says none."""
    data: str | None = None
    """CSV file or folder with a year of intensity, for annual means."""
    intensity_uncertainty: float | None = None
    """Relative, 0.1 for +- 10 %; of the intensity."""
    energy_uncertainty: float | None = None
    """Relative, of the energy."""
    tokens: float | None = None
    """Tokens that the run was trained on, all clients together; SCI is then also given per training token."""
    flops: float | None = None
    """Floating-point operations of the run; SCI is then also given per FLOP."""
    organisation: str | None = None
    """Whose report it is; None takes the scenario's [report]."""
    preparer: str | None = None
    """Who prepared it; None takes the scenario's [report]."""
    prepared_on: date | None = None
    """Date of the report; None is today, UTC."""

    def __post_init__(self) -> None:
        if not self.functional_unit.strip():
            raise ScenarioError("The functional unit is empty. Say what SCI is per, like 'training run' or 'round'.")
        self._least("units", self.units, above=True)
        self._least("embodied_kg", self.embodied_kg)
        self._least("embodied_total_kg", self.embodied_total_kg)
        self._least("lifetime", self.lifetime_years, above=True)
        self._least("pue", self.pue, 1.0)
        self._least("intensity uncertainty", self.intensity_uncertainty)
        self._least("energy uncertainty", self.energy_uncertainty)
        self._least("tokens", self.tokens, above=True)
        self._least("flops", self.flops, above=True)
        if self.embodied_kg is not None and self.embodied_total_kg is not None:
            raise ScenarioError("Give embodied emissions by device or in total, not both.")

    @staticmethod
    def _least(name: str, value: float | None, least: float = 0.0, *, above: bool = False) -> None:
        if value is None or (math.isfinite(value) and (value > least if above else value >= least)):
            return
        raise ScenarioError(
            f"{name} is {value:g}; it must be a number {'above' if above else 'of at least'} {least:g}."
        )


MOST_LINES = 20_000_000
"""Lines of a ledger that are read; more would take minutes and gigabytes."""
MOST_PLAN_CHARACTERS = 512 * 2**20


class Snapshot(LedgerQueries):
    """One run's file at one moment, also while the run goes on."""

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        super().__init__(db, folder / FILE)
        self.folder = folder
        row = db.execute("SELECT * FROM run").fetchone()
        self.kind: RunKind = dict(row).get("kind") or kind_of_old(db)
        self.id, self.created_at, self.status = str(row["id"]), str(row["created_at"]), str(row["status"])
        self.budget_kg: float | None = row["budget_kg"]
        self.settings, self.task, self.versions = (_mapping(row[key], key) for key in ("settings", "task", "versions"))
        self.plan: Plan = plan_from_dict(json.loads(row["plan"]), f"The plan of the run in {folder}")
        self.spent_kg = self.ledger.spent_kg()
        """The sum that the ledger itself gives, kg."""
        if not math.isfinite(self.spent_kg):
            raise ValueError("a line of the ledger is not a number")

    def rounds_done(self) -> tuple[int, int]:
        """Return the number of rounds and of client-rounds."""
        rounds = [len(json.loads(text)) for (text,) in self._rows("SELECT participants FROM rounds")]
        return len(rounds), sum(rounds)

    def accuracy(self) -> float | None:
        """Return the accuracy on the global test set, of the averaged model if there is one; None if never evaluated."""
        query = (
            "SELECT accuracy FROM evaluations WHERE client = '' AND data = 'test' AND accuracy IS NOT NULL "
            "ORDER BY slot DESC, model = 'averaged' DESC LIMIT 1"
        )
        found = self._rows(query)
        return float(found[0][0]) if found else None

    def events(self, most: int) -> tuple[int, list[tuple[str, str, int | None, str]]]:
        """Return the number of warnings and errors, and the last of them as time, level, slot and message."""
        count = int(self._rows("SELECT count(*) FROM events WHERE level <> 'info'")[0][0])
        query = f"SELECT at, level, slot, message FROM events WHERE level <> 'info' ORDER BY id DESC LIMIT {most:d}"
        return count, [(str(a), str(b), c, str(d)) for a, b, c, d in reversed(self._rows(query))]


@contextmanager
def snapshot(folder: Path) -> Iterator[Snapshot]:
    """Open a run for reading; inside, what is unreadable becomes a sentence."""
    where = folder.parent if folder.name == FILE else folder
    if not (where / FILE).is_file():
        inside = [name for name in ("training", "baseline") if (where / name / FILE).is_file()]
        hint = (
            f"Its {inside[0]}/ does: slackwater report {where / inside[0]}"
            if inside
            else "Name a folder that train made."
        )
        raise SlackwaterError(f"There is no run in {where}: it has no {FILE}. {hint}")
    db = connect(where / FILE, read_only=True)
    try:
        with one_moment(db):
            _check(db, where)
            yield Snapshot(db, where)
    except SlackwaterError:
        raise
    except (sqlite3.Error, ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise SlackwaterError(
            f"The run in {where} is damaged and cannot be reported: {error}. Take a copy of the folder from before, or run it anew."
        ) from error
    finally:
        db.close()


def _check(db: sqlite3.Connection, where: Path) -> None:
    """Refuse what is not a whole run, or too large to read."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    missing = sorted({"run", "charges", "rounds", "evaluations", "events"} - tables)
    if missing:
        raise SlackwaterError(f"The run in {where} is incomplete: its {FILE} has no table {missing[0]!r}. Run it anew.")
    runs = db.execute("SELECT count(*), coalesce(max(length(plan)), 0) FROM run").fetchone()
    if runs[0] != 1:
        raise SlackwaterError(f"The run in {where} was never begun, so there is nothing to report.")
    lines, first, last, _ = LedgerQueries(db, where / FILE).extent()
    if first < 0 or last > LAST_SLOT:
        raise ValueError(f"its ledger has a slot number {first if first < 0 else last}")
    if lines > MOST_LINES or runs[1] > MOST_PLAN_CHARACTERS:
        size = f"{lines:,} lines" if lines > MOST_LINES else f"a plan of {runs[1] / 2**20:,.0f} MiB"
        raise SlackwaterError(
            f"The run in {where} has {size}; a report reads up to {MOST_LINES:,} lines and a plan of "
            f"{MOST_PLAN_CHARACTERS / 2**20:,.0f} MiB. Sum up the charges of its {FILE} with SQLite instead."
        )


def _mapping(text: str, what: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"its {what} are {type(found).__name__}, not an object")
    return found


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
