"""The run folder: `run.db` with the ledger, the rounds, the checkpoint and what the run was asked to do."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from slackwater._version import __version__
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Journal
from slackwater.ledger.ledger import Ledger, transaction
from slackwater.ledger.schema import LOCK, connect, reading

Status = Literal["running", "stopped", "diverged", "failed", "done"]
Level = Literal["info", "warning", "error"]
FILE = "run.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One slot in which somebody trained."""

    slot: int
    number: int
    """0, 1, .. over the slots with participants."""
    slot_start: datetime
    in_window: bool
    participants: tuple[str, ...]
    weights: Mapping[str, float]
    """Weight of each update used, those that an aggregator had stored included."""
    losses: Mapping[str, float]
    """Mean loss of each participant over its local steps."""
    loss: float
    """Mean of those."""
    update_norm: float
    spent_kg: float
    """Since the start, this slot included."""
    seconds: float
    """Wall time, evaluation included."""
    accuracy: float | None = None
    """On the global test set; None where it was not evaluated."""
    test_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """How a model does on one data set."""

    slot: int
    model: Literal["last", "averaged"]
    client: str
    """Name; empty for the global test set."""
    data: Literal["test", "train"]
    accuracy: float | None
    loss: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One array of a checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Run:
    """One run's file, open.

    Made by `create` or `open`; without a folder it lives in memory and ends with the process.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path | None, lock: int | None) -> None:
        self._db, self.folder, self._lock = connection, folder, lock
        row = connection.execute("SELECT * FROM run").fetchone()
        self.id = str(row["id"])
        self.plan: dict[str, Any] = json.loads(row["plan"])
        self.settings: dict[str, Any] = json.loads(row["settings"])
        self.task: dict[str, Any] = json.loads(row["task"])
        self.versions: dict[str, str] = json.loads(row["versions"])
        self.ledger = Ledger(connection, run_id=self.id, budget_kg=row["budget_kg"], path=self.path)
        self.journal = Journal(connection, self.path)
        """What a live run notes beside its ledger."""

    @classmethod
    def create(
        cls,
        folder: str | Path | None,
        *,
        plan: Mapping[str, Any],
        budget_kg: float | None,
        settings: Mapping[str, Any],
        task: Mapping[str, Any],
    ) -> Run:
        """A new run; a folder that holds one already is refused."""
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
                    f"{where} already holds a run. Go on with it (slackwater resume {where}), or name another folder "
                    "with out=."
                )
            for leftover in (FILE, FILE + "-wal", FILE + "-shm"):  # of a kill in the first milliseconds
                (where / leftover).unlink(missing_ok=True)
        try:
            connection = connect(where / FILE if where else None, create=True)
            row = (
                uuid.uuid4().hex, _now(), "running", budget_kg, *(_json(value) for value in (plan, settings, task, versions())),
            )  # fmt: skip
            with transaction(connection, where and where / FILE):
                connection.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        except BaseException:
            _unlock(lock)
            raise
        return cls(connection, where, lock)

    @staticmethod
    def begun(folder: str | Path) -> bool:
        """Whether a folder holds a run: a file with its first lines, or one that is not ours."""
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
        except (sqlite3.DatabaseError, SlackwaterError):
            return True

    @classmethod
    def open(cls, folder: str | Path, *, read_only: bool = False) -> Run:
        """A run that is there; to write to it, no other process may be doing so."""
        where = Path(folder)
        where = where.parent if where.name == FILE else where
        if not (where / FILE).is_file():
            raise SlackwaterError(
                f"There is no run in {where}: it has no {FILE}. Start one with: slackwater train plan.json --out "
                f"{where}"
            )
        lock = None if read_only else _locked(where)
        try:
            connection = connect(where / FILE, read_only=read_only)
            if connection.execute("SELECT count(*) FROM run").fetchone()[0] != 1:
                raise SlackwaterError(
                    f"The run in {where} was never begun. Start it anew: slackwater train plan.json --out {where}"
                )
            return cls(connection, where, lock)
        except BaseException:
            _unlock(lock)
            raise

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return None if self.folder is None else self.folder / FILE

    @property
    def status(self) -> Status:
        """Where the run stands."""
        status: Status = self._db.execute("SELECT status FROM run").fetchone()[0]
        return status

    def transaction(self) -> AbstractContextManager[None]:
        """What is written inside is in the file wholly or not at all."""
        return transaction(self._db, self.path)

    def set_status(self, status: Status) -> None:
        """Note where the run stands."""
        with self.transaction():
            self._db.execute("UPDATE run SET status = ?", (status,))

    def log(self, message: str, *, level: Level = "info", slot: int | None = None) -> None:
        """Note an event."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO events (at, level, slot, message) VALUES (?, ?, ?, ?)", (_now(), level, slot, message)
            )

    def events(self) -> list[tuple[str, Level, int | None, str]]:
        """Time, level, slot and message of every event, in order."""
        return [tuple(row) for row in self._db.execute("SELECT at, level, slot, message FROM events ORDER BY id")]

    def record(self, done: RoundRecord) -> None:
        """Keep a round."""
        row = (
            done.slot, done.number, done.slot_start.isoformat(), int(done.in_window), json.dumps(done.participants),
            json.dumps(done.weights), json.dumps(done.losses), done.loss, done.update_norm, done.accuracy, done.test_loss,
            done.spent_kg, done.seconds,
        )  # fmt: skip
        with self.transaction():
            self._db.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * len(row))})", row)

    def set_score(self, slot: int, accuracy: float | None, test_loss: float | None) -> None:
        """Note how the model after a round does, where that is known only after the round was kept."""
        with self.transaction():
            self._db.execute(
                "UPDATE rounds SET accuracy = ?, test_loss = ? WHERE slot = ?", (accuracy, test_loss, slot)
            )

    def rounds(self) -> Iterator[RoundRecord]:
        """Rounds that are done, in order."""
        for row in self._db.execute("SELECT * FROM rounds ORDER BY slot"):
            values = dict(row)
            values["slot_start"] = datetime.fromisoformat(values["slot_start"])
            values["in_window"] = bool(values["in_window"])
            values["participants"] = tuple(json.loads(values["participants"]))
            values["weights"], values["losses"] = json.loads(values["weights"]), json.loads(values["losses"])
            yield RoundRecord(**values)

    def record_evaluation(self, *results: EvaluationRecord) -> None:
        """Keep results; the same once more replaces them, since a resumed run may come to the same point again."""
        rows = [(r.slot, r.model, r.client, r.data, r.accuracy, r.loss, r.samples) for r in results]
        with self.transaction():
            self._db.executemany("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def evaluations(self) -> list[EvaluationRecord]:
        """All results."""
        return [
            EvaluationRecord(**dict(row)) for row in self._db.execute("SELECT * FROM evaluations ORDER BY slot, client")
        ]

    def save_parts(self, slot: int, parts: Mapping[str, Part]) -> None:
        """Replace these parts of the checkpoint."""
        rows = [(name, slot, part.dtype, json.dumps(part.shape), part.data) for name, part in parts.items()]
        with self.transaction():
            self._db.executemany("INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?, ?, ?)", rows)

    def load_parts(self) -> dict[str, Part]:
        """All parts of the checkpoint; empty before the first."""
        return {
            row["part"]: Part(dtype=row["dtype"], shape=tuple(json.loads(row["shape"])), data=row["data"])
            for row in self._db.execute("SELECT * FROM checkpoint")
        }

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
        _unlock(self._lock)
        self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def versions() -> dict[str, str]:
    """Versions that a result can depend on."""
    found = {"slackwater": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in ("numpy", "torch", "flwr"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _locked(folder: Path) -> int | None:
    """Hold the folder's lock; the system lets go of it when the process ends, however it ends."""
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
    """Whether the process that last opened the run to write lives; None where it was on another machine.

    Taking the lock to see would make a run that starts just then fail.
    """
    try:
        pid, _, machine = (folder / LOCK).read_text(encoding="utf-8").strip().partition(" ")
        if machine != platform.node():
            return None
        os.kill(int(pid), 0)
    except PermissionError:  # it is somebody else's, and there
        return True
    except (OSError, ValueError):
        return False
    return not _is_zombie(int(pid))


def _is_zombie(pid: int) -> bool:
    """Dead, but not yet collected by its parent, as Flower leaves its apps for minutes; only Linux says so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, default=str)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
