"""Providers by name, with those of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from slackwater.registry import Registry

Factory = Callable[[Context], Provider]

_OWN: dict[str, Factory] = {
    "electricitymaps": ElectricityMaps,
    "neso": Neso,
    "energycharts": EnergyCharts,
    "entsoe": Entsoe,
    "eia": Eia,
    "watttime": WattTime,
    "files": LocalFiles,
}
PROVIDERS = Registry("provider", "slackwater.providers", _OWN)
_IN_ORDER = ("electricitymaps", "neso", "energycharts", "entsoe", "eia", "watttime")
_KEYLESS = ("neso", "energycharts")


def provider_names() -> list[str]:
    """Return all names, with those of installed packages."""
    return PROVIDERS.names()


def usual_providers(keys: Keys) -> tuple[str, ...]:
    """Return the default providers, in order: those that need no key, and those whose key is set."""
    return tuple(name for name in _IN_ORDER if name in _KEYLESS or keys.find(name) is not None)


def make_provider(spec: str, context: Context) -> Provider:
    """Make a provider from its name and option: `neso`, `electricitymaps:v4`, `files:data/ci`."""
    name, _, option = spec.strip().partition(":")
    made = PROVIDERS.get(name)(replace(context, option=option))
    if not isinstance(made, Provider):
        raise ScenarioError(f"The provider {name!r} is not a slackwater.providers.Provider; see docs/providers.md.")
    return made
