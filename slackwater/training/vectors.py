"""Vectors of a model: NumPy arrays in live runs, PyTorch tensors in `train`. PyTorch is imported only to make a tensor.

Tensors use PyTorch's own operations, so that `train` may compute on a graphics card. Sums over arrays are in double
precision and in a fixed order, so that their bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = Any
"""A flat NumPy array or a flat tensor. Functions here accept both and return the kind that they were given."""

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""bfloat16 as NumPy can hold it: the bits of each number, under their name. NumPy has no such type of its own."""
_PIECE = 2**20  # numbers that are converted at a time, to keep temporary copies small


def is_tensor(value: object) -> bool:
    """Return whether a value is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_tensor(array: Vector) -> Vector:
    """Return an array as a tensor that shares its memory, if the array may be written; a tensor is returned as it is."""
    if is_tensor(array):
        return array
    import torch

    writable = array if array.flags.writeable else array.copy()
    if array.dtype == BFLOAT16:
        return torch.from_numpy(writable.view("<i2")).view(torch.bfloat16)
    return torch.from_numpy(writable)


def as_array(value: Any) -> NDArray[Any]:
    """Return a tensor or an array as a NumPy array, for an engine that sends it; it may share memory with the value.

    A bfloat16 tensor becomes float32, which engines can send and clients can load into a bfloat16 model.
    """
    if not hasattr(value, "detach"):
        array = np.asarray(value)
        return array.view(BFLOAT16) if array.dtype.name == "bfloat16" else array  # as ml_dtypes has it for JAX
    held = value.detach().cpu().resolve_conj()
    return (held.float() if str(held.dtype) == "torch.bfloat16" else held).numpy()  # type: ignore[no-any-return]


def memory(vector: Vector) -> memoryview:
    """Return the bytes of an array or tensor; without a copy if it is contiguous and in main memory."""
    if is_tensor(vector):
        held = vector.detach().cpu().contiguous().reshape(-1)
        return held.view(sys.modules["torch"].uint8).numpy().data  # type: ignore[no-any-return]
    return np.ascontiguousarray(vector).reshape(-1).view(np.uint8).data


def filled(like: Vector, value: float) -> Vector:
    """Return a vector of equal values with the type and length of another."""
    return sys.modules["torch"].full_like(like, value) if is_tensor(like) else np.full_like(like, value)


def norm(vector: Vector) -> float:
    """Return the Euclidean length; the same bits on every machine for an array."""
    return float(vector.norm()) if is_tensor(vector) else math.sqrt(dot(vector, vector))


def dot(one: Vector, other: Vector) -> float:
    """Return the inner product of two vectors; `other` may be stored in half precision."""
    if is_tensor(one):
        return float(one.dot(other.to(one.dtype)))
    pieces = zip(_pieces(one), _pieces(other), strict=True)
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite length is judged by the caller
        return math.fsum(float(np.add.reduce(np.multiply(a, b, dtype=np.float64))) for a, b in pieces)


def weighted_sum(terms: Iterable[tuple[float, Vector]], like: Vector) -> Vector:
    """Return the weighted sum in the order given, in the type of `like`.

    It is computed element by element, so its bits do not depend on the number of threads.
    """
    total: Any = None
    for weight, term in terms:
        if is_tensor(term):
            total = term.to(like.dtype) * weight if total is None else total.add_(term, alpha=weight)
        elif total is None:
            total = as_float(term).astype(like.dtype, copy=False) * like.dtype.type(weight)
        else:
            for at in range(0, total.size, _PIECE):
                total[at : at + _PIECE] += as_float(term[at : at + _PIECE]) * like.dtype.type(weight)
    assert total is not None
    return total


def is_finite(values: Vector) -> bool:
    """Return whether all values are finite. In pieces, since both libraries copy their input."""
    if is_tensor(values):
        torch = sys.modules["torch"]
        return all(bool(torch.isfinite(piece).all()) for piece in torch.split(values.reshape(-1), _PIECE))
    return all(bool(np.isfinite(piece).all()) for piece in _pieces(values.reshape(-1)))


def average_buffers(buffers: Sequence[Mapping[str, Vector]]) -> dict[str, Vector]:
    """Return the plain mean over the participants; whole numbers (counts of batches) are rounded."""
    means: dict[str, Vector] = {}
    for name, first in buffers[0].items():
        tensor = is_tensor(first)
        total: Any = (first.double() if first.device.type != "mps" else first.float()) if tensor else _double(first)
        for other in buffers[1:]:
            total = total + (other[name] if tensor else _double(other[name]))
        mean = total / len(buffers)
        if tensor:
            means[name] = (mean if first.is_floating_point() else mean.round()).to(first.dtype)
        else:
            means[name] = np.asarray(in_type(mean if first.dtype.kind not in "iub" else np.round(mean), first.dtype))
    return means


def half(vector: Vector, dtype: str) -> Vector:
    """Return a vector in `float16` or `bfloat16`; larger values than the type holds become its largest."""
    if is_tensor(vector):
        torch = sys.modules["torch"]
        kind = getattr(torch, dtype)
        most = torch.finfo(kind).max  # larger values would become infinite in float16 (above 65504)
        return vector.clamp(-most, most).to(kind)
    if dtype == "float16":
        most = np.finfo(np.float16).max
        return np.clip(vector, -most, most).astype(np.float16)
    largest = float(as_float(np.array([0x7F7F], dtype="<u2").view(BFLOAT16))[0])
    return in_type(np.clip(vector, -largest, largest), BFLOAT16)


def itemsize(dtype: str) -> int:
    """Return the bytes of a number of a type, by its name."""
    return BFLOAT16.itemsize if dtype == "bfloat16" else np.dtype(dtype).itemsize


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """Return NumPy's type of a name as checkpoints store it; None if there is none."""
    if name == "bfloat16":
        return BFLOAT16
    try:
        found = np.dtype(name)
    except TypeError:
        return None
    return found if found.kind in "fiubcSV" else None


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a type, as PyTorch also calls it."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def as_float(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that NumPy can compute with: bfloat16 as float32, others unchanged."""
    if array.dtype != BFLOAT16:
        return array
    bits = np.ascontiguousarray(array).view("<u2").astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32).reshape(array.shape)


def in_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of an array in a type; bfloat16 is rounded to the nearest, ties to even, as PyTorch does."""
    if dtype != BFLOAT16:
        return as_float(array).astype(dtype, copy=True)
    bits = np.ascontiguousarray(as_float(array), dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    rounded = np.where(np.isnan(bits.view(np.float32)), np.uint32(0x7FC0), rounded)  # rounding may carry into the sign
    return rounded.astype("<u2").view(BFLOAT16).reshape(array.shape)


def _double(array: NDArray[Any]) -> NDArray[Any]:
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    return as_float(array).astype(wide)


def _pieces(vector: NDArray[Any]) -> Iterator[NDArray[Any]]:
    yield from (as_float(vector[at : at + _PIECE]) for at in range(0, vector.size, _PIECE))
