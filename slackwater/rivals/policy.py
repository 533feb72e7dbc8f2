"""A policy chooses in each slot who trains, from what an online method may know then: one verb, `choose`."""

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
    """What is known at the start of a slot."""

    slot: int
    slots: int
    """Of the whole horizon; the run is over after the last."""
    number: int
    """Rounds done so far, that is slots in which somebody trained."""
    forecast: Floats
    """[client, slot from now on], kg/kWh; column 0 is now."""
    available: NDArray[np.bool_]
    """[client, slot from now on], whether a client can train."""
    energy_kwh: Floats
    """[client], of a round."""
    server_kg: float
    """Charged if anyone trains now."""
    samples: NDArray[np.int64]
    """[client], how many it holds."""
    speeds: Floats
    """[client], of local training, 1 for the usual; all 1 unless the caller of `train` knows better."""
    losses: Floats
    """[client], mean training loss when it last trained; NaN if it never did."""
    age: NDArray[np.int64]
    """[client], rounds since it last trained, 1 for the latest round; 0 if it never did."""
    participation: NDArray[np.int64]
    """[client], rounds in which it trained."""
    budget_kg: float
    spent_kg: float
    probe_kg: Floats
    """[client], what computing what the policy needs of it would emit now; 0 where that is free, or nothing is needed."""
    probed_losses: Floats
    """[client], root mean square loss of the current model on its data, where it was asked for; else NaN."""
    gradients: Mapping[int, Floats]
    """Client -> gradient of the current model on its data, where it was asked for."""
    rng: np.random.Generator
    """Its own for each slot and seed, so that a resumed run draws the same."""

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.energy_kwh)

    @property
    def left_kg(self) -> float:
        """Budget not spent yet."""
        return self.budget_kg - self.spent_kg

    @property
    def intensity(self) -> Floats:
        """[client], kg/kWh now."""
        return self.forecast[:, 0]

    @property
    def cost_kg(self) -> Floats:
        """[client], what training now emits."""
        return self.energy_kwh * self.intensity

    @property
    def costs_ahead(self) -> Floats:
        """[client, slot from now on], what training emits, kg; infinite where a client is not available."""
        return np.where(self.available, self.energy_kwh[:, None] * self.forecast, np.inf)

    @property
    def there(self) -> NDArray[np.intp]:
        """Clients that can train now."""
        return np.flatnonzero(self.available[:, 0])

    @property
    def released_kg(self) -> float:
        """What is left of the budget if it is released evenly over the slots: up to this slot's share, less what was spent."""
        return self.budget_kg * (self.slot + 1) / self.slots - self.spent_kg

    @property
    def affordable_kg(self) -> float:
        """The dearest client-slot, kg, if the cheapest from now on are bought with what is left; 0 if none can be."""
        prices = np.sort(self.costs_ahead, axis=None)
        paid = int(np.searchsorted(np.cumsum(prices), self.left_kg * (1 + 1e-12), side="right"))
        return float(prices[paid - 1]) if paid else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Who trains now, the most wanted first: `max_parallel` leaves out the last. If the budget does not pay them all, the run is over."""

    clients: Sequence[int] = ()
    weights: Mapping[int, float] = field(default_factory=dict)
    """Client -> weight of its update; empty leaves them to the aggregator."""


NOBODY = Choice()


@runtime_checkable
class Policy(Protocol):
    """A method that chooses online. Derive from `Online` to write only `choose`."""

    aggregator: ClassVar[str]
    """Rule by which its updates are combined, unless its choices set weights."""
    needs: ClassVar[Need | None]
    """What it must know of clients that do not train; computing it is charged."""

    def asks(self, view: View) -> Sequence[int]:
        """Clients of which it must know that in this slot."""
        ...

    def choose(self, view: View) -> Choice:
        """Who trains in this slot; called once in each slot, in order."""
        ...

    def state(self) -> State:
        """What `choose` depends on besides the view, for a checkpoint."""
        ...

    def restore(self, state: State) -> None:
        """Take up a state."""
        ...


class Online:
    """A policy that needs nothing, remembers nothing, and leaves weights to FedAvg."""

    aggregator: ClassVar[str] = "fedavg"
    needs: ClassVar[Need | None] = None

    def asks(self, view: View) -> Sequence[int]:
        """Nobody."""
        return ()

    def choose(self, view: View) -> Choice:
        """To be written."""
        raise NotImplementedError

    def state(self) -> State:
        """Nothing."""
        return {}

    def restore(self, state: State) -> None:
        """Nothing to take up."""


def per_round(asked: int | None, clients: int) -> int:
    """Clients a round: as asked, else a third of all, rounded up. Most of these methods were made to pick few of many."""
    return min(clients, -(-clients // 3) if asked is None else asked)
