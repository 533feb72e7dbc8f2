"""Readers of runs, and server-sent events when a run changes. One thread watches a run for all pages."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.charts.schedule_chart import has_times
from slackwater.dashboard import plan_json as answers
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Journal, Replan
from slackwater.ledger.queries import LedgerQueries, PlanInForce, one_moment
from slackwater.ledger.schema import KINDS, RunKind, connect, damage, kind_of_old
from slackwater.ledger.score import ACCURACY, MetricLabel, label_of
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict
from slackwater.units import iso

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
HEARTBEAT_S = 10.0
"""Interval of comments that keep the connection open and detect closed pages."""
MOST_STREAMS = 48


class Watch:
    """Watch one run while pages follow it."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self._changed = threading.Condition()
        self._number = 0
        self._sentence: str | None = None
        self._watchers = 0
        self._stopped = False
        self._looker: object = None
        """The current thread; an older one that wakes up late sees that it was replaced."""

    def join(self) -> None:
        """Add a watcher; the first starts the thread."""
        with self._changed:
            self._watchers += 1
            if self._watchers == 1:
                self._looker = looker = object()
                threading.Thread(target=self._look, args=(looker,), daemon=True).start()

    def leave(self) -> None:
        """Remove a watcher; the thread ends after the last."""
        with self._changed:
            self._watchers -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop because the server is closing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> tuple[int, str | None] | None:
        """Return the number of the latest change after `seen` and its error if any, or None after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > seen or self._stopped, timeout=seconds)
            if self._stopped or self._number <= seen:
                return None
            return self._number, self._sentence

    @property
    def stopped(self) -> bool:
        """Return whether the server is closing."""
        return self._stopped

    def _look(self, me: object) -> None:
        last: object = None
        while True:
            sentence = None
            try:
                found: object = self.reader.version()
            except SlackwaterError as error:
                found = sentence = str(error)
            with self._changed:
                if found != last:
                    last, self._sentence = found, sentence
                    self._number += 1
                    self._changed.notify_all()
                if self._changed.wait_for(lambda: self._over(me), timeout=LOOK_EVERY_S):
                    return

    def _over(self, me: object) -> bool:
        return self._watchers == 0 or self._stopped or self._looker is not me


class Streams:
    """The watches of a server."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._lock = threading.Lock()
        self._open = 0

    def follow(self, key: str, reader: RunReader, send: Callable[[bytes], None]) -> None:
        """Send a page every change of a run, until the page closes (send raises OSError) or the server does."""
        with self._lock:
            if self._open >= MOST_STREAMS:
                raise SlackwaterError(f"{MOST_STREAMS} pages are already following runs. Close some of them.")
            self._open += 1
            watch = self._watches.setdefault(key, Watch(reader))
        watch.join()
        try:
            _follow(watch, send)
        finally:
            watch.leave()
            with self._lock:
                self._open -= 1

    def close(self) -> None:
        """End all streams."""
        for watch in list(self._watches.values()):
            watch.stop()


def _follow(watch: Watch, send: Callable[[bytes], None]) -> None:
    seen, rounds = 0, 0
    while not watch.stopped:
        change = watch.wait(seen, HEARTBEAT_S)
        if change is None:
            send(b": still here\n\n")
            continue
        seen, sentence = change
        try:
            if sentence is not None:
                raise SlackwaterError(sentence)
            state = watch.reader.look(since=rounds)
        except SlackwaterError as error:
            send(message("trouble", {"error": str(error)}))
            continue
        rounds += len(state["rounds"])
        send(message("state", state))


def message(kind: str, content: dict[str, Any]) -> bytes:
    """Return one event; JSON has no line breaks, so it is one line."""
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


MOST_PLAN_BYTES = 256 * 2**20
"""Larger plans are rejected: a browser could not show them."""
MOST_ROUNDS = 20_000
"""Most rounds shown; the page says if a run has more."""
_MOST_EVENTS = 200
_MOST_REPLANS = 5
_MOST_NAMES = 200
_SILENT_S = 120.0
_STATUS = {
    "running": "Running.",
    "stopped": "Stopped. Continue with: slackwater resume",
    "diverged": "Diverged: the loss is no longer a number. The last good model is in the run's file.",
    "failed": "Failed; see the events for the reason.",
    "done": "Done.",
}


def plan_of_run(path: Path) -> Plan:
    """Return the plan that a run was started with."""
    with _reading(path) as db:
        return _plan(db, path)


@dataclass(kw_only=True, eq=False)
class RunReader:
    """Reader of one run's file, safe for several threads."""

    path: Path
    label: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """Rounds read so far; read again if the run returns to an earlier checkpoint."""
    _plan: Plan | None = None
    _metric: MetricLabel = ACCURACY
    _fixed: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, since: int = 0) -> dict[str, Any]:
        """Return the state now, with the rounds from number `since` on."""
        with self._lock, _reading(self.path) as db:
            if self._plan is None:
                self._plan = _plan(db, self.path)
                self._fixed = _fixed(db, self._plan)
            self._metric = _metric(db, self.path)
            self._read_rounds(db)
            return self._state(db, self._plan, since)

    def fixed(self) -> dict[str, Any]:
        """Return what never changes in a run: its plan, clients and settings."""
        if not self._fixed:
            self.look()
        return self._fixed

    def version(self) -> tuple[object, ...]:
        """Return a value that changes with every write to the run."""
        with _reading(self.path) as db:
            status = db.execute("SELECT status FROM run").fetchone()
            last = [
                db.execute(f"SELECT coalesce(max({key}), -1) FROM {table}").fetchone()[0] for key, table in _GROWING
            ]
            return (None if status is None else status[0], LedgerQueries(db, self.path).last_line(), *last)

    def _read_rounds(self, db: sqlite3.Connection) -> None:
        assert self._plan is not None
        number = {str(name): at for at, name in enumerate(self._plan.problem.fleet.names)}
        after = self.rounds[-1]["slot"] if self.rounds else -1
        if db.execute("SELECT count(*) FROM rounds WHERE slot <= ?", (after,)).fetchone()[0] != len(self.rounds):
            self.rounds, after = [], -1  # the run returned to an earlier checkpoint
        query = (
            "SELECT slot, number, slot_start, in_window, participants, loss, accuracy, spent_kg, seconds FROM rounds "
            "WHERE slot > ? ORDER BY slot LIMIT ?"
        )
        for row in db.execute(query, (after, MOST_ROUNDS - len(self.rounds))):
            names = _parsed(row["participants"], "the participants of a round", self.path)
            if not isinstance(names, list):
                raise SlackwaterError(
                    f"{self.path.parent.name}: the participants of slot {row['slot']} are not a list. Restore its folder from a backup."
                )
            self.rounds.append(
                {
                    "slot": row["slot"],
                    "number": row["number"],
                    "start": row["slot_start"],
                    "in_window": bool(row["in_window"]),
                    "clients": [number[name] for name in names if isinstance(name, str) and name in number],
                    "loss": _finite(row["loss"]),
                    **self._metric.scored(_finite(row["accuracy"])),
                    "spent_kg": row["spent_kg"],
                    "seconds": row["seconds"],
                }
            )

    def _state(self, db: sqlite3.Connection, plan: Plan, since: int) -> dict[str, Any]:
        status = str(db.execute("SELECT status FROM run").fetchone()[0])
        ledger = LedgerQueries(db, self.path)
        journal = ledger.journal
        in_force = ledger.in_force(plan, done=status == "done", spent_kg=ledger.ledger.spent_kg())
        figures = ledger.figures(in_force)
        done = self.rounds[-1]["slot"] if self.rounds else -1
        silent = max(0.0, time.time() - self._written_at())
        with damage(self.path):
            coming = self._coming(plan, done, journal)
        now = self._under_way(plan, journal) or (coming[0] if coming and not journal.get("guide") else None)
        return {
            "label": self.label,
            "kind": self._fixed["kind"],
            "status": status,
            "sentence": _STATUS.get(status, status),
            "silent_s": round(silent, 1),
            "quiet": status == "running" and silent > _SILENT_S,
            "figures": figures.to_dict(),
            "spent_kg": figures.spent_kg,
            "budget_kg": self._fixed["budget_kg"],
            "planned_kg": figures.planned_kg,
            "first_plan_kg": figures.first_plan_kg,
            "off_plan_kg": figures.spent_kg - figures.planned_until_now_kg if in_force.is_noted else None,
            "expected_kg": figures.expected_kg,
            "last_slot": done,
            "decided_slots": in_force.decided,
            "slots": in_force.end,
            "rounds_done": len(self.rounds),
            "rounds_planned": self._fixed["rounds_planned"],
            "shortened": len(self.rounds) >= MOST_ROUNDS,
            "now": now if status == "running" else None,
            "next": next((one for one in coming if status != "running" or one != now), None),
            "missed": figures.client_slots_missed,
            "in_force": None if in_force.is_first else self._in_force(in_force),
            "charges": _charges(ledger),
            "metric": self._metric.to_dict(),
            "scores": _scores(db, self._metric),
            "outcomes": dict(db.execute("SELECT outcome, count(*) FROM attempts GROUP BY 1").fetchall())
            if _live(db)
            else {},
            "replans": [_replan(one) for one in journal.replans()[-_MOST_REPLANS:][::-1]],
            "events": _events(db),
            "since": since,
            "rounds": self.rounds[since:],
        }

    def _in_force(self, in_force: PlanInForce) -> dict[str, Any]:
        """Return the plan in force if it is not the first: sums by slot, participants and window."""
        kg, window = in_force.kg_by_slot, [one["slot"] for one in self.rounds if one["in_window"]]
        begins = min(window, default=max(0, in_force.end - in_force.first.problem.fine_tune))
        return {
            "planned_kg": None if np.isnan(kg).any() else np.cumsum(kg).tolist(),
            "rest_kg": np.cumsum(np.nan_to_num(kg[in_force.decided :])).tolist(),
            "schedule": answers.bits(np.packbits(in_force.wanted, axis=1)),
            "window": [begins, max(begins, in_force.end)],
        }

    def _coming(self, plan: Plan, done: int, journal: Journal) -> list[dict[str, Any]]:
        """Return the clients of the next two busy slots: by the last plan of a live run, else by the first."""
        noted = journal.get("coming")
        if noted is not None:
            number = {str(name): at for at, name in enumerate(plan.problem.fleet.names)}
            found = [(one["slot"], [number[name] for name in one["clients"] if name in number]) for one in noted]
        else:
            slots = [slot for slot in self._fixed["busy_slots"] if slot > done]
            found = [(slot, np.flatnonzero(plan.matrix[:, slot]).tolist()) for slot in slots[:2]]
        return [self._slot(plan, slot, clients) for slot, clients in found[:2]]

    def _under_way(self, plan: Plan, journal: Journal) -> dict[str, Any] | None:
        """Return the clients of a live run that received work and have not answered."""
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
            except OSError:  # the log appears and disappears with its writers
                continue
        return max(times, default=0.0)


_GROWING = (("id", "events"), ("slot", "rounds"), ("slot", "evaluations"))


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a run for one consistent read, without a lasting lock; raise SlackwaterError if it is unreadable."""
    where = path.parent.name
    if not path.is_file():
        raise SlackwaterError(f"The run in {where} is gone: its {path.name} was moved or deleted.")
    try:
        db = connect(path, read_only=True)
        try:
            with one_moment(db):
                yield db
        finally:
            db.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may contain bytes of a damaged file
        raise SlackwaterError(
            f"The run in {where} cannot be read: {error}. If it is being copied or started, wait; otherwise the file is damaged."
        ) from None


def _plan(db: sqlite3.Connection, path: Path) -> Plan:
    row = db.execute("SELECT length(plan) FROM run").fetchone()
    if row is None:
        raise SlackwaterError(f"The run in {path.parent.name} has not started: its file has no plan yet.")
    if row[0] is None or row[0] > MOST_PLAN_BYTES:
        raise SlackwaterError(
            f"The plan of the run in {path.parent.name} is too large for a browser ({(row[0] or 0) / 1e6:,.0f} MB)."
        )
    text = db.execute("SELECT plan FROM run").fetchone()[0]
    return plan_from_dict(_parsed(text, "the plan", path), f"The plan of the run in {path.parent.name}")


def _fixed(db: sqlite3.Connection, plan: Plan) -> dict[str, Any]:
    run = db.execute("SELECT * FROM run").fetchone()
    kind: RunKind = dict(run).get("kind") or kind_of_old(db)
    problem, matrix = plan.problem, plan.matrix
    stop = problem.rounds + plan.end
    planned = np.cumsum(plan.kg_by_slot)[:stop]
    return {
        "run": run["id"],
        "kind": kind,
        "about": KINDS[kind].sentence,
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
        "planned_kg": planned.tolist(),
        "busy_slots": np.flatnonzero(matrix.any(axis=0)).tolist(),
        "rounds_planned": int(np.count_nonzero(matrix.any(axis=0))),
        "plan": answers.plan_answer(plan, all_ends=False),
        "metrics": answers.metrics_answer(plan),
    }


def _charges(ledger: LedgerQueries) -> dict[str, Any]:
    """Return ledger lines by kind: measured, forecast, settled."""
    unplanned_lines, unplanned_kg = ledger.unplanned()
    return {
        "by_intensity": {kind: {"lines": count, "kg": kg} for kind, (count, kg) in ledger.by_intensity().items()},
        "settled": {kind: {"lines": count, "kg": kg} for kind, count, _, kg, _ in ledger.differences()},
        "unplanned": {"lines": unplanned_lines, "kg": unplanned_kg},
    }


def _metric(db: sqlite3.Connection, path: Path) -> MetricLabel:
    """Return what the scores measure; a live run knows it after its first evaluation."""
    task = _table(db.execute("SELECT task FROM run").fetchone()[0])
    return label_of(task.get("metric") or LedgerQueries(db, path).journal.get("metric"))


def _scores(db: sqlite3.Connection, metric: MetricLabel) -> list[dict[str, Any]]:
    """Return the final results on the global test set; the rounds hold the earlier ones."""
    query = "SELECT slot, model, accuracy, loss FROM evaluations WHERE client = '' AND data = 'test' ORDER BY slot DESC LIMIT 2"
    return [
        {
            "slot": row["slot"],
            "model": row["model"],
            "loss": _finite(row["loss"]),
            **metric.scored(_finite(row["accuracy"])),
        }
        for row in db.execute(query)
    ]


def _live(db: sqlite3.Connection) -> bool:
    """Return whether the file has the tables of a live run; those of version 1 do not."""
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
    """Return the last events, newest first."""
    query = "SELECT at, level, slot, substr(message, 1, 2000) AS message FROM events ORDER BY id DESC LIMIT ?"
    return [dict(row) for row in db.execute(query, (_MOST_EVENTS,))]


def _parsed(text: Any, what: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise SlackwaterError(
            f"The run in {path.parent.name} is damaged: {what} cannot be read. Restore its folder from a backup."
        ) from None


def _table(text: Any) -> dict[str, Any]:
    """Return a JSON object, empty if there is none: settings and versions are for information only."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
