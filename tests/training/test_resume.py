"""A run killed at any moment goes on to the same bits, and no slot is charged twice or lost."""

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from kills import RANDOM_KILLS
from small_tasks import SCHEDULE, classes, plan_of
from test_loop import same

import slackwater.ledger.run as run_module
import slackwater.ledger.state_files as state_module
from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.planning.plan import Plan
from slackwater.training.loop import Result, resume, train
from slackwater.training.task import Task

SETTINGS = {"local_steps": 3, "batch_size": 16, "threads": 1, "server": "momentum", "averaging": 3, "eval_every": 2}
RANDOM = [f"random:{number}" for number in range(RANDOM_KILLS)]
"""Steps of a run, drawn with these seeds."""
MOMENTS = [
    "create", "charge-before:0", "charge-after:0", "train:0", "keep-before:1", "keep-inside:2", "keep-after:2",
    "charge-after:3", "train:4", "keep-inside:6", "result", "delay:0.01", "delay:0.03", "delay:0.06",
]  # fmt: skip

# One process forks a child for each moment, so that PyTorch is loaded once; each child kills itself, or is killed.
CHILD = """
import os, random, signal, sys, tempfile, time
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../ledger"]
from pathlib import Path
import torch
torch.set_num_threads(1)
from small_tasks import SCHEDULE, classes, plan_of
from test_resume import SETTINGS, _resumed_or_begun
from kills import Steps
import slackwater.training.loop as algorithm
import slackwater.ledger.run as run_module
from slackwater.training import train

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def wrap(owner, name, when, count):
    inner, calls = getattr(owner, name), [0]
    def wrapped(*args, **kwargs):
        calls[0] += 1
        if when == "before" and calls[0] > count:
            die()
        value = inner(*args, **kwargs)
        if calls[0] > count:
            die()
        return value
    setattr(owner, name, wrapped)

def arm(moment):
    what, _, number = moment.partition(":")
    if what == "create":
        wrap(run_module, "_now", "before", 0)
    elif what == "train":
        wrap(algorithm.Workers, "train", "after", int(number))
    elif what.startswith("charge"):
        wrap(algorithm.Training, "_charge", what.split("-")[1], int(number))
    elif what == "keep-inside":
        wrap(algorithm.Checkpoint, "save", "after", int(number))
    elif what.startswith("keep"):
        wrap(algorithm.Training, "_keep", what.split("-")[1], int(number))
    elif what == "result":
        wrap(algorithm.Training, "result", "before", 0)
    elif what == "random":
        Steps(die_at=random.Random(number).randrange(steps()))

def steps():
    "Of a run that is not killed; counted once, in a process of its own."
    if not known:
        receive, send = os.pipe()
        if os.fork() == 0:
            counted = Steps()
            train(plan_of(SCHEDULE, window=1), classes(norm=True), out=tempfile.mkdtemp(dir=base) + "/run", **SETTINGS)
            os.write(send, str(counted.done).encode())
            os._exit(0)
        os.wait()
        known.append(int(os.read(receive, 100)))
    return known[0]

known, base = [], os.path.dirname(sys.argv[2])

train(plan_of(SCHEDULE, window=1), classes(norm=True), **SETTINGS)  # loads what a first run loads
if any(moment.startswith("random") for moment in sys.argv[3::2]):
    steps()

for folder, moment in zip(sys.argv[2::2], sys.argv[3::2]):
    child = os.fork()
    if child == 0:
        arm(moment)
        _resumed_or_begun(Path(folder), plan_of(SCHEDULE, window=1), classes(norm=True), begun=False)
        os._exit(0)
    if moment.startswith("delay"):
        time.sleep(float(moment.split(":")[1]))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(moment, "killed" if killed else status, flush=True)
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(SCHEDULE, window=1)


@pytest.fixture(scope="module")
def task() -> Task:
    return classes(norm=True)


@pytest.fixture(scope="module")
def whole(plan: Plan, task: Task) -> Result:
    return train(plan, task, **SETTINGS)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("killed")
    folders = {moment: base / moment.replace(":", "-") for moment in [*MOMENTS, *RANDOM]}
    outcomes = killed_at([(folder, moment) for moment, folder in folders.items()])
    assert all(outcome == "killed" for moment, outcome in outcomes if not moment.startswith("delay"))
    return folders


def killed_at(moments: list[tuple[Path, str]]) -> list[tuple[str, str]]:
    """Start or resume a run in each folder and kill it at a moment, one after the other; what came of each."""
    arguments = [str(part) for moment in moments for part in moment]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(line.rsplit(" ", 1)[0], line.rsplit(" ", 1)[1]) for line in done.stdout.splitlines()]


def _resumed_or_begun(folder: Path, plan: Plan, task: Task, *, begun: bool) -> Result:
    """Killed before the run was begun, the folder is as good as new."""
    try:
        return resume(folder, task=task)
    except SlackwaterError as error:
        known = any(words in str(error) for words in ("no run in", "never begun", "never written"))
        if begun or not known:
            raise
        return train(plan, task, out=folder, **SETTINGS)


@pytest.mark.parametrize("moment", [*MOMENTS, *RANDOM])
def test_a_killed_run_goes_on_to_the_same_bits(
    moment: str, killed: dict[str, Path], plan: Plan, task: Task, whole: Result
) -> None:
    folder = killed[moment]
    if Run.begun(folder):
        with Run.open(folder, read_only=True) as run:
            assert {run.state.fault(kept) for kept in run.state.checkpoints()} <= {None}, "both states are whole"
    result = _resumed_or_begun(folder, plan, task, begun=not moment.startswith(("create", "delay", "random")))
    assert same(result, whole)
    with Run.open(folder) as run:
        keys = [(row.slot, row.client) for row in run.ledger.charges()]
        names = plan.problem.fleet.names
        assert sorted(keys) == sorted((slot, names[c]) for c, slot in zip(*SCHEDULE.nonzero(), strict=True))
        assert run.ledger.spent_kg() == pytest.approx(plan.emissions_kg, rel=1e-12)
        assert run.status == "done"
    _check_files(folder)
    saved = torch.load(folder / "model.pt")
    assert all(torch.equal(saved[key], whole.model[key]) for key in saved)


def _check_files(folder: Path) -> None:
    """Nothing is in the folder of the state but the files that run.db names, and each is as it was written."""
    with Run.open(folder, read_only=True) as run:
        checkpoints = run.state.checkpoints()
        named = {part.file for kept in checkpoints for part in run.state.parts(kept)}
        assert [run.state.fault(kept) for kept in checkpoints] == [None, None]
    assert {path.name for path in (folder / "state").iterdir()} == named


def test_a_run_that_is_killed_again_and_again_comes_to_the_same_bits(
    tmp_path: Path, plan: Plan, task: Task, whole: Result
) -> None:
    outcomes = killed_at([(tmp_path / "run", f"random:again-{number}") for number in range(RANDOM_KILLS)])
    assert outcomes[0][1] == "killed"
    assert same(_resumed_or_begun(tmp_path / "run", plan, task, begun=False), whole)
    _check_files(tmp_path / "run")


@pytest.mark.parametrize("pages", [30, 34, 38])
def test_a_full_disk_is_a_sentence_and_nothing_is_lost(
    pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, task = plan_of(np.ones((3, 40)), window=1), classes()
    usual = run_module.connect

    def small_disk(*args: object, **kwargs: object) -> object:
        connection = usual(*args, **kwargs)  # type: ignore[arg-type]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(run_module, "connect", small_disk)
    with pytest.raises(
        SlackwaterError, match=r"run\.db cannot be written: database or disk is full.*slackwater resume"
    ):
        train(plan, task, out=tmp_path, **SETTINGS)
    monkeypatch.undo()
    assert same(resume(tmp_path, task=task), train(plan, task, **SETTINGS))


@pytest.mark.parametrize("full_at", [0, 3, 12, 30])
def test_a_disk_that_is_full_for_the_state_is_a_sentence_and_nothing_is_lost(
    full_at: int, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, usual, calls = classes(), os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(handle)

    monkeypatch.setattr(state_module.os, "fsync", full)
    with pytest.raises(SlackwaterError, match=rf"cannot be written: No space left.*slackwater resume {tmp_path}"):
        train(plan, task, out=tmp_path, **SETTINGS)
    monkeypatch.undo()
    known = {file for (file,) in sqlite3.connect(tmp_path / "run.db").execute("SELECT file FROM parts")}
    assert {path.name for path in (tmp_path / "state").iterdir()} == known, "files of the lost round are gone"
    assert same(resume(tmp_path, task=task), train(plan, task, **SETTINGS))


def test_a_built_in_task_is_made_again(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from slackwater.training.tasks import digits

    plan = plan_of(SCHEDULE, window=1)
    task = digits(clients=3, beta=1.0, seed=4)
    result = train(plan, task, out=tmp_path, local_steps=1, threads=1)
    assert same(resume(tmp_path), result)
