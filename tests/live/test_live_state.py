"""The state of a live run in its files: checked before it is used, and the one before it if the last is damaged."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from click.testing import CliRunner
from live_world import Sites
from old_schemas import made_older

from slackwater.cli.main import cli
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, RunStopped
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply
from slackwater.live.status import read_status
from slackwater.live.updates import LiveModel
from slackwater.planning.planner import plan as make_plan

ROWS = ["xx.x.xx", "x.xx.xx", ".x.xxxx"]
GUIDES = ("plan", "replanned")


def made(folder: Path, guide: str, **settings: Any) -> Path:
    more: dict[str, Any] = {"aggregator": "echo", "gone_after": 9, "engine": {"app": "app"}} | settings
    if guide == "plan":
        return world.made(folder, world.plan(ROWS, fine_tune=2), **more)
    problem = world.problem(5, slack=6, fine_tune=2)
    plan = make_plan(problem.with_settings(budget_kg=float(problem.costs.dense()[:, :6].sum())))
    return world.made(folder, plan, source="playback", replan_slots=1, reserve=0.0, **more)


def stopped(folder: Path, slot: int) -> Path:
    """Carry a run out up to a slot."""

    def enough(look: int) -> set[str]:
        if look == slot:
            raise RunStopped("enough")
        return set()

    with pytest.raises(RunStopped):
        carry_out(folder, Sites(offline=enough), world.initial())
    return folder


def flip(folder: Path, part: str) -> str:
    db = sqlite3.connect(folder / "run.db")
    ((name,),) = db.execute("SELECT file FROM parts WHERE part = ? AND superseded IS NULL", (part,))
    db.close()
    content = bytearray((folder / "state" / name).read_bytes())
    content[0] ^= 1
    (folder / "state" / name).write_bytes(bytes(content))
    return str(name)


@pytest.mark.parametrize(
    ("part", "aggregator"),
    [("model/theta", "ufedavg"), ("aggregator/seen", "echo"), ("buffers/norm.running_mean", "echo")],
)
@pytest.mark.parametrize("slot", [1, 4, 6])
@pytest.mark.parametrize("guide", GUIDES)
def test_a_damaged_state_stops_the_run_and_the_one_before_it_loses_one_round(
    tmp_path: Path, guide: str, slot: int, part: str, aggregator: str
) -> None:
    folder = stopped(made(tmp_path / "run", guide, aggregator=aggregator), slot)
    with Run.open(folder, read_only=True) as run:
        last, charged = list(run.rounds())[-1], list(run.ledger.charges())
    name = flip(folder, part)
    sites = Sites()
    with pytest.raises(SlackwaterError, match=f"{name} .*resume {folder} --from-last-good.*lost, and stay charged"):
        carry_out(folder, sites, world.initial())
    assert not sites.trained
    with Run.open(folder) as run:
        assert run.fall_back() == (last.slot,)
    result = carry_out(folder, sites, world.initial())

    assert not [key for key in sites.trained if key[0] <= last.slot], "nobody is asked again"
    lost = {(last.slot, name): "lost" for name in last.participants}
    other = made(tmp_path / "other", guide, aggregator=aggregator)
    reference = carry_out(other, Sites(tricks=lost), world.initial())
    assert world.same(result.arrays, reference.arrays), "as if the clients of that round had been lost"
    assert world.outcomes(folder) == world.outcomes(other)
    with Run.open(folder, read_only=True) as run:
        assert list(run.ledger.charges())[: len(charged)] == charged
        assert [(done.slot, done.number) for done in run.rounds()] == [(d.slot, d.number) for d in reference.history]
    assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-12)
    assert "the round is undone" in world.said(folder)
    assert f"Slot {last.slot} is lost, and stays charged: the state after it was damaged" in world.said(folder)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_slot_under_way_and_a_damaged_state_are_both_lost(tmp_path: Path, guide: str) -> None:
    def cut(work: Any) -> None:
        if next(iter(work.values())).slot == 3:
            raise ConnectionError("the SuperLink is gone")

    folder = made(tmp_path / "run", guide)
    with pytest.raises(ConnectionError):
        carry_out(folder, Sites(before_train=cut), world.initial())
    flip(folder, "model/theta")
    with Run.open(folder) as run:
        (before,) = run.fall_back()
        tried = {one.client for one in run.journal.attempts(slot=before)}
    carry_out(folder, (sites := Sites()), world.initial())
    outcomes = world.outcomes(folder)
    assert {outcomes[before, name] for name in tried} == {"lost"}
    assert {outcome for (slot, _), outcome in outcomes.items() if slot == 3} == {"lost"}
    assert min(slot for slot, _ in sites.trained) > 3
    assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-12)


def test_the_command_offers_the_last_good_state_before_it_starts_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from slackwater.engines.flower import launch

    asked: list[Path] = []

    def in_process(app: str, folder: Path) -> None:
        asked.append(folder)
        carry_out(folder, Sites(), world.initial())

    monkeypatch.setattr(launch, "in_process", in_process)
    (tmp_path / "app").mkdir()
    folder = stopped(made(tmp_path / "run", "plan", engine={"app": str(tmp_path / "app")}), 3)
    flip(folder, "model/theta")
    told = CliRunner().invoke(cli, ["resume", str(folder), "--trust"])
    assert (told.exit_code, asked) == (1, [])
    assert f"slackwater resume {folder} --from-last-good" in told.stderr
    done = CliRunner().invoke(cli, ["resume", str(folder), "--from-last-good", "--trust"])
    assert (done.exit_code, asked) == (0, [folder]), done.output
    assert read_status(folder).stands == "done"


def test_a_run_with_charges_and_no_checkpoint_does_not_begin_anew(tmp_path: Path) -> None:
    folder = stopped(made(tmp_path / "run", "plan"), 3)
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    for table in ("parts", "checkpoints", "rounds"):
        db.execute(f"DELETE FROM {table}")
    db.close()
    with pytest.raises(SlackwaterError, match=r"it has no checkpoint. .*Restore the folder from a backup"):
        carry_out(folder, Sites(), world.initial())


@pytest.mark.parametrize("slot", [0, 4])
@pytest.mark.parametrize("guide", GUIDES)
def test_a_live_run_of_schema_2_goes_on_to_the_same_bits(tmp_path: Path, guide: str, slot: int) -> None:
    whole = carry_out(made(tmp_path / "whole", guide), Sites(), world.initial())
    folder = stopped(made(tmp_path / "run", guide), slot)
    made_older(folder, 2)
    assert world.same(carry_out(folder, Sites(), world.initial()).arrays, whole.arrays)
    assert world.outcomes(folder) == world.outcomes(tmp_path / "whole")


def test_only_the_parts_that_changed_are_written(tmp_path: Path) -> None:
    folder = stopped(made(tmp_path / "run", "plan"), 1)
    files = {}
    for look in (2, 3):
        shutil.copytree(folder, tmp_path / f"copy-{look}")
        stopped(tmp_path / f"copy-{look}", look - 1)
        db = sqlite3.connect(tmp_path / f"copy-{look}" / "run.db")
        files[look] = dict(db.execute("SELECT part, file FROM parts WHERE superseded IS NULL"))
        db.close()
    same = {part for part in files[2] if files[2][part] == files[3][part]}
    assert same == {"aggregator/latest/0", "aggregator/latest/2"}, "in slot 2 only oslo trains"


def test_the_room_of_a_large_state_is_told_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large = world.initial() | {"layer.weight": np.zeros((1000, 5000), dtype=np.float32)}
    usage = type("Usage", (), {"free": 10**6})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(RunStopped):
        carry_out(made(tmp_path, "plan"), Sites(offline=_stop), large)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "State: up to 240 MB on disk and 260 MB of memory (4 models of 20 MB)."
    assert told[1].startswith("Only 1.0 MB are free on the disk of")
    with Run.open(tmp_path, read_only=True) as run:
        assert [(level, message) for _, level, _, message in run.events()][:2] == [
            ("info", told[0]),
            ("warning", told[1]),
        ]


def _stop(look: int) -> set[str]:
    raise RunStopped("enough")


def test_a_clients_model_is_let_go_of_when_its_update_is_made() -> None:
    model = LiveModel(world.initial(), 3, LiveSettings())
    replies = {client: Reply(client=name, outcome="done", arrays=world.initial()) for client, name in enumerate("abc")}
    updates, reasons = model.screen(replies)
    assert (sorted(updates), reasons) == ([0, 1, 2], {})
    assert [reply.arrays for reply in replies.values()] == [None] * 3
