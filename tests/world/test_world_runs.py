"""The journey of a new user, from a scenario with a provider to the report, with no option but those that must be."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sandbox import PROVIDERS, START, World, emitted_kg, outcome, rows


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_run_of_24_slots_on_a_provider(provider: str, tmp_path: Path) -> None:
    with World(tmp_path) as world:
        app = world.app()
        world.scenario(app / "scenario.toml", provider)
        world.live(app)
        run = app / "run"
        done = outcome(run)
        assert done.status == "done"
        assert done.rounds >= 8
        assert done.window_rounds == 2
        assert 0.6 * done.budget_kg < done.spent_kg <= done.budget_kg
        assert done.lost == 0
        assert done.replans >= 8

        world.clock.set(START + timedelta(hours=30))  # the last actual values are published
        world.command("resume", "run", cwd=app)
        settled = outcome(run)
        assert settled.unsettled == 0
        assert settled.spent_kg == pytest.approx(emitted_kg(world, run, provider), rel=1e-9)
        assert settled.rounds == done.rounds

        status = world.command("status", "run", "--json", cwd=app).json
        report = world.command("report", "run", "--html", "report.html", "--json", cwd=app).json
        dashboard = world.dashboard(run)["state"]
        assert status["stands"] == dashboard["status"] == "done"
        assert status["held_kg"] == 0.0
        assert status["rounds"] == dashboard["rounds_done"] == settled.rounds
        for shown_kg in (status["spent_kg"], dashboard["spent_kg"], report["account"]["total_kg"]):
            assert shown_kg == pytest.approx(settled.spent_kg, rel=1e-12)
        assert rows(run, "SELECT kind FROM run") == [{"kind": "live"}]
        page = (app / "report.html").read_text()
        assert provider in page
        assert "simulated" not in page.lower()
        assert report["run"]["synthetic"] is False


def test_a_rehearsal_of_a_past_day_before_the_run(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        app = world.app()
        world.scenario(app / "scenario.toml", "electricitymaps")
        past = "2026-09-20T00:00Z"
        world.command("rehearse", "scenario.toml", "--app", ".", "--start", past, "--out", "past", cwd=app)
        done = outcome(app / "past")
        assert (done.status, done.unsettled, done.window_rounds) == ("done", 0, 2)
        assert done.rounds >= 8
        assert rows(app / "past", "SELECT kind FROM run") == [{"kind": "rehearsed"}]
        report = world.command("report", "past", "--json", cwd=app).json
        assert report["account"]["total_kg"] == pytest.approx(done.spent_kg, rel=1e-12)
        told = world.providers["electricitymaps"]
        for line in rows(app / "past", "SELECT * FROM charges WHERE kind = 'settlement'"):
            hour = datetime.fromisoformat(line["slot_start"])
            actual = told.told(line["zone"], hour, START)
            assert line["intensity_kg_per_kwh"] == pytest.approx((actual or 0.0) / 1000, rel=1e-9)
