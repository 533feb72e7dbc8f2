"""Live runs: wait for each slot, re-plan, charge, train and checkpoint. Independent of Flower.

`prepare` writes the run folder; `carry_out` starts or resumes the run. PyTorch is loaded only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily
from slackwater.live.clock import Clock
from slackwater.live.folder import LiveResult, LiveSettings, NoRoundsError, RunStopped, prepare
from slackwater.live.sites import Arrays, Reply, Site, Transport, Work
from slackwater.live.status import LiveStatus, read_status

if TYPE_CHECKING:
    from slackwater.live.runner import carry_out, settle

__all__ = [
    "Arrays",
    "Clock",
    "LiveResult",
    "LiveSettings",
    "LiveStatus",
    "NoRoundsError",
    "Reply",
    "RunStopped",
    "Site",
    "Transport",
    "Work",
    "carry_out",
    "prepare",
    "read_status",
    "settle",
]

__getattr__ = lazily(__name__, {"carry_out": "runner", "settle": "runner"})
