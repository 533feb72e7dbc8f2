"""Weights when who trained is not who was planned: each client still ends with its whole share.

U-FedAvg gives every update of client c the weight 1 / (K pi_c). Over the W slots before the window, of which c trains
in n_c = pi_c W, that adds up to W / K for everybody: this, not the single weight, is what makes it unbiased. When slots
are lost, the next updates of c carry what is missing:

    w = (W / K - what c was given so far) / (planned participations of c that are left, this one included)

Without losses that is 1 / (K pi_c) in every slot, exactly. The weight is at most `makeup` times the planned one, so that
one late update does not carry the model away; what the cap holds back is spread over later ones, and what is left at
the end is the shortfall, which is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_FINEST = 10**12
"""Shares are kept as fractions, so that equal weights stay exactly equal; finer than this they are rounded."""


class Weights:
    """Keeps what every client was given, and turns what is left into the pi that aggregators read."""

    def __init__(self, clients: int, *, makeup: float = 3.0) -> None:
        self.clients, self.makeup = clients, makeup
        self.given = [Fraction(0)] * clients
        """[client], sum of its weights times K."""
        self.times = [0] * clients
        """[client], updates used before the window."""
        self.planned = [0] * clients
        """[client], the most participations before the window that were ever planned for it."""

    def expect(self, left: NDArray[np.int64]) -> None:
        """Take note of a plan: `left` [client] participations from this slot on, it included."""
        self.planned = [
            max(most, times + int(more)) for most, times, more in zip(self.planned, self.times, left, strict=True)
        ]

    def pi(self, used: Sequence[int], left: NDArray[np.int64], before: int) -> NDArray[np.float64]:
        """[client], effective pi of a slot, whose updates are hereby given their weight.

        `used` are the clients whose updates are used, `left` as for `expect`, and `before` the slots before the window,
        as planned now.
        """
        self.expect(left)
        pi = np.array(self.planned) / max(before, 1)
        for client in used:
            weight = self._weight(client, max(int(left[client]), 1), before)
            self.given[client] = (self.given[client] + weight).limit_denominator(_FINEST)
            self.times[client] += 1
            pi[client] = float(1 / weight) if weight > 0 else np.inf
        return pi

    def shortfall(self, before: int) -> NDArray[np.float64]:
        """[client], share of W / K that it was not given; 0 where it was given all or more."""
        whole = max(before, 1)
        return np.array([max(0.0, float(1 - given / whole)) for given in self.given])

    def _weight(self, client: int, left: int, before: int) -> Fraction:
        """K times the weight of this update."""
        missing = (Fraction(before) - self.given[client]) / left
        most = Fraction(self.makeup) * Fraction(before, max(self.planned[client], 1))
        return max(Fraction(0), min(missing, most))

    def to_dict(self) -> dict[str, object]:
        """As JSON holds it."""
        return {"given": [str(given) for given in self.given], "times": self.times, "planned": self.planned}

    def restore(self, data: Mapping[str, Sequence[str | int]]) -> None:
        """Take up what was kept."""
        self.given = [Fraction(given) for given in data["given"]]
        self.times, self.planned = [int(n) for n in data["times"]], [int(n) for n in data["planned"]]
