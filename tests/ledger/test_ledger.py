import sqlite3
import stat
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.errors import SlackwaterError
from slackwater.intensity.traces import Provenance, Traces
from slackwater.ledger.ledger import Charge, ChargedTwiceError, ModelledCharges, OverBudgetError
from slackwater.ledger.run import EvaluationRecord, Run
from slackwater.ledger.schema import VERSION
from slackwater.planning.fleet import Client, Level
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem, Server

START = datetime(2022, 1, 1, tzinfo=UTC)


def line(slot: int = 0, client: str = "FR", kg: float = 0.1, **more: object) -> Charge:
    values = {
        "slot": slot, "slot_start": START, "client": client, "zone": "FR", "kg": kg, "energy_kwh": 0.3,
        "intensity_kg_per_kwh": kg / 0.3, "intensity_source": "test", "intensity_kind": "actual", "factor": "direct",
    }  # fmt: skip
    return Charge(**(values | more))  # type: ignore[arg-type]


def new_run(folder: Path | None = None, budget_kg: float | None = 1.0) -> Run:
    return Run.create(folder, plan={}, budget_kg=budget_kg, settings={"seed": 0}, task={})


def test_what_is_booked_comes_back(tmp_path: Path) -> None:
    with new_run(tmp_path / "run") as run:
        first = line(started_at=START, ended_at=START, note="n", method="measured", planned=False)
        run.ledger.charge(first, line(client="", cause="server", energy_kwh=None, intensity_kg_per_kwh=None))
    with Run.open(tmp_path / "run") as run:
        booked = list(run.ledger.charges())
        assert replace(booked[0], id=None) == first
        assert booked[1].energy_kwh is None
        assert run.ledger.spent_kg() == pytest.approx(0.2, rel=1e-15)
        assert run.ledger.last_slot() == 0
        assert [c.client for c in run.ledger.charges(client="FR")] == ["FR"]


def test_evaluations_come_back_in_order_and_the_last_one_counts(tmp_path: Path) -> None:
    def score(slot: int, client: str, accuracy: float) -> EvaluationRecord:
        return EvaluationRecord(
            slot=slot, model="last", client=client, data="test", accuracy=accuracy, loss=0.5, samples=7
        )

    with new_run(tmp_path / "run") as run:
        run.record_evaluation(score(3, "FR", 0.1), score(3, "DE", 0.2), score(1, "", 0.3))
        run.record_evaluation(score(3, "FR", 0.4))
    with Run.open(tmp_path / "run") as run:
        assert run.evaluations() == [score(1, "", 0.3), score(3, "DE", 0.2), score(3, "FR", 0.4)]


def test_a_slot_is_charged_once() -> None:
    with new_run() as run:
        run.ledger.charge(line())
        with pytest.raises(ChargedTwiceError, match=r"Slot 0 .* charged already"):
            run.ledger.charge(line(slot=1), line())
        assert run.ledger.last_slot() == 0  # nothing of the refused two was booked
        run.ledger.charge(line(attempt=1), line(cause="idle"))
        assert len(list(run.ledger.charges())) == 3


def test_the_budget_holds_but_corrections_are_booked() -> None:
    with new_run(budget_kg=0.25) as run:
        run.ledger.charge(line(0), line(1))
        with pytest.raises(OverBudgetError, match=r"over the budget of 0\.25 kg"):
            run.ledger.charge(line(2))
        run.ledger.charge(line(2, kg=0.05))  # to the last gram
        run.ledger.charge(line(0, kg=0.07, kind="settlement", corrects=1))
        assert run.ledger.spent_kg() == pytest.approx(0.32)
        with pytest.raises(OverBudgetError):
            run.ledger.charge(line(3, kg=0.0))  # the budget is gone: even a free slot must not start


def test_corrections_name_a_line_and_charges_do_not() -> None:
    with new_run() as run:
        run.ledger.charge(line())
        for wrong in (
            line(kind="correction"),
            line(1, corrects=1),
            line(kind="correction", corrects=99),
            line(1, kg=-1.0),
        ):
            with pytest.raises(SlackwaterError, match="rejects a line"):
                run.ledger.charge(wrong)
        with pytest.raises(SlackwaterError, match="cannot be booked"):
            run.ledger.charge(line(1, kg=float("nan")))


def test_lines_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        run.ledger.charge(line())
    connection = sqlite3.connect(tmp_path / "run.db")
    for statement in ("UPDATE charges SET kg = 0", "DELETE FROM charges"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    with new_run(tmp_path / "run") as run:
        run.ledger.charge(line())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
        assert set(modes) >= {"run.db", "run.db-wal"}
        assert modes.pop("state") == 0o700
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with new_run(tmp_path / "run"):
        with pytest.raises(SlackwaterError, match="another process"):
            Run.open(tmp_path / "run")
        Run.open(tmp_path / "run", read_only=True).close()
    with pytest.raises(SlackwaterError, match="already holds a run"):
        new_run(tmp_path / "run")
    with pytest.raises(SlackwaterError, match="no run in"):
        Run.open(tmp_path / "nowhere")
    connection = sqlite3.connect(tmp_path / "run" / "run.db")
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(SlackwaterError, match="newer Slackwater"):
        Run.open(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.db").write_text("not a database, but long enough to look like a file")
    with pytest.raises(SlackwaterError, match="already holds"):
        new_run(tmp_path / "other")
    with pytest.raises(SlackwaterError, match="cannot be used as a run's file"):
        Run.open(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(SlackwaterError, match="cannot be made"):
        new_run(tmp_path / "file")


def test_what_a_kill_at_birth_leaves_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    new_run(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("DELETE FROM run")
    connection.commit()
    connection.close()
    with pytest.raises(SlackwaterError, match="never begun"):
        Run.open(tmp_path)
    new_run(tmp_path).close()
    Run.open(tmp_path).close()


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    def cut_short(run: Run) -> None:
        with run.transaction():
            run.ledger.charge(line())
            run.log("something")
            raise RuntimeError("power cut")

    with new_run(tmp_path) as run:
        with pytest.raises(RuntimeError, match="power"):
            cut_short(run)
        assert run.ledger.spent_kg() == 0
        assert run.events() == []


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Small plans of any matrix, with idle draw, PUE, server, window, starts, levels, and slots after the end."""
    clients, slots, after = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    fine_tune = draw(st.integers(0, slots))
    zones = ("A", "B", "C")
    traces = Traces(
        zones=zones,
        start=START,
        intensity=rng.uniform(0, 0.9, (3, slots + after)) * (rng.random((3, slots + after)) < 0.9),
        factor="direct",
        provenance=(
            Provenance(zone="A", source="a file"),
            Provenance(zone="B", source="made up", synthetic=True),
            Provenance(zone="C", source="a file", filled_hours=("2022-01-01T01:00Z",)),
        ),
    )
    idle, sleeping, leveled = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    fleet = [
        Client(
            name=f"c{i}", zone=str(rng.choice(zones)), power_w=400.0 if leveled else float(rng.uniform(100, 400)),
            idle_w=float(rng.uniform(0, 99)) if idle else 0.0, pue=float(rng.uniform(1, 2)),
            startup_kwh=float(rng.uniform(0, 0.2)) if sleeping and i % 2 else 0.0,
            min_block_slots=int(rng.integers(1, 4)) if sleeping else 1,
            levels=[Level(400, 1.0), Level(200, 0.7)] if leveled else (),
        )
        for i in range(clients)
    ]  # fmt: skip
    server = draw(st.sampled_from(["none", "power", "kg"]))
    problem = Problem(
        clients=fleet,
        traces=traces,
        rounds=slots,
        slack=after,
        budget_kg=1e9,
        fine_tune=fine_tune,
        round_minutes=draw(st.sampled_from([None, 20])),
        server=Server(zone="B", power_w=50.0, pue=1.2) if server == "power" else None,
        server_kg=rng.uniform(0, 0.1, slots + after) if server == "kg" else None,
    )
    matrix = np.zeros((clients, slots + after), dtype=bool)
    matrix[:, :slots] = rng.random((clients, slots)) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    matrix[:, slots - fine_tune : slots] = True
    return Plan(
        problem=problem, end=0, packed=np.packbits(matrix, axis=1), objective=0.0, upper_bound=0.0, gap=0.0, seconds=0.0,
        solver="random",
        levels=rng.integers(0, 2, matrix.shape).astype(np.uint8) if leveled else None,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(plan=plans(), cuts=st.lists(st.integers(0, 7), max_size=3))
def test_the_modelled_charges_are_the_plans_emissions(plan: Plan, cuts: list[int]) -> None:
    modelled = ModelledCharges(plan)
    total = plan.emissions_kg
    bounds = sorted({-1, modelled.slots - 1, *(cut for cut in cuts if cut < modelled.slots)})
    with new_run(budget_kg=total or 1e-9) as run:
        for last, slot in pairwise(bounds):
            run.ledger.charge(*modelled.of(last + 1, slot))
        assert run.ledger.spent_kg() == pytest.approx(total, rel=1e-12, abs=1e-15)
        by_cause = {cause: kg for cause, kg in plan.emissions.by_cause_kg.items() if kg}
        assert {cause: kg for cause, kg in run.queries.kg_by_cause().items() if kg} == pytest.approx(by_cause, rel=1e-9)
        for row in run.ledger.charges():
            if row.energy_kwh is not None and row.intensity_kg_per_kwh is not None:
                assert row.kg == pytest.approx(row.energy_kwh * row.intensity_kg_per_kwh, rel=1e-12, abs=1e-18)
            if row.zone:
                filled = row.zone == "C" and row.slot == 1
                assert (
                    row.intensity_kind
                    == {"A": "actual", "B": "synthetic", "C": "estimated" if filled else "actual"}[row.zone]
                )
    if total > 0:
        with new_run(budget_kg=total * (1 - 1e-9)) as run, pytest.raises(OverBudgetError):
            run.ledger.charge(*modelled.of(0, modelled.slots - 1))
