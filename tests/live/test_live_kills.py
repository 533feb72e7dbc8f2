"""kill -9 at any moment: nothing trained twice, nothing charged twice, nothing lost that was kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import live_world as world
import pytest
import torch
from kills import RANDOM_KILLS

from slackwater.ledger.run import Run
from slackwater.live.runner import carry_out
from slackwater.live.status import read_status
from slackwater.planning.planner import plan as make_plan

ROWS = ["xx.x.xx", "x.xx.xx", ".x.xxxx"]
MOST_LOST = 4
"""Slots that kills may take on a slow machine: with all of them lost, a run rightly fails without a model."""


class Processes:
    """Starts runs and kills them."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("live_process.py")
        self.server = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )  # fmt: skip

    def start(self, folder: Path) -> int:
        assert self.server.stdin is not None
        self.server.stdin.write(f"{folder}\n")
        self.server.stdin.flush()
        return self._number()

    def end(self, pid: int, by: signal.Signals | None = None) -> int:
        """The exit code; of a killed one below 0."""
        if by is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, by)
        return self._number()

    def _number(self) -> int:
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())

    def close(self) -> None:
        self.server.communicate()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def made(folder: Path, guide: str) -> Path:
    if guide == "plan":
        return world.made(folder, world.plan(ROWS, fine_tune=2), aggregator="memory", gone_after=9)
    problem = world.problem(5, slack=6, fine_tune=2)
    plan = make_plan(problem.with_settings(budget_kg=float(problem.costs.dense()[:, :6].sum())))
    return world.made(folder, plan, source="playback", replan_slots=1, reserve=0.0, aggregator="memory", gone_after=9)


def asked(folder: Path) -> Counter[str]:
    path = folder / "asked.txt"
    return Counter(path.read_text().splitlines() if path.exists() else [])


def model(folder: Path) -> Any:
    return {name: tensor.numpy() for name, tensor in torch.load(folder / "model.pt").items()}


@pytest.mark.parametrize("guide", ["plan", "replanned"])
def test_kills_at_random_moments(tmp_path: Path, processes: Processes, guide: str) -> None:
    folder, chance = made(tmp_path / "run", guide), random.Random(1)
    kills, lost = 0, set[int]()
    for _ in range(40):
        pid = processes.start(folder)
        time.sleep(chance.uniform(0.0, 0.15))
        code = processes.end(pid, signal.SIGKILL if kills < 12 and len(lost) < MOST_LOST else None)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kills += 1
        if Run.begun(folder):
            assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-12)
            assert read_status(folder).stands in ("running", "interrupted", "done")
            lost = {slot for (slot, _), outcome in world.outcomes(folder).items() if outcome != "done"}
    else:
        pytest.fail("the run never ended")
    assert kills >= 3
    assert read_status(folder).stands == "done"
    assert max(asked(folder).values()) == 1, "nobody trains a slot twice"
    with Run.open(folder, read_only=True) as run:
        budget, attempts, rounds = run.ledger.budget_kg, run.journal.attempts(), list(run.rounds())
        lines = [line for line in run.ledger.charges() if line.kind == "charge" and line.cause == "training"]
    assert budget is not None
    assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-12)
    assert world.spent(folder) <= budget
    assert {one.outcome for one in attempts} <= {"done", "lost", "refused"}
    done = {(one.slot, name) for one in rounds for name in one.participants}
    assert done == {(one.slot, one.client) for one in attempts if one.outcome == "done"}
    started = {(int(line.split()[0]), line.split()[1]) for line in asked(folder)}
    assert started <= {(line.slot, line.client) for line in lines}, "nothing starts that is not booked"
    booked = {(line.slot, line.client) for line in lines}
    assert all((one.slot, one.client) in booked for one in attempts if one.outcome == "lost")


@pytest.mark.parametrize("guide", ["plan", "replanned"])
def test_kills_while_nothing_is_under_way_change_nothing(tmp_path: Path, processes: Processes, guide: str) -> None:
    whole, folder = made(tmp_path / "whole", guide), made(tmp_path / "cut", guide)
    assert processes.end(processes.start(whole)) == 0
    for looks in (0, 1, 0, 2, 1):
        (folder / "held.txt").unlink(missing_ok=True)
        (folder / "hold.txt").write_text(str(looks))
        pid = processes.start(folder)
        while not (folder / "held.txt").exists():
            time.sleep(0.001)
        assert processes.end(pid, signal.SIGKILL) == -signal.SIGKILL
    (folder / "hold.txt").unlink()
    assert processes.end(processes.start(folder)) == 0
    assert world.outcomes(folder) == world.outcomes(whole)
    assert world.same(model(folder), model(whole))
    assert world.spent(folder) == world.spent(whole)
    assert max(asked(folder).values()) == 1


@pytest.mark.parametrize("guide", ["plan", "replanned"])
def test_kills_at_random_steps_lead_to_the_same_bits(tmp_path: Path, processes: Processes, guide: str) -> None:
    """The same as a run in which the clients of the slots that the kill took were lost; mostly there are none."""
    whole = made(tmp_path / "whole", guide)
    (whole / "die.txt").write_text("1000000")
    assert processes.end(processes.start(whole)) == 0
    steps, chance = int((whole / "steps.txt").read_text()), random.Random(2)
    references: dict[frozenset[tuple[int, str]], Path] = {frozenset(): whole}
    for number in range(RANDOM_KILLS):
        folder = made(tmp_path / str(number), guide)
        (folder / "die.txt").write_text(str(chance.randrange(steps)))
        assert processes.end(processes.start(folder)) == -signal.SIGKILL
        (folder / "die.txt").unlink()
        if Run.begun(folder):
            with Run.open(folder, read_only=True) as run:
                assert {run.state.fault(kept) for kept in run.state.checkpoints()} <= {None}, "both states are whole"
        assert processes.end(processes.start(folder)) == 0
        lost = frozenset(key for key, outcome in world.outcomes(folder).items() if outcome == "lost")
        assert len({slot for slot, _ in lost}) <= 1
        if lost not in references:
            references[lost] = made(tmp_path / f"reference-{number}", guide)
            carry_out(references[lost], world.Sites(tricks=dict.fromkeys(lost, "lost")), world.initial())
        assert world.same(model(folder), model(references[lost])), f"run {number}"
        assert world.outcomes(folder) == world.outcomes(references[lost])
        assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-12)
        assert not asked(folder) or max(asked(folder).values()) == 1, "nobody trains a slot twice"
        with Run.open(folder, read_only=True) as run:
            checkpoints = run.state.checkpoints()
            named = {part.file for kept in checkpoints for part in run.state.parts(kept)}
            assert [run.state.fault(kept) for kept in checkpoints] == [None, None]
        assert {path.name for path in (folder / "state").iterdir()} == named


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_a_run_that_waits(tmp_path: Path, processes: Processes, by: signal.Signals) -> None:
    folder = world.made(tmp_path, world.plan(ROWS, fine_tune=2), slot_seconds=600.0)
    pid = processes.start(folder)
    while not Run.begun(folder) or read_status(folder).rounds < 1:
        time.sleep(0.01)
    assert read_status(folder).stands == "running"
    assert processes.end(pid, by) == 130
    assert read_status(folder).stands == "stopped"
    assert set(world.outcomes(folder).values()) == {"done"}
