"""Forecasters by name, with those that other packages bring."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from slackwater.errors import ScenarioError
from slackwater.forecasting.blend import Blend
from slackwater.forecasting.error_model import ErrorModel
from slackwater.forecasting.forecast import Forecaster
from slackwater.forecasting.naive import Persistence, SameHourMean
from slackwater.forecasting.oracle import Oracle
from slackwater.forecasting.ridge import Ridge

Factory = Callable[..., Forecaster]

ENTRY_POINTS = "slackwater.forecasters"
_FACTORIES: dict[str, Factory] = {
    "persistence": Persistence,
    "same-hour-mean": SameHourMean,
    "ridge": Ridge,
    "blend": Blend,
    "oracle": Oracle,
    "error-model": ErrorModel,
}
NEED_TRUTH = ("oracle", "error-model")
"""Those that are told the future (`truth=`) and so serve back-tests only."""
NEED_ARCHIVE = ("blend",)
"""Those that work on a provider's forecasts (`archive=`)."""


def register_forecaster(name: str, factory: Factory) -> None:
    """Make a forecaster known by name; a package does so with an entry point in the group `slackwater.forecasters`."""
    if not name:
        raise ScenarioError("A forecaster needs a name.")
    if name in _FACTORIES and _FACTORIES[name] is not factory:
        raise ScenarioError(f"There is a forecaster {name!r} already. Choose another name.")
    _FACTORIES[name] = factory


def forecaster_names() -> list[str]:
    """All names, those of installed packages included."""
    return sorted({*_FACTORIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def forecaster(name: str, **options: Any) -> Forecaster:
    """The forecaster of a name: `forecaster("same-hour-mean", days=14)`, `forecaster("oracle", truth=traces)`."""
    wanted = name.strip().lower()
    factory = _FACTORIES.get(wanted) or next(
        (point.load() for point in entry_points(group=ENTRY_POINTS) if point.name.lower() == wanted), None
    )
    if factory is None:
        near = difflib.get_close_matches(wanted, forecaster_names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"There is no forecaster {name!r}.{hint} Known are {', '.join(forecaster_names())}.")
    try:
        made: Forecaster = factory(**options)
    except TypeError as error:
        raise ScenarioError(f"The forecaster {wanted!r} cannot be made like this: {error}.") from None
    return made
