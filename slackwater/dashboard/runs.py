"""Readers of runs, and server-sent events when a run changes. One thread watches a run for all pages."""

from __future__ import annotations

import json
import logging
import math
import secrets
import shlex
import sqlite3
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slackwater import time_source
from slackwater.charts.schedule_chart import has_times
from slackwater.dashboard import plan_json as answers
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Journal, Replan
from slackwater.ledger.queries import LedgerQueries, PlanInForce, one_moment
from slackwater.ledger.run import FILE, is_written
from slackwater.ledger.schema import KINDS, RunKind, connect, damage, kind_of_old
from slackwater.ledger.score import ACCURACY, MetricLabel, label_of
from slackwater.planning.plan import Plan
from slackwater.planning.schedule import NO_SLACK
from slackwater.planning.storage import plan_from_dict
from slackwater.report.comparison import BASELINE
from slackwater.units import iso, utc

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.5
HEARTBEAT_S = 10.0
"""Interval of comments that keep the connection open through proxies."""
CLOSED_EVERY_S = 1.0
"""How often a stream looks whether its page was closed."""
MOST_STREAMS = 48
STREAMS_EACH = 3
"""Streams that one browser may keep open. It allows six connections to a server: with more, its other tabs would hang."""
AGAIN_MS = 2_000
"""After this time a page asks again whose stream has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page that follows a run."""

    address: str
    """Address of its browser."""
    send: Callable[[bytes], None]
    """Raises OSError when the page is gone."""
    is_closed: Callable[[], bool] = lambda: False
    last_id: str = ""
    """Id of the last event that the page has, after a reconnection."""


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
        self._open = Counter[str]()
        """Address of a browser -> its open streams."""

    def follow(self, key: str, reader: RunReader, page: Page) -> None:
        """Send a page every change of a run, until the run or the server ends, or the page is closed.

        A page whose browser has enough streams gets the changes so far; it asks again after `AGAIN_MS`.
        """
        with self._lock:
            if self._open.total() >= MOST_STREAMS:
                raise SlackwaterError(f"{MOST_STREAMS} pages are already following runs. Close some of them.")
            once = self._open[page.address] >= STREAMS_EACH
            self._open[page.address] += 1
            watch = self._watches.setdefault(key, Watch(reader))
        watch.join()
        try:
            page.send(f"retry: {AGAIN_MS}\n\n".encode())
            _follow(watch, page, once=once)
        finally:
            watch.leave()
            with self._lock:
                self._open[page.address] -= 1

    def open_count(self) -> int:
        """Return the number of open streams."""
        with self._lock:
            return self._open.total()

    def close(self) -> None:
        """End all streams."""
        for watch in list(self._watches.values()):
            watch.stop()


def _follow(watch: Watch, page: Page, *, once: bool) -> None:
    seen, quiet_s = 0, 0.0
    era, _, done = page.last_id.partition("-")  # a browser that connects again names the last event that it has
    rounds = int(done) if done.isdecimal() else 0
    while not watch.stopped:
        change = watch.wait(seen, CLOSED_EVERY_S)
        if page.is_closed():
            return
        if change is None:
            quiet_s += CLOSED_EVERY_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                page.send(b": still here\n\n")
            continue
        seen, sentence = change
        try:
            if sentence is not None:
                raise SlackwaterError(sentence)
            state = watch.reader.look(since=rounds, era=era)
        except SlackwaterError as error:
            page.send(message("trouble", {"error": str(error)}))
            if once:
                return
            continue
        era, new = state["era"], state["rounds"]
        unscored = bool(new) and new[-1]["score"] is None  # a live run writes it later: then the round is sent again
        rounds = state["since"] + len(new) - unscored
        page.send(f"id: {era}-{rounds}\n".encode() + message("state", state))
        if once or state["status"] != "running":
            return


def message(kind: str, content: dict[str, Any]) -> bytes:
    """Return one event; JSON has no line breaks, so it is one line."""
    return f"event: {kind}\ndata: {json.dumps(content, allow_nan=False)}\n\n".encode()


MOST_PLAN_BYTES = 256 * 2**20
"""Larger plans are rejected: a browser could not show them."""
MOST_ROUNDS = 20_000
"""Most rounds shown; the page says if a run has more."""
_MOST_EVENTS = 200
_MOST_LOG, _MOST_LOG_NAMES, _MOST_LOG_LETTERS = 200, 6, 400
_MOST_POINTS = 2_000
_PACE_ROUNDS = 10
"""Last rounds whose median distance on the wall clock predicts that of the rest."""
_FAR_BELOW, _LEAST_STARTS = 0.5, 3
"""Share of the declared energy below which a client should be calibrated, and the measured starts that show it."""
_MOST_REPLANS = 5
_MOST_NAMES = 200
_SILENT_S = 120.0
_GONE = "The process of this run is gone; nothing trains."
_STOPPED = "Stopped."
_QUIET = "Its status is running, but nothing was written for two minutes. Was it killed?"
_STATUS = {
    "running": "Running.",
    "stopped": _STOPPED,
    "diverged": "Diverged: the loss is no longer a number. The last good model is in the run's file.",
    "failed": "Failed; see the events for the reason.",
    "done": "Done.",
}


def written_at(path: Path) -> float:
    """Return when a run's file was last written, in seconds since 1970."""
    times = []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            times.append(file.stat().st_mtime)
        except OSError:  # the log appears and disappears with its writers
            continue
    return max(times, default=0.0)


def plan_of_run(path: Path) -> Plan:
    """Return the plan that a run was started with."""
    with _reading(path) as db:
        return _plan(db, path)


def _new_era() -> str:
    return secrets.token_hex(4)


@dataclass(kw_only=True, eq=False)
class RunReader:
    """Reader of one run's file, safe for several threads."""

    path: Path
    label: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """Rounds read so far; read again if the run returns to an earlier checkpoint."""
    era: str = field(default_factory=_new_era)
    """Changes when the rounds are read again: numbers of rounds from before do not count then."""
    _plan: Plan | None = None
    _metric: MetricLabel = ACCURACY
    _fixed: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self, since: int = 0, era: str | None = None) -> dict[str, Any]:
        """Return the state now, with the rounds from number `since` on; all of them if the era is another one."""
        with self._lock, _reading(self.path) as db:
            if self._plan is None:
                self._plan = _plan(db, self.path)
                self._fixed = _fixed(db, self._plan)
            self._metric = _metric(db, self.path)
            self._read_rounds(db)
            return self._state(db, self._plan, since if era in (None, self.era) else 0)

    def fixed(self) -> dict[str, Any]:
        """Return what never changes in a run: its plan, clients and settings."""
        if not self._fixed:
            self.look()
        return self._fixed

    def version(self) -> tuple[object, ...]:
        """Return a value that changes with every write to the run."""
        with _reading(self.path) as db:
            status = db.execute("SELECT status FROM run").fetchone()
            tables = (*_GROWING, *_GROWING_LIVE) if _live(db) else _GROWING
            last = [db.execute(f"SELECT count(*), max({key}) FROM {table}").fetchone() for key, table in tables]
            return (
                None if status is None else status[0],
                is_written(self.path.parent),
                LedgerQueries(db, self.path).last_line(),
                *map(tuple, last),
            )

    def brief(self) -> dict[str, Any]:
        """Return how the run stands, for pages in hidden tabs: they ask now and then, and follow no stream."""
        with _reading(self.path) as db:
            row = db.execute("SELECT status, budget_kg FROM run").fetchone()
            if row is None:
                raise SlackwaterError(f"The run in {self.path.parent.name} has not started: its file has no plan yet.")
            spent_kg = LedgerQueries(db, self.path).ledger.spent_kg()
            return {"label": self.label, **self._stands(db, str(row[0])), "spent_kg": spent_kg, "budget_kg": row[1]}

    def _stands(self, db: sqlite3.Connection, status: str) -> dict[str, Any]:
        """Return the status, why a run failed, and whether the process of a run that should be running is gone.

        A run on another machine may be gone if it is quiet for long; one on this machine is known to wait for its slots.
        """
        alive = is_written(self.path.parent) if status == "running" else True
        gone, silent_s = alive is False, max(0.0, time.time() - written_at(self.path))
        quiet = alive is None and silent_s > _SILENT_S
        sentence = _GONE if gone else _QUIET if quiet else _STATUS.get(status, status)
        if sentence in (_GONE, _STOPPED, _QUIET):
            sentence += f' Continue with "slackwater resume {shlex.quote(self.path.parent.name)}".'
        elif status == "failed" and (reason := _last_error(db)):
            sentence = f"Failed: {reason}"
        return {"status": status, "gone": gone, "quiet": quiet, "silent_s": round(silent_s, 1), "sentence": sentence}

    def _read_rounds(self, db: sqlite3.Connection) -> None:
        assert self._plan is not None
        number = {str(name): at for at, name in enumerate(self._plan.problem.fleet.names)}
        after = self.rounds[-1]["slot"] if self.rounds else -1
        if db.execute("SELECT count(*) FROM rounds WHERE slot <= ?", (after,)).fetchone()[0] != len(self.rounds):
            self.rounds, self.era = [], _new_era()  # the run returned to an earlier checkpoint
        self.rounds = self.rounds[:-1]  # a live run writes the score and metrics of its last round after the round
        after = self.rounds[-1]["slot"] if self.rounds else -1
        query = (
            "SELECT slot, number, slot_start, in_window, participants, loss, accuracy, spent_kg, seconds FROM rounds "
            "WHERE slot > ? ORDER BY slot LIMIT ?"
        )
        journal = LedgerQueries(db, self.path).journal
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
                    "metrics": journal.round_metrics(row["slot"]),
                }
            )

    def _state(self, db: sqlite3.Connection, plan: Plan, since: int) -> dict[str, Any]:
        status = str(db.execute("SELECT status FROM run").fetchone()[0])
        ledger = LedgerQueries(db, self.path)
        journal = ledger.journal
        in_force = ledger.in_force(plan, done=status == "done", spent_kg=ledger.ledger.spent_kg())
        figures = ledger.figures(in_force)
        done = self.rounds[-1]["slot"] if self.rounds else -1
        budget_kg, events, spent = self._fixed["budget_kg"], _events(db), _spent_by_slot(ledger)
        with damage(self.path):
            coming = self._coming(plan, done, journal)
        now = self._under_way(plan, journal) or (coming[0] if coming and not journal.get("guide") else None)
        return {
            "label": self.label,
            "kind": self._fixed["kind"],
            **self._stands(db, status),
            "figures": figures.to_dict(),
            "spent_kg": figures.spent_kg,
            "budget_kg": budget_kg,
            "left_kg": None if budget_kg is None else budget_kg - figures.spent_kg,
            "ends": self._ends(plan, in_force, ledger),
            "kg_by_round": self._kg_by_round(spent),
            "spent_by_slot": _thinned(spent),
            "baseline": _baseline(self.path.parent),
            "measured": _far_below(ledger, plan),
            "planned_kg": figures.planned_kg,
            "first_plan_kg": figures.first_plan_kg,
            "off_plan_kg": figures.spent_kg - figures.planned_until_now_kg if in_force.is_noted else None,
            "expected_kg": figures.expected_kg,
            "last_slot": done,
            "decided_slots": in_force.decided,
            "reached_slots": self._reached(in_force, journal),
            "slots": in_force.end,
            "rounds_done": len(self.rounds),
            "rounds_planned": self._fixed["rounds_planned"],
            "shortened": len(self.rounds) >= MOST_ROUNDS,
            "now": now if status == "running" else None,
            "next": next(
                (one for one in coming if status != "running" or now is None or one["slot"] > now["slot"]), None
            ),
            "missed": figures.client_slots_missed,
            "in_force": None if in_force.is_first else self._in_force(in_force),
            "charges": _charges(ledger),
            "metric": self._metric.to_dict(),
            "scores": _scores(db, self._metric),
            "outcomes": dict(db.execute("SELECT outcome, count(*) FROM attempts GROUP BY 1").fetchall())
            if _live(db)
            else {},
            "replans": [_replan(one) for one in journal.replans()[-_MOST_REPLANS:][::-1]],
            "quarantined": [asdict(one) for one in journal.quarantined()],
            "events": events,
            "log": _log(ledger, self.rounds, self._fixed["clients"], events),
            "era": self.era,
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

    def _kg_by_round(self, spent: list[tuple[int, float]]) -> list[float]:
        """Return the kg of the ledger up to each round, as far as they are settled now.

        A round's own `spent_kg` counts what was at an upper bound then, so that it can be more than that of the next.
        """
        at = np.searchsorted([slot for slot, _ in spent], [one["slot"] for one in self.rounds], side="right")
        return [spent[count - 1][1] if count else 0.0 for count in at.tolist()]

    def _reached(self, in_force: PlanInForce, journal: Journal) -> int:
        """Return how many slots are over: a client that was planned in one of them and has no round missed it.

        The rounds do not say it in a live run, where a slot without a usable update has no round.
        """
        if self._fixed["kind"] == "simulated":
            return self.rounds[-1]["slot"] + 1 if self.rounds else 0
        return min((one.slot for one in journal.attempts(outcome="running")), default=in_force.decided)

    def _ends(self, plan: Plan, in_force: PlanInForce, ledger: LedgerQueries) -> dict[str, Any]:
        """Return when the plan in force ends: by its own clock, and how many seconds from now on the wall clock."""
        problem, seconds = plan.problem, None
        at = problem.slot_start(in_force.end) if has_times(problem) else None
        rounds_left = int(np.count_nonzero(in_force.wanted[:, in_force.decided :].any(axis=0)))
        slot_s = self._fixed["settings"].get("slot_seconds")
        if self._fixed["kind"] == "live":
            seconds = None if at is None else (at - time_source.now()).total_seconds()
        elif isinstance(slot_s, int | float) and slot_s > 0:
            seconds = float(slot_s) * (in_force.end - in_force.decided)
        elif (pace_s := self._pace_s(ledger)) is not None:
            seconds = rounds_left * pace_s
        return {
            "slot": in_force.end,
            "at": None if at is None else iso(at),
            "seconds": seconds if seconds is None else max(0.0, seconds),
            "rounds_left": rounds_left,
        }

    def _pace_s(self, ledger: LedgerQueries) -> float | None:
        """Return how long a round takes on the wall clock, re-planning and evaluation included; None before the second."""
        booked = ledger.booked_at()
        last = [one["slot"] for one in self.rounds[-_PACE_ROUNDS - 1 :]]
        with damage(self.path):
            moments = [utc(booked[slot], "booked_at") for slot in last if slot in booked]
        lengths = [(after - before).total_seconds() for before, after in pairwise(moments)]
        return statistics.median(lengths) if lengths else None

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


_GROWING = (("id", "events"), ("slot", "rounds"), ("slot", "evaluations"))
_GROWING_LIVE = (("id", "replans"), ("coalesce(ended_at, sent_at)", "attempts"))


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
        "time_zone": problem.time_zone,
        "no_slack": None if plan.solver == NO_SLACK else answers.no_slack_answer(problem),
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


def _spent_by_slot(ledger: LedgerQueries) -> list[tuple[int, float]]:
    """Return for each charged slot the kg of the ledger up to it, as far as they are settled now."""
    by_slot = sorted(ledger.kg_by_slot().items())
    sums = np.cumsum([kg for _, kg in by_slot]).tolist()
    return [(slot, total) for (slot, _), total in zip(by_slot, sums, strict=True)]


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `_MOST_POINTS` of the points, the last one included."""
    step = -(-len(points) // _MOST_POINTS) or 1
    return points[::-step][::-1]


def _baseline(folder: Path) -> dict[str, Any] | None:
    """Return the curves of the no-slack baseline beside a run, and whether it is still to train; None if there is none."""
    path = folder / BASELINE / FILE
    if not path.parent.is_dir():
        return None
    if not path.is_file():  # the run makes the folder at its start, and trains the baseline at its end
        return {"status": None, "trains": is_written(folder) is True, "spent_kg": 0.0, "rounds": []}
    try:
        with _reading(path) as db:
            row, metric = db.execute("SELECT status FROM run").fetchone(), _metric(db, path)
            query = "SELECT slot, spent_kg, loss, accuracy FROM rounds ORDER BY slot LIMIT ?"
            rounds = [
                [one["slot"], one["spent_kg"], _finite(one["loss"]), metric.scored(_finite(one["accuracy"]))["score"]]
                for one in db.execute(query, (_MOST_POINTS,))
            ]
            spent_kg = LedgerQueries(db, path).ledger.spent_kg()
            status = None if row is None else row[0]
            trains = status in (None, "running") and is_written(path.parent) is not False
            return {"status": status, "trains": trains, "spent_kg": spent_kg, "rounds": rounds}
    except SlackwaterError:  # it is just being created; a damaged one is shown as a run of its own
        return None


def _far_below(ledger: LedgerQueries, plan: Plan) -> list[dict[str, Any]]:
    """Return the clients whose measured energy of training is far below what the scenario declares."""
    declared = dict(zip(map(str, plan.problem.fleet.names), plan.problem.costs.training_kwh.tolist(), strict=True))
    return [
        {"client": client, "starts": starts, "measured_kwh": kwh / starts, "declared_kwh": declared[client]}
        for client, starts, kwh in ledger.measured()
        if starts >= _LEAST_STARTS and client in declared and kwh / starts < _FAR_BELOW * declared[client]
    ]


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


def _last_error(db: sqlite3.Connection) -> str | None:
    """Return the last error that a run wrote."""
    query = "SELECT substr(message, 1, ?) FROM events WHERE level = 'error' ORDER BY id DESC LIMIT 1"
    row = db.execute(query, (_MOST_LOG_LETTERS,)).fetchone()
    return None if row is None else str(row[0])


def _events(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the last events, newest first."""
    query = "SELECT at, level, slot, substr(message, 1, 2000) AS message FROM events ORDER BY id DESC LIMIT ?"
    return [dict(row) for row in db.execute(query, (_MOST_EVENTS,))]


def _log(
    ledger: LedgerQueries, rounds: list[dict[str, Any]], names: list[str], events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what the run wrote last, newest first: events, rounds, re-plans, and results of the asked clients."""
    journal, booked = ledger.journal, ledger.booked_at()

    def line(at: str | datetime | None, slot: int, text: str, level: str = "info") -> dict[str, Any]:
        moment = at.isoformat(timespec="milliseconds") if isinstance(at, datetime) else at or ""
        return {"at": moment, "level": level, "slot": slot, "message": text}

    lines = [one | {"message": one["message"][:_MOST_LOG_LETTERS]} for one in events]
    for one in rounds[-_MOST_LOG:]:
        who = ", ".join(names[client] for client in one["clients"][:_MOST_LOG_NAMES])
        more = f" and {len(one['clients']) - _MOST_LOG_NAMES} more" if len(one["clients"]) > _MOST_LOG_NAMES else ""
        lines.append(line(booked.get(one["slot"]), one["slot"], f"Round {one['number'] + 1}: {who}{more}."))
    lines += [line(one.at, one.slot, f"Re-planned: {one.reason}.") for one in journal.replans()[-_MOST_LOG:]]
    for tried in journal.attempts()[-_MOST_LOG:]:
        if tried.outcome not in ("running", "done"):
            text = f"{tried.client}: {tried.outcome}{f', {tried.error}' if tried.error else ''}."
            lines.append(line(tried.ended_at or tried.sent_at, tried.slot, text, "warning"))
    return sorted(lines, key=lambda one: (one["at"], one["slot"] or 0), reverse=True)[:_MOST_LOG]


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
