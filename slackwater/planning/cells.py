"""The client-slots of one end time in a coupled problem: with a limit on parallel clients, or a server paid per slot.

Here a client's cheapest slots need not be the best ones, so the prefixes of `Stage` do not apply. Each client-slot is
decided by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.exact import BUDGET_ROUNDING, Found, Stage, pack_matrix
from slackwater.planning.problem import NOISE, Utility

TIE = 1e-12
"""Relative difference up to which objectives tie: then more slots, less carbon and the earlier end decide."""
_ROUNDING = 1e-14


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The client-slots before the window for one end time; arrays are [client, slot], [client] or [slot]."""

    stage: Stage
    g: NDArray[np.float64]
    """[client, slot], kg."""
    d: NDArray[np.float64]
    """[client, slot], utility g_max - g, kg; 0 where it is only noise."""
    open: NDArray[np.bool_]
    """[client, slot], whether the client can train."""
    base: NDArray[np.float64]
    """[client], utility from the window, kg."""
    low: NDArray[np.intp]
    high: NDArray[np.intp]
    server: NDArray[np.float64]
    """[slot], kg charged once if anyone trains."""
    parallel: int
    """Most clients in a slot."""
    room_kg: float
    """Budget less idle draw and window."""

    @classmethod
    def of(cls, stage: Stage, *, affordable: bool = True) -> Cells:
        """Return the stage client by client; by default without slots that alone exceed the budget."""
        groups, before, client = stage.groups, stage.before, stage.groups.of_client
        problem, costs, noise = groups.problem, groups.costs, NOISE * groups.g_max
        g = costs.dense()[:, :before]
        base, d = stage.base[client], groups.g_max - g
        server = np.zeros(before) if costs.server_kg is None else costs.server_kg[:before]
        room_kg = problem.budget_kg * (1 + BUDGET_ROUNDING) - stage.window_kg - stage.idle_kg
        open_ = costs.can_train()[:, :before]
        return cls(
            stage=stage,
            g=g,
            d=np.where(d > noise, d, 0.0),
            open=open_ & (g + server <= room_kg) if affordable else open_,
            base=np.where(base > noise, base, 0.0),
            low=stage.low[client],
            high=stage.high[client],
            server=server,
            parallel=min(problem.max_parallel or len(client), len(client)),
            room_kg=room_kg,
        )

    @property
    def utility(self) -> Utility:
        """Return the utility function f."""
        return self.stage.groups.utility

    @property
    def flat(self) -> bool:
        """Return whether no slot is worth anything, so that only their number counts."""
        return not bool((self.d[self.open] > 0).any())

    def kg(self, matrix: NDArray[np.bool_]) -> float:
        """Return the emissions of a schedule before the window, kg."""
        return math.fsum(self.g[matrix]) + math.fsum(self.server[matrix.any(axis=0)])

    def utilities(self, matrix: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the utility of a schedule [client], window included, kg."""
        return np.asarray(self.base + np.where(matrix, self.d, 0.0).sum(axis=1))

    def value(self, matrix: NDArray[np.bool_]) -> float:
        """Return the sum of f over clients."""
        return math.fsum(self.utility.of(self.utilities(matrix)))

    def allows(self, matrix: NDArray[np.bool_]) -> bool:
        """Return whether a schedule meets every constraint, by plain sums."""
        count = matrix.sum(axis=1)
        return (
            not bool((matrix & ~self.open).any())
            and bool(np.all((count >= self.low) & (count <= self.high)))
            and bool(np.all(matrix.sum(axis=0) <= self.parallel))
            and self.kg(matrix) <= self.room_kg
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The figures that decide between schedules with equal objectives, window included."""

    slots: int
    kg: float
    end: int

    def ahead_of(self, other: Rank) -> bool:
        """Return whether this ranks first: more slots, then less carbon (up to rounding), then the earlier end."""
        if self.slots != other.slots:
            return self.slots > other.slots
        return self.end < other.end if _close(self.kg, other.kg) else self.kg < other.kg


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A schedule for one end time."""

    cells: Cells
    matrix: NDArray[np.bool_]
    """[client, slot before the window]."""
    total: float
    """Sum of f over clients."""
    level: float
    """Least utility of any client."""

    @classmethod
    def of(cls, cells: Cells, matrix: NDArray[np.bool_]) -> Candidate:
        """Return the candidate of a schedule, with its objective."""
        level = float(cells.utilities(matrix).min())
        return cls(cells=cells, matrix=matrix, total=cells.value(matrix), level=level)

    def beats(self, other: Candidate | None) -> bool:
        """Return whether this is better: by level for max-min, sum of f, more slots, less carbon, earlier end."""
        if other is None:
            return True
        for mine, theirs in self._pairs(other):
            if not _close(mine, theirs):
                return mine > theirs
        return self.rank.ahead_of(other.rank)

    def ties(self, other: Candidate) -> bool:
        """Return whether only slots, carbon and end can tell the two apart."""
        return all(_close(mine, theirs) for mine, theirs in self._pairs(other))

    @cached_property
    def rank(self) -> Rank:
        """Return the figures that decide between ties."""
        stage = self.cells.stage
        kg = self.cells.kg(self.matrix) + stage.window_kg + stage.idle_kg
        return Rank(slots=int(self.matrix.sum()) + stage.window_slots, kg=kg, end=stage.end)

    def _pairs(self, other: Candidate) -> list[tuple[float, float]]:
        """Return the objectives of both in pairs, the most important first."""
        level = [(self.level, other.level)] if self.cells.utility.kind == "max-min" else []
        return [*level, (self.total, other.total)]

    def found(self, upper_bound: float, level_bound: float | None = None) -> Found:
        """Return it as a solver does. For max-min the gap is at least that of the level."""
        stage, level = self.cells.stage, None
        g_max, clients = stage.groups.g_max, len(self.matrix)
        size = max(abs(self.total), clients * float(self.cells.utility.of(np.array(g_max))))
        # Bounds are differences of numbers of this size: less than their rounding is no gap.
        bound = upper_bound if upper_bound > self.total + _ROUNDING * size else self.total
        if level_bound is not None:
            level = self.level
            alone = stage.value(np.zeros_like(stage.low))
            if level_bound > level * (1 + 1e-9) and bound > alone:
                open_ = 1 - level / level_bound
                if bound - self.total < open_ * (bound - alone):  # then the level is less certain
                    most = clients * float(self.cells.utility.of(np.array(stage.groups.costs.slots * g_max)))
                    bound = min((self.total - open_ * alone) / (1 - open_), most) if open_ < 1 else most
                    bound = max(bound, upper_bound)
        groups = stage.groups
        packed = pack_matrix(stage, groups.kind[groups.of_client], self.matrix)
        return Found(stage=stage, packed=packed, upper_bound=bound, level=level)


def _close(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) <= TIE * max(abs(mine), abs(theirs))
