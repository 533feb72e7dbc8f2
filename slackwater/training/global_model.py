"""The global model of a run: the server step (lines 9 to 15 of Algorithm 1), screening of updates, and its checkpoint."""

from __future__ import annotations

import logging
import math
import shutil
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.ledger.run import Level, Run
from slackwater.ledger.state_files import BadPartError, Part, PartFile
from slackwater.registry import did_you_mean
from slackwater.training.aggregators import Aggregate, Aggregator, FedAvg, Participation
from slackwater.training.vectors import (
    Vector,
    as_tensor,
    average_buffers,
    dtype_name,
    filled,
    is_finite,
    is_tensor,
    itemsize,
    memory,
    norm,
    numpy_dtype,
)

if TYPE_CHECKING:
    import torch

State = dict[str, Vector]


class ServerOptimiser:
    """Moves the global model. `model` and `update` are flat vectors, and are not changed."""

    kept: tuple[str, ...] = ()  # attributes that make up the state, each a vector of the model's length

    def __init__(self, lr: float = 1.0) -> None:
        self.lr = lr

    def step(self, model: Vector, update: Vector) -> Vector:
        """Return the new model, a new vector."""
        raise NotImplementedError

    def state(self) -> State:
        """Return the state that `step` depends on."""
        return {name: value for name in self.kept if (value := getattr(self, name)) is not None}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        for name in self.kept:
            setattr(self, name, state.get(name))


class Plain(ServerOptimiser):
    """theta <- theta - lr Delta; with lr = 1 lines 12 and 15 of Algorithm 1."""

    def step(self, model: Vector, update: Vector) -> Vector:
        """Return the new model."""
        return model.sub(update, alpha=self.lr) if is_tensor(model) else model - self.lr * update


class Momentum(ServerOptimiser):
    """v <- beta v + Delta, theta <- theta - lr v: FedAvgM, Hsu, Qi and Brown 2019."""

    kept = ("velocity",)

    def __init__(self, lr: float = 1.0, beta: float = 0.9) -> None:
        super().__init__(lr)
        self.beta = beta
        self.velocity: Vector | None = None

    def step(self, model: Vector, update: Vector) -> Vector:
        """Return the new model."""
        self.velocity = update * 1.0 if self.velocity is None else self.velocity * self.beta + update
        return model.sub(self.velocity, alpha=self.lr) if is_tensor(model) else model - self.lr * self.velocity


class Adam(ServerOptimiser):
    """FedAdam, Algorithm 2 of Reddi et al., ICLR 2021: no bias correction, `tau` bounds the step where v is small."""

    kept = ("first", "second")

    def __init__(self, lr: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3) -> None:
        super().__init__(lr)
        self.beta_1, self.beta_2, self.tau = beta_1, beta_2, tau
        self.first: Vector | None = None
        self.second: Vector | None = None

    def step(self, model: Vector, update: Vector) -> Vector:
        """Return the new model."""
        # Reddi et al. start with v = tau^2.
        first = filled(update, 0.0) if self.first is None else self.first
        second = filled(update, self.tau**2) if self.second is None else self.second
        if is_tensor(update):  # fused operations need fewer copies
            self.first = (first * self.beta_1).add_(update, alpha=1 - self.beta_1)
            self.second = (second * self.beta_2).addcmul_(update, update, value=1 - self.beta_2)
            return model.addcdiv(self.first, self.second.sqrt().add_(self.tau), value=-self.lr)
        self.first = first * self.beta_1 + (1 - self.beta_1) * update
        self.second = second * self.beta_2 + (1 - self.beta_2) * update * update
        return model - self.lr * self.first / (np.sqrt(self.second) + self.tau)


SERVERS: dict[str, type[ServerOptimiser]] = {"plain": Plain, "momentum": Momentum, "adam": Adam}


def make_server(name: str, lr: float | None = None) -> ServerOptimiser:
    """Return a server optimiser by name; `lr` None is its default: 1 for plain and momentum, 0.01 for adam."""
    if name not in SERVERS:
        hint = did_you_mean(name, SERVERS)
        raise ScenarioError(f"There is no server optimiser {name!r}.{hint} Known: {', '.join(SERVERS)}.")
    if lr is None:
        return SERVERS[name]()
    if not (lr > 0 and math.isfinite(lr)):
        raise ScenarioError(f"server_lr must be above 0, not {lr!r}.")
    return SERVERS[name](lr)


class IterateAverage:
    """Mean of the global models after the last rounds, after Polyak and Ruppert; for federated models IMA, 2023. For `train`.

    `last` is how many rounds, or the share of them if it is below 1; rounds of the window count too.
    """

    def __init__(self, last: float, rounds: int) -> None:
        whole = math.ceil(last * rounds) if last < 1 else int(last)
        if not last > 0 or (last >= 1 and whole != last):
            raise ScenarioError(
                f"averaging must be a number of rounds (1, 2, ..) or a share of them below 1, not {last!r}."
            )
        self.first = max(0, rounds - whole)  # number of the first round that counts
        self.count = 0
        self.total: Vector | None = None

    def add(self, number: int, model: Vector) -> None:
        """Add the model after a round."""
        if number < self.first:
            return
        # In double precision, so that a long average is as good as its models.
        precise = model if model.device.type == "mps" else model.double()
        self.total = precise.clone() if self.total is None else self.total + precise
        self.count += 1

    def mean(self, model: Vector) -> Vector:
        """Return the average; `model` if there is none yet."""
        return model if self.total is None else (self.total / self.count).to(model.dtype)

    def state(self) -> State:
        """Return the sum so far."""
        return {} if self.total is None else {"total": self.total, "count": np.array(self.count)}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.total = state.get("total")
        self.count = int(state["count"]) if "count" in state else 0


UNUSUAL = 5.0
"""Multiple of the usual length at which `slackwater train` warns about an update; honest updates reached 3.5."""
_RECENT = 10
_KNOWN, _TOGETHER = 2, 3  # fewest clients, in earlier rounds or in this one, to estimate the usual length


class Screening:
    """Compares the length of updates with the usual one: the median over clients of their longest recent update.

    The median of all recent updates would be too short after a client trained alone for some slots: the next client's
    updates would then look too long. Before two clients have a history, and with fewer than three updates, a client is
    compared with its own history; its first update with the model, the other updates of the round and the history of
    the other client, whichever is longest. A first update may be `max_norm_ratio` squared times as long, since honest
    first updates differ more.
    """

    def __init__(self, max_norm_ratio: float | None) -> None:
        self._ratio = max_norm_ratio
        self._recent: dict[int, deque[float]] = {}

    def too_long(self, norms: Mapping[int, float], model_norm: float | None = None) -> dict[int, float]:
        """Return client -> its update's multiple of the usual length, if too long; store the norms of the others.

        Without the length of the model, nothing is too long before two clients have a history.
        """
        long: dict[int, float] = {}
        for client, length in norms.items() if self._ratio is not None else ():
            usual, ratio = self._usual(client, norms, model_norm)
            if usual > 0 and length > ratio * usual:
                long[client] = length / usual
        for client in norms.keys() - long.keys():
            self._recent.setdefault(client, deque(maxlen=_RECENT)).append(norms[client])
        return long

    def to_dict(self) -> dict[str, list[float]]:
        """Return the state as JSON holds it."""
        return {str(client): list(recent) for client, recent in sorted(self._recent.items())}

    def restore(self, data: Mapping[str, Sequence[float]]) -> None:
        """Continue from a state."""
        self._recent = {int(client): deque(recent, maxlen=_RECENT) for client, recent in data.items()}

    def _usual(self, client: int, now: Mapping[int, float], model_norm: float | None) -> tuple[float, float]:
        """Return the length to compare a client's update with, and the largest multiple of it; 0 with too little data."""
        assert self._ratio is not None
        known = {each: max(recent) for each, recent in self._recent.items()}
        usual = 0.0
        if len(known) >= _KNOWN:
            usual = median(known.values())
        elif len(now) >= _TOGETHER:
            usual = median(now.values())
        elif model_norm is not None:
            usual = known.get(client, 0.0)
        if usual > 0 or model_norm is None:
            return usual, self._ratio
        others = [length for each, length in {**now, **known}.items() if each != client]
        return max(model_norm, *others, 0.0), self._ratio**2


class NormWarnings:
    """Warns once per run and client about a far too long update. Nothing is rejected: a simulation may study this case."""

    def __init__(self, names: Sequence[str], lr: float) -> None:
        self._names, self._lr = names, lr
        self._screening, self._named = Screening(UNUSUAL), set[int]()

    def of(self, norms: Mapping[int, float], slot: int) -> list[str]:
        """Return a warning for each client whose update is too long for the first time; norms [client]."""
        long = self._screening.too_long(norms)
        new = long.keys() - self._named
        self._named |= new
        return [
            f"The update of client {self._names[client]!r} in slot {slot} is {long[client]:.3g} times as long as usual. Its "
            f"local training or the model may have diverged. Try an lr below {self._lr:g}."
            for client in sorted(new)
        ]


log = logging.getLogger(__name__)
Groups = dict[str, State]  # tensors of a checkpoint, by group and name
NOTABLE_BYTES = 100 * 10**6  # a run warns before its first round if its state is this large
_COPIES = 5
"""Copies of the model that a round needs: the sent model, the sum of updates, the new model, a workspace."""


class Checkpoint:
    """The state of a run in its files, as groups of named tensors or arrays; a run without a folder has none.

    An array counts as changed if it is another object, so saved arrays must not be changed in place.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._saved: dict[str, tuple[weakref.ref[Any], int]] = {}
        """Part -> the vector that was written, and its version. Weak, so that replaced vectors are freed."""

    def save(self, slot: int | None, groups: Mapping[str, State], state: Any = None) -> None:
        """Write the tensors that are new or changed since the last call, one at a time.

        `slot` is the round's slot, None before the first round; `state` is stored as JSON.
        """
        if self._run.folder is None:
            return
        now = {f"{group}/{name}": tensor for group, held in groups.items() for name, tensor in held.items()}
        changed = {name: tensor for name, tensor in now.items() if not self._is_saved(name, tensor)}
        with self._run.transaction():
            self._run.state.save(slot, now, ((name, _part(tensor)) for name, tensor in changed.items()), state)
        self._saved = {
            name: (weakref.ref(tensor), _version(tensor)) if name in changed else self._saved[name]
            for name, tensor in now.items()
        }

    def load(self, device: torch.device | None = None) -> Groups:
        """Return all groups, each file checked; empty if nothing was saved. With a device, as tensors on it; else as arrays.

        Raises:
            SlackwaterError: The checkpoint is not that of the last round, or one of its files is damaged.
        """
        groups: Groups = {}
        for part in self._run.last_parts():
            group, _, key = part.name.partition("/")
            try:
                array = self._read(part)
            except BadPartError as error:
                raise self._run.unusable(str(error)) from None
            tensor = array if device is None else as_tensor(array).to(device)
            groups.setdefault(group, {})[key] = tensor
            self._saved[part.name] = (weakref.ref(tensor), _version(tensor))
        return groups

    def _read(self, part: PartFile) -> NDArray[Any]:
        dtype = numpy_dtype(part.dtype)
        if dtype is None or math.prod(part.shape) * dtype.itemsize != part.size:
            raise BadPartError(
                f"{part.name} has {part.size:,} bytes, which is no {part.dtype} array of shape {part.shape}"
            )
        array = np.empty(part.shape, dtype=dtype)
        self._run.state.read(part, memory(array))
        return array

    def _is_saved(self, name: str, tensor: Vector) -> bool:
        saved = self._saved.get(name)
        return saved is not None and saved[0]() is tensor and saved[1] == _version(tensor)


def _version(vector: Vector) -> int:
    """Return how often a tensor was changed in place; NumPy does not count it."""
    return int(vector._version) if is_tensor(vector) else 0


def _part(vector: Vector) -> Part:
    name = str(vector.dtype).removeprefix("torch.") if is_tensor(vector) else dtype_name(vector.dtype)
    return Part(dtype=name, shape=tuple(vector.shape), data=memory(vector))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Most memory and disk space that a run needs."""

    model_bytes: int
    models: float  # arrays of the model's size in the state; a half-precision update counts as half
    changing: float  # most of them that a round changes

    @property
    def disk_bytes(self) -> float:
        """Return the size of the files: the state, the parts that the last round replaced, and the next round's."""
        return self.model_bytes * (self.models + 2 * self.changing)

    @property
    def memory_bytes(self) -> float:
        """Return the memory: the state, the updates of a round before they replace others, and the model's copies."""
        return self.model_bytes * (self.models + self.changing + _COPIES)

    def tell(self, run: Run) -> None:
        """Log the notes, and add them to the run's events."""
        for level, sentence in self._sentences(run.folder):
            log.warning(sentence)
            run.log(sentence, level=level)

    def _sentences(self, folder: Path | None) -> list[tuple[Level, str]]:
        """Return notes before the first round: the space needed if it is large, and whether the disk has it."""
        disk = 0.0 if folder is None else self.disk_bytes
        if max(disk, self.memory_bytes) < NOTABLE_BYTES:
            return []
        on_disk = f"{_room(disk)} on disk and " if folder is not None else ""
        models = f"{self.models:,.0f} models of {_room(self.model_bytes)}"
        told: list[tuple[Level, str]] = [
            ("info", f"State: up to {on_disk}{_room(self.memory_bytes)} of memory ({models}).")
        ]
        if folder is not None and (free := shutil.disk_usage(folder).free) < disk:
            told.append((
                "warning",
                f"Only {_room(free)} are free on the disk of {folder}. If the disk is full, the run stops and can be resumed.",
            ))  # fmt: skip
        return told


def expected_size(
    model: Vector, *, clients: int, participants: int, aggregator: Aggregator, server: ServerOptimiser, averages: bool
) -> Size:
    """Return the space that a run with this model needs; `participants`: most clients in a slot before the window."""
    each, half = model.dtype.itemsize, getattr(aggregator, "memory_dtype", None)
    share = (itemsize(half) if half else each) / each if getattr(aggregator, "remembers", False) else 0.0
    always = 1 + len(server.kept) + averages * itemsize("float64") / each
    return Size(
        model_bytes=model.nbytes,
        models=always + clients * share,
        changing=always + participants * share,
    )


def _room(size: float) -> str:
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.5 or unit == "GB":
            break
    return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """The update of one client."""

    update: Vector  # Delta_c = theta - theta_c, flat
    buffers: Mapping[str, Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of one step."""

    weights: Mapping[int, float]  # client -> weight of its update, including updates that the aggregator had stored
    update_norm: float
    finite: bool  # whether the new model is finite


class GlobalModel:
    """Parameters as one vector, buffers, and the state of aggregator, server optimiser and average."""

    def __init__(
        self, theta: Vector, buffers: Mapping[str, Vector], *, clients: int, aggregator: Aggregator,
        server: ServerOptimiser, average: IterateAverage | None = None,
    ) -> None:  # fmt: skip
        self.theta, self.buffers, self.average, self._clients = theta, dict(buffers), average, clients
        self.aggregator, self.server = aggregator, server
        self._fedavg, self._plain = FedAvg(), Plain()

    def step(
        self, updates: Mapping[int, Update], *, slot: int, number: int, in_window: bool, pi: NDArray[np.float64],
        weights: Mapping[int, float] | None = None,
    ) -> Step:  # fmt: skip
        """Move the model by the updates of one round, in the order of clients.

        Args:
            updates: Client -> its update; at least one.
            slot: Slot of the round.
            number: Number of the round, counted from 0.
            in_window: Whether the round is in the fine-tuning window: then FedAvg and a plain step (lines 10 to 12).
            pi: [client], share of the slots before the window in which it trains.
            weights: Client -> weight, in place of the aggregator's.
        """
        rule = self._fedavg if in_window else self.aggregator if weights is None else _FixedWeights(weights)
        who = Participation(slot=slot, number=number, clients=self._clients, pi=pi)
        total = rule.aggregate({client: sent.update for client, sent in updates.items()}, who)
        if not isinstance(total, Aggregate):
            raise ScenarioError(
                f"The aggregator {type(rule).__name__} returns {type(total).__name__}; aggregate must return "
                "slackwater.training.Aggregate(update=.., weights=..)."
            )
        self.theta = (self._plain if in_window else self.server).step(self.theta, total.update)
        self.buffers = average_buffers([sent.buffers for sent in updates.values()])
        finite = is_finite(self.theta)
        if finite and self.average is not None:
            self.average.add(number, self.theta)
        return Step(weights=total.weights, update_norm=norm(total.update), finite=finite)

    def final(self) -> Vector:
        """Return the average of the last models with averaging, else the last model."""
        return self.theta if self.average is None else self.average.mean(self.theta)

    def size(self, participants: int) -> Size:
        """Return the space that the run needs, by the most clients in one slot before the window."""
        return expected_size(
            self.theta, clients=self._clients, participants=participants, aggregator=self.aggregator,
            server=self.server, averages=self.average is not None,
        )  # fmt: skip

    def tensors(self) -> Groups:
        """Return the state for a checkpoint."""
        return {
            "model": {"theta": self.theta}, "buffers": self.buffers, "aggregator": self.aggregator.state(),
            "server": self.server.state(), "average": {} if self.average is None else self.average.state(),
        }  # fmt: skip

    def restore(self, groups: Groups) -> None:
        """Continue from the state of a checkpoint."""
        self.theta, self.buffers = groups["model"]["theta"], groups.get("buffers", {})
        self.aggregator.restore(groups.get("aggregator", {}))
        self.server.restore(groups.get("server", {}))
        if self.average is not None:
            self.average.restore(groups.get("average", {}))


class _FixedWeights(FedAvg):
    """Weights set by the schedule source."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = weights

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        return {client: self._weights[client] for client in participants}
