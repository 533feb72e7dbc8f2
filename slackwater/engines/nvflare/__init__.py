"""Schedules on NVIDIA FLARE: in its simulator, in POC mode, or on a provisioned server and sites.

Names are imported on first use, because FLARE takes seconds to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.engines.nvflare.client_api import Meter, measured
    from slackwater.engines.nvflare.script_executor import ScriptExecutor
    from slackwater.engines.nvflare.submit import simulated, submitted
    from slackwater.engines.nvflare.workflow import CarbonAware, FlareTransport

_HOME = {
    "client_api": ("Meter", "measured"),
    "script_executor": ("ScriptExecutor",),
    "submit": ("simulated", "submitted"),
    "workflow": ("CarbonAware", "FlareTransport"),
}
__all__ = ["CarbonAware", "FlareTransport", "Meter", "ScriptExecutor", "measured", "simulated", "submitted"]

__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})


def __dir__() -> list[str]:
    return sorted(__all__)
