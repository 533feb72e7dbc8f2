"""Who trains is left to chance: what any method must beat."""

from __future__ import annotations

import numpy as np

from slackwater.rivals.policy import NOBODY, Choice, Online, View


class Random(Online):
    """Every client-slot of the horizon with the same probability, at equal carbon.

    The probability is what is left of the budget over what all the remaining client-slots that it could pay would cost, so that the
    budget lasts to the end and is spent by then, as nearly as chance allows. FedAvg over who is there.
    """

    def choose(self, view: View) -> Choice:
        """Each client by a coin, in random order."""
        costs = view.costs_ahead
        within = costs <= view.left_kg  # what can still be bought at all
        everything = float(costs[within].sum())
        chance = 1.0 if everything <= view.left_kg else view.left_kg / everything
        able = np.flatnonzero(within[:, 0])
        drawn = able[view.rng.random(len(able)) < chance]
        return Choice(clients=[int(c) for c in view.rng.permutation(drawn)]) if len(drawn) else NOBODY
