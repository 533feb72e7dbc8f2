"""One round of a Flower strategy inside a plan: it configures and aggregates; the runner decides, charges and saves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from slackwater import time_source
from slackwater.engines.flower.grid import GridTransport, replies
from slackwater.engines.flower.records import as_arrays, from_arrays, to_arrays, with_slot
from slackwater.engines.flower.strategy_state import StrategyState, layers, sentence
from slackwater.engines.metering import numbers_in
from slackwater.errors import SlackwaterError
from slackwater.live.folder import LiveSettings
from slackwater.live.schedule_sources import Decision
from slackwater.live.sites import Arrays, Reply, Work
from slackwater.live.updates import LiveModel, MakeupWeights, UnusableUpdateError
from slackwater.training.global_model import Groups, Screening, Size, Step, Update
from slackwater.training.vectors import dtype_name, norm, numpy_dtype

log = logging.getLogger(__name__)
_LEAST_S = 1.0
_LOOKS, _LOOKED_S = 3, 3.0
"""Questions for the nodes in one round, and seconds between the first and the last, from which a strategy is waiting."""
_MINIMUMS = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
_NONE = "none"  # name of an empty part
_SAMPLED = "num_sampled_clients"  # of Flower's differential privacy: the noise is divided by it


class DueGrid(Grid):
    """Flower's grid with only the nodes that are due. A strategy looks at it and returns messages; it sends nothing itself."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self._due = grid, list(nodes)
        self._looks, self._first_look = 0, 0.0

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Return the run."""
        return self._grid.run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message, as the grid does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are due; raise if the strategy waits for more."""
        self._looks += 1
        if self._looks == 1:
            self._first_look = time_source.monotonic()
        elif self._looks > _LOOKS and time_source.monotonic() - self._first_look > _LOOKED_S:
            raise SlackwaterError(
                f"The strategy waits for more nodes than the {len(self._due)} that are due in this slot. Let it work with "
                "those that grid.get_node_ids() returns."
            )
        return list(self._due)

    def get_nodes(self) -> list[Any]:
        """Return what the grid knows about the nodes that are due."""
        due = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if int(node.node_id) in due]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Raise: what a strategy sends itself is not charged."""
        raise SlackwaterError(
            "The strategy sends messages itself, which are neither planned nor charged. Return them from configure_train."
        )

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, as the grid does."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Raise: what a strategy sends itself is not charged."""
        self.push_messages(messages)
        return []


class StrategyTransport(GridTransport):
    """Sends the messages that a strategy configures for the clients that are due, with the end of their slot in them."""

    for_strategy = True

    def __init__(self, grid: Grid, strategy: Strategy, train_config: Mapping[str, Any], **options: Any) -> None:
        """Reach the nodes of a grid; `options` are those of `GridTransport`."""
        super().__init__(grid, **options)
        self._strategy, self.train_config = strategy, dict(train_config)
        self._configured: dict[str, Message] = {}
        self._until: datetime | None = None

    def choose(self, clients: Sequence[str], number: int, arrays: Arrays) -> Collection[str]:
        """Let the strategy configure a round over the clients that are due; return those it has a message for."""
        names = {self._nodes[client][0]: client for client in clients if client in self._nodes}
        with fitted(self._strategy, len(names), server_round=number + 1):
            made = self._called(
                lambda: self._strategy.configure_train(
                    number + 1, to_arrays(arrays), ConfigRecord(dict(self.train_config)), DueGrid(self._grid, [*names])
                ),
                f"configure round {number + 1}",
            )
            messages = list(made)
        strange = [m.metadata.dst_node_id for m in messages if m.metadata.dst_node_id not in names]
        if strange:
            raise SlackwaterError(
                f"{_name(self._strategy)} has a message for node {strange[0]}, which is not due in this slot. Choose among "
                "the nodes of the grid that configure_train gets."
            )
        self._configured = {names[message.metadata.dst_node_id]: message for message in messages}
        return list(self._configured)

    def messages(self, work: Mapping[str, Work], until: datetime) -> dict[str, Message | None]:
        """Return the configured message of each client, with its slot; None for a client without one."""
        self._until = until
        left_s = max((until - self._now()).total_seconds(), _LEAST_S)
        found: dict[str, Message | None] = {}
        for client in sorted(work):
            task, made = work[client], self._configured.get(client)
            if made is None or client not in self._nodes:
                found[client] = None
                continue
            stops_in_s = (task.ends_at - self._now()).total_seconds()
            found[client] = Message(
                with_slot(made.content, task, min(left_s, stops_in_s), self._run_id),
                dst_node_id=self._nodes[client][0],
                message_type=made.metadata.message_type,
                ttl=left_s,
                group_id=str(task.slot),
            )
        return found

    def evaluate(
        self, clients: Sequence[str], number: int, slot: int, arrays: ArrayRecord, config: Mapping[str, Any]
    ) -> MetricRecord | None:
        """Let the strategy evaluate on clients that have just trained, until the end of their slot; return its metrics."""
        sent = [
            one
            for message in self.evaluation(clients, number, slot, arrays, config)
            for one in self._grid.push_messages([message])
            if one
        ]
        until = self._until or self._now()
        came = list(replies(self._grid, sent, time_source.monotonic() + (until - self._now()).total_seconds()))
        if not came:
            return None
        found: MetricRecord | None = self._called(
            lambda: self._strategy.aggregate_evaluate(number + 1, came),
            f"aggregate the evaluation of round {number + 1}",
        )
        return found

    def evaluation(
        self, clients: Sequence[str], number: int, slot: int, arrays: ArrayRecord, config: Mapping[str, Any]
    ) -> list[Message]:
        """Return the messages by which the strategy evaluates on clients that have just trained; none after their slot."""
        names = {self._nodes[client][0]: client for client in clients if client in self._nodes}
        until = self._until or self._now()
        left_s = (until - self._now()).total_seconds()
        if not names or left_s < _LEAST_S:
            return []
        with fitted(self._strategy, len(names)):
            made = self._called(
                lambda: list(
                    self._strategy.configure_evaluate(
                        number + 1, arrays, ConfigRecord(dict(config)), DueGrid(self._grid, [*names])
                    )
                ),
                f"configure the evaluation of round {number + 1}",
            )
        work = Work(slot=slot, number=number, attempt=0, seed=0, ends_at=until, arrays={})
        return [
            Message(
                with_slot(message.content, work, left_s, self._run_id), dst_node_id=message.metadata.dst_node_id,
                message_type=message.metadata.message_type, ttl=left_s, group_id=str(slot),
            )
            for message in made if message.metadata.dst_node_id in names
        ]  # fmt: skip

    def _called(self, call: Callable[[], Any], what: str) -> Any:
        return called(self._strategy, call, what)


class StrategyModel:
    """The global model of a run whose strategy combines the updates; see `slackwater.live.updates.LiveModel`.

    `own` is our model with its aggregator, for a strategy that leaves the combining to us.
    """

    def __init__(
        self, strategy: Strategy, state: StrategyState, initial: Arrays, clients: int, settings: LiveSettings,
        own: LiveModel | None,
    ) -> None:  # fmt: skip
        self._strategy, self._state, self._own = strategy, state, own
        self._arrays: dict[str, NDArray[Any]] = {name: np.asarray(value) for name, value in initial.items()}
        self.weights = MakeupWeights(clients, makeup=settings.makeup) if own is None else own.weights
        self._screening = Screening(settings.max_norm_ratio)
        self._max_ratio = settings.max_norm_ratio
        self._messages: dict[int, Message] = {}
        self._screened: dict[int, Update] = {}
        self._stepped: Step | None = None
        self.round = 0  # of the last model, counted from 1
        self._pending: tuple[Decision, int, Mapping[int, Update]] | None = None
        self._told: dict[str, list[str]] = {}
        self.metrics: dict[str, float] = {}
        self.record: MetricRecord | None = None  # what the strategy returned as metrics of the last round
        self.shared = self  # the runner asks `shared` for size and tensors

    @property
    def notes(self) -> Mapping[int, str]:
        """Return remarks on the updates of the round, by client."""
        return {} if self._own is None else self._own.notes

    def arrays(self) -> Arrays:
        """Return a copy of the model."""
        if self._own is not None:
            return self._own.arrays()
        return {name: value.copy() for name, value in self._arrays.items()}

    def screen(self, replies: dict[int, Reply]) -> tuple[dict[int, Any], dict[int, str]]:
        """Return the usable updates, in the order of clients, and why others are rejected."""
        self._messages = {client: reply.message for client, reply in replies.items() if reply.message is not None}
        if self._own is not None:
            self._screened, why = self._own.screen(replies)
            return dict(self._screened), why
        usable: dict[int, Any] = {}
        reasons: dict[int, str] = {}
        norms: dict[int, float] = {}
        for client in sorted(client for client, reply in replies.items() if reply.outcome == "done"):
            arrays, replies[client] = replies[client].arrays or {}, replace(replies[client], arrays=None)
            if fault := self._fault(arrays):
                reasons[client] = fault
                continue
            usable[client] = client
            if length := self._norm(arrays):
                norms[client] = length
        model_norm = _distance({name: np.zeros_like(value) for name, value in self._arrays.items()}, self._arrays)
        for client, times in self._screening.too_long(norms, model_norm).items():
            reasons[client] = f"its update is {times:.3g} times as long as usual, max_norm_ratio is {self._max_ratio}"
            del usable[client]
        return usable, reasons

    def step(self, decision: Decision, number: int, updates: Mapping[int, Any]) -> Step | None:
        """Let the strategy combine the updates of a round; return None if it made nothing of them."""
        self._pending, self.metrics, self.record = (decision, number, updates), {}, None
        try:
            with fitted(self._strategy, len(updates)):
                arrays, metrics = called(
                    self._strategy,
                    lambda: self._strategy.aggregate_train(number + 1, [self._messages[c] for c in updates]),
                    f"aggregate round {number + 1}",
                )
        finally:
            self._pending, self._messages, self._screened = None, {}, {}
        stepped = self._settled(decision, updates, arrays, metrics)
        self.round = number + 1 if stepped is not None else self.round
        return stepped

    def _settled(
        self, decision: Decision, updates: Mapping[int, Any], arrays: ArrayRecord | None, metrics: MetricRecord | None
    ) -> Step | None:
        """Take over the model and the metrics that the strategy returned."""
        self.record = metrics
        self.metrics = numbers_in(metrics) if metrics is not None else {}
        if arrays is None and metrics is None:
            return None
        self._warn()
        made = {name: np.asarray(value) for name, value in (from_arrays(arrays) if arrays else {}).items()}
        if fault := _not_finite(made):
            raise SlackwaterError(
                f"{_name(self._strategy)} made a model with {fault} in slot {decision.slot}. The model before is kept."
            )
        if self._own is not None:
            return self._taken_over(self._own, made)
        if not decision.in_window:
            self.weights.give(list(updates), decision.left, decision.before)
        before = self._arrays
        after = {**before, **made} if made and made.keys() < before.keys() else (made or dict(before))
        self._arrays = after
        return Step(weights={}, update_norm=_distance(before, after), finite=True)

    def _taken_over(self, own: LiveModel, made: Arrays) -> Step | None:
        """Return the step of our aggregator; a model that a subclass or a wrapper made of it replaces ours."""
        ours = own.arrays()
        stepped, self._stepped = self._stepped, None
        if not made:
            return stepped
        if stepped is None or not _same(made, ours):
            try:
                own.shared.theta, own.shared.buffers = own._codec.split(made)
            except UnusableUpdateError as error:
                raise SlackwaterError(f"{_name(self._strategy)} made a model that cannot be used: {error}.") from None
        return stepped or Step(weights={}, update_norm=_distance(ours, made), finite=True)

    def own_step(self, replies: Sequence[Message]) -> ArrayRecord:
        """Combine the updates of the round with our aggregator; `replies` may hold arrays that a wrapper has changed."""
        assert self._pending is not None
        assert self._own is not None
        decision, number, updates = self._pending
        clients = {id(message): client for client, message in self._messages.items()}
        sent: dict[int, Update] = {}
        for message in replies:
            client = clients.get(id(message), -1)
            if client not in updates or message.has_error():
                continue
            # Read again: a subclass may clip or replace the arrays of a reply before it calls ours.
            record = next(iter(message.content.array_records.values()))
            now = (self._own.shared.theta, self._own.shared.buffers)
            vector, buffers = self._own._codec.split(as_arrays(record), now)
            read = Update(update=self._own.shared.theta - vector, buffers=buffers)
            was, scaled = self._screened[client], updates[client]
            if np.array_equal(read.update, was.update):
                sent[client] = scaled
            else:  # changed on its way; the weight of its samples stays
                length = norm(was.update)
                scale = norm(scaled.update) / length if length else 1.0
                sent[client] = replace(read, update=read.update * scale)
        if not sent:
            raise SlackwaterError("No reply of the round reached Slackwater's aggregator.")
        self._stepped = self._own.step(decision, number, sent)
        return to_arrays(self._own.arrays())

    # -- the checkpoint

    def tensors(self) -> Groups:
        """Return the arrays of the checkpoint: the model, our aggregator's, and the strategy's."""
        arrays, _ = self._state.save()
        groups: Groups = {} if self._own is None else dict(self._own.shared.tensors())
        if self._own is None:
            groups["model"] = {name: _stored(name, value) for name, value in self._arrays.items()}
        # A checkpoint has at least one part: a strategy for statistics has no model.
        groups["strategy"] = {name: _stored(name, value) for name, value in {_NONE: np.zeros(1), **arrays}.items()}
        return groups

    def size(self, participants: int) -> Size:
        """Return the space that the run needs, without the strategy's own state."""
        if self._own is not None:
            return self._own.shared.size(participants)
        return Size(model_bytes=sum(value.nbytes for value in self._arrays.values()), models=1, changing=1)

    def state(self) -> dict[str, Any]:
        """Return the state without arrays, as JSON holds it."""
        held = {"weights": self.weights.to_dict(), "norms": self._screening.to_dict(), "names": list(self._arrays)}
        if self._own is not None:
            held = dict(self._own.state())
        return held | {"strategy": self._state.save()[1], "round": self.round}

    def restore(self, groups: Groups, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        if "strategy" not in state or ("names" in state) != (self._own is None):
            raise SlackwaterError(
                "The run was started with another kind of strategy. Resume with the app that started the run."
            )
        self._state.load(groups.get("strategy", {}), state["strategy"])
        self.round = int(state["round"])
        if self._own is not None:
            self._own.restore(groups, state)
            return
        self._arrays = {name: groups["model"][name] for name in state["names"]}
        self.weights.restore(state["weights"])
        self._screening.restore(state["norms"])

    # -- screening

    def _fault(self, arrays: Arrays) -> str:
        """Return why arrays cannot be used. Only what no strategy can use: the strategy may want any other form."""
        if fault := _not_finite(arrays):
            return fault
        for name, value in arrays.items():
            known = self._arrays.get(name)
            if known is not None and np.issubdtype(known.dtype, np.floating) and value.shape != known.shape:
                return f"{name} has shape {value.shape}, but the model has {known.shape}"
        return ""

    def _norm(self, arrays: Arrays) -> float:
        """Return the length of the update over the arrays of floats that the model has too; 0 without any."""
        return _distance(self._arrays, arrays)

    def _warn(self) -> None:
        unsaved = self._state.unsaved()
        if unsaved and unsaved != self._told:
            log.warning(sentence(unsaved))
        self._told = unsaved


@contextmanager
def fitted(strategy: Strategy, count: int, server_round: int | None = None) -> Iterator[None]:
    """Fit a strategy to the clients of a round: its least numbers of nodes, and the divisor of its privacy noise.

    The plan chooses the clients, so a strategy that wants more would wait for ever. Flower's differential privacy
    divides its noise by the number of clients, which differs from slot to slot.
    """
    before: list[tuple[Strategy, str, Any]] = []
    for layer in layers(strategy):
        for name in _MINIMUMS:
            value = getattr(layer, name, None)
            if isinstance(value, int) and value > count:
                before.append((layer, name, value))
                setattr(layer, name, count)
        if hasattr(layer, _SAMPLED) and count:
            setattr(layer, _SAMPLED, count)
        if server_round is not None and isinstance(pending := getattr(layer, "_pending_events", None), dict):
            pending.pop(server_round, None)  # of a round that was configured but did not start
    try:
        yield
    finally:
        for layer, name, value in before:
            setattr(layer, name, value)


def called(strategy: Strategy, call: Callable[[], Any], what: str) -> Any:
    """Call a strategy; its failure becomes a sentence that names it."""
    try:
        return call()
    except SlackwaterError:
        raise
    except Exception as error:
        raise SlackwaterError(
            f"{_name(strategy)} could not {what}: {type(error).__name__}: {str(error).rstrip('.')}. Everything before is "
            "saved; correct it, and resume."
        ) from error


def _name(strategy: Strategy) -> str:
    inner = [type(one).__name__ for one in layers(strategy)]
    return inner[1] if len(inner) > 1 else inner[0]


def _not_finite(arrays: Arrays) -> str:
    for name, value in arrays.items():
        if np.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
            return f"NaN or infinite values in {name}"
    return ""


def _distance(one: Arrays, other: Arrays) -> float:
    """Return the length of the difference over the arrays of floats that both have in the same shape."""
    both = [
        float(np.linalg.norm(np.asarray(other[name], dtype=np.float64) - np.asarray(value, dtype=np.float64)))
        for name, value in one.items()
        if name in other and np.issubdtype(value.dtype, np.floating) and other[name].shape == value.shape
    ]
    return math.hypot(*both) if both else 0.0


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


def _stored(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """Return a copy for the checkpoint, which takes another object for a change."""
    if numpy_dtype(dtype_name(value.dtype)) != value.dtype:
        raise SlackwaterError(f"A checkpoint cannot hold {name}: its type is {value.dtype}.")
    return np.array(value, order="C")
