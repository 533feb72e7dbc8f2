"""What is free of the budget, and what coming slots and the window are held at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.forecasting.forecast import Forecast
from slackwater.planning.problem import Problem
from slackwater.replanning.bounds import Bounds
from slackwater.replanning.past import Past
from slackwater.replanning.settings import Settings
from slackwater.replanning.state import State

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(kw_only=True, eq=False)
class Holding:
    """What is known when a slot is decided: how much is free, and what slots and the window are held at."""

    problem: Problem
    settings: Settings
    state: State
    known: Traces
    expected: Forecast
    """From the end of what is known to the end of the horizon."""
    offset: int
    """Slots of the run that are settled; negative where the actuals end before it begins."""
    intensity: Floats
    """[zone, slot] of the horizon, kg/kWh: actual where settled, expected after that."""
    rows: NDArray[np.intp]
    """[client], row of the intensity."""
    past: Past

    def __post_init__(self) -> None:
        self.slot = self.state.slot
        self.nobody: Mask = np.zeros(len(self.rows), dtype=bool)

    @property
    def free_kg(self) -> float:
        """What is neither spent nor held for slots in flight."""
        return self.problem.budget_kg - self.past.spent_kg - self.past.in_flight_kg

    @cached_property
    def bounds(self) -> Bounds:
        """Upper bounds from what is known."""
        return Bounds(self.known, margin=self.settings.margin, lookback_days=self.settings.lookback_days)

    def lead(self, slot: int) -> int:
        """How far a slot is from the last known one."""
        return slot - self.offset + 1

    def energy_kwh(self, trains: Mask) -> Floats:
        """[zone], what a slot draws if these clients train; the idle draw of all is in it."""
        costs = self.problem.costs
        weights = np.where(trains, costs.energy_kwh, 0.0) + costs.idle_kwh
        return np.bincount(self.rows, weights=weights, minlength=len(self.intensity)).astype(np.float64)

    def hold_kg(self, trains: Mask, slot: int) -> float:
        """Upper bound of a slot's emissions."""
        return self.bounds.kg(self.energy_kwh(trains), self.lead(slot))

    def window_kg(self, first: int, since: int) -> float:
        """Upper bound of a window that begins at `first`, with the idle draw from `since` until then.

        A bound that was stated stays valid: else a window for which enough was kept might not fit when it is due.
        """
        waiting = sum(self.hold_kg(self.nobody, slot) for slot in range(since, first)) if self.idle else 0.0
        bound = sum(self.hold_kg(self.there[:, slot], slot) for slot in range(first, first + self.state.window_slots))
        self.state.stated_kg[first] = min(bound, self.state.stated_kg[first])
        return waiting + float(self.state.stated_kg[first])

    @cached_property
    def g_max(self) -> float:
        """The dearest client-slot of the whole horizon, settled or expected, kg."""
        return float((self.problem.costs.energy_kwh * self.intensity.max(axis=1)[self.rows]).max())

    @cached_property
    def idle(self) -> bool:
        """Whether clients draw anything while they wait."""
        return bool(self.problem.costs.idle_kwh.any())

    @cached_property
    def there(self) -> Mask:
        """[client, slot], who can train when."""
        return self.problem.costs.can_train()

    def places(self, since: int) -> NDArray[np.intp]:
        """First slots that the window may have from `since` on: it ends after `rounds`, within the horizon, with everybody."""
        width = self.state.window_slots
        places = np.arange(max(since, self.problem.rounds - width, 0), self.problem.horizon - width + 1)
        if self.problem.window == "all" and width:
            absent = np.concatenate([[0], np.cumsum(~self.there.all(axis=0))])
            places = places[absent[places + width] == absent[places]]
        return places
