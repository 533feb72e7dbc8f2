"""A Flower app from a `sw.Task`: the same object that `slackwater train` and `rehearse` use, at the sites."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from slackwater.engines.flower.app import RUN
from slackwater.engines.flower.client import measured, register
from slackwater.engines.flower.records import NAME, PARTITION, PARTITIONS
from slackwater.engines.flower.strategy import run
from slackwater.errors import ScenarioError
from slackwater.live.folder import is_live, load_settings
from slackwater.training.local import LocalWork, check_metric, evaluate, train_locally
from slackwater.training.task import ModelMaker, Task
from slackwater.training.users_code import users_code

MakeTask = Callable[..., Task]
_DEFAULTS = {"local-steps": 30, "batch-size": 128, "lr": 0.1, "weight-decay": 5e-4}
"""Local training, with the defaults of `train`; the app's run config replaces them."""


def client_app(make_task: MakeTask) -> ClientApp:
    """Return a ClientApp that trains a task on this node's data.

    Args:
        make_task: Returns the task. It gets those of `client` (this node's name) and `clients` (how many there are) that it
            takes. With `client`, it returns a task with the data of that client alone; without, with that of all.
    """
    app = register(ClientApp())

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Message, context: Context) -> Message:
        with measured(message, context) as meter:
            task = _made(make_task, context, str(context.node_config.get(NAME, "")))
            samples = task.clients[_row(task, context)]
            maker = ModelMaker(task, seed=0, device=torch.device("cpu"))
            model = maker()
            model.module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
            start, buffers = model.vector.clone(), model.copy_buffers()
            sent = train_locally(
                model, start, buffers, samples, task, _work(context.run_config), meter.seed or 0, lambda: meter.out_of_time
            )  # fmt: skip
        return meter.reply(model.state_dict(), num_examples=len(samples), loss=sent.loss)

    return app


def server_app(make_task: MakeTask) -> ServerApp:
    """Return a ServerApp that carries out the run with a task's model, test set and metric.

    Args:
        make_task: As for `client_app`; here `client` is "", since the server needs no training data.
    """
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        task = _made(make_task, context, "")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(context))
            module = task.model()
        judge = ModelMaker(task, seed=0, device=torch.device("cpu"), trial=False)()
        check_metric(judge, task)

        def score(model: ArrayRecord) -> dict[str, float]:
            judge.module.load_state_dict(model.to_torch_state_dict())
            found = evaluate(judge, task.test, task)
            return {task.label.name: found.value, "loss": found.loss, "samples": found.samples}

        score.metric = task.label  # type: ignore[attr-defined]
        run(grid, context, module.state_dict(), evaluate=score)

    return app


def _made(make_task: MakeTask, context: Context, client: str) -> Task:
    """Call the user's function with those of our arguments that it takes."""
    count = context.node_config.get(PARTITIONS) or context.run_config.get("clients")
    offered = {"client": client, "clients": count}
    takes = inspect.signature(make_task).parameters
    with users_code(f"{make_task.__name__} failed"):
        task = make_task(**{key: value for key, value in offered.items() if key in takes and value is not None})
    if not isinstance(task, Task):
        raise ScenarioError(f"{make_task.__name__} returns {type(task).__name__}, not a sw.Task.")
    return task


def _row(task: Task, context: Context) -> int:
    """Return which of the task's clients this node is; a task with one client is this node's own."""
    if len(task.clients) == 1:
        return 0
    number = context.node_config.get(PARTITION)
    if not isinstance(number, int) or not 0 <= number < len(task.clients):
        raise ScenarioError(
            f"The task {task.name!r} has {len(task.clients)} clients, but this node has {PARTITION} = {number!r}. Set it in the "
            "node config, or let make_task take `client` and return the data of that client."
        )
    return number


def _work(config: Mapping[str, Any]) -> LocalWork:
    told = {key: config.get(key, value) for key, value in _DEFAULTS.items()}
    return LocalWork(
        steps=int(told["local-steps"]), epochs=None, batch_size=int(told["batch-size"]), lr=float(told["lr"]),
        weight_decay=float(told["weight-decay"]),
    )  # fmt: skip


def _seed(context: Context) -> int:
    """Return the run's seed, from the folder that the run config names; 0 if it holds only a plan."""
    from pathlib import Path

    folder = Path(str(context.run_config.get(RUN, ""))).expanduser()
    return load_settings(folder).seed if folder.is_absolute() and is_live(folder) else 0
