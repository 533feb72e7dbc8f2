"""Updates of a live run: conversion of arrays, screening, and weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.live.folder import LiveSettings
from slackwater.live.schedule_sources import Decision
from slackwater.live.sites import Arrays, Reply
from slackwater.training.aggregators import make_aggregator
from slackwater.training.global_model import GlobalModel, Groups, Screening, Step, Update, make_server
from slackwater.training.task import is_finite

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # endings of the names of BatchNorm's statistics


class UnusableUpdateError(ValueError):
    """An update that cannot be used; the message says why."""


class Codec:
    """Converts models between arrays and vectors; all must have the form of the first one."""

    def __init__(self, initial: Arrays, *, buffers: Sequence[str] = ()) -> None:
        """Take the form of a model; `buffers` are further name endings of arrays that are averaged. Non-float arrays always are."""
        endings = (*BUFFERS, *buffers)
        self._form = {name: (array.shape, array.dtype) for name, array in initial.items()}
        self._buffers = [
            name
            for name, array in initial.items()
            if name.endswith(endings) or not np.issubdtype(array.dtype, np.floating)
        ]
        self._parameters = [name for name in initial if name not in self._buffers]
        if not self._parameters:
            raise ScenarioError("The model has no trainable parameters: every array is a buffer or is not of floats.")
        double = any(self._form[name][1] == np.float64 for name in self._parameters)
        self._dtype = np.dtype(np.float64 if double else np.float32)

    def split(self, arrays: Arrays) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the parameters as one vector, and the buffers; raise if the form differs or a value is not finite."""
        self._check(arrays)
        flat = [np.asarray(arrays[name], dtype=self._dtype).reshape(-1) for name in self._parameters]
        vector = torch.from_numpy(np.concatenate(flat))
        buffers = {name: torch.from_numpy(np.array(arrays[name], dtype=self._form[name][1])) for name in self._buffers}
        for name, values in (("its parameters", vector), *buffers.items()):
            if not is_finite(values):
                raise UnusableUpdateError(f"NaN or infinite values in {name}")
        return vector, buffers

    def join(self, vector: Tensor, buffers: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """Return the model as a state dict, in its own order and types."""
        flat, joined, offset = vector.numpy(), dict[str, NDArray[Any]](), 0
        for name, (shape, dtype) in self._form.items():
            if name in buffers:
                joined[name] = buffers[name].numpy().astype(dtype, copy=True)
                continue
            size = int(np.prod(shape))
            joined[name] = flat[offset : offset + size].reshape(shape).astype(dtype, copy=True)
            offset += size
        return joined

    def _check(self, arrays: Arrays) -> None:
        if set(arrays) != set(self._form):
            odd = sorted(set(arrays) ^ set(self._form))
            raise UnusableUpdateError(f"its arrays differ from the model's ({', '.join(odd[:3])})")
        for name, (shape, dtype) in self._form.items():
            sent = arrays[name]
            if sent.shape != shape:
                raise UnusableUpdateError(f"{name} has shape {sent.shape}, but the model has {shape}")
            if np.issubdtype(dtype, np.floating) != np.issubdtype(sent.dtype, np.floating):
                raise UnusableUpdateError(f"{name} has type {sent.dtype}, but the model has {dtype}")


_FINEST = 10**12
"""Shares are fractions, so that equal weights stay exactly equal; this is the finest step."""


class MakeupWeights:
    """Counts each client's weights so far, and turns the rest into the pi that aggregators read."""

    def __init__(self, clients: int, *, makeup: float = 3.0) -> None:
        self.clients, self.makeup = clients, makeup
        self.given = [Fraction(0)] * clients  # [client], sum of its weights times K
        self.times = [0] * clients  # [client], updates used before the window
        self.planned = [0] * clients
        """[client], most participations before the window in any plan."""

    def expect(self, left: NDArray[np.int64]) -> None:
        """Record a plan: `left` [client] participations from this slot on, including it."""
        self.planned = self._most_planned(left)

    def pi(self, used: Sequence[int], left: NDArray[np.int64], before: int) -> NDArray[np.float64]:
        """Return the effective pi [client] of a slot.

        Args:
            used: The clients whose updates are used.
            left: [client], planned participations from this slot on, including this one.
            before: Slots before the window, as planned now.
        """
        pi = np.array(self._most_planned(left)) / max(before, 1)
        for client in used:
            weight = self._weight(client, left, before)
            pi[client] = float(1 / weight) if weight > 0 else np.inf
        return pi

    def give(self, used: Sequence[int], left: NDArray[np.int64], before: int) -> None:
        """Count the weights of a slot's updates; the arguments are those of `pi`."""
        weights = {client: self._weight(client, left, before) for client in used}
        self.expect(left)
        for client, weight in weights.items():
            self.given[client] = (self.given[client] + weight).limit_denominator(_FINEST)
            self.times[client] += 1

    def shortfall(self, before: int) -> NDArray[np.float64]:
        """Return the share of W / K that each client lacks, [client]; 0 if it lacks nothing."""
        whole = max(before, 1)
        return np.array([max(0.0, float(1 - given / whole)) for given in self.given])

    def _most_planned(self, left: NDArray[np.int64]) -> list[int]:
        return [max(most, times + int(n)) for most, times, n in zip(self.planned, self.times, left, strict=True)]

    def _weight(self, client: int, left: NDArray[np.int64], before: int) -> Fraction:
        """Return K times the weight of this update."""
        missing = (Fraction(before) - self.given[client]) / max(int(left[client]), 1)
        planned = max(self.planned[client], self.times[client] + int(left[client]), 1)
        most = Fraction(self.makeup) * Fraction(before, planned)
        return max(Fraction(0), min(missing, most))

    def to_dict(self) -> dict[str, object]:
        """Return the state as JSON holds it."""
        return {"given": [str(given) for given in self.given], "times": self.times, "planned": self.planned}

    def restore(self, data: Mapping[str, Sequence[str | int]]) -> None:
        """Continue from a state."""
        self.given = [Fraction(given) for given in data["given"]]
        self.times, self.planned = [int(n) for n in data["times"]], [int(n) for n in data["planned"]]


class ModelDiverged(SlackwaterError):
    """The global model became infinite or NaN; the previous one is in the run's file."""


class LiveModel:
    """The global model in the clients' form, with screening of updates and weights that make up for lost slots."""

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
        """Return a copy of the model in the clients' form."""
        return self._codec.join(self.shared.theta, self.shared.buffers)

    def screen(self, replies: dict[int, Reply]) -> tuple[dict[int, Update], dict[int, str]]:
        """Return the usable updates, in the order of clients, not of arrival; and why others are rejected.

        The models are removed from the replies, to keep one per client in memory.
        """
        updates: dict[int, Update] = {}
        reasons: dict[int, str] = {}
        for client in sorted(client for client, reply in replies.items() if reply.outcome == "done"):
            arrays, replies[client] = replies[client].arrays, replace(replies[client], arrays=None)
            try:
                if arrays is None:
                    raise UnusableUpdateError("it has no model")
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
                f"The global model is no longer finite in slot {decision.slot}; the previous one is kept. Try an "
                "aggregator with bounded weights such as 'memory', or smaller steps."
            )
        return step

    def state(self) -> dict[str, Any]:
        """Return the state without tensors, as JSON holds it."""
        return {"weights": self.weights.to_dict(), "norms": self._screening.to_dict()}

    def restore(self, groups: Groups, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint; raise if its model has another form."""
        theta, now = groups["model"]["theta"], self.shared.theta
        if theta.shape != now.shape or set(groups.get("buffers", {})) != set(self.shared.buffers):
            raise SlackwaterError(
                f"The model has {now.numel()} parameters, but the run's has {theta.numel()}. Resume with the app that "
                "started the run."
            )
        self.shared.restore(groups)
        self.weights.restore(state["weights"])
        self._screening.restore(state["norms"])
