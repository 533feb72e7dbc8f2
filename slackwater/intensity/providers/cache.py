"""The cache of readings: one SQLite file that several processes may use at once, and a summary of it."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from slackwater.errors import SlackwaterError
from slackwater.intensity.providers.readings import KINDS, Asked, Kind, Reading
from slackwater.intensity.traces import Factor, minute_of, moment
from slackwater.units import floor_hour

T = TypeVar("T")
FORMAT = 2
"""1: without issued forecasts."""
FILE = "intensity.sqlite"
_BUSY_S = 60.0
"""Longest wait for the write of another process; each takes milliseconds."""
_LONGEST_MINUTES = 60
_AT = "source = ? AND zone = ? AND factor = ? AND asked = ?"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS reading(
    source TEXT NOT NULL, zone TEXT NOT NULL,
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
CREATE TABLE IF NOT EXISTS request(  -- the last answered one, so that missing values are not asked for again at once
    source TEXT NOT NULL, zone TEXT NOT NULL, factor TEXT NOT NULL, asked TEXT NOT NULL,
    start INTEGER NOT NULL, stop INTEGER NOT NULL, answered_at INTEGER NOT NULL,
    PRIMARY KEY (source, zone, factor, asked)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS issue(  -- issued forecasts
    source TEXT NOT NULL, zone TEXT NOT NULL, factor TEXT NOT NULL,
    issued_at INTEGER NOT NULL,   -- seconds since 1970 UTC; the time of fetching if the provider does not say
    start INTEGER NOT NULL,       -- minutes since 1970 UTC, a full hour
    kg_per_kwh BLOB NOT NULL,     -- little-endian float32, hourly from `start`; NaN if missing
    PRIMARY KEY (source, zone, factor, issued_at)
) WITHOUT ROWID;
"""
_KEPT_ISSUES = timedelta(days=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Name a series of readings."""

    source: str
    zone: str
    factor: Factor
    asked: Asked

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return its key in the tables."""
        return self.source, self.zone, self.factor, self.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Describe a request that was answered."""

    start: datetime
    end: datetime
    answered_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issue:
    """A forecast of one zone as it was issued."""

    source: str
    issued_at: datetime
    start: datetime
    """A full hour."""
    kg_per_kwh: NDArray[np.float64]
    """[hour] from `start` on; NaN without a forecast."""


def issue_of(readings: Sequence[Reading]) -> Issue | None:
    """Return the forecast readings of one zone and source as one issue, hourly; None if there are none."""
    forecast = [reading for reading in readings if reading.kind == "forecast" and not reading.stale]
    if not forecast:
        return None
    start = floor_hour(min(reading.start for reading in forecast))
    hours = -(-(max(reading.end for reading in forecast) - start) // timedelta(hours=1))
    total, minutes = np.zeros(hours), np.zeros(hours)
    for reading in forecast:
        hour = (reading.start - start) // timedelta(hours=1)
        total[hour] += reading.kg_per_kwh * reading.minutes
        minutes[hour] += reading.minutes
    values = np.where(minutes > 0, total / np.maximum(minutes, 1.0), np.nan)
    issued_at = max(reading.issued_at or reading.fetched_at for reading in forecast)
    return Issue(source=forecast[0].source, issued_at=issued_at, start=start, kg_per_kwh=values)


class CacheError(SlackwaterError):
    """The cache cannot be used."""


def cache_folder() -> Path:
    """Return where fetched data is kept: $SLACKWATER_CACHE, else slackwater/ of the user's cache."""
    if named := os.environ.get("SLACKWATER_CACHE"):
        return Path(named).expanduser()
    found = user_cache_path("slackwater", appauthor=False)
    if not found.is_absolute():
        raise CacheError("There is no home folder for fetched data. Name a folder in SLACKWATER_CACHE.")
    return found


class Cache:
    """Store the readings of all providers. No connection stays open between calls, so processes can share it."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_folder() / FILE

    def find(self, place: Place, start: datetime, end: datetime) -> list[Reading]:
        """Return the readings that start in [start, end), by time."""
        return self._select(
            _reading,
            f"SELECT * FROM reading WHERE {_AT} AND start >= ? AND start < ? ORDER BY start",
            (*place.key, minute_of(start), minute_of(end)),
        )

    def store(self, place: Place, readings: Iterable[Reading], request: Request | None = None) -> None:
        """Store readings in place of those that they overlap: all of them or, if the process dies, none."""
        with self._open() as connection, _transaction(connection):
            for reading in readings:
                first, minutes = minute_of(reading.start), reading.minutes
                if first % minutes:
                    raise CacheError(
                        f"A reading of {place.zone} does not start at a full step of UTC; it is not cached."
                    )
                connection.execute(
                    f"DELETE FROM reading WHERE {_AT} AND start > ? AND start < ? AND start + minutes > ?",
                    (*place.key, first - 60, first + minutes, first),
                )
                fetched = int(reading.fetched_at.timestamp())
                issued = None if reading.issued_at is None else int(reading.issued_at.timestamp())
                row = (*place.key, first, minutes, reading.kg_per_kwh, reading.kind, fetched, issued)
                connection.execute("INSERT OR REPLACE INTO reading VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if request is not None:
                answered = int(request.answered_at.timestamp())
                asked = (*place.key, minute_of(request.start), minute_of(request.end), answered)
                connection.execute("INSERT OR REPLACE INTO request VALUES (?, ?, ?, ?, ?, ?, ?)", asked)

    def keep_issue(self, place: Place, issue: Issue) -> None:
        """Store a forecast as it was issued, unless it repeats the last one."""
        values = issue.kg_per_kwh.astype("<f4").tobytes()
        key = (place.source, place.zone, place.factor)
        issued = int(issue.issued_at.timestamp())
        with self._open() as connection, _transaction(connection):
            last = connection.execute(
                "SELECT start, kg_per_kwh FROM issue WHERE source = ? AND zone = ? AND factor = ? ORDER BY issued_at DESC "
                "LIMIT 1",
                key,
            ).fetchone()
            start = minute_of(issue.start)
            if last is None or (last["start"], last["kg_per_kwh"]) != (start, values):
                row = (*key, issued, start, values)
                connection.execute("INSERT OR REPLACE INTO issue VALUES (?, ?, ?, ?, ?, ?)", row)
            oldest = issued - int(_KEPT_ISSUES.total_seconds())
            connection.execute("DELETE FROM issue WHERE issued_at < ?", (oldest,))

    def issues(self, zone: str, factor: Factor, until: datetime) -> list[Issue]:
        """Return the forecasts of a zone that were issued by a time, in that order."""
        query = "SELECT * FROM issue WHERE zone = ? AND factor = ? AND issued_at <= ? ORDER BY issued_at"
        return self._select(_issue, query, (zone, factor, int(until.timestamp()))) if self.path.exists() else []

    def last_request(self, place: Place) -> Request | None:
        """Return the last request that this provider answered."""
        return next(iter(self._select(_request, f"SELECT * FROM request WHERE {_AT}", place.key)), None)

    def _select(self, make: Callable[[Any], T], query: str, values: Sequence[object]) -> list[T]:
        """Return the rows of a query, each converted by `make`."""
        with self._open() as connection:
            rows = connection.execute(query, values).fetchall()
        try:
            return [make(row) for row in rows]
        except (TypeError, ValueError, OverflowError, OSError) as error:  # a cell has an impossible value
            raise self._damaged(error) from None

    def _damaged(self, why: Exception) -> _DamagedError:
        return _DamagedError(f"The cache {self.path} is damaged ({why}). Remove it with: slackwater data clear")

    def everything(self, zone: str | None = None) -> list[Reading]:
        """Return all readings, by zone, source, factor and time."""
        query = "SELECT * FROM reading WHERE ? IS NULL OR zone = ? ORDER BY zone, source, factor, asked, start"
        return self._select(_reading, query, (zone, zone)) if self.path.exists() else []

    def clear(self, *, zone: str | None = None, before: datetime | None = None) -> int:
        """Delete readings, all or those of a zone or before a time; return how many. A damaged file is removed."""
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
                    connection.execute(
                        "DELETE FROM issue WHERE (?1 IS NULL OR zone = ?1) AND (?2 IS NULL OR issued_at < 60 * ?2)",
                        (zone, end),
                    )
                with suppress(sqlite3.OperationalError):  # another process is reading; the space is reused later
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
            raise self._damaged(error) from None
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
        if version < FORMAT:
            with suppress(
                sqlite3.OperationalError
            ):  # another process is doing it; readers and writers only wait longer
                connection.execute("PRAGMA journal_mode = WAL")
            with _transaction(connection):
                for statement in filter(str.strip, _SCHEMA.split(";\n")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {FORMAT}")


class _DamagedError(CacheError):
    """The file is not a database, or its pages contradict each other."""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # Immediate: two writers that read first would each hold the lock that the other needs.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.OperationalError):  # on a full disk, SQLite has done so already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _request(row: Any) -> Request:
    answered_at = datetime.fromtimestamp(row["answered_at"], tz=UTC)
    return Request(start=moment(row["start"]), end=moment(row["stop"]), answered_at=answered_at)


def _issue(row: Any) -> Issue:
    values = np.frombuffer(row["kg_per_kwh"], dtype="<f4").astype(np.float64)
    if np.any(values < 0) or np.any(np.isinf(values)):
        raise ValueError(f"an impossible forecast of {row['zone']!r}")
    issued_at = datetime.fromtimestamp(row["issued_at"], tz=UTC)
    return Issue(source=row["source"], issued_at=issued_at, start=moment(row["start"]), kg_per_kwh=values)


def _reading(row: Any) -> Reading:
    kind: Kind = row["kind"]
    issued, kg, minutes = row["issued_at"], row["kg_per_kwh"], row["minutes"]
    if kind not in KINDS or not isinstance(kg, float) or not 0 <= kg < math.inf or not 0 < minutes <= _LONGEST_MINUTES:
        raise ValueError(f"an impossible value of {row['zone']!r}")
    return Reading(
        zone=row["zone"], start=moment(row["start"]), end=moment(row["start"] + minutes), kg_per_kwh=kg, kind=kind,
        factor=row["factor"], source=row["source"], fetched_at=datetime.fromtimestamp(row["fetched_at"], tz=UTC),
        issued_at=None if issued is None else datetime.fromtimestamp(issued, tz=UTC),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """[start, end) without a gap."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The readings of a zone, source, factor and kind."""

    zone: str
    source: str
    factor: Factor
    kind: Kind
    runs: tuple[Run, ...]
    hours: float
    mean_kg_per_kwh: float
    """Mean over time."""
    fetched_at: datetime
    """When the last of them was fetched."""


def coverage(readings: Iterable[Reading]) -> list[Cover]:
    """Return readings, each source's in order of time, as covers by zone, source, factor and kind."""
    groups: dict[tuple[str, str, Factor, Kind], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.zone, reading.source, reading.factor, reading.kind), []).append(reading)
    return [_cover(group) for _, group in sorted(groups.items())]


def _cover(readings: list[Reading]) -> Cover:
    runs: list[Run] = []
    for reading in readings:
        if runs and runs[-1].end == reading.start:
            runs[-1] = Run(start=runs[-1].start, end=reading.end)
        else:
            runs.append(Run(start=reading.start, end=reading.end))
    minutes = sum(reading.minutes for reading in readings)
    first = readings[0]
    return Cover(
        zone=first.zone, source=first.source, factor=first.factor, kind=first.kind, runs=tuple(runs),
        hours=minutes / 60,
        mean_kg_per_kwh=sum(reading.kg_per_kwh * reading.minutes for reading in readings) / minutes,
        fetched_at=max(reading.fetched_at for reading in readings),
    )  # fmt: skip
