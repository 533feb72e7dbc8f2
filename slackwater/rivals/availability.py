"""CA-Fed: who is there rarely and in long stretches is left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.rivals.policy import NOBODY, Choice, Floats, Online, State, View


class CaFed(Online):
    """CA-Fed: Rodio et al., INFOCOM 2023, learning under heterogeneous and correlated availability. Our reading.

    CA-Fed does not choose when a client is there; here a client is there in a slot if its emissions are among the cheapest that what is
    left of the budget pays from then on. How often, pi_c, and how correlated in time, lambda_c (the lag-one correlation), are estimated
    from the slots so far. A client with few independent chances, e_c = pi_c (1 - lambda_c) / (1 + lambda_c), is ignored: CA-Fed trades the
    bias of leaving it out for speed of convergence. The others count with 1 / pi_c.

    Simplified: CA-Fed compares two terms of its bound with estimates of the losses; here a client is ignored if e_c is below a quarter of
    the median of all, after a day of slots. The weights are scaled in each slot to sum to one, since with rare clients 1 / pi_c diverges.
    """

    least, warm_up = 0.25, 24

    def __init__(self) -> None:
        self.seen: Floats | None = None
        """[client, slot so far], 1 where it was there."""

    def choose(self, view: View) -> Choice:
        """Those there who are not ignored."""
        here = (view.costs_ahead[:, 0] <= view.affordable_kg).astype(np.float64)
        self.seen = here[:, None] if self.seen is None else np.concatenate([self.seen, here[:, None]], axis=1)
        ignored = self.ignored()
        there = [int(c) for c in np.flatnonzero(here) if not ignored[c]]
        if not there:
            return NOBODY
        pi = self.seen.mean(axis=1)
        raw = {c: 1 / float(pi[c]) for c in there}
        total = sum(raw.values())
        order = sorted(there, key=lambda c: -raw[c])
        return Choice(clients=order, weights={c: weight / total for c, weight in raw.items()})

    def chances(self) -> Floats:
        """[client], e_c."""
        assert self.seen is not None
        pi = self.seen.mean(axis=1)
        now, after = self.seen[:, :-1], self.seen[:, 1:]
        spread = (self.seen - pi[:, None]).var(axis=1)
        together = ((now - pi[:, None]) * (after - pi[:, None])).mean(axis=1) if now.shape[1] else np.zeros(len(pi))
        correlation = np.clip(np.divide(together, spread, out=np.zeros(len(pi)), where=spread > 0), 0.0, 0.99)
        return np.asarray(pi * (1 - correlation) / (1 + correlation))

    def ignored(self) -> NDArray[np.bool_]:
        """[client], whether it is left out."""
        assert self.seen is not None
        if self.seen.shape[1] < self.warm_up:
            return np.zeros(len(self.seen), dtype=bool)
        chances = self.chances()
        return chances < self.least * float(np.median(chances))

    def state(self) -> State:
        """Who was there when."""
        return {} if self.seen is None else {"seen": self.seen}

    def restore(self, state: State) -> None:
        """Take it up."""
        self.seen = state.get("seen")
