"""Aggregators by name, including those of other packages."""

from __future__ import annotations

from collections.abc import Callable

import torch

from slackwater.errors import ScenarioError
from slackwater.learning import aggregators
from slackwater.learning.aggregators import Aggregator
from slackwater.planning.plan import MEMORY_DTYPES
from slackwater.registry import Registry

Factory = Callable[..., Aggregator]
"""Called without arguments, or with the number after the colon of a name like `memory:0.8`."""

_PLAIN: dict[str, Factory] = {
    "fedavg": aggregators.FedAvg,
    "ufedavg": aggregators.UFedAvg,
    "normalised": aggregators.Normalised,
    "mifa": aggregators.Mifa,
    "fedvarp": aggregators.FedVarp,
}
_TAKE_A_NUMBER: dict[str, Factory] = {
    "clipped": aggregators.Clipped,
    "fedstale": aggregators.FedStale,
    "memory": aggregators.Memory,
    "stride": aggregators.Stride,
    "echo": aggregators.Echo,
}
AGGREGATORS = Registry("aggregator", "slackwater.aggregators", _PLAIN | _TAKE_A_NUMBER)
_NUMBERS = "clipped (the largest weight), fedstale (beta), memory (gamma), stride (gamma), echo (gamma)"


def register_aggregator(name: str, factory: Factory) -> None:
    """Make an aggregator known by name; a package does so with an entry point in the group `slackwater.aggregators`.

    Args:
        name: New name, without a colon, as options and settings use it.
        factory: Makes the aggregator; takes the number after the colon of a name like `memory:0.8`, if there is one.
    """
    if not name or ":" in name:
        raise ScenarioError(f"An aggregator cannot be called {name!r}: the name must not be empty nor hold a colon.")
    AGGREGATORS.register(name, factory)


def aggregator_names() -> list[str]:
    """Return all names, including those of installed packages."""
    return AGGREGATORS.names()


def make_aggregator(spec: str, memory_dtype: str = "float32") -> Aggregator:
    """Return the aggregator of a name, with its number if it takes one: `memory`, `memory:0.8`, `clipped:2`.

    `memory_dtype` is the type of the updates that it stores: float32 as they come; float16 and bfloat16 halve the memory.
    """
    name, colon, number = spec.strip().lower().partition(":")
    factory = AGGREGATORS.get(name)
    if not colon:
        made = factory()
    elif name in _PLAIN:
        raise ScenarioError(
            f"The aggregator {name!r} takes no number, but {spec!r} gives it one. Those that do: {_NUMBERS}."
        )
    else:
        try:
            value = float(number)
        except ValueError:
            raise ScenarioError(f"In the aggregator {spec!r}, {number!r} is not a number.") from None
        made = factory(value)
    if not isinstance(made, Aggregator):
        raise ScenarioError(
            f"The aggregator {name!r} lacks one of aggregate, state and restore; see slackwater.learning.aggregators."
        )
    if memory_dtype not in MEMORY_DTYPES:
        raise ScenarioError(f"memory_dtype must be one of {', '.join(MEMORY_DTYPES)}, not {memory_dtype!r}.")
    if memory_dtype != MEMORY_DTYPES[0] and hasattr(made, "memory_dtype"):
        made.memory_dtype = getattr(torch, memory_dtype)
    return made
