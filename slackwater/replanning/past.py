"""What a run has spent and what its clients got, from who trained and the actuals known by now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem
from slackwater.replanning.state import State

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """The slots before the one to decide: settled where the actual is known, in flight after that."""

    spent_kg: float
    """What the settled slots really emitted: training and idle draw."""
    in_flight_kg: float
    """What the slots in flight are held at."""
    expected_kg: float
    """What the slots in flight are expected to emit."""
    slots: NDArray[np.int64]
    """[client], slots trained."""
    trained_ago: NDArray[np.float64]
    """[client], how many slots ago each trained last; infinite for those who never did."""
    training_kg: Floats
    """[client], emissions of training, those in flight as expected."""

    def earned_kg(self, g_max_kg: float) -> Floats:
        """[client], utility so far: what is saved against g_max in every slot trained."""
        return np.maximum(self.slots * g_max_kg - self.training_kg, 0.0)


def look_back(
    problem: Problem, state: State, intensity: Floats, settled: int, measured_kg: Floats | None = None
) -> Past:
    """From the intensity [client, slot] of the horizon: actual in the first `settled` slots, as expected after them.

    `measured_kg` [client, slot], NaN where nothing was measured, takes the place of modelled training emissions.
    """
    costs, now = problem.costs, state.slot
    trained, burnt = state.trained[:, :now], (state.trained | state.lost)[:, :now]
    g = costs.energy_kwh[:, None] * intensity[:, :now]
    if measured_kg is not None:
        g = np.where(np.isnan(measured_kg[:, :now]), g, measured_kg[:, :now])
    training = np.where(burnt, g, 0.0)
    idle = (costs.idle_kwh[:, None] * intensity[:, :now]).sum(axis=0)
    return Past(
        spent_kg=float(training[:, :settled].sum() + idle[:settled].sum()),
        in_flight_kg=float(state.held_kg[settled:now].sum()),
        expected_kg=float(training[:, settled:].sum() + idle[settled:].sum()),
        slots=trained.sum(axis=1),
        trained_ago=now - np.where(trained, np.arange(now), -np.inf).max(axis=1, initial=-np.inf),
        training_kg=np.where(trained, g, 0.0).sum(axis=1),
    )
