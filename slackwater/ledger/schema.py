"""The run file: its tables and triggers, its kinds of run, and how older files are read and migrated."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slackwater._version import __version__
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.state_files import CHUNK, STATE, file_name, sync_folder, write_file

RunKind = Literal["simulated", "rehearsed", "live"]
"""`simulated`: trained by a plan whose intensity counts as actual, so nothing was really emitted by its clock.
`rehearsed`: the live path on a past period, with the forecasts of that time. `live`: in real time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindWords:
    """The words of one kind of run."""

    label: str  # one word, as it stands in tables, titles and file columns
    emitted: str  # what its kg are called: a run that was not live has emitted nothing by its clock
    sentence: str  # what a reader must know about its kg; every report begins with it

    @property
    def title(self) -> str:
        """Return the label with a capital letter, and 'run'."""
        return f"{self.label.capitalize()} run"


KINDS: Mapping[RunKind, KindWords] = {
    "simulated": KindWords(
        label="simulated",
        emitted="Would have emitted",
        sentence="Simulated run: it was trained without waiting for its hours, and the intensity of its plan counts as "
        "actual. The kg are what it would have emitted; they are not measured emissions.",
    ),
    "rehearsed": KindWords(
        label="rehearsed",
        emitted="Would have emitted",
        sentence="Rehearsed run: the live path on a past period, with the forecasts of that time. The kg are what it would "
        "have emitted; they are not measured emissions.",
    ),
    "live": KindWords(label="live", emitted="Emitted", sentence="Live run: it was carried out in real time."),
}


VERSION = 4
"""Version of the schema, stored as user_version; raised when an older Slackwater could not use the file.

2: upper bounds as a kind of intensity, and the tables of live runs.
3: the kind of run, more causes of a charge, the plan in force in every slot, and tensors in files beside it.
4: the share of the local work of clients below full power.
Older files are read as they are; opening one to write migrates it.
"""

_LOG_BYTES = 4 * 2**20  # length that SQLite's log (-wal) is cut to when all of it is in the file
_WAIT_S = 30.0  # for another process that holds the file

LOCK = "run.lock"  # beside the file: the process that holds it writes the run

_OF_DAMAGE = (
    sqlite3.Error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading a damaged file raises."""

_CHARGES = """
CREATE TABLE charges (
    id                    INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id                TEXT NOT NULL REFERENCES run(id),
    slot                  INTEGER NOT NULL,       -- counted from 0
    slot_start            TEXT NOT NULL,          -- UTC
    client                TEXT NOT NULL,          -- '' for the server
    zone                  TEXT NOT NULL,          -- '' where it has none
    cause                 TEXT NOT NULL CHECK (cause IN (
                              'training', 'idle', 'server', 'network', 'evaluation', 'startup')),
    kind                  TEXT NOT NULL CHECK (kind IN ('charge', 'correction', 'settlement')),
    attempt               INTEGER NOT NULL,
    planned               INTEGER NOT NULL CHECK (planned IN (0, 1)),
    started_at            TEXT,                   -- UTC
    ended_at              TEXT,                   -- UTC
    energy_kwh            REAL,                   -- NULL where only kg are known; of a correction, the difference
    intensity_kg_per_kwh  REAL,
    intensity_source      TEXT NOT NULL,
    intensity_kind        TEXT NOT NULL CHECK (intensity_kind IN ('actual', 'forecast', 'estimated', 'synthetic', 'bound')),
    factor                TEXT NOT NULL,          -- direct | lifecycle
    kg                    REAL NOT NULL,          -- of a correction or settlement, the difference: the sum is what was spent
    method                TEXT NOT NULL CHECK (method IN ('modelled', 'measured')),
    corrects              INTEGER REFERENCES charges(id),
    note                  TEXT NOT NULL,
    booked_at             TEXT NOT NULL,          -- wall clock, UTC
    CHECK ((kind = 'charge') = (corrects IS NULL)),
    CHECK (kind <> 'charge' OR kg >= 0)
) STRICT;
CREATE UNIQUE INDEX charged_once ON charges (slot, client, cause, attempt) WHERE kind = 'charge';
CREATE INDEX charges_by_slot ON charges (slot);
CREATE UNIQUE INDEX corrected_once ON charges (corrects, kind) WHERE corrects IS NOT NULL;
CREATE TRIGGER charges_stay BEFORE UPDATE ON charges
    BEGIN SELECT RAISE(ABORT, 'charges are append-only: add a correction'); END;
CREATE TRIGGER charges_remain BEFORE DELETE ON charges
    BEGIN SELECT RAISE(ABORT, 'charges are append-only: add a correction'); END;
"""

_LIVE = """
CREATE TABLE attempts (                  -- live: one row for each client planned to train in a slot
    slot        INTEGER NOT NULL,
    client      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    sent_at     TEXT,                    -- wall clock, UTC; NULL where nothing was sent
    ended_at    TEXT,
    outcome     TEXT NOT NULL CHECK (outcome IN (
                    'running', 'done', 'failed', 'late', 'lost', 'rejected', 'offline', 'refused')),
    seconds     REAL,                    -- of local training
    energy_kwh  REAL,                    -- charged
    method      TEXT CHECK (method IN ('modelled', 'measured')),
    error       TEXT NOT NULL,
    PRIMARY KEY (slot, client, attempt)
) STRICT;

CREATE TABLE replans (                   -- live: every re-planning of the rest
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    slot        INTEGER NOT NULL,
    at          TEXT NOT NULL,           -- wall clock, UTC
    reason      TEXT NOT NULL,
    changes     TEXT NOT NULL,           -- JSON, client -> slots left before the window, before and after
    reserve_kg  REAL,
    planned_kg  REAL
) STRICT;

CREATE TABLE state (                     -- live: state of the run beside its tensors
    name   TEXT NOT NULL PRIMARY KEY,
    value  TEXT NOT NULL                 -- JSON
) STRICT;

CREATE TABLE planned (                   -- live: what the plan in force when a slot was decided expected of it
    slot    INTEGER NOT NULL,
    client  TEXT NOT NULL,               -- '' for the server
    cause   TEXT NOT NULL,               -- as in charges
    kg      REAL NOT NULL,               -- expected then
    PRIMARY KEY (slot, client, cause)
) STRICT;
"""

_STATE = """
CREATE TABLE checkpoints (               -- the state after the last round, and the one before it
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    slot   INTEGER,                      -- of its last round; NULL before the first
    state  TEXT                          -- JSON, live: state of the model beside its tensors
) STRICT;

CREATE TABLE parts (                     -- the tensors of the checkpoints; a part that does not change keeps its row
    part        TEXT NOT NULL,
    written     INTEGER NOT NULL,        -- the first checkpoint that has it
    superseded  INTEGER,                 -- the first one after it that has not; NULL: the last has it
    slot        INTEGER,                 -- of the round in which it changed; NULL before the first
    dtype       TEXT NOT NULL,
    shape       TEXT NOT NULL,           -- JSON
    file        TEXT NOT NULL UNIQUE,    -- in the folder state/
    bytes       INTEGER NOT NULL,
    sha256      TEXT NOT NULL,
    PRIMARY KEY (part, written)
) STRICT;
"""

_TABLES = f"""
CREATE TABLE run (                       -- one row
    id          TEXT NOT NULL PRIMARY KEY,
    created_at  TEXT NOT NULL,
    status      TEXT NOT NULL,           -- running | stopped | diverged | failed | done
    budget_kg   REAL,                    -- NULL: no limit
    plan        TEXT NOT NULL,           -- JSON, as plan.json holds it
    settings    TEXT NOT NULL,           -- JSON: aggregator, local work, seed, ..
    task        TEXT NOT NULL,           -- JSON: how the task was made
    versions    TEXT NOT NULL,           -- JSON: of slackwater, python, torch, ..
    kind        TEXT NOT NULL CHECK (kind IN ('simulated', 'rehearsed', 'live'))
) STRICT;

{_CHARGES}
CREATE TABLE rounds (                    -- one row for each slot in which a client trained
    slot          INTEGER NOT NULL PRIMARY KEY,
    number        INTEGER NOT NULL,      -- 0, 1, .. over the slots with participants
    slot_start    TEXT NOT NULL,
    in_window     INTEGER NOT NULL,
    participants  TEXT NOT NULL,         -- JSON, names
    weights       TEXT NOT NULL,         -- JSON, name -> weight of its update, stored updates included
    losses        TEXT NOT NULL,         -- JSON, name -> mean loss over its local steps
    loss          REAL,                  -- mean of those
    update_norm   REAL,
    accuracy      REAL,                  -- on the global test set; NULL where it was not evaluated
    test_loss     REAL,
    spent_kg      REAL NOT NULL,         -- since the start, this slot included
    seconds       REAL NOT NULL,         -- wall time, evaluation included
    work          TEXT NOT NULL DEFAULT '{{}}'   -- JSON, name -> share of the local work, of clients below full power
) STRICT;

CREATE TABLE evaluations (
    slot        INTEGER NOT NULL,
    model       TEXT NOT NULL,           -- last | averaged
    client      TEXT NOT NULL,           -- '' for the global test set
    data        TEXT NOT NULL CHECK (data IN ('test', 'train')),
    accuracy    REAL,
    loss        REAL,
    samples     INTEGER NOT NULL,
    PRIMARY KEY (slot, model, client, data)
) STRICT;

CREATE TABLE events (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       TEXT NOT NULL,              -- wall clock, UTC
    level    TEXT NOT NULL CHECK (level IN ('info', 'warning', 'error')),
    slot     INTEGER,
    message  TEXT NOT NULL
) STRICT;

{_STATE}
{_LIVE}"""


_ADD_WORK = "ALTER TABLE rounds ADD COLUMN work TEXT NOT NULL DEFAULT '{}';"  # 3 -> 4


@contextmanager
def damage(path: Path | None, *, of: tuple[type[Exception], ...] = _OF_DAMAGE) -> Iterator[None]:
    """Turn errors of reading a damaged run file into a `SlackwaterError` that says what to do.

    An invalid value, such as a time, is a `ScenarioError` elsewhere; inside a run's file it is damage. Around more
    than reading, narrow the errors with `of`: a bug in our own code must not pass for a damaged file.
    """
    try:
        yield
    except of as error:
        if isinstance(error, SlackwaterError) and not isinstance(error, ScenarioError):
            raise
        if isinstance(error, sqlite3.OperationalError) and any(word in str(error) for word in ("locked", "busy")):
            raise SlackwaterError(
                f"{path} is in use by another program ({error}). Try again when it is done."
            ) from None
        raise damaged(path, error) from error


def damaged(path: Path | None, error: Exception) -> SlackwaterError:
    """Return the error for a damaged run file."""
    what = str(error) if isinstance(error, sqlite3.Error) else f"{type(error).__name__}: {error}"
    return SlackwaterError(
        f"{path or 'The run'} cannot be used as a run's file: it is damaged ({what}). Restore the folder from a backup, or start the run "
        "again in another."
    )


def connect(path: Path | None, *, create: bool = False, read_only: bool = False) -> sqlite3.Connection:
    """Open a run's file (None: in memory), its version checked; transactions are explicit."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    elif read_only:
        connection = reading(path)
    else:
        if create:  # made by us before SQLite sees it, so that it is never readable by others; -wal and -shm follow it
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, timeout=_WAIT_S, check_same_thread=False)
    try:
        with damage(path):
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise SlackwaterError(
                    f"{path} was made by a newer Slackwater (schema {found}; version {__version__} knows {VERSION}). "
                    "Upgrade with: pip install --upgrade slackwater"
                )
            if not read_only:
                _write_ahead(connection)
                # A commit is on the disk when it returns: a charge must outlive a power cut.
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
            if create:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
            elif found == 0:
                raise SlackwaterError(
                    f"{path} is not a run of Slackwater, or its first lines were never written. Start the run again."
                )
            elif found < VERSION and not read_only:
                assert path is not None
                if found < 3:
                    _migrate(connection, found, path.parent / STATE)
                connection.executescript(f"BEGIN IMMEDIATE; {_ADD_WORK} PRAGMA user_version = {VERSION}; COMMIT;")
            connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    connection.row_factory = sqlite3.Row
    return connection


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to a write-ahead log, so that readers do not wait; a finished run is no longer in this mode.

    Without the log a run is as safe, only slower, so a reader that holds the file delays this by a second at most.
    """
    db.execute("PRAGMA busy_timeout = 1000")
    try:
        db.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
    finally:
        db.execute(f"PRAGMA busy_timeout = {_WAIT_S * 1000:.0f}")


def fold_log(db: sqlite3.Connection, *, done: bool) -> None:
    """Move the log into the file and truncate it; for a finished run, remove the log.

    SQLite can read a file with a log only where it may write beside it, so this makes a finished run readable on
    read-only media. An active reader prevents it; this does not wait.
    """
    with suppress(sqlite3.Error):
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if done:
            db.execute("PRAGMA journal_mode = DELETE")


def _migrate(db: sqlite3.Connection, found: int, folder: Path) -> None:
    """Migrate a file of version 1 or 2 to version 3, in one transaction; the lines of its ledger do not change.

    Tensors go to files first, one at a time. A kill before the commit leaves the file as it was.
    """
    _move_parts(db, folder)
    columns = ", ".join(row[1] for row in db.execute("PRAGMA table_info(charges)"))
    steps = [_LIVE if found == 1 else _table("planned", _LIVE)]
    # SQLite cannot change a CHECK, so the table is copied; dropping the old one drops its triggers and indexes.
    steps += [
        "ALTER TABLE charges RENAME TO charges_before;",
        *(f"DROP INDEX IF EXISTS {name};" for name in ("charged_once", "charges_by_slot", "corrected_once")),
        *(f"DROP TRIGGER IF EXISTS {name};" for name in ("charges_stay", "charges_remain")),
        _CHARGES,
        f"INSERT INTO charges ({columns}) SELECT {columns} FROM charges_before ORDER BY id; DROP TABLE charges_before;",
        f"ALTER TABLE run ADD COLUMN kind TEXT NOT NULL DEFAULT '{kind_of_old(db)}';",
        _STATE,
        # Before its first round a live run kept the slot 0.
        "INSERT INTO checkpoints SELECT 1, CASE WHEN EXISTS (SELECT 1 FROM rounds) THEN (SELECT max(slot) FROM moved) END, "
        "(SELECT value FROM state WHERE name = 'model') WHERE EXISTS (SELECT 1 FROM moved);",
        "INSERT INTO parts SELECT part, 1, NULL, slot, dtype, shape, file, bytes, sha256 FROM moved;",
        "DROP TABLE checkpoint;",
    ]
    db.executescript("BEGIN IMMEDIATE;" + "\n".join(steps) + "PRAGMA user_version = 3; COMMIT; DROP TABLE moved;")
    with suppress(sqlite3.OperationalError):  # free the space of the tensors; not essential
        db.execute("VACUUM")


def _move_parts(db: sqlite3.Connection, folder: Path) -> None:
    """Write the tensors that an older file holds to files, and list them in a temporary table."""
    db.execute("DROP TABLE IF EXISTS temp.moved")
    db.execute("CREATE TEMP TABLE moved (part, slot, dtype, shape, file, bytes, sha256)")
    rows = db.execute("SELECT rowid, part, slot, dtype, shape FROM checkpoint ORDER BY rowid").fetchall()
    if rows:
        folder.mkdir(mode=0o700, exist_ok=True)
    for number, (rowid, part, slot, dtype, shape) in enumerate(rows):
        file = file_name(1, number, part)
        with db.blobopen("checkpoint", "data", rowid, readonly=True) as blob:
            size, digest = write_file(folder / file, iter(lambda: blob.read(CHUNK), b""))
        db.execute("INSERT INTO moved VALUES (?, ?, ?, ?, ?, ?, ?)", (part, slot, dtype, shape, file, size, digest))
    if rows:
        sync_folder(folder)


def kind_of_old(db: sqlite3.Connection) -> Literal["simulated", "live"]:
    """Return the kind of a run whose file does not say it: only real time, with a task of its own, was live."""
    row = db.execute(
        "SELECT coalesce(json_extract(task, '$.live'), 0), json_extract(settings, '$.slot_seconds') FROM run"
    ).fetchone()
    return "live" if row is not None and row[0] and row[1] is None else "simulated"


def task_name(task: Mapping[str, Any]) -> str:
    """Return the name of a run's task, for people. A run of an app stores the app's folder: its last part is the name."""
    name = str(task.get("name") or "unknown")
    return Path(name).name or name if task.get("live") else name


def _table(name: str, script: str) -> str:
    """Return the statement of a script that creates one table."""
    return next(part + ";\n" for part in script.split(";\n") if f"CREATE TABLE {name} " in part)


def reading(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads.

    The log of a killed writer is applied first, which needs write permission. Where SQLite may not write beside the
    file, as on read-only media, a file without a log is read as immutable.
    """
    try:
        return _opened(path, "mode=ro")
    except sqlite3.OperationalError as error:
        why = str(error)
    if "readonly" in why:
        with suppress(sqlite3.OperationalError):
            connection = _opened(path, "mode=rw")
            connection.execute("PRAGMA query_only = ON")
            return connection
    elif "unable to open" not in why or not path.is_file():
        raise SlackwaterError(f"{path} cannot be used as a run's file: {why}. Name another folder, or try again later.")
    left = [beside for end in ("-wal", "-journal", "-shm") if (beside := path.with_name(path.name + end)).is_file()]
    if any(beside.stat().st_size for beside in left):
        raise SlackwaterError(
            f"{path} was not closed: {left[0].name} may hold its last changes, and its folder cannot be written. Copy the "
            "folder to a place where you can write, and read it there."
        )
    return _opened(path, "immutable=1")


def _opened(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None, timeout=_WAIT_S)
    try:
        connection.execute("PRAGMA user_version")
    except sqlite3.OperationalError:
        connection.close()
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        pass  # the next query reports it
    return connection
