"""A schedule carried out on Flower: in this process, in Flower's simulation, or on SuperLink and SuperNodes.

Nothing here is imported, Flower least of all, before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

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

__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
