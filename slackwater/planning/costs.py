"""What a round costs, factored so that a million clients need little memory: g = energy of a round x intensity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RoundCause = Literal["training", "network", "evaluation"]
"""What a client-slot is charged for beside the idle draw."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """g[client, slot] = energy_kwh[client] * intensity[row[client], slot], kg CO2e."""

    training_kwh: NDArray[np.float64]
    """[client], what the training of one round adds to the idle draw, PUE included."""
    network_kwh: NDArray[np.float64]
    """[client], sending the model to the client and back in one round; 0 where that is not counted."""
    evaluation_kwh: NDArray[np.float64]
    """[client], evaluating on the client in one round, PUE included."""
    energy_kwh: NDArray[np.float64] = field(init=False)
    """[client], all that one round adds to the idle draw: training, network and evaluation."""
    idle_kwh: NDArray[np.float64]
    """[client], idle energy of one slot, PUE included."""
    row: NDArray[np.intp]
    """[client], row of the intensity."""
    intensity: NDArray[np.float64]
    """[row, slot], kg/kWh, over the horizon."""
    mask: NDArray[np.intp]
    """[client], row of `available`."""
    available: NDArray[np.bool_]
    """[mask, slot], whether clients with this mask can train."""
    server_kg: NDArray[np.float64] | None = None
    """[slot], charged once in each slot in which anyone trains; None where nothing is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "energy_kwh", self.training_kwh + self.network_kwh + self.evaluation_kwh)

    @property
    def round_kwh(self) -> dict[RoundCause, NDArray[np.float64]]:
        """Return cause -> kWh of one round [client]; training always, the others where a client has any."""
        parts: dict[RoundCause, NDArray[np.float64]] = {"training": self.training_kwh}
        if self.network_kwh.any():
            parts["network"] = self.network_kwh
        if self.evaluation_kwh.any():
            parts["evaluation"] = self.evaluation_kwh
        return parts

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.row)

    @property
    def slots(self) -> int:
        """Length of the horizon."""
        return int(self.intensity.shape[1])

    @property
    def g_max(self) -> float:
        """The dearest client-slot of the horizon, kg: the paper's g_max, the same for every end time."""
        peak = np.zeros(len(self.intensity))
        np.maximum.at(peak, self.row, self.energy_kwh)
        return float((peak * self.intensity.max(axis=1)).max())

    def dense(
        self, clients: slice | NDArray[np.intp] = slice(None), *, kwh: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return g[client, slot] of some clients, kg; with `kwh` [client], that of one part of a round."""
        return (self.energy_kwh if kwh is None else kwh)[clients, None] * self.intensity[self.row[clients]]

    def idle_kg(self) -> NDArray[np.float64]:
        """[slot], idle emissions of all clients together."""
        per_row = np.bincount(self.row, weights=self.idle_kwh, minlength=len(self.intensity))
        return per_row @ self.intensity

    def can_train(self, clients: slice | NDArray[np.intp] = slice(None)) -> NDArray[np.bool_]:
        """[client, slot], availability of some clients."""
        return self.available[self.mask[clients]]
