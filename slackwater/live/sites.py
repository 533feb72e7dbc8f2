"""The sites of a run: their transport, and which clients are online, away or excluded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.fleet import Fleet

Arrays = Mapping[str, NDArray[Any]]  # a model as its state dict: name -> array, in the model's order

Outcome = Literal["done", "failed", "late", "lost"]
"""`failed`: the client reported an error. `late`: no reply by the end of the slot. `lost`: the node is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A client that is online, as it describes itself."""

    name: str
    zone: str | None = None
    power_w: float | None = None
    verified: bool = False  # whether its name is bound to a key that the server checked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """The work of one client in a slot."""

    slot: int
    number: int  # 0, 1, .. over the slots with participants
    attempt: int
    seed: int  # of this client and slot: the same on every engine, and after a restart
    ends_at: datetime  # wall clock, UTC: the client stops itself by then
    arrays: Arrays
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The user's settings of local training, sent unchanged. `work` is the share of the local steps below full power."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """The outcome of one client's work; its energy is always charged."""

    client: str
    outcome: Outcome
    arrays: Arrays | None = None  # its model after local training; None unless it is done
    loss: float | None = None
    samples: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    energy_kwh: float | None = None
    """Measured by the client, including evaluation; None: modelled from its power and time."""
    evaluation_seconds: float | None = None
    """Duration of the client's evaluation between `started_at` and `ended_at`; None if unknown."""
    error: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The client's own numbers, such as its accuracy; kept in the run's file."""
    message: Any = None
    """The engine's own reply, for a strategy of the engine that combines the updates; None if ours does."""


class Transport(Protocol):
    """A way to reach the sites."""

    def online(self) -> Mapping[str, Site]:
        """Return the clients that are online, by name."""

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send each client its work and yield each reply as it arrives; a client without a reply by `until` is late.

        There is exactly one reply for every client of `work`. Nothing is sent twice.
        """


@runtime_checkable
class Chooser(Protocol):
    """A transport that may leave out clients that are due, as a strategy does that asks one client a round."""

    def choose(self, clients: Sequence[str], number: int, arrays: Arrays) -> Collection[str]:
        """Return which of the due clients get work in round `number`. The others are neither sent work nor charged."""


Mask = NDArray[np.bool_]
_POWER_ROUNDING = 1e-6


class Attendance:
    """The clients of the plan by name. A problem is reported when it starts, not in every slot."""

    def __init__(self, fleet: Fleet, *, gone_after: int, max_rejections: int) -> None:
        self._fleet, self._gone_after, self._max_rejections = fleet, gone_after, max_rejections
        self._names = [str(name) for name in fleet.names]
        self._row = {name: client for client, name in enumerate(self._names)}
        count = len(fleet)
        self.absent = np.zeros(count, dtype=np.int64)  # [client], consecutive slots offline
        self.in_vain = np.zeros(count, dtype=np.int64)  # [client], consecutive rounds without a reply
        self.rests_until = np.zeros(count, dtype=np.int64)  # [client], slot until which it is paused
        self.rejections = np.zeros(count, dtype=np.int64)  # [client], its rejected updates
        self._slot = 0
        self._said: dict[str, str] = {}

    @property
    def set_aside(self) -> Mask:
        """Return the clients whose updates were rejected too often, [client]."""
        return self.rejections >= self._max_rejections

    @property
    def away(self) -> Mask:
        """Return the clients that plans leave out, [client]: excluded, paused, or offline for long."""
        return self.set_aside | (self.rests_until > self._slot) | (self.absent >= self._gone_after)

    def look(self, online: Mapping[str, Site], slot: int) -> tuple[Mask, list[str]]:
        """Return the clients that can train in the slot, [client], and messages about changes."""
        self._slot = slot
        odd = {name: reason for name, site in online.items() if (reason := self._odd(site))}
        messages = [reason for name, reason in odd.items() if self._said.get(name) != reason]
        self._said = odd
        there = np.array([name in online and name not in odd for name in self._names], dtype=bool)
        back = there & (self.absent >= self._gone_after)
        self.absent = np.where(there, 0, self.absent + 1)
        messages += [f"{self._names[c]} is back; it keeps its history." for c in np.flatnonzero(back)]
        messages += [
            f"{self._names[c]} was offline for {self._gone_after} slots in a row. Plans leave it out until it is back."
            for c in np.flatnonzero(self.absent == self._gone_after)
        ]
        return there & ~self.set_aside & (self.rests_until <= slot), messages

    def note(self, slot: int, drew: Mask, answered: Mask) -> list[str]:
        """Count rounds without a reply; repeated ones pause a client for longer and longer. Return messages."""
        self.in_vain = np.where(drew, np.where(answered, 0, self.in_vain + 1), self.in_vain)
        resting = drew & ~answered & (self.in_vain >= self._gone_after)
        self.rests_until = np.where(resting, slot + 1 + self.in_vain, self.rests_until)
        return [
            f"{self._names[c]} did not reply {self.in_vain[c]} times in a row. It is paused until slot "
            f"{self.rests_until[c]}, to save the budget."
            for c in np.flatnonzero(resting)
        ]

    def reject(self, client: int) -> str | None:
        """Count a rejected update; return messages if the client is now excluded."""
        self.rejections[client] += 1
        if self.rejections[client] != self._max_rejections:
            return None
        return (
            f"{self._names[client]} is excluded: {self._max_rejections} of its updates were rejected. The run continues "
            "without it."
        )

    def why_absent(self, client: int) -> str:
        """Return why a planned client does not train."""
        if self.set_aside[client]:
            return "excluded"
        if self.rests_until[client] > self._slot:
            return "paused"
        return self._said.get(self._names[client], "")

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON holds it."""
        counts = {name: getattr(self, name).tolist() for name in _COUNTS}
        return counts | {"slot": self._slot, "said": self._said}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continue from a state."""
        for name in _COUNTS:
            setattr(self, name, np.array(data[name], dtype=np.int64))
        self._slot, self._said = int(data["slot"]), dict(data["said"])

    def _odd(self, site: Site) -> str | None:
        """Return why a site may not train: its own description would make its charges wrong."""
        client = self._row.get(site.name)
        if client is None:
            return f"{site.name} is online but not in the plan: it is ignored."
        zone, power = str(self._fleet.zone[client]), float(self._fleet.power_w[client])
        if site.zone is not None and site.zone != zone:
            wrong = f"reports zone {site.zone}, but the plan has {zone}"
        elif site.power_w is not None and site.power_w > power * (1 + _POWER_ROUNDING):  # False where power is NaN
            wrong = f"reports {site.power_w:g} W, but the plan has {power:g} W"
        else:
            return None
        return f"{site.name} {wrong}. It does not train until the two agree."


_COUNTS = ("absent", "in_vain", "rests_until", "rejections")
