"""Which updates are safe to use: a broken client must not spoil the model of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

_RECENT = 10
_KNOWN, _TOGETHER = 2, 3
"""How many clients, by earlier rounds or in this one, it takes to tell what is usual."""


class Screening:
    """Compares the length of updates with what is usual: the median over clients of the longest of their recent ones.

    Not the median of all recent ones: where a client trains alone for some slots its updates become short, and those of
    the next one, which are honest, would look far too long.
    """

    def __init__(self, max_norm_ratio: float | None) -> None:
        self._ratio = max_norm_ratio
        self._recent: dict[int, deque[float]] = {}

    def rejected(self, norms: Mapping[int, float]) -> dict[int, str]:
        """Client -> why its update is too long; the norms [client] of the others are remembered."""
        usual = self._usual(list(norms.values()))
        long = {
            client: f"its update is {norm / usual:.3g} times as long as usual, more than the {self._ratio:g} allowed"
            for client, norm in norms.items()
            if self._ratio is not None and usual and norm > self._ratio * usual
        }
        for client in norms.keys() - long.keys():
            self._recent.setdefault(client, deque(maxlen=_RECENT)).append(norms[client])
        return long

    def to_dict(self) -> dict[str, list[float]]:
        """As JSON holds it."""
        return {str(client): list(recent) for client, recent in sorted(self._recent.items())}

    def restore(self, data: Mapping[str, Sequence[float]]) -> None:
        """Take up what was kept."""
        self._recent = {int(client): deque(recent, maxlen=_RECENT) for client, recent in data.items()}

    def _usual(self, now: Sequence[float]) -> float | None:
        """What to compare with; None while too little is known."""
        if len(self._recent) >= _KNOWN:
            return median(max(recent) for recent in self._recent.values())
        return median(now) if len(now) >= _TOGETHER else None
