"""A live run without trouble is `train`: same seeds, same weights, same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import live_world as world
import numpy as np
import pytest
import small_tasks
import torch

from slackwater import training
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply, Site, Work
from slackwater.training.local import LocalWork, train_locally
from slackwater.training.task import FlatModel, ModelMaker, Task

ROWS = ["xx.x.xx", "x.xx.xx", ".x.xxxx"]
SGD = LocalWork(steps=5, epochs=None, batch_size=16, lr=0.1, weight_decay=5e-4)


class Trainers:
    """Sites that train as `train` does."""

    def __init__(self, task: Task, model: FlatModel) -> None:
        self.task, self.model = task, model
        self.names = list(model.state_dict())

    def online(self) -> Mapping[str, Site]:
        return {name: Site(name=name) for name in world.NAMES}

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        for name in sorted(work, reverse=True):
            one = work[name]
            self.model.module.load_state_dict({key: torch.from_numpy(a.copy()) for key, a in one.arrays.items()})
            start, buffers = self.model.vector.clone(), self.model.copy_buffers()
            samples = self.task.clients[world.NAMES.index(name)]
            sent = train_locally(self.model, start, buffers, samples, self.task, SGD, one.seed)
            arrays = {key: tensor.numpy().copy() for key, tensor in self.model.state_dict().items()}
            yield Reply(client=name, outcome="done", arrays=arrays, loss=sent.loss)


@pytest.mark.parametrize("aggregator", ["memory", "stride", "echo", "ufedavg", "fedstale"])
@pytest.mark.parametrize("norm", [False, True])
def test_a_live_run_is_train(tmp_path: Path, aggregator: str, norm: bool) -> None:
    task, plan = small_tasks.classes(norm=norm), world.plan(ROWS, fine_tune=2)
    wanted = training.train(
        plan,
        task,
        aggregator=aggregator,
        local_steps=5,
        batch_size=16,
        lr=0.1,
        seed=3,
        server="momentum",
        server_lr=0.5,
    )
    model = ModelMaker(task, seed=3, device=torch.device("cpu"))()
    initial = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    world.made(tmp_path, plan, aggregator=aggregator, seed=3, server="momentum", server_lr=0.5)
    done = carry_out(tmp_path, Trainers(task, model), initial)
    for name, tensor in wanted.model.items():
        assert done.arrays[name] == pytest.approx(tensor.numpy(), abs=1e-6), name
    assert done.emissions_kg == pytest.approx(wanted.emissions_kg, rel=1e-12)
    # `train` computes lengths with PyTorch, in single precision; the weights of stride and echo follow from them.
    assert [one.weights for one in done.history] == [pytest.approx(one.weights, rel=1e-6) for one in wanted.history]
    assert np.isfinite(done.history[-1].loss)
