"""Compute the emissions of a schedule from its matrix alone, independently of any solver."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem, utilities

_CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emissions:
    """Emissions of a schedule up to its end, kg CO2e."""

    training_kg: NDArray[np.float64]
    """[client], what training adds to the idle draw, fine-tuning window included."""
    idle_kg: NDArray[np.float64]
    """[client], idle draw in all slots up to the end."""
    network_kg: NDArray[np.float64]
    """[client], sending the model to the client and back in its slots."""
    evaluation_kg: NDArray[np.float64]
    """[client], evaluating on the client in its slots."""
    server_kg: float
    """The server, in the slots in which anyone trains."""
    utility: NDArray[np.float64]
    """[client], the sum of (g_max - g) over its slots, kg: the paper's u. Utility from before the horizon is included."""

    @property
    def client_kg(self) -> NDArray[np.float64]:
        """Return the emissions of each client from all causes [client], kg."""
        return self.training_kg + self.idle_kg + self.network_kg + self.evaluation_kg

    @property
    def by_cause_kg(self) -> dict[str, float]:
        """Return cause -> kg, with the names that the ledger uses."""
        return {
            "training": math.fsum(self.training_kg),
            "idle": math.fsum(self.idle_kg),
            "server": self.server_kg,
            "network": math.fsum(self.network_kg),
            "evaluation": math.fsum(self.evaluation_kg),
        }

    @property
    def total_kg(self) -> float:
        """Return the total emissions, kg."""
        return sum(self.by_cause_kg.values())


def emissions(problem: Problem, packed: NDArray[np.uint8], end: int) -> Emissions:
    """Return the emissions of the schedule [client, slot], packed along the slots, that ends at s = `end`."""
    costs = problem.costs
    training, slots = np.empty(costs.clients), np.empty(costs.clients)
    beside = costs.network_kwh.any() or costs.evaluation_kwh.any()
    per_kwh = np.zeros(costs.clients)  # kg that 1 kWh in each of a client's slots would emit
    active = np.zeros(costs.slots, dtype=bool)
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        chosen = np.unpackbits(packed[part], axis=1, count=costs.slots).astype(bool)
        training[part] = (costs.dense(part, kwh=costs.training_kwh) * chosen).sum(axis=1)
        if beside:
            per_kwh[part] = (costs.intensity[costs.row[part]] * chosen).sum(axis=1)
        slots[part] = chosen.sum(axis=1)
        active |= chosen.any(axis=0)
    until_end = costs.intensity[:, : problem.rounds + end].sum(axis=1)
    network, evaluation = costs.network_kwh * per_kwh, costs.evaluation_kwh * per_kwh
    return Emissions(
        training_kg=training,
        network_kg=network,
        evaluation_kg=evaluation,
        idle_kg=costs.idle_kwh * until_end[costs.row],
        server_kg=0.0 if costs.server_kg is None else math.fsum(costs.server_kg[active]),
        utility=utilities(slots, training + network + evaluation, problem.g_max, problem.earned),
    )


def kg_by_slot(problem: Problem, packed: NDArray[np.uint8], end: int) -> NDArray[np.float64]:
    """Return the emissions of the schedule from all causes [slot], kg; 0 after its end."""
    costs = problem.costs
    kg = costs.idle_kg()
    kg[problem.rounds + end :] = 0.0
    active = np.zeros(costs.slots, dtype=bool)
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        chosen = np.unpackbits(packed[part], axis=1, count=costs.slots).astype(bool)
        kg += (costs.dense(part) * chosen).sum(axis=0)
        active |= chosen.any(axis=0)
    if costs.server_kg is not None:
        kg += np.where(active, costs.server_kg, 0.0)
    return kg
