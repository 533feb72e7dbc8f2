"""FedZero: statistical utility within the clean energy, with a block-list for fairness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slackwater.lab.policies.policy import NOBODY, Choice, Floats, Need, Online, State, View, per_round
from slackwater.lab.policies.speed_policies import statistical_utility

_TIE = 1e-7
"""Subtracted from each client's sigma times its number, so that the solver breaks ties the same way everywhere."""
_SECONDS = 10.0


class FedZero(Online):
    """FedZero: Wiesner et al., e-Energy 2024, without solar traces: its carbon variant under a budget. FedAvg.

    Clients in a clean hour that are not blocked may train. Exactly k of them do, by the mixed-integer program

        max sum_c sigma_c b_c   with   sum_c b_c = k,   sum_c g_c b_c <= released budget,   b binary,

    sigma is Oort's statistical utility n sqrt(mean loss^2), scaled to 0..1 over all clients. Without a solution no client trains in this
    slot. A client that has trained is blocked. Each slot unblocks it with probability min(1, 1 / (p - mean p)), p its rounds: at once if
    p is at most the mean.

    Changed: excess energy of a power domain becomes an hour whose intensity is at most the median of the hours ahead. The released
    budget is spread evenly over the slots, less the spending. A round is one slot of full local work, so the program's batches m_(c,t)
    are fixed, and there is no search over durations. The mean p is over all rounds instead of a day's cycle.

    Losses are those of a client's own last training, as in the authors' code; a client that never trained has the highest utility. sigma
    grows with the loss; in the paper authors' own comparison with FedZero it falls.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.blocked: NDArray[np.bool_] | None = None

    def utility(self, view: View) -> Floats:
        """Return [client], sigma."""
        raw = statistical_utility(view.samples.astype(np.float64), self.losses(view))
        raw = np.where(np.isnan(raw), np.inf, raw)
        known = raw[np.isfinite(raw)]
        if not len(known):
            return np.ones(view.clients)
        low, high = float(known.min()), float(known.max())
        return np.ones(view.clients) if high == low else np.minimum(1.0, (raw - low) / (high - low))

    def losses(self, view: View) -> Floats:
        """Return [client], losses; NaN where unknown."""
        return view.losses

    def choose(self, view: View) -> Choice:
        """Update the block-list, then solve the program."""
        blocked = self._update_blocked(view)
        allowed = [int(c) for c in self.clean(view) if not blocked[c]]
        wanted = per_round(self.count, view.clients)
        if len(allowed) < wanted:
            return NOBODY
        sigma = self.utility(view)
        released = min(view.released_kg, view.left_kg) - view.server_kg
        chosen = solve(sigma[allowed], view.cost_kg[allowed], wanted, released)
        return Choice(clients=sorted((allowed[i] for i in chosen), key=lambda c: -sigma[c]))

    def clean(self, view: View) -> NDArray[np.intp]:
        """Return the available clients that are in a clean hour."""
        return view.there[view.intensity[view.there] <= np.median(view.forecast[view.there], axis=1)]

    def _update_blocked(self, view: View) -> NDArray[np.bool_]:
        if self.blocked is None:
            self.blocked = np.zeros(view.clients, dtype=bool)
        blocked = self.blocked | (view.age == 1)
        over = view.participation - view.participation.mean()
        chance = np.where(over > 0, 1 / np.maximum(1.0, over), 1.0)
        self.blocked = blocked & (view.rng.random(view.clients) >= chance)
        return self.blocked

    def state(self) -> State:
        """Return the block-list."""
        return {} if self.blocked is None else {"blocked": self.blocked.astype(np.float64)}

    def restore(self, state: State) -> None:
        """Restore the state."""
        self.blocked = state["blocked"].astype(bool) if "blocked" in state else None


class FreshFedZero(FedZero):
    """FedZero as the paper describes it: the utility uses the current model, so clients that do not train compute losses too.

    It probes the clients in a clean hour if they are enough for a round and the released budget pays probes and round.
    Blocked clients are probed too, because the block-list is drawn with the choice.
    """

    needs: ClassVar[Need | None] = "losses"

    def asks(self, view: View) -> Sequence[int]:
        """Return the clients in a clean hour, if they are enough for a round."""
        clean = [int(c) for c in self.clean(view)]
        wanted = per_round(self.count, view.clients)
        least = float(view.probe_kg[clean].sum()) + float(np.sort(view.cost_kg[clean])[:wanted].sum())
        return clean if len(clean) >= wanted and least <= view.released_kg - view.server_kg else ()

    def losses(self, view: View) -> Floats:
        """Return the losses computed for this slot."""
        return view.probed_losses


def solve(sigma: Floats, cost_kg: Floats, count: int, most_kg: float) -> list[int]:
    """Solve the program with HiGHS; return an empty list if it has no solution."""
    if float(np.sort(cost_kg)[:count].sum()) > most_kg:
        return []
    from slackwater.planning.highs import INFINITE, Model  # import HiGHS only when needed

    model = Model()
    chosen = model.columns(len(sigma), whole=True)
    model.row([chosen], [1.0], count, count)
    model.row([chosen], [cost_kg / max(most_kg, np.finfo(float).tiny)], -INFINITE, 1.0)
    model.maximise(chosen, sigma - _TIE * np.arange(len(sigma)))
    found = model.solve(seconds=_SECONDS).columns
    return [] if found is None else [int(i) for i in np.flatnonzero(found > 0.5)]
