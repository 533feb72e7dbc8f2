"""Metrics of a schedule: how often, how unevenly and how correlated clients take part (the paper's section IV).

A million clients share few distinct rows, since clients of one zone and power get the same slots. So the distinct rows
are found first, measured in chunks and weighted by their number of clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError

MOST_JOINT_CLIENTS = 512
"""Above this `rho_ts` is not estimated: hardly any schedule has the thousand or more slots that it needs."""
_CHUNK_CELLS = 1 << 23
"""Row-slots that are unpacked at once; each takes 8 bytes when weighted."""
_SINGULAR = 1e-10
"""Eigenvalues of a covariance below this share of the largest are rounding; identical clients cause them."""
_STOCHASTIC = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metrics:
    """Participation before the fine-tuning window, and emissions of training including it.

    The window is left out because all clients train in it, with FedAvg instead of U-FedAvg. Without any slot before
    it `pi` is 0 for all clients.
    """

    pi: NDArray[np.float64]
    """[client], pi_c, the share of the slots before the window in which the client trains. The paper divides by T, but
    its schedules run to T + s; over T slots the shares could exceed 1."""
    rho_h: float
    """Heterogeneity of selection, the mean over clients of (1 - pi_c) / pi_c; inf if a client is never selected."""
    never: tuple[int, ...]
    """Clients with pi_c = 0: their U-FedAvg weight 1 / (K pi_c) does not exist."""
    tv_distance: float | None
    """Bias of plain FedAvg, d_TV(1/K, pi / |pi|_1) = 1/2 sum_c |1/K - pi_c / |pi|_1|; None if no client is ever selected.
    """
    rho_t: float | None
    """Temporal correlation, the mean over clients of |P11 - P01|, the second eigenvalue of the client's own two-state
    chain, where Pij is the share of the slots in state i that are followed by j. A client that is in one state in all
    slots with a successor (never or always selected, or only in the last slot) has no such chain and is left out;
    None if no client remains."""
    rho_s: float | None
    """Spatial correlation, the mean Pearson correlation between the rows of two clients over all pairs of clients that
    change; None with fewer than two such clients. The paper does not define this figure."""
    rho_ts: float | None
    """Joint correlation, the spectral radius of C1 C0^+, with C0 the covariance of the participation vectors and C1 the
    one with the next slot's, at most 1. None with more than 512 clients, with fewer slots than twice the clients, or if
    no client changes.

    The paper's rho_TS is the second-largest eigenvalue modulus of the joint chain on 2^K states. Estimated from one
    schedule it is useless: i.i.d. draws of 7 clients, where the truth is 0, give 0.92 to 0.97 at 50 slots. This
    figure estimates the linear part of the chain, with far less bias: about sqrt(K / slots) where the truth is 0. For
    one client it equals `rho_t`. For generated chains, `joint_chain_rho_ts` is exact.
    """
    effective_updates: float
    """Effective sample size (sum w)^2 / sum w^2 of U-FedAvg's weights w = 1 / (K pi_c) over all updates before the
    window; as many as there are updates if all clients are selected equally often."""
    longest_absence: NDArray[np.int64]
    """[client], longest run of slots before the window without the client."""
    training_kg: NDArray[np.float64]
    """[client], kg CO2e, fine-tuning window included."""
    lone_slots: float
    """Share of the used slots before the window in which exactly one client trains: its update is the model's step, so
    whoever sees the model sees the update. `min_parallel` avoids them. 0 if no slot is used."""

    @classmethod
    def of(cls, packed: NDArray[np.uint8], before: int, training_kg: NDArray[np.float64]) -> Metrics:
        """Measure a schedule [client, slot], packed along the slots, of which the first `before` precede the window."""
        clients = len(packed)
        if not clients or len(training_kg) != clients:
            raise ScenarioError(f"{clients} rows and {len(training_kg)} training_kg: give one of each for each client.")
        if not 0 <= before <= 8 * packed.shape[1]:
            raise ScenarioError(f"before is {before}; the schedule has room for 0 to {8 * packed.shape[1]} slots.")
        rows, row_of, times = _distinct_rows(packed, before)
        seen = _measure(rows, before, times)
        pi = seen.ones / max(before, 1)
        there = pi > 0
        inverse_sum = float((times[there] / pi[there]).sum())
        everybody = bool(there.all())
        share = pi / max(float(times @ pi), np.finfo(float).tiny)
        return cls(
            pi=pi[row_of],
            rho_h=inverse_sum / clients - 1.0 if everybody else math.inf,
            never=() if everybody else tuple(np.flatnonzero(~there[row_of]).tolist()),
            tv_distance=float(times @ np.abs(1.0 / clients - share)) / 2.0 if there.any() else None,
            rho_t=_rho_t(seen, before, times),
            rho_s=_rho_s(seen, before, times),
            rho_ts=_rho_ts(packed, before),
            # With n_c = pi_c * before updates of weight 1 / (K pi_c) each, K and one factor `before` cancel.
            effective_updates=before * float(times[there].sum()) ** 2 / inverse_sum if there.any() else 0.0,
            longest_absence=seen.longest[row_of],
            training_kg=np.asarray(training_kg, dtype=np.float64),
            lone_slots=seen.lone,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics for JSON, with infinity as the text "inf"."""
        return {
            "pi": self.pi.tolist(),
            "rho_h": "inf" if math.isinf(self.rho_h) else self.rho_h,
            "never": list(self.never),
            "tv_distance": self.tv_distance,
            "rho_t": self.rho_t,
            "rho_s": self.rho_s,
            "rho_ts": self.rho_ts,
            "effective_updates": self.effective_updates,
            "longest_absence": self.longest_absence.tolist(),
            "training_kg": self.training_kg.tolist(),
        }


def joint_chain_rho_ts(transition: NDArray[np.float64]) -> float:
    """Return the paper's rho_TS of a given chain: the second-largest eigenvalue modulus of P[from, to]; 0 for one state."""
    if transition.ndim != 2 or transition.shape[0] != transition.shape[1] or not transition.size:
        raise ScenarioError(f"The transition matrix has the shape {transition.shape}; it must be square.")
    if not (np.all(transition >= 0) and np.all(np.abs(transition.sum(axis=1) - 1) <= _STOCHASTIC)):
        raise ScenarioError("Every row of the transition matrix must be probabilities that sum to 1.")
    moduli = np.sort(np.abs(np.linalg.eigvals(transition)))
    return float(moduli[-2]) if len(moduli) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Counts of each distinct row, and a sum over all of them."""

    ones: NDArray[np.int64]
    """[row], slots with the client."""
    first: NDArray[np.int64]
    """[row], 1 if the client trains in the first slot."""
    last: NDArray[np.int64]
    """[row], 1 if the client trains in the last slot."""
    stays: NDArray[np.int64]
    """[row], slots with the client that directly follow another."""
    longest: NDArray[np.int64]
    """[row], longest run of slots without the client."""
    standardised: NDArray[np.float64]
    """[slot], sum over clients of their rows, each shifted and scaled to mean 0 and length 1; constant ones add 0."""
    lone: float
    """Slots with exactly one client, as a share of those with any."""


def _distinct_rows(
    packed: NDArray[np.uint8], before: int
) -> tuple[NDArray[np.uint8], NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct rows over the slots before the window, the row of each client, and the clients of each row."""
    width = max(1, -(-before // 8))
    rows = packed[:, :width].copy()
    rows[:, -1] &= 0xFF << (8 * width - before) & 0xFF
    # As fixed-width bytes a row is one value: sorted several times faster than by np.unique(axis=0).
    distinct, row_of, times = np.unique(rows.view(f"S{width}").ravel(), return_inverse=True, return_counts=True)
    return distinct.view(np.uint8).reshape(-1, width), row_of, times


def _measure(rows: NDArray[np.uint8], before: int, times: NDArray[np.intp]) -> _Rows:
    ones, first, last, stays, longest = (np.empty(len(rows), dtype=np.int64) for _ in range(5))
    standardised, together = np.zeros(before), np.zeros(before)
    chunk = max(1, _CHUNK_CELLS // max(before, 1))
    for begin in range(0, len(rows), chunk):
        part = slice(begin, begin + chunk)
        # [slot, row], so that a step from slot to slot runs over neighbours in memory.
        slots = np.ascontiguousarray(np.unpackbits(rows[part], axis=1, count=before).T)
        ones[part] = slots.sum(axis=0, dtype=np.int32)
        first[part], last[part] = slots[:1].sum(axis=0), slots[-1:].sum(axis=0)
        stays[part] = (slots[1:] & slots[:-1]).sum(axis=0, dtype=np.int32)
        longest[part] = _longest_zeros(slots)
        together += slots @ times[part].astype(np.float64)  # whole numbers: exact
        # sum_t (a - pi)^2 = ones * (before - ones) / before: integers up to the root, so constants are exactly 0.
        scatter = ones[part] * (before - ones[part])
        varies = scatter > 0
        weight = np.zeros(len(scatter))
        weight[varies] = times[part][varies] * np.sqrt(before / scatter[varies])
        standardised += slots @ weight - float(weight @ ones[part]) / max(before, 1)
    lone = float(np.count_nonzero(together == 1)) / max(int(np.count_nonzero(together)), 1)
    return _Rows(ones=ones, first=first, last=last, stays=stays, longest=longest, standardised=standardised, lone=lone)


def _longest_zeros(slots: NDArray[np.uint8]) -> NDArray[np.int32]:
    run = np.zeros(slots.shape[1], dtype=np.int32)
    longest = np.zeros_like(run)
    for now in slots:
        run += 1
        run *= 1 - now
        np.maximum(longest, run, out=longest)
    return longest


def _rho_t(seen: _Rows, before: int, times: NDArray[np.intp]) -> float | None:
    left_one = seen.ones - seen.last
    left_none = before - 1 - left_one
    chain = (left_one > 0) & (left_none > 0)
    if not chain.any():
        return None
    stays, comes = seen.stays[chain], (seen.ones - seen.first - seen.stays)[chain]
    return float(np.average(np.abs(stays / left_one[chain] - comes / left_none[chain]), weights=times[chain]))


def _rho_s(seen: _Rows, before: int, times: NDArray[np.intp]) -> float | None:
    """Return rho_s from |sum_c z_c|^2 = sum_c |z_c|^2 + sum over ordered pairs of their correlation, where |z_c| = 1."""
    varying = int(times[(seen.ones > 0) & (seen.ones < before)].sum())
    if varying < 2:
        return None
    return (float(seen.standardised @ seen.standardised) - varying) / (varying * (varying - 1))


def _rho_ts(packed: NDArray[np.uint8], before: int) -> float | None:
    clients = len(packed)
    if clients > MOST_JOINT_CLIENTS or before < 2 * clients:
        return None
    slots = np.unpackbits(packed, axis=1, count=before).astype(np.float64)
    # Each side has its own mean, as in a regression with intercept: for one client this is P11 - P01.
    now = slots[:, :-1] - slots[:, :-1].mean(axis=1, keepdims=True)
    after = slots[:, 1:] - slots[:, 1:].mean(axis=1, keepdims=True)
    if not now.any():
        return None
    step = after @ now.T @ np.linalg.pinv(now @ now.T, rcond=_SINGULAR, hermitian=True)
    return min(1.0, float(np.abs(np.linalg.eigvals(step)).max()))
