"""The watch over a deployed run, with Flower's commands played: started again until the run's file says that it is done."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from light_app import light_app
from plans import ZONES, small_plan
from recount import check

from slackwater.engines.flower import launch
from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.flower import deployed, in_process
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, RunStopped, prepare


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launch, "_BACK_OFF_S", (0.01, 0.02))
    monkeypatch.setattr(launch, "_LOOK_S", 0.0)
    monkeypatch.setattr(launch, "_LOOK_HELD_S", 0.0)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text('[superlink.near]\naddress = "127.0.0.1:9"\ninsecure = true\n')
    light_app(tmp_path / "app")
    return prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, *ends: str) -> list[tuple[str, ...]]:
    """Each start ends in the next of these ways: the run's file is done, or the status that `flwr ls` shows."""
    said: list[tuple[str, ...]] = []
    to_come = list(ends)

    def flower(self: Any, *arguments: str) -> dict[str, Any]:
        said.append(arguments)
        if arguments[0] == "run":
            if to_come[0] == "unreachable":
                to_come.pop(0)
                raise launch._CommandError("`flwr run` failed: Connection refused.")
            if to_come[0] == "done":
                in_process(folder.parent / "app", folder)
            return {"success": True, "run-id": str(len(said))}
        if arguments[0] == "ls":
            return {"success": True, "runs": [{"status": to_come.pop(0), "status-details": "it broke"}]}
        return {"success": True}

    monkeypatch.setattr(launch._Watch, "_flower", flower)
    return said


def go(folder: Path, **options: Any) -> None:
    deployed(folder.parent / "app", "near", folder, poll_s=0.01, **options)


def test_started_again_until_it_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = play(monkeypatch, folder, "finished:failed", "unreachable", "finished:failed", "done")
    go(folder)
    starts = [each for each in said if each[0] == "run"]
    assert len(starts) == 4
    assert all(f"slackwater-run={json.dumps(str(folder))}" in each for each in starts)
    check(folder)


def test_a_run_that_is_done_is_not_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(folder.parent / "app", folder)
    said = play(monkeypatch, folder)
    go(folder)
    assert said == []


def test_an_app_that_never_does_anything_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.Connection, "answers", lambda self: True)
    said = play(monkeypatch, folder, *["finished:failed"] * 9)
    with pytest.raises(SlackwaterError, match=r"failed 3 times without a round\. Last error: .* it broke"):
        go(folder)
    assert len([each for each in said if each[0] == "run"]) == 3


def test_a_superlink_that_is_away_for_too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, folder, *["unreachable"] * 99)
    with pytest.raises(SlackwaterError, match="slackwater resume"):
        go(folder, patience_s=0.1)


def test_stopped_by_flower_or_by_us(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, folder, "finished:stopped")
    with pytest.raises(RunStopped, match="flwr stop"):
        go(folder)
    said = play(monkeypatch, folder, *["running"] * 9)
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunStopped, match="slackwater resume"):
        go(folder, stop=stop)
    assert said[-1][0] == "stop"


def test_a_server_app_that_died_is_noticed_by_its_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = play(monkeypatch, folder, *["running"] * 99)
    holders, locked = iter(["", "a", "a", "a"]), iter([True, False, False])

    def is_locked(where: Path) -> bool:
        held = next(locked, None)
        if held is None:
            in_process(folder.parent / "app", folder)
        return bool(held)

    monkeypatch.setattr(launch, "_holder", lambda where: next(holders, str(len(said))))
    monkeypatch.setattr(launch, "_is_locked", is_locked)
    go(folder)
    assert [each[0] for each in said if each[0] != "ls"][:3] == ["run", "stop", "run"]


def test_the_lock_is_seen(folder: Path) -> None:
    in_process(folder.parent / "app", folder)
    assert not launch._is_locked(folder)
    with Run.open(folder):
        assert launch._is_locked(folder)


def test_in_process_the_folder_is_its_owners_alone(folder: Path) -> None:
    in_process(folder.parent / "app", folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "run.db").st_mode) == 0o600
    with Run.open(folder, read_only=True) as run:
        assert {one.client for one in run.journal.attempts()} == set(ZONES)


def test_plain_text_over_a_network_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "flwr" / "config.toml").write_text('[superlink.near]\naddress = "10.0.0.1:9"\ninsecure = true\n')
    with pytest.raises(ScenarioError, match="--allow-insecure"):
        go(folder)
    play(monkeypatch, folder, "done")
    go(folder, allow_insecure=True)


def test_without_flower_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(MissingExtraError, match=r"slackwater\[flower\]"):
        in_process(folder.parent / "app", folder)


def test_an_app_that_ends_without_starting_the_run_is_not_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = play(monkeypatch, folder, *["finished:completed"] * 9)
    with pytest.raises(SlackwaterError, match="ended without starting the run"):
        go(folder)
    assert len([each for each in said if each[0] == "run"]) == 1


def test_an_app_that_runs_on_without_starting_the_run_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_OPENED_S", 0.05)
    monkeypatch.setattr(launch.Connection, "answers", lambda self: True)
    said = play(monkeypatch, folder, *["running"] * 99)
    with pytest.raises(SlackwaterError, match=r"without starting the run in .*, so it was stopped"):
        go(folder)
    assert said[-1][0] == "stop"
    assert len([each for each in said if each[0] == "run"]) == 1


def test_a_server_app_that_refuses_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = play(monkeypatch, folder, *["finished:failed"] * 9)
    inner = launch._Watch._flower

    def refusing(self: Any, *arguments: str) -> dict[str, Any]:
        if arguments[0] == "run":
            launch.refused(folder, "No node can be used.")
        return inner(self, *arguments)

    monkeypatch.setattr(launch._Watch, "_flower", refusing)
    with pytest.raises(SlackwaterError, match="No node can be used"):
        go(folder)
    assert len([each for each in said if each[0] == "run"]) == 1


def test_a_key_that_flower_could_not_set_is_named_before_the_start(folder: Path) -> None:
    pyproject = folder.parent / "app" / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('slackwater-run = ""\n', ""))
    with pytest.raises(ScenarioError, match=r"lacks slackwater-run.*slackwater flower adopt"):
        go(folder)
    in_process(folder.parent / "app", folder)  # which needs no key
