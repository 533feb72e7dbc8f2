"""Ties between schedules of a coupled problem: more slots, then less carbon, then the earlier end.

Once the best objective is proved, each end time whose bound reaches it is solved for its most slots, and least carbon
with them, at that objective. Client-slots whose reduced cost rules out a tie are fixed first (*measured*, 7 clients x
100 to 150 slots, 3 at once: 17 to 216 of about 1,000 remain).
HiGHS keeps rows to 1e-9 and objectives tie to 1e-12, so each answer is recomputed. One that is no tie is cut off, with
all that must be as bad, and HiGHS solves again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.cells import TIE, Candidate, Cells, Rank
from slackwater.planning.coupled import grow
from slackwater.planning.highs import INFINITE
from slackwater.planning.tangents import Fair

logger = logging.getLogger(__name__)
_BELOW = 2e-9
"""Margin of the row that requires the best sum of F: the error of HiGHS must not cost a tie."""
_BEHIND = 1e-6
"""Margin, in slots, of the row that excludes schedules that cannot be ahead of the best."""
_SURE = 1e-6
"""Margin by which a reduced cost must rule out a tie: the possible sum over many columns, each dual-feasible to 1e-9."""
_SLOT = 1000.0
"""Weight of a slot in the objective. All carbon together counts half as much, so that small differences still show."""
_GAP = 5e-8
_PATIENCE = 20
"""Answers over the budget that are cut off one by one; then the budget is lowered a little, as there may be many."""
_MOST_ASKED = 100


class Ties:
    """The ties of one end time: its most slots, and least carbon with them, at the best objective.

    For the logarithm, `positive` is how many active clients can have a positive utility together. `points` are the cuts.
    """

    def __init__(self, own: Candidate, best: Candidate, positive: int, points: Iterable[tuple[int, float]]) -> None:
        self.own, self.best, self.cells = own, best, own.cells
        max_min = self.cells.utility.kind == "max-min"
        self.model = model = Fair(self.cells, least=best.level if max_min else 0.0)
        self.at_least = (best.total - TIE * abs(best.total) - model.offset(positive)) / model.unit - _BELOW
        if len(model.active):
            model.for_value(positive, self.at_least)
            for i, point in sorted(points):
                model.cut(i, [point], plain=True)

    def best_by(self, deadline: float) -> Candidate:
        """Return the best of this end time and the known schedules; if time runs out, of those found until then."""
        model, known = self.model, self.own.ties(self.best)
        if len(model.active) and not self._fix(deadline - time.perf_counter()) and not known:
            return self.best
        # One slot counts more than all carbon that can be spent.
        most = max(min(float(model.kg.sum()), model.room), 1e-300)
        columns = np.concatenate([model.x, model.y])
        weight = np.concatenate([np.ones(len(model.x)), np.zeros(len(model.y))]) - model.kg / most / 2
        if not known:
            model.model.row([columns], [weight], self._ahead(most), INFINITE)
        model.model.maximise(columns, _SLOT * weight)
        start = model.start(self.own.matrix) if known else None
        for asked in range(_MOST_ASKED):
            if (seconds := deadline - time.perf_counter()) <= 0:
                return self.best
            outcome = model.model.solve(seconds=seconds, gap=_GAP, start=start)
            if outcome.columns is None or self._tie(outcome.columns, asked):
                return self.best
        logger.debug("s=%d: too many schedules that nearly tie", self.cells.stage.end)
        return self.best

    def _fix(self, seconds: float) -> bool:
        """Fix client-slots with which, or without which, the relaxation stays below a tie; return whether a tie may exist."""
        model = self.model
        outcome = model.model.solve(seconds=seconds, relaxed=True)
        if outcome.infeasible:
            return False
        if outcome.columns is None or outcome.prices is None:
            return True
        columns = np.concatenate([model.x, model.y])
        at, price = outcome.columns[columns], np.abs(outcome.prices[columns])
        sure = (outcome.bound - price < self.at_least - _SURE) & (np.abs(at - np.rint(at)) < _SURE)
        model.model.fix(columns[sure], np.rint(at[sure]))
        return True

    def _ahead(self, most: float) -> float:
        """Return the least weight with which a schedule can rank before the best."""
        stage, best = self.cells.stage, self.best.rank
        slots = best.slots - stage.window_slots
        kg = best.kg - stage.window_kg - stage.idle_kg
        if kg < -2 * TIE * best.kg:
            slots, kg = slots + 1, INFINITE
        return slots - min(max(kg, 0.0) / self.model.scale / most, 1.0) / 2 - _BEHIND

    def _tie(self, columns: NDArray[np.float64], asked: int) -> bool:
        """Take a solution if it is a tie, else cut it off; return whether it was one."""
        model = self.model
        matrix = model.matrix(columns)
        if not self.cells.allows(matrix):
            model.drop_one(matrix)
            if asked >= _PATIENCE:
                model.tighten()
            return False
        exact = Candidate.of(self.cells, matrix)
        for new in (exact, Candidate.of(self.cells, grow(self.cells, matrix))):
            if new.beats(self.best):
                self.best = new
        if exact.ties(self.best):
            return True
        if not model.cut_at(columns):
            model.add_one(matrix)
        return False


def optimistic(cells: Cells) -> Rank:
    """Return a rank that no schedule of this end time exceeds, at any objective: the cheapest client-slots, as many as fit."""
    stage, there = cells.stage, cells.open
    most = min(
        int(np.minimum(cells.high, there.sum(axis=1)).sum()), int(np.minimum(cells.parallel, there.sum(axis=0)).sum())
    )
    cheapest = np.concatenate([[0.0], np.cumsum(np.sort(cells.g[there])[:most])])
    servers = np.concatenate([[0.0], np.cumsum(np.sort(cells.server[there.any(axis=0)]))])
    kg = cheapest + servers[-(-np.arange(most + 1) // cells.parallel)]
    slots = int(np.searchsorted(kg, cells.room_kg * (1 + TIE), side="right")) - 1
    # A little less carbon, for the rounding of sums.
    return Rank(
        slots=slots + stage.window_slots,
        kg=(float(kg[max(slots, 0)]) + stage.window_kg + stage.idle_kg) * (1 - TIE / 2),
        end=stage.end,
    )
