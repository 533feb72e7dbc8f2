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
from slackwater.ledger.score import MetricLabel, label_of
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict

RUN, TOKEN, FLOP = "training run", "training token", "FLOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """Settings of a report: SCI, annual means, uncertainty and preparer. Values are checked on creation."""

    functional_unit: str = RUN
    """Unit that SCI divides by: `training run`, `round`, `client-round`, `accuracy point`, `training token` with `tokens`, `FLOP`
    with `flops`, or your own text with `units`."""
    units: float | None = None
    """R, the number of functional units. None: counted from the run, where it records them."""
    embodied_kg: float | None = None
    """TE, embodied emissions of one client's device, kg CO2e."""
    embodied_total_kg: float | None = None
    """M, embodied emissions of the whole run, kg CO2e; replaces `embodied_kg`."""
    lifetime_years: float = 4.0
    """EL, lifetime of a device."""
    pue: float | None = None
    """PUE of sites for which the scenario has none."""
    data: str | None = None
    """CSV file or folder with a year of intensity, for annual means."""
    intensity_uncertainty: float | None = None
    """Relative uncertainty of the intensity: 0.1 is ± 10 %."""
    energy_uncertainty: float | None = None
    """Relative uncertainty of the energy."""
    tokens: float | None = None
    """Tokens that all clients trained on together; adds SCI per training token."""
    flops: float | None = None
    """Floating-point operations of the run; adds SCI per FLOP."""
    organisation: str | None = None
    """Reporting organisation. Default: from [report] in the scenario."""
    preparer: str | None = None
    """Person who prepared the report. Default: from [report] in the scenario."""
    prepared_on: date | None = None
    """Date of the report. Default: today, UTC."""

    def __post_init__(self) -> None:
        if not self.functional_unit.strip():
            raise ScenarioError("The functional unit is empty. Name one, such as 'training run' or 'round'.")
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
"""Most ledger lines that a report reads; more would take minutes and gigabytes."""
MOST_PLAN_CHARACTERS = 512 * 2**20


class Snapshot(LedgerQueries):
    """A consistent view of one run's file, also while the run continues."""

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
        """The ledger's own sum, kg."""
        if not math.isfinite(self.spent_kg):
            raise ValueError("a line of the ledger is not a number")

    def rounds_done(self) -> tuple[int, int]:
        """Return the number of rounds and of client-rounds."""
        rounds = [len(json.loads(text)) for (text,) in self._rows("SELECT participants FROM rounds")]
        return len(rounds), sum(rounds)

    def metric(self) -> MetricLabel:
        """Return what the scores measure."""
        return label_of(self.task.get("metric") or self.journal.get("metric"))

    def score(self) -> float | None:
        """Return the score on the global test set, of the averaged model if there is one; None if never evaluated."""
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
    """Open a run for reading; raise SlackwaterError if it cannot be read."""
    where = folder.parent if folder.name == FILE else folder
    if not (where / FILE).is_file():
        inside = [name for name in ("training", "baseline") if (where / name / FILE).is_file()]
        hint = (
            f"Use: slackwater report {where / inside[0]}"
            if inside
            else "Name a folder that `slackwater train` or `run` wrote."
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
            f"The run in {where} is damaged and cannot be reported: {error}. Restore the folder from a backup, or run it again."
        ) from error
    finally:
        db.close()


def _check(db: sqlite3.Connection, where: Path) -> None:
    """Raise SlackwaterError if the run is incomplete or too large to read."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    missing = sorted({"run", "charges", "rounds", "evaluations", "events"} - tables)
    if missing:
        raise SlackwaterError(
            f"The run in {where} is incomplete: its {FILE} has no table {missing[0]!r}. Run it again."
        )
    runs = db.execute("SELECT count(*), coalesce(max(length(plan)), 0) FROM run").fetchone()
    if runs[0] != 1:
        raise SlackwaterError(f"The run in {where} has not started, so there is nothing to report.")
    lines, first, last, _ = LedgerQueries(db, where / FILE).extent()
    if first < 0 or last > LAST_SLOT:
        raise ValueError(f"its ledger has a slot number {first if first < 0 else last}")
    if lines > MOST_LINES or runs[1] > MOST_PLAN_CHARACTERS:
        size = f"{lines:,} lines" if lines > MOST_LINES else f"a plan of {runs[1] / 2**20:,.0f} MiB"
        raise SlackwaterError(
            f"The run in {where} has {size}; a report reads up to {MOST_LINES:,} lines and a plan of "
            f"{MOST_PLAN_CHARACTERS / 2**20:,.0f} MiB. Sum the charges in its {FILE} with SQLite instead."
        )


def _mapping(text: str, what: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"its {what} are {type(found).__name__}, not an object")
    return found


SERVER = "server"
"""Name of the server in reports; its ledger lines have no client."""
CAUSES = {
    "training": "training computation",
    "network": "communication (network)",
    "evaluation": "evaluation",
    "idle": "idle",
    "server": "server and aggregation",
    "startup": "start-up",
}
"""Causes of a charge in report order, named after the phases of a federated run in arXiv 2602.00343."""
MOST_EVENTS = 50
NEAR_ZERO_KG = 1e-6
"""One milligram. Percentages of smaller totals would show rounding errors, so they are not printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lines of the ledger with the same key."""

    key: tuple[str, ...]
    """Values of the key, as in the ledger; the client's name is empty for the server."""
    kg: float
    energy_kwh: float
    """Sum over the lines that have an energy."""
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The whole ledger in groups that add up to the total."""

    by: tuple[str, ...]
    """Names of the key's parts."""
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All corrections, or all settlements."""

    kind: str
    lines: int
    """Number of charges that were changed."""
    charged_kg: float
    """Sum of these charges before the change."""
    kg: float
    absolute_kg: float
    """Sum of the absolute changes: positive and negative ones do not cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A warning or an error of the run."""

    at: str
    level: str
    slot: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Totals and breakdowns of the ledger."""

    total_kg: float
    """The ledger's own sum."""
    energy_kwh: float
    """Sum over the lines that have an energy."""
    kg_without_energy: float
    """Sum of the lines without energy: their kg were entered directly."""
    lines: int
    last_line: int
    """Number of the last ledger line in the account; a run that continues adds more."""
    by_client: Breakdown
    by_zone: Breakdown
    by_day: Breakdown
    by_source: Breakdown
    by_cause: Breakdown
    by_kind: Breakdown
    by_method: Breakdown
    differences: tuple[Difference, ...]
    """Corrections and settlements, which the total includes."""
    retried_lines: int
    retried_kg: float
    """Emissions of second and later attempts."""
    slots_without_round: int
    kg_without_round: float
    """Charged for training without a recorded round."""
    event_count: int
    events: tuple[Event, ...]
    """The last warnings and errors."""


def share_of(part_kg: float, whole_kg: float | None) -> str:
    """Return a share as text; empty if the whole is below `NEAR_ZERO_KG`."""
    if whole_kg is None or abs(whole_kg) < NEAR_ZERO_KG:
        return ""
    return f"{100 * part_kg / whole_kg:.1f} %"


def account(run: Snapshot, cells: list[Cell]) -> Account:
    """Return the ledger's totals and breakdowns."""
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
    # Days in order of time; all other groups by size, the largest first.
    groups.sort(key=lambda group: group.key if names == ("day",) else (-group.kg, group.key))
    return Breakdown(by=names, groups=tuple(groups))
