"""The run's file, `run.db`: one SQLite schema for training, live runs and reports.

`charges` only grows: triggers refuse changes and deletions, a correction is a further row. The other tables describe
the run around it.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from slackwater._version import __version__
from slackwater.errors import SlackwaterError

VERSION = 2
"""Kept in the file as user_version; raised when an older Slackwater could not use the file.

2: upper bounds as a kind of intensity, and the tables of live runs. Files of version 1 are trainings; they are read and
written as they are.
"""

LOCK = "run.lock"
"""Beside the file: who holds it writes the run."""

_TABLES = """
CREATE TABLE run (                       -- one row
    id          TEXT NOT NULL PRIMARY KEY,
    created_at  TEXT NOT NULL,
    status      TEXT NOT NULL,           -- running | stopped | diverged | failed | done
    budget_kg   REAL,                    -- NULL: no limit
    plan        TEXT NOT NULL,           -- JSON, as plan.json holds it
    settings    TEXT NOT NULL,           -- JSON: aggregator, local work, seed, ..
    task        TEXT NOT NULL,           -- JSON: how the task was made
    versions    TEXT NOT NULL            -- JSON: of slackwater, python, torch, ..
) STRICT;

CREATE TABLE charges (
    id                    INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id                TEXT NOT NULL REFERENCES run(id),
    slot                  INTEGER NOT NULL,       -- counted from 0
    slot_start            TEXT NOT NULL,          -- UTC
    client                TEXT NOT NULL,          -- '' for the server
    zone                  TEXT NOT NULL,          -- '' where it has none
    cause                 TEXT NOT NULL CHECK (cause IN ('training', 'idle', 'server')),
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

CREATE TABLE rounds (                    -- one row for each slot in which somebody trained
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
    seconds       REAL NOT NULL          -- wall time, evaluation included
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

CREATE TABLE checkpoint (                -- the state after the last slot done, by parts; only changed parts are rewritten
    part    TEXT NOT NULL PRIMARY KEY,
    slot    INTEGER NOT NULL,            -- in which it changed
    dtype   TEXT NOT NULL,
    shape   TEXT NOT NULL,               -- JSON
    data    BLOB NOT NULL
) STRICT;

CREATE TABLE attempts (                  -- live: one row for each client that was to train in a slot
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

CREATE TABLE replans (                   -- live: every time what is left was planned anew
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    slot        INTEGER NOT NULL,
    at          TEXT NOT NULL,           -- wall clock, UTC
    reason      TEXT NOT NULL,
    changes     TEXT NOT NULL,           -- JSON, client -> slots before the window that are left, then and now
    reserve_kg  REAL,
    planned_kg  REAL
) STRICT;

CREATE TABLE state (                     -- live: what the run remembers beside its tensors
    name   TEXT NOT NULL PRIMARY KEY,
    value  TEXT NOT NULL                 -- JSON
) STRICT;
"""


def connect(path: Path | None, *, create: bool = False, read_only: bool = False) -> sqlite3.Connection:
    """Open a run's file (None: in memory), its version checked; transactions are explicit."""
    if path is None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    elif read_only:
        connection = reading(path)
    else:
        if create:  # made by us before SQLite sees it, so that it is never readable by others; -wal and -shm follow it
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, timeout=30.0, check_same_thread=False)
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found > VERSION:
            raise SlackwaterError(
                f"{path} was made by a newer Slackwater (schema {found}; version {__version__} knows "
                f"{VERSION}). "
                "Upgrade with: pip install --upgrade slackwater"
            )
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            # A commit is on the disk when it returns: a charge must outlive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if create:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif found == 0:
            raise SlackwaterError(
                f"{path} is not a run of Slackwater, or its first lines were never written. Start the run anew."
            )
    except sqlite3.DatabaseError as error:
        connection.close()
        raise SlackwaterError(f"{path} cannot be used as a run's file: {error}.") from None
    except BaseException:
        connection.close()
        raise
    connection.row_factory = sqlite3.Row
    return connection


def reading(path: Path) -> sqlite3.Connection:
    """A connection that only reads. What a killed writer left in its log is taken up first, which takes the right to write."""
    address = path.absolute().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA user_version")
    except sqlite3.OperationalError as error:
        connection.close()
        if "readonly" not in str(error):
            raise SlackwaterError(f"{path} cannot be used as a run's file: {error}.") from None
        connection = sqlite3.connect(f"{address}?mode=rw", uri=True, isolation_level=None, timeout=30.0)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.DatabaseError:
        pass  # said by who asks for more
    return connection
