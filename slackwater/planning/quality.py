"""How well a schedule would train, from the schedule alone: the error it leaves in a linear stand-in for learning.

In a direction in which the local work of one round covers the share a of the way from the global model to a client's own optimum x_c, the
client sends Delta_c = a (theta - x_c). Algorithm 1 is then linear but for the lengths of steps, and the last model is
sum_c beta_c x_c + rho theta_0, with beta and rho given by who trained when and by the aggregator. What is left to learn is rho; what was
learned of some clients at the cost of others is the spread of beta. Both are followed through the schedule for a few rates a, from fast
directions to slow ones, with the weights of `echo` (slackwater.learning.aggregators) before the window and FedAvg's in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.plan import ECHO_GAMMA, ECHO_MOST, Plan

RATES = (0.9, 0.318, 0.112, 0.0398, 0.0141, 0.005)
"""Shares of the way that a round covers."""
HETEROGENEITY = 0.1
"""Squared distance of a client's optimum from the mean of all, over that of the first model."""
REMEMBERED = round(1 / (1 - ECHO_GAMMA))
"""Rounds that `echo` remembers."""
MOST_GROUPS = 64
"""Clients with the same slots are one group; of more groups than this, as many are taken, evenly by number of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a schedule leaves undone; smaller is better."""

    unlearned: float
    """Mean over the rates of rho^2: how much of the way from the first model to the optimum is left."""
    uneven: float
    """Mean over the rates of sum_c (beta_c - mean)^2: how unevenly the clients count in the last model."""

    @property
    def error(self) -> float:
        """Mean squared distance of the last model from the optimum, over that of the first."""
        return self.unlearned + HETEROGENEITY * self.uneven


def quality(plan: Plan, *, fedavg: bool = False) -> Quality:
    """Of a plan that is trained by `echo`, or by FedAvg throughout."""
    rows, times = _groups(plan)
    active = plan.matrix.any(axis=0)
    in_window = np.full(plan.problem.horizon, fedavg)
    in_window[plan.before : plan.problem.rounds + plan.end] = True
    return follow(rows[:, active], times, in_window[active])


def forgotten(plan: Plan) -> float:
    """Share of the clients whose latest update is older than `echo` remembers when the window begins."""
    before = plan.matrix[:, : plan.before]
    rounds = before[:, before.any(axis=0)]
    return float(np.mean(~rounds[:, -REMEMBERED:].any(axis=1)))


def follow(
    rows: NDArray[np.bool_],
    times: NDArray[np.float64],
    in_window: NDArray[np.bool_],
    rates: tuple[float, ...] = RATES,
    heterogeneity: float = HETEROGENEITY,
) -> Quality:
    """`rows` [group, round], who trains; `times` [group], how many clients it stands for; `in_window` [round]."""
    groups, rounds = rows.shape
    pace = np.array(rates)[:, None]
    clients = float(times.sum())
    model = np.zeros((len(rates), groups + 1))
    """[rate, group or first model]: coefficients of the optima and of theta_0."""
    model[:, -1] = 1.0
    stored = np.zeros((groups, len(rates), groups + 1))
    length, worth = np.zeros(groups), np.zeros(groups)
    # A client's own update points to its own optimum, the mean of its group's to the mean of theirs.
    own = heterogeneity * float((pace**2).mean()) * (1 - 1 / times)
    for t in range(rounds):
        there = np.flatnonzero(rows[:, t])
        stored[there] = pace * model
        stored[there, :, there] -= pace[:, 0]
        if in_window[t]:
            weights = times[there] / times[there].sum()
            model = model - np.tensordot(weights, stored[there], axes=1)
            continue
        length[there] = np.sqrt(_squares(stored[there], times, clients, heterogeneity) + own[there])
        worth *= ECHO_GAMMA
        worth[there] = 1.0
        usual = float(times[there] @ length[there] / times[there].sum())
        weights = times * worth / float(times @ worth)
        weights = weights * np.minimum(1.0, usual / np.maximum(length, np.finfo(float).tiny))
        update = np.tensordot(weights, stored, axes=1)
        whole, shorter = float(weights @ length), math.sqrt(float(_squares(update, times, clients, heterogeneity)))
        model = model - update * (min(ECHO_MOST, whole / shorter) if shorter > 0 else 1.0)
    beta, rho = model[:, :-1], model[:, -1]
    return Quality(unlearned=float((rho**2).mean()), uneven=float(_spread(beta, times, clients).mean()))


def _squares(
    updates: NDArray[np.float64], times: NDArray[np.float64], clients: float, heterogeneity: float
) -> NDArray[np.float64]:
    """Squared lengths of updates [.., rate, group or first model], for optima that lie anywhere around their mean."""
    squares = updates[..., -1] ** 2 + heterogeneity * _spread(updates[..., :-1], times, clients)
    return np.asarray(squares.mean(axis=-1))


def _spread(beta: NDArray[np.float64], times: NDArray[np.float64], clients: float) -> NDArray[np.float64]:
    """Sum over clients of the squared deviation of their coefficients; those of a group share its coefficient."""
    mean = beta.sum(axis=-1, keepdims=True) / clients
    return np.asarray(((beta / times - mean) ** 2 * times).sum(axis=-1))


def _groups(plan: Plan) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    packed, times = np.unique(plan.packed, axis=0, return_counts=True)
    if len(packed) > MOST_GROUPS:
        order = np.argsort(np.bitwise_count(packed).sum(axis=1), kind="stable")
        chosen = order[np.linspace(0, len(order) - 1, MOST_GROUPS).round().astype(np.intp)]
        packed, times = packed[chosen], np.full(MOST_GROUPS, math.ceil(times.sum() / MOST_GROUPS))
    return np.unpackbits(packed, axis=1, count=plan.problem.horizon).astype(bool), times.astype(np.float64)
