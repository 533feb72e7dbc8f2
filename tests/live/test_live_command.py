from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner, Result
from live_world import Sites

from slackwater.cli.main import cli
from slackwater.live import RunStopped, Site, carry_out
from slackwater.live.folder import load_settings
from slackwater.planning.plan import DEFAULT_AGGREGATOR, Plan

pytest.importorskip("flwr")
from slackwater.flower import launch

SCENARIO = """
start = {start}
rounds = 3
slack = 3
fine_tune = 1
budget_kg = 5.0

[data]
source = "typical"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300

[[client]]
name = "rome"
zone = "IE"
power_w = 300
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "scenario.toml").write_text(SCENARIO.format(start="2022-03-01T00:00:00Z"))
    return tmp_path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Takes Flower's place; what it was asked."""
    asked: list[Any] = []

    def in_process(app: str, folder: Path) -> None:
        asked.append((app, folder))
        names = {name: Site(name=name) for name in ("lyon", "rome")}
        carry_out(folder, Sites(sites=names), world.initial())

    monkeypatch.setattr(launch, "in_process", in_process)
    monkeypatch.setattr(launch, "deployed", lambda *given, **more: asked.append((*given, more)))
    return asked


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_run_prepares_and_starts_the_app_in_this_process(here: Path, engine: list[Any]) -> None:
    done = call("run", "scenario.toml", "--app", "app", "--aggregator", "ufedavg", "--seed", "5")
    assert done.exit_code == 0, done.output
    assert engine == [(str(here / "app"), Path("run"))]
    settings = load_settings(here / "run")
    assert (settings.source, settings.slot_seconds, settings.seed) == ("plan", 0.0, 5)
    assert "played back without waiting" in done.stderr
    assert "of 5 kg" in done.stdout
    assert "synthetic intensity" in done.stdout
    shown = call("status", "run", "--json")
    assert json.loads(shown.stdout)["stands"] == "done"
    assert call("status", "run").exit_code == 0
    again = call("resume", "run", "--json")
    assert json.loads(again.stdout)["rounds"] == json.loads(shown.stdout)["rounds"]


def test_run_takes_the_plans_aggregator_and_auto_chooses_the_plan(here: Path, engine: list[Any]) -> None:
    assert call("run", "scenario.toml", "--app", "app", "--out", "usual").exit_code == 0
    assert load_settings(here / "usual").aggregator == DEFAULT_AGGREGATOR
    assert call("run", "scenario.toml", "--app", "app", "--auto", "--out", "auto").exit_code == 0
    chosen = Plan.load(here / "auto" / "plan.json")
    assert chosen.recommended is not None
    assert load_settings(here / "auto").aggregator == chosen.recommended.aggregator
    told = ("run", "scenario.toml", "--app", "app", "--auto", "--aggregator", "fedavg", "--out", "told")
    assert call(*told).exit_code == 0
    assert load_settings(here / "told").aggregator == "fedavg"


def test_run_can_plan_anew_on_files_that_are_played_back(here: Path, engine: list[Any]) -> None:
    done = call("run", "scenario.toml", "--app", "app", "--replan", "1h", "--forecast", "same-hour-mean", "--out", "r")
    assert done.exit_code == 0, done.output
    settings = load_settings(here / "r")
    assert (settings.source, settings.replan_slots, settings.forecast) == ("playback", 1, "same-hour-mean")
    assert json.loads(call("status", "r", "--json").stdout)["replans"] > 0


def test_run_on_a_superlink(here: Path, engine: list[Any]) -> None:
    refused = call("run", "scenario.toml", "--app", "app", "--superlink", "mine")
    assert refused.exit_code == 2
    assert "The scenario ended 2022-03-01T06:00Z" in refused.stderr
    done = call(
        "run", "scenario.toml", "--app", "app", "--superlink", "mine", "--slot-seconds", "10", "--allow-insecure"
    )
    assert done.exit_code == 0, done.output
    assert engine == [(str(here / "app"), "mine", Path("run"), {"allow_insecure": True})]
    assert load_settings(here / "run").slot_seconds == 10
    assert json.loads(call("status", "run", "--json").stdout)["stands"] == "prepared"
    assert call("resume", "run").exit_code == 0
    assert len(engine) == 2


def test_a_scenario_in_the_future_runs_in_real_time(here: Path, engine: list[Any]) -> None:
    soon = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    Path("scenario.toml").write_text(SCENARIO.format(start=soon.isoformat().replace("+00:00", "Z")))
    assert call("run", "scenario.toml", "--app", "app", "--superlink", "mine").exit_code == 0
    assert load_settings(here / "run").slot_seconds is None


def test_mistakes_are_named(here: Path, engine: list[Any]) -> None:
    assert "not a period" in call("run", "scenario.toml", "--app", "app", "--replan", "soon").stderr
    assert "does not exist" in call("run", "scenario.toml", "--app", "nowhere").stderr
    assert "no live run in" in call("status", "nowhere").stderr
    world.made(here / "own", slot_seconds=0.0)
    stopped = call("resume", "own")
    assert stopped.exit_code == 2
    assert "start the app again that began it" in stopped.stderr


def test_a_stopped_run_says_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(
        launch, "in_process", lambda app, folder: carry_out(folder, Sites(), world.initial(), stop=stop)
    )
    done = call("run", "scenario.toml", "--app", "app")
    assert done.exit_code == RunStopped.exit_code
    assert "Go on with: slackwater resume run" in done.stderr
    assert "stopped; go on with" in call("status", "run").stdout
