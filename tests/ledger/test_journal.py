import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slackwater.errors import SlackwaterError
from slackwater.ledger import Attempt, Replan, Run
from slackwater.ledger.run import is_written
from slackwater.ledger.schema import VERSION, connect

AT = datetime(2023, 3, 1, tzinfo=UTC)


def new(folder: Path) -> Run:
    return Run.create(folder, plan={}, budget_kg=1.0, settings={}, task={})


def test_attempts_come_back_and_are_replaced(tmp_path: Path) -> None:
    done = Attempt(
        slot=1, client="b", sent_at=AT, ended_at=AT, outcome="done", seconds=2.0, energy_kwh=0.1, method="measured"
    )
    with new(tmp_path) as run:
        run.journal.note(Attempt(slot=1, client="b", sent_at=AT), Attempt(slot=1, client="a", outcome="offline"))
        run.journal.note(done)
    with Run.open(tmp_path) as run:
        assert run.journal.attempts() == [Attempt(slot=1, client="a", outcome="offline"), done]
        assert run.journal.attempts(outcome="done") == [done]
        assert run.journal.attempts(slot=0) == []


def test_replans_and_state_come_back(tmp_path: Path) -> None:
    replan = Replan(slot=3, reason="due", changes={"a": (4, 5)}, reserve_kg=0.1, planned_kg=0.9, at=AT)
    with new(tmp_path) as run:
        run.journal.note_replan(replan)
        run.journal.put(one={"x": 1.5}, other=None)
    with Run.open(tmp_path, read_only=True) as run:
        assert run.journal.replans() == [replan]
        assert run.journal.get("one") == {"x": 1.5}
        assert run.journal.get("other", "not this") is None
        assert run.journal.get("never", "this") == "this"


def test_state_that_is_damaged_is_named(tmp_path: Path) -> None:
    with new(tmp_path) as run:
        run._db.execute("INSERT INTO state VALUES ('one', '{')")
        with pytest.raises(SlackwaterError, match="keeps as 'one' is no JSON"):
            run.journal.get("one")


def test_files_of_version_1_are_used_as_they_are(tmp_path: Path) -> None:
    new(tmp_path).close()
    old = sqlite3.connect(tmp_path / "run.db")
    old.executescript("DROP TABLE attempts; DROP TABLE replans; DROP TABLE state; PRAGMA user_version = 1")
    old.close()
    with Run.open(tmp_path) as run:
        run.set_status("done")
        assert (run.journal.attempts(), run.journal.replans(), run.journal.get("one")) == ([], [], None)
    connection = connect(tmp_path / "run.db")
    assert connection.execute("PRAGMA user_version").fetchone()[0] == 1 < VERSION
    connection.close()


def test_who_writes_a_run_can_be_seen(tmp_path: Path) -> None:
    with new(tmp_path):
        assert is_written(tmp_path)
    (tmp_path / "run.lock").write_text("999999999 elsewhere\n")
    assert is_written(tmp_path) is None
    import platform

    (tmp_path / "run.lock").write_text(f"999999999 {platform.node()}\n")
    assert is_written(tmp_path) is False
    (tmp_path / "run.lock").unlink()
    assert is_written(tmp_path) is False
