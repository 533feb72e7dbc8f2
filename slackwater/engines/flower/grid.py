"""The sites of a plan on Flower's grid: identity, replies until a deadline, and a grid in this process."""

from __future__ import annotations

import importlib
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from typing import Any

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from slackwater import time_source
from slackwater.engines.flower.records import (
    NAME,
    OWN,
    PARTITION,
    PARTITIONS,
    POWER,
    QUERY,
    ZONE,
    slot_config,
    to_arrays,
    to_content,
    to_reply,
)
from slackwater.errors import SlackwaterError
from slackwater.live.sites import Reply, Site, Work

log = logging.getLogger(__name__)
_ANSWER_S = 120.0  # how long to wait for an answer before asking a node again
_AGAIN_S = 600.0
"""Pause before a rejected node is asked again; each answer starts a process on its machine."""
_HOW = (
    'Start it with --node-config \'name="lyon" zone="FR" power-w=300\' and call slackwater.flower.register(app) in its '
    "app, or register the node under a name."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A node that has answered: its identity, or why it is rejected and when it is asked again."""

    site: Site | None = None
    refusal: str = ""
    again_at: float = 0.0  # if rejected, on the monotonic clock


class Identities:
    """Names of the nodes of a grid, asked for once and kept while they are online."""

    def __init__(
        self, grid: Grid, *, names: Sequence[str] = (), ask_registered: bool = True, patience_s: float = 30.0,
        poll_s: float = 0.5, sleep: Callable[[float], None] = time_source.sleep,
    ) -> None:  # fmt: skip
        self._grid, self._names, self._patience_s, self._poll_s, self._sleep = grid, names, patience_s, poll_s, sleep
        self._ask_registered = ask_registered
        self._known: dict[int, _Known] = {}
        self._asked: dict[str, tuple[int, float]] = {}
        """Query's message id -> node, and the time limit for its answer."""
        self._told: set[str] = set()
        self.refused: dict[str, str] = {}
        """Name, or node id without a name -> why it is not used, as of the last check."""

    def look(self, *, patiently: bool = False) -> dict[str, tuple[int, Site]]:
        """Return the nodes that are online, by name; ask unknown ones, and wait for their answers up to the time limit.

        A node with a registered name is waited for only `patiently`: its name is known, and its answer is read later.
        """
        there = named_nodes(self._grid)
        now = time_source.monotonic()
        self._known = {
            node: known for node, known in self._known.items() if node in there and (known.site or known.again_at > now)
        }
        self._asked = {
            message: (node, until) for message, (node, until) in self._asked.items() if node in there and until > now
        }
        asked = {node for node, _ in self._asked.values()}
        new = [node for node in sorted(there) if node not in self._known and node not in asked]
        self._ask(node for node in new if self._ask_registered or not there[node])
        self._listen(there, patiently)
        for node, name in there.items():
            if name and node not in self._known:
                self._known[node] = _Known(site=Site(name=name, verified=True))
        self.refused = {there[node] or str(node): known.refusal for node, known in self._known.items() if known.refusal}
        found = self._by_name()
        for sentence in self.refused.values():
            if sentence not in self._told:  # once, not at every slot
                self._told.add(sentence)
                log.warning(sentence)
        return found

    def _ask(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            message = Message(RecordDict(), dst_node_id=node, message_type=QUERY, ttl=_ANSWER_S)
            for message_id in self._grid.push_messages([message]):
                if message_id:
                    self._asked[message_id] = (node, time_source.monotonic() + _ANSWER_S)

    def _listen(self, there: Mapping[int, str], patiently: bool) -> None:
        """Read the answers that have arrived; wait for nodes without a known name."""
        until = time_source.monotonic() + self._patience_s
        while self._asked:
            answers = list(self._grid.pull_messages(list(self._asked)))
            for answer in answers:
                node, _ = self._asked.pop(answer.metadata.reply_to_message_id, (None, 0.0))
                if node is not None and node in there:
                    self._known[node] = self._understood(node, there[node], answer)
            open_questions = [node for node, _ in self._asked.values() if patiently or not there[node]]
            if not open_questions or time_source.monotonic() >= until:
                return
            if not answers:
                self._sleep(self._poll_s)

    def _understood(self, node: int, registered: str, answer: Message) -> _Known:
        if answer.has_error():
            if registered:  # an app without our helper: the name is enough
                return _Known(site=Site(name=registered, verified=True))
            return _refused(f"Node {node} did not report its name: {answer.error.reason or 'an error'}. {_HOW}")
        said: dict[str, Any] = dict(answer.content.config_records.get(OWN, {}))
        claimed = str(said.get(NAME, "")).strip()
        if registered and claimed and claimed != registered:
            return _refused(
                f"Node {node} is registered as {registered!r} but reports the name {claimed!r}, so it is not used. Correct its "
                "--node-config, or its registered name."
            )
        name = registered or claimed or self._simulated(said)
        if not name:
            return _refused(f"Node {node} has no name. {_HOW}")
        zone, power = said.get(ZONE), said.get(POWER)
        site = Site(
            name=name,
            zone=zone if isinstance(zone, str) and zone else None,
            power_w=float(power) if isinstance(power, int | float) and power > 0 else None,
            verified=bool(registered),
        )
        return _Known(site=site)

    def _simulated(self, said: Mapping[str, Any]) -> str:
        number = said.get(PARTITION)
        if PARTITIONS in said and isinstance(number, int) and 0 <= number < len(self._names):
            return self._names[number]
        return ""

    def _by_name(self) -> dict[str, tuple[int, Site]]:
        """Return one node for each name; of several nodes with one name, only a verified one."""
        nodes: dict[str, list[tuple[int, Site]]] = {}
        for node, known in self._known.items():
            if known.site is not None:
                nodes.setdefault(known.site.name, []).append((node, known.site))
        found: dict[str, tuple[int, Site]] = {}
        for name, same in nodes.items():
            trusted = [each for each in same if each[1].verified] or same
            if len(trusted) == 1:
                found[name] = trusted[0]
                continue
            self.refused[name] = (
                f"{len(same)} nodes have the name {name!r} ({', '.join(str(node) for node, _ in same)}); none of them is used. "
                "Give them different names. After a restart, the old node disappears within a minute."
            )
        return found


def named_nodes(grid: Grid) -> dict[int, str]:
    """Return the nodes that are online, with their registered names; empty names where Flower has none."""
    if not hasattr(grid, "get_nodes"):
        return {int(node): "" for node in grid.get_node_ids()}
    return {int(node.node_id): str(getattr(node, "name", "") or "") for node in grid.get_nodes()}


def _refused(sentence: str) -> _Known:
    return _Known(refusal=sentence, again_at=time_source.monotonic() + _AGAIN_S)


_POLL_S = (0.2, 3.0)  # polling interval for replies: first and longest
_THREADS = 16  # with more clients, a stuck reply delays the few that share its thread


def replies(grid: Grid, message_ids: Sequence[str], deadline: float) -> Iterator[Message]:
    """Yield the replies to these messages as they arrive, until all have arrived or the deadline (monotonic clock)."""
    if getattr(grid, "works_when_pulled", False):
        yield from _pulled(grid, message_ids, deadline, threading.Event())
        return
    stop = threading.Event()
    came: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    lots = [list(message_ids[first::_THREADS]) for first in range(min(_THREADS, len(message_ids)))]
    for lot in lots:
        threading.Thread(target=_fill, args=(came, grid, lot, deadline, stop), daemon=True).start()
    working = len(lots)
    try:
        while working:
            try:
                message = came.get(timeout=max(0.0, deadline - time_source.monotonic()))
            except queue.Empty:
                return
            if message is None:
                working -= 1
            else:
                yield message
    finally:
        stop.set()


def _fill(
    came: queue.SimpleQueue[Message | None], grid: Grid, lot: Sequence[str], deadline: float, stop: threading.Event
) -> None:
    try:
        for message in _pulled(grid, lot, deadline, stop):
            came.put(message)
    except Exception:
        log.exception("Replies could not be read; clients without a reply count as late.")
    finally:
        came.put(None)


def _pulled(grid: Grid, message_ids: Sequence[str], deadline: float, stop: threading.Event) -> Iterator[Message]:
    waiting = set(message_ids)
    pause, longest = _POLL_S
    while waiting and not stop.is_set():
        came: list[Message] = []
        try:
            came = list(grid.pull_messages([one for one in message_ids if one in waiting]))
        except httpx.HTTPError as error:  # not retried by Flower itself, such as while a SuperLink starts
            log.warning("The SuperLink did not return the replies (%s); retrying.", type(error).__name__)
        for message in came:
            waiting.discard(message.metadata.reply_to_message_id)
            yield message
        left = deadline - time_source.monotonic()
        if left <= 0:
            return
        if came:
            pause = _POLL_S[0]
        elif waiting:
            time_source.current().wait(stop, min(pause, left))
            pause = min(pause * 1.5, longest)


_LEAST_S = 1.0


class GridTransport:
    """Sends work to the nodes of a grid by client name, and yields each reply as it arrives.

    Nothing is sent twice. Error replies carry the SuperLink's node id, so replies are matched by the message they answer.
    """

    for_strategy = False  # whether replies keep their messages, for a strategy of Flower

    def __init__(
        self, grid: Grid, *, names: Sequence[str] = (), ask_registered: bool = True, patience_s: float = 30.0,
        now: Callable[[], datetime] = time_source.now, sleep: Callable[[float], None] = time_source.sleep,
        config: Mapping[str, Any] | None = None, run: str = "",
    ) -> None:  # fmt: skip
        """Reach the nodes of a grid; `names` are the plan's clients, for simulations whose nodes have only numbers.

        With `ask_registered`, nodes with a registered name are asked for zone and power too, which starts a process on each.
        `config` is sent with all work, and `run` is the run's id, under which a client may keep its state.
        """
        self._grid, self._now, self._config, self._run_id = grid, now, dict(config or {}), run
        self._identities = Identities(
            grid, names=names, ask_registered=ask_registered, patience_s=patience_s, sleep=sleep
        )
        self._nodes: dict[str, tuple[int, Site]] = {}

    def online(self, *, patiently: bool = False) -> Mapping[str, Site]:
        """Return the clients that are online, by name; new nodes are asked for their identity.

        `patiently` waits for every answer, including those of registered nodes.
        """
        self._nodes = self._identities.look(patiently=patiently)
        return {name: site for name, (_, site) in self._nodes.items()}

    @property
    def refused(self) -> Mapping[str, str]:
        """Return name or node id -> why an online node is not used, as of the last check."""
        return self._identities.refused

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send each client its work and yield each reply as it arrives; a client without a reply by `until` is late."""
        # From here on the monotonic clock: setting the wall clock must not change the deadline.
        deadline = time_source.monotonic() + (until - self._now()).total_seconds()
        waiting: dict[str, str] = {}
        for client, message in self.messages(work, until).items():
            message_id = None
            try:
                if message is not None:
                    message_id = next(iter(self._grid.push_messages([message])), None)
            except httpx.HTTPError as error:  # not sent again, since it may have been sent
                log.warning("The SuperLink did not accept a message (%s).", type(error).__name__)
            if message_id:
                waiting[message_id] = client
            else:
                why = "is not online" if message is None else "did not get its work: the SuperLink rejected the message"
                yield Reply(client=client, outcome="lost", error=f"{client!r} {why}.")
        for message in replies(self._grid, list(waiting), deadline):
            answered = waiting.pop(message.metadata.reply_to_message_id, None)
            if answered is not None:
                yield self.read(answered, message)
        for client in waiting.values():
            yield Reply(client=client, outcome="late", error=f"{client!r} did not reply by the end of its slot.")

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
            if id(task.arrays) not in records:  # the same model for all is sent to the SuperLink once
                records[id(task.arrays)] = to_arrays(task.arrays)
            stops_in_s = (task.ends_at - self._now()).total_seconds()
            task = replace(task, config={**self._config, **task.config})
            found[client] = Message(
                to_content(task, records[id(task.arrays)], min(left_s, stops_in_s), self._run_id),
                dst_node_id=self._nodes[client][0],
                message_type=MessageType.TRAIN,
                ttl=left_s,
                group_id=str(task.slot),
            )
        return found

    def read(self, client: str, message: Message) -> Reply:
        """Return the reply in a message."""
        node, site = self._nodes[client]
        if not message.has_error() and message.metadata.src_node_id != node:
            return Reply(
                client=client,
                outcome="failed",
                error=f"The reply for {client!r} came from another node ({message.metadata.src_node_id}), so it is not used.",
            )
        return to_reply(client, message, verified=site.verified, for_strategy=self.for_strategy)


UNPLANNED = (
    "The ServerApp sends work to clients without Slackwater, so it would be neither planned nor charged. Wrap its strategy: "
    "CarbonAware(strategy, context=context).start(..), or call slackwater.flower.run. This shows the lines: slackwater "
    "flower adopt APP"
)
Value = bool | int | float | str
_SUPERLINK = 1  # Flower's node id of the server
_RAISED = 2  # Flower's code for an error in an app
_IDENTITY = "flwr.supercore.task_identity"  # private module of Flower


class InProcessGrid(Grid):
    """Calls the ClientApp directly, one client after another, in the order in which messages were pushed.

    Each node keeps its own context. Work is done when its reply is pulled.
    """

    works_when_pulled = True  # so pull replies one by one, in the caller's thread

    def __init__(
        self,
        client_app: ClientApp,
        nodes: Mapping[str, Mapping[str, Value]] | Iterable[str],
        *,
        run_config: Mapping[str, Value] | None = None,
        only_planned: bool = False,
    ) -> None:
        """Make a grid; `nodes` is name -> node config, like {"lyon": {"zone": "FR", "power-w": 300}}, or only names.

        The default partition id is the position in this order, and num-partitions the number of nodes, as in Flower's
        simulation. `only_planned` refuses work that no plan has charged.
        """
        self._app, self._only_planned = client_app, only_planned
        self._run = _private("flwr.supercore.run", lambda found: found.Run.create_empty(1))
        self._pending: dict[str, Message] = {}
        self._contexts: dict[int, Context] = {}
        configs = nodes if isinstance(nodes, Mapping) else {name: {} for name in nodes}
        for number, (name, config) in enumerate(configs.items()):
            node = _SUPERLINK + 1 + number
            self._contexts[node] = Context(
                run_id=self._run.run_id, node_id=node, node_config={PARTITION: number, PARTITIONS: len(configs), **config, NAME: name},
                state=RecordDict(), run_config=dict(run_config or {}),
            )  # fmt: skip
        self._take_identity()

    def _take_identity(self) -> None:
        """Set the identity of this process, which Flower's messages need; Flower's own processes set it at start."""
        if _version() < (1, 38):  # the grid sets it in every message
            return
        identity = _private(_IDENTITY, lambda found: found.TaskIdentity)
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
        """Keep messages until their replies are pulled."""
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self._contexts:
                raise SlackwaterError(f"There is no node {message.metadata.dst_node_id} in this grid.")
            if self._only_planned and message.metadata.message_type != QUERY and not slot_config(message):
                raise SlackwaterError(UNPLANNED)
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            if not message.metadata.src_node_id:
                message.metadata.__dict__ |= {"_run_id": self._run.run_id, "_src_node_id": _SUPERLINK}
            self._pending[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Let the next of these clients work, and return its reply; empty if all have replied."""
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
        except Exception as error:  # in Flower, a client's failure is a reply
            reply = Message(Error(code=_RAISED, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        finally:
            self._take_identity()
        reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        return reply


def _copied(content: RecordDict) -> RecordDict:
    """Copy the records, since a client may change them and strategies send the same to all. Arrays (bytes) are shared."""
    copies: dict[str, Any] = {name: ArrayRecord(dict(record)) for name, record in content.array_records.items()}
    copies |= {name: ConfigRecord(dict(record)) for name, record in content.config_records.items()}
    copies |= {name: MetricRecord(dict(record)) for name, record in content.metric_records.items()}
    return RecordDict(copies)


def _version() -> tuple[int, ...]:
    """Return the version of Flower, as far as it is numbers."""
    return tuple(int(part) for part in metadata.version("flwr").split(".")[:2] if part.isdecimal())


def _private(module: str, get: Callable[[Any], Any]) -> Any:
    """Return an object from a private module of Flower; raise a clear error if it is gone."""
    try:
        return get(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError):
        raise SlackwaterError(
            f"Flower {metadata.version('flwr')} has moved or changed {module}, which the in-process grid needs. Use a tested "
            "version (pip install 'flwr==1.42.*'), or Flower's own simulation (flwr run)."
        ) from None
