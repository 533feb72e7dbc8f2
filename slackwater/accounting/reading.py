"""The run's file, read: one snapshot, never written to, and a sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slackwater.errors import SlackwaterError
from slackwater.ledger.queries import LAST_SLOT, LedgerQueries, one_moment
from slackwater.ledger.run import FILE, RunKind
from slackwater.ledger.schema import connect, kind_of_old
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict

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
