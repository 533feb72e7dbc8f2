"""FedZero: statistical utility within what clean energy carries, with a block-list for fairness."""

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
    """FedZero: Wiesner et al., e-Energy 2024, where there are no solar traces: its carbon variant under a budget. FedAvg.

    Who may train: clients in a clean hour, that are not blocked. Of these exactly k, by the mixed-integer program

        max sum_c sigma_c b_c   with   sum_c b_c = k,   sum_c g_c b_c <= what is released,   b binary,

    sigma Oort's statistical utility n sqrt(mean loss^2) scaled to 0..1 over all clients; where it has no solution, nobody trains and the
    next slot is waited for. Who has trained is blocked, and let free in each slot with probability min(1, 1 / (p - mean p)), p its rounds:
    at once if it took part no more than the mean.

    Changed: excess energy of a power domain becomes an hour in which its intensity is at most the median of what is ahead, and what is
    released is the budget spread evenly over the slots, less what was spent. A round is one slot of full local work, so the program's
    batches m_(c,t) are fixed, and the search over durations is gone. The mean p is over all rounds instead of a day's cycle.

    Losses are those of a client's own last training, as in the authors' code; who never trained counts as the most useful. sigma grows
    with the loss: the comparison with FedZero in the code of the paper's authors has it the other way round.
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
    """FedZero as the paper reads it: the utility is of the current model, so clients that do not train compute losses too.

    Asked are clients in a clean hour, if they are enough for a round and what is released pays for both. Who is blocked is
    asked too: the block-list
    is drawn with the choice.
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
    from slackwater.planning.highs import INFINITE, Model  # HiGHS is loaded only when it is needed

    model = Model()
    chosen = model.columns(len(sigma), whole=True)
    model.row([chosen], [1.0], count, count)
    model.row([chosen], [cost_kg / max(most_kg, np.finfo(float).tiny)], -INFINITE, 1.0)
    model.maximise(chosen, sigma - _TIE * np.arange(len(sigma)))
    found = model.solve(seconds=_SECONDS).columns
    return [] if found is None else [int(i) for i in np.flatnonzero(found > 0.5)]
