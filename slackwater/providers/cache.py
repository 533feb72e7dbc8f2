"""Readings on disk: one SQLite file that several processes may use at once.

Every write is one transaction, so a process that is killed leaves all of it or nothing. Actual values and forecasts are
kept apart: a forecast can never take the place of what was.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slackwater.carbon.series import minute_of, moment
from slackwater.carbon.traces import Factor
from slackwater.errors import SlackwaterError
from slackwater.providers.values import Asked, Kind, Reading

FORMAT = 1
FILE = "intensity.sqlite"
_BUSY_S = 60.0
"""How long a process waits for another one's write; each takes milliseconds."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS reading(
    source TEXT NOT NULL,
    zone TEXT NOT NULL,
    factor TEXT NOT NULL,       -- direct | lifecycle | marginal
    asked TEXT NOT NULL,        -- actual | forecast
    start INTEGER NOT NULL,     -- minutes since 1970 UTC, a multiple of `minutes`
    minutes INTEGER NOT NULL,
    kg_per_kwh REAL NOT NULL,
    kind TEXT NOT NULL,         -- actual | estimated | forecast
    fetched_at INTEGER NOT NULL,  -- seconds since 1970 UTC
    issued_at INTEGER,            -- the same, of a forecast
    PRIMARY KEY (source, zone, factor, asked, start)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS request(  -- the last that was answered, so that what is not there is not asked for again at once
    source TEXT NOT NULL,
    zone TEXT NOT NULL,
    factor TEXT NOT NULL,
    asked TEXT NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    answered_at INTEGER NOT NULL,
    PRIMARY KEY (source, zone, factor, asked)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose readings, of which zone."""

    source: str
    zone: str
    factor: Factor
    asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that was answered."""

    start: datetime
    end: datetime
    answered_at: datetime


def cache_file() -> Path:
    """intensity.sqlite in $SLACKWATER_CACHE, else in slackwater/ of the user's cache."""
    if named := os.environ.get("SLACKWATER_CACHE"):
        return Path(named).expanduser() / FILE
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slackwater" / FILE


class CacheError(SlackwaterError):
    """The cache cannot be used."""


class Cache:
    """The readings of all providers. Nothing is kept open between calls, so it can be passed on to other processes."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_file()

    def find(self, place: Place, start: datetime, end: datetime) -> list[Reading]:
        """Readings that start in [start, end), by time."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM reading WHERE source = ? AND zone = ? AND factor = ? AND asked = ? "
                "AND start >= ? AND start < ? ORDER BY start",
                (*_key(place), minute_of(start), minute_of(end)),
            ).fetchall()
        return [_reading(row) for row in rows]

    def store(self, place: Place, readings: Iterable[Reading], request: Request | None = None) -> None:
        """Keep readings, in place of those that they overlap; all of them or, if the process dies, none."""
        with self._open() as connection, _transaction(connection):
            for reading in readings:
                first, minutes = minute_of(reading.start), reading.minutes
                if first % minutes:
                    raise CacheError(f"A reading of {place.zone} starts off the full steps of UTC; it is not kept.")
                connection.execute(
                    "DELETE FROM reading WHERE source = ? AND zone = ? AND factor = ? AND asked = ? "
                    "AND start > ? AND start < ? AND start + minutes > ?",
                    (*_key(place), first - 60, first + minutes, first),
                )
                connection.execute(
                    "INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *_key(place),
                        first,
                        minutes,
                        reading.kg_per_kwh,
                        reading.kind,
                        int(reading.fetched_at.timestamp()),
                        None if reading.issued_at is None else int(reading.issued_at.timestamp()),
                    ),
                )
            if request is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO request VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        *_key(place),
                        minute_of(request.start),
                        minute_of(request.end),
                        int(request.answered_at.timestamp()),
                    ),
                )

    def last_request(self, place: Place) -> Request | None:
        """The last request that this provider answered."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT start, stop, answered_at FROM request WHERE source = ? AND zone = ? AND factor = ? AND asked = ?",
                _key(place),
            ).fetchone()
        if row is None:
            return None
        return Request(
            start=moment(row["start"]),
            end=moment(row["stop"]),
            answered_at=datetime.fromtimestamp(row["answered_at"], tz=UTC),
        )

    def everything(self, zone: str | None = None) -> list[Reading]:
        """All readings, by zone, source, factor and time."""
        if not self.path.exists():
            return []
        with self._open() as connection:
            rows = connection.execute(
                "SELECT * FROM reading WHERE ? IS NULL OR zone = ? ORDER BY zone, source, factor, asked, start",
                (zone, zone),
            ).fetchall()
        return [_reading(row) for row in rows]

    def clear(self, *, zone: str | None = None, before: datetime | None = None) -> int:
        """Forget readings, all or those of a zone or before a time; gives how many. A damaged file is removed."""
        if not self.path.exists():
            return 0
        end = None if before is None else minute_of(before)
        try:
            with self._open() as connection:
                with _transaction(connection):
                    gone = connection.execute(
                        "DELETE FROM reading WHERE (?1 IS NULL OR zone = ?1) AND (?2 IS NULL OR start + minutes <= ?2)",
                        (zone, end),
                    ).rowcount
                    connection.execute("DELETE FROM request WHERE ?1 IS NULL OR zone = ?1", (zone,))
                with suppress(sqlite3.OperationalError):  # another process is reading: the space is used again later
                    connection.execute("VACUUM")
        except _DamagedError:
            if zone is not None or before is not None:
                raise
            for suffix in ("", "-wal", "-shm", "-journal"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            return 0
        return int(gone)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)) as connection:
                connection.row_factory = sqlite3.Row
                self._prepare(connection)
                yield connection
        except sqlite3.OperationalError as error:
            raise CacheError(
                f"The cache {self.path} cannot be used ({error}). Name another folder in SLACKWATER_CACHE."
            ) from None
        except sqlite3.DatabaseError as error:
            raise _DamagedError(
                f"The cache {self.path} is damaged ({error}). Remove it with: slackwater data clear"
            ) from None
        except OSError as error:
            raise CacheError(
                f"The cache {self.path} cannot be written ({error.strerror or error}). Name another folder in "
                "SLACKWATER_CACHE."
            ) from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise CacheError(
                f"The cache {self.path} was made by a newer version of Slackwater. Upgrade, or name another folder in "
                "SLACKWATER_CACHE."
            )
        if version == 0:
            with suppress(sqlite3.OperationalError):  # another process is at it; readers and writers only wait longer
                connection.execute("PRAGMA journal_mode = WAL")
            with _transaction(connection):
                for statement in filter(str.strip, _SCHEMA.split(";\n")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {FORMAT}")


class _DamagedError(CacheError):
    """The file is not a database, or its pages contradict each other."""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # Immediate: two writers that first read would both hold the lock that the other one needs.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.OperationalError):  # on a full disk, SQLite has done so already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _key(place: Place) -> tuple[str, str, str, str]:
    return place.source, place.zone, place.factor, place.asked


def _reading(row: Any) -> Reading:
    kind: Kind = row["kind"]
    issued = row["issued_at"]
    return Reading(
        zone=row["zone"],
        start=moment(row["start"]),
        end=moment(row["start"] + row["minutes"]),
        kg_per_kwh=row["kg_per_kwh"],
        kind=kind,
        factor=row["factor"],
        source=row["source"],
        fetched_at=datetime.fromtimestamp(row["fetched_at"], tz=UTC),
        issued_at=None if issued is None else datetime.fromtimestamp(issued, tz=UTC),
    )
