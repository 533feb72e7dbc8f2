"""Between the runner and the sites: what is asked of a client in a slot, and what comes back.

The runner knows nothing of Flower, and `slackwater.flower` nothing of budgets; they meet here. Tests put a transport
of their own in between, one that loses, delays and falsifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
"""A model as its state dict, by name, in the model's own order."""

Outcome = Literal["done", "failed", "late", "lost"]
"""`failed`: the client said so. `late`: no answer by the end of the slot. `lost`: the node is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A client that can be reached now, as it describes itself."""

    name: str
    zone: str | None = None
    power_w: float | None = None
    verified: bool = False
    """Whether its name is bound to a key that the server checked."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """One client's part of a slot."""

    slot: int
    number: int
    """0, 1, .. over the slots with participants."""
    attempt: int
    seed: int
    """Of this client and slot: the same on every engine, and after a restart."""
    ends_at: datetime
    """Wall clock, UTC: the client stops itself by then."""
    arrays: Arrays
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The user's own settings of local training, passed on as they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """What became of one client's work; energy is charged whatever it was."""

    client: str
    outcome: Outcome
    arrays: Arrays | None = None
    """Its model after local training; None unless it is done."""
    loss: float | None = None
    samples: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    energy_kwh: float | None = None
    """As measured by the client; None: modelled from its power and time."""
    error: str = ""


class Transport(Protocol):
    """A way to reach the sites."""

    def online(self) -> Mapping[str, Site]:
        """Clients that can be reached now, by name."""
        ...

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send everyone its work and give each reply as it comes; who has not answered by `until` is late.

        Every client of `work` is named exactly once. Nothing is sent twice.
        """
        ...
