"""Aggregators: rules that combine the clients' updates into one.

Updates are the paper's Delta_c = theta - theta_c, as flat vectors: tensors in `train`, NumPy arrays in live runs. The
model moves by theta <- theta - aggregate. The rules act before the fine-tuning window; inside it the loop uses plain
FedAvg. A client that never trains before the window (pi_c = 0) adds nothing, and K stays the number of all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.planning.plan import ECHO_GAMMA, ECHO_MOST, MEMORY_DTYPES
from slackwater.registry import Registry
from slackwater.training.vectors import Vector, as_tensor, dot, half, is_tensor, norm, weighted_sum

State = dict[str, Vector]
ECHO_WHOLE = 0.4  # cosine of a client's successive updates from which a step gets its full length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Participation:
    """What a rule knows about the slot."""

    slot: int
    number: int  # 0, 1, .. over the slots with participants; empty slots do not count
    clients: int  # K, all clients
    pi: NDArray[np.float64]
    """[client], share of the slots before the window, including empty ones, in which it trains; from the plan."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """The update of the global model, and the weights that made it."""

    update: Vector
    weights: Mapping[int, float]  # client -> weight of its newest update, fresh or stored


@runtime_checkable
class Aggregator(Protocol):
    """A rule. Updates are in the order of clients; a rule may keep but not change them."""

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Return one update from those of the slot's participants (at least one)."""

    def state(self) -> State:
        """Return the state that `aggregate` depends on, for a checkpoint."""

    def restore(self, state: State) -> None:
        """Continue from a state."""


class _Weighted:
    """A stateless rule that only sets weights."""

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Return the weighted sum of the participants' updates."""
        weights = self.weights(list(updates), who)
        update = weighted_sum(((weights[client], update) for client, update in updates.items()), _like(updates))
        return Aggregate(update=update, weights=weights)

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return the weight of each participant."""
        raise NotImplementedError

    def state(self) -> State:
        """Return an empty state."""
        return {}

    def restore(self, state: State) -> None:
        """Do nothing: there is no state."""


class FedAvg(_Weighted):
    """The mean over the participants, 1 / |A|: McMahan et al., AISTATS 2017; the paper's (eq:g_agg). Biased towards frequent clients."""

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return equal weights."""
        return dict.fromkeys(participants, 1.0 / len(participants))


class UFedAvg(_Weighted):
    """Weights 1 / (K pi_c): Rodio et al. 2023, the paper's (eq:g_agg_unbiased). Unbiased; a rare client's weight explodes."""

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return weights inverse to how often each client trains."""
        return {client: 1.0 / (who.clients * float(who.pi[client])) for client in participants}


class Normalised(UFedAvg):
    """U-FedAvg's weights, scaled in each slot to sum to at most one: self-normalised inverse-probability weighting."""

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return U-FedAvg's weights, divided by their sum if that exceeds 1."""
        raw = super().weights(participants, who)
        total = max(1.0, sum(raw.values()))
        return {client: weight / total for client, weight in raw.items()}


class Clipped(UFedAvg):
    """U-FedAvg's weights, none above `w_max`: truncated importance weights, Ionides, JCGS 2008. Less variance, some bias."""

    def __init__(self, w_max: float = 1.0) -> None:
        if not w_max > 0:
            raise ScenarioError(
                f"The largest weight of the aggregator 'clipped' must be above 0, not {w_max}. Write 'clipped:1'."
            )
        self.w_max = w_max

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return U-FedAvg's weights, each at most `w_max`."""
        return {client: min(weight, self.w_max) for client, weight in super().weights(participants, who).items()}


class _Remembering:
    """A rule that stores each client's latest update: at most K models, or half of that with `memory_dtype`."""

    remembers = True  # whether it stores an update of every client; used to estimate the size of a run
    memory_dtype: str | None = None  # type of stored updates, float16 or bfloat16; None: unchanged

    def __init__(self) -> None:
        self.latest: dict[int, Vector] = {}
        self.seen: dict[int, int] = {}  # client -> number of the round of its latest update

    def remember(self, updates: Mapping[int, Vector], who: Participation) -> None:
        """Store the updates of the slot."""
        self.latest.update({client: self._stored(update) for client, update in updates.items()})
        self.seen.update(dict.fromkeys(updates, who.number))

    def newest(self, client: int, updates: Mapping[int, Vector]) -> Vector:
        """Return a client's update of the slot in full, else the stored one."""
        return updates.get(client, self.latest[client])

    def _stored(self, update: Vector) -> Vector:
        return update if self.memory_dtype is None else half(update, self.memory_dtype)

    def state(self) -> State:
        """Return the latest updates and their rounds."""
        ages = np.array(sorted(self.seen.items()), dtype=np.int64).reshape(-1, 2)
        return {"seen": ages} | {f"latest/{client}": self.latest[client] for client in sorted(self.latest)}

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.seen = {int(client): int(number) for client, number in state.get("seen", np.empty((0, 2))).tolist()}
        self.latest = {client: state[f"latest/{client}"] for client in self.seen}


class Mifa(_Remembering):
    """The mean of the latest updates of all clients: MIFA, Gu et al., NeurIPS 2021.

    MIFA starts with a round of all clients. A schedule may not, so the mean is over the clients seen so far.
    """

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Store the updates, then average all stored updates."""
        self.remember(updates, who)
        raw = {client: self.worth(client, who) for client in sorted(self.latest)}
        total = sum(raw.values())
        weights = {client: weight / total for client, weight in raw.items()}
        update = weighted_sum(
            ((weight, self.newest(client, updates)) for client, weight in weights.items()), _like(updates)
        )
        return Aggregate(update=update, weights=weights)

    def worth(self, client: int, who: Participation) -> float:
        """Return the weight of a stored update before normalisation."""
        return 1.0


class Memory(Mifa):
    """MIFA with each stored update discounted by its age, gamma^age, and weights normalised to sum to one: our own.

    Age is counted in rounds: in a slot without participants the model does not move, and no update ages.
    """

    def __init__(self, gamma: float = 0.9) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            name = type(self).__name__.lower()
            raise ScenarioError(
                f"The discount of the aggregator {name!r} must be above 0 and at most 1, not {gamma}. Write '{name}:0.9'."
            )
        self.gamma = gamma

    def worth(self, client: int, who: Participation) -> float:
        """Return gamma^age."""
        return float(self.gamma ** (who.number - self.seen[client]))


class Stride(Memory):
    """The discounted memory with bounded stale updates and full-length steps: our own.

    Updates get shorter as the model improves, so a stored update is cut to the mean length of the slot's fresh ones. The
    mean of updates with different directions is shorter than they are: seven clients would move the model less than one.
    So the mean is lengthened by the factor sum w |Delta| / |sum w Delta|, at most `most`: if updates cancel, the
    direction of their mean does not justify a long step. FedExP (Jhunjhunwala et al., ICLR 2023) uses
    another factor, sum w |Delta|^2 / (2 |sum w Delta|^2).
    """

    def __init__(self, gamma: float = ECHO_GAMMA, most: float = ECHO_MOST) -> None:
        super().__init__(gamma)
        self.most = most
        self.length: dict[int, float] = {}  # client -> length of its latest update

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Return the discounted mean of the bounded updates, lengthened to their mean length."""
        self.remember(updates, who)
        self.length.update({client: self._length(client) for client in updates})
        usual = sum(self.length[client] for client in updates) / len(updates)
        worth = {client: self.worth(client, who) for client in sorted(self.latest)}
        total = sum(worth.values())
        weights = {c: worth[c] / total * min(1.0, usual / self.length[c] if self.length[c] else 1.0) for c in worth}
        mean = weighted_sum(
            ((weight, self.newest(client, updates)) for client, weight in weights.items()), _like(updates)
        )
        length, shorter = sum(weight * self.length[c] for c, weight in weights.items()), norm(mean)
        factor = self.lengthened(min(self.most, length / shorter) if shorter > 0 else 1.0, worth)
        mean *= factor
        return Aggregate(update=mean, weights={c: weight * factor for c, weight in weights.items()})

    def lengthened(self, factor: float, worth: Mapping[int, float]) -> float:
        """Return the factor that lengthens the step; `worth` is each client's weight before normalisation."""
        return factor

    def restore(self, state: State) -> None:
        """Continue from a state; the lengths are computed from the updates."""
        super().restore(state)
        self.length = {client: self._length(client) for client in self.latest}

    def _length(self, client: int) -> float:
        """Return the length of a stored update; it must be the same after a restore."""
        stored = self.latest[client]
        return norm(stored.float() if self.memory_dtype is not None and is_tensor(stored) else stored)


class Echo(Stride):
    """`Stride` that lengthens a step only as far as the clients' updates repeat: our own, and recommended.

    Signal repeats between a client's updates; noise does not. Far from the optimum updates repeat, and a full step saves
    rounds; near it a full step would restore the length of noise. So the factor is raised to the power (c / 0.4)^2, at most
    1, where c is the weighted mean cosine between a client's update and the one before: above 0.4 for a small network, 0.2
    to 0.5 for a deep one with batches of 128, 0.1 to 0.3 with batches of 32.
    """

    def __init__(self, gamma: float = ECHO_GAMMA, most: float = ECHO_MOST) -> None:
        super().__init__(gamma, most)
        self.cosine: dict[int, float] = {}
        """Client -> cosine of its latest two updates; no entry after one round."""

    def remember(self, updates: Mapping[int, Vector], who: Participation) -> None:
        """Compare the updates with the stored ones, then store them."""
        for client, update in updates.items():
            if client in self.latest:
                scale = norm(update) * self.length[client]
                self.cosine[client] = max(0.0, dot(update, self.latest[client]) / scale) if scale > 0 else 0.0
        super().remember(updates, who)

    def lengthened(self, factor: float, worth: Mapping[int, float]) -> float:
        """Return the factor raised to the power of `power`; the whole factor until a client has trained twice."""
        repeated = self.repeated(worth)
        return factor if repeated is None else float(factor ** self.power(repeated))

    def repeated(self, worth: Mapping[int, float]) -> float | None:
        """Return the mean cosine over the clients that have trained twice; None if there is none."""
        known = sum(worth[client] for client in self.cosine)
        return sum(worth[client] * cosine for client, cosine in self.cosine.items()) / known if known > 0 else None

    def power(self, repeated: float) -> float:
        """Return the power of the factor, by the mean cosine: near 0 for noise, 1 from ECHO_WHOLE on."""
        return min(1.0, (repeated / ECHO_WHOLE) ** 2)

    def state(self) -> State:
        """Return the state, with the cosines."""
        known = sorted(self.cosine.items())
        return {
            **super().state(),
            "repeating": np.array([client for client, _ in known], dtype=np.int64),
            "cosine": np.array([cosine for _, cosine in known], dtype=np.float64),
        }

    def restore(self, state: State) -> None:
        """Continue from a state."""
        super().restore(state)
        none = np.empty(0)
        pairs = zip(state.get("repeating", none).tolist(), state.get("cosine", none).tolist(), strict=True)
        self.cosine = {int(client): cosine for client, cosine in pairs}


class FedVarp(_Remembering):
    """FedVARP, Jhunjhunwala et al., UAI 2022: mean over A of (Delta_c - y_c) + mean over all K of y_c.

    y_c is the latest update before this slot, 0 until the client is seen. With uneven participation it keeps FedAvg's bias.
    """

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Correct the fresh updates by the stored ones, then store the fresh ones."""
        fresh, stale = self.fresh_weights(list(updates), who), self.beta / who.clients
        terms = [(fresh[client], update) for client, update in updates.items()]
        terms += [(stale - self.beta * fresh.get(client, 0.0), self.latest[client]) for client in sorted(self.latest)]
        weights = dict.fromkeys(sorted(self.latest), stale) | fresh
        update = weighted_sum(terms, _like(updates))
        self.remember(updates, who)
        return Aggregate(update=update, weights=weights)

    def fresh_weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return the weights of the fresh updates."""
        return FedAvg().weights(participants, who)


class FedStale(FedVarp):
    """FedStale, Rodio and Neglia 2024: sum over A of (Delta_c - beta y_c) / (K pi_c) + beta mean over all K of y_c.

    beta = 0 is U-FedAvg, beta = 1 FedVARP for uneven participation; its authors advise a small beta for very uneven ones.
    """

    def __init__(self, beta: float = 0.2) -> None:
        super().__init__(beta)
        if not 0 <= beta <= 1:
            raise ScenarioError(f"FedStale's beta must be from 0 to 1, not {beta}. Write 'fedstale:0.2'.")

    def fresh_weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """Return the weights of the fresh updates."""
        return UFedAvg().weights(participants, who)


def _like(updates: Mapping[int, Vector]) -> Vector:
    return next(iter(updates.values()))


Factory = Callable[..., Aggregator]
"""Called without arguments, or with the number after the colon in names like `memory:0.8`."""

_PLAIN: dict[str, Factory] = {
    "fedavg": FedAvg,
    "ufedavg": UFedAvg,
    "normalised": Normalised,
    "mifa": Mifa,
    "fedvarp": FedVarp,
}
_TAKE_A_NUMBER: dict[str, Factory] = {
    "clipped": Clipped,
    "fedstale": FedStale,
    "memory": Memory,
    "stride": Stride,
    "echo": Echo,
}
AGGREGATORS = Registry("aggregator", "slackwater.aggregators", _PLAIN | _TAKE_A_NUMBER)
_NUMBERS = "clipped (the largest weight), fedstale (beta), memory (gamma), stride (gamma), echo (gamma)"


def register_aggregator(name: str, factory: Factory) -> None:
    """Register an aggregator. Packages use an entry point in the group `slackwater.aggregators` instead.

    Args:
        name: New name, without a colon, as options and settings use it.
        factory: Makes the aggregator; takes the number after the colon of a name like `memory:0.8`, if there is one.
    """
    if not name or ":" in name:
        raise ScenarioError(f"An aggregator cannot be called {name!r}: the name must not be empty or contain a colon.")
    AGGREGATORS.register(name, factory)


def aggregator_names() -> list[str]:
    """Return all names, including those of installed packages."""
    return AGGREGATORS.names()


def make_aggregator(spec: str, memory_dtype: str = "float32") -> Aggregator:
    """Return the aggregator of a name, with its number if it takes one: `memory`, `memory:0.8`, `clipped:2`.

    `memory_dtype` is the type of stored updates: float32 keeps them unchanged; float16 and bfloat16 halve the memory.
    """
    if not isinstance(spec, str):
        raise ScenarioError(
            f"The aggregator is a {type(spec).__name__}, and a name is needed: a run's file keeps the name. Register yours "
            f"first: sw.register_aggregator('mine', {getattr(spec, '__name__', type(spec).__name__)}), then aggregator='mine'."
        )
    name, colon, number = spec.strip().lower().partition(":")
    factory = AGGREGATORS.get(name)
    if not colon:
        made = factory()
    elif name in _PLAIN:
        raise ScenarioError(
            f"The aggregator {name!r} takes no number, but {spec!r} has one. Aggregators with a number: {_NUMBERS}."
        )
    else:
        try:
            value = float(number)
        except ValueError:
            raise ScenarioError(f"In the aggregator {spec!r}, {number!r} is not a number.") from None
        made = factory(value)
    if not isinstance(made, Aggregator):
        raise ScenarioError(
            f"The aggregator {name!r} lacks one of aggregate, state and restore; see slackwater.training.aggregators."
        )
    if memory_dtype not in MEMORY_DTYPES:
        raise ScenarioError(f"memory_dtype must be one of {', '.join(MEMORY_DTYPES)}, not {memory_dtype!r}.")
    if memory_dtype != MEMORY_DTYPES[0] and hasattr(made, "memory_dtype"):
        made.memory_dtype = memory_dtype
    return made


def on_arrays(rule: Aggregator) -> Aggregator:
    """Return a rule that takes and returns NumPy arrays, as a live run has them.

    The rules of this module do, and those with a class attribute `takes_arrays = True`. Any other rule gets tensors, as
    in `train`, if PyTorch is installed.
    """
    ready = type(rule).__module__ == __name__ or getattr(rule, "takes_arrays", False)
    return rule if ready or find_spec("torch") is None else _OnTensors(rule)


class _OnTensors:
    """A registered rule that computes with tensors, in a run on NumPy arrays; both share their memory."""

    def __init__(self, rule: Aggregator) -> None:
        self._rule = rule
        self.remembers = getattr(rule, "remembers", False)
        self.memory_dtype = getattr(rule, "memory_dtype", None)

    def aggregate(self, updates: Mapping[int, Vector], who: Participation) -> Aggregate:
        """Return the rule's aggregate as an array."""
        from torch import from_numpy

        made = self._rule.aggregate({client: from_numpy(update) for client, update in updates.items()}, who)
        return Aggregate(update=_array(made.update), weights=made.weights)

    def state(self) -> State:
        """Return the rule's state as it is: a checkpoint takes tensors too."""
        return self._rule.state()

    def restore(self, state: State) -> None:
        """Restore the rule from tensors."""
        self._rule.restore({name: as_tensor(value) for name, value in state.items()})


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
