"""What a schedule emits, from the matrix alone: no solver's word is taken for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem
from slackwater.planning.utility import utilities

_CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emissions:
    """Emissions of a schedule up to its end, kg CO2e."""

    training_kg: NDArray[np.float64]
    """[client], what training adds to the idle draw, fine-tuning window included."""
    idle_kg: NDArray[np.float64]
    """[client], idle draw in all slots up to the end."""
    server_kg: float
    """Server and network, in the slots in which anyone trains."""
    utility: NDArray[np.float64]
    """[client], the sum of (g_max - g) over its slots, kg: the paper's u; what was earned before the horizon included."""

    @property
    def total_kg(self) -> float:
        """All of it."""
        return math.fsum(self.training_kg) + math.fsum(self.idle_kg) + self.server_kg


def emissions(problem: Problem, packed: NDArray[np.uint8], end: int) -> Emissions:
    """Emissions of the schedule [client, slot], packed along the slots, that ends at s = `end`."""
    costs = problem.costs
    training, slots = np.empty(costs.clients), np.empty(costs.clients)
    active = np.zeros(costs.slots, dtype=bool)
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        chosen = np.unpackbits(packed[part], axis=1, count=costs.slots).astype(bool)
        training[part] = (costs.dense(part) * chosen).sum(axis=1)
        slots[part] = chosen.sum(axis=1)
        active |= chosen.any(axis=0)
    until_end = costs.intensity[:, : problem.rounds + end].sum(axis=1)
    return Emissions(
        training_kg=training,
        idle_kg=costs.idle_kwh * until_end[costs.row],
        server_kg=0.0 if costs.server_kg is None else math.fsum(costs.server_kg[active]),
        utility=utilities(slots, training, problem.g_max, problem.earned),
    )
