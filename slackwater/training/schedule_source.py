"""Which clients train in which slot: from a plan, or decided slot by slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slackwater.ledger.ledger import Ledger, ModelledCharges
from slackwater.ledger.run import RoundRecord
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.training.local import Need, Probe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduledRound:
    """One slot with participants."""

    slot: int
    clients: tuple[int, ...]  # in the order of clients; at least one
    in_window: bool  # FedAvg and a plain step instead of the aggregator
    pi: NDArray[np.float64]  # [client], share of the slots in which it trains, as known now
    weights: Mapping[int, float] | None = None
    """Client -> weight of its update, instead of the aggregator's; None: the aggregator's."""
    work: Mapping[int, float] = field(default_factory=dict)
    """Client -> share of the local steps, of clients below full power."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingState:
    """The state of a run, for its schedule source."""

    history: Sequence[RoundRecord]
    ledger: Ledger
    probe: Callable[[Need, Mapping[int, int], int], dict[int, Probe]]
    """Probes the current model on clients' data, by number of samples and slot; the caller charges it."""


class ScheduleSource(Protocol):
    """Decides which clients train. Its answers depend only on its arguments, its state and the training state."""

    problem: Problem
    rounds: int  # at most
    most: int  # most clients in one slot before the window

    def next(self, state: TrainingState) -> ScheduledRound | None:
        """Return the next round; None at the end."""

    def charge(self, ledger: Ledger, due: ScheduledRound | None) -> None:
        """Charge all slots up to a round before it trains (None: up to the end); after a crash, charge nothing twice."""

    def never(self, history: Sequence[RoundRecord]) -> tuple[int, ...]:
        """Return the clients whose data the model has not seen outside the fine-tuning window."""

    def state(self) -> dict[str, Tensor]:
        """Return the state that `next` depends on, for a checkpoint."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a state."""


class ByPlan:
    """The schedule of a plan. Slots without participants take no time."""

    def __init__(self, plan: Plan, *, note: str = "") -> None:
        self.plan, self.problem = plan, plan.problem
        self.matrix = plan.matrix
        self.slots = [int(slot) for slot in np.flatnonzero(self.matrix.any(axis=0))]
        self.rounds = len(self.slots)
        self.most = int(self.matrix[:, : plan.before].sum(axis=0).max(initial=0))
        self.pi = plan.metrics.pi
        self.charges = ModelledCharges(plan, note=note)

    def next(self, state: TrainingState) -> ScheduledRound | None:
        """Return the next slot of the plan with participants."""
        number = len(state.history)
        if number == self.rounds:
            return None
        slot = self.slots[number]
        return ScheduledRound(
            slot=slot,
            clients=tuple(int(client) for client in np.flatnonzero(self.matrix[:, slot])),
            in_window=slot in self.plan.window,
            pi=self.pi,
            work=self.plan.lower_work(slot),
        )

    def charge(self, ledger: Ledger, due: ScheduledRound | None) -> None:
        """Charge training, idle draw and server, including slots without participants."""
        slot = self.charges.slots - 1 if due is None else due.slot
        booked = ledger.last_slot()
        lines = self.charges.of(booked + 1, slot) if slot > booked else []
        if lines:
            ledger.charge(*lines)

    def never(self, history: Sequence[RoundRecord]) -> tuple[int, ...]:
        """Return the clients without a slot before the window."""
        return tuple(int(client) for client in self.plan.metrics.never) if self.plan.before else ()

    def state(self) -> dict[str, Tensor]:
        """Return an empty state: the plan determines the rounds."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Do nothing: there is no state."""
