"""The sites of a plan behind Flower's grid, deployed, simulated or in process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import httpx
from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from slackwater import time_source
from slackwater.flower.identity import Identities
from slackwater.flower.pulling import replies
from slackwater.flower.records import to_arrays, to_content, to_reply
from slackwater.live.transport import Reply, Site, Work

log = logging.getLogger(__name__)
_LEAST_S = 1.0


class GridTransport:
    """Sends work to the nodes of a grid by the names of their clients, and gives each reply as it comes.

    Nothing is sent twice. Error replies carry the SuperLink's node id, so replies are matched by the message they answer.
    """

    def __init__(
        self, grid: Grid, *, names: Sequence[str] = (), ask_registered: bool = True, patience_s: float = 30.0,
        now: Callable[[], datetime] = time_source.now, sleep: Callable[[float], None] = time_source.sleep,
    ) -> None:  # fmt: skip
        """Reach the nodes of a grid; `names` are the plan's clients, for simulations whose nodes have only numbers.

        Nodes with a registered name are asked for their zone and power if `ask_registered`: that takes a process on each.
        """
        self._grid, self._now = grid, now
        self._identities = Identities(
            grid, names=names, ask_registered=ask_registered, patience_s=patience_s, sleep=sleep
        )
        self._nodes: dict[str, tuple[int, Site]] = {}

    def online(self, *, patiently: bool = False) -> Mapping[str, Site]:
        """Return the clients that can be reached now, by name; new nodes are asked who they are.

        `patiently` waits for every answer, also of those whose names are registered.
        """
        self._nodes = self._identities.look(patiently=patiently)
        return {name: site for name, (_, site) in self._nodes.items()}

    @property
    def refused(self) -> Mapping[str, str]:
        """Return name or node id -> why a node that is there is not used, as of the last look."""
        return self._identities.refused

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send everyone its work and yield each reply as it comes; a client without an answer by `until` is late."""
        # On the monotonic clock from here on: a clock that is stepped changes neither this slot nor who is late.
        deadline = time_source.monotonic() + (until - self._now()).total_seconds()
        waiting: dict[str, str] = {}
        for client, message in self.messages(work, until).items():
            message_id = None
            try:
                if message is not None:
                    message_id = next(iter(self._grid.push_messages([message])), None)
            except httpx.HTTPError as error:  # it is not sent again: it may have gone out
                log.warning("The SuperLink did not take a message (%s).", type(error).__name__)
            if message_id:
                waiting[message_id] = client
            else:
                why = "is not online" if message is None else "could not be sent its work: the SuperLink refused it"
                yield Reply(client=client, outcome="lost", error=f"{client!r} {why}.")
        for message in replies(self._grid, list(waiting), deadline):
            answered = waiting.pop(message.metadata.reply_to_message_id, None)
            if answered is not None:
                yield self.read(answered, message)
        for client in waiting.values():
            yield Reply(client=client, outcome="late", error=f"{client!r} had not answered by the end of its slot.")

    def messages(self, work: Mapping[str, Work], until: datetime) -> dict[str, Message | None]:
        """Return a message for each client, in the order of names; None for one without a node."""
        records: dict[int, ArrayRecord] = {}
        left_s = max((until - self._now()).total_seconds(), _LEAST_S)
        found: dict[str, Message | None] = {}
        for client in sorted(work):
            task = work[client]
            if client not in self._nodes:
                found[client] = None
                continue
            if id(task.arrays) not in records:  # one model for all: it goes to the SuperLink once
                records[id(task.arrays)] = to_arrays(task.arrays)
            stops_in_s = (task.ends_at - self._now()).total_seconds()
            found[client] = Message(
                to_content(task, records[id(task.arrays)], min(left_s, stops_in_s)),
                dst_node_id=self._nodes[client][0],
                message_type=MessageType.TRAIN,
                ttl=left_s,
                group_id=str(task.slot),
            )
        return found

    def read(self, client: str, message: Message) -> Reply:
        """Return what a message says of the work that a client was sent."""
        node, site = self._nodes[client]
        if not message.has_error() and message.metadata.src_node_id != node:
            return Reply(
                client=client,
                outcome="failed",
                error=f"The reply for {client!r} came from another node ({message.metadata.src_node_id}): it is not used.",
            )
        return to_reply(client, message, verified=site.verified)
