"""A run folder that is corrupt, half-written, from a newer version or huge gives a sentence, never a traceback."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from report_runs import plan, write

from slackwater.errors import SlackwaterError
from slackwater.report import account as reading
from slackwater.report.statement import make_statement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", plan())


def change(folder: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    connection = sqlite3.connect(folder / "run.db")
    for statement in statements:
        connection.execute(statement, values if "?" in statement else ())
    connection.commit()
    connection.close()


def newer(folder: Path) -> None:
    change(folder, "PRAGMA user_version = 99")


def newer_plan(folder: Path) -> None:
    change(folder, "UPDATE run SET plan = ?", values=('{"format": 99, "version": "9.9"}',))


def truncated(folder: Path) -> None:
    path = folder / "run.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwritten(folder: Path) -> None:
    path = folder / "run.db"
    data = bytearray(path.read_bytes())
    data[4096:-4096] = b"\xff" * (len(data) - 8192)
    path.write_bytes(bytes(data))


def no_database(folder: Path) -> None:
    (folder / "run.db").write_text("a letter to my aunt" * 100)


def empty(folder: Path) -> None:
    (folder / "run.db").write_bytes(b"")


def no_plan(folder: Path) -> None:
    change(folder, "UPDATE run SET plan = '{}'")


def half_a_plan(folder: Path) -> None:
    change(folder, "UPDATE run SET plan = substr(plan, 1, 200)")


def settings_as_list(folder: Path) -> None:
    change(folder, "UPDATE run SET settings = '[1]'")


def matrix_of_strings(folder: Path) -> None:
    stored = plan().to_dict() | {"matrix": "x"}
    change(folder, "UPDATE run SET plan = ?", values=(json.dumps(stored),))


def no_rounds_table(folder: Path) -> None:
    change(folder, "DROP TABLE rounds")


def never_begun(folder: Path) -> None:
    change(folder, "PRAGMA foreign_keys = OFF", "DELETE FROM run")


def infinite(folder: Path) -> None:
    change(folder, "DROP TRIGGER charges_stay", "UPDATE charges SET kg = 9e999")


def slot_far_away(folder: Path) -> None:
    change(folder, "DROP TRIGGER charges_stay", "UPDATE charges SET slot = 4000000000000000000 WHERE id = 1")


def broken_text(folder: Path) -> None:
    change(folder, "DROP TRIGGER charges_stay", "UPDATE charges SET client = CAST(x'ff41' AS TEXT) WHERE id = 1")


DAMAGE = (
    newer, newer_plan, truncated, overwritten, no_database, empty, no_plan, half_a_plan, settings_as_list,
    matrix_of_strings, no_rounds_table, never_begun, infinite, slot_far_away, broken_text,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_a_sentence(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder)
    with pytest.raises(SlackwaterError, match=r"^[A-Z/].*\w.*") as caught:
        make_statement(folder)
    assert str(folder) in str(caught.value)


def test_a_newer_version_says_upgrade(folder: Path) -> None:
    newer(folder)
    with pytest.raises(SlackwaterError, match="newer Slackwater"):
        make_statement(folder)


@pytest.mark.parametrize("name", ["MOST_LINES", "MOST_PLAN_CHARACTERS"])
def test_too_large_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, name, 2)
    with pytest.raises(SlackwaterError, match="a report reads up to"):
        make_statement(folder)


def test_a_folder_without_a_run_points_to_the_one_inside(tmp_path: Path) -> None:
    write(tmp_path / "training", plan())
    with pytest.raises(SlackwaterError, match=r"slackwater report .*training"):
        make_statement(tmp_path)
    with pytest.raises(SlackwaterError, match="There is no run"):
        make_statement(tmp_path / "nothing")


def test_a_run_without_a_charge_is_reported(tmp_path: Path) -> None:
    statement = make_statement(write(tmp_path / "run", plan(), until=-1, status="running"))
    assert statement.account.total_kg == 0.0
    assert statement.planned.client_slots_missed == 0
