"""The tensors of a run as files: one a part in `state/`, each with its length and SHA-256 in run.db.

A part that changed goes to a new file (temporary name, fsync, rename), and the round's own transaction names that file.
So a kill at any moment leaves the last checkpoint whole; files that no checkpoint names are deleted when the run is next
opened to write. The checkpoint before the last is kept too, in case a file is damaged: a file that a round replaced is
deleted when the next round is committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.atomic import whole_file
from slackwater.errors import SlackwaterError

STATE = "state"  # folder of the files, in the run's folder
CHUNK = 8 * 2**20  # bytes that are read or written at a time
_OURS = re.compile(r"\d+-\d+-[a-z0-9-]*\.bin(\.tmp)?")
_READABLE = 60  # characters of a part's name that its file shows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One array to write."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview  # its bytes, in the array's own memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One array as it was written."""

    name: str
    slot: int | None  # slot of the round in which it changed; None before the first
    dtype: str
    shape: tuple[int, ...]
    file: str  # name in `state/`
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One checkpoint."""

    id: int
    slot: int | None  # slot of the last round in it; None before the first
    state: Any  # state of the model beside its tensors, for live runs; None for a training run


class BadPartError(ValueError):
    """A file that is not what was written; the message says how it differs."""


class StateFiles:
    """The checkpoints of one run: the last one, and the one before it."""

    def __init__(self, connection: sqlite3.Connection, folder: Path | None) -> None:
        self._db = connection
        self._folder = None if folder is None else folder / STATE
        self._new: list[str] = []
        self._old: list[str] = []

    def save(
        self, slot: int | None, names: Collection[str], changed: Iterable[tuple[str, Part]], state: Any = None
    ) -> None:
        """Write a checkpoint inside the transaction of its round.

        Args:
            slot: Slot of the round; None before the first.
            names: All parts of the state. Other parts are dropped.
            changed: The parts to write. They are taken and written one at a time.
            state: JSON value to keep with the checkpoint.

        Raises:
            SlackwaterError: A file cannot be written. The transaction is then rolled back, and nothing is lost.
        """
        assert self._folder is not None
        assert self._db.in_transaction
        last = self._db.execute("SELECT max(id) FROM checkpoints").fetchone()[0]
        value = None if state is None else json.dumps(state, allow_nan=False)
        this = self._db.execute("INSERT INTO checkpoints (slot, state) VALUES (?, ?)", (slot, value)).lastrowid
        rows: list[tuple[object, ...]] = []
        for number, (name, part) in enumerate(changed):
            file = file_name(int(this or 0), number, name)
            self._new.append(file)
            pieces = (part.data[at : at + CHUNK] for at in range(0, len(part.data), CHUNK))
            size, digest = write_file(self._folder / file, pieces)
            rows.append((name, this, slot, part.dtype, json.dumps(part.shape), file, size, digest))
        sync_folder(self._folder)
        gone = {row[0] for row in self._db.execute("SELECT part FROM parts WHERE superseded IS NULL")} - set(names)
        self._db.executemany(
            "UPDATE parts SET superseded = ? WHERE part = ? AND superseded IS NULL",
            [(this, name) for name in (*gone, *(row[0] for row in rows))],
        )
        self._db.executemany("INSERT INTO parts VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?)", rows)
        if last is not None:  # files that only the checkpoint before the last needed
            self._drop("superseded <= ?", last)
            self._db.execute("DELETE FROM checkpoints WHERE id < ?", (last,))

    def checkpoints(self) -> list[Kept]:
        """Return the checkpoints, the newest first."""
        return [
            Kept(id=row["id"], slot=row["slot"], state=None if row["state"] is None else json.loads(row["state"]))
            for row in self._db.execute("SELECT * FROM checkpoints ORDER BY id DESC")
        ]

    def parts(self, checkpoint: Kept) -> list[PartFile]:
        """Return the parts of a checkpoint."""
        query = "SELECT * FROM parts WHERE written <= ?1 AND (superseded IS NULL OR superseded > ?1) ORDER BY part"
        return [
            PartFile(
                name=row["part"],
                slot=row["slot"],
                dtype=row["dtype"],
                shape=tuple(json.loads(row["shape"])),
                file=row["file"],
                size=row["bytes"],
                sha256=row["sha256"],
            )
            for row in self._db.execute(query, (checkpoint.id,))
        ]

    def read(self, part: PartFile, into: memoryview | None = None) -> None:
        """Read a part into memory of its length, or only check it; raise `BadPartError` if it is not what was written."""
        assert self._folder is not None
        digest, at = hashlib.sha256(), 0
        try:
            with (self._folder / part.file).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size != part.size or (into is not None and into.nbytes != size):
                    raise BadPartError(f"{STATE}/{part.file} has {size:,} bytes instead of {part.size:,}")
                scratch = memoryview(bytearray(min(CHUNK, size))) if into is None else into
                while at < size:
                    piece = scratch[:CHUNK] if into is None else scratch[at : at + CHUNK]
                    count = file.readinto(piece[: size - at])
                    if not count:
                        raise BadPartError(f"{STATE}/{part.file} ends early")
                    digest.update(piece[:count])
                    at += count
        except OSError as error:
            raise BadPartError(f"{STATE}/{part.file} cannot be read ({error.strerror or error})") from None
        if digest.hexdigest() != part.sha256:
            raise BadPartError(f"{STATE}/{part.file} does not have the SHA-256 with which it was written")

    def fault(self, checkpoint: Kept) -> str | None:
        """Return what is wrong with the files of a checkpoint; None if all are good."""
        parts = self.parts(checkpoint)
        try:
            for part in parts:
                self.read(part)
        except BadPartError as error:
            return str(error)
        return None if parts else "it has no parts"

    def return_to(self, checkpoint: Kept) -> None:
        """Make an earlier checkpoint the last one, inside the caller's transaction."""
        self._drop("written > ?", checkpoint.id)
        self._db.execute("UPDATE parts SET superseded = NULL WHERE superseded > ?", (checkpoint.id,))
        self._db.execute("DELETE FROM checkpoints WHERE id > ?", (checkpoint.id,))

    def committed(self) -> None:
        """Delete the files that the transaction just committed no longer needs."""
        self._delete(self._old)
        self._new, self._old = [], []

    def undone(self) -> None:
        """Delete the files that a transaction had written before it was rolled back."""
        self._delete([name for file in self._new for name in (file, f"{file}.tmp")])
        self._new, self._old = [], []

    def prepare(self) -> None:
        """Create the folder, and delete the files in it that no checkpoint names, left by a kill."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise SlackwaterError(f"{self._folder} cannot be made: {error.strerror}. Name another folder.") from None
        known = {row[0] for row in self._db.execute("SELECT file FROM parts")}
        self._delete([name for name in os.listdir(self._folder) if _OURS.fullmatch(name) and name not in known])

    def _drop(self, where: str, value: int) -> None:
        self._old += [row[0] for row in self._db.execute(f"SELECT file FROM parts WHERE {where}", (value,))]
        self._db.execute(f"DELETE FROM parts WHERE {where}", (value,))

    def _delete(self, names: Iterable[str]) -> None:
        if self._folder is None:
            return
        for name in names:
            with suppress(OSError):  # a file that cannot be deleted now is tried again at the next opening
                os.unlink(self._folder / name)


def file_name(checkpoint: int, number: int, part: str) -> str:
    """Return a file name that no other part of the run has, whatever characters the part's name holds."""
    shown = re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-")[:_READABLE]
    return f"{checkpoint}-{number}-{shown}.bin"


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file that appears whole on disk or not at all; return its length in bytes and SHA-256.

    Only `sync_folder` makes the name itself outlast a power cut.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with whole_file(path, draft=path.with_name(f"{path.name}.tmp")) as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
                size += len(piece)
    except OSError as error:
        run = path.parent.parent
        raise SlackwaterError(
            f"{path} cannot be written: {error.strerror or error}. Earlier work is safe. Free disk space, then continue "
            f"with: slackwater resume {run}"
        ) from None
    return size, digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk; a system that cannot (Windows) does it by itself."""
    with suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
