"""Between a model as clients send it, a state dict of arrays, and what aggregators work on: one vector and buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slackwater.errors import ScenarioError
from slackwater.learning.flat import is_finite
from slackwater.live.transport import Arrays

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # endings of the names of BatchNorm's statistics


class UnusableUpdateError(ValueError):
    """What a client sent is no model of ours; the message says why."""


class Codec:
    """Takes models apart and puts them together, all of the form of the first one."""

    def __init__(self, initial: Arrays, *, buffers: Sequence[str] = ()) -> None:
        """Take the form of a model; `buffers` are further endings of names that are averaged, as arrays of no floats always are."""
        endings = (*BUFFERS, *buffers)
        self._form = {name: (array.shape, array.dtype) for name, array in initial.items()}
        self._buffers = [
            name
            for name, array in initial.items()
            if name.endswith(endings) or not np.issubdtype(array.dtype, np.floating)
        ]
        self._parameters = [name for name in initial if name not in self._buffers]
        if not self._parameters:
            raise ScenarioError("The model has no parameters to train: every array is a buffer or not of floats.")
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
                raise UnusableUpdateError(f"{name} hold values that are not numbers (NaN or infinite)")
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
            raise UnusableUpdateError(f"it has other arrays than the model ({', '.join(odd[:3])})")
        for name, (shape, dtype) in self._form.items():
            sent = arrays[name]
            if sent.shape != shape:
                raise UnusableUpdateError(f"{name} has the shape {sent.shape}, the model's is {shape}")
            if np.issubdtype(dtype, np.floating) != np.issubdtype(sent.dtype, np.floating):
                raise UnusableUpdateError(f"{name} is of type {sent.dtype}, the model's is {dtype}")
