"""train, resume, baseline and partition as a user meets them."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import slackwater as sw
from slackwater.cli import train_commands as commands
from slackwater.cli.main import cli
from slackwater.training import global_model as server
from slackwater.training import local, tasks
from slackwater.training.data import Images

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.9
[data]
source = "typical"
"""
CLIENT = '[[client]]\nname = "{name}"\nzone = "{zone}"\npower_w = 300\n'
NAMES = {"lyon": "FR", "berlin": "DE", "dublin": "IE"}
QUICK = ("--local-steps", "2", "--batch-size", "16", "--threads", "1")
BESIDE_EACH_OTHER = ["accuracy", "worst client", "loss F", "kg", "of budget", "rounds"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "s.toml").write_text(SCENARIO + "".join(CLIENT.format(name=n, zone=z) for n, z in NAMES.items()))
    shown = CliRunner().invoke(cli, ["plan", str(folder / "s.toml"), "--out", str(folder)])
    assert shown.exit_code == 0, shown.output
    return folder


@pytest.fixture(autouse=True)
def _here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test in a folder of its own with a scenario and its plan."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLACKWATER_DEBUG", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("s.toml", "plan.json"):
        (tmp_path / name).write_text((made / name).read_text())
    yield
    logger = logging.getLogger("slackwater")
    logger.setLevel(logging.NOTSET)
    logger.handlers.clear()


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args, prog_name="slackwater")


def fine(*args: str) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


def refused(*args: str, code: int) -> str:
    result = run(*args)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr
    return result.stderr


def data(result: Result) -> Any:
    """What is the same in every run of the same settings."""
    found = json.loads(result.stdout)
    for one in found.values():
        del one["seconds"], one["folder"]
    return found


# What works


def test_train_beside_the_baseline() -> None:
    result = fine("train", "plan.json", "--out", "run", "--chart", "a.svg", *QUICK)
    assert all(part in result.stdout for part in (*BESIDE_EACH_OTHER, "echo", "no slack", "synthetic intensity"))
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert re.search(
        r"train: round \d of \d  0\.\d+ of 0\.9 kg  loss [\d.]+  accuracy [\d.]+%  slot \d, 2022-01-01T0\d:00Z",
        result.stderr,
    )
    assert "fine-tuning: lyon, berlin, dublin" in result.stderr
    assert "<svg" in Path("a.svg").read_text()
    assert {path.name for path in Path("run").iterdir()} >= {"run.db", "model.pt", "baseline"}
    assert Path("run/baseline/model.pt").exists()


def test_json_is_json_and_nothing_else() -> None:
    found = json.loads(fine("train", "plan.json", "--json", "--aggregator", "ufedavg", *QUICK).stdout)
    assert list(found) == ["ufedavg", "no slack"]
    plan = sw.Plan.load("plan.json")
    assert found["ufedavg"]["emissions_kg"] == pytest.approx(plan.emissions_kg)
    assert set(found["ufedavg"]["client_accuracy"]) == set(NAMES)
    assert found["ufedavg"]["history"][-1]["in_window"] is True
    assert found["ufedavg"]["history"][-1]["participants"] == list(NAMES)
    assert all(one["emissions_kg"] <= one["budget_kg"] for one in found.values())


def test_short_runs_are_evaluated_often_and_long_ones_a_dozen_times() -> None:
    found = json.loads(fine("train", "plan.json", "--json", *QUICK).stdout)
    for one in found.values():
        assert all(record["accuracy"] is not None for record in one["history"])
    only_last = json.loads(fine("train", "plan.json", "--json", "--eval-every", "0", "--no-baseline", *QUICK).stdout)
    assert [r["accuracy"] is not None for r in only_last["echo"]["history"]].count(True) == 1
    plan = sw.plan(sw.Problem.from_costs(np.ones((2, 300)), rounds=300, budget_kg=600.0))
    assert commands._every(plan, None) == 25
    assert commands._every(plan, 7) == 7


def test_baseline_alone_is_the_one_beside() -> None:
    beside = data(fine("train", "plan.json", "--json", *QUICK))["no slack"]
    assert data(fine("baseline", "s.toml", "--json", *QUICK))["no slack"] == beside
    assert "no slack" in fine("baseline", "s.toml", "--out", "b", *QUICK).stdout
    resumed = fine("resume", "b")
    assert "no slack" in resumed.stdout
    assert "the run in b is done" in resumed.stderr


def test_a_run_that_is_done_shows_the_same_again() -> None:
    first = fine("train", "plan.json", "--out", "run", *QUICK)
    for folder in ("run", "run/baseline", "run/run.db"):
        again = fine("resume", folder)
        assert again.stdout == first.stdout
        assert again.stderr == "the run in run is done. Its result:\n"


def test_no_baseline_is_not_made_up_for() -> None:
    fine("train", "plan.json", "--out", "run", "--no-baseline", *QUICK)
    assert not Path("run/baseline").exists()
    assert "no slack" not in fine("resume", "run").stdout


def test_a_budget_too_small_for_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise sw.InfeasibleError("The budget does not pay one round.")

    monkeypatch.setattr(commands, "no_slack_plan", none)
    result = fine("train", "plan.json", "--out", "run", *QUICK)
    assert "no baseline to compare with: The budget does not pay one round." in result.stderr
    assert "no slack" not in result.stdout


def test_devices() -> None:
    args = ("train", "plan.json", "--devices", "5", "--devices-per-slot", "2", "--no-baseline", *QUICK)
    assert json.loads(fine(*args, "--json", "--device-kwh", "0.15").stdout)["echo"]["accuracy"] > 0
    said = refused(*args, "--device-kwh", "0.2", code=2)
    assert said == (
        "error: 2 devices of 0.2 kWh use 0.4 kWh in a slot, but the plan has 0.3 kWh for 'lyon', so the budget would not be "
        "kept. Plan again with energy_kwh=0.4.\n"
    )


def test_local_epochs_go_through_every_sample_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []
    really = local.batches

    def spied(samples: int, *given: Any) -> Any:
        drawn = really(samples, *given)
        seen.append((samples, [index for batch in drawn for index in batch.tolist()]))
        return drawn

    monkeypatch.setattr(local, "batches", spied)
    options = ("--local-steps", "7", "--batch-size", "16", "--threads", "1", "--no-baseline")
    fine("train", "plan.json", "--local-epochs", "2", *options)
    assert len(seen) >= len(NAMES)
    for samples, drawn in seen:
        assert sorted(drawn) == sorted([*range(samples), *range(samples)])


def test_local_epochs_of_one_batch_are_as_many_steps() -> None:
    """A batch larger than a client's data is all of it: an epoch is one step."""
    options = ("train", "plan.json", "--json", "--no-baseline", "--batch-size", "5000", "--threads", "1")
    two = data(fine(*options, "--local-epochs", "2", "--out", "run"))
    assert two == data(fine(*options, "--local-steps", "2"))
    assert two == data(fine("resume", "run", "--json")), "epochs are kept for resume"
    assert two != data(fine(*options, "--local-epochs", "1"))
    assert two != data(fine(*options))


def _losses(found: Any) -> list[float]:
    return [record["loss"] for record in found["echo"]["history"]]


def test_the_server_optimiser_moves_the_model() -> None:
    options = ("train", "plan.json", "--json", "--no-baseline", *QUICK)
    plain = data(fine(*options))
    assert data(fine(*options, "--server", "plain", "--server-lr", "1")) == plain
    momentum = data(fine(*options, "--server", "momentum", "--out", "run"))
    # The velocity begins as the first update, so that the first step is the plain one; later ones are longer.
    assert _losses(momentum)[:2] == _losses(plain)[:2]
    assert _losses(momentum)[2:] != _losses(plain)[2:]
    assert data(fine("resume", "run", "--json")) == momentum, "the optimiser is kept for resume"
    adam = data(fine(*options, "--server", "adam"))
    assert _losses(adam)[0] == _losses(plain)[0]
    assert _losses(adam)[1] != _losses(plain)[1]
    assert data(fine(*options, "--server", "adam", "--server-lr", "0.01")) == adam
    assert data(fine(*options, "--server", "adam", "--server-lr", "0.1")) != adam


@pytest.mark.parametrize(("asked", "rounds"), [("2", 2), ("0.3", 3), ("1000", 8)])
def test_averaging_is_the_mean_of_the_last_models(asked: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[torch.Tensor] = []
    really = server.Plain.step

    def spied(self: server.Plain, *given: Any) -> torch.Tensor:
        models.append(really(self, *given))
        return models[-1]

    monkeypatch.setattr(server.Plain, "step", spied)
    found = json.loads(
        fine("train", "plan.json", "--json", "--no-baseline", "--averaging", asked, "--out", "run", *QUICK).stdout
    )
    assert len(models) == len(found["echo"]["history"]) == 8
    saved = torch.load("run/model.pt", weights_only=True)
    flat = torch.cat([saved[name].flatten() for name in saved])
    mean = torch.stack(models[-rounds:]).double().mean(dim=0)
    assert torch.allclose(flat.double(), mean, rtol=0, atol=1e-7)
    assert not torch.allclose(flat, models[-1], rtol=0, atol=1e-4), "not the last model"
    assert found["echo"]["last_accuracy"] == found["echo"]["history"][-1]["accuracy"]


def test_averaging_one_round_is_the_last_model() -> None:
    options = ("train", "plan.json", "--json", "--no-baseline", *QUICK)
    assert data(fine(*options, "--averaging", "1")) == data(fine(*options))


def test_a_task_of_others_is_told_only_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registered", dict(tasks._registered))
    tasks.register_task("plain", lambda *, clients: tasks.digits(clients=clients))
    assert fine("train", "plan.json", "--task", "plain", "--no-baseline", *QUICK).stdout
    assert "Task 'plain' has no option 'beta'" in refused(
        "train", "plan.json", "--task", "plain", "--beta", "1", code=2
    )


def test_the_folder_of_the_data_is_kept_for_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def load(name: str, folder: Any, **_: Any) -> Images:
        asked.append(folder)
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 255, (90, 1, 28, 28), dtype=np.uint8), np.arange(90) % 10
        return Images(train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])

    monkeypatch.setattr(tasks.datasets, "load", load)
    options = ("--task", "mnist", "--task-data", "files", "--model", "mlp", "--no-baseline", "--partition", "iid")
    fine("train", "plan.json", "--out", "run", *options, *QUICK)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    fine("resume", "../run")
    fine("resume", "../run", "--task-data", "moved")
    assert asked == ["files", str(tmp_path / "files"), "moved"]


# Stopped and gone on with

KILLED = """
import os, signal, sys
from slackwater.cli import main, train_commands
def stop(self, step):
    if (self.title, step.done.number) == {where!r}:
        os.kill(os.getpid(), signal.SIGKILL)
train_commands.Bar.__call__ = stop
main()
"""


@pytest.mark.parametrize("where", [("train", 1), ("no slack", 0)])
def test_a_killed_run_continues(where: tuple[str, int]) -> None:
    unbroken = data(fine("train", "plan.json", "--json", *QUICK))
    code, args = KILLED.format(where=where), ["train", "plan.json", "--out", "run", *QUICK]
    done = subprocess.run([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert data(fine("resume", "run", "--json")) == unbroken
    assert data(fine("resume", "run", "--json")) == unbroken


@pytest.mark.parametrize("where", [("train", 1), ("no slack", 0)])
def test_control_c(where: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = data(fine("train", "plan.json", "--json", *QUICK))
    with monkeypatch.context() as patched:

        def stop(bar: Any, step: Any) -> None:
            if (bar.title, step.done.number) == where:
                signal.raise_signal(signal.SIGINT)

        patched.setattr(commands.Bar, "__call__", stop)
        result = run("train", "plan.json", "--out", "run", *QUICK)
    assert result.exit_code == 130
    folder = "run" if where[0] == "train" else "run/baseline"
    assert re.search(
        rf"error: Stopped after \d of \d rounds, [\d.]+ kg charged\. Resume with: slackwater resume {folder}\n",
        result.stderr,
    )
    assert ("echo" in result.stdout) == (where[0] == "no slack"), "what was done by then is shown"
    assert data(fine("resume", folder, "--json")) == unbroken


def test_the_terminal_sees_it_live() -> None:
    """A terminal of 90 columns on stderr, and data on stdout."""
    ours, theirs = pty.openpty()
    code = "from slackwater.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "plan.json", "--json", "--no-baseline", *QUICK],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "90"},
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:  # how Linux says that the other side has closed
        pass
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["echo"]["accuracy"] > 0
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen.decode())
    assert "train ━" in text
    assert re.search(r"(\d)/\1 .*of 0\.9 kg  loss [\d.]+  accuracy [\d.]+%", text)
    assert re.search(r"slot \d, 2022-01-01T0\d:00Z, fine-tuning: lyon, berlin, dublin", text)


# Mistakes


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["train"], 2, "Missing argument 'PLAN'"),
        (["train", "none.json"], 1, "error: There is no plan at none.json. Make one with: slackwater plan"),
        (["train", "s.toml"], 1, "error: s.toml is a scenario, not a plan. First run: slackwater plan s.toml --out run"),
        (["train", "plan.json", "--out", ""], 2, "'--out': it is empty"),
        (["train", "plan.json", "--task", ""], 2, "'--task': it is empty"),
        (["train", "plan.json", "--chart", "x.bmp"], 2, "'--chart': 'x.bmp' must end in"),
        (["train", "plan.json", "--task", "digit"], 2, "error: There is no task 'digit'. Did you mean 'digits'?"),
        (["train", "plan.json", "--aggregator", "ufedvag"], 2, "no aggregator 'ufedvag'. Did you mean 'ufedavg'?"),
        (["train", "plan.json", "--partition", "dirichelt"], 2, "error: partition 'dirichelt' is unknown. Did you mean 'dirichlet'?"),
        (["train", "plan.json", "--beta", "0"], 2, "error: beta is 0.0; give a positive number"),
        (["train", "plan.json", "--seed", "-1"], 2, "error: seed is -1; give 0 or a positive whole number."),
        (["train", "plan.json", "--lr", "nan"], 2, "error: lr must be above 0, not nan."),
        (["train", "plan.json", "--local-steps", "0"], 2, "error: local_steps must be a whole number of at least 1"),
        (["train", "plan.json", "--local-epochs", "0"], 2, "error: local_epochs must be a whole number of at least 1"),
        (["train", "plan.json", "--server", "momentun"], 2, "no server optimiser 'momentun'. Did you mean 'momentum'?"),
        (["train", "plan.json", "--server-lr", "0"], 2, "error: server_lr must be above 0, not 0.0."),
        (["train", "plan.json", "--averaging", "0"], 2, "error: averaging must be a number of rounds (1, 2, ..)"),
        (["train", "plan.json", "--averaging", "1.5"], 2, "or a share of them below 1, not 1.5."),
        (["train", "plan.json", "--model", "lenet"], 2, "error: model 'lenet' is unknown. Did you mean 'resnet'? Known: paper, "),
        (["train", "plan.json", "--devices", "5"], 2, "error: The task 'digits' has devices: set devices_per_slot, the number"),
        (["train", "plan.json", "--devices-per-slot", "5"], 2, "error: devices_per_slot is 5, but the task 'digits' has no devices."),
        (["train", "plan.json", "--task-data", "x"], 2, "error: data is 'x', but the digits are part of scikit-learn. Leave data out."),
        (["train", "plan.json", "--device", "gpu"], 2, "gpu). Use device='cpu'.\n"),
        (["train", "plan.json", "--tensorboard"], 2, "error: tensorboard=True needs a folder to write to: name one with --out"),
        (["baseline", "none.toml"], 2, "error: There is no scenario at none.toml. Create one with: slackwater init none.toml"),
        (["resume", "none"], 1, "error: There is no run in none: it has no run.db. Start one with: slackwater train"),
        (["partition"], 2, "Missing argument 'TASK'"),
        (["partition", "digts"], 2, "error: There is no task 'digts'. Did you mean 'digits'? Known: digits, mnist, "),
        (["partition", "digits", "--clients", "0"], 2, "error: clients is 0; give at least 1."),
    ],
)  # fmt: skip
def test_mistakes(args: list[str], code: int, message: str) -> None:
    assert message in refused(*args, code=code)


def test_a_refused_run_leaves_nothing() -> None:
    refused("train", "plan.json", "--out", "run", "--aggregator", "nope", code=2)
    assert not Path("run").exists()


def test_a_folder_that_cannot_be_made() -> None:
    said = refused("train", "plan.json", "--out", "s.toml/run", *QUICK, code=1)
    assert "error: The run folder s.toml/run cannot be made: Not a directory." in said


def test_a_folder_that_holds_a_run() -> None:
    fine("train", "plan.json", "--out", "run", "--no-baseline", *QUICK)
    said = refused("train", "plan.json", "--out", "run", *QUICK, code=1)
    assert said == (
        "error: run already holds a run, which is not overwritten. Name another folder with --out, or continue the run: "
        "slackwater resume run\n"
    )
    assert not Path("run/baseline").exists()


def test_a_plan_of_a_newer_version() -> None:
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(plan | {"format": 99, "version": "9.9"}))
    assert "plan.json was made by Slackwater 9.9, a newer version" in refused("train", "plan.json", code=1)


def test_a_loss_that_is_no_number() -> None:
    said = refused("train", "plan.json", "--lr", "1e18", "--out", "run", *QUICK, code=1)
    found = re.search(r"error: (The loss of client '\w+' is no longer finite in round \d of \d .*)\n", said)
    assert found is not None
    assert re.search(
        r"\(slot \d, 2022-.*\)\. The model of round \d is kept in run\. Try an lr below 1e\+18, or an", found[1]
    )
    assert found[1] in refused("resume", "run", code=1)


@pytest.mark.parametrize("args", [["train", "plan.json"], ["baseline", "s.toml"], ["partition", "digits"]])
def test_without_pytorch(args: list[str]) -> None:
    code = "import sys; sys.modules['torch'] = None; from slackwater.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "error: This needs PyTorch, which is not installed. Install it with: pip install 'slackwater[torch]'\n"
    )


# Who holds what


PARTS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import slackwater as sw

def make_task(clients, target=1.0):
    held = [(torch.ones(4, 2), torch.tensor([[0.0], [target], [target], [0.0]])) for _ in range(clients)]
    loaders = [DataLoader(TensorDataset(*one)) for one in held]
    return sw.Task(name="parts", clients=loaders, test=held[0], model=lambda: nn.Linear(2, 1), loss=nn.functional.mse_loss)

def halves(clients):
    return make_task(clients, 0.5)
"""


def test_partition_of_ones_own_task_with_one_output_and_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts.py").write_text(PARTS)
    found = json.loads(fine("partition", "parts.py:make_task", "--clients", "2", "--json").stdout)
    assert found["label_counts"] == [[2, 2], [2, 2]]
    refused = CliRunner().invoke(cli, ["partition", "parts.py:halves", "--clients", "2"])
    assert "The targets of task 'parts' are not classes" in refused.stderr


def test_partition() -> None:
    result = fine("partition", "digits", "--clients", "3", "--beta", "0.3", "--seed", "4", "--chart", "p.png")
    found = json.loads(fine("partition", "digits", "--clients", "3", "--beta", "0.3", "--seed", "4", "--json").stdout)
    assert sum(found["samples"]) == 1442
    assert found["label_counts"] == tasks.digits(clients=3, beta=0.3, seed=4).record["label_counts"]
    assert (found["task"], found["partition"], found["beta"], found["seed"]) == ("digits", "dirichlet", 0.3, 4)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["client", "samples", *map(str, range(10))]
    assert [int(n.replace("·", "0")) for n in lines[1][2:]] == found["label_counts"][0]
    assert lines[4][:2] == ["all", "1,442"]
    assert "digits: 1,442 samples, dirichlet, beta 0.3, seed 4, 3 clients" in result.stdout
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_a_partition_over_many() -> None:
    shown = fine("partition", "digits", "--clients", "50", "--partition", "iid").stdout
    assert "... and 20 more clients. See all with --json." in shown
    assert "beta" not in shown
