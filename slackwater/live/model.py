"""The global model of a live run: which updates may change it, and with what weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slackwater.errors import SlackwaterError
from slackwater.learning.checkpoint import Groups
from slackwater.learning.global_model import GlobalModel, Step, Update
from slackwater.learning.registry import make_aggregator
from slackwater.learning.screening import Screening
from slackwater.learning.server import make_server
from slackwater.live.arrays import Codec, UnusableUpdateError
from slackwater.live.guide import Decision
from slackwater.live.participation import MakeupWeights
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays, Reply


class ModelDiverged(SlackwaterError):
    """The global model became infinite or NaN; the one before it is in the run's file."""


class LiveModel:
    """The global model as clients take it, with the screening of updates and the weights that make up for lost slots."""

    def __init__(self, initial: Arrays, clients: int, settings: LiveSettings) -> None:
        self._codec = Codec(initial, buffers=settings.buffers)
        theta, buffers = self._codec.split(initial)
        aggregator = make_aggregator(settings.aggregator, settings.memory_dtype)
        server = make_server(settings.server, settings.server_lr)
        self.shared = GlobalModel(theta, buffers, clients=clients, aggregator=aggregator, server=server)
        self.weights = MakeupWeights(clients, makeup=settings.makeup)
        self._screening = Screening(settings.max_norm_ratio)
        self._clients, self._max_ratio = clients, settings.max_norm_ratio

    def arrays(self) -> Arrays:
        """Return a copy of the model as clients take it."""
        return self._codec.join(self.shared.theta, self.shared.buffers)

    def screen(self, replies: dict[int, Reply]) -> tuple[dict[int, Update], dict[int, str]]:
        """Return the updates that can be used, in the order of clients and not of arrival; and why others are rejected.

        The models are taken out of the replies: one of each client in memory is enough.
        """
        updates: dict[int, Update] = {}
        reasons: dict[int, str] = {}
        for client in sorted(client for client, reply in replies.items() if reply.outcome == "done"):
            arrays, replies[client] = replies[client].arrays, replace(replies[client], arrays=None)
            try:
                if arrays is None:
                    raise UnusableUpdateError("it came without a model")
                vector, buffers = self._codec.split(arrays)
                updates[client] = Update(update=self.shared.theta - vector, buffers=buffers)
            except UnusableUpdateError as error:
                reasons[client] = str(error)
        for client, times in self._screening.too_long({c: float(u.update.norm()) for c, u in updates.items()}).items():
            reasons[client] = f"its update is {times:.3g} times as long as usual, max_norm_ratio is {self._max_ratio}"
            del updates[client]
        return updates, reasons

    def step(self, decision: Decision, number: int, updates: Mapping[int, Update]) -> Step:
        """Move the model by the updates of a round, with effective weights before the window."""
        pi = np.ones(self._clients)
        if not decision.in_window:
            pi = self.weights.pi(list(updates), decision.left, decision.before)
            self.weights.give(list(updates), decision.left, decision.before)
        step = self.shared.step(updates, slot=decision.slot, number=number, in_window=decision.in_window, pi=pi)
        if not math.isfinite(step.update_norm) or not step.finite:
            raise ModelDiverged(
                f"The global model is no longer a number in slot {decision.slot}; the one before it is kept. Try an "
                "aggregator with bounded weights such as 'memory', or smaller steps."
            )
        return step

    def state(self) -> dict[str, Any]:
        """Return what of the state is no tensor, as JSON holds it."""
        return {"weights": self.weights.to_dict(), "norms": self._screening.to_dict()}

    def restore(self, groups: Groups, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; raise if it is of a model of another form."""
        theta, now = groups["model"]["theta"], self.shared.theta
        if theta.shape != now.shape or set(groups.get("buffers", {})) != set(self.shared.buffers):
            raise SlackwaterError(
                f"The model has {now.numel()} parameters, that of the run {theta.numel()}. Go on with the app "
                "that began it."
            )
        self.shared.restore(groups)
        self.weights.restore(state["weights"])
        self._screening.restore(state["norms"])
