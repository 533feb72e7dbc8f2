"""Plans for longer than any provider's forecast reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grids import EPOCH, HOUR
from sandbox import NOW, SITES, START, World

from slackwater.units import iso

HORIZON = 336


def planned(world: World, provider: str) -> tuple[dict[str, Any], str]:
    """Plan two weeks: the plan's file, and what was said."""
    scenario = world.scenario(
        world.folder / "scenario.toml", provider, rounds=100, slack=HORIZON - 100, budget_kg=8.0 if provider != "neso" else 20.0
    )  # fmt: skip
    done = world.command("plan", scenario, "--out", "plan", "--json")
    assert done.json["status"] == "optimal"
    plan: dict[str, Any] = json.loads((world.folder / "plan" / "plan.json").read_text())
    assert plan["problem"]["rounds"] + plan["problem"]["slack"] == HORIZON
    assert {one["zone"] for one in plan["provenance"]} == set(SITES[provider].values())
    return plan, done.err


@pytest.mark.parametrize(
    ("provider", "reach_hours"),
    [("electricitymaps", 24), ("electricitymaps", 48), ("electricitymaps", 72), ("neso", 48), ("energycharts", 24)],
)
def test_a_plan_for_two_weeks_when_the_forecast_is_shorter(provider: str, reach_hours: int, tmp_path: Path) -> None:
    with World(tmp_path, reaches={provider: reach_hours * HOUR}) as world:
        plan, _ = planned(world, provider)
        step = world.providers[provider].step
    ends = NOW - (NOW - EPOCH) % step + reach_hours * HOUR
    ends += -(ends - EPOCH) % HOUR  # an hour that it covers in part
    for known in plan["provenance"]:
        theirs, ours = known["origins"]
        assert (theirs["source"], theirs["kind"], theirs["start"]) == (provider, "forecast", iso(START))
        assert theirs["hours"] == (ends - START) // HOUR
        assert (ours["kind"], ours["start"], ours["hours"]) == ("forecast", iso(ends), HORIZON - theirs["hours"])
        assert ours["source"] != provider
        assert known["synthetic"] is False


def test_a_plan_with_a_day_of_history_and_no_forecast(tmp_path: Path) -> None:
    with World(tmp_path, free=True) as world:
        plan, told = planned(world, "electricitymaps")
    assert [len(known["origins"]) for known in plan["provenance"]] == [1, 1, 1]
    assert all(known["origins"][0]["kind"] == "forecast" for known in plan["provenance"])
    assert "Only 23 h of actual intensity are known for FR" in told
    assert "No new forecast from the providers: electricitymaps forbids this request" in told
