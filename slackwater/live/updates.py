"""Updates of a live run: conversion of arrays, screening, and weights. All in NumPy: PyTorch is not needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.live.folder import LiveSettings
from slackwater.live.schedule_sources import Decision
from slackwater.live.sites import Arrays, Reply
from slackwater.training.aggregators import make_aggregator, on_arrays
from slackwater.training.global_model import GlobalModel, Groups, Screening, Step, Update, make_server
from slackwater.training.vectors import BFLOAT16, as_float, dtype_name, in_type, is_finite, norm

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # endings of the names of BatchNorm's statistics
_WIDE = (np.dtype(np.float64), np.dtype(np.complex128), np.dtype(np.longdouble), np.dtype(np.clongdouble))


class UnusableUpdateError(ValueError):
    """An update that cannot be used; the message says why."""


def _kind(dtype: np.dtype[Any]) -> str:
    """Return what an array holds: real, complex or whole numbers, or something that cannot be averaged."""
    if dtype == BFLOAT16:
        return "real"
    return {"f": "real", "c": "complex", "i": "whole", "u": "whole", "b": "whole"}.get(dtype.kind, "other")


class Codec:
    """Converts models between arrays and vectors; the first one sets the form of all.

    Real and complex arrays are parameters, and become one vector of real numbers. Whole numbers and the statistics of
    normalisation layers are buffers, which are averaged.
    """

    def __init__(self, initial: Arrays, *, buffers: Sequence[str] = ()) -> None:
        """Take the form of a model; `buffers` are further name endings of arrays that are averaged. Whole numbers always are."""
        endings = (*BUFFERS, *buffers)
        self._form = {name: (array.shape, array.dtype) for name, array in initial.items()}
        for name, (_, dtype) in self._form.items():
            if _kind(dtype) == "other":
                raise ScenarioError(
                    f"The model's array {name!r} has type {dtype_name(dtype)}, which cannot be averaged. {_OWN_STRATEGY}"
                )
        self._buffers = [
            name for name, (_, dtype) in self._form.items() if name.endswith(endings) or _kind(dtype) == "whole"
        ]
        self._place: dict[str, slice] = {}  # parameter -> its place in the vector
        offset = 0
        for name in initial:
            if name not in self._buffers:
                shape, dtype = self._form[name]
                size = math.prod(shape) * (2 if _kind(dtype) == "complex" else 1)
                self._place[name] = slice(offset, offset + size)
                offset += size
        if not self._place:
            raise ScenarioError(
                "The model has no trainable parameters: every array is a buffer or is not of real or complex numbers. "
                f"{_OWN_STRATEGY}"
            )
        double = any(self._form[name][1] in _WIDE for name in self._place)
        self._dtype = np.dtype(np.float64 if double else np.float32)
        self._size = offset

    def split(
        self, arrays: Arrays, rest: tuple[NDArray[Any], Mapping[str, NDArray[Any]]] | None = None
    ) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """Return the parameters as one vector, and the buffers; raise if the form differs or a value is not finite.

        `rest` is the vector and buffers that arrays which are missing keep. Default: none may be missing.
        """
        self._check(arrays, whole=rest is None)
        vector = np.empty(self._size, dtype=self._dtype) if rest is None else rest[0].copy()
        for name, place in self._place.items():
            if name in arrays:
                vector[place] = self._real(np.asarray(arrays[name]))
        buffers = {} if rest is None else dict(rest[1])
        for name in self._buffers:
            if name in arrays:
                buffers[name] = in_type(np.asarray(arrays[name]), self._form[name][1])
        for name, values in (("its parameters", vector), *buffers.items()):
            if not is_finite(values):
                raise UnusableUpdateError(f"NaN or infinite values in {name}")
        return vector, buffers

    def join(self, vector: NDArray[Any], buffers: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the model as a state dict, in its own order and types."""
        joined: dict[str, NDArray[Any]] = {}
        for name, (shape, dtype) in self._form.items():
            if name in buffers:
                joined[name] = buffers[name].copy()
                continue
            part = vector[self._place[name]]
            if _kind(dtype) == "complex":
                part = part.view(np.result_type(self._dtype, np.complex64))
            joined[name] = in_type(part.reshape(shape), dtype)
        return joined

    def __len__(self) -> int:
        """Return how many arrays the model has."""
        return len(self._form)

    def _real(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array of parameters as a flat array of real numbers: a complex number becomes two."""
        if _kind(array.dtype) != "complex":
            return as_float(array).reshape(-1)
        wide = np.result_type(self._dtype, np.complex64)
        return np.ascontiguousarray(array, dtype=wide).reshape(-1).view(self._dtype)

    def _check(self, arrays: Arrays, *, whole: bool) -> None:
        odd = sorted(set(arrays) ^ set(self._form) if whole else set(arrays) - set(self._form))
        if odd:
            raise UnusableUpdateError(f"its arrays differ from the model's ({', '.join(odd[:3])})")
        if not arrays:
            raise UnusableUpdateError("it has none of the model's arrays")
        for name, sent in arrays.items():
            shape, dtype = self._form[name]
            if sent.shape != shape:
                raise UnusableUpdateError(f"{name} has shape {sent.shape}, but the model has {shape}")
            if _kind(sent.dtype) != _kind(dtype):
                raise UnusableUpdateError(
                    f"{name} has type {dtype_name(sent.dtype)}, but the model has {dtype_name(dtype)}"
                )


_OWN_STRATEGY = (
    "Trees and other models in bytes need a Flower strategy that combines them, such as FedXgbBagging: "
    "CarbonAware(FedXgbBagging(..), plan=.., ledger=..)."
)

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
        aggregator = on_arrays(make_aggregator(settings.aggregator, settings.memory_dtype))
        server = make_server(settings.server, settings.server_lr)
        self.shared = GlobalModel(theta, buffers, clients=clients, aggregator=aggregator, server=server)
        self.weights = MakeupWeights(clients, makeup=settings.makeup)
        self._screening = Screening(settings.max_norm_ratio)
        self._clients, self._max_ratio = clients, settings.max_norm_ratio
        self._partial = set[int]()  # clients that sent some of the model's arrays
        self.notes: dict[int, str] = {}  # client -> remark on its update of this round, no reason to reject it

    def arrays(self) -> Arrays:
        """Return a copy of the model in the clients' form."""
        return self._codec.join(self.shared.theta, self.shared.buffers)

    def screen(self, replies: dict[int, Reply]) -> tuple[dict[int, Update], dict[int, str]]:
        """Return the usable updates, in the order of clients, not of arrival; and why others are rejected.

        The models are removed from the replies, to keep one per client in memory.
        """
        updates: dict[int, Update] = {}
        reasons: dict[int, str] = {}
        self.notes = {}
        for client in sorted(client for client, reply in replies.items() if reply.outcome == "done"):
            arrays, replies[client] = replies[client].arrays, replace(replies[client], arrays=None)
            try:
                if arrays is None:
                    raise UnusableUpdateError("it has no model")
                vector, buffers = self._codec.split(arrays, (self.shared.theta, self.shared.buffers))
                with np.errstate(over="ignore"):  # too long for the type: its length is infinite
                    updates[client] = Update(update=self.shared.theta - vector, buffers=buffers)
                if len(arrays) < len(self._codec) and client not in self._partial:
                    self._partial.add(client)
                    self.notes[client] = (
                        f"sends {len(arrays)} of the model's {len(self._codec)} arrays; it keeps the others"
                    )
            except UnusableUpdateError as error:
                reasons[client] = str(error)
        norms = {client: norm(sent.update) for client, sent in updates.items()}
        for client in [client for client, length in norms.items() if not math.isfinite(length)]:
            reasons[client] = "its update is too long for the model's type"
            del updates[client], norms[client]
        for client, times in self._screening.too_long(norms, norm(self.shared.theta)).items():
            reasons[client] = f"its update is {times:.3g} times as long as usual, max_norm_ratio is {self._max_ratio}"
            del updates[client]
        return updates, reasons

    def step(self, decision: Decision, number: int, updates: Mapping[int, Update]) -> Step:
        """Move the model by the updates of a round, with effective weights before the window."""
        pi = np.ones(self._clients)
        if not decision.in_window:
            pi = self.weights.pi(list(updates), decision.left, decision.before)
            self.weights.give(list(updates), decision.left, decision.before)
        with np.errstate(over="ignore", invalid="ignore"):  # a model that is not finite raises below
            step = self.shared.step(updates, slot=decision.slot, number=number, in_window=decision.in_window, pi=pi)
        if not step.update_norm <= float(np.finfo(self.shared.theta.dtype).max) or not step.finite:
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
                f"The model has {now.size} parameters, but the run's has {theta.size}. Resume with the app that "
                "started the run."
            )
        self.shared.restore(groups)
        self.weights.restore(state["weights"])
        self._screening.restore(state["norms"])
