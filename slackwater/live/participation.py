"""Weights when slots are lost: each client still ends with its whole share.

U-FedAvg gives every update of client c the weight 1 / (K pi_c). Over the W slots before the window, of which c trains
in n_c = pi_c W, that adds up to W / K for everybody, which makes it unbiased. When slots are lost, the next updates of
c carry what is missing:

    w = (W / K - what c was given so far) / (planned participations of c that are left, including this one)

Without losses that is 1 / (K pi_c) in every slot, exactly. The weight is at most `makeup` times the planned one. Later
updates carry what the cap holds back; the rest at the end is the shortfall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_FINEST = 10**12
"""Shares are kept as fractions, so that equal weights stay exactly equal; finer than this they are rounded."""


class MakeupWeights:
    """Counts what every client was given, and turns what is left into the pi that aggregators read."""

    def __init__(self, clients: int, *, makeup: float = 3.0) -> None:
        self.clients, self.makeup = clients, makeup
        self.given = [Fraction(0)] * clients  # [client], sum of its weights times K
        self.times = [0] * clients  # [client], updates used before the window
        self.planned = [0] * clients
        """[client], the most participations before the window that were ever planned for it."""

    def expect(self, left: NDArray[np.int64]) -> None:
        """Take note of a plan: `left` [client] participations from this slot on, including it."""
        self.planned = self._most_planned(left)

    def pi(self, used: Sequence[int], left: NDArray[np.int64], before: int) -> NDArray[np.float64]:
        """Return the effective pi [client] of a slot.

        Args:
            used: The clients whose updates are used.
            left: [client], planned participations from this slot on, including this one.
            before: Slots before the window, as planned now.
        """
        pi = np.array(self._most_planned(left)) / max(before, 1)
        for client in used:
            weight = self._weight(client, left, before)
            pi[client] = float(1 / weight) if weight > 0 else np.inf
        return pi

    def give(self, used: Sequence[int], left: NDArray[np.int64], before: int) -> None:
        """Count the weights of a slot's updates; the arguments are those of `pi`."""
        weights = {client: self._weight(client, left, before) for client in used}
        self.expect(left)
        for client, weight in weights.items():
            self.given[client] = (self.given[client] + weight).limit_denominator(_FINEST)
            self.times[client] += 1

    def shortfall(self, before: int) -> NDArray[np.float64]:
        """Return the share of W / K that each client was not given, [client]; 0 where it was given all or more."""
        whole = max(before, 1)
        return np.array([max(0.0, float(1 - given / whole)) for given in self.given])

    def _most_planned(self, left: NDArray[np.int64]) -> list[int]:
        return [max(most, times + int(n)) for most, times, n in zip(self.planned, self.times, left, strict=True)]

    def _weight(self, client: int, left: NDArray[np.int64], before: int) -> Fraction:
        """Return K times the weight of this update."""
        missing = (Fraction(before) - self.given[client]) / max(int(left[client]), 1)
        planned = max(self.planned[client], self.times[client] + int(left[client]), 1)
        most = Fraction(self.makeup) * Fraction(before, planned)
        return max(Fraction(0), min(missing, most))

    def to_dict(self) -> dict[str, object]:
        """Return the state as JSON holds it."""
        return {"given": [str(given) for given in self.given], "times": self.times, "planned": self.planned}

    def restore(self, data: Mapping[str, Sequence[str | int]]) -> None:
        """Continue from a state."""
        self.given = [Fraction(given) for given in data["given"]]
        self.times, self.planned = [int(n) for n in data["times"]], [int(n) for n in data["planned"]]
