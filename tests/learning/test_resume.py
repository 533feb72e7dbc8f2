"""A run killed at any moment goes on to the same bits, and no slot is charged twice or lost."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_tasks import SCHEDULE, classes, plan_of
from test_loop import same

import slackwater.ledger.run as run_module
from slackwater.errors import SlackwaterError
from slackwater.learning import resume, train
from slackwater.learning.result import Result
from slackwater.learning.task import Task
from slackwater.ledger import Run
from slackwater.planning.plan import Plan

SETTINGS = {"local_steps": 3, "batch_size": 16, "threads": 1, "server": "momentum", "averaging": 3, "eval_every": 2}
MOMENTS = [
    "create", "charge-before:0", "charge-after:0", "train:0", "keep-before:1", "keep-inside:2", "keep-after:2",
    "charge-after:3", "train:4", "keep-inside:6", "result", "delay:0.01", "delay:0.03", "delay:0.06",
]  # fmt: skip

# One process forks a child for each moment, so that PyTorch is loaded once; each child kills itself, or is killed.
CHILD = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from small_tasks import SCHEDULE, classes, plan_of
from test_resume import SETTINGS
import slackwater.learning.algorithm as algorithm
import slackwater.ledger.run as run_module
from slackwater.learning import train

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

train(plan_of(SCHEDULE, window=1), classes(norm=True), **SETTINGS)  # loads what a first run loads

for folder, moment in zip(sys.argv[2::2], sys.argv[3::2]):
    child = os.fork()
    if child == 0:
        arm(moment)
        train(plan_of(SCHEDULE, window=1), classes(norm=True), out=folder, **SETTINGS)
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
    folders = {moment: base / moment.replace(":", "-") for moment in MOMENTS}
    arguments = [str(part) for moment, folder in folders.items() for part in (folder, moment)]
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, here, *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    outcomes = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert all(outcomes[moment] == "killed" for moment in MOMENTS if not moment.startswith("delay")), done.stderr
    return folders


def _resumed_or_begun(folder: Path, plan: Plan, task: Task, *, begun: bool) -> Result:
    """Killed before the run was begun, the folder is as good as new."""
    try:
        return resume(folder, task=task)
    except SlackwaterError as error:
        known = any(words in str(error) for words in ("no run in", "never begun", "never written"))
        if begun or not known:
            raise
        return train(plan, task, out=folder, **SETTINGS)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_to_the_same_bits(
    moment: str, killed: dict[str, Path], plan: Plan, task: Task, whole: Result
) -> None:
    folder = killed[moment]
    result = _resumed_or_begun(folder, plan, task, begun=moment != "create" and not moment.startswith("delay"))
    assert same(result, whole)
    with Run.open(folder) as run:
        keys = [(row.slot, row.client) for row in run.ledger.charges()]
        names = plan.problem.fleet.names
        assert sorted(keys) == sorted((slot, names[c]) for c, slot in zip(*SCHEDULE.nonzero(), strict=True))
        assert run.ledger.spent_kg() == pytest.approx(plan.emissions_kg, rel=1e-12)
        assert run.status == "done"
    saved = torch.load(folder / "model.pt")
    assert all(torch.equal(saved[key], whole.model[key]) for key in saved)


@pytest.mark.parametrize("pages", [60, 90, 120])
def test_a_full_disk_is_a_sentence_and_nothing_is_lost(
    pages: int, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = classes(hidden=2000)  # 18,003 parameters: every part of the checkpoint takes 18 pages
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


def test_a_built_in_task_is_made_again(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from slackwater.learning.tasks import digits

    plan = plan_of(SCHEDULE, window=1)
    task = digits(clients=3, beta=1.0, seed=4)
    result = train(plan, task, out=tmp_path, local_steps=1, threads=1)
    assert same(resume(tmp_path), result)
