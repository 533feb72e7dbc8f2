"""A damaged file of a live run ends every command in a sentence with a way out, never in a defect of ours."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner
from live_world import Sites

from slackwater.cli.main import cli
from slackwater.cli.output_commands import open_library
from slackwater.dashboard.runs import RunReader
from slackwater.errors import SlackwaterError
from slackwater.live.folder import RunStopped
from slackwater.live.runner import carry_out
from slackwater.planning.planner import plan as make_plan

pytest.importorskip("flwr")
from slackwater.engines.flower import launch

WAYS_OUT = (
    "backup", "Plan again", "again in another", "Start the run again", "Start it again", "Start one with", "run it again",
    "Run it again", "Upgrade with", "--from-last-good", "otherwise the file is damaged", "Name a folder", "moved or deleted",
    "start its own app again",
)  # fmt: skip
DEEP = "[" * 100_000
TABLES = (
    "run",
    "charges",
    "rounds",
    "evaluations",
    "events",
    "checkpoints",
    "parts",
    "attempts",
    "replans",
    "state",
    "planned",
)
JSON_COLUMNS = {
    "run": ("plan", "settings", "task", "versions"),
    "rounds": ("participants", "weights", "losses"),
    "replans": ("changes",),
    "state": ("value",),
    "checkpoints": ("state",),
    "parts": ("shape",),
}
BAD_JSON = {"cut": "{", "list": "[1]", "deep": DEEP}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with re-planning, stopped after some rounds."""
    problem = world.problem(5, slack=6, fine_tune=2)
    plan = make_plan(problem.with_settings(budget_kg=float(problem.costs.dense()[:, :6].sum())))
    settings: dict[str, Any] = {"source": "playback", "replan_slots": 1, "reserve": 0.0}
    settings["engine"] = {"app": str(tmp_path_factory.mktemp("app"))}
    folder = world.made(tmp_path_factory.mktemp("runs") / "stopped", plan, aggregator="memory", **settings)

    def ended(look: int) -> set[str]:
        if look == 4:
            raise RunStopped("enough")
        return set()

    with pytest.raises(RunStopped):
        carry_out(folder, Sites(offline=ended), world.initial())
    return folder


@pytest.fixture(scope="module")
def done(stopped: Path) -> Path:
    folder = stopped.with_name("done")
    shutil.copytree(stopped, folder)
    carry_out(folder, Sites(), world.initial())
    return folder


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "in_process", lambda app, folder: carry_out(folder, Sites(), world.initial()))


def copies(folder: Path, tmp_path: Path) -> Iterator[Path]:
    for number in range(100):
        shutil.copytree(folder, tmp_path / str(number) / "run")
        yield tmp_path / str(number) / "run"


def sentences(folder: Path, tmp_path: Path, damage: Callable[[Path], None]) -> dict[str, str]:
    """What each command says of a damaged copy of a folder; those that do not mind the damage say nothing."""
    said = {}
    each = copies(folder, tmp_path)
    for command in ("status", "report", "resume"):
        where = next(each)
        damage(where)
        result = CliRunner().invoke(cli, [command, str(where), *(["--trust"] if command == "resume" else [])])
        assert "defect" not in result.output, f"{command}: {result.output}"
        assert "Traceback" not in result.output
        assert result.exit_code in (0, 1, 2), (command, result.output, result.exception)
        if result.exit_code:
            said[command] = result.stderr
    where = next(each)
    damage(where)
    try:
        RunReader(path=where / "run.db", label="run").look()
        for entry in (library := open_library(where)).entries():
            library.problem(entry.id)
    except SlackwaterError as error:
        said["serve"] = str(error)
    for command, sentence in said.items():
        assert any(way in sentence for way in WAYS_OUT), f"{command} names no way out: {sentence}"
    return said


def cut(path: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content[: int(len(content) * share)])

    return damage


def filled(path: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / path).write_bytes(content) and None


def change(*statements: str, values: tuple[object, ...] = ()) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        db = sqlite3.connect(folder / "run.db", isolation_level=None)
        db.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            db.execute(statement, values)
        db.close()

    return damage


@pytest.mark.parametrize("which", ["stopped", "done"])
@pytest.mark.parametrize(
    "damage",
    [cut("run.db", 0.0), cut("run.db", 0.001), cut("run.db", 0.5), filled("run.db", b"a letter to my aunt" * 1000)],
    ids=["empty", "hundred bytes", "half", "garbage"],
)
def test_a_run_file_that_is_none(
    tmp_path: Path, request: pytest.FixtureRequest, engine: None, which: str, damage: Callable[[Path], None]
) -> None:
    folder: Path = request.getfixturevalue(which)
    said = sentences(folder, tmp_path, damage)
    assert set(said) == {"status", "report", "resume", "serve"} or "prepared" in said.get("status", "prepared")


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_were_flipped(tmp_path: Path, stopped: Path, engine: None, seed: int) -> None:
    chance = random.Random(seed)

    def damage(folder: Path) -> None:
        content = bytearray((folder / "run.db").read_bytes())
        for _ in range(chance.choice((3, 30, 300))):
            content[chance.randrange(100, len(content))] = chance.randrange(256)
        (folder / "run.db").write_bytes(bytes(content))

    sentences(stopped, tmp_path, damage)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_missing(tmp_path: Path, stopped: Path, engine: None, table: str) -> None:
    said = sentences(stopped, tmp_path, change(f"DROP TABLE {table}"))
    assert "resume" in said or table == "evaluations", "where the app evaluates nothing, nothing of it is read"
    if table == "attempts":
        assert "no such table: attempts" in said["status"]


@pytest.mark.parametrize("how", BAD_JSON)
@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in JSON_COLUMNS.items() for column in names]
)
def test_json_in_the_run_file_that_is_none(
    tmp_path: Path, stopped: Path, engine: None, table: str, column: str, how: str
) -> None:
    sentences(stopped, tmp_path, change(f"UPDATE {table} SET {column} = ?", values=(BAD_JSON[how],)))


def test_text_in_the_run_file_that_is_no_text(tmp_path: Path, stopped: Path, engine: None) -> None:
    for column in ("plan", "settings"):
        said = sentences(stopped, tmp_path / column, change(f"UPDATE run SET {column} = CAST(x'FFFE' AS TEXT)"))
        assert {"status", "resume"} <= set(said)


@pytest.mark.parametrize("name", ["live.json", "plan.json", "actuals.json"])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", DEEP.encode(), b"[]", b"{}", b"{"], ids=["no text", "deep", "list", "nothing", "cut"]
)
@pytest.mark.parametrize("begun", [True, False])
def test_json_files_that_are_none(
    tmp_path: Path, stopped: Path, engine: None, name: str, content: bytes, begun: bool
) -> None:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)
        if not begun:
            (folder / "run.db").unlink()

    said = sentences(stopped, tmp_path, damage)
    if not begun and name == "plan.json":
        assert "status" in said


@pytest.mark.parametrize("name", ["live.json", "plan.json", "actuals.json"])
def test_values_of_the_wrong_type(tmp_path: Path, stopped: Path, name: str) -> None:
    """Wherever they are noticed, by a sentence, before the first slot."""
    whole, at_once, refused = json.loads((stopped / name).read_text()), threading.Event(), 0
    at_once.set()
    for other in ("live.json", "plan.json", "actuals.json"):
        shutil.copy(stopped / other, tmp_path / other)
    for key in whole:
        for value in ("x", 5, [], None, {"a": []}):
            (tmp_path / name).write_text(json.dumps(whole | {key: value}))
            try:
                carry_out(tmp_path, Sites(), world.initial(), stop=at_once)
            except RunStopped:
                (tmp_path / "run.db").unlink()
            except SlackwaterError:
                refused += 1
    assert refused > len(whole)
