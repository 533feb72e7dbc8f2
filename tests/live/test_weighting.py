"""Weights by samples: the average of the window is FedAvg's, and before it the objective is that of all samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, Sites

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveResult, LiveSettings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply, Work

SAMPLES = dict(zip(NAMES, (100, 200, 700), strict=True))


KEY = "layer.weight"


class Counted(Sites):
    """Clients that report their samples and a number of their own; what they sent is in `sent`, by slot."""

    counts: Mapping[str, int | None] = SAMPLES

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        self.sent: dict[int, dict[str, Any]] = getattr(self, "sent", {})
        for reply in super().train(work, until):
            assert reply.arrays is not None
            self.sent.setdefault(work[reply.client].slot, {})[reply.client] = reply.arrays[KEY]
            yield replace(reply, samples=self.counts[reply.client], metrics={"mine": 2.0})


def run(folder: Path, sites: Sites, plan: Any, **settings: Any) -> LiveResult:
    return carry_out(world.made(folder, plan, **settings), sites, world.initial())


@pytest.mark.parametrize("window", [1, 0])
def test_updates_are_weighted_by_samples(window: int, tmp_path: Path) -> None:
    """With everybody in the slot, the model is the mean over samples: in the window, and before it by ufedavg."""
    rows = ["x", "x", "x"] if window else ["xx", "xx", "xx"]
    plan, sites = world.plan(rows, fine_tune=1), Counted()
    models: list[Any] = []
    prepare(tmp_path, plan, LiveSettings(slot_seconds=0.0, aggregator="ufedavg", weighting="samples"))
    carry_out(tmp_path, sites, world.initial(), on_round=lambda done, arrays: models.append(arrays[KEY]))
    mean = sum(SAMPLES[name] / 1000 * sites.sent[0][name] for name in NAMES)
    np.testing.assert_allclose(models[0], mean, rtol=1e-5)
    equal = Counted()
    run(tmp_path / "equal", equal, plan)
    assert not np.allclose(mean, sum(equal.sent[0][name] for name in NAMES) / 3)


def test_a_client_without_samples_is_named(tmp_path: Path) -> None:
    silent = type("Silent", (Counted,), {"counts": {**SAMPLES, NAMES[1]: None}})()
    with pytest.raises(SlackwaterError, match=rf"{NAMES[1]} did not report num-examples.*weighting = 'equal'"):
        run(tmp_path, silent, world.plan(["x", "x", "x"], fine_tune=1), weighting="samples")


def test_equal_is_the_default_and_others_are_refused() -> None:
    assert LiveSettings().weighting == "equal"
    with pytest.raises(ScenarioError, match="weighting must be equal or samples"):
        LiveSettings(weighting="size")  # type: ignore[arg-type]


def test_own_numbers_are_kept_and_shown(tmp_path: Path) -> None:
    from slackwater.live.status import read_status

    run(tmp_path, Counted(), world.plan())
    with Run.open(tmp_path, read_only=True) as found:
        kept, rounds = found.journal.metrics(), list(found.rounds())
    assert all(kept[one.slot] == {name: {"mine": 2.0} for name in one.participants} for one in rounds)
    assert read_status(tmp_path).metrics == {"mine": 2.0}
    assert read_status(tmp_path).to_dict()["metrics"] == {"mine": 2.0}


def test_a_function_for_every_round_may_fail(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(done: Any, arrays: Any) -> dict[str, float]:
        seen.append(done.number)
        if done.number == 1:
            raise ValueError("no")
        return {"size": float(sum(array.size for array in arrays.values())), "odd": float("nan")}

    prepare(tmp_path, world.plan(), LiveSettings(slot_seconds=0.0))
    result = carry_out(tmp_path, Sites(), world.initial(), on_round=note)
    assert seen == list(range(len(result.history)))
    assert "on_round failed: ValueError: no" in world.said(tmp_path)
    with Run.open(tmp_path, read_only=True) as found:
        kept = found.journal.metrics()
    assert [slot in kept for slot in (one.slot for one in result.history)].count(False) == 1
    assert all("odd" not in numbers[""] for numbers in kept.values())
