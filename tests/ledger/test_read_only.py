"""Whoever only looks at a run can do so whatever its writer left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slackwater.ledger import Run

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
