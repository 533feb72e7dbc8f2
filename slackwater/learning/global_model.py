"""The global model of a run, simulated or live: lines 9 to 15 of Algorithm 1, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slackwater.learning.aggregators import Aggregator, FedAvg, Participation
from slackwater.learning.checkpoint import Groups, Size, expected_size
from slackwater.learning.flat import average_buffers, is_finite
from slackwater.learning.server import IterateAverage, Plain, ServerOptimiser


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """What one client sends back."""

    update: Tensor  # Delta_c = theta - theta_c, flat
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did."""

    weights: Mapping[int, float]  # client -> weight of its update, including updates that the aggregator had stored
    update_norm: float
    finite: bool  # whether the new model is one of numbers


class GlobalModel:
    """Parameters as one vector, buffers, and all that the next step depends on: aggregator, server and average."""

    def __init__(
        self, theta: Tensor, buffers: Mapping[str, Tensor], *, clients: int, aggregator: Aggregator,
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
        self.theta = (self._plain if in_window else self.server).step(self.theta, total.update)
        self.buffers = average_buffers([sent.buffers for sent in updates.values()])
        finite = is_finite(self.theta)
        if finite and self.average is not None:
            self.average.add(number, self.theta)
        return Step(weights=total.weights, update_norm=float(total.update.norm()), finite=finite)

    def final(self) -> Tensor:
        """Return the average of the last models where averaging was asked for, else the last model."""
        return self.theta if self.average is None else self.average.mean(self.theta)

    def size(self, participants: int) -> Size:
        """Return the room that the run takes; at most so many clients train in a slot before the window."""
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
    """Weights that the schedule source sets."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = weights

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        return {client: self._weights[client] for client in participants}
