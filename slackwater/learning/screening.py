"""Which updates are too long to be trusted: a broken client, or local steps that diverge, must not spoil the model of all unseen."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

UNUSUAL = 5.0
"""Times the usual length from which on an update is worth a warning in `slackwater train`; honest ones were up to 3.5 times as long."""
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

    def too_long(self, norms: Mapping[int, float]) -> dict[int, float]:
        """Client -> how many times as long as usual its update is, if too long; the norms [client] of the others are remembered."""
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


class Watch:
    """Says of a client, once a run, that its update is far too long: one in the window spoils the last model unseen.

    Nothing is rejected, since a simulation may be about just that. What is usual is learned anew after a resume.
    """

    def __init__(self, names: Sequence[str], lr: float) -> None:
        self._names, self._lr = names, lr
        self._screening, self._named = Screening(UNUSUAL), set[int]()

    def warnings(self, norms: Mapping[int, float], slot: int) -> list[str]:
        """A sentence for each client of whom none was said yet; norms [client]."""
        long = self._screening.too_long(norms)
        new = long.keys() - self._named
        self._named |= new
        return [
            f"The update of client {self._names[client]!r} in slot {slot} is {long[client]:.3g} times as long as usual: its "
            f"local steps may have diverged, or the model has. Try an lr below {self._lr:g}."
            for client in sorted(new)
        ]
