"""One Task object everywhere: a rehearsal in process, a live run in process and the generated Flower app agree."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import slackwater as sw
from slackwater.cli.main import cli
from slackwater.engines.flower.app import new_app
from slackwater.errors import ScenarioError
from slackwater.ledger.run import Run
from slackwater.live.status import read_status
from slackwater.training import tasks

SOURCE = """
import torch
from torch import nn
import slackwater as sw

def draw(number, count):
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(count, 3, generator=rng)
    return x, x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(count, 1, generator=rng)

def make_task(clients: int) -> sw.Task:
    return sw.Task(
        name="sums", clients=[draw(number, 50) for number in range(clients)], test=draw(99, 200),
        model=lambda: nn.Linear(3, 1), loss=nn.functional.mse_loss,
        metric=sw.Metric(name="error", compute=lambda o, y: (o - y).abs().mean(), higher_is_better=False, unit="days"),
        optimiser=torch.optim.SGD,
    )
"""
SCENARIO = """
start = 2022-03-01T00:00:00Z
rounds = 3
slack = 3
budget_kg = 0.9
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
[[client]]
name = "dublin"
zone = "IE"
power_w = 300
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tasks, "_imported", {})
    monkeypatch.setenv("SLACKWATER_STATE", str(tmp_path / "state"))
    (tmp_path / "sums.py").write_text(SOURCE)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    yield tmp_path
    for name in [name for name in sys.modules if name == "_task_sums" or name.split(".")[0] == "sumsapp"]:
        del sys.modules[name]


def model(folder: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(Path(folder) / "model.pt", weights_only=True)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_same_task_in_process_and_as_a_flower_app(here: Path) -> None:
    pytest.importorskip("flwr")
    task = tasks.make_for("sums.py:make_task", ["lyon", "dublin"])
    by_object = sw.rehearse("scenario.toml", task=task, out="object", work={"lr": 0.05, "weight_decay": 5e-4})
    named = CliRunner().invoke(
        cli, ["rehearse", "scenario.toml", "--task", "sums.py:make_task", "--lr", "0.05", "--out", "named"]
    )
    assert named.exit_code == 0, named.output
    assert re.search(r"error \(lower is better\) +[\d.]+ days", named.output)
    status = CliRunner().invoke(cli, ["status", "named"]).output
    assert re.search(r"error \(lower is better\) [\d.]+ days", " ".join(status.split()))
    report = CliRunner().invoke(cli, ["report", "named", "--html", "report.html", "--model-card", "card.md"])
    assert report.exit_code == 0, report.output
    assert re.search(r"Error [\d.]+ days on the test set \(lower is better\)", Path("card.md").read_text())
    page = Path("report.html").read_text()
    assert re.search(r"Error</div><div class='value'>[\d.]+</div><div class='unit'>days</div>", page)
    assert "on the test set (lower is better)" in page
    assert "ccuracy" not in page.replace("accuracy point", "")
    of_task = ["--task", "sums.py:make_task", "--scenario", "scenario.toml", "--lr", "0.05"]
    made = CliRunner().invoke(cli, ["flower", "new", "sumsapp", *of_task])
    assert made.exit_code == 0, made.output
    config = tomllib.loads((here / "sumsapp" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["clients"], config["lr"], config["local-steps"], config["batch-size"]) == (2, 0.05, 30, 128)
    by_app = sw.rehearse("scenario.toml", app="sumsapp", out="app")
    assert by_object is not None
    assert by_app is not None
    assert by_object.score == by_app.score == read_status("named").score
    assert by_app.metric == by_object.metric == task.label
    for folder in ("named", "app"):
        assert all(torch.equal(value, model(folder)[key]) for key, value in model("object").items())
    with Run.open("app", read_only=True) as run:
        assert (run.metric.unit, run.metric.higher_is_better) == ("days", False)


def test_a_live_run_of_a_task_in_this_process(here: Path) -> None:
    (here / "scenario.toml").write_text(SCENARIO.replace("2022-03-01", "2099-03-01"))
    task = tasks.make_for("sums.py:make_task", ["lyon", "dublin"])
    status = sw.run("scenario.toml", task=task, out="live", slot_seconds=0.0, work={"lr": 0.05})
    assert status.stands == "done"
    assert status.score is not None
    assert status.accuracy is None
    assert status.to_dict()["metric"]["name"] == "error"


def test_what_trains_must_be_named_once(here: Path) -> None:
    (here / "scenario.toml").write_text(SCENARIO.replace("2022-03-01", "2099-03-01"))
    with pytest.raises(ScenarioError, match=r"Name what trains: --app DIR .* --task"):
        sw.run("scenario.toml")
    with pytest.raises(ScenarioError, match="--app or --task, not both"):
        sw.run("scenario.toml", app=".", task="digits")
    with pytest.raises(ScenarioError, match="There is no task 'digit'"):
        sw.rehearse(SCENARIO and "scenario.toml", task="digit", out="none")
    assert not (here / "none").exists()


def test_a_stopped_rehearsal_of_ones_own_task_is_resumed_by_naming_it(here: Path) -> None:
    broken = tasks.make_for("sums.py:make_task", ["lyon"])
    with pytest.raises(ScenarioError, match="The plan has 2 clients"):
        sw.rehearse("scenario.toml", task=broken, out="run")
    refused = CliRunner().invoke(cli, ["resume", "run"])
    assert "name it: slackwater resume run --task file.py:function" in refused.output
    resumed = CliRunner().invoke(cli, ["resume", "run", "--task", "sums.py:make_task"])
    assert resumed.exit_code == 0, resumed.output
    assert read_status("run").stands == "done"


def test_the_readme_of_an_app_starts_the_sites_of_its_scenario(here: Path) -> None:
    new_app(here / "sumsapp", task="sums.py:make_task", scenario=here / "scenario.toml", work={"local-steps": 7})
    readme = (here / "sumsapp" / "README.md").read_text()
    nodes = [line.strip() for line in readme.splitlines() if line.startswith("    flower-supernode")]
    assert len(nodes) == 2
    assert '--port 8101 --node-config \'name="lyon" zone="FR" power-w=300 partition-id=0 num-partitions=2\'' in nodes[0]
    assert '--port 8102 --node-config \'name="dublin" zone="IE"' in nodes[1]
    assert "num-supernodes=2" in readme
    assert "local-steps = 7\n" in (here / "sumsapp" / "pyproject.toml").read_text()


def test_an_app_of_an_installed_module_imports_it(here: Path) -> None:
    new_app(here / "sumsapp", task="sums:make_task")
    assert "from sums import make_task as make_task" in (here / "sumsapp" / "sumsapp" / "task.py").read_text()
    with pytest.raises(ScenarioError, match="has no 'make_tsk'"):
        new_app(here / "other", task="sums.py:make_tsk")
    assert not (here / "other").exists()
