"""Carbon-aware policies: FedCarbon, GREED, lowcarb, a threshold, CA-Fed under a carbon budget, and a random choice at equal emissions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slackwater.lab.policies.policy import NOBODY, Choice, Floats, Online, State, View, per_round


class FedCarbon(Online):
    """FedCarbon, as cited in the paper: rounds move to hours of low intensity, with the cleanest clients. Our interpretation.

    The k clients with the lowest emissions form a slot's round. The round runs now if it is among the cheapest future rounds that the
    remaining budget pays together.

    Known: it schedules rounds in periods and regions of low intensity, without a fairness criterion (the paper, section II). The rule
    for when to run a round, from a forecast over the whole horizon, is ours.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def choose(self, view: View) -> Choice:
        """Return the cheapest clients, if now is one of the cheapest slots."""
        wanted = per_round(self.count, view.clients)
        costs = np.sort(view.costs_ahead, axis=0)[:wanted]
        rounds = np.where(np.isfinite(costs), costs, 0.0).sum(axis=0)
        rounds[~np.isfinite(costs[0])] = np.inf  # no client is available
        cheapest = np.sort(rounds)
        paid = int(np.searchsorted(np.cumsum(cheapest), view.left_kg * (1 + 1e-12), side="right"))
        if not paid or rounds[0] > cheapest[paid - 1]:
            return NOBODY
        return Choice(clients=_cheapest(view)[:wanted])


class Greed(Online):
    """GREED: Albelaihi et al., GLOBECOM 2022, energy-aware client selection. Our interpretation under a carbon budget.

    GREED takes as many clients as the current green energy supplies, the lowest consumption first. Without data on green energy, we
    release the budget evenly over the slots and take clients by rising emissions while the released, unspent budget pays them.

    Simplified: no wireless channel and no deadline (every client finishes in its slot).
    """

    def choose(self, view: View) -> Choice:
        """Return clients by rising emissions, up to the released budget."""
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

    A client may wait w = W max(0, 2 p / p_max - 1) slots, rounded, with p its rounds so far and W = 12: clients with few rounds wait
    less. Its score is how much lower its intensity will be within this window, the smallest gain first. Clients with no window left come
    before all others, the cleanest first. Clients above the 80th percentile of rounds come last. The best k train in every slot.

    Simplified: only the source of the forecast. It has no budget, so ours ends the run.
    """

    ahead = 12

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def windows(self, view: View) -> Floats:
        """Return [client], the slots that a client may wait."""
        most = int(view.participation.max())
        if most == 0:
            return np.full(view.clients, float(self.ahead))
        return np.round(np.maximum(0.0, 2 * view.participation / most - 1) * self.ahead)

    def choose(self, view: View) -> Choice:
        """Return clients by urgency, then by the gain of waiting."""
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


class Threshold(Online):
    """A curtailment threshold: a client trains in every hour whose intensity is at most a fixed value. FedAvg.

    The value is a quantile of the intensity of all clients over the whole horizon, as the first slot's forecast has it. Of the clients
    below it, the cleanest train first, as many as the remaining budget pays.

    Known: curtail-llm trains in the regions whose marginal intensity is below a threshold, because surplus power is curtailed there.
    Our intensity is the average one, and our interpretation gives the threshold as a quantile, in percent.
    """

    def __init__(self, percent: int = 25) -> None:
        self.percent = percent
        self.most: float | None = None
        """The threshold, kg/kWh."""

    def choose(self, view: View) -> Choice:
        """Return the clients below the threshold that the budget pays."""
        if self.most is None:
            self.most = float(np.percentile(view.forecast, min(self.percent, 100)))
        clean = [c for c in _cheapest(view) if view.intensity[c] <= self.most]
        paid = np.cumsum([view.cost_kg[c] for c in clean]) + view.server_kg <= view.left_kg * (1 + 1e-12)
        return Choice(clients=clean[: int(paid.sum())])

    def state(self) -> State:
        """Return the threshold."""
        return {} if self.most is None else {"most": np.array([self.most])}

    def restore(self, state: State) -> None:
        """Restore the threshold."""
        self.most = float(state["most"][0]) if "most" in state else None


def _cheapest(view: View) -> list[int]:
    """Return the available clients by emissions of training now."""
    return [int(c) for c in view.there[np.argsort(view.cost_kg[view.there], kind="stable")]]


class CaFed(Online):
    """CA-Fed: Rodio et al., INFOCOM 2023, learning under heterogeneous and correlated availability. Our interpretation.

    CA-Fed does not choose when a client is available. Here a client is available if its emissions are among the lowest that the
    remaining budget pays from this slot on. The frequency pi_c and the lag-one correlation lambda_c are estimated from the slots so
    far. A client with few independent chances, e_c = pi_c (1 - lambda_c) / (1 + lambda_c), is ignored: CA-Fed accepts this bias for
    faster convergence. The others have weight 1 / pi_c.

    Simplified: CA-Fed compares two terms of its bound with estimates of the losses. Here a client is ignored if e_c is below a quarter
    of the median, after 24 slots. The weights of a slot are scaled to sum to one, because 1 / pi_c diverges with rare clients.
    """

    least, warm_up = 0.25, 24

    def __init__(self) -> None:
        self.seen: Floats | None = None
        """[client, slot so far], 1 where a client was available."""

    def choose(self, view: View) -> Choice:
        """Return the available clients that are not ignored."""
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
        """Return [client], e_c."""
        assert self.seen is not None
        pi = self.seen.mean(axis=1)
        now, after = self.seen[:, :-1], self.seen[:, 1:]
        spread = (self.seen - pi[:, None]).var(axis=1)
        together = ((now - pi[:, None]) * (after - pi[:, None])).mean(axis=1) if now.shape[1] else np.zeros(len(pi))
        correlation = np.clip(np.divide(together, spread, out=np.zeros(len(pi)), where=spread > 0), 0.0, 0.99)
        return np.asarray(pi * (1 - correlation) / (1 + correlation))

    def ignored(self) -> NDArray[np.bool_]:
        """Return [client], whether it is ignored."""
        assert self.seen is not None
        if self.seen.shape[1] < self.warm_up:
            return np.zeros(len(self.seen), dtype=bool)
        chances = self.chances()
        return chances < self.least * float(np.median(chances))

    def state(self) -> State:
        """Return the availability so far."""
        return {} if self.seen is None else {"seen": self.seen}

    def restore(self, state: State) -> None:
        """Restore the state."""
        self.seen = state.get("seen")


class Random(Online):
    """Every client-slot of the horizon with the same probability, at equal emissions.

    The probability is the remaining budget divided by the cost of all remaining client-slots that it could pay. So the budget lasts to
    the end and is spent by then, as nearly as chance allows. FedAvg over the participants.
    """

    def choose(self, view: View) -> Choice:
        """Draw each client independently, in random order."""
        costs = view.costs_ahead
        within = costs <= view.left_kg  # client-slots that the remaining budget can pay
        everything = float(costs[within].sum())
        chance = 1.0 if everything <= view.left_kg else view.left_kg / everything
        able = np.flatnonzero(within[:, 0])
        drawn = able[view.rng.random(len(able)) < chance]
        return Choice(clients=[int(c) for c in view.rng.permutation(drawn)]) if len(drawn) else NOBODY
