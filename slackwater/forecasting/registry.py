"""Forecasters by name, with those of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slackwater.errors import ScenarioError
from slackwater.forecasting.blend import Blend
from slackwater.forecasting.error_model import ErrorModel
from slackwater.forecasting.forecast import Forecaster
from slackwater.forecasting.naive import Persistence, SameHourMean
from slackwater.forecasting.oracle import Oracle
from slackwater.forecasting.ridge import Ridge
from slackwater.registry import Registry

Factory = Callable[..., Forecaster]

_OWN: dict[str, Factory] = {
    "persistence": Persistence,
    "same-hour-mean": SameHourMean,
    "ridge": Ridge,
    "blend": Blend,
    "oracle": Oracle,
    "error-model": ErrorModel,
}
FORECASTERS = Registry("forecaster", "slackwater.forecasters", _OWN)
NEED_TRUTH = ("oracle", "error-model")
"""Those that are given the future (`truth=`), for back-tests only."""
NEED_ARCHIVE = ("blend",)
"""Those that work on a provider's forecasts (`archive=`)."""


def register_forecaster(name: str, factory: Factory) -> None:
    """Make a forecaster known by name; a package does so with an entry point in the group `slackwater.forecasters`.

    Args:
        name: New name, as options and settings use it.
        factory: Makes the forecaster; its options are passed by keyword.
    """
    if not name:
        raise ScenarioError("A forecaster needs a name.")
    FORECASTERS.register(name, factory)


def forecaster_names() -> list[str]:
    """Return all names, with those of installed packages."""
    return FORECASTERS.names()


def forecaster(name: str, **options: Any) -> Forecaster:
    """Make a forecaster by name: `forecaster("same-hour-mean", days=14)`, `forecaster("oracle", truth=traces)`."""
    wanted = name.strip().lower()
    factory = FORECASTERS.get(wanted, shown=name)
    try:
        return factory(**options)
    except TypeError as error:
        raise ScenarioError(f"The forecaster {wanted!r} cannot be made like this: {error}.") from None
