"""The state of a Flower strategy in a checkpoint: arrays, numbers and generators, without pickle.

A strategy with `state_dict()` and `load_state_dict(state)` says itself what it keeps. Flower's own strategies are known
here. Of any other class, attributes that change during a run are named, and a resume is refused, since it would
continue with another state. The global generators of NumPy and Python are not saved: whoever reads the noise of
differential privacy from a file could remove it.
"""

from __future__ import annotations

import hashlib
import json
import random
import types
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from slackwater.errors import SlackwaterError

Stored = dict[str, NDArray[Any]]  # arrays of a state by path


@runtime_checkable
class Stateful(Protocol):
    """A strategy that can be resumed: its state is arrays, numbers, texts, bytes, generators, and lists and dicts of them."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the next rounds depend on, besides the model."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


_KEPT: Mapping[str, tuple[str, ...]] = {
    "FedAvgM": ("current_arrays", "momentum_vector"),
    "FedOpt": ("m_t", "v_t"),
    "FedXgbCyclic": ("registered_nodes",),
    "DifferentialPrivacyAdaptiveBase": ("clipping_norm",),
    "DifferentialPrivacyFixedClippingBase": ("accountant",),
}
"""Class of Flower -> attributes that its next round depends on."""
_SET_EVERY_ROUND: Mapping[str, tuple[str, ...]] = {
    "FedOpt": ("current_arrays",),
    "QFedAvg": ("current_arrays",),
    "FedXgbBagging": ("current_bst",),
    "DifferentialPrivacyFixedClippingBase": ("current_arrays", "num_sampled_clients", "_pending_events"),
    "DifferentialPrivacyAdaptiveBase": ("current_arrays", "num_sampled_clients"),
}
"""Class of Flower -> attributes that every round sets before it reads them."""
_INNER = "strategy"  # attribute in which Flower's wrappers hold the strategy that they wrap
_DEEPEST = 4  # levels of other objects that a fingerprint looks into


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """Yield a strategy and those that it wraps, from the outside in."""
    found: Any = strategy
    seen: list[Strategy] = []
    while isinstance(found, Strategy) and not any(found is one for one in seen):
        seen.append(found)
        yield found
        found = getattr(found, _INNER, None)


class StrategyState:
    """Saves and restores the state of a strategy, and notices state that it cannot save."""

    def __init__(self, strategy: Strategy, *, ignored: tuple[type, ...] = ()) -> None:
        """Remember the attributes of a new strategy; those that the classes in `ignored` set are not its state."""
        self._layers = list(layers(strategy))
        self._ignored = ignored
        self._first = [self._fingerprints(one) for one in self._layers]

    def save(self) -> tuple[Stored, dict[str, Any]]:
        """Return the arrays and the rest of the state, as JSON holds it."""
        arrays: Stored = {}
        rows = []
        for number, layer in enumerate(self._layers):
            held = {name: _encoded(value, f"{number}.{name}", arrays) for name, value in self._held(layer).items()}
            rows.append({"class": type(layer).__name__, "state": held, "unsaved": self._unsaved(number)})
        return arrays, {"layers": rows}

    def unsaved(self) -> dict[str, list[str]]:
        """Return class -> attributes that changed since the start and cannot be saved."""
        return {type(one).__name__: lost for n, one in enumerate(self._layers) if (lost := self._unsaved(n))}

    def load(self, arrays: Mapping[str, NDArray[Any]], saved: Mapping[str, Any]) -> None:
        """Restore a state.

        Raises:
            SlackwaterError: The strategy is not the one that was saved, or it had state that could not be saved.
        """
        names, now = [row["class"] for row in saved["layers"]], [type(one).__name__ for one in self._layers]
        if names != now:
            raise SlackwaterError(
                f"The run was started with the strategy {' around '.join(names)}, but the app now has "
                f"{' around '.join(now)}. Resume with the strategy that started the run, or start again in another folder."
            )
        for layer, row in zip(self._layers, saved["layers"], strict=True):
            if row["unsaved"]:
                raise SlackwaterError(_refusal(row["class"], row["unsaved"]))
            held = {name: _decoded(value, arrays) for name, value in row["state"].items()}
            if isinstance(layer, Stateful):
                layer.load_state_dict(held)
                continue
            for name, value in held.items():
                kept = getattr(layer, name, None)
                if isinstance(kept, Stateful):  # such as Flower's privacy accountant
                    kept.load_state_dict(value)
                else:
                    setattr(layer, name, value)

    def _held(self, layer: Strategy) -> dict[str, Any]:
        if isinstance(layer, Stateful):
            return dict(layer.state_dict())
        return {
            name: value.state_dict() if isinstance(value := getattr(layer, name, None), Stateful) else value
            for name in _named(layer, _KEPT)
        }

    def _unsaved(self, number: int) -> list[str]:
        layer = self._layers[number]
        if isinstance(layer, Stateful):
            return []
        now, first = self._fingerprints(layer), self._first[number]
        return sorted(name for name in now.keys() | first.keys() if now.get(name) != first.get(name))

    def _fingerprints(self, layer: Strategy) -> dict[str, str]:
        """Return attribute -> a digest of its value, for attributes that nothing else covers."""
        covered = {_INNER, *_named(layer, _KEPT), *_named(layer, _SET_EVERY_ROUND)}
        own = getattr(layer, "not_state", ()) if self._ignored and isinstance(layer, self._ignored) else ()
        return {
            name: _fingerprint(value) for name, value in vars(layer).items() if name not in covered and name not in own
        }


def sentence(unsaved: Mapping[str, list[str]]) -> str:
    """Return the warning for state that cannot be saved."""
    return " ".join(_refusal(name, attributes, resumed=False) for name, attributes in unsaved.items())


def _refusal(name: str, attributes: list[str], *, resumed: bool = True) -> str:
    what = f"{name} changes {', '.join(attributes)} during a run, which a checkpoint does not hold"
    then = "so the run cannot be resumed" if resumed else "so a stopped run cannot be resumed"
    return f"{what}, {then}. Give {name} the methods state_dict() and load_state_dict(state)."


def _named(layer: Strategy, table: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the attributes that a table lists for the classes of Flower in a strategy."""
    flowers = [kind.__name__ for kind in type(layer).__mro__ if kind.__module__.startswith("flwr.")]
    return [attribute for kind in flowers for attribute in table.get(kind, ())]


def _encoded(value: Any, path: str, arrays: Stored) -> Any:
    """Return a value as JSON holds it; arrays go into `arrays` under their path."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.random.Generator):
        return {"generator": value.bit_generator.state}
    if isinstance(value, random.Random):
        return {"random": value.getstate()}
    if isinstance(value, ArrayRecord):
        return {"record": [[name, _array(one.numpy(), f"{path}.{name}", arrays)] for name, one in value.items()]}
    if isinstance(value, Mapping):
        return {"dict": [[key, _encoded(one, f"{path}.{key}", arrays)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_encoded(one, f"{path}.{number}", arrays) for number, one in enumerate(value)]}
    if isinstance(value, bytes):
        return {"bytes": _array(np.frombuffer(value, dtype=np.uint8), path, arrays)}
    if isinstance(value, np.ndarray):
        return {"array": _array(value, path, arrays)}
    if hasattr(value, "detach"):  # a tensor
        return {"tensor": _array(value.detach().cpu().numpy(), path, arrays)}
    raise SlackwaterError(
        f"The state of a strategy cannot hold a {type(value).__name__} ({path}). Use arrays, numbers, texts, bytes, "
        "generators, and lists and dicts of them."
    )


def _array(value: NDArray[Any], path: str, arrays: Stored) -> str:
    arrays[path] = np.array(value)  # a copy: the strategy may change its own
    return path


def _decoded(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "dict":
        return {key: _decoded(one, arrays) for key, one in held}
    if kind == "list":
        return [_decoded(one, arrays) for one in held]
    if kind == "record":
        return ArrayRecord({name: Array(np.array(arrays[path])) for name, path in held})
    if kind == "generator":
        made = np.random.Generator(getattr(np.random, held["bit_generator"])())
        made.bit_generator.state = held
        return made
    if kind == "random":
        drawn = random.Random()
        version, numbers, gauss = held
        drawn.setstate((version, tuple(numbers), gauss))
        return drawn
    if kind == "bytes":
        return arrays[held].tobytes()
    if kind == "tensor":
        import torch

        return torch.from_numpy(np.array(arrays[held]))
    return np.array(arrays[held])


def _fingerprint(value: Any, depth: int = 0) -> str:
    """Return a digest that changes with a value, as far as it can be looked into."""
    arrays: Stored = {}
    try:
        text = json.dumps(_encoded(value, "", arrays), default=str)
    except (SlackwaterError, TypeError, ValueError, RecursionError):
        if depth >= _DEEPEST or callable(value) or isinstance(value, types.ModuleType):
            return type(value).__name__
        inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        text = repr(sorted((str(name), _fingerprint(one, depth + 1)) for name, one in inside.items()))
    digest = hashlib.sha256(text.encode())
    for path, array in arrays.items():
        digest.update(f"{path}{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
