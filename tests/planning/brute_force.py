"""Every schedule of a small problem, tried one by one, straight from the paper's formulation: nothing of the package's solvers is used."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_TIE = 1e-11


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best by (primary, objective, more slots, less carbon, earlier end)."""

    primary: float
    """Clients with a positive utility (log), the least utility (max-min), or 0."""
    objective: float
    slots: int
    kg: float
    end: int


@dataclass(frozen=True, kw_only=True)
class Small:
    """A problem as plain arrays."""

    g: NDArray[np.float64]
    rounds: int
    slack: int
    fine_tune: int
    alpha: float | str
    budget_kg: float
    available: NDArray[np.bool_]
    min_slots: list[int]
    max_slots: list[int]
    idle_kg: NDArray[np.float64]
    """[slot], of all clients together."""
    server_kg: NDArray[np.float64]
    max_parallel: int | None = None
    window: str = "all"
    recall: int = 0
    trained_ago: list[float] | None = None

    def best(self, ends: range | None = None) -> Best | None:
        """The optimum over all schedules and end times, or None if nothing is feasible."""
        found = [b for end in (ends or range(self.slack + 1)) for b in self._at(end)]
        if not found:
            return None
        return _pick(found)

    def _at(self, end: int) -> list[Best]:
        clients, _ = self.g.shape
        stop = self.rounds + end
        before = stop - self.fine_tune
        if before < 0:
            return []
        window = self.available[:, before:stop]
        if self.window == "all" and not window.all():
            return []
        cells = [(c, t) for c in range(clients) for t in range(before) if self.available[c, t]]
        every = np.array(list(itertools.product([False, True], repeat=len(cells))), dtype=bool).reshape(
            2 ** len(cells), -1
        )
        chosen = np.zeros((len(every), clients, stop), dtype=bool)
        for i, (c, t) in enumerate(cells):
            chosen[:, c, t] = every[:, i]
        counts = chosen.sum(axis=2)
        ok = np.all(counts >= self.min_slots, axis=1) & np.all(counts <= self.max_slots, axis=1)
        if self.max_parallel is not None:
            ok &= np.all(chosen.sum(axis=1) <= self.max_parallel, axis=1)
        for c in range(clients):
            late = [t for t in range(before) if t >= before - self.recall and self.available[c, t]]
            heard = self.trained_ago is not None and self.trained_ago[c] + before <= self.recall
            if late and not heard:
                ok &= chosen[:, c, late].any(axis=1)
        chosen[:, :, before:stop] = window
        g = self.g[:, :stop]
        kg = (chosen * g).sum(axis=(1, 2)) + self.idle_kg[:stop].sum() + chosen.any(axis=1) @ self.server_kg[:stop]
        ok &= kg <= self.budget_kg * (1 + 1e-12)
        if not ok.any():
            return []
        chosen, kg = chosen[ok], kg[ok]
        u = (chosen * (self.g.max() - g)).sum(axis=2)
        primary, objective = self._score(u)
        slots = chosen.sum(axis=(1, 2))
        rows = [
            Best(primary=float(p), objective=float(o), slots=int(n), kg=float(k), end=end)
            for p, o, n, k in zip(primary, objective, slots, kg, strict=True)
        ]
        return [_pick(rows)]

    def _score(self, u: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.alpha == "log":
            positive = u > 1e-12 * self.g.max()
            return positive.sum(axis=1).astype(float), np.log(np.where(positive, u, 1.0)).sum(axis=1)
        if self.alpha == "max-min":
            return u.min(axis=1), (u**0.1).sum(axis=1)
        assert isinstance(self.alpha, float)
        return np.zeros(len(u)), (u**self.alpha).sum(axis=1)


def _pick(rows: list[Best]) -> Best:
    for key, sign in (("primary", 1), ("objective", 1), ("slots", 1), ("kg", -1), ("end", -1)):
        top = max(sign * getattr(row, key) for row in rows)
        margin = _TIE * max(1.0, abs(top)) if isinstance(top, float) else 0
        rows = [row for row in rows if sign * getattr(row, key) >= top - margin]
    return min(rows, key=lambda row: (row.end, math.copysign(row.kg, 1)))
