from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import Sites

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.live.folder import LiveSettings, RunStopped, is_live, load_actuals, load_settings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.status import read_status


def test_settings_come_back() -> None:
    settings = LiveSettings(
        aggregator="clipped:2", config={"lr": 0.1}, engine={"app": "x"}, buffers=("ema",), slot_seconds=5
    )
    assert LiveSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"eval_every": -1}, "eval_every must be a whole number of at least 0"),
        ({"max_rejections": True}, "max_rejections must be a whole number"),
        ({"slot_seconds": -1.0}, "slot_seconds must be a number of at least 0"),
        ({"makeup": 0.5}, "makeup must be a number of at least 1"),
        ({"latest_start": 0.0}, "latest_start must be above 0"),
        ({"source": "files"}, "source must be plan, playback or providers"),
        ({"replan_slots": 1}, "Re-planning needs source"),
        ({"source": "providers", "slot_seconds": 5.0}, "needs recorded actuals"),
        ({"source": "playback", "reserve": 0.2}, "reserve is 0.2"),
    ],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        LiveSettings(**wrong)


def test_settings_that_are_not_known_are_named() -> None:
    with pytest.raises(ScenarioError, match="no setting 'agregator'; did you mean 'aggregator'"):
        LiveSettings.from_dict({"agregator": "memory"})


def test_a_prepared_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = world.made(tmp_path / "run", source="playback")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"plan.json": 0o600, "live.json": 0o600, "actuals.json": 0o600}
    assert is_live(folder)
    assert load_settings(folder).source == "playback"
    played, wanted = load_actuals(folder), world.actuals(6)
    assert np.array_equal(played.intensity, wanted.intensity)
    assert (played.start, played.zones, played.provenance) == (wanted.start, wanted.zones, wanted.provenance)
    status = read_status(folder)
    assert (status.stands, status.spent_kg, status.left_kg) == ("prepared", 0.0, status.budget_kg)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    folder = world.made(tmp_path / "run")
    carry_out(folder, Sites(), world.initial())
    with pytest.raises(ScenarioError, match="already holds a run"):
        prepare(folder, world.plan())
    (tmp_path / "file").write_text("")
    with pytest.raises(SlackwaterError, match="cannot be created"):
        prepare(tmp_path / "file", world.plan())
    with pytest.raises(SlackwaterError, match=r"There is no live run in .*nowhere"):
        read_status(tmp_path / "nowhere")
    with pytest.raises(SlackwaterError, match=r"There is no plan at"):
        carry_out(tmp_path / "nowhere", Sites(), world.initial())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "live.json").write_text("[]")
    with pytest.raises(SlackwaterError, match="not a table of settings"):
        load_settings(tmp_path / "bad")
    (tmp_path / "bad" / "live.json").write_text("{")
    with pytest.raises(SlackwaterError, match="cannot be read"):
        load_settings(tmp_path / "bad")


def test_margins_must_leave_time_to_train(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"fit into the 10 s .* less than 5"):
        world.made(tmp_path, slot_seconds=10.0, margin_seconds=5.0)
    with pytest.raises(ScenarioError, match="fit into the 600 s"):
        world.made(tmp_path, world.plan(round_minutes=10), slot_seconds=None, margin_seconds=300.0)
    world.made(tmp_path, slot_seconds=0.0, margin_seconds=5.0)


def test_before_the_first_slot_status_shows_the_plan(tmp_path: Path) -> None:
    folder = world.made(tmp_path, source="playback", replan_slots=1)
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunStopped):
        carry_out(folder, Sites(), world.initial(), stop=stop)
    assert read_status(folder).coming[0].clients == ("lyon", "oslo")


def test_what_counts_is_what_the_run_began_with(tmp_path: Path) -> None:
    folder = world.made(tmp_path / "run")
    first = carry_out(folder, Sites(), world.initial())
    (folder / "live.json").write_text(json.dumps(LiveSettings(aggregator="fedavg", slot_seconds=0.0).to_dict()))
    assert world.same(carry_out(folder, Sites(), world.initial()).arrays, first.arrays)


def test_status_while_it_runs(tmp_path: Path) -> None:
    folder = world.made(tmp_path / "run", world.plan(["xx.x", "x.xx", ".x.x"]))
    seen: list[Any] = []
    sites = Sites(before_train=lambda work: seen.append(read_status(folder)), tricks={(1, "rome"): "lost"})
    carry_out(folder, sites, world.initial())
    first, second = seen[0], seen[1]
    assert (first.stands, first.training, first.training_slot) == ("running", ("lyon", "oslo"), 0)
    assert [one.slot for one in first.coming] == [1, 2, 3]
    assert second.rounds == 1
    assert second.spent_kg > first.spent_kg > 0
    assert seen[-1].clients == {
        "lyon": {"done": 2, "running": 1}, "oslo": {"done": 2, "running": 1}, "rome": {"lost": 1, "running": 1}
    }  # fmt: skip
    last = read_status(folder)
    assert json.loads(json.dumps(last.to_dict()))["clients"]["rome"] == {"lost": 1, "done": 1}
    assert any("rome was lost in slot 1" in message for _, _, message in last.events)
    assert last.coming == ()
