"""A global model that diverges stops the run; the model before it, the charges and the way on are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import Sites

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply, Work
from slackwater.live.status import read_status
from slackwater.training.global_model import Checkpoint

ROWS = ["xx.x.x", "x.xx.x", ".x.xxx"]
SENTENCE = r"The global model is no longer finite in slot 2; the previous one is kept\. Try an aggregator"


class Huge(Sites):
    """Sites whose updates are numbers, each of them, in one slot; their length is not."""

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        for reply in super().train(work, until):
            assert reply.arrays is not None
            if work[reply.client].slot == 2:
                weight = np.full((2, 3), 3e38, dtype=np.float32)
                reply = replace(reply, arrays=dict(reply.arrays) | {"layer.weight": weight})
            yield reply


class Far(Sites):
    """Sites whose updates are ten times as long as usual: all of them, so none stands out."""

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        for reply in super().train(work, until):
            assert reply.arrays is not None
            arrays = {name: (10 * array).astype(array.dtype) for name, array in reply.arrays.items()}
            yield replace(reply, arrays=arrays)


def kept(folder: Path) -> Any:
    """The parameters in the run's checkpoint."""
    with Run.open(folder, read_only=True) as run:
        return Checkpoint(run).load()["model"]["theta"]


@pytest.mark.parametrize("source", ["plan", "playback"])
def test_a_run_whose_model_diverges_stops_and_can_be_resumed(tmp_path: Path, source: str) -> None:
    settings: dict[str, Any] = {"max_norm_ratio": None, "source": source}
    plan = world.plan(ROWS, idle_w=10.0)
    if source == "playback":
        settings |= {"replan_slots": 1, "reserve": 0.0}
    world.made(tmp_path / "whole", plan, **settings)
    whole = carry_out(tmp_path / "whole", Sites(), world.initial())
    assert 2 in [one.slot for one in whole.history]

    world.made(tmp_path / "run", plan, **settings)
    with pytest.raises(SlackwaterError, match=SENTENCE):
        carry_out(tmp_path / "run", Huge(), world.initial())
    status = read_status(tmp_path / "run")
    assert (status.stands, status.rounds) == ("diverged", 2)
    assert "no longer finite in slot 2" in status.events[0][2]
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert [one.slot for one in run.rounds()] == [0, 1]
        booked = {(line.slot, line.client) for line in run.ledger.charges() if line.cause == "training"}
    trained = {(slot, client) for slot, client in world.outcomes(tmp_path / "run") if slot == 2}
    assert trained
    assert trained <= booked  # what was drawn stays charged
    assert np.isfinite(kept(tmp_path / "run")).all()
    assert not (tmp_path / "run" / "model.pt").exists()

    before, spent = kept(tmp_path / "run"), world.spent(tmp_path / "run")
    sites = Sites()
    sent: list[Any] = []
    sites.before_train = lambda work: sent.append(next(iter(work.values())).arrays["layer.weight"].copy())
    done = carry_out(tmp_path / "run", sites, world.initial())
    assert np.array_equal(sent[0].reshape(-1), before[:6])  # it continues from the model before
    assert min(slot for slot, _ in sites.trained) == 3  # nothing is trained or charged twice
    assert done.emissions_kg > spent > 0
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path / "run"), rel=1e-9)
    if source == "plan":
        assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert {world.outcomes(tmp_path / "run")[key] for key in trained} == {"lost"}
    assert np.isfinite(done.arrays["layer.weight"]).all()
    assert read_status(tmp_path / "run").stands == "done"


def test_a_step_that_overshoots_stops_the_run_too(tmp_path: Path) -> None:
    """The aggregated update is finite and so is its length; the step by it is not."""
    world.made(tmp_path, world.plan(ROWS), server="momentum", server_lr=3e38)
    slots = []
    for _ in range(5):
        with pytest.raises(SlackwaterError, match="no longer finite in slot") as stopped:
            carry_out(tmp_path, Far(), world.initial())
        slots.append(str(stopped.value).split("slot ")[1][0])
        assert read_status(tmp_path).stands == "diverged"
        assert not kept(tmp_path).any()  # the model it began with
    done = carry_out(tmp_path, Far(), world.initial())  # the window takes plain steps
    assert slots == list("01234")
    assert [one.slot for one in done.history] == [5]
    assert done.emissions_kg == pytest.approx(world.plan(ROWS).emissions_kg, rel=1e-12)
