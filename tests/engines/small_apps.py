"""Small ClientApps and grids for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from slackwater.flower import InProcessGrid, measured, register
from slackwater.live.sites import Work

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(3, dtype=np.int64)}
SITES: dict[str, dict[str, Any]] = {
    "lyon": {"zone": "FR", "power-w": 300},
    "dublin": {"zone": "IE", "power-w": 250.0},
    "helsinki": {"zone": "FI"},
}


def adding_app() -> ClientApp:
    """Each client adds one more than its partition id."""
    app = register(ClientApp())

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        arrays = {name: value.numpy().copy() for name, value in msg.content["arrays"].items()}
        with measured(msg, context, energy=False) as meter:
            if msg.content["config"].get("fail") == context.node_config["name"]:
                raise ZeroDivisionError("the data is gone")
            arrays["w"] = arrays["w"] + 1 + int(context.node_config["partition-id"])
        return meter.reply(arrays, num_examples=10 + int(context.node_config["partition-id"]), loss=0.5)

    return app


def work(slot: int = 0, *, seconds: float = 60.0, config: Mapping[str, Any] | None = None, seed: int = 7) -> Work:
    return Work(
        slot=slot,
        number=slot,
        attempt=0,
        seed=seed,
        ends_at=datetime.now(UTC) + timedelta(seconds=seconds),
        arrays=MODEL,
        config=config or {},
    )


class TroubledGrid(InProcessGrid):
    """A grid on which nodes go, come under new ids, have registered names, and replies fail as the SuperLink's do."""

    def __init__(self, app: ClientApp, nodes: Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        super().__init__(app, nodes, **options)
        self.ids = {str(context.node_config["name"]): node for node, context in self._contexts.items()}
        self.registered: dict[int, str] = {}
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self.unavailable: set[int] = set()
        self.pushed: list[Message] = []

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=node, name=self.registered.get(node, ""))
            for node in self._contexts
            if node not in self.gone
        ]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list(messages)
        self.pushed += sent
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        answerable = [i for i in message_ids if self._pending.get(i) and self._node(i) not in self.silent]
        return super().pull_messages(answerable)

    def _node(self, message_id: str) -> int:
        return int(self._pending[message_id].metadata.dst_node_id)

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id not in self.unavailable:
            return super()._answer(message)
        reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink's error replies are
        return reply

    def restart(self, name: str, *, config: Mapping[str, Any] | None = None) -> int:
        """The same site under a new node id; the old one stays until it is in `gone`."""
        old = self.ids[name]
        self.ids[name] = new = max(self._contexts) + 1
        context = self._contexts[old]
        self._contexts[new] = Context(
            run_id=context.run_id,
            node_id=new,
            node_config={**context.node_config, **(config or {})},
            state=type(context.state)(),
            run_config=context.run_config,
        )
        return new
