"""Schedules on Flower: in this process, in Flower's simulation, or on SuperLink and SuperNodes.

Names are imported on first use, because Flower takes seconds to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.engines.flower.client import Meter, keep_state, measured, register
    from slackwater.engines.flower.grid import GridTransport, InProcessGrid
    from slackwater.engines.flower.launch import deployed, in_process
    from slackwater.engines.flower.strategy import CarbonAware, run
    from slackwater.engines.flower.task_app import client_app, server_app
    from slackwater.engines.metering import LocalTrainingError, OutOfTimeError

_HOME = {
    "client": ("LocalTrainingError", "Meter", "OutOfTimeError", "keep_state", "measured", "register"),
    "grid": ("GridTransport", "InProcessGrid"),
    "launch": ("deployed", "in_process"),
    "strategy": ("CarbonAware", "run"),
    "task_app": ("client_app", "server_app"),
}
__all__ = [
    "CarbonAware",
    "GridTransport",
    "InProcessGrid",
    "LocalTrainingError",
    "Meter",
    "OutOfTimeError",
    "client_app",
    "deployed",
    "in_process",
    "keep_state",
    "measured",
    "register",
    "run",
    "server_app",
]

__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})


def __dir__() -> list[str]:
    return sorted(__all__)
