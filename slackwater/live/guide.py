"""Who trains in a slot: the protocol, and the guide that follows a fixed plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slackwater.ledger.journal import Replan
from slackwater.ledger.ledger import Charge, Ledger
from slackwater.ledger.modelled import ModelledCharges
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What a slot is to be."""

    slot: int
    trains: Mask  # [client]
    missing: Mask  # [client], who would train if it could be reached
    in_window: bool
    expected_kg: Mapping[tuple[str, str], float]
    """(client, cause) -> kg that the plan in force expects of the slot, of those who cannot be reached or paid for too."""
    charges: tuple[Charge, ...]
    """What the slot is booked at before it starts: at an upper bound, where the actual is not known."""
    protected_kg: float  # kept for the window, where it is still to come
    left: NDArray[np.int64]  # [client], slots before the window that are planned for it, this one included
    before: int  # slots before the window, as planned now
    replan: Replan | None = None
    messages: tuple[str, ...] = ()


class ScheduleSource(Protocol):
    """Decides slot after slot; `state` is all it remembers."""

    @property
    def slot(self) -> int:
        """Return the next slot to decide."""

    @property
    def finished(self) -> bool:
        """Return whether all slots are decided."""

    def settle(self, ledger: Ledger) -> int:
        """Settle the charges whose actuals are known when the next slot begins; return how many lines."""

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """Decide the next slot, with who can be reached [client]; clients that are `away` are not planned with."""

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Record the outcome of the slot last decided: who drew energy, whose work is used and who was missing, [client]."""

    def lose(self, slot: int) -> None:
        """Count the work of an earlier slot as lost: the model that it went into is gone."""

    def coming(self) -> NDArray[np.bool_]:
        """Return what is planned from the next slot on, [client, slot], including the window."""

    def to_come_kg(self) -> NDArray[np.float64] | None:
        """Return what the plan in force expects of every slot from the next on, kg; None where there is no plan."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON holds it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


class FixedPlan:
    """The plan as it is. Its intensity is charged, actual or forecast as it says, so nothing is left to settle.

    What is lost is not replaced, but the weights make up for it.
    """

    def __init__(self, plan: Plan, problem: Problem | None = None) -> None:
        """Follow a plan; `problem` is what its slots are booked by where the real model is not of the planned size."""
        self._expected, plan = ModelledCharges(plan), plan if problem is None else replace(plan, problem=problem)
        self.plan, self._matrix = plan, plan.matrix
        self._lines = ModelledCharges(plan)
        self._names = [str(name) for name in plan.problem.fleet.names]
        self._slot = 0
        self._stop = plan.problem.rounds + plan.end
        per_slot = np.where(self._matrix, plan.problem.costs.dense(), 0.0).sum(axis=0) + plan.problem.costs.idle_kg()
        if plan.problem.costs.server_kg is not None:
            per_slot = per_slot + np.where(self._matrix.any(axis=0), plan.problem.costs.server_kg, 0.0)
        self._kg = per_slot
        self._idle_kg = plan.problem.costs.idle_kg()

    @property
    def slot(self) -> int:
        """Return the next slot to decide."""
        return self._slot

    @property
    def finished(self) -> bool:
        """Return whether the plan's last slot is decided."""
        return self._slot >= self._stop

    def settle(self, ledger: Ledger) -> int:
        """Return 0: nothing is left to settle."""
        return 0

    def decide(self, present: Mask, away: Mask, ledger: Ledger) -> Decision:
        """Let the clients train that are planned and online."""
        slot, before = self._slot, self.plan.before
        planned = self._matrix[:, slot]
        trains = planned & present
        who = {self._names[client] for client in np.flatnonzero(trains)}
        lines = [
            line
            for line in self._lines.of(slot, slot)
            if line.cause == "idle" or line.client in who or (line.cause == "server" and who)
        ]
        self._slot += 1
        return Decision(
            slot=slot, trains=trains, missing=planned & ~present, in_window=slot >= before,
            expected_kg={(line.client, line.cause): line.kg for line in self._expected.of(slot, slot)},
            charges=tuple(lines), protected_kg=self._protected_kg(slot),
            left=self._matrix[:, slot : max(before, slot)].sum(axis=1), before=before,
        )  # fmt: skip

    def realise(self, *, drew: Mask, used: Mask, missed: Mask, ledger: Ledger) -> None:
        """Do nothing: the plan stays."""

    def lose(self, slot: int) -> None:
        """Do nothing: the plan stays."""

    def coming(self) -> NDArray[np.bool_]:
        """Return what is left of the plan."""
        coming = self._matrix.copy()
        coming[:, : self._slot] = False
        return coming

    def to_come_kg(self) -> NDArray[np.float64] | None:
        """Return what is left of the plan, slot by slot."""
        return np.asarray(self._kg[self._slot : self._stop])

    def state(self) -> dict[str, Any]:
        """Return the next slot."""
        return {"slot": self._slot}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._slot = int(state["slot"])

    def _protected_kg(self, slot: int) -> float:
        """Return the kg of the window with the idle draw until then; within it, of what is left of it."""
        before = max(self.plan.before, slot + 1)
        return float(self._kg[before : self._stop].sum() + self._idle_kg[slot + 1 : before].sum())
