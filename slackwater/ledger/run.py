"""The run folder: `run.db` with the ledger, the rounds and the settings, and tensors in `state/`."""

from __future__ import annotations

import json
import logging
import os
import platform
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from slackwater import time_source
from slackwater._version import __version__
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Journal
from slackwater.ledger.ledger import Ledger, transaction
from slackwater.ledger.queries import LedgerQueries, one_moment
from slackwater.ledger.schema import LOCK, RunKind, connect, damage, fold_log, kind_of_old, reading
from slackwater.ledger.score import MetricLabel, label_of
from slackwater.ledger.state_files import Kept, PartFile, StateFiles

log = logging.getLogger(__name__)
Status = Literal["running", "stopped", "diverged", "failed", "done"]
Level = Literal["info", "warning", "error"]
FILE = "run.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One slot in which a client trained."""

    slot: int
    number: int  # 0, 1, .. over the slots with participants
    slot_start: datetime
    in_window: bool
    participants: tuple[str, ...]
    weights: Mapping[str, float]  # weight of each update used, including those that an aggregator had stored
    losses: Mapping[str, float]  # mean loss of each participant over its local steps
    loss: float  # mean of those
    update_norm: float
    spent_kg: float  # since the start, this slot included
    seconds: float  # wall time, evaluation included
    accuracy: float | None = None  # score by the run's metric on the global test set; None where it was not evaluated
    test_loss: float | None = None
    work: Mapping[str, float] = field(default_factory=dict)  # share of the local work, of clients below full power


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The score of a model on one data set."""

    slot: int
    model: Literal["last", "averaged"]
    client: str  # name; empty for the global test set
    data: Literal["test", "train"]
    accuracy: float | None
    loss: float | None
    samples: int


class Run:
    """One open run file, made by `create` or `open`; without a folder it lives in memory."""

    def __init__(
        self, connection: sqlite3.Connection, folder: Path | None, lock: int | None, *, read_only: bool = False
    ) -> None:
        self._db, self.folder, self._lock, self._read_only = connection, folder, lock, read_only
        row = connection.execute("SELECT * FROM run").fetchone()
        self.id = str(row["id"])
        self.plan, self.settings, self.task, self.versions = (
            _table(row[name], name) for name in ("plan", "settings", "task", "versions")
        )
        self.kind: RunKind = dict(row).get("kind") or kind_of_old(connection)
        self.ledger = Ledger(connection, run_id=self.id, budget_kg=row["budget_kg"], path=self.path)
        self.journal = Journal(connection, self.path)  # records of a live run beside its ledger
        self.state = StateFiles(connection, folder)  # the checkpoints
        if not read_only:
            self.state.prepare()
        self.queries = LedgerQueries(connection, self.path)  # sums of the ledger, and the plan in force

    @classmethod
    def create(
        cls, folder: str | Path | None, *, plan: Mapping[str, Any], budget_kg: float | None,
        settings: Mapping[str, Any], task: Mapping[str, Any], kind: RunKind = "simulated", run_id: str | None = None,
    ) -> Run:  # fmt: skip
        """Create a run; raise if the folder holds one already."""
        where = None if folder is None else Path(folder)
        lock = None
        if where is not None:
            try:
                where.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = _locked(where)
            except OSError as error:
                raise SlackwaterError(
                    f"The run folder {where} cannot be made: {error.strerror}. Name another with out=."
                ) from None
            if cls.begun(where):
                _unlock(lock)
                raise SlackwaterError(
                    f"{where} already holds a run. Continue it (slackwater resume {where}), or name another folder "
                    "with out=."
                )
            for leftover in (FILE, FILE + "-wal", FILE + "-shm"):  # of a kill in the first milliseconds
                (where / leftover).unlink(missing_ok=True)
        try:
            connection = connect(where / FILE if where else None, create=True)
            tables = [json.dumps(one, allow_nan=False, default=str) for one in (plan, settings, task, versions())]
            row = (run_id or uuid.uuid4().hex, _now(), "running", budget_kg, *tables, kind)
            with transaction(connection, where and where / FILE):
                connection.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return cls(connection, where, lock)
        except BaseException:
            _unlock(lock)
            raise

    @staticmethod
    def begun(folder: str | Path) -> bool:
        """Return whether a folder holds a run: a file with its first lines, or one that is not ours."""
        path = Path(folder) / FILE
        if not path.exists():
            return False
        try:
            connection = reading(path)
            try:
                tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                foreign = bool(tables) and "charges" not in tables
                return foreign or (bool(tables) and connection.execute("SELECT count(*) FROM run").fetchone()[0] > 0)
            finally:
                connection.close()
        except (sqlite3.DatabaseError, UnicodeDecodeError, SlackwaterError):
            return True

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False) -> Run:
        """Open a run; only one process at a time may open it to write."""
        where = Path(folder)
        where = where.parent if where.name == FILE else where
        if not (where / FILE).is_file():
            raise SlackwaterError(
                f"There is no run in {where}: it has no {FILE}. Start one with: slackwater train plan.json --out "
                f"{where}"
            )
        try:
            lock = None if read_only else _locked(where)
        except OSError as error:
            raise SlackwaterError(
                f"The run in {where} cannot be written: {error.strerror}. Copy the folder to a place where you can write."
            ) from None
        connection: sqlite3.Connection | None = None
        try:
            connection = connect(where / FILE, read_only=read_only)
            with damage(where / FILE):
                if connection.execute("SELECT count(*) FROM run").fetchone()[0] != 1:
                    raise SlackwaterError(
                        f"The run in {where} was never begun. Start it again: slackwater train plan.json --out {where}"
                    )
                return cls(connection, where, lock, read_only=read_only)
        except BaseException:
            if connection is not None:
                connection.close()
            _unlock(lock)
            raise

    @property
    def path(self) -> Path | None:
        """Return the file; None in memory."""
        return None if self.folder is None else self.folder / FILE

    @property
    def metric(self) -> MetricLabel:
        """Return what the scores in `accuracy` measure: of a live run, what its evaluation returned."""
        return label_of(self.task.get("metric") or self.journal.get("metric"))

    @property
    def status(self) -> Status:
        """Return the status of the run."""
        status: Status = self._db.execute("SELECT status FROM run").fetchone()[0]
        return status

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything inside or nothing, files of the state included."""
        if self._db.in_transaction:
            yield
            return
        try:
            with transaction(self._db, self.path):
                yield
        except BaseException:
            self.state.undone()
            raise
        self.state.committed()

    def one_moment(self) -> AbstractContextManager[None]:
        """Show the run at one moment to everything read inside, even while another process writes."""
        return one_moment(self._db)

    def set_status(self, status: Status) -> None:
        """Set the status of the run."""
        with self.transaction():
            self._db.execute("UPDATE run SET status = ?", (status,))

    def log(self, message: str, *, level: Level = "info", slot: int | None = None) -> None:
        """Record an event."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO events (at, level, slot, message) VALUES (?, ?, ?, ?)", (_now(), level, slot, message)
            )

    def events(self) -> list[tuple[str, Level, int | None, str]]:
        """Return time, level, slot and message of every event, in order."""
        return [tuple(row) for row in self._db.execute("SELECT at, level, slot, message FROM events ORDER BY id")]

    def record(self, done: RoundRecord) -> None:
        """Record a round."""
        row = (
            done.slot, done.number, done.slot_start.isoformat(), int(done.in_window), json.dumps(done.participants),
            json.dumps(done.weights), json.dumps(done.losses), done.loss, done.update_norm, done.accuracy, done.test_loss,
            done.spent_kg, done.seconds, json.dumps(done.work),
        )  # fmt: skip
        with self.transaction():
            self._db.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * len(row))})", row)

    def set_score(self, slot: int, accuracy: float | None, test_loss: float | None) -> None:
        """Record the score of the model after a round, if it is known only after the round was recorded."""
        with self.transaction():
            self._db.execute(
                "UPDATE rounds SET accuracy = ?, test_loss = ? WHERE slot = ?", (accuracy, test_loss, slot)
            )

    def rounds(self) -> Iterator[RoundRecord]:
        """Yield the rounds that are done, in order."""
        with damage(self.path):
            for row in self._db.execute("SELECT * FROM rounds ORDER BY slot"):
                values = dict(row)
                values["slot_start"] = datetime.fromisoformat(values["slot_start"])
                values["in_window"] = bool(values["in_window"])
                values["participants"] = tuple(json.loads(values["participants"]))
                values["weights"], values["losses"] = json.loads(values["weights"]), json.loads(values["losses"])
                values["work"] = json.loads(values.get("work") or "{}")  # older files have no levels
                yield RoundRecord(**values)

    def record_evaluation(self, *results: EvaluationRecord) -> None:
        """Record results; replace those recorded before, since a resumed run may reach the same point again."""
        rows = [(r.slot, r.model, r.client, r.data, r.accuracy, r.loss, r.samples) for r in results]
        with self.transaction():
            self._db.executemany("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def evaluations(self) -> list[EvaluationRecord]:
        """Return all results."""
        return [
            EvaluationRecord(**dict(row)) for row in self._db.execute("SELECT * FROM evaluations ORDER BY slot, client")
        ]

    def last_parts(self) -> list[PartFile]:
        """Return the parts of the last checkpoint; none before the first.

        Raises:
            SlackwaterError: The checkpoint does not belong to the last round, so the run must not continue from it.
        """
        with damage(self.path):
            kept, slots = self.state.checkpoints(), self._round_slots()
            if kept and kept[0].slot == (slots[-1] if slots else None):
                return self.state.parts(kept[0])
            if kept:
                last = _named(slots[-1] if slots else None)
                fault = f"it is of {_named(kept[0].slot)}, but the last round is of {last}"
            elif slots or (self.task.get("live") and self.ledger.last_slot() >= 0):
                fault = "it has no checkpoint"
            else:
                return []
            raise self.unusable(fault)

    def check_state(self) -> None:
        """Raise an error unless the last checkpoint is that of the last round and its files are good."""
        self.last_parts()
        if (kept := self.state.checkpoints()) and (fault := self.state.fault(kept[0])) is not None:
            raise self.unusable(fault)

    def unusable(self, fault: str) -> SlackwaterError:
        """Return the error for a checkpoint with a fault; it offers the last good checkpoint, if there is one."""
        begins = f"The run in {self.folder} cannot continue from its last checkpoint: {fault}."
        good, undone = self._last_good()
        if good is None:
            return SlackwaterError(
                f"{begins} No earlier one is good. Restore the folder from a backup, or start the run again in another."
            )
        then = "lost, and stay charged" if self.task.get("live") else "trained again, and charged once"
        after = f" The rounds after it (slot {', '.join(map(str, undone))}) are then {then}." if undone else ""
        return SlackwaterError(
            f"{begins} The checkpoint of {_named(good.slot)} is good. Continue from it with: slackwater resume "
            f"{self.folder} --from-last-good.{after}"
        )

    def fall_back(self) -> tuple[int, ...]:
        """Return to the last good checkpoint, if the last one is damaged; return the slots of the rounds undone by it.

        Their charges stay, since that energy was drawn. A training run computes these rounds again, to the same bits,
        and charges nothing again, as for a round in which it was killed. A live run does not ask its clients twice:
        their work in these slots counts as lost, and the run continues with the next slot to decide. The rounds and
        their evaluations are deleted, and an event records each.
        """
        with damage(self.path):
            good, undone = self._last_good()
            if good is None:
                raise self.unusable("its files are damaged" if self.state.checkpoints() else "it has no checkpoint")
            if good.id == self.state.checkpoints()[0].id and not undone:
                return ()
            with self.transaction():
                for slot in undone:
                    sentence = f"The state after the round of slot {slot} is damaged: the round is undone."
                    log.warning(sentence)
                    self.log(sentence, level="error", slot=slot)
                    self._db.execute("DELETE FROM rounds WHERE slot = ?", (slot,))
                    self._db.execute("DELETE FROM evaluations WHERE slot = ?", (slot,))
                self.state.return_to(good)
                if good.state is not None:
                    self.journal.put(model=good.state, lost=[*self.journal.get("lost", []), *undone])
                self.set_status("stopped")
            return tuple(undone)

    def _last_good(self) -> tuple[Kept | None, list[int]]:
        """Return the newest checkpoint that is of a round and whose files are good, and the slots of the rounds after it."""
        slots = self._round_slots()
        for kept in self.state.checkpoints():
            if (kept.slot is None or kept.slot in slots) and self.state.fault(kept) is None:
                return kept, [slot for slot in slots if kept.slot is None or slot > kept.slot]
        return None, []

    def _round_slots(self) -> list[int]:
        return [int(row[0]) for row in self._db.execute("SELECT slot FROM rounds ORDER BY slot")]

    def close(self) -> None:
        """Close the file."""
        if not self._read_only and self.folder is not None:
            with suppress(sqlite3.Error):
                fold_log(self._db, done=self.status == "done")
        self._db.close()
        _unlock(self._lock)
        self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(slot: int | None) -> str:
    return "the beginning" if slot is None else f"slot {slot}"


def versions() -> dict[str, str]:
    """Return the versions that a result can depend on."""
    found = {"slackwater": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in ("numpy", "torch", "flwr"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _locked(folder: Path) -> int | None:
    """Take the folder's lock and return its handle; the system releases it however the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows: SQLite's own locks remain, under which two writers are slow but safe
        return None
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise SlackwaterError(
            f"The run in {folder} is being written by another process. Wait for it, or stop it first."
        ) from None
    os.truncate(handle, 0)
    os.write(handle, f"{os.getpid()} {platform.node()}\n".encode())  # for `is_written`
    return handle


def is_written(folder: Path) -> bool | None:
    """Return whether the process that last opened the run to write is alive; None if it was on another machine.

    Testing the lock instead would make a run fail that starts at that moment.
    """
    try:
        pid, _, machine = (folder / LOCK).read_text(encoding="utf-8").strip().partition(" ")
        if machine != platform.node():
            return None
        os.kill(int(pid), 0)
    except PermissionError:  # it exists, and belongs to another user
        return True
    except (OSError, ValueError):
        return False
    return not _is_zombie(int(pid))


def _is_zombie(pid: int) -> bool:
    """Return whether a process is dead but not collected, as Flower leaves its apps for minutes; only Linux says so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _table(text: str, name: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"its {name} is not a JSON object")
    return found


def _now() -> str:
    return time_source.now().isoformat(timespec="milliseconds")
