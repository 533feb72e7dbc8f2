"""Every command takes a scenario whose goal finds the budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.planning.plan import Plan

WORK = """
start = 2022-03-01T00:00:00Z
rounds = 3
slack = 9
goal = "work"
rounds_each = 3

[data]
source = "typical"
"""
ENOUGH = WORK.replace('"work"', '"enough"').replace("rounds_each = 3", "budget_kg = 50.0")
CLIENTS = "".join(
    f'\n[[client]]\nname = "{name}"\nzone = "{zone}"\npower_w = 300\n'
    for name, zone in (("lyon", "FR"), ("berlin", "DE"), ("leeds", "GB"))
)
SMALL = ("--task", "digits", "--local-steps", "2", "--batch-size", "16")
COMMANDS = {
    "plan": ("plan", "s.toml", "--json"),
    "compare": ("compare", "s.toml", "--json"),
    "advise": ("advise", "s.toml", "--slack", "9", "--json"),
    "baseline": ("baseline", "s.toml", *SMALL, "--json"),
    "backtest": ("backtest", "s.toml", "--start", "2022-03-01T00:00Z", "--repeat", "1", "--json"),
    "rivals": ("rivals", "s.toml", *SMALL, "--policies", "ours,no-slack", "--seeds", "1", "--out", "rivals", "--json"),
    "rehearse": ("rehearse", "s.toml", *SMALL, "--out", "rehearsal", "--json"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put_out(command: tuple[str, ...]) -> object:
    done = CliRunner().invoke(cli, list(command), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} in the output"))


@pytest.mark.parametrize("goal", [WORK, ENOUGH], ids=["work", "enough"])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_find_the_budget_of_the_goal(name: str, goal: str) -> None:
    Path("s.toml").write_text(goal + CLIENTS)
    put_out(COMMANDS[name])


def rehearsed(scenario: str) -> tuple[dict[str, float], str]:
    Path("s.toml").write_text(scenario + CLIENTS)
    done = CliRunner().invoke(cli, list(COMMANDS["rehearse"]), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["rehearsal"], done.stderr


def test_a_rehearsal_without_a_budget_holds_every_round_that_was_asked_for() -> None:
    found, told = rehearsed(WORK)
    assert found["client_slots"] == 9
    plan = Plan.load("rehearsal/plan.json")
    assert found["budget_kg"] == pytest.approx(1.5 * plan.emissions_kg)
    assert f"may emit at most {found['budget_kg']:.4g} kg; its plan expects {plan.emissions_kg:.4g} kg" in told


def test_a_rehearsal_keeps_a_budget_that_was_given() -> None:
    found, told = rehearsed(WORK.replace("slack = 9", "slack = 9\nbudget_kg = 2.0"))
    assert found["budget_kg"] == 2.0
    assert "may emit at most" not in told
