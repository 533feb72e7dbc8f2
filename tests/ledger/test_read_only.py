"""Whoever only looks at a run can do so whatever its writer left behind."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import SlackwaterError
from slackwater.ledger import schema as schema_module
from slackwater.ledger.run import Run, is_written
from slackwater.ledger.state_files import Part

KILLED = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = DELETE")
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
db.executemany("INSERT INTO events (at, level, message) VALUES ('', 'info', ?)", [("x" * 5000,)] * 200)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_taken_up(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.log("kept")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run" / "run.db")])
    assert (tmp_path / "run" / "run.db-journal").stat().st_size > 0
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert [message for _, _, _, message in run.events()] == ["kept"]


def test_a_dead_writer_that_nobody_collected_does_not_write(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as writer:
        (tmp_path / "run" / "run.lock").write_text(f"{writer.pid} {platform.node()}\n")
        assert is_written(tmp_path / "run")
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead now, and still in the table of processes
        assert not is_written(tmp_path / "run")


def test_a_run_killed_while_its_file_was_made_was_not_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    making = KILLED.replace(
        'db.execute("BEGIN IMMEDIATE")', 'db.execute("BEGIN"); db.execute("CREATE TABLE events (at, level, message)")'
    )
    subprocess.run([sys.executable, "-c", making, str(folder / "run.db")])
    assert (folder / "run.db-journal").stat().st_size > 0
    assert not Run.begun(folder)


def finished(folder: Path) -> Path:
    with Run.create(folder, plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.log("kept")
        run.set_status("done")
    return folder


def messages(folder: Path) -> list[str]:
    with Run.open(folder, read_only=True) as run:
        return [message for *_, message in run.events()]


def journal_mode(folder: Path) -> str:
    """From the file's header, without opening it."""
    return {1: "delete", 2: "wal"}[(folder / "run.db").read_bytes()[18]]


def test_a_finished_run_is_one_file_that_can_be_read_without_writing_beside_it(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    assert {path.name for path in folder.iterdir()} == {"run.db", "run.lock", "state"}
    assert journal_mode(folder) == "delete"
    with Run.open(folder) as run:  # to settle it, say
        assert journal_mode(folder) == "wal"
        run.log("settled")
    assert journal_mode(folder) == "delete"
    assert messages(folder) == ["kept", "settled"]


def test_a_run_that_is_not_done_keeps_its_log_empty(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={})
    with reading(tmp_path / "run"):  # as long as anybody has the file open, SQLite leaves the log where it is
        run.log("kept")
        assert (tmp_path / "run" / "run.db-wal").stat().st_size > 0
        run.close()
        assert (tmp_path / "run" / "run.db-wal").stat().st_size == 0
    assert messages(tmp_path / "run") == ["kept"]


def test_a_run_can_be_finished_and_settled_while_somebody_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with reading(finished(folder)) as db:
        db.execute("BEGIN")
        assert db.execute("SELECT count(*) FROM events").fetchone()[0] == 1
        Run.open(folder).close()  # nothing is written, so nobody waits


def test_a_reader_of_a_finished_run_does_not_delay_its_writer_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a finished run to write turns the log on, which a reader prevents; the usual 30 s would be lost on it."""
    waits: dict[str, int] = {}

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> Any:
            waits[statement] = super().execute("PRAGMA busy_timeout").fetchone()[0]
            return super().execute(statement, *given)

    usual = sqlite3.connect
    folder = tmp_path / "run"
    with reading(finished(folder)) as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM events").fetchone()
        monkeypatch.setattr(
            schema_module.sqlite3, "connect", lambda *given, **more: usual(*given, factory=Watched, **more)
        )
        Run.open(folder).close()
    assert waits["PRAGMA journal_mode = WAL"] == 1000
    assert waits["SELECT * FROM run"] == 30_000, "everything else waits for a writer as long as before"


class NoSharedMemory(sqlite3.Connection):
    """As on a read-only disk: a file with a log cannot be opened, since -shm cannot be made."""

    def execute(self, *given: Any) -> Any:
        raise sqlite3.OperationalError("unable to open database file")


def on_read_only_media(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = sqlite3.connect

    def connect(address: Any, *given: Any, **more: Any) -> Any:
        more |= {} if "immutable=1" in str(address) else {"factory": NoSharedMemory}
        return usual(address, *given, **more)

    monkeypatch.setattr(schema_module.sqlite3, "connect", connect)


def test_a_run_with_an_empty_log_is_read_on_read_only_media(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.log("kept")
    assert journal_mode(tmp_path / "run") == "wal"
    on_read_only_media(monkeypatch)
    assert messages(tmp_path / "run") == ["kept"]


def test_a_run_that_was_killed_is_not_read_without_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.log("in the log alone")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "copy" / "run.db-shm").unlink()
    assert (tmp_path / "copy" / "run.db-wal").stat().st_size > 0
    on_read_only_media(monkeypatch)
    with pytest.raises(SlackwaterError, match=r"run.db-wal may hold its last changes.*Copy the folder"):
        messages(tmp_path / "copy")
    monkeypatch.undo()
    assert messages(tmp_path / "copy") == ["in the log alone"]


@contextmanager
def mounted_read_only(folder: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    for how in (["--bind", str(folder), str(at)], ["-o", "remount,ro,bind", str(at)]):
        if shutil.which("mount") is None or subprocess.run(["mount", *how], capture_output=True).returncode:
            pytest.skip("needs the right to mount")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


@pytest.mark.parametrize("done", [True, False])
def test_a_run_on_a_disk_that_is_really_read_only(tmp_path: Path, done: bool) -> None:
    folder = finished(tmp_path / "run")
    if not done:
        with Run.open(folder) as run:
            run.set_status("stopped")
        assert journal_mode(folder) == "wal"
    with mounted_read_only(folder, tmp_path / "disk") as disk:
        assert messages(disk) == ["kept"]
        with pytest.raises(SlackwaterError, match=r"cannot be written: Read-only file system. Copy the folder"):
            Run.open(disk)


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """A reader of the file."""
    db = sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True, isolation_level=None)
    db.execute("SELECT count(*) FROM run").fetchone()
    yield db
    db.close()


def test_the_log_does_not_grow_by_a_state_with_every_round_while_somebody_reads(tmp_path: Path) -> None:
    part = memoryview(bytes(10**6))
    log = tmp_path / "run" / "run.db-wal"

    def rounds(run: Run, count: int) -> None:
        for slot in range(count):
            with run.transaction():
                run.state.save(slot, ["theta"], [("theta", Part(dtype="uint8", shape=(10**6,), data=part))])
                run.log("a round")

    with Run.create(tmp_path / "run", plan={}, budget_kg=1.0, settings={}, task={}) as run:
        with reading(tmp_path / "run") as db:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM events").fetchone()
            rounds(run, 50)
            assert log.stat().st_size < 4 * 10**6, "a state each round would be 50 MB"
            while log.stat().st_size < 8 * 10**6:
                run.log("x" * 10**6)
        rounds(run, 2)
        assert log.stat().st_size <= 4 * 2**20, "it is cut when nobody reads it any more"
    assert sum(path.stat().st_size for path in (tmp_path / "run" / "state").iterdir()) == 2 * 10**6
