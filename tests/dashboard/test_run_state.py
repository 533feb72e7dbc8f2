"""What the Run view shows: settled kg, the end, a dead process, the log, the baseline, and measured energy."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import do_rounds, small_plan, start_run
from report_runs import START, replanned

from slackwater import time_source
from slackwater.cli.output_commands import open_library
from slackwater.dashboard import runs
from slackwater.dashboard.catalogue import compare_answer
from slackwater.dashboard.runs import RunReader
from slackwater.ledger.journal import Attempt
from slackwater.ledger.ledger import Charge
from slackwater.ledger.run import RoundRecord, Run


def _reader(folder: Path) -> RunReader:
    return RunReader(path=folder / "run.db", label="run")


def _line(slot: int, kg: float) -> Charge:
    return Charge(
        slot=slot, slot_start=START, client="client-1", zone="FR", kg=kg, energy_kwh=1.0, intensity_kg_per_kwh=kg,
        intensity_source="upper bound", intensity_kind="bound", factor="lifecycle",
    )  # fmt: skip


def test_kg_of_the_rounds_are_as_settled_and_never_run_backwards(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        for number, slot in enumerate((0, 2, 5)):
            run.ledger.charge(_line(slot, 0.09))
            run.record(
                RoundRecord(
                    slot=slot, number=number, slot_start=START, in_window=False, participants=("client-1",), weights={},
                    losses={}, loss=1.0, update_norm=1.0, spent_kg=run.ledger.spent_kg(), seconds=0.1,
                )
            )  # fmt: skip
            for line in run.ledger.unsettled():
                run.ledger.settle(line, 0.01, source="neso", kind="actual")
        state = _reader(tmp_path).look()
    assert [one["spent_kg"] for one in state["rounds"]] == pytest.approx([0.09, 0.10, 0.11])
    assert state["kg_by_round"] == pytest.approx([0.01, 0.02, 0.03])
    assert state["spent_kg"] == pytest.approx(0.03)
    assert state["left_kg"] == pytest.approx(plan.problem.budget_kg - 0.03)


def test_runs_are_compared_by_settled_kg_and_a_replanned_one_has_no_number_of_rounds(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path / "run", plan) as run:
        for number, slot in enumerate((0, 2)):
            run.ledger.charge(_line(slot, 0.09))
            run.record(
                RoundRecord(
                    slot=slot, number=number, slot_start=START, in_window=False, participants=("client-1",), weights={},
                    losses={}, loss=1.0, update_norm=1.0, spent_kg=run.ledger.spent_kg(), seconds=0.1, accuracy=0.5,
                )
            )  # fmt: skip
            for line in run.ledger.unsettled():
                run.ledger.settle(line, 0.01, source="neso", kind="actual")

    def column(folder: Path) -> dict[str, Any]:
        (entry,) = (one for one in open_library(folder).entries() if one.kind == "run")
        found: dict[str, Any] = compare_answer([(entry, _reader(folder))])["columns"][0]["run"]
        return found

    one = column(tmp_path / "run")
    assert one["curve"] == [[pytest.approx(0.01), 0.5], [pytest.approx(0.02), 0.5]]
    assert one["curve"][-1][0] == pytest.approx(one["spent_kg"])
    assert one["rounds_planned"] == int(plan.matrix.any(axis=0).sum())
    assert column(replanned(tmp_path / "replanned"))["rounds_planned"] is None


def test_a_process_that_is_gone_is_told_and_counts_as_a_change(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        do_rounds(run, plan, 0, 2)
        reader = _reader(tmp_path)
        state, seen = reader.look(), reader.version()
        assert (state["gone"], state["sentence"]) == (False, "Running.")
        lock, own = tmp_path / "run.lock", (tmp_path / "run.lock").read_text()
        lock.write_text(f"{dead.pid} {platform.node()}\n")
        state = reader.look()
        assert state["gone"]
        assert "process of this run is gone" in state["sentence"]
        assert reader.version() != seen
        brief = reader.brief()
        assert (brief["status"], brief["gone"]) == ("running", True)
        assert brief["spent_kg"] == state["spent_kg"]
        lock.write_text(f"{dead.pid} another-machine\n")  # nobody can know
        assert (reader.look()["gone"], reader.look()["quiet"]) == (False, False)
        long_ago = time.time() - 3600
        for file in tmp_path.glob("run.db*"):
            os.utime(file, (long_ago, long_ago))
        state = reader.look()
        assert (state["gone"], state["quiet"]) == (False, True)
        assert "Was it killed? Continue with" in state["sentence"]
        lock.write_text(own)
        assert reader.look()["sentence"] == "Running."  # it waits for its slot, for hours if need be
        run.set_status("done")
        assert not reader.look()["gone"]


def test_when_a_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan()
    with start_run(tmp_path / "trained", plan) as run:
        reader = _reader(tmp_path / "trained")
        assert reader.look()["ends"]["seconds"] is None  # no round yet, and so no pace
        for number, second in enumerate((0, 2, 4, 3604, 3606)):  # it was stopped for an hour
            monkeypatch.setattr(time_source, "now", lambda second=second: START + timedelta(seconds=second))
            total = do_rounds(run, plan, number, 1)
        ends = reader.look()["ends"]
        assert ends["rounds_left"] == total - 5
        assert ends["seconds"] == 2 * (total - 5)  # of the wall clock: more than the 0.1 s that a round itself takes
        assert ends["slot"] == plan.window.stop
        do_rounds(run, plan, 5, 1000)
        assert reader.look()["ends"]["seconds"] == 0
    monkeypatch.setattr(time_source, "now", lambda: datetime(2022, 1, 2, 1, tzinfo=UTC))
    ends = _reader(replanned(tmp_path / "live", until=3)).look()["ends"]
    assert (ends["slot"], ends["at"], ends["seconds"], ends["rounds_left"]) == (5, "2022-01-02T03:00Z", 7200, 1)


def test_the_baseline_beside_a_run_is_shown_with_it(tmp_path: Path) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        do_rounds(run, plan, 0, 2)
        reader = _reader(tmp_path)
        assert reader.look()["baseline"] is None
        no_slack = reader.fixed()["no_slack"]
        assert no_slack["emissions_kg"] == pytest.approx(sum(no_slack["kg_by_slot"]), abs=1e-5)
        (tmp_path / "baseline").mkdir()
        run.set_status("done")
        waits = reader.look()["baseline"]  # the run has ended, and its process is about to train the baseline
        assert (waits["status"], waits["trains"], waits["rounds"]) == (None, True, [])
        with start_run(tmp_path / "baseline", plan) as beside:
            do_rounds(beside, plan, 0, 3)
            spent = beside.ledger.spent_kg()
            found = reader.look()["baseline"]
            assert (found["status"], found["trains"], found["spent_kg"]) == ("running", True, spent)
            assert [row[3] for row in found["rounds"]] == pytest.approx([1 - 0.8 * 0.9**n for n in range(3)])
            beside.set_status("done")
        assert not reader.look()["baseline"]["trains"]
        (tmp_path / "baseline" / "run.db").write_bytes(b"x" * 999)
        assert reader.look()["baseline"] is None


def test_measured_energy_far_below_the_declared_is_told(tmp_path: Path) -> None:
    plan = small_plan(clients=3, slots=24)
    declared = plan.problem.costs.training_kwh
    with start_run(tmp_path, plan) as run:
        do_rounds(run, plan, 0, 1000)
        reader = _reader(tmp_path)
        assert reader.look()["measured"] == []
        lines = [one for one in run.ledger.charges() if one.cause == "training"]
        for client, share in (("client-1", 0.2), ("client-2", 0.8)):
            for line in [one for one in lines if one.client == client][:4]:
                energy = float(line.energy_kwh or 0) * (share - 1)
                kg = energy * float(line.intensity_kg_per_kwh or 0)
                run.ledger.charge(
                    replace(
                        line, id=None, kind="correction", corrects=line.id, energy_kwh=energy, kg=kg, method="measured"
                    )
                )
        (found,) = reader.look()["measured"]
    assert found["client"] == "client-1"
    assert found["starts"] == min(4, int(np.count_nonzero(plan.matrix[0])))
    assert found["declared_kwh"] == pytest.approx(declared[0])
    assert found["measured_kwh"] == pytest.approx(0.2 * declared[0])


def test_the_log_holds_what_the_run_writes_in_the_order_of_the_clock(tmp_path: Path) -> None:
    with Run.open(replanned(tmp_path / "run", until=3)) as run:
        run.log("alice is slow", level="warning", slot=3)
        log = _reader(tmp_path / "run").look()["log"]
    assert log[0]["message"] == "alice is slow"
    assert [one["at"] for one in log] == sorted((one["at"] for one in log), reverse=True)
    messages = [one["message"] for one in log]
    assert "Re-planned: due." in messages
    assert messages.index("Round 3: alice, bob.") < messages.index("Round 1: alice.")
    assert json.dumps(log)


def test_slots_without_a_usable_update_are_over_and_their_kg_are_spent(tmp_path: Path) -> None:
    with Run.open(replanned(tmp_path / "run", until=3)) as run:
        reader = _reader(tmp_path / "run")
        assert reader.look()["reached_slots"] == 4
        run.ledger.charge(_line(4, 0.02))
        lost = Attempt(slot=4, client="alice", attempt=0, outcome="running", sent_at=START)
        run.journal.note(lost)
        state = reader.look()
        assert (state["decided_slots"], state["reached_slots"]) == (5, 4)  # who was asked has not answered
        run.journal.note(replace(lost, outcome="failed", ended_at=START))
        state = reader.look()
    assert state["reached_slots"] == 5
    assert state["last_slot"] == 3  # no round
    assert [slot for slot, _ in state["spent_by_slot"]][-1] == 4
    assert state["spent_by_slot"][-1][1] == pytest.approx(state["spent_kg"])


def test_a_long_run_draws_some_of_its_slots_and_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan()
    with start_run(tmp_path, plan) as run:
        do_rounds(run, plan, 0, 1000)
        whole = _reader(tmp_path).look()["spent_by_slot"]
        monkeypatch.setattr(runs, "_MOST_POINTS", 3)
        shown = _reader(tmp_path).look()["spent_by_slot"]
    assert len(shown) <= 3 < len(whole)
    assert shown[-1] == whole[-1]
    assert set(shown) <= set(whole)


def test_a_failed_run_says_why_and_a_stopped_one_how_to_continue(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    with start_run(folder, small_plan()) as run:
        reader = _reader(folder)
        run.set_status("failed")
        assert reader.look()["sentence"] == "Failed; see the events for the reason."
        run.log("The disk of this site is full.", level="error")
        assert reader.look()["sentence"] == reader.brief()["sentence"] == "Failed: The disk of this site is full."
        run.set_status("stopped")
        assert reader.look()["sentence"] == "Stopped. Continue with \"slackwater resume 'my run'\"."
