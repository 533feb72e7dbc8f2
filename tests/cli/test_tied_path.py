"""A rehearsal from a scenario file in which everything ties the clients together."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import live_world as world
import pytest
from click.testing import CliRunner, Result

from slackwater.cli.main import cli
from slackwater.ledger.run import Run

pytest.importorskip("torch")

SCENARIO = """
start = 2022-03-01T00:00:00Z
rounds = 4
slack = 8
fine_tune = 1
budget_kg = 0.55
max_parallel = 3
min_parallel = 2
price_weight = 0.05
budget_money = 3.0

[data]
source = "typical"

[server]
zone = "FR"
power_w = 100

[price]
file = "prices.csv"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300
idle_w = 40
startup_kwh = 0.02
startup_minutes = 60
min_block_slots = 2

[[client]]
name = "cork"
zone = "IE"
power_w = 300
levels = [{power_w = 300, work = 1.0}, {power_w = 150, work = 0.7}]

[[client]]
name = "oslo"
zone = "NO-NO1"
power_w = 300

[[client]]
name = "lund"
zone = "SE-SE4"
power_w = 300
idle_w = 20
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_a_tied_scenario_is_rehearsed_settled_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slackwater.replanning.reserve.MOST", 5)  # plans of the past: fewer are faster
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    rows = ["datetime_utc,FR,IE,NO-NO1,SE-SE4"]
    for hour in range(12):
        at = datetime(2022, 3, 1, tzinfo=UTC) + timedelta(hours=hour)
        rows.append(f"{at:%Y-%m-%dT%H:%M}Z,{0.1 + 0.01 * hour:.2f},0.25,0.05,-0.01")
    (tmp_path / "prices.csv").write_text("\n".join(rows) + "\n")
    done = call("rehearse", "scenario.toml", "--json", "--replan", "6h", "--forecast", "persistence")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rehearsal"]["emissions_kg"] == found["spent_kg"] <= 0.55
    assert found["rehearsal"]["unsettled_kg"] == 0
    assert 0.3 < found["rehearsal"]["share"] <= 1.001
    assert world.recount(tmp_path / "rehearsal") == pytest.approx(found["spent_kg"], rel=1e-9)
    with Run.open(tmp_path / "rehearsal", read_only=True) as run:
        lines, rounds = list(run.ledger.charges()), list(run.rounds())
    assert {line.cause for line in lines} == {"training", "idle", "server", "startup"}
    assert sum(line.cause == "server" and line.kind == "charge" for line in lines) == len(rounds)
    assert all(2 <= len(one.participants) <= 3 for one in rounds if not one.in_window)
    assert len(rounds[-1].participants) == 4
    assert math.fsum(line.kg for line in lines) == pytest.approx(found["spent_kg"], rel=1e-9)
    again = call("resume", "rehearsal", "--json")
    assert json.loads(again.stdout)["rehearsal"] == found["rehearsal"]
    shown = call("report", "rehearsal")
    assert shown.exit_code == 0, shown.output
