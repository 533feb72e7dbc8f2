"""The study of emissions to a target: its definition, a whole small sweep, and what a plan may see."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import slackwater as sw
from slackwater.lab.studies import carbon_targets, carbon_to_target
from slackwater.lab.studies.carbon_to_target import TASKS, Sources, schedule
from slackwater.training import tasks
from slackwater.training.loop import Progress, train
from slackwater.training.task import Samples


def row(kg: float, score: float, curve: list[list[float]]) -> dict[str, object]:
    return {"status": "trained", "kg": kg, "score": score, "hours_taken": 10.0 * kg, "curve": curve}


def test_the_target_of_auroc_is_a_share_of_the_gain() -> None:
    assert carbon_targets.target(0.8, 0.95, "accuracy") == pytest.approx(0.76)
    assert carbon_targets.target(0.8, 0.5, "AUROC") == pytest.approx(0.65)


def test_emissions_to_a_target_are_the_least_over_rounds_and_budgets() -> None:
    runs = [row(1.0, 0.5, [[1, 0.5, 0.4], [2, 1.0, 0.5]]), row(2.0, 0.9, [[1, 1.9, 0.2], [2, 2.0, 0.9]])]
    hours, kg = carbon_targets.to_target(runs, 0.7) or (0.0, 0.0)
    assert (hours, kg) == pytest.approx((15.0, 1.5))  # across budgets: half-way from 0.5 to 0.9
    assert carbon_targets.to_target(runs, 0.45) == pytest.approx((1.5, 0.75))  # within the first run
    assert carbon_targets.to_target(runs, 0.95) is None


def test_it_tunes_trains_continues_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "digits", replace(TASKS["digits"], rates=(0.1,), local_steps=3))
    monkeypatch.setattr(carbon_to_target, "FULL_HOURS", 6)
    results = str(tmp_path / "cells.jsonl")
    asked = ["--tasks", "digits", "--results", results]
    few = ["--methods", "auto,no-slack,threshold", "--budgets", "3", "--seeds", "1"]
    done = CliRunner().invoke(carbon_to_target.main, ["run", *asked, *few])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in Path(results).read_text().splitlines()]
    assert (
        len(rows) == 6 + 4
    )  # five settings and full training on the tuning seed, then three methods and full training
    assert {r["seed"] for r in rows} == {carbon_to_target.TUNING_SEED, 0}
    assert all(r["kg"] <= max(r["hours"], 3) for r in rows)
    again = CliRunner().invoke(carbon_to_target.main, ["run", *asked, *few])
    assert again.exit_code == 0
    assert len(Path(results).read_text().splitlines()) == len(rows)
    shown = CliRunner().invoke(carbon_to_target.main, ["table", *asked]).output
    assert "| Digits 8 x 8 | ours (auto) |" in shown
    assert "not run" in shown
    picture = tmp_path / "picture.png"
    drawn = CliRunner().invoke(carbon_to_target.main, ["chart", *asked, "--out", str(picture)])
    assert drawn.exit_code == 0, drawn.output
    assert picture.stat().st_size > 0


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    done = CliRunner().invoke(carbon_to_target.main, ["run", "--tasks", "nothing"])
    assert done.exit_code == 1
    assert "There is no task 'nothing'. There are: mnist-small" in done.output


# Auto's choices use nothing of the task's labels or test set


def test_planning_loads_no_training_code() -> None:
    code = """
import sys
import slackwater as sw
zones = ["FR", "DE"]
traces = sw.load_traces(zones=zones, start="2022-01-01T00:00Z", hours=30)
clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in zones]
problem = sw.Problem(clients=clients, traces=traces, rounds=3, slack=20, budget_kg=1.0)
plan = sw.plan(problem, planner="auto")
assert plan.matrix.any() and plan.aggregator == "echo"
loaded = [name for name in sys.modules if name == "torch" or name.startswith("slackwater.training")]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_schedule_is_made_from_a_name_and_never_reads_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a schedule must not read the task")

    for name in ("make", "make_for"):
        monkeypatch.setattr(tasks, name, refuse)
    monkeypatch.setattr(Sources, "load", refuse)
    schedule.cache_clear()
    made = [schedule(Sources(), task, "auto", 3) for task in ("digits", "mnist-skewed-small", "fashion-small")]
    assert made[0][0].matrix.any()
    # Other images, labels and partitions, at the same places: the same schedule and the same aggregator.
    for plan, aggregator in made[1:]:
        assert np.array_equal(plan.matrix, made[0][0].matrix)
        assert aggregator == made[0][1] == plan.aggregator


class Sealed:
    """A test set of digits that nobody may read once the first round is done; before it, shapes are checked."""

    def __init__(self, rounds_done: list[int]) -> None:
        self.rounds_done = rounds_done

    def __len__(self) -> int:
        return 10

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        assert not self.rounds_done, "the test set was read before the last round"
        return torch.zeros(1, 8, 8), item % 10


def test_training_chooses_nothing_by_the_test_set() -> None:
    """With other test data the rounds, their clients and the model are the same; while training, no test data is read."""
    task = tasks.digits(seed=0)
    other = Samples(x=torch.zeros_like(task.test.x), y=task.test.y.flip(0))
    runs = []
    for test in (task.test, other):
        plan, aggregator = schedule(Sources(), "digits", "auto", 3)
        runs.append(
            train(plan, replace(task, test=test, client_tests=()), aggregator=aggregator, local_steps=2, seed=0)
        )
    rounds = [[(done.slot, done.participants) for done in run.history] for run in runs]
    assert rounds[0] == rounds[1]
    assert runs[0].score != runs[1].score
    for name, values in runs[0].model.items():
        assert torch.equal(values, runs[1].model[name])
    read: list[int] = []

    def until_the_end(done: Progress) -> None:
        read.append(done.done.slot)

    with pytest.raises(sw.ScenarioError, match="the test set was read before the last round"):
        train(
            plan, replace(task, test=Sealed(read), client_tests=()), aggregator=aggregator, local_steps=2, seed=0,
            eval_every=1000, progress=until_the_end,
        )  # fmt: skip
    assert len(read) >= len(rounds[0]) - 1


# The page and the README


def test_the_page_and_the_readme_show_the_stored_cells() -> None:
    root = Path(__file__).parent.parent.parent
    page = (root / "docs" / "research" / "results.md").read_text(encoding="utf-8")
    results = str(root / "experiments" / "results" / "carbon_to_target.jsonl")
    shown = CliRunner().invoke(carbon_to_target.main, ["table", "--results", results])
    assert shown.exit_code == 0, shown.output
    blocks = re.findall(r"<!-- carbon-to-target: \w+ -->\n(.*?)<!-- carbon-to-target: end", page, flags=re.DOTALL)
    assert "\n\n".join(block.strip() for block in blocks) == shown.output.strip()
    for setting in TASKS.values():
        assert re.search(rf"\| {re.escape(setting.title)} \|", blocks[0]), "a task is missing, also as not run"
    first = " ".join(blocks[0].split()).split(". ")[0].removeprefix("- ")
    assert first.startswith("To 99 % of full training's score, auto emits ")
    assert first in " ".join((root / "README.md").read_text(encoding="utf-8").split())
    # Outside the tables the page has no figure that a run could change.
    prose = re.sub(r"<!-- carbon-to-target: (\w+) -->.*?<!-- carbon-to-target: end", "", page, flags=re.DOTALL)
    assert not re.findall(r"\d+\.\d+ (?:%|kg|points)", prose)


def test_a_task_that_was_not_run_says_so_and_is_in_no_mean() -> None:
    full = row(10.0, 0.9, [[1, 1.0, 0.5], [50, 10.0, 0.9]]) | {"method": "full", "hours": 50}
    ours = row(1.0, 0.9, [[1, 1.0, 0.9]]) | {"method": "auto", "hours": 3}
    theirs = row(1.0, 0.8, [[1, 1.0, 0.8]]) | {"method": "paper", "hours": 3}
    same = {"task": "a", "seed": 0, "tuning": False, "metric": "accuracy", "worst_client": None, "seconds": 36.0}
    rows = [one | same for one in (full, ours, theirs)]
    lines = list(carbon_targets.headline(rows, {"a": "A", "b": "B"}, ["auto", "paper"]))
    assert lines[0] == (
        "- To 99 % of full training's score, auto emits 10.0 % of full training's emissions on average over 1 task; "
        "the paper's emits 100.0 %. Auto emits least on 1 of 1."
    )
    assert "| A | **10.0** | not reached | 1 |" in lines
    assert "| B | not run | not run | 0 |" in lines
    begun = [*rows, rows[0] | {"task": "b"}]  # full training alone is no result, and a missing method enters no mean
    assert list(carbon_targets.headline(begun, {"a": "A", "b": "B"}, ["auto", "paper"]))[:-1] == lines[:-1]
    assert list(carbon_targets.summary(rows, {"a": "A"}, ["auto", "paper", "fedzero"])) == []
    assert lines[-1] == "Cost: 3 training runs and 0.0 hours on one thread, with the runs that tune."
