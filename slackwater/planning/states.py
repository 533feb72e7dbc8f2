"""Off, starting or up: the cheapest states of sleeping clients around the slots in which they train.

A client sleeps if it has a start-up (`startup_kwh`, `startup_minutes`) or a minimum block (`min_block_slots`). In each
slot it is off, starting, or up; it trains only while it is up, and draws its idle power only then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.planning.problem import Problem

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_CHUNK_CELLS = 1 << 22
"""Client-slot-states that are held at once; each takes 8 bytes."""
_SLOT_UP, _EQUAL = 1e-12, 1e-13
"""What a slot up costs beside its kg, and below which difference two ways are equal, as shares of the largest possible
sum: above the rounding of sums, and far below any real difference."""


def up_states(problem: Problem, packed: NDArray[np.uint8], end: int) -> Mask:
    """Return in which slots each client is up [client, slot] in a schedule that ends at s = `end`.

    Clients that do not sleep are up until the end. For the others it is the pattern with the least kg from idle draw and
    starts; of equal ones that with the fewest slots up, then the latest starts.

    Args:
        problem: Clients and intensity.
        packed: [client, ceil(horizon / 8)], who trains when, packed along the slots.
        end: The end time s.

    Raises:
        ScenarioError: A client would have to train before it can be up.
    """
    costs, stop = problem.costs, problem.rounds + end
    up = np.zeros((costs.clients, costs.slots), dtype=bool)
    up[~costs.sleeps, :stop] = True
    asleep = np.flatnonzero(costs.sleeps)
    if len(asleep):
        trains = np.unpackbits(packed[asleep], axis=1, count=costs.slots).astype(bool)
        up[asleep] = sleepers_up(problem, asleep, trains, end)
    return up


def reachable(problem: Problem) -> Mask:
    """Return where clients can train [client, slot]: they are available, and their first start can be over."""
    costs = problem.costs
    there = costs.can_train()
    late = costs.sleeps & (_up_before(problem, np.arange(costs.clients)) == 0)
    for client in np.flatnonzero(late & (costs.lead > 0)):
        there[client, : costs.lead[client]] = False
    return there


def startups(problem: Problem, up: Mask, clients: NDArray[np.intp] | None = None) -> Floats:
    """Return the emissions of starts [client, slot], kg, from `up_states`; of some clients if `clients` is given."""
    costs = problem.costs
    who = np.arange(costs.clients) if clients is None else clients
    return startup_kwh(problem, up, clients) * costs.intensity[costs.row[who]]


def startup_kwh(problem: Problem, up: Mask, clients: NDArray[np.intp] | None = None) -> Floats:
    """Return the energy of starts [client, slot], kWh: spread over the slots that a start takes."""
    costs = problem.costs
    who = np.arange(costs.clients) if clients is None else clients
    kwh = np.zeros(up.shape)
    for row, slot in np.argwhere(up_starts(problem, up, who) & costs.sleeps[who, None]):
        client = who[row]
        lead = int(costs.lead[client])
        if lead:
            kwh[row, slot - lead : slot] += costs.startup_kwh[client] / lead
        else:
            kwh[row, slot] += costs.startup_kwh[client]
    return kwh


def up_starts(problem: Problem, up: Mask, clients: NDArray[np.intp]) -> Mask:
    """Return the first slots of blocks [client, slot]; a block that continues one from before the horizon has none."""
    first = up.copy()
    first[:, 1:] &= ~up[:, :-1]
    first[:, :1] &= (_up_before(problem, clients) == 0)[:, None]
    return first


def sleepers_up(problem: Problem, clients: NDArray[np.intp], trains: Mask, end: int) -> Mask:
    """Return in which slots some sleeping clients are up [client, slot], from their training slots [client, slot]."""
    costs, stop = problem.costs, problem.rounds + end
    up = np.zeros_like(trains)
    states = int(costs.min_block[clients].max(initial=1)) + 1
    chunk = max(1, _CHUNK_CELLS // ((stop + 1) * states))
    for begin in range(0, len(clients), chunk):
        part = slice(begin, begin + chunk)
        up[part, :stop] = _Cheapest(problem, clients[part], trains[part, :stop]).walk()
    return up


def _up_before(problem: Problem, clients: NDArray[np.intp]) -> NDArray[np.int64]:
    if problem.up_before is None:
        return np.zeros(len(clients), dtype=np.int64)
    return np.asarray(problem.up_before, dtype=np.int64)[clients]


class _Cheapest:
    """A dynamic programme over slots, from the last to the first, for many clients at once.

    Costs are kg, and a trifle for each slot up, so that of equal patterns that with the fewest slots up is cheapest.
    """

    def __init__(self, problem: Problem, clients: NDArray[np.intp], trains: Mask) -> None:
        costs, (count, stop) = problem.costs, trains.shape
        self.trains, self.lead, self.block = trains, costs.lead[clients], costs.min_block[clients]
        self.before = _up_before(problem, clients)
        self._check(problem, clients)
        intensity = costs.intensity[costs.row[clients], :stop]
        idle_kg = costs.up_kwh[clients, None] * intensity
        start_kg = _start_kg(costs.startup_kwh[clients], self.lead, intensity)
        most = idle_kg.sum(axis=1) + start_kg.sum(axis=1)
        most = np.where(most > 0, most, 1.0)
        self.equal = _EQUAL * most
        slot_cost = idle_kg + _SLOT_UP * most[:, None]
        last = int(self.block.max(initial=1))
        long_enough = np.arange(last + 1)[None, :] >= self.block[:, None]
        who = np.arange(count)
        # A start must be over by the next training slot.
        after = np.where(trains, np.arange(stop), stop)
        next_training = np.minimum.accumulate(after[:, ::-1], axis=1)[:, ::-1]
        self.off = np.zeros((stop + 1, count))
        """[slot, client], least cost from this slot to the end if the client is off just before it."""
        self.up = np.zeros((stop + 1, count, last + 1))
        """[slot, client, j], the same if it is up in the slot, as the j-th in a row; j is cut at the longest least block."""
        self.start = np.full((stop, count), np.inf)
        """[slot, client], the same if a start begins in this slot."""
        self.rest = np.full((stop, count), np.inf)
        """[slot, client], the same if it is off in this slot."""
        for t in range(stop - 1, -1, -1):
            stays = np.concatenate([self.up[t + 1, :, 1:], self.up[t + 1, :, -1:]], axis=1)
            leaves = np.where(long_enough | (t + 1 == stop), self.off[t + 1][:, None], np.inf)
            self.up[t] = slot_cost[:, t, None] + np.minimum(stays, leaves)
            first = t + self.lead  # slot of the block that a start in this slot leads to
            fits = (first < stop) & (next_training[:, t] >= first)
            self.start[t] = np.where(fits, start_kg[:, t] + self.up[np.minimum(first, stop), who, 1], np.inf)
            self.rest[t] = np.where(trains[:, t], np.inf, self.off[t + 1])
            self.off[t] = np.minimum(self.rest[t], self.start[t])

    def walk(self) -> Mask:
        """Return in which slots each client is up [client, slot]; of equal ways, being off comes first."""
        stop, count = self.start.shape
        who, last = np.arange(count), self.up.shape[2] - 1
        up = np.zeros((count, stop), dtype=bool)
        length = np.minimum(self.before, last)  # slots up in a row so far; 0: off
        first = np.full(count, -1, dtype=np.intp)  # first slot of the block that a start leads to
        for t in range(stop):
            stays = self.up[t, who, np.minimum(length + 1, last)]
            may_leave = (length >= self.block) & (self.off[t] <= stays + self.equal)
            length = np.where((length > 0) & may_leave, 0, length)
            waiting = first > t
            starts = (length == 0) & ~waiting & (first != t) & (self.start[t] + self.equal < self.rest[t])
            first = np.where(starts, t + self.lead, first)
            up[:, t] = (length > 0) | (first == t)
            length = np.where(up[:, t], np.minimum(length + 1, last), 0)
        return up

    def _check(self, problem: Problem, clients: NDArray[np.intp]) -> None:
        """Raise if a client trains before its first start can be over."""
        stop = self.trains.shape[1]
        first = np.where(self.trains.any(axis=1), self.trains.argmax(axis=1), stop)
        early = np.flatnonzero((self.before == 0) & (first < self.lead) & (first < stop))
        if len(early):
            row = int(early[0])
            lead = int(self.lead[row])
            raise ScenarioError(
                f"{str(problem.fleet.names[clients[row]])!r} trains in slot {first[row]}, but its start takes {lead} "
                f"slot{'s' * (lead > 1)} (startup_minutes), so it can train from slot {lead} on."
            )


def _start_kg(startup_kwh: Floats, lead: NDArray[np.intp], intensity: Floats) -> Floats:
    """Return the kg of a start that begins in each slot [client, slot]; cut at the end of the run."""
    stop = intensity.shape[1]
    total = np.concatenate([np.zeros((len(intensity), 1)), np.cumsum(intensity, axis=1)], axis=1)
    spread = np.maximum(lead, 1)[:, None]  # without a lead it is all in the block's first slot
    until = np.minimum(np.arange(stop)[None, :] + spread, stop)
    over = np.take_along_axis(total, until, axis=1) - total[:, :-1]
    kg: Floats = startup_kwh[:, None] * np.maximum(over, 0.0) / spread
    return kg
