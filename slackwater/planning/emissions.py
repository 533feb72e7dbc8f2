"""Compute the emissions and the price of a schedule from its matrix alone, independently of any solver."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.problem import Problem, utilities
from slackwater.planning.states import sleepers_up, startup_kwh

_CHUNK = 20_000
Floats = NDArray[np.float64]
Levels = NDArray[np.uint8]
"""[client, slot], number of the level at which a client trains; 0 is full power."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emissions:
    """Emissions of a schedule up to its end, kg CO2e, and the price of its electricity."""

    training_kg: Floats
    """[client], what training adds to the idle draw, fine-tuning window included."""
    idle_kg: Floats
    """[client], idle draw in all slots up to the end; of a client that sleeps, in the slots in which it is up."""
    network_kg: Floats
    """[client], sending the model to the client and back in its slots."""
    evaluation_kg: Floats
    """[client], evaluating on the client in its slots."""
    startup_kg: Floats
    """[client], starts from off to up; 0 for clients that do not sleep."""
    server_kg: float
    """The server, in the slots in which anyone trains."""
    utility: Floats
    """[client], the sum of (work g_max - g) over its slots, kg: the paper's u, where work is 1 at full power. Utility from
    before the horizon is included. With a `price_weight`, g counts the price too."""
    client_money: Floats | None = None
    """[client], price of all electricity that is counted for the client; None without prices."""
    server_money: float = 0.0
    """Price of the server's electricity."""
    sleeping: bool = False
    """Whether any client sleeps, so that `startup` is one of the causes."""

    @property
    def client_kg(self) -> Floats:
        """Return the emissions of each client from all causes [client], kg."""
        return self.training_kg + self.idle_kg + self.network_kg + self.evaluation_kg + self.startup_kg

    @property
    def by_cause_kg(self) -> dict[str, float]:
        """Return cause -> kg, with the names that the ledger uses; `startup` only if a client sleeps."""
        causes = {
            "training": math.fsum(self.training_kg),
            "idle": math.fsum(self.idle_kg),
            "server": self.server_kg,
            "network": math.fsum(self.network_kg),
            "evaluation": math.fsum(self.evaluation_kg),
        }
        return causes | ({"startup": math.fsum(self.startup_kg)} if self.sleeping else {})

    @property
    def total_kg(self) -> float:
        """Return the total emissions, kg."""
        return sum(self.by_cause_kg.values())

    @property
    def money(self) -> float | None:
        """Return the price of all electricity, in the currency of the prices; None without prices."""
        return None if self.client_money is None else math.fsum(self.client_money) + self.server_money


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rounds:
    """What the rounds of a schedule cost, without idle draw and starts."""

    training_kg: Floats
    network_kg: Floats
    evaluation_kg: Floats
    work: Floats
    """[client], number of slots, each counted by its work."""
    money: Floats | None
    active: NDArray[np.bool_]
    """[slot], whether anyone trains."""

    def utility(self, problem: Problem) -> Floats:
        spent = self.training_kg + self.network_kg + self.evaluation_kg
        if self.money is not None and problem.price_weight:
            spent = spent + problem.price_weight * self.money
        return utilities(self.work, spent, problem.g_max, problem.earned)


def _parts(
    problem: Problem, packed: NDArray[np.uint8], levels: Levels | None
) -> Iterator[tuple[slice, NDArray[np.bool_], NDArray[np.uint8] | None]]:
    """Yield the schedule by parts: which clients, where they train [client, slot], and at which level."""
    for first in range(0, problem.costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        chosen = np.unpackbits(packed[part], axis=1, count=problem.costs.slots).astype(bool)
        yield part, chosen, None if levels is None else np.where(chosen, levels[part], np.uint8(0))


def _at(values: Floats, numbers: NDArray[np.uint8]) -> Floats:
    """Return values [client, level] at each slot's level [client, slot]."""
    return np.take_along_axis(values, numbers.astype(np.intp), axis=1)


def _rounds(problem: Problem, packed: NDArray[np.uint8], levels: Levels | None) -> _Rounds:
    costs = problem.costs
    training, work = np.empty(costs.clients), np.empty(costs.clients)
    network, evaluation = np.zeros(costs.clients), np.zeros(costs.clients)
    beside = costs.network_kwh.any() or costs.evaluation_kwh.any()
    money = None if costs.price is None else np.empty(costs.clients)
    active = np.zeros(costs.slots, dtype=bool)
    for part, chosen, numbers in _parts(problem, packed, levels):
        intensity = costs.intensity[costs.row[part]]
        if numbers is None:
            training[part] = (costs.dense(part, kwh=costs.training_kwh) * chosen).sum(axis=1)
            work[part] = chosen.sum(axis=1)
        else:
            training[part] = (_at(costs.level_training_kwh[part], numbers) * intensity * chosen).sum(axis=1)
            work[part] = (_at(costs.level_work[part], numbers) * chosen).sum(axis=1)
        if beside:
            per_kwh = (intensity * chosen).sum(axis=1)  # kg that 1 kWh in each of a client's slots would emit
            network[part], evaluation[part] = costs.network_kwh[part] * per_kwh, costs.evaluation_kwh[part] * per_kwh
            if numbers is not None:
                kwh = _at(costs.level_evaluation_kwh[part], numbers)
                evaluation[part] = (kwh * intensity * chosen).sum(axis=1)
        if money is not None and costs.price is not None:
            round_kwh = costs.energy_kwh[part, None] if numbers is None else _at(costs.level_kwh[part], numbers)
            money[part] = (round_kwh * costs.price[costs.row[part]] * chosen).sum(axis=1)
        active |= chosen.any(axis=0)
    return _Rounds(
        training_kg=training, network_kg=network, evaluation_kg=evaluation, work=work, money=money, active=active
    )


def emissions(problem: Problem, packed: NDArray[np.uint8], end: int, levels: Levels | None = None) -> Emissions:
    """Return the emissions of the schedule [client, slot], packed along the slots, that ends at s = `end`.

    Args:
        problem: Clients, intensity and prices.
        packed: [client, ceil(horizon / 8)], who trains when.
        end: The end time s.
        levels: [client, slot], the level at which each trains. Default: full power.
    """
    costs, stop = problem.costs, problem.rounds + end
    rounds = _rounds(problem, packed, levels)
    until_end = costs.intensity[:, :stop].sum(axis=1)
    idle, startup = costs.idle_kwh * until_end[costs.row], np.zeros(costs.clients)
    money = rounds.money
    if money is not None and costs.price is not None:
        money = money + costs.idle_kwh * costs.price[:, :stop].sum(axis=1)[costs.row]
    asleep = np.flatnonzero(costs.sleeps)
    if len(asleep):
        up_kwh, start_kwh = sleepers_kwh(problem, packed, end, asleep)
        intensity = costs.intensity[costs.row[asleep]]
        idle[asleep], startup[asleep] = (up_kwh * intensity).sum(axis=1), (start_kwh * intensity).sum(axis=1)
        if money is not None and costs.price is not None:
            money[asleep] += ((up_kwh + start_kwh) * costs.price[costs.row[asleep]]).sum(axis=1)
    return Emissions(
        training_kg=rounds.training_kg,
        network_kg=rounds.network_kg,
        evaluation_kg=rounds.evaluation_kg,
        idle_kg=idle,
        startup_kg=startup,
        server_kg=0.0 if costs.server_kg is None else math.fsum(costs.server_kg[rounds.active]),
        utility=rounds.utility(problem),
        client_money=money,
        server_money=0.0
        if costs.server_price is None
        else costs.server_kwh * math.fsum(costs.server_price[rounds.active]),
        sleeping=bool(len(asleep)),
    )


def sleepers_kwh(
    problem: Problem, packed: NDArray[np.uint8], end: int, asleep: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Return the idle energy and that of starts of some clients that sleep [client, slot], kWh."""
    trains = np.unpackbits(packed[asleep], axis=1, count=problem.costs.slots).astype(bool)
    up = sleepers_up(problem, asleep, trains, end)
    return problem.costs.up_kwh[asleep, None] * up, startup_kwh(problem, up, asleep)


def utilities_of(problem: Problem, packed: NDArray[np.uint8], levels: Levels | None = None) -> Floats:
    """Return the utility of each client [client], kg, as in `Emissions`; no client has to be up for it."""
    return _rounds(problem, packed, levels).utility(problem)


def waiting_kg(problem: Problem, packed: NDArray[np.uint8], end: int) -> Floats:
    """Return the emissions of idle draw and starts of all clients together [slot], kg; 0 after the end."""
    costs = problem.costs
    kg = costs.idle_kg()
    kg[problem.rounds + end :] = 0.0
    asleep = np.flatnonzero(costs.sleeps)
    if len(asleep):
        up_kwh, start_kwh = sleepers_kwh(problem, packed, end, asleep)
        kg += ((up_kwh + start_kwh) * costs.intensity[costs.row[asleep]]).sum(axis=0)
    return kg


def kg_by_slot(problem: Problem, packed: NDArray[np.uint8], end: int, levels: Levels | None = None) -> Floats:
    """Return the emissions of the schedule from all causes [slot], kg; 0 after its end."""
    costs, kg = problem.costs, waiting_kg(problem, packed, end)
    active = np.zeros(costs.slots, dtype=bool)
    for part, chosen, numbers in _parts(problem, packed, levels):
        if numbers is None:
            kg += (costs.dense(part) * chosen).sum(axis=0)
        else:
            kg += (_at(costs.level_kwh[part], numbers) * costs.intensity[costs.row[part]] * chosen).sum(axis=0)
        active |= chosen.any(axis=0)
    if costs.server_kg is not None:
        kg += np.where(active, costs.server_kg, 0.0)
    return kg
