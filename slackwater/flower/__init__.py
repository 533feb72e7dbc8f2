"""Schedules on Flower: in this process, in Flower's simulation, or on SuperLink and SuperNodes.

Names are imported when first used, because Flower takes seconds to load.
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
    "client": ("LocalTrainingError", "Meter", "OutOfTimeError", "measured", "register"),
    "inprocess": ("InProcessGrid",),
    "launch": ("deployed", "in_process"),
    "server": ("run",),
    "strategy": ("CarbonAware",),
    "transport": ("GridTransport",),
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

__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})


def __dir__() -> list[str]:
    return sorted(__all__)
