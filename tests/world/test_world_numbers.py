"""Status, dashboard, report and a recount of the ledger show the same numbers, for a re-planned live run with losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from grids import HOUR
from sandbox import START, World, outcome, rows

LOST = [(3, "helsinki"), (9, "lyon"), (10, "dublin"), (20, "lyon")]


def recounted(run: Path) -> dict[str, float]:
    """The numbers from the tables alone; of the plan, as far as slots are decided."""
    lines = rows(run, "SELECT * FROM charges")
    settled = {line["corrects"] for line in lines if line["kind"] == "settlement"}
    unsettled = {
        line["id"] for line in lines
        if line["kind"] == "charge" and line["intensity_kind"] in ("bound", "forecast") and line["id"] not in settled
    }  # fmt: skip
    trained = {
        (line["slot"], line["client"]) for line in lines if (line["kind"], line["cause"]) == ("charge", "training")
    }
    planned = rows(run, "SELECT * FROM planned")
    wanted = {(one["slot"], one["client"]) for one in planned if one["cause"] == "training"}
    return {
        "spent_kg": math.fsum(line["kg"] for line in lines),
        "unsettled_kg": math.fsum(
            line["kg"] for line in lines if line["id"] in unsettled or line["corrects"] in unsettled
        ),
        "planned_until_now_kg": math.fsum(one["kg"] for one in planned),
        "rounds": len(rows(run, "SELECT 1 FROM rounds")),
        "replans": len(rows(run, "SELECT 1 FROM replans")),
        "planned": len(wanted),
        "missed": len(wanted - trained),
        "extra": len(trained - wanted),
    }


def shown(world: World, app: Path) -> dict[str, dict[str, Any]]:
    """The same numbers as each screen says them."""
    status = world.command("status", "run", "--json", cwd=app).json
    report = world.command("report", "run", "--json", cwd=app).json
    dashboard = world.dashboard(app / "run")["state"]
    figures = {"status": status["figures"], "dashboard": dashboard["figures"]}
    found = {
        name: {
            **{key: one[key] for key in ("spent_kg", "unsettled_kg", "planned_until_now_kg", "replans")},
            **{key: one[f"client_slots_{key}"] for key in ("planned", "missed", "extra")},
        }
        for name, one in figures.items()
    }
    beside = report["planned"]
    found["report"] = {
        "spent_kg": report["account"]["total_kg"],
        "unsettled_kg": report["uncertainty"]["unsettled_kg"],
        "planned_until_now_kg": beside["planned_kg_until_now"],
        "replans": beside["replans"],
        **{key: beside[f"client_slots_{key}"] for key in ("planned", "missed", "extra")},
        "rounds": report["run"]["rounds"],
    }
    found["status"]["rounds"], found["dashboard"]["rounds"] = status["rounds"], dashboard["rounds_done"]
    assert status["held_kg"] == status["figures"]["unsettled_kg"]
    assert dashboard["missed"] == dashboard["figures"]["client_slots_missed"]
    assert beside["expected_kg"] == pytest.approx(status["figures"]["expected_kg"])
    assert dashboard["expected_kg"] == status["figures"]["expected_kg"]
    assert report["planned"]["planned_kg"] == pytest.approx(status["figures"]["planned_kg"])
    assert dashboard["planned_kg"] == status["figures"]["planned_kg"]
    return found


def test_everything_says_the_same_of_a_replanned_run_with_losses(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        app = world.app(lost=LOST)
        world.scenario(app / "scenario.toml", "electricitymaps", budget_kg=1.1)
        run = app / "run"
        process = world.start("run", "scenario.toml", "--app", ".", "--out", "run", cwd=app)

        assert world.when(START + 12 * HOUR - HOUR / 4, process)  # between two slots, while the run continues
        counted = recounted(run)
        assert counted["unsettled_kg"] > 0
        assert counted["replans"] > 3
        for name, numbers in shown(world, app).items():
            for key in ("planned",):  # those to come are counted too, and only the plan knows them
                assert numbers.pop(key) >= counted[key], (name, key)
            assert numbers == pytest.approx({key: counted[key] for key in numbers}, rel=1e-12), name

        world.kill(process)
        world.clock.set(START + 14 * HOUR + HOUR / 60)
        world.command("resume", "run", cwd=app)
        done = outcome(run)
        assert done.lost >= 2
        counted = recounted(run)
        assert counted["missed"] >= 2, "slots 12 and 13 went by"
        for name, numbers in shown(world, app).items():
            assert numbers == pytest.approx(counted, rel=1e-12), name

        world.clock.set(START + 40 * HOUR)
        world.command("resume", "run", cwd=app)
        settled = recounted(run)
        assert settled["unsettled_kg"] == 0.0
        assert settled["spent_kg"] < counted["spent_kg"]
        for name, numbers in shown(world, app).items():
            assert numbers == pytest.approx(settled, rel=1e-12), name
