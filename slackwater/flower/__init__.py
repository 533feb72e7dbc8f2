"""A schedule carried out on Flower: in this process, in Flower's simulation, or on SuperLink and SuperNodes.

Nothing here is imported, Flower least of all, before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.errors import MissingExtraError

if TYPE_CHECKING:
    from slackwater.flower.client import LocalTrainingError, Meter, OutOfTimeError, measured, register
    from slackwater.flower.inprocess import InProcessGrid
    from slackwater.flower.launch import deployed, in_process
    from slackwater.flower.server import run
    from slackwater.flower.strategy import CarbonAware
    from slackwater.flower.transport import GridTransport

_HOME = {
    "CarbonAware": "strategy",
    "GridTransport": "transport",
    "InProcessGrid": "inprocess",
    "LocalTrainingError": "client",
    "Meter": "client",
    "OutOfTimeError": "client",
    "deployed": "launch",
    "in_process": "launch",
    "measured": "client",
    "register": "client",
    "run": "server",
}
__all__ = [
    "CarbonAware",
    "GridTransport",
    "InProcessGrid",
    "LocalTrainingError",
    "Meter",
    "OutOfTimeError",
    "deployed",
    "in_process",
    "measured",
    "register",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "flwr":
            raise MissingExtraError("Flower", "flower") from None
        if error.name == "torch":
            raise MissingExtraError("PyTorch", "torch") from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
