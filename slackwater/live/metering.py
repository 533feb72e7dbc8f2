"""What a client's work drew: as measured, else its declared power over the time it took, else what was booked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from slackwater.ledger.ledger import Method
from slackwater.live.transport import Reply
from slackwater.planning.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Energy of one client's work."""

    energy_kwh: float
    """What the ledger's training line is to hold: PUE in it, idle draw (which has its own line) not."""
    seconds: float | None
    method: Method
    corrects: bool
    """Whether it is known better than when it was booked."""


class Meter:
    """Energy of replies; `slot_seconds` is the wall time of a slot, 0 where slots have none."""

    def __init__(self, problem: Problem, slot_seconds: float) -> None:
        fleet, costs = problem.fleet, problem.costs
        self._full, self._idle, self._pue = costs.energy_kwh, costs.idle_kwh, fleet.pue
        self._by_power = ~np.isnan(fleet.power_w) & np.isnan(fleet.energy_kwh)
        self._slot_s = slot_seconds
        share = 1.0 if problem.round_minutes is None else problem.round_minutes / problem.traces.slot_minutes
        self.allowed_seconds = slot_seconds * share
        """Wall time that a client may train for in a slot: its booked energy is that of its power over this time."""

    def read(self, client: int, reply: Reply, sent_at: datetime, now: datetime) -> Reading:
        """Who is late or lost may go on drawing, so all that was booked stays."""
        full = float(self._full[client])
        if reply.outcome in ("late", "lost"):
            return Reading(energy_kwh=full, seconds=None, method="modelled", corrects=False)
        seconds = _seconds(reply, sent_at, now)
        measured = reply.energy_kwh
        if measured is not None and math.isfinite(measured) and measured >= 0:
            waiting = float(self._idle[client]) * (min(1.0, seconds / self._slot_s) if self._slot_s else 0.0)
            energy = max(0.0, measured * float(self._pue[client]) - waiting)
            return Reading(energy_kwh=energy, seconds=seconds, method="measured", corrects=True)
        if not self._slot_s or not self._by_power[client]:
            return Reading(energy_kwh=full, seconds=seconds, method="modelled", corrects=False)
        energy = full * min(1.0, seconds / self.allowed_seconds)
        return Reading(energy_kwh=energy, seconds=seconds, method="modelled", corrects=True)


def _seconds(reply: Reply, sent_at: datetime, now: datetime) -> float:
    """By the client's own clock, where that is within what we saw."""
    seen = max(0.0, (now - sent_at).total_seconds())
    if reply.started_at is None or reply.ended_at is None:
        return seen
    own = (reply.ended_at - reply.started_at).total_seconds()
    return own if 0 <= own <= seen else seen
