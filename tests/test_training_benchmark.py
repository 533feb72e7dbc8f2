"""Smoke test of the training benchmark: it runs, and all ways do the same work. Times are not looked at."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT, WAYS = "threads, channels-last", ["threads, channels-last", "ours", "ours, evaluated every round"]


class Run(NamedTuple):
    code: int
    result: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("benchmark") / "training.json"
    small = ["--model", "small-cnn", "--clients", "3", "--samples", "40", "--steps", "2", "--batch-size", "16"]
    done = subprocess.run(
        [sys.executable, "benchmarks/training.py", "--quick", "--out", str(out), "--bare", LIMIT, *small],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert out.exists(), done.stderr
    return Run(done.returncode, json.loads(out.read_text()), out.with_suffix(".md").read_text())


def test_training_takes_turns_with_everyone_and_with_few(training: Run) -> None:
    (repeat,) = training.result["interleaved"]
    assert [way for way in repeat if way != "ours, bf16"] == WAYS
    assert ("ours, bf16" in repeat) == training.result["bf16"] != ("bf16 was left out" in training.text)
    for way in repeat.values():
        assert [one["clients"] for one in way["rounds"]] == [3, 3, 1, 2]
        assert all(one["seconds"] > 0 for one in way["rounds"])
    for ways in training.result["summary"]["interleaved"].values():
        assert ways[LIMIT]["of_bare"] == ways[LIMIT]["cpu_of_bare"] == [1.0]
        assert len(ways["ours"]["of_bare"]) == 1


def test_training_measures_the_start_and_the_memory(training: Run) -> None:
    alone = training.result["summary"]["alone"]
    assert list(alone) == [LIMIT, "ours"]
    for way in alone.values():
        assert way["first_round_s"][0] > 0
        assert way["processes"] >= 1
        assert way["peak_mib"][0] > 0
        assert len(way["rates"]) == 2


def test_training_did_the_same_work_in_every_way(training: Run) -> None:
    assert training.result["violations"] == []
    assert training.code == 0


def test_training_says_what_was_measured_and_on_what(training: Run) -> None:
    assert {"python", "torch", "slackwater"} <= set(training.result["environment"]["versions"])
    assert training.result["flower"]["versions"] is None
    for part in ("benchmarks/training.py --quick", "Flower was left out", "client-rounds/s", "at least 0.95"):
        assert part in training.text


def test_a_step_is_measured_with_the_memory_kept_and_without(tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    few = ["--repeats", "1", "--steps", "2", "--model", "small-cnn", "--out", str(out)]
    done = subprocess.run([sys.executable, "benchmarks/steps.py", *few], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (repeat,) = json.loads(out.read_text())["repeats"]
    assert all(way["ms"] > 0 for way in repeat.values())
    assert repeat["memory kept"]["gradient"] == repeat["PyTorch alone"]["gradient"]
    assert repeat["memory kept, bf16"]["gradient"] != repeat["PyTorch alone"]["gradient"]
