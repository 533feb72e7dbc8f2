"""CAFE: a coreset of clients whose gradients represent all clients, with a carbon queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from slackwater.lab.policies.policy import NOBODY, Choice, Floats, Need, Online, State, View


class Cafe(Online):
    """CAFE: Bian et al., e-Energy 2024 (arXiv 2311.03615). Coreset utility, Lyapunov drift plus penalty, double greedy.

    The gradients of a set S represent those of all clients on the current model; the nearest client of S represents a client. The
    utility is the share of the gradients explained by S,

        U(S) = 1 - sum_i min(|g_i|, min_(j in S) |g_i - g_j|) / sum_i |g_i|,

    and client j of S has as weight the share of clients it represents. Each slot maximises V U(S) - Q g(S) / b. b is the even budget of
    a slot, g(S) the emissions of S, and Q <- max(0, Q + g / b - 1) the queue, which includes probes. The deterministic double greedy
    for submodular functions finds the set.

    Simplified: a client's error is at most |g_i|, as without any representative; U is scaled to 0..1, and V = 50 is our choice. Gradients
    are computed on a sample of each client's data. The paper probes all clients in every round. Here no client is probed if, by the
    latest gradients, the best set is not worth its emissions plus those of the probes.
    """

    needs: ClassVar[Need | None] = "gradients"

    def __init__(self, v: float = 50.0) -> None:
        self.v = v
        self.queue = 0.0
        self.seen_kg = 0.0
        """Emissions spent at the last update of the queue, kg."""
        self.seen_slot = -1
        self.apart: Floats | None = None
        """[client, client], distance between the latest gradients; infinite if one is unknown."""
        self.lengths: Floats | None = None
        """[client], norm of the latest gradient; 0 if unknown."""

    def asks(self, view: View) -> Sequence[int]:
        """Return all available clients, or none if by the latest gradients no set is worth its emissions and those of probes."""
        self._update_queue(view)
        everybody = [int(c) for c in view.there]
        if self.apart is None or self.lengths is None or not self.lengths[everybody].all():
            return everybody
        _, worth = self._best(view, everybody, self.apart[np.ix_(everybody, everybody)], self.lengths[everybody])
        asking = self.queue * float(view.probe_kg[everybody].sum()) / self._slot_kg(view)
        return everybody if worth > asking else ()

    def choose(self, view: View) -> Choice:
        """Return the best set, the most emissions per utility last, each weighted by the share of clients it represents."""
        self._update_queue(view)
        asked = sorted(view.gradients)
        if not asked:
            return NOBODY
        gradients = np.stack([view.gradients[c] for c in asked])
        lengths, apart = np.linalg.norm(gradients, axis=1), distances(gradients)
        self._remember(view, asked, apart, lengths)
        best, _ = self._best(view, asked, apart, lengths)
        if not best:
            return NOBODY
        costs = np.maximum(view.cost_kg[asked], np.finfo(float).tiny)
        order = sorted(best, key=lambda i: -explained(frozenset({i}), apart, lengths) / float(costs[i]))
        nearest = np.array(order)[np.argmin(apart[:, order], axis=1)]
        weights = {asked[i]: float(np.mean(nearest == i)) for i in order}
        return Choice(clients=[asked[i] for i in order], weights=weights)

    def _best(self, view: View, clients: list[int], apart: Floats, lengths: Floats) -> tuple[frozenset[int], float]:
        """Return the set found by the double greedy, by position, and its value."""
        costs = view.cost_kg[clients] / self._slot_kg(view)

        def worth(chosen: frozenset[int]) -> float:
            return self.v * explained(chosen, apart, lengths) - self.queue * float(costs[sorted(chosen)].sum())

        best = double_greedy(len(clients), worth)
        return best, worth(best)

    def _remember(self, view: View, asked: list[int], apart: Floats, lengths: Floats) -> None:
        whole, known = np.full((view.clients, view.clients), np.inf), np.zeros(view.clients)
        whole[np.ix_(asked, asked)], known[asked] = apart, lengths
        self.apart, self.lengths = whole, known

    def _slot_kg(self, view: View) -> float:
        return view.budget_kg / view.slots

    def _update_queue(self, view: View) -> None:
        """Update the queue once per slot with the emissions since the last update."""
        if view.slot == self.seen_slot:
            return
        if self.seen_slot >= 0:
            passed = view.slot - self.seen_slot
            self.queue = max(0.0, self.queue + (view.spent_kg - self.seen_kg) / self._slot_kg(view) - passed)
        self.seen_slot, self.seen_kg = view.slot, view.spent_kg

    def state(self) -> State:
        """Return the queue, and the distances between the latest gradients."""
        known = {} if self.apart is None or self.lengths is None else {"apart": self.apart, "lengths": self.lengths}
        return {"queue": np.array([self.queue, self.seen_kg, self.seen_slot]), **known}

    def restore(self, state: State) -> None:
        """Restore the state."""
        if "queue" in state:
            self.queue, self.seen_kg = float(state["queue"][0]), float(state["queue"][1])
            self.seen_slot = int(state["queue"][2])
        self.apart, self.lengths = state.get("apart"), state.get("lengths")


def distances(vectors: Floats) -> Floats:
    """Return [i, j], Euclidean distances."""
    squares = (vectors**2).sum(axis=1)
    apart: Floats = np.sqrt(np.maximum(0.0, squares[:, None] + squares[None, :] - 2 * vectors @ vectors.T))
    np.fill_diagonal(apart, 0.0)
    return apart


def explained(chosen: frozenset[int], apart: Floats, lengths: Floats) -> float:
    """Return U(S)."""
    whole = float(lengths.sum())
    if not chosen or whole == 0:
        return 0.0
    left = np.minimum(lengths, apart[:, sorted(chosen)].min(axis=1))
    return 1.0 - float(left.sum()) / whole


def double_greedy(count: int, value: Callable[[frozenset[int]], float]) -> frozenset[int]:
    """Return a set by the deterministic double greedy (Buchbinder et al., FOCS 2012).

    Its value is at least a third of the best for any non-negative submodular function.
    """
    small, large = frozenset[int](), frozenset(range(count))
    for i in range(count):
        more = value(small | {i}) - value(small)
        fewer = value(large - {i}) - value(large)
        if more >= fewer:
            small = small | {i}
        else:
            large = large - {i}
    return small
