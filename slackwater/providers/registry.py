"""Providers by name, with those that other packages bring."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from slackwater.errors import ScenarioError
from slackwater.providers.base import Context, Provider
from slackwater.providers.eia import Eia
from slackwater.providers.electricity_maps import ElectricityMaps
from slackwater.providers.energy_charts import EnergyCharts
from slackwater.providers.entsoe import Entsoe
from slackwater.providers.keys import Keys
from slackwater.providers.local_files import LocalFiles
from slackwater.providers.neso import Neso
from slackwater.providers.watttime import WattTime

Factory = Callable[[Context], Provider]

ENTRY_POINTS = "slackwater.providers"
PROVIDERS: dict[str, Factory] = {
    "electricitymaps": ElectricityMaps,
    "neso": Neso,
    "energycharts": EnergyCharts,
    "entsoe": Entsoe,
    "eia": Eia,
    "watttime": WattTime,
    "files": LocalFiles,
}
_IN_ORDER = ("electricitymaps", "neso", "energycharts", "entsoe", "eia", "watttime")
_KEYLESS = ("neso", "energycharts")


def provider_names() -> list[str]:
    """All names, those of installed packages included."""
    return sorted({*PROVIDERS, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def usual_providers(keys: Keys) -> tuple[str, ...]:
    """Who is asked if nobody is named, in this order: those that need no key, and those whose key is there."""
    return tuple(name for name in _IN_ORDER if name in _KEYLESS or keys.find(name) is not None)


def make_provider(spec: str, context: Context) -> Provider:
    """The provider of a name, with what follows its colon: `neso`, `electricitymaps:v4`, `files:data/ci`."""
    name, _, option = spec.strip().partition(":")
    factory = PROVIDERS.get(name) or next(
        (point.load() for point in entry_points(group=ENTRY_POINTS) if point.name == name), None
    )
    if factory is None:
        near = difflib.get_close_matches(name.lower(), provider_names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"There is no provider {name!r}.{hint} Known are {', '.join(provider_names())}.")
    made = factory(context.with_option(option))
    if not isinstance(made, Provider):
        raise ScenarioError(f"The provider {name!r} is not a slackwater.providers.Provider; see docs/providers.md.")
    return made
