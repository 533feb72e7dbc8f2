"""A grid whose nodes are in this process: the same app, without Ray, SuperLink or waiting.

All use of Flower's private parts is in this module.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from slackwater.errors import SlackwaterError
from slackwater.flower.records import NAME, PARTITION

Value = bool | int | float | str
_SUPERLINK = 1  # Flower's own number for the server's side
_RAISED = 2  # Flower's code for an app that raised


class InProcessGrid(Grid):
    """Calls the ClientApp directly, one client after another, in the order in which messages were pushed.

    Each node keeps its own context. Work is done when its reply is pulled.
    """

    works_when_pulled = True  # so replies are pulled one after another, in the caller's thread

    def __init__(
        self,
        client_app: ClientApp,
        nodes: Mapping[str, Mapping[str, Value]] | Iterable[str],
        *,
        run_config: Mapping[str, Value] | None = None,
    ) -> None:
        """Make a grid; `nodes` is name -> node config, like {"lyon": {"zone": "FR", "power-w": 300}}, or only names.

        The partition id is the place in this order unless the node config has one.
        """
        self._app = client_app
        self._run = _private("flwr.supercore.run", lambda found: found.Run.create_empty(1))
        self._pending: dict[str, Message] = {}
        self._contexts: dict[int, Context] = {}
        configs = nodes if isinstance(nodes, Mapping) else {name: {} for name in nodes}
        for number, (name, config) in enumerate(configs.items()):
            node = _SUPERLINK + 1 + number
            self._contexts[node] = Context(
                run_id=self._run.run_id, node_id=node, node_config={PARTITION: number, **config, NAME: name},
                state=RecordDict(), run_config=dict(run_config or {}),
            )  # fmt: skip
        self._take_identity()

    def _take_identity(self) -> None:
        """Set who this process is, which Flower's messages ask; a process of Flower's own sets it at its start."""
        identity = _private("flwr.supercore.task_identity", lambda found: found.TaskIdentity)
        identity.task_id, identity.run_id, identity.node_id = 1, self._run.run_id, _SUPERLINK

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """Return the run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message, as Flower's own deprecated method does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return all nodes; they never go offline."""
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
        """Let the next of these clients do its work, and return its reply; nothing where all have replied."""
        for message_id in message_ids:
            if message_id in self._pending:
                return [self._answer(self._pending.pop(message_id))]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return all replies; the time limit is for grids that wait."""
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
    """Copy the records, which a client may change and strategies send to all. Arrays are shared: they are bytes."""
    copies: dict[str, Any] = {name: ArrayRecord(dict(record)) for name, record in content.array_records.items()}
    copies |= {name: ConfigRecord(dict(record)) for name, record in content.config_records.items()}
    copies |= {name: MetricRecord(dict(record)) for name, record in content.metric_records.items()}
    return RecordDict(copies)


def _private(module: str, get: Callable[[Any], Any]) -> Any:
    """Return something from a private module of Flower; raise a sentence if it is no longer there."""
    try:
        return get(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError):
        raise SlackwaterError(
            f"Flower {metadata.version('flwr')} has moved or changed {module}, which the in-process grid needs. Use a version "
            "that is known to work (pip install 'flwr==1.41.*'), or Flower's own simulation (flwr run)."
        ) from None
