"""Options of `plan` replace keys of the scenario; `train` says what it does not keep; SIGTERM is Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.planning.plan import Plan

SCENARIO = """
start = 2022-01-01T00:00:00Z
rounds = 3
deadline = 2022-01-01T20:00:00Z
budget_kg = 0.6
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
[[client]]
name = "berlin"
zone = "DE"
power_w = 300
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path


def planned(*options: str) -> Plan:
    result = CliRunner().invoke(cli, ["plan", "scenario.toml", "--out", "p", *options])
    assert result.exit_code == 0, result.output
    return Plan.load("p/plan.json")


def test_options_replace_the_scenarios_keys() -> None:
    plain = planned()
    assert (plain.problem.horizon, plain.problem.budget_kg, plain.problem.alpha) == (20, 0.6, 0.1)
    assert planned("--budget", "0.4").problem.budget_kg == 0.4
    assert planned("--slack", "5").problem.horizon == 8
    assert planned("--slack", "0").problem.horizon == 3
    assert planned("--alpha", "log").problem.alpha == "log"
    assert planned("--alpha", "0.5").problem.alpha == 0.5
    direct = planned("--factor", "direct")
    assert (direct.problem.traces.factor, plain.problem.traces.factor) == ("direct", "lifecycle")
    assert direct.problem.costs.g_max < plain.problem.costs.g_max


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--budget", "-1", "budget_kg must be"),
        ("--alpha", "fair", "alpha must be"),
        ("--slack", "-2", "--slack"),
        ("--factor", "x", "--factor"),
    ],
)
def test_wrong_values_are_sentences(option: str, value: str, sentence: str) -> None:
    result = CliRunner().invoke(cli, ["plan", "scenario.toml", option, value])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_train_without_out_says_that_nothing_is_kept() -> None:
    planned()
    fast = ["train", "p/plan.json", "--no-baseline", "--local-steps", "1", "--eval-every", "0"]
    said = CliRunner().invoke(cli, fast)
    assert "without --out nothing is kept: no model, no ledger, no report" in said.stderr
    assert "nothing is kept" not in said.stdout
    assert "nothing is kept" not in CliRunner().invoke(cli, [*fast, "--out", "run"]).stderr


CODE = """
import os, signal, threading
from slackwater.training import loop
real = loop.Training._train_clients
def train(self, number, due):
    if number == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return real(self, number, due)
loop.Training._train_clients = train
from slackwater.cli import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_sigterm_stops_a_training_as_ctrl_c_does() -> None:
    planned("--budget", "2.0")
    arguments = ["train", "p/plan.json", "--no-baseline", "--local-steps", "1", "--out", "run"]
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert "Stopped after 2 of" in done.stderr
    assert "slackwater resume run" in done.stderr
    resumed = CliRunner().invoke(cli, ["resume", "run", "--json"])
    assert resumed.exit_code == 0, resumed.output
    assert len(json.loads(resumed.stdout)["echo"]["history"]) > 2


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_sigterm_ends_any_other_command_quietly() -> None:
    code = (
        "import os, signal\nfrom slackwater.cli import plan_commands\n"
        "plan_commands.make_plan = lambda *a, **k: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from slackwater.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "scenario.toml"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (130, "stopped.\n")
