"""Random participation as Markov chains on {0,1}^K, for the paper's study of correlation (its Section V-C).

A process moves from slot to slot as follows. With probability `coupling` the slot is common to all clients. Then either
all clients keep the last slot's state (probability rho_T), or all draw again with one uniform number U, and client c
takes part if U < pi_c. Otherwise each client keeps or draws independently, with the same probabilities. So, exactly:

- Each client by itself is a two-state Markov chain of frequency pi_c and second eigenvalue (= lag-one correlation)
  rho_T.
- Cov(a_i, a_j) = f (min(pi_i, pi_j) - pi_i pi_j), f = coupling (1 - rho_T) / (1 - coupling rho_T - (1 - coupling)
  rho_T^2). So rho_S, the mean correlation over pairs of clients, can be chosen up to the maximum at coupling = 1.
- The joint chain is P = coupling (rho_T I + (1 - rho_T) 1 mu') + (1 - coupling) (P_1 x ... x P_K), mu the law of (U <
  pi_c)_c. It maps prod_{c in S} (a_c - pi_c) to itself times coupling rho_T + (1 - coupling) rho_T^|S|, plus a
  constant. These factors are its eigenvalues; the largest below 1 is that of |S| = 1, so rho_TS = rho_T.

That is why our eight cells differ from the caption's, which separates space-correlated (rho_TS > 0.45) from
uncorrelated (< 0.35) by rho_TS. But rho_TS of a joint chain is at least each client's rho_T. So "time correlated, space
uncorrelated" (rho_T > 0.7, rho_TS < 0.35) does not exist, and rho_TS may not show spatial correlation at all. Our cells
use rho_H, rho_T and rho_S with the caption's numbers: HO rho_H < 1, HE rho_H > 1.5; TU rho_T < 0.1, TC rho_T > 0.7;
SU rho_S < 0.35, SC rho_S > 0.45.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.planning.metrics import joint_chain_rho_ts
from slackwater.training.partition import stream

MOST_JOINT_CLIENTS = 10  # the joint chain has 2^K states: a matrix of 8 MB for 10 clients, 128 MB for 12
MEAN_FREQUENCY = 0.52
"""Mean frequency of all cells, so that they have equal amounts of training. rho_H < 1 needs more than 1/2."""
_FORWARD_STREAM, _PAST_STREAM = 10, 11
_PAST_SLOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Random participation with exact metrics; create one with `process`."""

    name: str
    pi: tuple[float, ...]  # [client], long-run share of the slots in which the client takes part
    rho_t: float  # second eigenvalue of every client's own chain
    coupling: float  # probability that a slot is common to all clients

    @property
    def rho_h(self) -> float:
        """Return the heterogeneity, the mean over clients of (1 - pi_c) / pi_c."""
        pi = np.array(self.pi)
        return float(np.mean((1 - pi) / pi))

    @property
    def rho_s(self) -> float:
        """Return the mean correlation over the pairs of clients that are not always present; 0 if there are fewer than two."""
        return _covariance_factor(self.rho_t, self.coupling) * _greatest_rho_s(self.pi)

    @property
    def rho_ts(self) -> float:
        """Return the second-largest eigenvalue modulus of the joint chain: here rho_T, for any number of clients."""
        return self.rho_t

    def joint_transition(self) -> NDArray[np.float64]:
        """Return P[from, to] on the 2^K states, where client c is bit c of the state's number; for at most 10 clients."""
        clients = len(self.pi)
        if clients > MOST_JOINT_CLIENTS:
            raise ScenarioError(
                f"The joint chain of {clients} clients has 2^{clients} states. Use at most {MOST_JOINT_CLIENTS} clients."
            )
        own: NDArray[np.float64] = np.ones((1, 1))
        for p in self.pi:
            chain = self.rho_t * np.eye(2) + (1 - self.rho_t) * np.array([[1 - p, p]])
            own = np.kron(chain, own).astype(np.float64)
        states = 1 << clients
        common = self.rho_t * np.eye(states) + (1 - self.rho_t) * self._comonotone()
        matrix: NDArray[np.float64] = self.coupling * common + (1 - self.coupling) * own
        return matrix

    def joint_rho_ts(self) -> float:
        """Return rho_TS from the eigenvalues of `joint_transition`: slower than `rho_ts`, to verify it."""
        return joint_chain_rho_ts(self.joint_transition())

    def _comonotone(self) -> NDArray[np.float64]:
        """Return mu [state]: the law of (U < pi_c)_c for one U, which changes only where U passes some pi_c."""
        ends = np.unique([0.0, *self.pi, 1.0])
        bits = 1 << np.arange(len(self.pi))
        law = np.zeros(1 << len(self.pi))
        for low, high in itertools.pairwise(ends.tolist()):
            law[int(bits @ (np.array(self.pi) >= high))] += high - low
        return law


def process(pi: Sequence[float], *, rho_t: float = 0.0, rho_s: float = 0.0, name: str = "custom") -> Process:
    """Return a process with these frequencies, temporal correlation and mean pairwise correlation, all exact."""
    wrong = [i for i, p in enumerate(pi) if not 0 < p <= 1]
    if not len(pi) or wrong:
        found = f"client number {wrong[0] + 1} has {pi[wrong[0]]}" if wrong else "the list is empty"
        raise ScenarioError(f"pi must be above 0 and at most 1 for each client; {found}.")
    if not 0 <= rho_t < 1:
        raise ScenarioError(
            f"rho_t is {rho_t}; give at least 0 (every slot is drawn again) and less than 1 (never changes)."
        )
    greatest = _greatest_rho_s(pi)
    if not 0 <= rho_s <= greatest:
        raise ScenarioError(
            f"rho_s is {rho_s}; clients with these pi can have a mean pairwise correlation of 0 to {greatest:.4g}. "
            "More equal pi allow more."
        )
    factor = rho_s / greatest if rho_s else 0.0
    coupling = factor * (1 + rho_t) / (1 + factor * rho_t)  # `_covariance_factor`, solved for the coupling
    return Process(name=name, pi=tuple(float(p) for p in pi), rho_t=float(rho_t), coupling=min(1.0, coupling))


def frequencies(clients: int, rho_h: float | None = None, *, mean: float = MEAN_FREQUENCY) -> tuple[float, ...]:
    """Return pi evenly spaced about its mean so that it has this rho_H; without rho_H, all equal."""
    if clients < 1 or not 0 < mean <= 1:
        raise ScenarioError(f"clients is {clients} and mean {mean}; give at least 1 client and a mean of 0 to 1.")
    least = (1 - mean) / mean
    if rho_h is None:
        return (mean,) * clients

    def spread(width: float) -> NDArray[np.float64]:
        return mean + width * np.linspace(-1, 1, clients) if clients > 1 else np.array([mean])

    low, high = 0.0, min(mean - 1e-6, 1 - mean)
    greatest = float(np.mean(1 / spread(high) - 1))
    if not least <= rho_h <= greatest:
        raise ScenarioError(
            f"rho_h is {rho_h}; {clients} clients with a mean frequency of {mean} can have {least:.4g} to "
            f"{greatest:.4g}. Change the mean for other values."
        )
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if float(np.mean(1 / spread(middle) - 1)) < rho_h else (low, middle)
    return tuple(spread(high).tolist())


def cells(clients: int = 7, *, rho_h: float = 1.6, rho_t: float = 0.8, rho_s: float = 0.46) -> tuple[Process, ...]:
    """Return the eight cells of the paper's figure on correlation, named like `HE-TC-SC`; the arguments are the high values.

    The low ones are 0 for rho_T and rho_S, and 0.923 for rho_H, from equal frequencies. All have mean frequency 0.52.
    """
    return tuple(
        process(pi, rho_t=time, rho_s=space, name=f"{kind}-{time_name}-{space_name}")
        for kind, pi in (("HO", frequencies(clients)), ("HE", frequencies(clients, rho_h)))
        for time_name, time in (("TU", 0.0), ("TC", rho_t))
        for space_name, space in (("SU", 0.0), ("SC", rho_s))
    )


def generate(process: Process, slots: int, seed: int = 0) -> NDArray[np.bool_]:
    """Return participation [client, slot] from the stationary law; more slots of the same seed continue the sequence.

    In few slots, a rare client may never take part.
    """
    if slots < 1:
        raise ScenarioError(f"slots is {slots}; give at least 1.")
    fresh, drawn = _moves(process, slots, stream(seed, _FORWARD_STREAM))
    past = stream(seed, _PAST_STREAM)
    # A client that keeps its state in the first slot has the state it drew earlier. Going back until all clients have
    # drawn gives the stationary law exactly (coupling from the past); a fixed burn-in would only approximate it.
    while not fresh[0].all():
        earlier_fresh, earlier = _moves(process, _PAST_SLOTS, past)
        state, known = earlier[0], earlier_fresh[0]
        for t in range(1, _PAST_SLOTS):
            state, known = np.where(earlier_fresh[t], earlier[t], state), known | earlier_fresh[t]
        drawn[0] = np.where(fresh[0], drawn[0], state)
        fresh[0] |= known
    last_draw = np.maximum.accumulate(np.where(fresh, np.arange(slots)[:, np.newaxis], 0), axis=0)
    return np.ascontiguousarray(np.take_along_axis(drawn, last_draw, axis=0).T)


def _moves(process: Process, slots: int, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return, [slot, client] each, whether the client draws again, and its draw."""
    clients = len(process.pi)
    numbers = rng.random((slots, 3 + 2 * clients))  # one row per slot, so that a longer run starts with the shorter one
    common = numbers[:, :1] < process.coupling
    keeps = np.where(common, numbers[:, 1:2], numbers[:, 3 : 3 + clients])
    uniform = np.where(common, numbers[:, 2:3], numbers[:, 3 + clients :])
    return keeps >= process.rho_t, uniform < np.array(process.pi)


def _covariance_factor(rho_t: float, coupling: float) -> float:
    """Return the share of the maximum covariance that a coupling gives, by the stationary equation."""
    return coupling * (1 - rho_t) / (1 - coupling * rho_t - (1 - coupling) * rho_t**2)


def _greatest_rho_s(pi: Sequence[float]) -> float:
    """Return the mean correlation over pairs if all clients always follow one U."""
    p = np.array([x for x in pi if x < 1])
    if len(p) < 2:
        return 0.0
    deviation = np.sqrt(p * (1 - p))
    correlation = (np.minimum.outer(p, p) - np.outer(p, p)) / np.outer(deviation, deviation)
    return min(1.0, float(correlation[np.triu_indices(len(p), 1)].mean()))
