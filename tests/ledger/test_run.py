import json
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from old_schemas import VERSION_1, VERSION_2

from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Attempt, Replan
from slackwater.ledger.run import RoundRecord, Run, is_written
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
        with pytest.raises(SlackwaterError, match="its value 'one' is not JSON"):
            run.journal.get("one")


@pytest.mark.parametrize(("version", "script"), [(1, VERSION_1), (2, VERSION_2)])
def test_older_files_are_read_as_they_are_and_migrated_when_written(tmp_path: Path, version: int, script: str) -> None:
    old = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    old.executescript(script + f"PRAGMA user_version = {version};")
    live = json.dumps({"live": True}) if version == 2 else "{}"
    old.execute("INSERT INTO run VALUES ('one', '', 'stopped', 1.0, '{}', '{}', ?, '{}')", (live,))
    line = (
        "INSERT INTO charges VALUES (7, 'one', 0, '2023-03-01T00:00:00+00:00', 'a', 'A', 'training', 'charge', 0, 1, NULL, "
        "NULL, 1.0, 0.5, 's', 'actual', 'direct', 0.5, 'modelled', NULL, '', '')"
    )
    old.execute(line)
    before = old.execute("SELECT * FROM charges").fetchall()
    old.close()
    with Run.open(tmp_path, read_only=True) as run:
        assert run.kind == ("live" if version == 2 else "simulated")
        assert (run.journal.attempts(), run.journal.replans(), run.journal.get("one")) == ([], [], None)
        assert (run.journal.planned(), run.ledger.spent_kg()) == ({}, 0.5)
    with Run.open(tmp_path) as run:
        assert run.kind == ("live" if version == 2 else "simulated")
        run.journal.note_planned(3, {("a", "training"): 0.5})
        assert run.journal.planned() == {3: {("a", "training"): 0.5}}
        first = next(iter(run.ledger.charges()))
        run.ledger.charge(replace(first, id=None, slot=1, cause="network"))
        assert [one.id for one in run.ledger.charges()] == [7, 8]
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            run._db.execute("UPDATE charges SET kg = 0")
    connection = connect(tmp_path / "run.db")
    assert connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    assert [tuple(row) for row in connection.execute("SELECT * FROM charges WHERE id = 7")] == before
    connection.close()


def test_a_file_of_version_3_has_no_work_and_gets_it_when_written(tmp_path: Path) -> None:
    done = RoundRecord(
        slot=1, number=0, slot_start=AT, in_window=False, participants=("a",), weights={"a": 1.0}, losses={"a": 0.5},
        loss=0.5, update_norm=1.0, spent_kg=0.1, seconds=1.0,
    )  # fmt: skip
    with new(tmp_path) as run:
        run.record(done)
    old = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    names = [row[1] for row in old.execute("PRAGMA table_info(rounds)") if row[1] != "work"]
    old.executescript(
        f"CREATE TABLE before AS SELECT {', '.join(names)} FROM rounds; DROP TABLE rounds; "
        "ALTER TABLE before RENAME TO rounds; PRAGMA user_version = 3;"
    )
    old.close()
    with Run.open(tmp_path, read_only=True) as run:
        assert list(run.rounds()) == [done]
    lower = replace(done, slot=2, number=1, work={"a": 0.85})
    with Run.open(tmp_path) as run:
        run.record(lower)
    with Run.open(tmp_path, read_only=True) as run:
        assert list(run.rounds()) == [done, lower]


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


@pytest.mark.parametrize("table", ["attempts", "replans", "state", "planned"])
def test_a_table_that_is_missing_in_a_file_that_should_have_it_is_damage(tmp_path: Path, table: str) -> None:
    new(tmp_path).close()
    old = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    old.execute(f"DROP TABLE {table}")
    old.close()
    read = {
        "attempts": lambda journal: journal.attempts(),
        "replans": lambda journal: journal.replans(),
        "state": lambda journal: journal.get("one"),
        "planned": lambda journal: journal.planned(),
    }[table]
    with (
        Run.open(tmp_path, read_only=True) as run,
        pytest.raises(SlackwaterError, match=f"damaged .no such table: {table}.*backup"),
    ):
        read(run.journal)


def test_no_error_of_sqlite_passes_for_an_old_file(tmp_path: Path) -> None:
    with new(tmp_path) as run:
        run._db.execute("DROP TABLE attempts")
        run._db.execute("CREATE TABLE attempts (slot, client)")  # no such column: outcome
        with pytest.raises(SlackwaterError, match="no such column"):
            run.journal.attempts()


def test_a_file_of_version_2_has_the_tables_of_version_2(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    old.executescript(VERSION_2 + "PRAGMA user_version = 2; DROP TABLE replans;")
    old.execute("INSERT INTO run VALUES ('one', '', 'stopped', 1.0, '{}', '{}', '{}', '{}')")
    old.close()
    with Run.open(tmp_path, read_only=True) as run:
        assert run.journal.planned() == {}
        with pytest.raises(SlackwaterError, match="no such table: replans"):
            run.journal.replans()


@pytest.mark.parametrize("changes", ["{", "[1]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_a_re_planning_that_is_damaged_is_named(tmp_path: Path, changes: str) -> None:
    with new(tmp_path) as run:
        run._db.execute("INSERT INTO replans VALUES (1, 0, '2023-03-01T00:00:00+00:00', 'due', ?, 0, 0)", (changes,))
        with pytest.raises(SlackwaterError, match=r"run.db cannot be used as a run's file: it is damaged"):
            run.journal.replans()
