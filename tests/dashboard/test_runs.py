from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import do_rounds, small_plan, start_run
from report_runs import replanned

from slackwater.dashboard import runs as module
from slackwater.dashboard.runs import Page, RunReader, Watch, _follow
from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Attempt
from slackwater.ledger.ledger import ModelledCharges
from slackwater.ledger.run import EvaluationRecord, Run


def _reader(folder: Path) -> RunReader:
    return RunReader(path=folder / "run.db", label="run")


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        reader = _reader(tmp_path)
        state = reader.look()
        assert state["status"] == "running"
        assert state["rounds"] == []
        assert state["now"]["slot"] == int(np.flatnonzero(plan.matrix.any(axis=0))[0])
        seen = reader.version()
        total = do_rounds(run, plan, 0, 3)
        assert reader.version() != seen
        state = reader.look(since=1)
        assert [one["number"] for one in state["rounds"]] == [1, 2]
        assert state["rounds_planned"] == total
        assert state["spent_kg"] == pytest.approx(run.ledger.spent_kg())
        assert state["off_plan_kg"] == pytest.approx(0, abs=1e-12)
        assert state["expected_kg"] == pytest.approx(plan.emissions_kg)
        busy = np.flatnonzero(plan.matrix.any(axis=0)).tolist()
        under_way = ModelledCharges(plan).of(busy[2] + 1, busy[3])  # charged before it is trained
        run.ledger.charge(*under_way)
        state = reader.look()
        assert state["off_plan_kg"] == pytest.approx(0, abs=1e-12)
        assert state["expected_kg"] == pytest.approx(plan.emissions_kg)


def test_a_run_that_is_done(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        do_rounds(run, plan, 0, 1000)
        run.set_status("done")
        state = _reader(tmp_path).look()
        assert state["status"] == "done"
        assert state["now"] is None
        assert state["next"] is None
        assert state["spent_kg"] == pytest.approx(plan.emissions_kg)
        assert state["charges"]["by_intensity"]["synthetic"]["kg"] == pytest.approx(plan.emissions_kg)
        assert json.dumps(state, allow_nan=False)


def test_who_did_not_turn_up_and_what_was_said(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        run.log("client <b>x</b> did not answer", level="error", slot=1)
        do_rounds(run, plan, 0, 1000, absent=0)
        state = _reader(tmp_path).look()
    assert not any(0 in one["clients"] for one in state["rounds"])
    assert state["events"][0]["message"] == "client <b>x</b> did not answer"


def test_a_replanned_run_is_compared_with_the_plan_in_force(tmp_path: Path) -> None:
    state = _reader(replanned(tmp_path / "run", until=3)).look()
    assert state["missed"] == 0
    assert (state["decided_slots"], state["slots"]) == (4, 5)
    assert state["spent_kg"] == pytest.approx(1.7)
    assert state["planned_kg"] == pytest.approx(2.46)
    assert state["expected_kg"] == pytest.approx(1.7 + 0.8)
    assert state["first_plan_kg"] == pytest.approx(1.5)
    assert state["off_plan_kg"] == pytest.approx(1.7 - 1.66)
    assert state["in_force"]["planned_kg"] == pytest.approx([0.11, 0.86, 0.86, 1.66, 2.46])
    assert state["in_force"]["rest_kg"] == pytest.approx([0.8])
    assert state["in_force"]["window"] == [3, 5]
    assert json.dumps(state, allow_nan=False)


def test_a_replanned_run_of_an_older_version_is_shown_without_what_it_did_not_note(tmp_path: Path) -> None:
    state = _reader(replanned(tmp_path / "run", note=False)).look()
    assert (state["missed"], state["off_plan_kg"], state["in_force"]["planned_kg"]) == (0, None, None)
    assert json.dumps(state, allow_nan=False)


def test_a_client_that_was_planned_and_did_not_train_is_counted(tmp_path: Path) -> None:
    folder = replanned(tmp_path / "run", until=3)
    with Run.open(folder) as run:
        run.journal.note_planned(2, {("alice", "training"): 0.3})
    assert _reader(folder).look()["missed"] == 1


@pytest.mark.parametrize("value", ["[]", "7", '{"slot": 1}', '{"slot": 1, "kg": [1], "schedule": "!"}'])
def test_a_broken_note_of_what_is_to_come_is_a_sentence(tmp_path: Path, value: str) -> None:
    folder = replanned(tmp_path / "run", until=3)
    _edit(folder, "UPDATE state SET value = ? WHERE name = 'to_come'", values=(value,))
    assert "damaged" in _sentence(folder)


def test_a_broken_slot_number_is_a_sentence(tmp_path: Path) -> None:
    folder = replanned(tmp_path / "run", until=3)
    _edit(folder, "UPDATE planned SET slot = slot * 1000000000000 WHERE slot = 3")
    assert "damaged" in _sentence(folder)


def _edit(folder: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    db = sqlite3.connect(folder / "run.db")
    for statement in statements:
        db.execute(statement, values)
    db.commit()
    db.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with start_run(tmp_path / "r", plan := small_plan()) as run:
        do_rounds(run, plan, 0, 4)
    return tmp_path / "r"


def _sentence(folder: Path) -> str:
    with pytest.raises(SlackwaterError) as caught:
        _reader(folder).look()
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_cut_off_is_a_sentence(folder: Path) -> None:
    whole = (folder / "run.db").read_bytes()
    for leftover in folder.glob("run.db-*"):
        leftover.unlink()
    for size in (0, 10, 100, 4096, len(whole) // 2, len(whole) - 4096):
        (folder / "run.db").write_bytes(whole[:size])
        with suppress(SlackwaterError):  # SQLite may still find all it needs; anything else fails the test
            _reader(folder).look()


def test_a_file_that_is_noise_is_a_sentence(folder: Path) -> None:
    (folder / "run.db").write_bytes(os.urandom(50_000))
    assert "cannot be used" in _sentence(folder)


def test_pages_of_noise_are_a_sentence(folder: Path) -> None:
    content = bytearray((folder / "run.db").read_bytes())
    for leftover in folder.glob("run.db-*"):
        leftover.unlink()
    content[8192:] = os.urandom(len(content) - 8192)
    (folder / "run.db").write_bytes(content)
    assert _sentence(folder).endswith(".")


def test_a_newer_version_is_a_sentence(folder: Path) -> None:
    _edit(folder, "PRAGMA user_version = 99")
    assert "newer Slackwater" in _sentence(folder)


def test_a_run_that_was_never_begun_is_a_sentence(folder: Path) -> None:
    _edit(folder, "PRAGMA foreign_keys = OFF", "DELETE FROM run")
    assert "has not started" in _sentence(folder)


def test_a_run_that_is_gone_is_a_sentence(folder: Path) -> None:
    (folder / "run.db").unlink()
    assert "gone" in _sentence(folder)


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"format": 1}', '{"format": 77}', "[" * 100_000])
def test_a_broken_plan_is_a_sentence(folder: Path, text: str) -> None:
    _edit(folder, "UPDATE run SET plan = ?", values=(text,))
    assert _sentence(folder).endswith((".", "slackwater", "--out DIR"))


@pytest.mark.parametrize("text", ["{", "7", '{"a": 1}'])
def test_broken_participants_are_a_sentence(folder: Path, text: str) -> None:
    _edit(folder, "UPDATE rounds SET participants = ?", values=(text,))
    assert _sentence(folder).endswith(".")


def test_broken_settings_do_not_matter(folder: Path) -> None:
    _edit(folder, "UPDATE run SET settings = '{', task = '[]', versions = ''")
    reader = _reader(folder)
    assert reader.look()["rounds_done"] == 4
    assert reader.fixed()["settings"] == {}


def test_a_missing_table_is_a_sentence(folder: Path) -> None:
    _edit(folder, "DROP TABLE events")
    assert "events" in _sentence(folder)


def test_a_huge_plan_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PLAN_BYTES", 100)
    assert "too large" in _sentence(folder)


def test_a_run_of_many_rounds_is_shown_in_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROUNDS", 3)
    state = _reader(folder).look()
    assert len(state["rounds"]) == 3
    assert state["shortened"]


def test_many_events_and_charges_are_summed_up_not_sent(folder: Path) -> None:
    db = sqlite3.connect(folder / "run.db")
    db.executemany("INSERT INTO events (at, level, slot, message) VALUES ('t', 'info', 1, ?)", [("x" * 5000,)] * 3000)
    db.commit()
    db.close()
    assert len(json.dumps(_reader(folder).look())) < 700_000


def test_reading_leaves_the_writer_alone(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        db = sqlite3.connect(f"file:{tmp_path / 'run.db'}?mode=ro", uri=True)
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM charges").fetchone()  # a reader that never ends
        do_rounds(run, plan, 0, 1000)
        run.set_status("done")
        db.close()
        assert _reader(tmp_path).look()["status"] == "done"


def test_rounds_that_were_undone_are_no_longer_shown(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        reader = _reader(tmp_path)
        do_rounds(run, plan, 0, 3)
        first = [one["slot"] for one in reader.look()["rounds"]]
        run._db.execute("DELETE FROM rounds WHERE slot = ?", (first[-1],))
        assert [one["slot"] for one in reader.look()["rounds"]] == first[:-1]
        do_rounds(run, plan, 3, 1)
        assert [one["number"] for one in reader.look()["rounds"]] == [0, 1, 3]


def test_a_score_that_is_written_after_its_round_is_shown(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        reader, sent = _reader(tmp_path), list[bytes]()
        do_rounds(run, plan, 0, 2)
        last = [one.slot for one in run.rounds()][-1]
        run.set_score(last, None, None)
        watch = Watch(reader)
        page = Page(address="here", send=sent.append)
        following = threading.Thread(target=_follow, args=(watch, page), kwargs={"once": False})
        watch.join()
        following.start()
        try:
            _until(lambda: _states(sent))
            assert [one["score"] is None for one in _states(sent)[0]["rounds"]] == [False, True]
            with run.transaction():  # as a live run does when the evaluation of the round is over
                run.set_score(last, 0.75, 0.5)
                run.record_evaluation(
                    EvaluationRecord(
                        slot=last, model="last", client="", data="test", accuracy=0.75, loss=0.5, samples=8
                    )
                )
            _until(lambda: len(_states(sent)) > 1)
            later = _states(sent)[-1]
            assert later["since"] == 1
            assert [one["score"] for one in later["rounds"]] == [0.75]
            do_rounds(run, plan, 2, 1)
            _until(lambda: len(_states(sent)) > 2)
            assert [one["number"] for one in _states(sent)[-1]["rounds"]] == [2]
        finally:
            watch.stop()
            following.join()
            watch.leave()


def _states(sent: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(one.decode().partition("data: ")[2]) for one in sent if b"event: state" in one]


def _until(so: Callable[[], object], seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.05)):
        if so():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:g} s")


def test_the_next_slot_is_after_the_one_that_trains(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        slots = np.flatnonzero(plan.matrix.any(axis=0)).tolist()[:2]
        names = [str(name) for name in plan.problem.fleet.names]
        run.journal.put(coming=[{"slot": slots[0], "clients": names[:1]}, {"slot": slots[1], "clients": names[:1]}])
        run.journal.note(Attempt(slot=slots[0], client=names[1], outcome="running"))
        state = _reader(tmp_path).look()
        assert (state["now"]["slot"], state["now"]["clients"]) == (slots[0], [1])
        assert state["next"]["slot"] == slots[1], "an older note of the slot under way is not what comes next"
