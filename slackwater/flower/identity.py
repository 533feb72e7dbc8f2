"""Who is behind a node id: a plan is keyed by names, and Flower's ids change.

With node authentication a node is registered under a name (`flwr supernode register .. --name lyon`), which Flower binds
to its key; a node that claims another name is refused. Without, a node states its name itself, by
`--node-config 'name="lyon" zone="FR" power-w=300'`, to a query that `slackwater.flower.register` answers. In Flower's
simulation nodes have numbers only, and are the plan's clients in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from slackwater import time_source
from slackwater.flower.records import NAME, OWN, PARTITION, PARTITIONS, POWER, QUERY, ZONE
from slackwater.live.transport import Site

log = logging.getLogger(__name__)
_ANSWER_S = 120.0  # how long an answer stays valid; a node that has not given one by then is asked again
_AGAIN_S = 600.0
"""When a node that was refused is asked again: an answer takes a process on its machine, so not at every slot."""
_HOW = (
    'Start it with --node-config \'name="lyon" zone="FR" power-w=300\' and call slackwater.flower.register(app) in its '
    "app, or register it under a name."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A node that has answered: who it is, or why it is refused and when it is asked again."""

    site: Site | None = None
    refusal: str = ""
    again_at: float = 0.0  # of a refusal, on the monotonic clock


class Identities:
    """Names of the nodes of a grid, learnt by asking and kept while they are there."""

    def __init__(
        self, grid: Grid, *, names: Sequence[str] = (), ask_registered: bool = True, patience_s: float = 30.0,
        poll_s: float = 0.5, sleep: Callable[[float], None] = time_source.sleep,
    ) -> None:  # fmt: skip
        self._grid, self._names, self._patience_s, self._poll_s, self._sleep = grid, names, patience_s, poll_s, sleep
        self._ask_registered = ask_registered
        self._known: dict[int, _Known] = {}
        self._asked: dict[str, tuple[int, float]] = {}
        """Query's message id -> node, and until when an answer is waited for."""
        self._told: set[str] = set()
        self.refused: dict[str, str] = {}
        """Name, or node id where there is none -> why it is not used, as of the last look."""

    def look(self, *, patiently: bool = False) -> dict[str, tuple[int, Site]]:
        """Return the nodes that are there now, by name; unknown ones are asked, and waited for up to the patience.

        A node with a registered name is waited for only `patiently`: its name is known, and its answer is read when it comes.
        """
        there = {int(node.node_id): str(node.name or "") for node in self._grid.get_nodes()}
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
        """Take the answers that are there; wait for nodes that are known by nothing else."""
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
            return _refused(f"Node {node} does not say who it is: {answer.error.reason or 'an error'}. {_HOW}")
        said: dict[str, Any] = dict(answer.content.config_records.get(OWN, {}))
        claimed = str(said.get(NAME, "")).strip()
        if registered and claimed and claimed != registered:
            return _refused(
                f"Node {node} is registered as {registered!r} but says it is {claimed!r}, so it is not used. Correct its "
                "--node-config, or the name it was registered under."
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
        """Return one node for each name; of a name that several have, none, unless one of them proved it."""
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
                f"{len(same)} nodes say they are {name!r} ({', '.join(str(node) for node, _ in same)}); none of them is "
                "used. Names must differ. If one was restarted just now, the old one is forgotten within a minute."
            )
        return found


def _refused(sentence: str) -> _Known:
    return _Known(refusal=sentence, again_at=time_source.monotonic() + _AGAIN_S)
