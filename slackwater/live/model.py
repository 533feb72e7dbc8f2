"""The global model: which updates may change it, and how they do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slackwater.errors import SlackwaterError
from slackwater.learning.aggregators import FedAvg, Participation
from slackwater.learning.flat import average_buffers
from slackwater.learning.registry import make_aggregator
from slackwater.learning.screening import Screening
from slackwater.learning.server import Plain, make_server
from slackwater.live.arrays import Codec, UnusableUpdateError
from slackwater.live.guide import Decision
from slackwater.live.participation import Weights
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays, Reply

Groups = dict[str, dict[str, Tensor]]
"""Tensors of a checkpoint, by group and name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sent:
    """A usable update."""

    update: Tensor
    """Delta_c = theta - theta_c, flat."""
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What one step did."""

    weights: Mapping[int, float]
    """Client -> weight of its update, those that the aggregator had stored included."""
    update_norm: float


class GlobalModel:
    """Parameters as one vector, with all that the next step depends on: aggregator, server, weights, recent lengths."""

    def __init__(self, initial: Arrays, clients: int, settings: LiveSettings) -> None:
        self._codec = Codec(initial, buffers=settings.buffers)
        self._theta, self._buffers = self._codec.split(initial)
        self._clients = clients
        self._aggregator, self._fedavg = make_aggregator(settings.aggregator), FedAvg()
        self._server, self._plain = make_server(settings.server, settings.server_lr), Plain()
        self.weights = Weights(clients, makeup=settings.makeup)
        self._max_ratio = settings.max_norm_ratio
        self._screening = Screening(settings.max_norm_ratio)

    def arrays(self) -> Arrays:
        """A copy, as clients take it."""
        return self._codec.join(self._theta, self._buffers)

    def screen(self, replies: Mapping[int, Reply]) -> tuple[dict[int, Sent], dict[int, str]]:
        """Updates that can be used, in the order of clients and not of arrival; and why others are rejected."""
        updates: dict[int, Sent] = {}
        reasons: dict[int, str] = {}
        for client in sorted(client for client, reply in replies.items() if reply.outcome == "done"):
            arrays = replies[client].arrays
            try:
                if arrays is None:
                    raise UnusableUpdateError("it came without a model")
                vector, buffers = self._codec.split(arrays)
                updates[client] = Sent(update=self._theta - vector, buffers=buffers)
            except UnusableUpdateError as error:
                reasons[client] = str(error)
        long = self._screening.too_long({client: float(sent.update.norm()) for client, sent in updates.items()})
        reasons |= {
            client: f"its update is {times:.3g} times as long as usual, max_norm_ratio is {self._max_ratio}"
            for client, times in long.items()
        }
        return {client: sent for client, sent in updates.items() if client not in reasons}, reasons

    def step(self, decision: Decision, number: int, updates: Mapping[int, Sent]) -> Stepped:
        """Lines 9 to 15 of Algorithm 1: plain FedAvg in the window, else the aggregator with effective weights."""
        in_window = decision.in_window
        pi = np.ones(self._clients) if in_window else self.weights.pi(list(updates), decision.left, decision.before)
        who = Participation(slot=decision.slot, number=number, clients=self._clients, pi=pi)
        rule = self._fedavg if in_window else self._aggregator
        total = rule.aggregate({client: sent.update for client, sent in updates.items()}, who)
        self._theta = (self._plain if in_window else self._server).step(self._theta, total.update)
        self._buffers = average_buffers([sent.buffers for sent in updates.values()])
        norm = float(total.update.norm())
        if not math.isfinite(norm) or not bool(torch.isfinite(self._theta).all()):
            raise SlackwaterError(
                f"The global model is no longer a number in slot {decision.slot}; the one before it is kept. Try an "
                "aggregator with bounded weights such as 'memory', or smaller steps."
            )
        return Stepped(weights=total.weights, update_norm=norm)

    def tensors(self) -> Groups:
        """For a checkpoint."""
        return {
            "model": {"theta": self._theta},
            "buffers": self._buffers,
            "aggregator": self._aggregator.state(),
            "server": self._server.state(),
        }

    def state(self) -> dict[str, Any]:
        """What is no tensor, as JSON holds it."""
        return {"weights": self.weights.to_dict(), "norms": self._screening.to_dict()}

    def restore(self, groups: Groups, state: Mapping[str, Any]) -> None:
        """Take up a checkpoint; one of a model of another form is refused."""
        theta, buffers = groups["model"]["theta"], groups.get("buffers", {})
        if theta.shape != self._theta.shape or set(buffers) != set(self._buffers):
            raise SlackwaterError(
                f"The model has {self._theta.numel()} parameters, that of the run {theta.numel()}. Go on with the app "
                "that began it."
            )
        self._theta, self._buffers = theta, buffers
        self._aggregator.restore(groups.get("aggregator", {}))
        self._server.restore(groups.get("server", {}))
        self.weights.restore(state["weights"])
        self._screening.restore(state["norms"])
