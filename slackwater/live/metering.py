"""Energy of a client's round: measured, else its declared power over the time it took, else as charged at the start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from slackwater.ledger.ledger import Method
from slackwater.live.transport import Arrays, Reply
from slackwater.planning.problem import Problem

BYTES_PER_GB, BYTES_PER_MB = 1e9, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Energy of one client's round."""

    energy_kwh: float  # what the ledger's training line is to hold: PUE in it, idle draw (which has its own line) not
    seconds: float | None
    method: Method
    corrects: bool  # whether it is known better than when it was booked
    evaluation_kwh: float | None = None  # what the evaluation line is to hold; None: what was booked
    network_kwh: float | None = None  # what the network line is to hold; None: what was booked


class Meter:
    """Energy of replies; `slot_seconds` is the wall time of a slot, 0 where slots have none."""

    def __init__(self, problem: Problem, slot_seconds: float) -> None:
        fleet, costs = problem.fleet, problem.costs
        self._full, self._idle, self._pue = costs.training_kwh, costs.idle_kwh, fleet.pue
        self._share, self._network = problem.evaluation_share, costs.network_kwh
        self._kwh_per_byte = problem.network_kwh_per_gb / BYTES_PER_GB
        self._by_power = ~np.isnan(fleet.power_w) & np.isnan(fleet.energy_kwh)
        self._slot_s = slot_seconds
        share = 1.0 if problem.round_minutes is None else problem.round_minutes / problem.traces.slot_minutes
        self.allowed_seconds = slot_seconds * share
        """Wall time that a client may train for in a slot: its booked energy is that of its power over this time."""

    def read(self, client: int, reply: Reply, sent_at: datetime, now: datetime) -> Reading:
        """Return what the round drew. A late or lost client may still draw power, so all that was booked stands."""
        full = float(self._full[client])
        if reply.outcome in ("late", "lost"):
            return Reading(energy_kwh=full, seconds=None, method="modelled", corrects=False)
        seconds, network = _seconds(reply, sent_at, now), self._sent_kwh(client, reply)
        measured = reply.energy_kwh
        method: Method = "modelled"
        if measured is not None and math.isfinite(measured) and measured >= 0:
            waiting = float(self._idle[client]) * (min(1.0, seconds / self._slot_s) if self._slot_s else 0.0)
            energy, method = max(0.0, measured * float(self._pue[client]) - waiting), "measured"
        elif self._slot_s and self._by_power[client]:
            energy = full * min(1.0, seconds / self.allowed_seconds)
        else:
            return Reading(energy_kwh=full, seconds=seconds, method=method, corrects=False, network_kwh=network)
        training, evaluation = self._parts(energy, seconds, reply.evaluation_seconds)
        return Reading(
            energy_kwh=training, seconds=seconds, method=method, corrects=True, evaluation_kwh=evaluation,
            network_kwh=network,
        )  # fmt: skip

    def _parts(self, energy_kwh: float, seconds: float, evaluation_s: float | None) -> tuple[float, float | None]:
        """Return the energy of training and of evaluation: by the time that the client says, else by the planned share."""
        if evaluation_s is None or not math.isfinite(evaluation_s) or evaluation_s < 0:
            return energy_kwh, self._share * energy_kwh if self._share else None
        evaluation = energy_kwh * (min(1.0, evaluation_s / seconds) if seconds > 0 else 0.0)
        return energy_kwh - evaluation, evaluation

    def _sent_kwh(self, client: int, reply: Reply) -> float | None:
        """Return what sending the model and the reply took; None where the network is not counted."""
        booked = float(self._network[client])
        if not booked:
            return None
        back = 0 if reply.arrays is None else model_bytes(reply.arrays)
        return booked / 2 + self._kwh_per_byte * back


def model_bytes(arrays: Arrays) -> int:
    """Return the size of a model's arrays, in bytes."""
    return sum(int(array.nbytes) for array in arrays.values())


def _seconds(reply: Reply, sent_at: datetime, now: datetime) -> float:
    """Return the seconds by the client's own clock, if they are within what we saw."""
    seen = max(0.0, (now - sent_at).total_seconds())
    if reply.started_at is None or reply.ended_at is None:
        return seen
    own = (reply.ended_at - reply.started_at).total_seconds()
    return own if 0 <= own <= seen else seen
