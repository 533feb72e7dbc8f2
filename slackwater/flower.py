"""The names for Flower apps: `run` for the ServerApp, `measured` and `register` for the ClientApp, and the strategy.

The names are those of `slackwater.engines.flower`, imported when they are first used.
"""

from typing import TYPE_CHECKING

from slackwater.engines import flower

if TYPE_CHECKING:
    from slackwater.engines.flower import *  # noqa: F403

__all__ = flower.__all__
__dir__, __getattr__ = flower.__dir__, flower.__getattr__
