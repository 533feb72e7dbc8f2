"""Status, dashboard, report and an independent recount of the ledger say the same of one run, to the last digit."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner
from live_world import NAMES, Sites
from report_runs import eventful, plan, replanned, write

from slackwater.cli.main import cli
from slackwater.dashboard.runs import RunReader
from slackwater.ledger.run import Run
from slackwater.live.folder import RunStopped
from slackwater.live.runner import carry_out
from slackwater.planning.planner import plan as make_plan


def lossy(folder: Path, *, looks: int | None = None) -> Path:
    """A run that re-plans every slot, and loses, rejects and misses clients; stopped after so many looks, if asked."""
    problem = world.problem(6, slack=14, fine_tune=2, idle_w=50.0)
    costs = problem.costs
    budget = float(costs.dense()[:, :14].sum() + costs.idle_kg().sum())
    world.made(
        folder, make_plan(problem.with_settings(budget_kg=budget)), source="playback", replan_slots=1, reserve=0.5
    )
    sites = Sites(
        tricks={(1, "lyon"): "lost", (2, "oslo"): "nan", (3, "rome"): "failed"},
        offline=lambda look: {"oslo"} if look == 4 else set(),
        energy_kwh=lambda work, name: 0.7 if name == "rome" else None,
    )
    if looks is None:
        carry_out(folder, sites, world.initial())
        return folder
    with pytest.raises(RunStopped):
        carry_out(folder, sites, world.initial(), stop=world.StopAfter(sites, looks=looks).event)
    return folder


MADE: dict[str, Callable[[Path], Path]] = {
    "re-planned with losses": lossy,
    "re-planned with losses, stopped": lambda folder: lossy(folder, looks=5),
    "re-planned": replanned,
    "re-planned, going on": lambda folder: replanned(folder, until=3),
    "re-planned, not noted": lambda folder: replanned(folder, until=3, note=False),
    "training": lambda folder: write(folder, plan()),
    "training, going on": lambda folder: write(folder, plan(), until=1, status="running"),
    "corrections and retries": eventful,
}


def printed(*args: object) -> Any:
    shown = CliRunner().invoke(cli, [*map(str, args), "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def recounted(folder: Path) -> tuple[float, float, dict[str, float]]:
    """Spent, unsettled and by cause, by a reader that knows only the file's tables."""
    db = sqlite3.connect(folder / "run.db")
    rows = db.execute("SELECT id, kind, corrects, intensity_kind, cause, kg FROM charges").fetchall()
    db.close()
    settled = {corrects for _, kind, corrects, *_ in rows if kind == "settlement"}
    held = {
        n for n, kind, _, certainty, *_ in rows if kind == "charge" and certainty in ("bound", "forecast")
    } - settled
    by_cause: dict[str, list[float]] = {}
    for *_, cause, kg in rows:
        by_cause.setdefault(cause, []).append(kg)
    unsettled = math.fsum(kg for n, _, corrects, *_, kg in rows if n in held or corrects in held)
    return math.fsum(row[-1] for row in rows), unsettled, {cause: math.fsum(kg) for cause, kg in by_cause.items()}


@pytest.mark.parametrize("name", MADE)
def test_the_same_numbers_everywhere(tmp_path: Path, name: str) -> None:
    folder = MADE[name](tmp_path / "run")
    status, report = printed("status", folder), printed("report", folder)
    page = json.loads(json.dumps(RunReader(path=folder / "run.db", label="run").look(), allow_nan=False))
    spent, unsettled, by_cause = recounted(folder)
    assert status["figures"] == page["figures"] == report["figures"]
    figures = report["figures"]
    assert figures["spent_kg"] == spent
    assert figures["unsettled_kg"] == pytest.approx(unsettled, abs=1e-12)
    assert figures["by_cause_kg"] == pytest.approx(by_cause, abs=1e-12)
    assert spent == report["account"]["total_kg"] == page["spent_kg"] == status["spent_kg"]
    assert status["held_kg"] == report["uncertainty"]["unsettled_kg"] == figures["unsettled_kg"]
    assert page["expected_kg"] == report["planned"]["expected_kg"] == pytest.approx(spent + figures["to_come_kg"])
    assert page["planned_kg"] == report["planned"]["planned_kg"] == figures["planned_kg"]
    assert page["first_plan_kg"] == report["planned"]["first_plan_kg"]
    assert page["slots"] == report["planned"]["planned_slots"] >= report["planned"]["reached_slots"]
    assert status["kind"] == page["kind"] == report["kind"] == report["run"]["kind"]


def test_what_is_to_come_is_what_the_last_plan_expects_of_it(tmp_path: Path) -> None:
    """Settled, this slot and to come are the last plan's own total, also where the window has begun."""
    problem = world.problem(6, slack=14, fine_tune=3, idle_w=50.0, model_mb=100.0, evaluation_share=0.1)
    budget = float(problem.costs.dense()[:, :14].sum() + problem.costs.idle_kg().sum())
    asked = make_plan(problem.with_settings(budget_kg=budget))
    for looks in (1, 3, 6):
        folder = world.made(tmp_path / str(looks), asked, source="playback", replan_slots=1, reserve=0.0, lag_slots=0)
        sites = Sites()
        with pytest.raises(RunStopped):
            carry_out(folder, sites, world.initial(), stop=world.StopAfter(sites, looks=looks).event)
        with Run.open(folder, read_only=True) as run:
            last, kg = run.journal.replans()[-1], run.queries.kg_by_slot()
            noted, guide = run.journal.planned()[last.slot], run.journal.get("guide")
            figures = printed("status", folder)["figures"]
        settled = math.fsum(value for slot, value in kg.items() if slot < last.slot)
        assert last.slot == max(kg)  # nothing was decided since
        state = RunReader(path=folder / "run.db", label="run").look()
        assert state["decided_slots"] == last.slot + 1
        assert state["slots"] == guide["window_at"] + guide["window_slots"]
        assert figures["to_come_kg"] > 0
        assert settled + math.fsum(noted.values()) + figures["to_come_kg"] == pytest.approx(last.planned_kg, rel=1e-9)


def test_a_run_that_goes_as_its_forecasts_said_expects_what_it_ends_with(tmp_path: Path) -> None:
    """The rest of the plan is noted after every slot: what is expected half-way is near what comes, not the first plan."""
    stopped = printed("status", lossy(tmp_path / "half", looks=5))["figures"]
    done = printed("status", lossy(tmp_path / "whole"))["figures"]
    assert stopped["to_come_kg"] > 0
    assert stopped["expected_kg"] == pytest.approx(done["spent_kg"], rel=0.25)
    assert done["to_come_kg"] == 0
    assert done["expected_kg"] == done["spent_kg"]


def test_a_fixed_plan_expects_what_it_planned_until_its_end(tmp_path: Path) -> None:
    folder = world.made(tmp_path / "run")
    sites = Sites()
    with pytest.raises(RunStopped):
        carry_out(folder, sites, world.initial(), stop=world.StopAfter(sites, looks=3).event)
    figures = printed("status", folder)["figures"]
    assert 0 < figures["spent_kg"] < figures["planned_kg"]
    assert figures["expected_kg"] == pytest.approx(world.plan().emissions_kg)
    assert figures["planned_kg"] == pytest.approx(figures["first_plan_kg"])


def test_no_attempt_that_succeeded_counts_as_missed(tmp_path: Path) -> None:
    """A run without any trouble, re-planned in every slot: nothing planned was left out, on the page or in the report."""
    problem = world.problem(6, slack=14, fine_tune=2)
    budget = float(problem.costs.dense()[:, :14].sum())
    asked = make_plan(problem.with_settings(budget_kg=budget))
    folder = world.made(tmp_path / "run", asked, source="playback", replan_slots=1, reserve=0.5)
    carry_out(folder, Sites(), world.initial())
    with Run.open(folder, read_only=True) as run:
        assert {one.outcome for one in run.journal.attempts()} == {"done"}
        assert len(run.journal.replans()) > 3
    assert RunReader(path=folder / "run.db", label="run").look()["missed"] == 0
    planned = printed("report", folder)["planned"]
    assert (planned["client_slots_missed"], planned["client_slots_extra"]) == (0, 0)
    assert set(NAMES) == {one["name"] for one in planned["by_client"]}
