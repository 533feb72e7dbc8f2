"""Policies for speed: Oort, TiFL, REFL and FedCS. They ignore carbon and train from the first slot until the budget is spent."""

from __future__ import annotations

import math

import numpy as np

from slackwater.lab.policies.policy import NOBODY, Choice, Floats, Online, State, View, per_round


def statistical_utility(samples: Floats, losses: Floats) -> Floats:
    """Return Oort's n sqrt(mean loss^2); `losses` are root mean squares already."""
    return samples * losses


class Oort(Online):
    """Oort: Lai et al., OSDI 2021. Statistical utility times a penalty for slow clients, with exploration.

    The score of a client tried before is U = n sqrt(mean loss^2), cut at its 95th percentile and divided by the largest, plus the
    confidence sqrt(0.1 ln R / L), L the round in which the client last trained. A client whose round takes t > T has this times
    (T / t)^2. Clients above 95 % of the k-th best score are drawn in proportion to their scores. A share of the k, from 0.9 falling by
    0.98 per round to 0.2, goes to clients never tried, fast ones with higher probability.

    Simplified: T is the mean duration over clients instead of the pacer's. The loss is the mean over the local steps, which a client
    computes anyway. No client is dropped for having been chosen too often.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def choose(self, view: View) -> Choice:
        """Return clients by exploitation, then by exploration."""
        wanted = min(per_round(self.count, view.clients), len(view.there))
        new = [int(c) for c in view.there if view.participation[c] == 0]
        tried = [int(c) for c in view.there if view.participation[c] > 0]
        share = max(0.2, 0.9 * 0.98**view.number)
        explored = max(min(len(new), round(share * wanted)), wanted - len(tried))
        known = self._exploited(view, tried, wanted - explored)
        return Choice(clients=[*known, *_drawn(view, new, view.speeds[new], explored)])

    def scores(self, view: View, tried: list[int]) -> Floats:
        """Return [of tried], the score that Oort ranks by."""
        utility = statistical_utility(view.samples[tried].astype(np.float64), view.losses[tried])
        utility = np.minimum(utility, np.percentile(utility, 95))
        last = view.number - view.age[tried] + 1  # rounds count from 1
        confidence = np.sqrt(0.1 * math.log(max(1, view.number)) / last)
        durations = 1 / view.speeds
        late = np.minimum(1.0, durations.mean() / durations[tried]) ** 2
        return np.asarray((utility / max(float(utility.max()), np.finfo(float).tiny) + confidence) * late)

    def _exploited(self, view: View, tried: list[int], count: int) -> list[int]:
        if not count:
            return []
        scores = self.scores(view, tried)
        admitted = scores >= 0.95 * np.sort(scores)[-count]
        return _drawn(view, [c for c, yes in zip(tried, admitted, strict=True) if yes], scores[admitted], count)


class TiFL(Online):
    """TiFL: Chai et al., HPDC 2020, with its adaptive choice of tiers.

    Clients are sorted into three tiers by speed. Each round draws one tier with credits, with higher probability the worse the model is
    on it, and then k of its clients.

    Simplified: a tier's performance is the mean of its clients' latest losses; in TiFL every client reports a test accuracy. A tier not
    tried yet counts as the worst. Each tier has a third of the slots as credits; when all are used, credits no longer count.
    """

    tiers = 3

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.used = np.zeros(self.tiers)

    def choose(self, view: View) -> Choice:
        """Draw a tier, then clients of it."""
        chances = self.chances(view)
        if not chances.any():
            return NOBODY
        tier = int(view.rng.choice(self.tiers, p=chances))
        self.used[tier] += 1
        there = [int(c) for c in self.members(view)[tier] if view.available[c, 0]]
        return Choice(clients=_drawn(view, there, np.ones(len(there)), per_round(self.count, view.clients)))

    def members(self, view: View) -> list[list[int]]:
        """Return the clients of each tier, the fastest tier first."""
        order = np.argsort(-view.speeds, kind="stable")
        return [[int(c) for c in part] for part in np.array_split(order, self.tiers)]

    def chances(self, view: View) -> Floats:
        """Return [tier], the probability of being drawn; 0 for all if no client is available."""
        losses = np.zeros(self.tiers)
        open_to = np.zeros(self.tiers, dtype=bool)
        for tier, clients in enumerate(self.members(view)):
            known = [float(view.losses[c]) for c in clients if view.participation[c]]
            losses[tier] = np.mean(known) if known else np.nan
            open_to[tier] = any(view.available[c, 0] for c in clients)
        worst = 1.0 if np.isnan(losses).all() else float(np.nanmax(losses))
        losses = np.where(np.isnan(losses), worst, losses)
        credit = open_to & (self.used < math.ceil(view.slots / self.tiers))
        weights = np.where(credit if credit.any() else open_to, np.maximum(losses, 1e-12), 0.0)
        return np.asarray(weights / weights.sum()) if weights.any() else weights

    def state(self) -> State:
        """Return the credits used."""
        return {"used": self.used.copy()}

    def restore(self, state: State) -> None:
        """Restore the state."""
        self.used = state["used"].copy()


class REFL(Online):
    """REFL: Abdelmoniem et al., EuroSys 2023. Its intelligent participant selection: the least available clients first.

    The k clients with the least availability over the next 24 slots of the scenario; equals in random order.

    Simplified: the forecast of availability is the scenario's. There is no staleness-aware aggregation, because no update is late. If
    all clients are always available, REFL is a random choice.
    """

    ahead = 24

    def __init__(self, count: int | None = None) -> None:
        self.count = count

    def choose(self, view: View) -> Choice:
        """Return the clients with the least availability first."""
        soon = view.available[:, 1 : 1 + self.ahead]
        rare = soon.mean(axis=1) if soon.shape[1] else np.zeros(view.clients)
        mixed = view.rng.permutation(view.there)
        order = mixed[np.argsort(rare[mixed], kind="stable")]
        return Choice(clients=[int(c) for c in order[: per_round(self.count, view.clients)]])


class FedCS(Online):
    """FedCS: Nishio and Yonetani, ICC 2019. As many clients as a round's deadline allows.

    Clients compute in parallel and upload one after the other. The client that adds least to the round's time comes next, until the
    deadline: Theta <- Theta + upload + max(0, t - Theta), t the client's own time.

    Simplified: times are in units of the fastest client's round (1 / speed), an upload takes 0.1, the deadline is 2, and distribution and
    aggregation take no time. With equal speeds all of up to ten clients train, which is FedAvg without slack.
    """

    upload, deadline = 0.1, 2.0

    def choose(self, view: View) -> Choice:
        """Return clients greedily by added time."""
        times = view.speeds.max() / view.speeds
        left, chosen, elapsed = [int(c) for c in view.there], [], 0.0
        while left:
            added = {c: self.upload + max(0.0, float(times[c]) - elapsed) for c in left}
            best = min(left, key=lambda c: added[c])
            left.remove(best)
            if elapsed + added[best] <= self.deadline + 1e-12:
                elapsed += added[best]
                chosen.append(best)
        return Choice(clients=chosen)


def _drawn(view: View, clients: list[int], weights: Floats, count: int) -> list[int]:
    """Draw up to `count` clients without replacement, in proportion to their weights."""
    count = min(count, len(clients))
    if not count:
        return []
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 1e-12)
    return [int(c) for c in view.rng.choice(clients, size=count, replace=False, p=weights / weights.sum())]
