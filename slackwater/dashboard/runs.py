"""The Run view: what a run's file says, read only, in steps so that a long run is not read anew at every look."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.dashboard import answers
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Journal, Replan
from slackwater.ledger.schema import connect
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict
from slackwater.report.view import has_times
from slackwater.units import iso

MOST_PLAN_BYTES = 256 * 2**20
"""Larger plans are refused: a browser could not show them."""
MOST_ROUNDS = 20_000
"""Rounds that are shown; a run of more is shown up to here, and says so."""
_MOST_EVENTS = 200
_MOST_REPLANS = 5
_MOST_NAMES = 200
_SILENT_S = 120.0
_STATUS = {
    "running": "Running.",
    "stopped": "Stopped; it can go on with: slackwater resume",
    "diverged": "Diverged: the loss is no longer a number. The last good model is in the run's file.",
    "failed": "Failed; the events say why.",
    "done": "Done.",
}


def plan_of_run(path: Path) -> Plan:
    """The plan that a run was started with."""
    with _Reading(path) as db:
        return _plan(db, path)


@dataclass(kw_only=True, eq=False)
class RunReader:
    """One run's file, looked at again and again. Safe for several threads."""

    path: Path
    label: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """Rounds read so far; the file only ever grows by more of them."""
    _plan: Plan | None = None
    _fixed: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, since: int = 0) -> dict[str, Any]:
        """The state now, with the rounds from number `since` on."""
        with self._lock, _Reading(self.path) as db:
            if self._plan is None:
                self._plan = _plan(db, self.path)
                self._fixed = _fixed(db, self._plan)
            self._read_rounds(db)
            return self._state(db, self._plan, since)

    def fixed(self) -> dict[str, Any]:
        """What never changes in a run: its plan, clients and settings."""
        if not self._fixed:
            self.look()
        return self._fixed

    def version(self) -> tuple[object, ...]:
        """Changes whenever somebody has written to the run."""
        with _Reading(self.path) as db:
            status = db.execute("SELECT status FROM run").fetchone()
            last = [
                db.execute(f"SELECT coalesce(max({key}), -1) FROM {table}").fetchone()[0] for key, table in _GROWING
            ]
            return (None if status is None else status[0], *last)

    def _read_rounds(self, db: sqlite3.Connection) -> None:
        assert self._plan is not None
        number = {str(name): at for at, name in enumerate(self._plan.problem.fleet.names)}
        after = self.rounds[-1]["slot"] if self.rounds else -1
        query = (
            "SELECT slot, number, slot_start, in_window, participants, loss, accuracy, spent_kg, seconds FROM rounds "
            "WHERE slot > ? ORDER BY slot LIMIT ?"
        )
        for row in db.execute(query, (after, MOST_ROUNDS - len(self.rounds))):
            names = _parsed(row["participants"], "the participants of a round", self.path)
            if not isinstance(names, list):
                raise SlackwaterError(
                    f"{self.path.parent.name}: the participants of slot {row['slot']} are not a list."
                )
            self.rounds.append(
                {
                    "slot": row["slot"],
                    "number": row["number"],
                    "start": row["slot_start"],
                    "in_window": bool(row["in_window"]),
                    "clients": [number[name] for name in names if isinstance(name, str) and name in number],
                    "loss": _finite(row["loss"]),
                    "accuracy": _finite(row["accuracy"]),
                    "spent_kg": row["spent_kg"],
                    "seconds": row["seconds"],
                }
            )

    def _state(self, db: sqlite3.Connection, plan: Plan, since: int) -> dict[str, Any]:
        status = str(db.execute("SELECT status FROM run").fetchone()[0])
        spent = float(db.execute("SELECT coalesce(sum(kg), 0.0) FROM charges").fetchone()[0])
        planned = self._fixed["planned_kg"]
        done = self.rounds[-1]["slot"] if self.rounds else -1
        # A slot is charged before it is trained, so the plan is compared at the last slot that was charged, not at the last round.
        charged = int(db.execute("SELECT coalesce(max(slot), -1) FROM charges WHERE kind = 'charge'").fetchone()[0])
        due = planned[min(charged, len(planned) - 1)] if charged >= 0 and planned else 0.0
        silent = max(0.0, time.time() - self._written_at())
        journal = Journal(db, self.path)
        coming = self._coming(plan, done, journal)
        now = self._under_way(plan, journal) or (coming[0] if coming and not journal.get("guide") else None)
        return {
            "label": self.label,
            "status": status,
            "sentence": _STATUS.get(status, status),
            "silent_s": round(silent, 1),
            "quiet": status == "running" and silent > _SILENT_S,
            "spent_kg": spent,
            "budget_kg": self._fixed["budget_kg"],
            "planned_kg": plan.emissions_kg,
            "off_plan_kg": spent - due,
            "expected_kg": spent + max(plan.emissions_kg - due, 0.0) if status != "done" else spent,
            "last_slot": done,
            "rounds_done": len(self.rounds),
            "rounds_planned": self._fixed["rounds_planned"],
            "shortened": len(self.rounds) >= MOST_ROUNDS,
            "now": now if status == "running" else None,
            "next": next((one for one in coming if status != "running" or one != now), None),
            "charges": _charges(db),
            "scores": _scores(db),
            "outcomes": dict(db.execute("SELECT outcome, count(*) FROM attempts GROUP BY 1").fetchall())
            if _live(db)
            else {},
            "replans": [_replan(one) for one in journal.replans()[-_MOST_REPLANS:][::-1]],
            "events": _events(db),
            "since": since,
            "rounds": self.rounds[since:],
        }

    def _coming(self, plan: Plan, done: int, journal: Journal) -> list[dict[str, Any]]:
        """Who trains in the next two slots with somebody in them: by the last plan of a live run, else by the first."""
        noted = journal.get("coming")
        if noted is not None:
            number = {str(name): at for at, name in enumerate(plan.problem.fleet.names)}
            found = [(one["slot"], [number[name] for name in one["clients"] if name in number]) for one in noted]
        else:
            slots = [slot for slot in self._fixed["busy_slots"] if slot > done]
            found = [(slot, np.flatnonzero(plan.matrix[:, slot]).tolist()) for slot in slots[:2]]
        return [self._slot(plan, slot, clients) for slot, clients in found[:2]]

    def _under_way(self, plan: Plan, journal: Journal) -> dict[str, Any] | None:
        """Clients of a live run that were sent their work and have not answered."""
        running = {one.client: one.slot for one in journal.attempts(outcome="running")}
        if not running:
            return None
        slot = max(running.values())
        names = plan.problem.fleet.names
        return self._slot(plan, slot, [at for at, name in enumerate(names) if running.get(str(name)) == slot])

    def _slot(self, plan: Plan, slot: int, clients: list[int]) -> dict[str, Any]:
        return {
            "slot": slot,
            "start": iso(plan.problem.slot_start(slot)) if has_times(plan.problem) else None,
            "clients": clients[:_MOST_NAMES],
            "count": len(clients),
            "in_window": slot in plan.window,
        }

    def _written_at(self) -> float:
        times = []
        for file in (self.path, self.path.with_name(self.path.name + "-wal")):
            try:
                times.append(file.stat().st_mtime)
            except OSError:  # the log comes and goes with its writers
                continue
        return max(times, default=0.0)


_GROWING = (("id", "charges"), ("id", "events"), ("slot", "rounds"), ("slot", "evaluations"))


class _Reading:
    """A connection for one look; it holds no lock between looks, so that the run is not disturbed. Errors become sentences."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise SlackwaterError(
                f"The run in {self._path.parent.name} is gone: its {self._path.name} was moved or deleted."
            )
        try:
            self._db = connect(self._path, read_only=True)
        except sqlite3.Error as error:
            raise self._sentence(error) from None
        return self._db

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.Error):
            raise self._sentence(error) from None

    def _sentence(self, error: sqlite3.Error) -> SlackwaterError:
        return SlackwaterError(
            f"The run in {self._path.parent.name} cannot be read: {error}. If it is being copied or started, wait; else the file "
            "is damaged."
        )


def _plan(db: sqlite3.Connection, path: Path) -> Plan:
    row = db.execute("SELECT length(plan) FROM run").fetchone()
    if row is None:
        raise SlackwaterError(f"The run in {path.parent.name} was never begun: its file holds no plan yet.")
    if row[0] is None or row[0] > MOST_PLAN_BYTES:
        raise SlackwaterError(
            f"The plan of the run in {path.parent.name} is too large for a browser ({(row[0] or 0) / 1e6:,.0f} MB)."
        )
    text = db.execute("SELECT plan FROM run").fetchone()[0]
    return plan_from_dict(_parsed(text, "the plan", path), f"The plan of the run in {path.parent.name}")


def _fixed(db: sqlite3.Connection, plan: Plan) -> dict[str, Any]:
    run = db.execute("SELECT id, created_at, budget_kg, settings, task, versions FROM run").fetchone()
    problem, costs, matrix = plan.problem, plan.problem.costs, plan.matrix
    stop = problem.rounds + plan.end
    per_slot = np.einsum("cs,cs->s", costs.dense(), matrix) + costs.idle_kg()
    if costs.server_kg is not None:
        per_slot = per_slot + np.where(matrix.any(axis=0), costs.server_kg, 0.0)
    per_slot[stop:] = 0.0
    return {
        "run": run["id"],
        "created_at": run["created_at"],
        "budget_kg": run["budget_kg"],
        "settings": _table(run["settings"]),
        "task": {key: value for key, value in _table(run["task"]).items() if isinstance(value, str | int | float)},
        "versions": _table(run["versions"]),
        "synthetic": problem.traces.synthetic,
        "start": iso(problem.first_slot) if has_times(problem) else None,
        "slot_minutes": problem.traces.slot_minutes,
        "clients": [str(name) for name in problem.fleet.names],
        "slots": stop,
        "window": [plan.window.start, plan.window.stop],
        "planned_kg": np.cumsum(per_slot)[:stop].tolist(),
        "busy_slots": np.flatnonzero(matrix.any(axis=0)).tolist(),
        "rounds_planned": int(np.count_nonzero(matrix.any(axis=0))),
        "plan": answers.plan_answer(plan, all_ends=False),
        "metrics": answers.metrics_answer(plan),
    }


def _charges(db: sqlite3.Connection) -> dict[str, Any]:
    """Lines of the ledger by kind: what was measured, forecast, settled."""
    by_kind = db.execute("SELECT intensity_kind, count(*), sum(kg) FROM charges GROUP BY intensity_kind").fetchall()
    settled = db.execute(
        "SELECT kind, count(*), sum(kg) FROM charges WHERE kind IN ('settlement', 'correction') GROUP BY kind"
    ).fetchall()
    unplanned = db.execute("SELECT count(*), coalesce(sum(kg), 0) FROM charges WHERE planned = 0").fetchone()
    return {
        "by_intensity": {kind: {"lines": count, "kg": kg} for kind, count, kg in by_kind},
        "settled": {kind: {"lines": count, "kg": kg} for kind, count, kg in settled},
        "unplanned": {"lines": unplanned[0], "kg": unplanned[1]},
    }


def _scores(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Final results on the global test set; the rounds hold those on the way."""
    query = "SELECT slot, model, accuracy, loss FROM evaluations WHERE client = '' AND data = 'test' ORDER BY slot DESC LIMIT 2"
    return [
        {"slot": row["slot"], "model": row["model"], "accuracy": _finite(row["accuracy"]), "loss": _finite(row["loss"])}
        for row in db.execute(query)
    ]


def _live(db: sqlite3.Connection) -> bool:
    """Whether the file has the tables of a live run; those of version 1 do not."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts'").fetchone() is not None


def _replan(one: Replan) -> dict[str, Any]:
    return {
        "slot": one.slot,
        "at": None if one.at is None else iso(one.at),
        "reason": one.reason,
        "changes": dict(one.changes),
        "reserve_kg": _finite(one.reserve_kg),
        "planned_kg": _finite(one.planned_kg),
    }


def _events(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """The last events, newest first."""
    query = "SELECT at, level, slot, substr(message, 1, 2000) AS message FROM events ORDER BY id DESC LIMIT ?"
    return [dict(row) for row in db.execute(query, (_MOST_EVENTS,))]


def _parsed(text: Any, what: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise SlackwaterError(f"The run in {path.parent.name} is damaged: {what} cannot be read.") from None


def _table(text: Any) -> dict[str, Any]:
    """A JSON object, or nothing: settings and versions are for information only."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
