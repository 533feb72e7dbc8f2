"""A damaged file of a training run ends `resume` in a sentence with a way out; what is damaged in its state is noticed."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from old_schemas import made_older
from small_tasks import SCHEDULE, classes, plan_of
from test_loop import same
from test_resume import SETTINGS

from slackwater.errors import SlackwaterError
from slackwater.ledger import schema as schema_module
from slackwater.ledger.run import Run
from slackwater.training import loop as algorithm_module
from slackwater.training.global_model import Checkpoint
from slackwater.training.loop import Progress, Result, TrainingStopped, resume, train
from slackwater.training.task import Task

TABLES = ("run", "charges", "rounds", "evaluations", "events", "checkpoints", "parts")
COLUMNS = (
    "run.plan",
    "run.settings",
    "run.task",
    "rounds.participants",
    "rounds.weights",
    "parts.shape",
    "parts.dtype",
)
WAY_OUT = "Restore|backup|Plan again|start the run again|Start|--from-last-good|Upgrade"


@pytest.fixture(scope="module")
def task() -> Task:
    return classes(norm=True)


@pytest.fixture(scope="module")
def whole(task: Task) -> Result:
    return train(plan_of(SCHEDULE, window=1), task, **SETTINGS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    """A run whose fourth round is kept, and whose fifth is charged."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    usual = algorithm_module.Workers.train
    with pytest.MonkeyPatch.context() as patch:

        def stop(workers: algorithm_module.Workers, *given: object) -> object:
            if sum(1 for _ in sqlite3.connect(folder / "run.db").execute("SELECT 1 FROM rounds")) == 4:
                raise algorithm_module.StopRequested
            return usual(workers, *given)  # type: ignore[arg-type]

        patch.setattr(algorithm_module.Workers, "train", stop)
        with pytest.raises(TrainingStopped):
            train(plan_of(SCHEDULE, window=1), task, out=folder, **SETTINGS)
    return folder


@pytest.fixture
def folder(tmp_path: Path, stopped: Path) -> Path:
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def change(folder: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(folder / "run.db", isolation_level=None)
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute(statement, values)
    db.close()


def file_of(folder: Path, part: str, *, superseded: bool = False) -> Path:
    """The file of a part in the last checkpoint, or in the one before it."""
    db = sqlite3.connect(folder / "run.db")
    null = "NOT NULL" if superseded else "NULL"
    ((name,),) = db.execute(f"SELECT file FROM parts WHERE part = ? AND superseded IS {null}", (part,))
    db.close()
    return folder / "state" / str(name)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_missing_is_a_sentence(folder: Path, task: Task, table: str) -> None:
    change(folder, f"DROP TABLE {table}")
    with pytest.raises(SlackwaterError, match=WAY_OUT):
        resume(folder, task=task)


@pytest.mark.parametrize("value", ["{", "[1]", '"x"', "[" * 100_000], ids=["cut", "list", "text", "deep"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_value_that_is_damaged_is_a_sentence_or_harmless(folder: Path, task: Task, column: str, value: str) -> None:
    table, _, name = column.partition(".")
    change(folder, f"UPDATE {table} SET {name} = ?", value)
    said = _sentence(folder, task)
    assert said is None or any(way in said for way in WAY_OUT.split("|")), said


@pytest.mark.parametrize("seed", range(15))
def test_bytes_that_were_flipped_are_a_sentence_or_harmless(folder: Path, task: Task, seed: int) -> None:
    chance, content = random.Random(seed), bytearray((folder / "run.db").read_bytes())
    for _ in range(chance.choice((3, 30, 300))):
        content[chance.randrange(100, len(content))] = chance.randrange(256)
    (folder / "run.db").write_bytes(bytes(content))
    assert _sentence(folder, task) != ""


def _sentence(folder: Path, task: Task) -> str | None:
    """What resuming says, where it does not go well; any other error than a sentence fails the test."""
    try:
        resume(folder, task=task)
    except SlackwaterError as error:
        return str(error)
    return None


@pytest.mark.parametrize("damage", [flipped, shortened, Path.unlink], ids=["flipped", "shortened", "missing"])
@pytest.mark.parametrize("part", ["model/theta", "aggregator/seen", "aggregator/cosine", "server/velocity"])
def test_a_damaged_part_stops_the_run_and_the_last_good_state_leads_to_the_same_bits(
    folder: Path, task: Task, whole: Result, part: str, damage: Callable[[Path], None]
) -> None:
    path = file_of(folder, part)
    damage(path)
    with pytest.raises(
        SlackwaterError, match=f"state/{path.name} .*slackwater resume {folder} --from-last-good"
    ) as caught:
        resume(folder, task=task)
    assert "The checkpoint of slot 3 is good" in str(caught.value)
    assert damage is not shortened or "bytes instead of" in str(caught.value)
    assert "(slot 4) are then trained again, and charged once" in str(caught.value)
    with Run.open(folder, read_only=True) as run:
        before = list(run.ledger.charges())
    assert same(resume(folder, task=task, from_last_good=True), whole)
    with Run.open(folder, read_only=True) as run:
        assert list(run.ledger.charges())[: len(before)] == before, "charges stay, and none is booked twice"
        assert run.ledger.spent_kg() == pytest.approx(plan_of(SCHEDULE, window=1).emissions_kg, rel=1e-12)
        assert [done.spent_kg for done in run.rounds()] == [done.spent_kg for done in whole.history]
        assert any("slot 4 is damaged: the round is undone" in message for *_, message in run.events())


def test_from_last_good_changes_nothing_where_all_is_good(folder: Path, task: Task, whole: Result) -> None:
    seen: list[Progress] = []
    assert same(resume(folder, task=task, from_last_good=True, progress=seen.append), whole)
    assert seen[0].done.number == 4, "no round is trained again"


def test_without_a_good_state_there_is_only_a_backup(folder: Path, task: Task) -> None:
    flipped(file_of(folder, "model/theta"))
    flipped(file_of(folder, "model/theta", superseded=True))
    for from_last_good in (False, True):
        with pytest.raises(SlackwaterError, match=r"No earlier one is good. Restore the folder from a backup"):
            resume(folder, task=task, from_last_good=from_last_good)


def test_a_run_with_rounds_and_no_checkpoint_does_not_begin_anew(folder: Path, task: Task) -> None:
    change(folder, "DELETE FROM checkpoints")
    with pytest.raises(SlackwaterError, match=r"it has no checkpoint.*Restore the folder from a backup"):
        resume(folder, task=task)


def test_a_checkpoint_behind_its_rounds_does_not_continue(folder: Path, task: Task, whole: Result) -> None:
    change(folder, "DELETE FROM checkpoints WHERE id = (SELECT max(id) FROM checkpoints)")
    with pytest.raises(SlackwaterError, match="it is of slot 3, but the last round is of slot 4"):
        resume(folder, task=task)
    assert same(resume(folder, task=task, from_last_good=True), whole)


def test_the_first_round_can_be_undone_too(tmp_path: Path, task: Task, whole: Result) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan_of(SCHEDULE, window=1), task, out=tmp_path, progress=stop, **SETTINGS)
    flipped(file_of(tmp_path, "model/theta"))
    with pytest.raises(SlackwaterError, match="The checkpoint of the beginning is good"):
        resume(tmp_path, task=task)
    assert same(resume(tmp_path, task=task, from_last_good=True), whole)


def test_only_the_last_two_states_are_kept(folder: Path, task: Task) -> None:
    resume(folder, task=task)
    db = sqlite3.connect(folder / "run.db")
    assert [slot for (slot,) in db.execute("SELECT slot FROM checkpoints ORDER BY id")] == [7, 8]
    assert {path.name for path in (folder / "state").iterdir()} == {
        name for (name,) in db.execute("SELECT file FROM parts")
    }
    sizes = sum(path.stat().st_size for path in (folder / "state").iterdir())
    (last,) = db.execute("SELECT sum(bytes) FROM parts WHERE superseded IS NULL").fetchone()
    assert sizes <= 2 * last


def test_what_is_not_of_the_state_is_left_alone(folder: Path, task: Task) -> None:
    for name in ("notes.txt", "9-9-model-theta.bin", "9-9-model-theta.bin.tmp"):
        (folder / "state" / name).write_text("x")
    Run.open(folder).close()
    left = {path.name for path in (folder / "state").iterdir()}
    assert "notes.txt" in left
    assert not {"9-9-model-theta.bin", "9-9-model-theta.bin.tmp"} & left, "strays of a kill are deleted"


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_an_earlier_version_goes_on_to_the_same_bits(
    folder: Path, task: Task, whole: Result, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_older(folder, version)
    before = (folder / "run.db").read_bytes()
    with Run.open(folder, read_only=True) as run:
        assert [done.slot for done in run.rounds()] == [0, 2, 3, 4]
    assert (folder / "run.db").read_bytes() == before, "who reads changes nothing"
    written: list[str] = []
    usual = schema_module.write_file

    def full(path: Path, pieces: Any) -> tuple[int, str]:
        if len(written) == 2:
            raise SlackwaterError("the disk is full")
        written.append(path.name)
        return usual(path, pieces)

    monkeypatch.setattr(schema_module, "write_file", full)
    with pytest.raises(SlackwaterError, match="disk is full"):
        resume(folder, task=task)
    monkeypatch.undo()
    assert sqlite3.connect(folder / "run.db").execute("PRAGMA user_version").fetchone() == (version,)
    assert same(resume(folder, task=task), whole)
    db = sqlite3.connect(folder / "run.db")
    assert {name for (name,) in db.execute("SELECT name FROM sqlite_master")}.isdisjoint({"checkpoint", "moved"})
    assert {path.name for path in (folder / "state").iterdir()} == {
        name for (name,) in db.execute("SELECT file FROM parts")
    }


def test_a_file_of_an_earlier_version_gives_back_the_room_of_its_tensors(tmp_path: Path) -> None:
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        Checkpoint(run).save(None, {"x": {"large": torch.randn(10**6)}})
    made_older(tmp_path, 2)
    assert (tmp_path / "run.db").stat().st_size > 4 * 10**6
    with Run.open(tmp_path) as run:
        assert len(Checkpoint(run).load(torch.device("cpu"))["x"]["large"]) == 10**6
    assert (tmp_path / "run.db").stat().st_size < 10**6
