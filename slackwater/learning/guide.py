"""Who trains in which slot: known in advance from a plan, or decided slot by slot. The training loop asks a guide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slackwater.learning.aggregators import FedAvg, Participation
from slackwater.learning.probe import Need, Probe
from slackwater.ledger.ledger import Ledger
from slackwater.ledger.modelled import ModelledCharges
from slackwater.ledger.run import RoundRecord
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One slot in which somebody trains."""

    slot: int
    clients: tuple[int, ...]
    """In the order of clients; at least one."""
    in_window: bool
    """Plain FedAvg and a plain step, whatever the aggregator."""
    pi: NDArray[np.float64]
    """[client], share of the slots in which it trains, as far as the guide knows it."""
    weights: Mapping[int, float] | None = None
    """The guide's own, client -> weight of its update; None leaves them to the aggregator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """Where a run stands, for its guide."""

    history: Sequence[RoundRecord]
    ledger: Ledger
    probe: Callable[[Need, Mapping[int, int], int], dict[int, Probe]]
    """What the current model does on clients' data, for the number of samples of each, in a slot: not charged by itself."""


class Given(FedAvg):
    """Weights that a guide sets."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = weights

    def weights(self, participants: list[int], who: Participation) -> dict[int, float]:
        """As given."""
        return {client: self._weights[client] for client in participants}


class Guide(Protocol):
    """Decides who trains. Its answers follow from what it was made with, its state and the standing, and from nothing else."""

    problem: Problem
    rounds: int
    """At most so many there will be."""

    def next(self, standing: Standing) -> Turn | None:
        """The next slot in which somebody trains; None at the end."""
        ...

    def charge(self, ledger: Ledger, turn: Turn | None) -> None:
        """Book all up to a turn, before it is trained (None: up to the end); after a kill, nothing a second time."""
        ...

    def never(self, history: Sequence[RoundRecord]) -> tuple[int, ...]:
        """Clients whose data the model has not seen, but for the fine-tuning window."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What `next` depends on besides its arguments, for a checkpoint."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up a state."""
        ...


class ByPlan:
    """The schedule of a plan. Slots with nobody in them are passed over: they take no time."""

    def __init__(self, plan: Plan, *, note: str = "") -> None:
        self.plan, self.problem = plan, plan.problem
        self.matrix = plan.matrix
        self.slots = [int(slot) for slot in np.flatnonzero(self.matrix.any(axis=0))]
        self.rounds = len(self.slots)
        self.pi = plan.metrics.pi
        self.charges = ModelledCharges(plan, note=note)

    def next(self, standing: Standing) -> Turn | None:
        """The next column with somebody in it."""
        number = len(standing.history)
        if number == self.rounds:
            return None
        slot = self.slots[number]
        return Turn(
            slot=slot,
            clients=tuple(int(client) for client in np.flatnonzero(self.matrix[:, slot])),
            in_window=slot in self.plan.window,
            pi=self.pi,
        )

    def charge(self, ledger: Ledger, turn: Turn | None) -> None:
        """Training, idle draw and server, of the slots passed over too."""
        slot = self.charges.slots - 1 if turn is None else turn.slot
        booked = ledger.last_slot()
        lines = self.charges.of(booked + 1, slot) if slot > booked else []
        if lines:
            ledger.charge(*lines)

    def never(self, history: Sequence[RoundRecord]) -> tuple[int, ...]:
        """Those without a slot before the window."""
        return tuple(int(client) for client in self.plan.metrics.never) if self.plan.before else ()

    def state(self) -> dict[str, Tensor]:
        """Nothing: the plan says it all."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Nothing to take up."""
