"""The watch over a job, on a FLARE server that is played: submitted again until the run's file says that it is done."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from flare_jobs import Direct, light_job, task_of
from plans import ZONES, small_plan
from recount import check

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")

from nvflare.fuel.flare_api.api_spec import InternalError, JobNotFound, NoConnection

from slackwater.cli.main import cli
from slackwater.engines.nvflare import submit
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, RunStopped, prepare
from slackwater.live.runner import carry_out
from slackwater.live.status import read_status


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("_BACK_OFF_S", (0.01, 0.02)), ("_GATHER_S", 0.0), ("_SETTLED_S", 0.0), ("_ABORT_S", 0.0)):
        monkeypatch.setattr(submit, name, value)
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "fed_admin.json").write_text("{}")
    light_job(tmp_path / "job")
    return prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))


def finish(folder: Path) -> None:
    """What the server's job does."""
    task = task_of(folder.parent / "job")
    direct = Direct(list(ZONES), lambda arrays, site, meter: task.train(arrays, site, meter.seed, lambda: False))
    carry_out(folder, direct, task.initial_model())


@dataclass
class Server:
    """Each job goes in the next of these ways: it finishes the run, is forgotten, or has the status that FLARE shows."""

    folder: Path
    ways: list[str]
    away: int = 0  # connections that fail first
    running: list[str] = field(default_factory=lambda: list(ZONES))  # sites that run the job
    said: list[str] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)  # id -> status
    configs: list[dict[str, str]] = field(default_factory=list)

    def connect(self) -> Server:
        self.said.append("connect")
        self.away -= 1
        if self.away >= 0:
            raise NoConnection("cannot connect to server")
        return self

    def submit_job(self, path: str) -> str:
        self.said.append("submit")
        (workflow,) = json.loads((Path(path) / "app/config/config_fed_server.json").read_text())["workflows"]
        self.configs.append(workflow["args"])
        job_id, way = f"job-{len(self.configs)}", self.ways.pop(0)
        if way == "done":
            finish(self.folder)
        if way != "forgotten":
            self.jobs[job_id] = way
        return job_id

    def get_job_meta(self, job_id: str) -> dict[str, str]:
        if job_id not in self.jobs:
            raise JobNotFound(job_id)
        return {"status": self.jobs[job_id]}

    def abort_job(self, job_id: str) -> None:
        self.said.append(f"abort {job_id}")
        if job_id == "zombie":
            raise InternalError("Job zombie is not running")
        self.jobs[job_id] = "FINISHED:ABORTED"

    def get_connected_client_list(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in (*ZONES, "another")]

    def get_client_job_status(self) -> list[dict[str, str]]:
        return [{"client_name": name, "job_id": f"job-{len(self.configs)}"} for name in self.running]

    def close(self) -> None:
        self.said.append("close")


def played(monkeypatch: pytest.MonkeyPatch, folder: Path, *ways: str, **options: Any) -> Server:
    server = Server(folder, list(ways), **options)
    monkeypatch.setattr(submit._Watch, "_connect", lambda self: server.connect())
    return server


def go(folder: Path, **options: Any) -> None:
    submit.submitted(folder.parent / "job", folder.parent / "kit", folder, poll_s=0.01, **options)


def test_a_job_that_ends_too_soon_is_submitted_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    server = played(monkeypatch, folder, "FINISHED:EXECUTION_EXCEPTION", "forgotten", "done")
    go(folder)
    assert server.said.count("submit") == 3
    assert server.configs[0] == {"run": str(folder), "initial": "task:initial_model", "evaluate": ""}
    assert read_status(folder).stands == "done"
    check(folder)


def test_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    server = played(monkeypatch, folder, "done", away=5)
    go(folder)
    assert server.said.count("connect") == 6
    assert server.said.count("submit") == 1


def test_a_server_that_stays_away_ends_the_patience(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    played(monkeypatch, folder, away=1000)
    with pytest.raises(SlackwaterError, match=r"cannot connect to server\. Everything is saved\. Resume with"):
        go(folder, patience_s=0.0)


def test_a_job_that_always_fails_is_given_up(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    server = played(monkeypatch, folder, *["FINISHED:EXECUTION_EXCEPTION"] * 9)
    with pytest.raises(
        SlackwaterError, match=r"failed 3 times without a round\. .*EXECUTION_EXCEPTION.*on the machine"
    ):
        go(folder)
    assert server.said.count("submit") == 3
    (folder / "nvflare.log").write_text("12:00 - ERROR - no module 'task'\n")
    with pytest.raises(SlackwaterError, match="no module 'task'"):
        go(folder)


def begun(folder: Path, *, by: int) -> None:
    """A run that a process has open, or had: what a job leaves when it is killed before its first slot."""
    task = task_of(folder.parent / "job")

    class Gone(Direct):
        def online(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(folder, Gone(list(ZONES), None), task.initial_model())
    machine = (folder / "run.lock").read_text().partition(" ")[2]
    (folder / "run.lock").write_text(f"{by} {machine}")


def test_a_job_that_a_restarted_server_only_believes_to_run_is_replaced(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    begun(folder, by=2**22 + 1)  # no process has this number
    (folder / "nvflare.json").write_text('{"job": "zombie"}')
    server = played(monkeypatch, folder, "done", jobs={"zombie": "RUNNING"})
    go(folder)
    assert server.said.count("submit") == 1
    check(folder)


def test_a_job_whose_process_dies_is_replaced(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    server = played(monkeypatch, folder, "RUNNING", "done")
    real, looks = submit._look, chain(repeat(True, 10), repeat(False))
    monkeypatch.setattr(
        submit, "_look", lambda where: found if (found := real(where)).done else submit._Run(written=next(looks))
    )
    go(folder)
    assert "abort job-1" in server.said
    assert server.said.count("submit") == 2


def test_a_job_that_runs_is_watched_and_not_submitted_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    begun(folder, by=os.getpid())
    (folder / "nvflare.json").write_text('{"job": "mine"}')
    server = played(monkeypatch, folder, jobs={"mine": "RUNNING"})
    asked, meta = 0, server.get_job_meta

    def finishes(job_id: str) -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 3:
            finish(folder)
        return meta(job_id)

    monkeypatch.setattr(server, "get_job_meta", finishes)
    go(folder)
    assert "submit" not in server.said
    assert asked == 3


def test_resume_watches_a_job_that_goes_on(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    begun(folder, by=os.getpid())
    (folder / "nvflare.json").write_text('{"job": "mine"}')
    engine = {"app": str(tmp_path / "job"), "startup_kit": str(tmp_path / "kit"), "run": "0" * 32}
    settings = json.loads((folder / "live.json").read_text()) | {"engine": engine}
    (folder / "live.json").write_text(json.dumps(settings))
    server = played(monkeypatch, folder, jobs={"mine": "RUNNING"})
    held, asked, meta = Run.open(folder), 0, server.get_job_meta  # as the job holds it

    def finishes(job_id: str) -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            held.close()
            finish(folder)
        return meta(job_id)

    monkeypatch.setattr(server, "get_job_meta", finishes)
    done = CliRunner().invoke(cli, ["resume", str(folder), "--trust"])
    assert done.exit_code == 0, done.output
    assert "submit" not in server.said


@pytest.mark.parametrize(
    ("training", "next_in_s", "replaced"), [(False, 60.0, True), (True, 60.0, False), (False, 1.0, False)]
)
def test_a_site_that_is_back_gets_a_new_job_between_two_rounds(
    monkeypatch: pytest.MonkeyPatch, folder: Path, training: bool, next_in_s: float, replaced: bool
) -> None:
    server = played(monkeypatch, folder, "RUNNING", "done", running=["lyon", "dublin"])
    looks, real = 0, submit._look

    def look(where: Path) -> submit._Run:
        nonlocal looks
        found, looks = real(where), looks + 1
        if found.done:
            return found
        if looks > 40 and not replaced:
            finish(folder)
        return submit._Run(written=True, training=training, next_in_s=next_in_s)

    monkeypatch.setattr(submit, "_look", look)
    watch = submit._Watch(
        submit.Job.read(folder.parent / "job"), folder.parent / "kit", folder, poll_s=0.0, patience_s=60.0,
        stop=threading.Event(),
    )  # fmt: skip
    watch._calm_s = 20.0
    watch.until_done()
    assert ("abort job-1" in server.said) == replaced
    assert len(server.configs) == (2 if replaced else 1)


def test_stopping_aborts_the_job_and_says_how_to_resume(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    stop = threading.Event()
    server = played(monkeypatch, folder, "RUNNING")
    monkeypatch.setattr(server, "get_connected_client_list", lambda: stop.set() or [])  # type: ignore[func-returns-value]
    with pytest.raises(RunStopped, match="slackwater resume"):
        go(folder, stop=stop)
    assert "abort job-1" in server.said
    assert json.loads((folder / "nvflare.json").read_text()) == {"job": "job-1"}


def test_a_folder_that_is_no_admins_kit_and_a_name_that_flare_cannot_have(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ScenarioError, match="not an admin's startup kit"):
        submit.submitted(tmp_path / "job", tmp_path, folder)
    plan = small_plan()
    object.__setattr__(plan.problem.fleet, "names", ("a b", "c", "d"))
    with pytest.raises(ScenarioError, match=r"'a b'\. Rename it"):
        submit._names(plan)


def test_the_simulators_failure_is_told_with_the_end_of_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit.sys, "executable", "false")
    (folder / "nvflare.log").write_text("INFO - all well\nERROR - no module 'task'\n")
    with pytest.raises(
        SlackwaterError, match=r"ended before the run was done.*ERROR - no module 'task'.*slackwater resume"
    ):
        submit.simulated(folder.parent / "job", folder)
