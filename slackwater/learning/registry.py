"""Aggregators by name, with those that other packages bring."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from slackwater.errors import ScenarioError
from slackwater.learning.aggregators import (
    Aggregator,
    Clipped,
    Echo,
    FedAvg,
    FedStale,
    FedVarp,
    Memory,
    Mifa,
    Normalised,
    Stride,
    UFedAvg,
)

Factory = Callable[..., Aggregator]
"""Called without arguments, or with the number after the colon of a name like `memory:0.8`."""

ENTRY_POINTS = "slackwater.aggregators"
_FACTORIES: dict[str, Factory] = {
    "fedavg": FedAvg,
    "ufedavg": UFedAvg,
    "normalised": Normalised,
    "clipped": Clipped,
    "mifa": Mifa,
    "fedvarp": FedVarp,
    "fedstale": FedStale,
    "memory": Memory,
    "stride": Stride,
    "echo": Echo,
}
_TAKE_A_NUMBER = {
    "clipped": "the largest weight",
    "fedstale": "beta",
    "memory": "gamma",
    "stride": "gamma",
    "echo": "gamma",
}


def register_aggregator(name: str, factory: Factory) -> None:
    """Make an aggregator known by name; a package does so with an entry point in the group `slackwater.aggregators`."""
    if not name or ":" in name:
        raise ScenarioError(f"An aggregator cannot be called {name!r}: the name must not be empty nor hold a colon.")
    if name in _FACTORIES and _FACTORIES[name] is not factory:
        raise ScenarioError(f"There is an aggregator {name!r} already. Choose another name.")
    _FACTORIES[name] = factory


def aggregator_names() -> list[str]:
    """All names, those of installed packages included."""
    return sorted({*_FACTORIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def make_aggregator(spec: str) -> Aggregator:
    """The aggregator of a name, with its number if it takes one: `memory`, `memory:0.8`, `clipped:2`."""
    name, colon, number = spec.strip().lower().partition(":")
    factory = _FACTORIES.get(name) or next(
        (point.load() for point in entry_points(group=ENTRY_POINTS) if point.name.lower() == name), None
    )
    if factory is None:
        near = difflib.get_close_matches(name, aggregator_names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"There is no aggregator {name!r}.{hint} Known are {', '.join(aggregator_names())}.")
    if not colon:
        made = factory()
    elif name in _FACTORIES and factory in (FedAvg, UFedAvg, Normalised, Mifa, FedVarp):
        takes = ", ".join(f"{key} ({what})" for key, what in _TAKE_A_NUMBER.items())
        raise ScenarioError(
            f"The aggregator {name!r} takes no number, but {spec!r} gives it one. Those that do: {takes}."
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
    return made
