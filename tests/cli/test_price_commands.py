"""A scenario with prices, from plan to report: every command says what the electricity costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.4
budget_money = 5

[price]
file = "prices.csv"
unit = "EUR/MWh"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300

[[client]]
name = "berlin"
zone = "DE"
power_w = 300
"""


def run(*args: object) -> str:
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    begin = datetime(2022, 1, 1, tzinfo=UTC)
    hours = [f"{(begin + timedelta(hours=hour)).isoformat()},{50 + hour},{-20 + hour}" for hour in range(8)]
    (tmp_path / "prices.csv").write_text("\n".join(["datetime_utc,FR,DE", *hours]) + "\n")
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


def test_the_price_is_told_from_plan_to_report(scenario: Path) -> None:
    folder = scenario.parent
    told = json.loads(run("plan", scenario, "--json"))
    cost = sum(
        0.0003 * (base + hour)
        for base, row in zip((50, -20), told["matrix"], strict=True)
        for hour, trains in enumerate(row)
        if trains
    )
    assert (told["money"], told["currency"]) == (pytest.approx(cost), "EUR")
    assert told["problem"]["budget_money"] == 5
    assert f"{cost:,.2f} of 5.00 EUR" in run("plan", scenario, "--details", "--out", folder / "plan")
    run("train", folder / "plan", "--task", "digits", "--out", folder / "run", "--local-steps", 1)
    ours = next(path for path in (folder / "run").rglob("run.db") if "baseline" not in str(path)).parent
    assert f"electricity: {cost:,.2f} EUR" in run("status", ours)
    assert json.loads(run("report", ours, "--json"))["figures"]["money"] == pytest.approx(cost)
    assert f"Electricity         {cost:,.2f} EUR" in run("report", ours)


def test_a_price_that_is_missing_ends_with_a_sentence(scenario: Path) -> None:
    (scenario.parent / "prices.csv").write_text("datetime_utc,FR\n2022-01-01T00:00Z,50\n")
    done = CliRunner().invoke(cli, ["plan", str(scenario)])
    assert done.exit_code == 1
    assert "has no prices for DE; it has FR." in done.output
