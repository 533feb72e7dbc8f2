"""A policy chooses the clients of each slot from what an online method may know then, with one method: `choose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Need = Literal["losses", "gradients"]
State = dict[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """Everything that is known at the start of a slot."""

    slot: int
    slots: int
    """Slots of the whole horizon; the run ends after the last."""
    number: int
    """Rounds so far: slots in which at least one client trained."""
    forecast: Floats
    """[client, slot from now on], kg/kWh; column 0 is now."""
    available: NDArray[np.bool_]
    """[client, slot from now on], whether a client can train."""
    energy_kwh: Floats
    """[client], energy of a round."""
    server_kg: float
    """Charged if any client trains now, kg."""
    samples: NDArray[np.int64]
    """[client], number of samples."""
    speeds: Floats
    """[client], speed of local training. Default: 1 for all."""
    losses: Floats
    """[client], mean training loss when it last trained; NaN if it never did."""
    age: NDArray[np.int64]
    """[client], rounds since it last trained, 1 for the latest round; 0 if it never did."""
    participation: NDArray[np.int64]
    """[client], rounds in which it trained."""
    budget_kg: float
    spent_kg: float
    probe_kg: Floats
    """[client], emissions of a probe now, kg; 0 if probes are free or not needed."""
    probed_losses: Floats
    """[client], root mean square loss of the current model on its data; NaN if it was not probed."""
    gradients: Mapping[int, Floats]
    """Client -> gradient of the current model on its data, for probed clients."""
    rng: np.random.Generator
    """Separate generator for each slot and seed, so that a resumed run draws the same numbers."""

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.energy_kwh)

    @property
    def left_kg(self) -> float:
        """Return the remaining budget, kg."""
        return self.budget_kg - self.spent_kg

    @property
    def intensity(self) -> Floats:
        """Return [client], kg/kWh now."""
        return self.forecast[:, 0]

    @property
    def cost_kg(self) -> Floats:
        """Return [client], emissions of training now, kg."""
        return self.energy_kwh * self.intensity

    @property
    def costs_ahead(self) -> Floats:
        """Return [client, slot from now on], emissions of training, kg; infinite where a client is not available."""
        return np.where(self.available, self.energy_kwh[:, None] * self.forecast, np.inf)

    @property
    def there(self) -> NDArray[np.intp]:
        """Return the clients that can train now."""
        return np.flatnonzero(self.available[:, 0])

    @property
    def released_kg(self) -> float:
        """Return the budget released evenly up to this slot, less the spending, kg."""
        return self.budget_kg * (self.slot + 1) / self.slots - self.spent_kg

    @property
    def affordable_kg(self) -> float:
        """Return the most expensive client-slot, kg, if the remaining budget pays the cheapest ones; 0 if it pays none."""
        prices = np.sort(self.costs_ahead, axis=None)
        paid = int(np.searchsorted(np.cumsum(prices), self.left_kg * (1 + 1e-12), side="right"))
        return float(prices[paid - 1]) if paid else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Clients that train now, in order of priority: `max_parallel` cuts the list. The run ends if the budget does not pay all."""

    clients: Sequence[int] = ()
    weights: Mapping[int, float] = field(default_factory=dict)
    """Client -> weight of its update. Empty: the aggregator decides."""


NOBODY = Choice()


@runtime_checkable
class Policy(Protocol):
    """A method that chooses online. Derive from `Online`, which needs only `choose`."""

    aggregator: ClassVar[str]
    """Aggregator of its updates if its choices set no weights."""
    needs: ClassVar[Need | None]
    """What it needs from clients that do not train; such probes are charged."""

    def asks(self, view: View) -> Sequence[int]:
        """Return the clients to probe in this slot."""
        ...

    def choose(self, view: View) -> Choice:
        """Return the clients that train in this slot; called once in each slot, in order."""
        ...

    def state(self) -> State:
        """Return the state that `choose` depends on besides the view, for a checkpoint."""
        ...

    def restore(self, state: State) -> None:
        """Restore a state."""
        ...


class Online:
    """A policy without probes or state, with FedAvg's weights."""

    aggregator: ClassVar[str] = "fedavg"
    needs: ClassVar[Need | None] = None

    def asks(self, view: View) -> Sequence[int]:
        """Return no clients."""
        return ()

    def choose(self, view: View) -> Choice:
        """Choose the clients of a slot; implement it in a subclass."""
        raise NotImplementedError

    def state(self) -> State:
        """Return an empty state."""
        return {}

    def restore(self, state: State) -> None:
        """Restore nothing."""


def per_round(asked: int | None, clients: int) -> int:
    """Return the clients per round. Default: a third of all, rounded up, because most of these methods pick few of many."""
    return min(clients, -(-clients // 3) if asked is None else asked)
