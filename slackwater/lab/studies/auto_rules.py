"""Aggregation rules tested for the planner `auto`; the useful ones are in slackwater.training.aggregators.

A candidate has a name like `memory:0.9+slots+step=1.5`: a rule with its number, then its changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import slackwater as sw
from slackwater.training.aggregators import Aggregate, Aggregator, Echo, Participation, State, Stride, make_aggregator


def make(spec: str, plan: sw.Plan) -> Aggregator:
    """Return a new rule for one run, by its name."""
    name, *changes = spec.split("+")
    base, _, number = name.partition(":")
    options = {key: float(value or 1) for key, _, value in (change.partition("=") for change in changes)}
    rule: Aggregator
    if base == "mem":
        rule = Discounted(plan, gamma=float(number), **{k: v for k, v in options.items() if k in _DISCOUNTED})
    elif base == "models":
        rule = Models(float(number), power=options.get("p", 1.0))
    elif base == "awe":
        rule = Missed(most=float(number))
    elif base == "pace":
        rule = Pace()
    elif "linear" in options:
        rule = Linear()
    elif "ahead" in options:
        rule = Ahead()
    elif base == "given":
        rule = Given(plan, most=float(number))
    else:
        rule = make_aggregator(name)
    if "vel" in options:
        rule = Heavy(rule, options["vel"])
    if "mom" in options:
        rule = Smoothed(rule, options["mom"])
    if "step" in options or "fade" in options:
        rounds = int(plan.matrix.any(axis=0).sum())
        rule = Scaled(rule, options.get("step", 1.0), options.get("fade", 1.0), rounds)
    return rule


class _Plain:
    """A rule without state: candidates are not resumed."""

    def state(self) -> State:
        """Return an empty state."""
        return {}

    def restore(self, state: State) -> None:
        """Restore nothing."""


_DISCOUNTED = ("slots", "p", "q", "even", "own", "cap", "r", "exp", "norm", "most", "fresh", "clip", "unit")


class Discounted(_Plain):
    """Memory with other discounts: a stored update has weight gamma^age, over the sum to the power p times K^(1-p).

    slots: age in slots. q: times pi^-q. even: times a factor per client that makes all totals over the run equal.
    own: age in units of the client's mean interval. cap: maximum weight. r, exp, norm: the step is longer than the
    mean, by the sum of the stored updates to the power r, by FedExP's factor, or so that it is as long as the updates
    on average (`fresh`: as the fresh ones); at most by `most`. clip: a stored update is at most this many times the
    fresh ones' mean; unit: and at least.
    """

    def __init__(
        self, plan: sw.Plan, *, gamma: float, slots: float = 0, p: float = 1, q: float = 0, even: float = 0,
        own: float = 0, cap: float = 1, r: float = 0, exp: float = 0, norm: float = 0, most: float = 3,
        fresh: float = 0, clip: float = 0, unit: float = 0,
    ) -> None:  # fmt: skip
        self.fresh, self.clip, self.unit = fresh, clip, unit
        self.root, self.exp, self.norm, self.most = r, exp, norm, most
        self.gamma, self.slots, self.power, self.cap = gamma, bool(slots), p, cap
        self.latest: dict[int, Tensor] = {}
        self.seen: dict[int, int] = {}
        pi = np.maximum(plan.metrics.pi, 1e-9)
        self.pace = np.ones(len(pi))
        before = plan.matrix[:, : plan.before]
        rounds = before[:, before.any(axis=0)]
        if own and rounds.size:
            self.pace = (np.maximum(rounds.mean(axis=1), 1e-9)) ** own
        self.scale = pi**-q
        if even:
            self.scale = _evened(rounds, gamma) ** even

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the weighted sum of the stored updates."""
        now = who.slot if self.slots else who.number
        self.latest.update(updates)
        self.seen.update(dict.fromkeys(updates, now))
        raw = {c: self.scale[c] * self.gamma ** (self.pace[c] * (now - self.seen[c])) for c in sorted(self.latest)}
        share = sum(raw.values()) / (sum(self.scale[c] for c in raw) / len(raw))
        total = sum(raw.values()) * (who.clients / share) ** (1 - self.power)
        weights = {c: min(self.cap, weight / total) for c, weight in raw.items()}
        lengths = {c: float(self.latest[c].norm()) for c in raw} if self.norm or self.clip else {}
        usual = sum(lengths[c] for c in updates) / len(updates) if lengths else 0.0
        if self.clip:  # a stored update is at most as long as the fresh ones
            shrunk = {c: self.clip * usual / max(1e-12, lengths[c]) for c in raw}
            if not self.unit:  # with it, every update is as long as they are
                shrunk = {c: min(1.0, factor) for c, factor in shrunk.items()}
            lengths = {c: lengths[c] * shrunk[c] for c in raw}
            update = _sum({c: (weights[c] * shrunk[c], self.latest[c]) for c in raw})
        else:
            update = _sum({c: (weights[c], self.latest[c]) for c in raw})
        if self.norm:  # as long as the updates are on average, all or the fresh ones
            wanted = usual if self.fresh else sum(weights[c] * lengths[c] for c in raw)
            factor = min(self.most, (wanted / max(1e-12, float(update.norm()))) ** self.norm)
        else:
            factor = self._factor(raw, weights, update)
        return Aggregate(update=update * factor, weights={c: w * factor for c, w in weights.items()})

    def _factor(self, raw: Mapping[int, float], weights: Mapping[int, float], update: Tensor) -> float:
        """Return how much longer the step is than the mean."""
        if self.root:
            return float(min(self.most, sum(raw.values()) ** self.root))
        if self.exp:  # FedExP's, on the discounted memory
            squares = sum(w * float(self.latest[c].square().sum()) for c, w in weights.items())
            return min(self.most, max(1.0, self.exp * squares / max(1e-12, float(update.square().sum()))))
        return 1.0


class Models(_Plain):
    """The mean of the clients' latest models, discounted by age: an old model pulls back, an old update would repeat."""

    def __init__(self, gamma: float, power: float = 1.0) -> None:
        self.gamma, self.power = gamma, power
        self.at: Tensor | None = None
        self.latest: dict[int, Tensor] = {}
        self.seen: dict[int, int] = {}

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the step from the model to the mean of theirs."""
        at = torch.zeros_like(next(iter(updates.values()))) if self.at is None else self.at
        self.latest.update({client: at - update for client, update in updates.items()})
        self.seen.update(dict.fromkeys(updates, who.number))
        raw = {client: self.gamma ** (who.number - self.seen[client]) for client in sorted(self.latest)}
        total = sum(raw.values())
        mean = _sum({client: (weight / total, self.latest[client]) for client, weight in raw.items()})
        update = (at - mean) * (total / who.clients) ** (1 - self.power)
        self.at = at - update
        return Aggregate(update=update, weights={client: weight / total for client, weight in raw.items()})


class Missed(_Plain):
    """FedAWE's amplification: an update counts for the rounds its client missed, up to a maximum, over K."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.seen: dict[int, int] = {}

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Weight an update by (rounds since its client last took part) / K, scaled to sum to at most 1."""
        raw = {c: min(self.most, who.number - self.seen.get(c, -1)) / who.clients for c in updates}
        self.seen.update(dict.fromkeys(updates, who.number))
        total = max(1.0, sum(raw.values()))
        weights = {client: weight / total for client, weight in raw.items()}
        return Aggregate(update=_sum({c: (weights[c], updates[c]) for c in updates}), weights=weights)


class Pace(Stride):
    """`Stride` that decays: the factor to the power sqrt(length of the fresh updates now / longest so far)."""

    longest = 0.0

    def lengthened(self, factor: float, worth: Mapping[int, float]) -> float:
        """Return a smaller factor for shorter updates."""
        fresh = [self.length[client] for client, weight in worth.items() if weight == 1.0]
        usual = sum(fresh) / len(fresh)
        self.longest = max(self.longest, usual)
        return float(factor ** math.sqrt(usual / self.longest)) if self.longest > 0 else factor


class Linear(Echo):
    """`Echo` with the cosine itself as the power: its first version."""

    def power(self, repeated: float) -> float:
        """Return the cosine."""
        return repeated


class Ahead(Echo):
    """`Echo` with steps 1 + c times as long, c the cosine: it anticipates what the updates repeat."""

    def lengthened(self, factor: float, worth: Mapping[int, float]) -> float:
        """Return the factor times 1 + c."""
        return super().lengthened(factor, worth) * (1 + (self.repeated(worth) or 0.0))


class Given(_Plain):
    """Weights for the whole run from the matrix: least variance for equal totals, no round above one.

    Least squares of the weights w[c, t] >= 0 with sum over t of w[c, t] = total for every client that trains at all,
    and sum over c of w[c, t] <= 1. The total is `most` times the largest possible for all.
    """

    def __init__(self, plan: sw.Plan, most: float) -> None:
        before = plan.matrix[:, : plan.before]
        self.weights = _given(before, most)

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Weight updates by the table."""
        weights = {client: float(self.weights[client, who.slot]) for client in updates}
        return Aggregate(update=_sum({c: (weights[c], updates[c]) for c in updates}), weights=weights)


class Smoothed(_Plain):
    """Server momentum with steps of the same length: v <- b v + (1 - b) Delta."""

    def __init__(self, rule: Aggregator, beta: float) -> None:
        self.rule, self.beta = rule, beta
        self.velocity: Tensor | None = None

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the smoothed update."""
        total = self.rule.aggregate(updates, who)
        old = total.update if self.velocity is None else self.velocity
        self.velocity = self.beta * old + (1 - self.beta) * total.update
        return Aggregate(update=self.velocity, weights=total.weights)


class Heavy(_Plain):
    """Accumulating server momentum, FedAvgM: v <- b v + Delta."""

    def __init__(self, rule: Aggregator, beta: float) -> None:
        self.rule, self.beta = rule, beta
        self.velocity: Tensor | None = None

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the sum so far."""
        total = self.rule.aggregate(updates, who)
        self.velocity = total.update if self.velocity is None else self.beta * self.velocity + total.update
        return Aggregate(update=self.velocity, weights=total.weights)


class Scaled(_Plain):
    """The server's step times a factor, which falls linearly over the rounds to `fade` of it."""

    def __init__(self, rule: Aggregator, step: float, fade: float, rounds: int) -> None:
        self.rule, self.step, self.fade, self.rounds = rule, step, fade, rounds

    def aggregate(self, updates: Mapping[int, Tensor], who: Participation) -> Aggregate:
        """Return the scaled update."""
        total = self.rule.aggregate(updates, who)
        factor = self.step * (1 - (1 - self.fade) * who.number / max(1, self.rounds - 1))
        return Aggregate(update=total.update * factor, weights={c: w * factor for c, w in total.weights.items()})


def _sum(terms: Mapping[int, tuple[float, Tensor]]) -> Tensor:
    weights = torch.tensor([float(weight) for weight, _ in terms.values()])
    return weights @ torch.stack([update for _, update in terms.values()])


def _evened(rounds: NDArray[np.bool_], gamma: float) -> NDArray[np.float64]:
    """Return [client], factors that equalise the clients' totals of normalised weights, by repeated correction."""
    clients, count = rounds.shape
    fresh = np.zeros((clients, count))
    now = np.zeros(clients)
    for t in range(count):
        now = np.where(rounds[:, t], 1.0, now * gamma)
        fresh[:, t] = now
    scale = np.ones(clients)
    there = rounds.any(axis=1)
    for _ in range(200):
        weights = scale[:, None] * fresh
        weights /= np.maximum(weights.sum(axis=0), 1e-12)
        totals = weights.sum(axis=1)
        scale[there] *= np.sqrt(totals[there].mean() / np.maximum(totals[there], 1e-12))
        scale[there] = np.clip(scale[there] / np.exp(np.log(scale[there]).mean()), 0.02, 50)
    return scale


def _given(before: NDArray[np.bool_], most: float) -> NDArray[np.float64]:
    """Return the weights by alternating projections: on the rows' totals, the columns' bound and non-negative values."""
    counts = before.sum(axis=1)
    there = counts > 0
    if not there.any():
        return np.zeros(before.shape)
    # The largest equal total is limited by clients that share few rounds. Bisection: the projection fails above it.
    low, high = 0.0, float(counts[there].min())
    for _ in range(20):
        middle = (low + high) / 2
        weights = _projected(before, there, middle)
        fits = weights.sum(axis=0).max() <= 1.01 and np.abs(weights.sum(axis=1)[there] - middle).max() <= 0.01 * middle
        low, high = (middle, high) if fits else (low, middle)
    return _projected(before, there, most * low)


def _projected(before: NDArray[np.bool_], there: NDArray[np.bool_], total: float) -> NDArray[np.float64]:
    counts = np.maximum(before.sum(axis=1, keepdims=True), 1)
    weights = before * (total / counts)
    for _ in range(100):
        sums = weights.sum(axis=0)
        weights = weights * np.where(sums > 1, 1 / np.maximum(sums, 1e-12), 1.0)
        short = np.where(there, total - weights.sum(axis=1), 0.0)[:, None]
        weights = np.maximum(0.0, weights + before * short / counts)
    return np.asarray(weights * np.minimum(1.0, 1 / np.maximum(weights.sum(axis=0), 1e-12)))
