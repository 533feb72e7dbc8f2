"""Whoever only looks at a run can do so whatever its writer left behind."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

from slackwater.ledger import Run
from slackwater.ledger.run import is_written

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
