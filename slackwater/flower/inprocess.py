"""A grid whose nodes are in this process: the same app, without Ray, SuperLink or waiting.

Everything that reaches into Flower's private parts for it is in this module.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from slackwater.errors import SlackwaterError
from slackwater.flower.records import NAME, PARTITION

Value = bool | int | float | str
_SUPERLINK = 1
"""Flower's own number for the server's side."""
_RAISED = 2
"""Flower's code for an app that raised."""


class InProcessGrid(Grid):
    """Calls the ClientApp directly, one client after another, in the order in which messages were pushed.

    Each node keeps a context of its own, as it would have on its machine. Work is done when its reply is pulled.
    """

    works_when_pulled = True
    """So replies are pulled one after another, in the caller's thread."""

    def __init__(
        self,
        client_app: ClientApp,
        nodes: Mapping[str, Mapping[str, Value]] | Iterable[str],
        *,
        run_config: Mapping[str, Value] | None = None,
    ) -> None:
        """`nodes`: name -> its node config, like {"lyon": {"zone": "FR", "power-w": 300}}; or only names.

        The partition id is the place in this order unless the node config has one.
        """
        self._app = client_app
        self._run = _run(run_id=1)
        self._pending: dict[str, Message] = {}
        self._contexts: dict[int, Context] = {}
        configs = nodes if isinstance(nodes, Mapping) else {name: {} for name in nodes}
        for number, (name, config) in enumerate(configs.items()):
            node = _SUPERLINK + 1 + number
            self._contexts[node] = Context(
                run_id=self._run.run_id,
                node_id=node,
                node_config={PARTITION: number, **config, NAME: name},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
        self._take_identity()

    def _take_identity(self) -> None:
        """Flower's messages ask the process who it is; in a process of Flower's own that is set at the start."""
        identity = _task_identity()
        identity.task_id, identity.run_id, identity.node_id = 1, self._run.run_id, _SUPERLINK

    def set_run(self, run: Any) -> None:
        """Operate in this run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As Flower's own, which is deprecated."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes; they never go offline."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until their replies are asked for."""
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self._contexts:
                raise SlackwaterError(f"There is no node {message.metadata.dst_node_id} in this grid.")
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the next of these clients do its work, and give its reply; nothing where all have replied."""
        for message_id in message_ids:
            if message_id in self._pending:
                return [self._answer(self._pending.pop(message_id))]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies; the time limit is for grids that wait."""
        return [reply for message_id in self.push_messages(messages) for reply in self.pull_messages([message_id])]

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        message.content = _copied(message.content)
        try:
            reply = self._app(message, context)
        except Exception as error:  # a client's failure is a reply, as everywhere in Flower
            reply = Message(Error(code=_RAISED, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        finally:
            self._take_identity()
        reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        return reply


def _copied(content: RecordDict) -> RecordDict:
    """A client may change what it was sent; strategies send the same records to all. Arrays are shared: they are bytes."""
    copies: dict[str, Any] = {name: ArrayRecord(dict(record)) for name, record in content.array_records.items()}
    copies |= {name: ConfigRecord(dict(record)) for name, record in content.config_records.items()}
    copies |= {name: MetricRecord(dict(record)) for name, record in content.metric_records.items()}
    return RecordDict(copies)


def _task_identity() -> Any:
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        raise _moved("flwr.supercore.task_identity") from None
    return TaskIdentity


def _run(run_id: int) -> Any:
    try:
        from flwr.supercore.run import Run

        return Run.create_empty(run_id)
    except (ImportError, AttributeError, TypeError):
        raise _moved("flwr.supercore.run") from None


def _moved(part: str) -> SlackwaterError:
    return SlackwaterError(
        f"Flower {metadata.version('flwr')} has moved or changed {part}, which the in-process grid needs. Use a version that "
        "is known to work (pip install 'flwr==1.41.*'), or Flower's own simulation (flwr run)."
    )
