"""The run's file, read: one snapshot, never written to, and a sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import FILE
from slackwater.ledger.schema import connect
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict

MOST_LINES = 20_000_000
"""Lines of a ledger that are read; more would take minutes and gigabytes."""
MOST_PLAN_CHARACTERS = 512 * 2**20
_LAST_SLOT = 10_000_000
"""Nineteen years of minutes: a slot beyond it is a damaged number."""

_CELLS = """
SELECT client, zone, substr(slot_start, 1, 10) AS day, cause, kind, method, intensity_source, intensity_kind, factor,
       count(*) AS lines, sum(kg) AS kg, coalesce(sum(energy_kwh), 0.0) AS energy_kwh,
       coalesce(sum(CASE WHEN energy_kwh IS NULL THEN kg END), 0.0) AS kg_without_energy
FROM charges GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""
_WORK = """
SELECT client, cause, count(DISTINCT slot) AS slots, sum(kg) AS kg, coalesce(sum(energy_kwh), 0.0) AS energy_kwh,
       min(started_at) AS first, max(ended_at) AS last
FROM charges GROUP BY 1, 2
"""
_CLIENT_SLOTS = """
SELECT slot, client, sum(kg) AS kg, min(planned) AS planned FROM charges
WHERE cause = 'training' GROUP BY slot, client ORDER BY slot, client
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All lines of the ledger that agree in this; every breakdown is a sum of cells."""

    client: str
    zone: str
    day: str
    """Of the slot's start, UTC."""
    cause: str
    kind: str
    method: str
    intensity_source: str
    intensity_kind: str
    factor: str
    lines: int
    kg: float
    energy_kwh: float
    """Of the lines that have it."""
    kg_without_energy: float
    """Of the lines that have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one client did for one cause."""

    client: str
    cause: str
    slots: int
    """Distinct ones: a second attempt is in the same slot."""
    kg: float
    energy_kwh: float
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSlot:
    """Training of one client in one slot, all its lines together."""

    slot: int
    client: str
    kg: float
    planned: bool


class Snapshot:
    """One run's file at one moment, also while the run goes on."""

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        self._db, self.folder = db, folder
        row = db.execute("SELECT id, created_at, status, budget_kg, plan, settings, task, versions FROM run").fetchone()
        self.id, self.created_at, self.status = str(row["id"]), str(row["created_at"]), str(row["status"])
        self.budget_kg: float | None = row["budget_kg"]
        self.settings, self.task, self.versions = (_mapping(row[key], key) for key in ("settings", "task", "versions"))
        self.plan: Plan = plan_from_dict(json.loads(row["plan"]), f"The plan of the run in {folder}")
        self.spent_kg = math.fsum(kg for (kg,) in db.execute("SELECT kg FROM charges"))
        """The sum that the ledger itself gives, kg."""
        if not math.isfinite(self.spent_kg):
            raise ValueError("a line of the ledger is not a number")

        self.last_line = int(self._number("SELECT max(id) FROM charges"))

    def cells(self) -> list[Cell]:
        """The whole ledger."""
        return [Cell(**dict(row)) for row in self._db.execute(_CELLS)]

    def work(self) -> list[Work]:
        """By client and cause."""
        return [Work(**dict(row)) for row in self._db.execute(_WORK)]

    def client_slots(self) -> Iterator[ClientSlot]:
        """Training, by slot and client."""
        for row in self._db.execute(_CLIENT_SLOTS):
            yield ClientSlot(slot=row["slot"], client=row["client"], kg=row["kg"], planned=bool(row["planned"]))

    def kg_by_slot(self) -> dict[int, float]:
        """All lines, by slot."""
        return {int(slot): float(kg) for slot, kg in self._rows("SELECT slot, sum(kg) FROM charges GROUP BY slot")}

    def energy_by_zone_slot(self) -> dict[tuple[str, int], float]:
        """kWh of the lines that have it."""
        query = "SELECT zone, slot, sum(energy_kwh) FROM charges WHERE energy_kwh IS NOT NULL GROUP BY zone, slot"
        return {(str(zone), int(slot)): float(energy) for zone, slot, energy in self._rows(query)}

    def lines(self, last: int) -> Iterator[dict[str, Any]]:
        """The lines up to this number as they stand in the ledger, in the order of booking."""
        return map(dict, self._db.execute("SELECT * FROM charges WHERE id <= ? ORDER BY id", (last,)))

    def settled(self) -> list[tuple[str, int, float, float, float]]:
        """By kind of difference: how many lines it changed, what they had been charged, the sum and the sum without signs."""
        query = """
            SELECT d.kind, count(*), sum(c.kg), sum(d.kg), sum(abs(d.kg)) FROM
                (SELECT kind, corrects, sum(kg) AS kg FROM charges WHERE kind <> 'charge' GROUP BY kind, corrects) d
            JOIN charges c ON c.id = d.corrects GROUP BY d.kind ORDER BY d.kind
        """
        return [(str(kind), int(n), float(a), float(b), float(c)) for kind, n, a, b, c in self._rows(query)]

    def unsettled_kg(self) -> float:
        """Charged by a forecast or an upper bound, with its corrections, and no actual value has been booked since."""
        return self._number("""
            SELECT sum(kg) FROM charges WHERE coalesce(corrects, id) IN (
                SELECT id FROM charges WHERE kind = 'charge' AND intensity_kind IN ('forecast', 'bound')
                AND id NOT IN (SELECT corrects FROM charges WHERE kind = 'settlement'))
        """)

    def retried(self) -> tuple[int, float]:
        """Lines of second and later attempts, and their kg."""
        query = "SELECT count(*), coalesce(sum(kg), 0.0) FROM charges WHERE attempt > 0"
        count, kg = self._rows(query)[0]
        return int(count), float(kg)

    def without_round(self) -> tuple[int, float]:
        """Slots whose training was charged and of which no round is recorded, and their kg: it was cut short, or failed."""
        query = (
            "SELECT count(DISTINCT slot), coalesce(sum(kg), 0.0) FROM charges "
            "WHERE cause = 'training' AND slot NOT IN (SELECT slot FROM rounds)"
        )
        slots, kg = self._rows(query)[0]
        return int(slots), float(kg)

    def rounds_done(self) -> tuple[int, int]:
        """Rounds, and client-rounds in them."""
        rounds = [len(json.loads(text)) for (text,) in self._rows("SELECT participants FROM rounds")]
        return len(rounds), sum(rounds)

    def accuracy(self) -> float | None:
        """On the global test set, of the averaged model where there is one; None where it was never evaluated."""
        query = (
            "SELECT accuracy FROM evaluations WHERE client = '' AND data = 'test' AND accuracy IS NOT NULL "
            "ORDER BY slot DESC, model = 'averaged' DESC LIMIT 1"
        )
        found = self._rows(query)
        return float(found[0][0]) if found else None

    def events(self, most: int) -> tuple[int, list[tuple[str, str, int | None, str]]]:
        """Warnings and errors: how many there are, and the last of them as time, level, slot and message."""
        count = int(self._number("SELECT count(*) FROM events WHERE level <> 'info'"))
        query = f"SELECT at, level, slot, message FROM events WHERE level <> 'info' ORDER BY id DESC LIMIT {most:d}"
        return count, [(str(a), str(b), c, str(d)) for a, b, c, d in reversed(self._rows(query))]

    def _rows(self, query: str) -> list[sqlite3.Row]:
        return self._db.execute(query).fetchall()

    def _number(self, query: str) -> float:
        return float(self._db.execute(query).fetchone()[0] or 0.0)


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
        db.execute("BEGIN")  # every query sees the same moment
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
    lines, first, last = db.execute(
        "SELECT count(*), coalesce(min(slot), 0), coalesce(max(slot), 0) FROM charges"
    ).fetchone()
    if first < 0 or last > _LAST_SLOT:
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
