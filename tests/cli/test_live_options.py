"""Every setting of a live run can be given on the command line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.cli.main import cli
from slackwater.cli.run_commands import rehearse, run
from slackwater.live.folder import LiveSettings

ELSEWHERE = {
    "source": "[data] of the scenario, and run or rehearse",
    "data": "[data] of the scenario",
    "engine": "--app, --task and --superlink",
    "replan_slots": "--replan",
    "lag_slots": "--lag of rehearse",
    "slot_seconds": "rehearse only: run is in real time",
}
"""Settings that have other words, and which."""


@pytest.mark.parametrize("name", [one.name for one in fields(LiveSettings)])
def test_every_setting_has_an_option(name: str) -> None:
    options = {command.name: {one.name for one in command.params} for command in (run, rehearse)}
    assert name in ELSEWHERE or all(name in found for found in options.values())


@pytest.mark.parametrize("command", [run, rehearse])
def test_the_defaults_of_the_options_are_those_of_the_settings(command: Any) -> None:
    usual, known = LiveSettings(), {one.name for one in fields(LiveSettings)}
    for option in command.params:
        if option.name in known - {"aggregator", "forecast", "slot_seconds", "config", "buffers", "data"}:
            assert option.default == getattr(usual, option.name) or getattr(usual, option.name) is None, option.name


def test_settings_reach_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.engines import start

    given: dict[str, Any] = {}
    monkeypatch.setattr(start, "rehearse", lambda scenario, **options: given.update(options))
    monkeypatch.setattr("slackwater.cli.run_commands._show", lambda *_: None)
    (tmp_path / "scenario.toml").write_text(
        'start = 2022-03-01T00:00:00Z\nrounds = 2\nbudget_kg = 1.0\n[[client]]\nname = "lyon"\nzone = "FR"\npower_w = 300\n'
    )
    words = ["--config", "lr=0.1", "--config", "epochs=2", "--config", "fast=true", "--config", "opt=sgd=x"]
    words += ["--weighting", "samples", "--buffers", "ema", "--max-rejections", "5", "--server", "adam"]
    done = CliRunner().invoke(cli, ["rehearse", str(tmp_path / "scenario.toml"), *words])
    assert done.exit_code == 0, done.output
    assert given["config"] == {"lr": 0.1, "epochs": 2, "fast": True, "opt": "sgd=x"}
    assert (given["weighting"], given["buffers"], given["max_rejections"], given["server"]) == (
        "samples",
        ("ema",),
        5,
        "adam",
    )
    wrong = CliRunner().invoke(cli, ["rehearse", str(tmp_path / "scenario.toml"), "--config", "lr"])
    assert wrong.exit_code == 2
    assert "'lr' is not KEY=VALUE" in wrong.output
