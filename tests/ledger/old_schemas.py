"""The run file as earlier versions made it, so that files of theirs can be tested."""

import shutil
import sqlite3
from pathlib import Path

VERSION_1 = """
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
"""
"""Without the tables of live runs; bounds did not exist, which no test needs."""

VERSION_2 = (
    VERSION_1
    + """
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
)


def made_older(folder: Path, version: int) -> None:
    """Make a run's folder what an earlier version would have left: tensors as blobs in run.db, and no files of them."""
    new = sqlite3.connect(folder / "run.db", isolation_level=None)
    new.row_factory = sqlite3.Row
    old = sqlite3.connect(folder / "old.db", isolation_level=None)
    old.executescript({1: VERSION_1, 2: VERSION_2}[version] + f"PRAGMA user_version = {version};")
    for (table,) in old.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall():
        if table != "checkpoint":
            names = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
            rows = [tuple(row) for row in new.execute(f"SELECT {', '.join(names)} FROM {table}")]
            old.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", rows)
    for row in new.execute("SELECT part, coalesce(slot, 0), dtype, shape, file FROM parts WHERE superseded IS NULL"):
        data = (folder / "state" / row["file"]).read_bytes()
        old.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?)", (*tuple(row)[:4], data))
    new.close()
    old.close()
    shutil.rmtree(folder / "state")
    for name in ("run.db", "run.db-wal", "run.db-shm"):
        (folder / name).unlink(missing_ok=True)
    (folder / "old.db").rename(folder / "run.db")
