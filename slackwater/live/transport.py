"""What the runner asks of a client in a slot, and what comes back.

The runner does not know Flower, and `slackwater.flower` does not know budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]  # a model as its state dict, by name, in the model's own order

Outcome = Literal["done", "failed", "late", "lost"]
"""`failed`: the client said so. `late`: no answer by the end of the slot. `lost`: the node is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A client that can be reached now, as it describes itself."""

    name: str
    zone: str | None = None
    power_w: float | None = None
    verified: bool = False  # whether its name is bound to a key that the server checked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """One client's part of a slot."""

    slot: int
    number: int  # 0, 1, .. over the slots with participants
    attempt: int
    seed: int  # of this client and slot: the same on every engine, and after a restart
    ends_at: datetime  # wall clock, UTC: the client stops itself by then
    arrays: Arrays
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The user's own settings of local training, passed on as they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """The outcome of one client's work; its energy is charged in any case."""

    client: str
    outcome: Outcome
    arrays: Arrays | None = None  # its model after local training; None unless it is done
    loss: float | None = None
    samples: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    energy_kwh: float | None = None
    """As measured by the client, evaluation included; None: modelled from its power and time."""
    evaluation_seconds: float | None = None
    """How long the client evaluated between `started_at` and `ended_at`; None where it does not say."""
    error: str = ""


class Transport(Protocol):
    """A way to reach the sites."""

    def online(self) -> Mapping[str, Site]:
        """Return the clients that can be reached now, by name."""

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send everyone its work and yield each reply as it comes; a client without an answer by `until` is late.

        Every client of `work` is named exactly once. Nothing is sent twice.
        """
