"""Sites that train a task in this process, without any federated engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from slackwater.errors import ScenarioError
from slackwater.live.folder import PLAN, LiveResult, load_settings
from slackwater.live.runner import Evaluate, carry_out
from slackwater.live.sites import Arrays, Reply, Site, Work
from slackwater.planning.plan import Plan
from slackwater.training import tasks
from slackwater.training.local import LocalWork, check_metric, evaluate, train_locally
from slackwater.training.task import FlatModel, ModelMaker, Task

LOCAL_WORK = {"steps": 30, "epochs": None, "batch_size": 128, "lr": 0.1, "weight_decay": 5e-4}
"""Local training of a round, with the defaults of `train`."""


class TaskSites:
    """The clients of a plan, each with its part of a task; always online, and trained one after another."""

    def __init__(self, task: Task, names: Sequence[str], model: FlatModel, work: LocalWork) -> None:
        self._task, self._names, self._model, self._work = task, list(names), model, work

    def online(self) -> Mapping[str, Site]:
        """Return all clients."""
        return {name: Site(name=name) for name in self._names}

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Train each client from the model that was sent, as `train` does."""
        for name, one in work.items():
            self._load(one.arrays)
            start, buffers = self._model.vector.clone(), self._model.copy_buffers()
            samples = self._task.clients[self._names.index(name)]
            local = replace(self._work, share=float(one.config.get("work", 1.0)))
            sent = train_locally(self._model, start, buffers, samples, self._task, local, one.seed)
            arrays = {key: tensor.numpy().copy() for key, tensor in self._model.state_dict().items()}
            yield Reply(client=name, outcome="done", arrays=arrays, loss=sent.loss, samples=len(samples))

    def evaluate(self, arrays: Arrays) -> dict[str, float]:
        """Return the task's metric and the loss on the global test set."""
        self._load(arrays)
        score = evaluate(self._model, self._task.test, self._task)
        return {self._task.label.name: score.value, "loss": score.loss, "samples": score.samples}

    def evaluation(self) -> Evaluate:
        """Return `evaluate` with the metric's direction and unit, as the runner reads them."""

        def evaluate(arrays: Arrays) -> dict[str, float]:
            return self.evaluate(arrays)

        evaluate.metric = self._task.label  # type: ignore[attr-defined]
        return evaluate

    def _load(self, arrays: Arrays) -> None:
        self._model.module.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in arrays.items()})


def carry_out_task(folder: str | Path, task: Task | None = None) -> LiveResult:
    """Start or resume the run prepared in a folder.

    Args:
        folder: The run folder.
        task: What to train. Default: the task that the run's settings name.
    """
    where = Path(folder)
    settings = load_settings(where)
    named: Mapping[str, Any] = settings.engine["task"]
    names = [str(name) for name in Plan.load(where / PLAN).problem.fleet.names]
    if task is None:
        task = tasks.make_for(named["name"], names, **named["options"])
    if len(task.clients) != len(names):
        raise ScenarioError(
            f"The plan has {len(names)} clients, but the task {task.name!r} has data for {len(task.clients)}. Make the task "
            f"with clients={len(names)}."
        )
    model = ModelMaker(task, seed=settings.seed, device=torch.device("cpu"))()
    check_metric(model, task)
    sites = TaskSites(task, names, model, LocalWork(**LOCAL_WORK | named.get("work", {})))
    initial = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return carry_out(where, sites, initial, evaluate=sites.evaluation())
