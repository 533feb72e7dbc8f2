"""`slackwater rivals`, `train --policy` and the example, as a user meets them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slackwater.cli.main import cli
from slackwater.lab.policies.comparison import lines, to_csv
from slackwater.lab.policies.registry import PLANNED, POLICIES, method_names

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.5
[data]
source = "typical"
"""
CLIENT = '[[client]]\nname = "{name}"\nzone = "{zone}"\npower_w = 300\n'
QUICK = ("--local-steps", "2", "--batch-size", "16", "--seeds", "2", "--out", "out")


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    clients = {"lyon": "FR", "berlin": "DE", "dublin": "IE"}
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO + "".join(CLIENT.format(name=n, zone=z) for n, z in clients.items()))
    return path


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == code, done.output + done.stderr
    return done


def test_a_comparison_is_made_once_and_added_to(scenario: Path) -> None:
    first = run("rivals", "s.toml", "--policies", "greed,no-slack", "--budget", "0.3,0.5", "--most", "3", *QUICK)
    assert "3 of 8 cells to train" in first.stderr
    again = run("rivals", "s.toml", "--policies", "greed,no-slack", "--budget", "0.3,0.5", *QUICK)
    assert "5 of 8 cells to train" in again.stderr
    assert {"greed", "no-slack", "worst", "rho_H"} <= set(again.stdout.split())
    kept = Path("out/cells.jsonl").read_text()
    assert kept.count("\n") == 8
    done = run("rivals", "s.toml", "--policies", "greed,no-slack", "--budget", "0.3,0.5", "--json", *QUICK)
    assert "to train" not in done.stderr
    assert Path("out/cells.jsonl").read_text() == kept
    other = run("rivals", "s.toml", "--policies", "no-slack,no-slack+clipped:0.01", "--budget", "0.5", "--json", *QUICK)
    apart = {row["method"]: row["accuracy"] for row in json.loads(other.stdout)}
    assert apart["no-slack"] > apart["no-slack+clipped:0.01"]
    table = json.loads(done.stdout)
    assert [(row["budget_kg"], row["seeds"]) for row in table] == [(0.3, 2), (0.3, 2), (0.5, 2), (0.5, 2)]
    assert all(row["kg"] <= row["budget_kg"] * (1 + 1e-9) for row in table)
    assert Path("out/rivals.png").stat().st_size > 10_000
    run("rivals", "s.toml", "--policies", "greed,no-slack", "--budget", "0.3,0.5", *QUICK)  # as it was
    rows = list(csv.DictReader(Path("out/rivals.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {"greed", "no-slack"}
    assert float(rows[0]["accuracy"]) >= float(rows[1]["accuracy"])


def test_cells_of_another_setting_are_not_mixed_in(scenario: Path) -> None:
    run("rivals", "s.toml", "--policies", "greed", "--most", "0", *QUICK)
    refused = run("rivals", "s.toml", "--policies", "greed", "--lr", "0.2", *QUICK, code=2)
    assert "lr differs" in refused.stderr
    scenario.write_text(scenario.read_text().replace("slack = 6", "slack = 7"))
    assert "the scenario differs" in run("rivals", "s.toml", "--policies", "greed", *QUICK, code=2).stderr


TASK = """
import torch
from torch import nn
import slackwater as sw

def make_task(clients, metric="accuracy"):
    def draw(number):
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(number))
        return x, (x.sum(dim=1, keepdim=True) > 0).float()
    return sw.Task(
        name="mine", clients=[draw(number) for number in range(clients)], test=draw(9), model=lambda: nn.Linear(3, 1),
        loss=nn.functional.binary_cross_entropy_with_logits, metric=metric,
    )

def other(clients):
    return make_task(clients, metric="mae")
"""


def test_a_task_of_ones_own_by_its_file(scenario: Path) -> None:
    (scenario.parent / "mine.py").write_text(TASK)
    run("rivals", "s.toml", "--task", "mine.py:make_task", "--policies", "greed,no-slack", *QUICK)
    with open("out/rivals.csv", encoding="utf-8") as file:
        assert [0 <= float(row["accuracy"]) <= 1 for row in csv.DictReader(file)] == [True, True]
    other = ("--task", "mine.py:other", "--policies", "greed", "--seeds", "1", "--out", "other")
    refused = run("rivals", "s.toml", *other, code=2)
    assert "compares accuracies, but the task 'mine' measures MAE (lower is better)" in refused.stderr
    assert "sw.compare_methods" in refused.stderr


def test_a_method_that_is_not_known_is_a_usage_error(scenario: Path) -> None:
    assert "Did you mean 'fedzero'" in run("rivals", "s.toml", "--policies", "fedzro", code=2).stderr
    assert "name a method" in run("rivals", "s.toml", "--policies", ",", code=2).stderr


def test_all_methods_and_one_more(scenario: Path) -> None:
    asked = run("rivals", "s.toml", "--policies", "all, oort+echo, oort", "--most", "1", *QUICK)
    assert f"1 of {2 * (len(method_names()) + 1)} cells to train" in asked.stderr


def test_train_by_a_policy_and_resume(scenario: Path) -> None:
    run("plan", "s.toml", "--out", ".")
    quick = ("--local-steps", "2", "--batch-size", "16", "--threads", "1")
    shown = run("train", "plan.json", "--policy", "lowcarb", "--out", "run", *quick)
    assert re.search(r"lowcarb +\d\d\.\d\d%", shown.stdout)
    assert "no slack" in shown.stdout
    again = run("resume", "run")
    assert "lowcarb" in again.stdout
    assert "no slack" in again.stdout
    assert run("report", "run").exit_code == 0


def test_the_table() -> None:
    cell = {
        "method": "m",
        "budget_kg": 1.0,
        "status": "trained",
        "worst_client": 0.5,
        "kg": 0.9,
        "rounds": 2,
        "client_rounds": 4,
    }
    rows = [
        cell | {"accuracy": 0.9, "slots": 10, "rho_h": 2.0, "curve": [[1, 0.1, 0.5], [4, 0.4, 0.85], [8, 0.8, 0.9]]},
        cell | {"accuracy": 0.8, "slots": 20, "rho_h": "inf", "curve": [[2, 0.2, 0.8]]},
        {"method": "m", "budget_kg": 1.0, "status": "diverged", "accuracy": 0.1},
        {"method": "n", "budget_kg": 1.0, "status": "infeasible"},
    ]
    one, none = lines(rows, 0.85)
    assert one.accuracy == pytest.approx(0.6)
    assert one.accuracy_sd == pytest.approx(((0.3**2 + 0.2**2 + 0.5**2) / 2) ** 0.5)
    assert (one.seeds, one.diverged, one.reached, one.rho_h, one.slots) == (3, 1, 1, 2.0, 15)
    assert (one.hours_to_target, one.kg_to_target) == (4, 0.4)
    assert (none.method, none.seeds, none.infeasible) == ("n", 0, 1)
    assert to_csv([one, none]).splitlines()[2].startswith("1,n,0,,,")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "research" / "rivals.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(snippet, {})
    built_in = [name for name, factory in POLICIES.own.items() if factory.__module__.startswith("slackwater.")]
    for name in [*PLANNED, *built_in]:
        assert f"`{name}`" in page, f"docs/research/rivals.md does not tell of {name}"


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "my_policy.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", example], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(\w+): accuracy (0\.\d+) with (0\.\d+) of 0.6 kg", done.stdout)
    assert [name for name, *_ in found] == ["rarest", "oort", "random"]
    assert all(float(accuracy) > 0.5 and float(kg) <= 0.6 for _, accuracy, kg in found)
