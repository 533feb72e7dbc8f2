"""Who may train: one client, and many of them as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import ScenarioError

NO_LIMIT = np.iinfo(np.int32).max
_MAX_PUE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A site that trains: where it is, what it draws, and when and how often it may or must take part."""

    name: str
    zone: str
    power_w: float | None = None
    """Draw while training, the whole of it (idle included)."""
    idle_w: float = 0.0
    """Draw while waiting; charged in every slot until the run ends, whether the client is used or not."""
    pue: float = 1.0
    """Power usage effectiveness of the site; multiplies all its energy."""
    energy_kwh: float | None = None
    """What one round adds to the idle draw; instead of power_w and the length of a round."""
    unavailable: tuple[str, ...] = ()
    """Periods in which it cannot train; see `slackwater.planning.availability`."""
    min_slots: int = 0
    """Least number of slots before the fine-tuning window."""
    max_slots: int | None = None
    """Largest number of slots before the fine-tuning window."""
    required: bool = False
    """Must take part before the window: the same as min_slots of at least 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unavailable", tuple(self.unavailable))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """Many clients as columns, for a million of them; a sequence of `Client` all the same.

    Columns are [client]; `power_w` and `energy_kwh` hold NaN where the other one is given, `max_slots` holds NO_LIMIT where there is none.
    """

    names: Sequence[str]
    zone: Sequence[str]
    power_w: NDArray[np.float64]
    idle_w: NDArray[np.float64]
    pue: NDArray[np.float64]
    energy_kwh: NDArray[np.float64]
    min_slots: NDArray[np.int32]
    max_slots: NDArray[np.int32]
    unavailable: dict[int, tuple[str, ...]]

    @classmethod
    def of(
        cls,
        zone: Sequence[str],
        *,
        names: Sequence[str] | None = None,
        power_w: ArrayLike | None = None,
        idle_w: ArrayLike = 0.0,
        pue: ArrayLike = 1.0,
        energy_kwh: ArrayLike | None = None,
        min_slots: ArrayLike = 0,
        max_slots: ArrayLike | None = None,
        unavailable: dict[int, tuple[str, ...]] | None = None,
    ) -> Fleet:
        """Columns, or one value for all, checked."""
        count = len(zone)

        def column(values: ArrayLike | None, missing: float, kind: Any = np.float64) -> NDArray[Any]:
            filled: NDArray[Any] = np.asarray(missing if values is None else values, dtype=kind)
            return np.ascontiguousarray(np.broadcast_to(filled, (count,)))

        fleet = cls(
            names=names if names is not None else [f"client-{i:0{len(str(count))}d}" for i in range(1, count + 1)],
            zone=zone,
            power_w=column(power_w, np.nan),
            idle_w=column(idle_w, 0.0),
            pue=column(pue, 1.0),
            energy_kwh=column(energy_kwh, np.nan),
            min_slots=column(min_slots, 0, np.int32),
            max_slots=column(max_slots, NO_LIMIT, np.int32),
            unavailable=dict(unavailable or {}),
        )
        fleet._check()
        return fleet

    @classmethod
    def from_clients(cls, clients: Sequence[Client] | Fleet) -> Fleet:
        """The same clients as columns."""
        if isinstance(clients, Fleet):
            return clients
        if len(clients) == 0:
            raise ScenarioError("There are no clients. Add at least one [[client]] with a name, a zone and power_w.")
        return cls.of(
            [c.zone for c in clients],
            names=[c.name for c in clients],
            power_w=[np.nan if c.power_w is None else c.power_w for c in clients],
            idle_w=[c.idle_w for c in clients],
            pue=[c.pue for c in clients],
            energy_kwh=[np.nan if c.energy_kwh is None else c.energy_kwh for c in clients],
            min_slots=[max(c.min_slots, int(c.required)) for c in clients],
            max_slots=[NO_LIMIT if c.max_slots is None else c.max_slots for c in clients],
            unavailable={i: c.unavailable for i, c in enumerate(clients) if c.unavailable},
        )

    def __len__(self) -> int:
        return len(self.zone)

    def __getitem__(self, index: int) -> Client:
        limit = int(self.max_slots[index])
        return Client(
            name=self.names[index],
            zone=self.zone[index],
            power_w=_number(self.power_w[index]),
            idle_w=float(self.idle_w[index]),
            pue=float(self.pue[index]),
            energy_kwh=_number(self.energy_kwh[index]),
            unavailable=self.unavailable.get(index, ()),
            min_slots=int(self.min_slots[index]),
            max_slots=None if limit == NO_LIMIT else limit,
        )

    def __iter__(self) -> Iterator[Client]:
        return (self[i] for i in range(len(self)))

    def _check(self) -> None:
        if len(self) == 0:
            raise ScenarioError("There are no clients. Add at least one [[client]] with a name, a zone and power_w.")
        if len(self.names) != len(self):
            raise ScenarioError(f"{len(self.names)} names for {len(self)} clients.")
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise ScenarioError(f"Two clients are called {name!r}; plans are keyed by name, so names must differ.")
            if not name:
                raise ScenarioError("A client has an empty name.")
            seen.add(name)
        given, per_round = ~np.isnan(self.power_w), ~np.isnan(self.energy_kwh)
        self._refuse(~given & ~per_round, "needs power_w (or energy_kwh, the energy of one round)")
        self._refuse(given & per_round, "has both power_w and energy_kwh; give one of them")
        self._refuse(given & ~(self.power_w > 0), "has a power_w that is not above 0")
        self._refuse(np.isinf(self.power_w), "has an infinite power_w")
        self._refuse(per_round & ~((self.energy_kwh >= 0) & np.isfinite(self.energy_kwh)), "has a negative energy_kwh")
        self._refuse(~((self.idle_w >= 0) & np.isfinite(self.idle_w)), "has an idle_w below 0")
        self._refuse(given & (self.idle_w > self.power_w), "draws more when idle (idle_w) than when training (power_w)")
        self._refuse(~((self.pue >= 1) & (self.pue <= _MAX_PUE)), f"has a pue outside 1 to {_MAX_PUE:g}")
        self._refuse(self.min_slots < 0, "has a min_slots below 0")
        self._refuse(self.max_slots < self.min_slots, "has a max_slots below its min_slots (required counts as 1)")

    def _refuse(self, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            raise ScenarioError(f"Client {self.names[int(np.argmax(wrong))]!r} {what}.")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
