"""Local steps in bfloat16: the same accuracy within seeds, the same bits after a resume, and the choice of `auto`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from small_tasks import SCHEDULE, classes, plan_of
from torch import nn

import slackwater as sw
from slackwater.errors import ScenarioError
from slackwater.ledger.run import Run
from slackwater.training.loop import Progress
from slackwater.training.settings import Settings
from slackwater.training.tasks import maker


def test_accuracy_is_unchanged_within_seeds() -> None:
    plan = plan_of([[1] * 6] * 4)
    scores: dict[str, list[float]] = {"fp32": [], "bf16": []}
    losses: dict[str, list[float | None]] = {"fp32": [], "bf16": []}
    for seed in range(3):
        task = sw.tasks.digits(clients=4, seed=seed)
        for precision, found in scores.items():
            result = sw.train(plan, task, local_steps=10, eval_every=0, seed=seed, precision=precision, threads=1)
            found.append(result.score)
            losses[precision].append(result.history[-1].test_loss)
    assert all(a != b for a, b in zip(losses["fp32"], losses["bf16"], strict=True))  # the option acts
    assert min(scores["fp32"]) > 0.8
    apart = statistics.mean(scores["bf16"]) - statistics.mean(scores["fp32"])
    assert abs(apart) <= max(0.01, statistics.stdev(scores["fp32"]))


def test_a_run_in_bf16_resumes_to_the_same_bits(tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    whole = sw.train(plan, task, local_steps=3, precision="bf16", threads=1, out=tmp_path / "whole")

    def stop(now: Progress) -> None:
        if now.done.slot >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sw.train(plan, task, local_steps=3, precision="bf16", threads=1, out=tmp_path / "cut", progress=stop)
    with Run.open(tmp_path / "cut") as run:
        assert run.settings["precision"] == "bf16"
    resumed = sw.resume(tmp_path / "cut", task=task)
    for name, value in whole.model.items():
        assert torch.equal(value, resumed.model[name])


@pytest.mark.parametrize(("has", "used"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_stored_as_what_the_processor_has(monkeypatch: pytest.MonkeyPatch, has: bool, used: str) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has, raising=False)
    assert Settings(threads=1, precision="auto").precision == used
    assert Settings(threads=1).precision == "fp32"


def test_an_unknown_precision_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="precision must be one of fp32, bf16, auto, not 'fp8'"):
        Settings(threads=1, precision="fp8")


def test_group_norms_stay_in_float32() -> None:
    model = maker("resnet", channels=3, size=8)()
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    seen: list[torch.dtype] = []
    for norm in norms:
        norm.register_forward_hook(lambda _layer, _given, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(torch.rand(2, 3, 8, 8))
    assert outputs.dtype == torch.bfloat16  # the step itself is not
    assert seen == [torch.float32] * 19
