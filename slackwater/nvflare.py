"""The names for NVIDIA FLARE jobs: `CarbonAware` for the server, `measured` and `ScriptExecutor` for the clients.

The names are those of `slackwater.engines.nvflare`, imported when they are first used.
"""

from typing import TYPE_CHECKING

from slackwater.engines import nvflare

if TYPE_CHECKING:
    from slackwater.engines.nvflare import *  # noqa: F403

__all__ = nvflare.__all__
__dir__, __getattr__ = nvflare.__dir__, nvflare.__getattr__
