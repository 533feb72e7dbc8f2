"""The generated app runs with the commands of its own README, and the watts of a client get into its scenario."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes import BIN, free_port, has_flower, kill_tree, send, slot_seconds, until
from recount import check

from slackwater.cli.main import cli
from slackwater.engines.flower.app import App, new_app
from slackwater.engines.flower.calibrate import measure, write_watts
from slackwater.errors import ScenarioError, SlackwaterError


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    result = CliRunner().invoke(cli, ["flower", "new", str(tmp_path / "my-app")])
    assert result.exit_code == 0, result.output
    monkeypatch.chdir(tmp_path / "my-app")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "my-app"


def commands(app: Path, section: str) -> list[str]:
    text = (app / "README.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)


def shell(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_in_this_process(app: Path) -> None:
    run, status = commands(app, "In this process")
    shell(run)
    assert "done" in shell(status)
    check(app / "rehearsal")
    assert (app / "rehearsal" / "model.pt").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray (pip install 'flwr[simulation]')")
def test_in_flowers_simulation(app: Path) -> None:
    plan, run = commands(app, "In Flower's simulation")
    try:
        shell(plan)
        shell(run)
    finally:  # Flower leaves a SuperLink behind, whose database is in our own FLWR_HOME
        home = str(app.parent / "flwr").encode()
        send(
            (int(each.parent.name) for each in Path("/proc").glob("[0-9]*/cmdline") if home in _bytes(each)),
            signal.SIGKILL,
        )
    check(app / "sim")


@pytest.mark.processes
@pytest.mark.skipif(not has_flower() or os.name != "posix", reason="needs Flower's commands")
def test_deployed(app: Path) -> None:
    scenario = app / "scenario.toml"
    shorter = re.sub(r"(?m)^(rounds|slack|fine_tune)(\s*=\s*)\d+", _shorter, scenario.read_text())
    scenario.write_text(shorter)
    ports = {str(port): str(free_port()) for port in (8000, 8101, 8102, 8103)}
    given = [re.sub(r"\b(8000|810[123])\b", lambda found: ports[found[1]], each) for each in commands(app, "Deployed")]
    readme = (app / "README.md").read_text()
    (app.parent / "flwr").mkdir()
    config = re.search(r"```toml\n(.*?)```", readme, flags=re.DOTALL)
    assert config is not None
    (app.parent / "flwr" / "config.toml").write_text(config[1].replace("8000", ports["8000"]))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in given[:-2]:
            started.append(_start(command, app.parent / f"{len(started)}.log"))
            if len(started) == 1:
                until(lambda: _listens(app.parent / "0.log"), "the SuperLink listens")
        shell(given[-2].replace("--slot-seconds 30", f"--slot-seconds {slot_seconds(20.0)}"))
        assert "done" in shell(given[-1])
        assert check(app / "live")["rounds"] >= 1
    finally:
        for process in started:
            kill_tree(process)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _shorter(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{ {'rounds': 1, 'slack': 0, 'fine_tune': 1}[found[1]] }"


def _start(command: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(shlex.split(command), stdout=out, stderr=out, start_new_session=True)


def _listens(log: Path) -> bool:
    return b"Uvicorn running" in log.read_bytes() or b"startup complete" in log.read_bytes()


def test_an_app_must_have_a_name_and_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be called '1st'"):
        new_app(tmp_path / "1st")
    new_app(tmp_path / "one")
    with pytest.raises(ScenarioError, match="not empty"):
        new_app(tmp_path / "one")


def test_what_is_no_app_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="slackwater flower new"):
        App.read(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.components]\nserverapp = 'x:app'\n")
    with pytest.raises(ScenarioError, match="must name clientapp"):
        App.read(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.flwr.app.components]\nserverapp = 'nox:app'\nclientapp = 'nox:app'\n"
    )
    read = App.read(tmp_path)
    with pytest.raises(ScenarioError, match="no module 'nox'"):
        read.load(read.server)


@pytest.mark.parametrize(
    "content",
    [
        "tool = 3", "[tool]\nflwr = 'x'", "[tool.flwr]\napp = [1]", "[tool.flwr.app]\ncomponents = 'x'", f"a = {'[' * 5000}",
        "[tool.flwr.app]\nconfig = 3", "\x00", "a = \"",
    ],
)  # fmt: skip
def test_a_damaged_pyproject_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(ScenarioError, match=r"pyproject\.toml"):
        App.read(tmp_path)


SCENARIO = """\
start = 2022-01-01T00:00:00Z  # the first
rounds = 2

[[client]]
name = "lyon"      # south
zone = "FR"
power_w = 300      # guessed

[[client]]
name = "dublin"
zone = "IE"
energy_kwh = 0.25  # of one round
# the end
"""


@pytest.mark.parametrize(
    ("client", "lines"), [("lyon", ["power_w = 212.5      # guessed", "idle_w = 40"]), ("dublin", ["power_w = 212.5"])]
)
def test_watts_go_into_the_scenario_and_nothing_else_changes(client: str, lines: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    write_watts(path, client, power_w=212.5, idle_w=40.0)
    text = path.read_text()
    entry = next(each for each in tomllib.loads(text)["client"] if each["name"] == client)
    assert (entry["power_w"], entry["idle_w"]) == (212.5, 40.0)
    assert "energy_kwh" not in entry
    assert all(line in text.splitlines() for line in lines)
    kept = [line for line in SCENARIO.splitlines() if "power_w" not in line and "energy" not in line]
    assert [line for line in text.splitlines() if line in kept] == kept
    with pytest.raises(ScenarioError, match="has no client 'paris'"):
        write_watts(path, "paris", power_w=1.0, idle_w=0.0)


class Wattmeter:
    name = "a wattmeter"

    def __init__(self, *kwh: float) -> None:
        self.kwh = list(kwh)

    def start(self) -> None: ...

    def stop(self) -> float:
        return self.kwh.pop(0)


def test_watts_are_measured_at_rest_and_under_load() -> None:
    found = measure(0.05, [sys.executable, "-c", "pass"], Wattmeter(1e-6, 1e-3))
    assert found.active_w > found.idle_w > 0
    with pytest.raises(SlackwaterError, match="was not at rest"):
        measure(0.05, meter=Wattmeter(1e-3, 1e-9))


def test_calibrate_says_plainly_that_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.engines.flower.calibrate.best_meter", lambda: None)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    refused = CliRunner().invoke(cli, ["calibrate", str(path), "lyon"])
    assert refused.exit_code == 1
    assert "--active-w" in refused.output
    given = CliRunner().invoke(cli, ["calibrate", str(path), "lyon", "--active-w", "250", "--idle-w", "35"])
    assert given.exit_code == 0, given.output
    assert "power_w = 250" in path.read_text()
