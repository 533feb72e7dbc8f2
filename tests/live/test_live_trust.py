"""A live run that somebody else prepared, or whose app has changed, is resumed only by a user who says so."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner, Result
from live_world import Sites

from slackwater.cli.main import cli
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live import trust
from slackwater.live.folder import SETTINGS, LiveSettings, RunStopped, load_settings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Site
from slackwater.live.trust import app_hash, state_folder

pytest.importorskip("flwr")
from slackwater.engines.flower import launch

SCENARIO = """
start = 2022-03-01T00:00:00Z
rounds = 3
slack = 3
budget_kg = 5.0

[data]
source = "typical"

[[client]]
name = "lyon"
zone = "FR"
power_w = 300
"""
PROJECT = """
[tool.flwr.app.components]
serverapp = "harmful:app"
clientapp = "harmful:app"

[tool.flwr.app.config]
slackwater-run = ""
"""
FOREIGN = "You did not start this run on this machine."


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_STATE", str(tmp_path / "state"))
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "app" / "harmful.py").write_text(
        "open('imported', 'w').close()\nfrom slackwater.flower import run\napp = None\n"
    )
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes Flower's place: apps that were started. Each is stopped before its first slot, so that there is more to do."""
    apps: list[str] = []

    def in_process(app: str, folder: Path) -> None:
        apps.append(app)
        stop = threading.Event()
        stop.set()
        carry_out(folder, Sites(sites={"lyon": Site(name="lyon")}), world.initial(), stop=stop)

    monkeypatch.setattr(launch, "in_process", in_process)
    monkeypatch.setattr(launch, "deployed", lambda app, *_, **__: apps.append(app))
    return apps


def call(*arguments: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, list(arguments), **more)


def rehearse(*more: str) -> Result:
    """A run that need not wait for its time; it is recorded as every other."""
    return call("rehearse", "scenario.toml", "--app", "app", "--out", "run", "--forecast", "persistence", *more)


def begin() -> None:
    assert rehearse().exit_code == RunStopped.exit_code


def records(here: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((here / "state" / "runs").iterdir())]


def test_a_run_is_recorded_by_its_id_and_the_hash_of_its_app(here: Path, started: list[str]) -> None:
    begin()
    (record,) = records(here)
    with Run.open(here / "run", read_only=True) as run:
        assert record["run"] == run.id == load_settings(here / "run").engine["run"]
    assert (record["app"], record["sha256"]) == (str(here / "app"), app_hash(here / "app"))
    (path,) = (here / "state" / "runs").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_task_of_ours_is_no_app(here: Path) -> None:
    """A rehearsal without an app has nothing to import, so anybody's is resumed."""
    done = call("rehearse", "scenario.toml", "--task", "digits", "--out", "run", "--forecast", "persistence")
    assert done.exit_code == 0, done.output
    assert not (here / "state").exists()
    with sqlite3.connect(here / "run" / "run.db") as db:
        db.execute("UPDATE run SET status = 'stopped'")
    db.close()
    assert call("resume", "run").exit_code == 0


def test_one_s_own_run_is_resumed_without_a_question(here: Path, started: list[str]) -> None:
    begin()
    resumed = call("resume", "run")
    assert resumed.exit_code == RunStopped.exit_code
    assert "trust" not in resumed.output
    assert len(started) == 2


def test_a_run_on_a_superlink_is_recorded_too(here: Path, started: list[str]) -> None:
    soon = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    Path("scenario.toml").write_text(SCENARIO.replace("2022-03-01T00:00:00Z", soon.strftime("%Y-%m-%dT%H:%M:%SZ")))
    assert call("run", "scenario.toml", "--app", "app", "--superlink", "mine").exit_code == 0
    assert call("resume", "run").exit_code == 0
    assert started == [str(here / "app")] * 2


@pytest.mark.parametrize("superlink", [False, True])
def test_somebody_else_s_run_is_not_resumed_without_a_terminal(here: Path, started: list[str], superlink: bool) -> None:
    rehearse(*(("--superlink", "mine", "--slot-seconds", "10") if superlink else ()))
    shutil.rmtree(here / "state")  # as on another machine
    started.clear()
    stopped = call("resume", "run")
    assert stopped.exit_code == 1
    assert FOREIGN in stopped.stderr
    for told in (str(here / "run"), str(here / "app"), app_hash(here / "app"), "slackwater resume run --trust"):
        assert told in stopped.stderr
    assert not started
    assert not (here / "imported").exists()
    assert call("resume", "run", "--trust").exit_code in (0, RunStopped.exit_code)
    assert call("resume", "run").exit_code in (0, RunStopped.exit_code), "it is recorded, so it is not asked again"
    assert len(started) == 2


def test_a_changed_app_is_not_run_without_a_word(here: Path, started: list[str]) -> None:
    begin()
    was = app_hash(here / "app")
    (here / "app" / "harmful.py").write_text("app = 1\n")
    stopped = call("resume", "run")
    assert stopped.exit_code == 1
    assert f"The app has changed since this run was started (SHA-256 {was})." in stopped.stderr
    assert app_hash(here / "app") in stopped.stderr
    assert len(started) == 1
    assert call("resume", "run", "--trust").exit_code == RunStopped.exit_code
    assert call("resume", "run").exit_code == RunStopped.exit_code


def test_the_same_code_elsewhere_is_another_app(here: Path, started: list[str]) -> None:
    """A folder that came back with its app inside: what Python has compiled there is not in the hash."""
    begin()
    shutil.copytree(here / "app", here / "run" / "app")
    settings = json.loads((here / "run" / SETTINGS).read_text())
    settings["engine"]["app"] = str(here / "run" / "app")
    (here / "run" / SETTINGS).write_text(json.dumps(settings))
    stopped = call("resume", "run")
    assert stopped.exit_code == 1
    assert "was started with another app" in stopped.stderr
    assert len(started) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 50_000, b"\xff", b'{"app": 3}'])
def test_a_damaged_record_is_none(here: Path, started: list[str], content: bytes) -> None:
    begin()
    (path,) = (here / "state" / "runs").iterdir()
    path.write_bytes(content)
    stopped = call("resume", "run")
    assert stopped.exit_code == 1
    assert "slackwater resume run --trust" in stopped.stderr
    assert len(started) == 1


def test_a_record_that_others_can_write_is_none(here: Path, started: list[str]) -> None:
    begin()
    (path,) = (here / "state" / "runs").iterdir()
    path.chmod(0o666)
    assert FOREIGN in call("resume", "run").stderr
    assert len(started) == 1


def test_a_state_folder_that_cannot_be_written_stops_no_run(here: Path, started: list[str]) -> None:
    (here / "state").write_text("a file")
    done = rehearse()
    assert done.exit_code == RunStopped.exit_code
    assert done.stderr.count("`slackwater resume` will ask") == 1
    assert call("resume", "run").exit_code == 1
    assert len(started) == 1
    assert call("resume", "run", "--trust").exit_code == RunStopped.exit_code


@pytest.mark.parametrize("name", ["../../../escaped", "/escaped", "", "x" * 32, 5, None, ["a"]])
def test_an_id_from_a_folder_is_never_a_path(here: Path, started: list[str], name: object) -> None:
    begin()
    settings = json.loads((here / "run" / SETTINGS).read_text())
    settings["engine"]["run"] = name
    (here / "run" / SETTINGS).write_text(json.dumps(settings))
    with Run.open(here / "run", read_only=True) as run:
        assert trust.run_id(here / "run", load_settings(here / "run").engine) == run.id


def test_a_run_that_was_prepared_without_an_id_is_asked_for_once(here: Path, started: list[str]) -> None:
    plan = world.plan()
    prepare(here / "old", plan, LiveSettings(slot_seconds=0.0, engine={"app": str(here / "app"), "superlink": "x"}))
    assert call("resume", "old").exit_code == 1
    assert not started
    assert call("resume", "old", "--trust").exit_code == 0
    assert call("resume", "old").exit_code == 0


def test_a_run_that_is_done_imports_nothing_and_asks_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, started: list[str]
) -> None:
    monkeypatch.setattr(
        launch,
        "in_process",
        lambda app, folder: carry_out(folder, Sites(sites={"lyon": Site(name="lyon")}), world.initial()),
    )
    assert rehearse().exit_code == 0
    shutil.rmtree(here / "state")
    assert "is done" in call("resume", "run").stderr
    assert not (here / "state").exists()


def _resumed_on_a_terminal(here: Path, answer: bytes) -> tuple[int, str]:
    """The command as a process, with a terminal to ask on."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "slackwater", "resume", "run"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(trust.__file__).parents[2])},
    ) as process:
        os.write(ours, answer)
        _, said = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    return process.returncode, said.decode()


def test_on_a_terminal_the_user_is_asked(here: Path, started: list[str]) -> None:
    begin()
    shutil.rmtree(here / "state")
    code, said = _resumed_on_a_terminal(here, b"n\n")
    assert code == 1, said
    assert "Do you trust it? [y/N]" in said
    assert str(here / "app") in said
    assert app_hash(here / "app") in said
    assert "no code of its app was imported." in said
    assert not (here / "imported").exists()
    assert not (here / "state").exists()
    code, said = _resumed_on_a_terminal(here, b"y\n")
    assert (here / "imported").exists(), said
    assert records(here)[0]["sha256"] == app_hash(here / "app")


# -- the hash


def test_the_hash_is_of_what_can_be_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, was = here / "app", app_hash(here / "app")
    assert was == app_hash(app)
    assert was == app_hash(here / "." / "app")
    code = trust._code
    monkeypatch.setattr(trust, "_code", lambda app: reversed(list(code(app))))
    assert was == app_hash(app), "the order in which the disk lists files does not matter"
    for name in ("data.csv", "notes.txt", ".git/hook.py", "__pycache__/harmful.cpython-311.pyc", ".venv/lib/x.py"):
        (app / name).parent.mkdir(exist_ok=True, parents=True)
        (app / name).write_text("1")
    (app / "env" / "lib").mkdir(parents=True)
    (app / "env" / "pyvenv.cfg").write_text("")
    (app / "env" / "lib" / "other.py").write_text("1")
    assert app_hash(app) == was
    for name in ("new.py", "deep/er/new.py", "native.so", "hidden.pyc", "inner/pyproject.toml"):
        (app / name).parent.mkdir(exist_ok=True, parents=True)
        (app / name).write_text("1")
        assert app_hash(app) != was
        (app / name).unlink()
        assert app_hash(app) == was
    (app / "harmful.py").rename(app / "harmles.py")
    assert app_hash(app) != was


def test_names_and_contents_cannot_be_shifted(here: Path) -> None:
    one, two = here / "one", here / "two"
    for folder, names in ((one, {"a.py": "b.py", "c.py": ""}), (two, {"a.py": "", "b.py": "c.py"})):
        folder.mkdir()
        for name, content in names.items():
            (folder / name).write_text(content)
    assert app_hash(one) != app_hash(two)


def test_links_are_followed_and_do_not_loop(here: Path) -> None:
    app = here / "app"
    (here / "shared").mkdir()
    (here / "shared" / "code.py").write_text("1")
    was = app_hash(app)
    (app / "package").symlink_to(here / "shared")
    linked = app_hash(app)
    assert linked != was
    (here / "shared" / "code.py").write_text("2")
    assert app_hash(app) != linked
    before = app_hash(app)
    (app / "loop").symlink_to(app)
    assert app_hash(app) == before


def test_a_folder_that_is_no_app_s_own_is_asked_for_every_time(
    here: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_MOST_FILES", 5)
    for i in range(6):
        (here / "app" / f"m{i}.py").write_text("")
    with pytest.raises(SlackwaterError, match="more than 5 files of code"):
        app_hash(here / "app")
    done = rehearse()
    assert done.exit_code == RunStopped.exit_code
    assert "has more than 5 files of code" in done.stderr
    assert call("resume", "run").exit_code == 1
    assert call("resume", "run", "--trust").exit_code == RunStopped.exit_code
    monkeypatch.setattr(trust, "_MOST_FILES", 100)
    monkeypatch.setattr(trust, "_MOST_BYTES", 10)
    with pytest.raises(SlackwaterError, match="of code, so it cannot be hashed"):
        app_hash(here / "app")


def test_where_the_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STATE", "/somewhere")
    assert state_folder() == Path("/somewhere")
    monkeypatch.delenv("SLACKWATER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert state_folder() == Path("/xdg/slackwater")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert state_folder() == Path("/home/me/.local/state/slackwater")


def test_an_app_that_is_gone_is_told(here: Path, started: list[str]) -> None:
    begin()
    (here / "app").rename(here / "elsewhere")
    for more in ((), ("--trust",)):
        stopped = call("resume", "run", *more)
        assert stopped.exit_code == 1
        assert f"is not at {here / 'app'}: it was moved or deleted. Put it back" in stopped.stderr
    assert len(started) == 1
