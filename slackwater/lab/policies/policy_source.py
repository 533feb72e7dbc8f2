"""A policy as the schedule source of a run: it sees only past data, pays for its probes and cannot overspend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slackwater.errors import ScenarioError
from slackwater.lab.policies.policy import Choice, Floats, Policy, View
from slackwater.ledger.ledger import Charge, Ledger, ModelledCharges
from slackwater.ledger.run import RoundRecord
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import unproved_plan
from slackwater.training.local import LocalWork, Probe, share
from slackwater.training.process import stream
from slackwater.training.schedule_source import ScheduledRound, TrainingState

Probes = Literal["charged", "free"]
PROBE_SAMPLES = 512
"""Most samples of a client for its losses or gradient: four of the usual batches."""
PROBE = 1
"""Attempt number of a probe in the ledger: 0 is the client's training in the same slot."""
_POLICY = 4
"""Purpose of a random stream, next to those in `slackwater.training`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of a run by a policy, besides those of training."""

    policy: str
    probes: Probes = "charged"
    """`free` for data centres, where a forward pass is negligible compared with training."""
    probe_samples: int | None = PROBE_SAMPLES
    """None: all samples of a client."""
    speeds: tuple[float, ...] | None = None
    """[client], speed. None: all equal."""

    def __post_init__(self) -> None:
        if self.probes not in ("charged", "free"):
            raise ScenarioError(f"probes must be 'charged' or 'free', not {self.probes!r}.")
        if self.probe_samples is not None and self.probe_samples < 1:
            raise ScenarioError(f"probe_samples must be at least 1, not {self.probe_samples!r}.")
        if self.speeds is not None and not all(speed > 0 for speed in self.speeds):
            raise ScenarioError(f"speeds must be above 0, not {self.speeds!r}.")


def empty_plan(problem: Problem, name: str) -> Plan:
    """Return the plan stored in the run's file: the problem over its whole horizon, with an empty schedule."""
    whole = problem.with_settings(fine_tune=0, window="available")
    nobody = np.zeros((len(problem.fleet), -(-whole.horizon // 8)), dtype=np.uint8)
    return unproved_plan(whole, nobody, end=whole.horizon - whole.rounds, solver=f"policy:{name}", began=0.0)


class PolicySource:
    """Ask a policy slot by slot, up to the horizon or until the budget does not pay all of a round.

    A round never runs with only the clients that the rest of the budget pays: one or two cheap clients at the end
    would damage the model of a method without a budget, by our rule and not by its own.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        options: PolicySettings,
        *,
        samples: Sequence[int],
        work: LocalWork,
        seed: int,
        note: str = "",
    ) -> None:
        self.plan, self.problem, self.policy, self.options = plan, plan.problem, policy, options
        self.rounds = self.problem.horizon
        self.most = self.problem.max_parallel or len(self.problem.fleet)
        self.samples, self.seed, self.note = np.array(samples, dtype=np.int64), seed, note
        self.probe_count = np.minimum(self.samples, options.probe_samples or self.samples.max())
        self.probe_share = np.zeros(len(self.samples))
        """[client], energy of a probe as a share of local training; 0 if probes are free."""
        if policy.needs is not None and options.probes == "charged":
            pairs = zip(self.probe_count, self.samples, strict=True)
            self.probe_share = np.array([share(policy.needs, int(m), int(n), work) for m, n in pairs])
        costs = self.problem.costs
        if costs.sleeps.any():
            raise ScenarioError(
                "An online policy chooses slot by slot and cannot plan starts. Leave out startup_kwh, startup_minutes and "
                "min_block_slots, or compare plans instead."
            )
        self.g = costs.dense()
        self.training_g = costs.dense(kwh=costs.training_kwh)
        """[client, slot], kg of training alone, of which a probe is a share."""
        self.there = costs.can_train()
        self.idle = costs.idle_kg()
        cheapest = np.where(self.there, self.g, np.inf).min(axis=0)
        if costs.server_kg is not None:
            cheapest = cheapest + costs.server_kg
        self.cheapest_ahead = np.minimum.accumulate(cheapest[::-1])[::-1]
        self.slot = 0
        self.since: list[float] = []
        """kg charged after the last round. Added to that round's total it gives the spending, also after a resume."""
        self.lines: list[Charge] = []
        """Charges of the current round, not in the ledger yet."""
        self.counted = 0
        clients = len(self.problem.fleet)
        self.losses, self.last = np.full(clients, np.nan), np.full(clients, -1)
        self.participation = np.zeros(clients, dtype=np.int64)

    def next(self, standing: TrainingState) -> ScheduledRound | None:
        """Return the next slot in which the policy chooses clients, or None at the end of the horizon or budget."""
        self._learn(standing.history)
        while self.slot < self.problem.horizon:
            slot = self.slot
            if self._left(standing) < self.idle[slot] + self.cheapest_ahead[slot]:
                return None
            self._book(standing.ledger, self._lines(slot, []))  # idle draw
            probed = self._probed(standing, slot)
            choice = self.policy.choose(self._view(standing, slot, probed))
            clients = self._allowed(slot, choice)
            if self._left(standing) < self._price(slot, clients):
                return None
            self.slot += 1
            if clients:
                self.lines = [line for line in self._lines(slot, clients) if line.cause != "idle"]
                chosen = tuple(sorted(clients))
                counts = self.participation.copy()
                counts[list(chosen)] += 1
                pi = counts / (slot + 1)
                return ScheduledRound(
                    slot=slot, clients=chosen, in_window=False, pi=pi, weights=_weights(choice, chosen)
                )
        return None

    def charge(self, ledger: Ledger, turn: ScheduledRound | None) -> None:
        """Charge the round's training and server; idle draw and probes were charged as the slots passed."""
        if turn is not None:
            self._book(ledger, self.lines)

    def never(self, history: Sequence[RoundRecord]) -> tuple[int, ...]:
        """Return the clients that the policy never chose."""
        seen = {name for done in history for name in done.participants}
        return tuple(i for i, name in enumerate(self.problem.fleet.names) if str(name) not in seen)

    def state(self) -> dict[str, Tensor]:
        """Return the policy's state; the rounds hold the rest."""
        return {key: torch.from_numpy(np.array(value)) for key, value in self.policy.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue after the last stored round; later slots are chosen again, with the same result."""
        self.policy.restore({key: value.cpu().numpy().copy() for key, value in state.items()})

    def _learn(self, history: Sequence[RoundRecord]) -> None:
        """Read the rounds added since the last call."""
        index = {str(name): i for i, name in enumerate(self.problem.fleet.names)}
        for done in history[self.counted :]:
            for name in done.participants:
                client = index[name]
                self.losses[client] = done.losses[name]
                self.last[client] = done.number
                self.participation[client] += 1
            self.slot = done.slot + 1
            self.since = []
        self.counted = len(history)

    def _spent(self, standing: TrainingState) -> float:
        before = standing.history[-1].spent_kg if standing.history else 0.0
        return math.fsum([before, *self.since])

    def _left(self, standing: TrainingState) -> float:
        return self.problem.budget_kg * (1 + BUDGET_ROUNDING) - self._spent(standing)

    def _view(self, standing: TrainingState, slot: int, probed: Mapping[int, Probe]) -> View:
        costs, number = self.problem.costs, len(standing.history)
        clients = len(self.problem.fleet)
        losses = np.full(clients, np.nan)
        for client, found in probed.items():
            losses[client] = found.rms_loss
        gradients = {c: _numpy(p.gradient) for c, p in probed.items() if p.gradient is not None}
        speeds = np.ones(clients) if self.options.speeds is None else np.array(self.options.speeds, dtype=np.float64)
        return View(
            slot=slot,
            slots=self.problem.horizon,
            number=number,
            forecast=costs.intensity[costs.row, slot:],
            available=self.there[:, slot:] & (self.participation < self.problem.fleet.max_slots)[:, None],
            energy_kwh=costs.energy_kwh,
            server_kg=0.0 if costs.server_kg is None else float(costs.server_kg[slot]),
            samples=self.samples,
            speeds=speeds,
            losses=self.losses.copy(),
            age=np.where(self.last < 0, 0, number - self.last),
            participation=self.participation.copy(),
            budget_kg=self.problem.budget_kg,
            spent_kg=self._spent(standing),
            probe_kg=self.probe_share * self.training_g[:, slot],
            probed_losses=losses,
            gradients=gradients,
            rng=np.random.default_rng(stream(self.seed, slot, _POLICY)),
        )

    def _probed(self, standing: TrainingState, slot: int) -> dict[int, Probe]:
        """Charge and compute the probes that the policy asks for; skip clients that the budget does not pay."""
        need = self.policy.needs
        if need is None:
            return {}
        samples: dict[int, int] = {}
        lines: list[Charge] = []
        left = self._left(standing)
        for client in self.policy.asks(self._view(standing, slot, {})):
            part = float(self.probe_share[client])
            kg = part * float(self.training_g[client, slot])
            if kg > left or not self.there[client, slot]:
                continue
            left -= kg
            samples[client] = int(self.probe_count[client])
            if self.options.probes == "charged":
                line = next(line for line in self._lines(slot, [client]) if line.cause == "training")
                energy = part * float(self.problem.costs.training_kwh[client])
                note = f"probe: {need} of {samples[client]} samples, {part:.3g} of the energy of local training"
                lines.append(replace(line, kg=kg, energy_kwh=energy, attempt=PROBE, note=note))
        self._book(standing.ledger, lines)
        return standing.probe(need, samples, slot) if samples else {}

    def _allowed(self, slot: int, choice: Choice) -> list[int]:
        """Return the chosen clients that are available, in the policy's order, cut at the limits."""
        told, count = f"The policy {type(self.policy).__name__}", len(self.problem.fleet)
        if not isinstance(choice, Choice):
            raise ScenarioError(
                f"{told} returns {type(choice).__name__}; choose must return policies.Choice(clients=[..])."
            )
        if unknown := [client for client in choice.clients if not 0 <= client < count]:
            raise ScenarioError(f"{told} chooses the client number {unknown[0]}, but the numbers are 0 to {count - 1}.")
        free = self.there[:, slot] & (self.participation < self.problem.fleet.max_slots)
        allowed = [client for client in dict.fromkeys(int(c) for c in choice.clients) if free[client]][: self.most]
        return allowed if len(allowed) >= (self.problem.min_parallel or 1) else []

    def _price(self, slot: int, clients: Sequence[int]) -> float:
        """Return the kg of a round with these clients, with the server."""
        server = self.problem.costs.server_kg
        share = 0.0 if server is None or not clients else float(server[slot])
        return math.fsum([share, *(float(self.g[client, slot]) for client in clients)])

    def _lines(self, slot: int, clients: Sequence[int]) -> list[Charge]:
        """Return the charges of one slot with these clients."""
        matrix: NDArray[np.bool_] = np.zeros((len(self.problem.fleet), self.problem.horizon), dtype=bool)
        matrix[list(clients), slot] = True
        return ModelledCharges(replace(self.plan, packed=np.packbits(matrix, axis=1)), note=self.note).of(slot, slot)

    def _book(self, ledger: Ledger, lines: Sequence[Charge]) -> None:
        """Charge lines once: skip lines that a killed run charged already."""
        self.since += [line.kg for line in lines]
        if lines:
            booked = {(c.client, c.cause, c.attempt) for c in ledger.charges(slot=lines[0].slot) if c.kind == "charge"}
            new = [line for line in lines if (line.client, line.cause, line.attempt) not in booked]
            if new:
                ledger.charge(*new)


def _weights(choice: Choice, clients: Sequence[int]) -> dict[int, float] | None:
    """Return the policy's weights, scaled to the same sum if clients were removed."""
    if not choice.weights:
        return None
    whole = math.fsum(choice.weights.values())
    kept = math.fsum(choice.weights[client] for client in clients)
    if kept <= 0:
        return None
    return {client: choice.weights[client] * whole / kept for client in clients}


def _numpy(gradient: Tensor) -> Floats:
    return gradient.detach().cpu().numpy().astype(np.float64)
