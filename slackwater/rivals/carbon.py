"""Methods that look at carbon and not at fairness, as the paper characterises FedCarbon and GREED; and lowcarb, which looks at both."""

from __future__ import annotations

import numpy as np

from slackwater.rivals.policy import NOBODY, Choice, Floats, Online, View, per_round


class FedCarbon(Online):
    """FedCarbon, as the paper cites it: rounds move to the hours of low intensity, with the cleanest clients. Our reading.

    The k cheapest clients of a slot make its round. A round is held now if it is among the cheapest rounds from now on that what is left of
    the budget pays together.

    What is known: that it schedules rounds in periods and regions of low intensity and has no criterion of fairness (the paper, section
    II). The rule for when to hold a round, from a forecast over the whole horizon, is ours.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def choose(self, view: View) -> Choice:
        """The cheapest clients, if now is one of the cheapest slots."""
        wanted = per_round(self.count, view.clients)
        costs = np.sort(view.costs_ahead, axis=0)[:wanted]
        rounds = np.where(np.isfinite(costs), costs, 0.0).sum(axis=0)
        rounds[~np.isfinite(costs[0])] = np.inf  # nobody is there
        cheapest = np.sort(rounds)
        paid = int(np.searchsorted(np.cumsum(cheapest), view.left_kg * (1 + 1e-12), side="right"))
        if not paid or rounds[0] > cheapest[paid - 1]:
            return NOBODY
        return Choice(clients=_cheapest(view)[:wanted])


class Greed(Online):
    """GREED: Albelaihi et al., GLOBECOM 2022, energy-aware client selection. Our reading under a carbon budget.

    As many clients as the green energy of the moment carries, the least consuming first. Where there is no record of green energy, the
    budget is released evenly over the slots, and clients are taken by rising emissions while what has been released and not spent pays
    them.

    Simplified: no wireless channel and no deadline (every client finishes in its slot).
    """

    def choose(self, view: View) -> Choice:
        """By rising emissions, up to what is released."""
        order, costs = _cheapest(view), view.cost_kg
        left, chosen = view.released_kg - view.server_kg, []
        for client in order:
            if costs[client] > left + 1e-12 * view.budget_kg:
                break
            left -= float(costs[client])
            chosen.append(client)
        return Choice(clients=chosen)


class Lowcarb(Online):
    """flwr-lowcarb's window rule: Wiesner et al., CarbonHack 2022 (github.com/birnbaum/flwr-lowcarb).

    Each client has a window that it may wait, w = W max(0, 2 p / p_max - 1) slots, rounded, p its rounds so far and W = 12: who took part
    little must go soon. A client scores by how much lower its intensity will get within its window, the least gain first; who has no
    window left comes before all others, the cleanest first; who took part more than the 80th percentile comes last. The best k train in
    every slot.

    Simplified: nothing but the source of the forecast. It has no budget, so ours ends it.
    """

    ahead = 12

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def windows(self, view: View) -> Floats:
        """[client], slots that it may wait."""
        most = int(view.participation.max())
        if most == 0:
            return np.full(view.clients, float(self.ahead))
        return np.round(np.maximum(0.0, 2 * view.participation / most - 1) * self.ahead)

    def choose(self, view: View) -> Choice:
        """By urgency, then by what waiting would gain."""
        windows, now = self.windows(view), view.intensity
        limit = float(np.percentile(view.participation, 80))

        def rank(client: int) -> tuple[int, float]:
            if view.participation[client] > limit:
                return 2, 0.0
            ahead = view.forecast[client, 1 : 1 + int(windows[client])]
            if not len(ahead):  # no window left, or no slot after this one
                return 0, float(now[client])
            return 1, float(now[client] - ahead.min())

        order = sorted((int(c) for c in view.there), key=rank)
        return Choice(clients=order[: per_round(self.count, view.clients)])


def _cheapest(view: View) -> list[int]:
    """Clients that are there, by what training emits now."""
    return [int(c) for c in view.there[np.argsort(view.cost_kg[view.there], kind="stable")]]
