"""Updates that are too long to trust: of a broken client, or of local steps that diverge."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

UNUSUAL = 5.0
"""Times the usual length from which on an update is worth a warning in `slackwater train`; honest ones were up to 3.5 times as long."""
_RECENT = 10
_KNOWN, _TOGETHER = 2, 3  # how many clients, by earlier rounds or in this one, it takes to tell what is usual


class Screening:
    """Compares the length of updates with the usual: the median over clients of the longest of their recent ones.

    Not the median of all recent ones: a client that trains alone for some slots sends short updates, and those of the next
    one would look far too long.
    """

    def __init__(self, max_norm_ratio: float | None) -> None:
        self._ratio = max_norm_ratio
        self._recent: dict[int, deque[float]] = {}

    def too_long(self, norms: Mapping[int, float]) -> dict[int, float]:
        """Return client -> how many times as long as usual its update is, if too long; remember the norms of the others."""
        usual = self._usual(list(norms.values()))
        long = {
            client: norm / usual
            for client, norm in norms.items()
            if self._ratio is not None and usual and norm > self._ratio * usual
        }
        for client in norms.keys() - long.keys():
            self._recent.setdefault(client, deque(maxlen=_RECENT)).append(norms[client])
        return long

    def to_dict(self) -> dict[str, list[float]]:
        """Return the state as JSON holds it."""
        return {str(client): list(recent) for client, recent in sorted(self._recent.items())}

    def restore(self, data: Mapping[str, Sequence[float]]) -> None:
        """Continue from a state."""
        self._recent = {int(client): deque(recent, maxlen=_RECENT) for client, recent in data.items()}

    def _usual(self, now: Sequence[float]) -> float | None:
        """Return the norm to compare with; None while too little is known."""
        if len(self._recent) >= _KNOWN:
            return median(max(recent) for recent in self._recent.values())
        return median(now) if len(now) >= _TOGETHER else None


class NormWarnings:
    """Warns once a run and client of a far too long update. Nothing is rejected, since a simulation may study just that."""

    def __init__(self, names: Sequence[str], lr: float) -> None:
        self._names, self._lr = names, lr
        self._screening, self._named = Screening(UNUSUAL), set[int]()

    def of(self, norms: Mapping[int, float], slot: int) -> list[str]:
        """Return a sentence for each client with too long an update that has had none; norms [client]."""
        long = self._screening.too_long(norms)
        new = long.keys() - self._named
        self._named |= new
        return [
            f"The update of client {self._names[client]!r} in slot {slot} is {long[client]:.3g} times as long as usual: its "
            f"local steps may have diverged, or the model has. Try an lr below {self._lr:g}."
            for client in sorted(new)
        ]
