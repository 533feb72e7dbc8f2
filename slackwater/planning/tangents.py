"""The MILP of one end time: (opt:alpha) with every client-slot a binary, and cuts in place of the concave utility.

A tangent of f alone makes a weak relaxation, because u grows by whole slots: between n - 1 and n slots the smooth f lies
above what any schedule attains. With reach(n) the utility of a client's n best slots, and reach(m-1) < p <= reach(m),

    z <= f(p) + f'(p) (u - p) - b (m - n),   b = f(p) + f'(p) (reach(m-1) - p) - f(reach(m-1)) >= 0

holds for every schedule with n slots. For n >= m it is weaker than the tangent. For n < m, u is at most reach(n), where
the tangent is above f by at least b (m - n): that distance is convex in u, 0 at p and b at reach(m-1), and the steps of
reach do not shrink towards 0 slots. With p = reach(m) the cut meets f at both m - 1 and m slots. *Measured*, 7 clients x
53 slots, 3 at once, a server: HiGHS closes the gap in 30 nodes (3 s); with tangents alone 0.05 % remain after 60,000.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.planning.cells import Cells
from slackwater.planning.highs import INFINITE, Model

_VIOLATED = 1e-9
_ABOVE = 1e-8
_HALF = 0.5
_TIGHTEN = 2e-9
_RELAXATIONS = 12
_NEAR = (0.001, 0.004, 0.015, 0.06)
"""Relative distances from the relaxed optimum at which tangents are added in advance: the integer optimum is near."""


class Rows:
    """The MILP without an objective: who trains in which slot. Costs and utilities are in units of g_max."""

    def __init__(self, cells: Cells, *, budget: bool = True) -> None:
        self.cells, self.scale = cells, cells.stage.groups.g_max or 1.0
        self.model = model = Model()
        self.client, self.slot = np.nonzero(cells.open)
        self.x = model.columns(len(self.client), whole=True)
        self.paid = np.flatnonzero((cells.server > 0) & cells.open.any(axis=0))
        self.y = model.columns(len(self.paid), whole=True)
        self.kg = np.concatenate([cells.g[self.client, self.slot], cells.server[self.paid]]) / self.scale
        self.of_client = [self.x[self.client == c] for c in range(len(cells.base))]
        self.room = cells.room_kg / self.scale
        if budget:
            both = np.concatenate([self.x, self.y])
            self.budget = model.row([both], [self.kg], -INFINITE, self.room)
        column = np.full(cells.open.shape[1], -1, dtype=np.int32)
        column[self.paid] = self.y
        for slot in range(cells.open.shape[1]):
            inside = self.x[self.slot == slot]
            if column[slot] >= 0:
                # Together with x <= y this describes one slot exactly, so the relaxation loses nothing here.
                if cells.parallel < len(inside):
                    model.row([inside, column[[slot]]], [1.0, -float(cells.parallel)], -INFINITE, 0.0)
            elif cells.parallel < len(inside):
                model.row([inside], [1.0], -INFINITE, float(cells.parallel))
        opened = column[self.slot] >= 0
        pairs = np.stack([self.x[opened], column[self.slot[opened]]], axis=1)
        model.rows(pairs, np.broadcast_to([1.0, -1.0], pairs.shape), -INFINITE, 0.0)
        for client, own in enumerate(self.of_client):
            low, high = int(cells.low[client]), int(cells.high[client])
            if low > 0 or high < len(own):
                model.row([own], [1.0], low, high)

    def tighten(self) -> None:
        """Lower the budget a little, because a solution kept it only within the tolerance of HiGHS."""
        self.room -= _TIGHTEN * max(abs(self.room), 1.0)
        self.model.limit(self.budget, self.room)

    def drop_one(self, matrix: NDArray[np.bool_]) -> None:
        """Cut off a schedule over the budget, and all that contain it."""
        chosen = self.x[matrix[self.client, self.slot]]
        self.model.row([chosen], [1.0], -INFINITE, len(chosen) - 1.0)

    def add_one(self, matrix: NDArray[np.bool_]) -> None:
        """Cut off a schedule of too little utility, and all without a further client-slot of value."""
        other = ~matrix & (self.cells.d > 0)
        self.model.row([self.x[other[self.client, self.slot]]], [1.0], 1.0, INFINITE)

    def matrix(self, columns: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the schedule of a solution [client, slot]."""
        matrix = np.zeros(self.cells.open.shape, dtype=bool)
        matrix[self.client, self.slot] = columns[self.x] > _HALF
        return matrix

    def columns(self, matrix: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return a schedule as a solution to start from."""
        return np.concatenate([matrix[self.client, self.slot], matrix[:, self.paid].any(axis=0)]).astype(float)


class Fair(Rows):
    """The MILP with utilities: maximise their sum of f, their minimum, or the number of positive ones.

    f is scaled to F(v) = (v^alpha - 1) / alpha, v = u / g_max, which is log v for alpha = 0: well-conditioned for all.
    `least` [client], kg, is the utility that every client must reach.
    """

    def __init__(self, cells: Cells, *, least: ArrayLike = 0.0) -> None:
        super().__init__(cells)
        utility, model = cells.utility, self.model
        self.log, self.alpha = utility.kind == "log", utility.alpha
        worth = np.where(cells.open, cells.d, 0.0) / self.scale
        self.reach: list[NDArray[np.float64]] = []
        """[client][n], the most utility that n slots give."""
        for client, row in enumerate(worth):
            best = np.sort(row[row > 0])[::-1][: cells.high[client]]
            self.reach.append(cells.base[client] / self.scale + np.concatenate([[0.0], np.cumsum(best)]))
        self.active = np.array([c for c, reach in enumerate(self.reach) if len(reach) > 1], dtype=np.intp)
        floor = np.broadcast_to(np.asarray(least, float), (len(self.reach),)) * (1 - _VIOLATED) / self.scale
        lowest = [min(float(floor[c]), self.reach[c][-1]) for c in self.active]
        fewest = [int(np.searchsorted(self.reach[c], low)) for c, low in zip(self.active, lowest, strict=True)]
        # The logarithm needs a first slot; `for_positive` finds before how many clients can have one together.
        self.barred = np.array([self.log and cells.base[c] <= 0 for c in self.active], dtype=bool)
        top = [self.reach[c][-1] for c in self.active]
        self.u = model.columns(len(self.active), lowest, top)
        self.n = model.columns(len(self.active), fewest, [len(self.reach[c]) - 1 for c in self.active])
        self.p = model.columns(len(self.active), np.where(self.barred, 0.0, 1.0), 1.0, whole=True)
        self.z = model.columns(len(self.active), -INFINITE, [max(float(self.f(v)), 0.0) for v in top])
        for i, c in enumerate(self.active):
            helps = worth[c, self.slot[self.client == c]] > 0
            own = self.of_client[c][helps]
            gain = worth[c, self.slot[self.client == c]][helps]
            model.row([own, self.u[[i]]], [-gain, 1.0], self.reach[c][0], self.reach[c][0])
            model.row([own, self.n[[i]]], [-1.0, 1.0], 0.0, 0.0)
            if self.barred[i]:
                model.row([self.n[[i]], self.p[[i]]], [1.0, -1.0], 0.0, INFINITE)
                model.row([self.n[[i]], self.p[[i]]], [1.0, 1.0 - len(self.reach[c])], -INFINITE, 0.0)
        self.points: set[tuple[int, float]] = set()
        rest = np.ones(len(cells.base), dtype=bool)
        rest[self.active] = False
        self.constant = math.fsum(utility.of(cells.base[rest]))
        self.idle_level = float(cells.base[rest].min(initial=np.inf))

    def f(self, v: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Return F(v)."""
        return np.log(v) if self.log else (v**self.alpha - 1) / self.alpha

    @property
    def unit(self) -> float:
        """Return the value of 1 of the sum of F in the sum of f."""
        return 1.0 if self.log else float(self.alpha * self.scale**self.alpha)

    def offset(self, positive: int) -> float:
        """Return the sum of f at which the sum of F over clients with positive utility is 0."""
        utility = self.cells.utility
        if self.log:
            return self.constant + positive * (utility.lift + math.log(self.scale / utility.floor))
        return self.constant + len(self.active) * float(self.scale**self.alpha)

    def for_value(self, positive: int, at_least: float = -INFINITE) -> None:
        """Maximise the sum of F, with this many active clients positive; exclude sums below `at_least`."""
        if self.barred.any():
            self.model.row([self.p], [1.0], positive, positive)
        if at_least > -INFINITE:
            self.model.row([self.z], [1.0], at_least, INFINITE)
        self.model.maximise(self.z, 1.0)

    def for_positive(self) -> None:
        """Maximise the number of active clients with positive utility."""
        self.model.maximise(self.p, 1.0)

    def for_level(self) -> None:
        """Maximise the least utility of any client."""
        least = self.model.columns(1, 0.0, min(self.idle_level / self.scale, *(r[-1] for r in self.reach)))
        for i in range(len(self.active)):
            self.model.row([self.u[[i]], least], [1.0, -1.0], 0.0, INFINITE)
        self.model.maximise(least, 1.0)
        self.least = least

    def start(self, matrix: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return a schedule as a solution of all columns."""
        u = self.cells.utilities(matrix)[self.active] / self.scale
        n = (matrix & (self.cells.d > 0))[self.active].sum(axis=1)
        p = np.where(self.barred, n > 0, True)
        z = self.f(np.where(u > 0, u, 1.0)) if self.log else self.f(u)
        parts = [self.columns(matrix), u, n, p, z]
        if hasattr(self, "least"):
            parts.append([min(float(u.min(initial=np.inf)), self.idle_level / self.scale)])
        return np.concatenate(parts)

    def first_cuts(self) -> None:
        """Add cuts at a few counts of slots, denser at low counts."""
        for i, c in enumerate(self.active):
            last = len(self.reach[c]) - 1
            counts = {*range(min(7, last + 1)), *np.geomspace(1, last, 10).astype(int).tolist()}
            self.cut(i, [self.reach[c][m] for m in sorted(counts)])

    def cut(self, i: int, points: Iterable[float], *, plain: bool = False) -> bool:
        """Add cuts of the i-th active client at these utilities, with `plain` also the tangent; return whether any was new."""
        new = False
        for point in points:
            key = (i, float(f"{point:.13g}"))
            if point <= 0 or key in self.points:
                continue
            new = True
            self.points.add(key)
            strong = self._strength(i, point)
            for b, m in {strong, (0.0, 0)} if plain else {strong}:
                slope = point ** (self.alpha - 1)
                fixed = float(self.f(point)) - slope * point - b * m
                columns = [self.z[[i]], self.u[[i]], self.n[[i]], self.p[[i]]]
                self.model.row(columns, [1.0, -slope, -b, -fixed], -INFINITE, 0.0)  # p is 1, or 0 with z, u, n
        return new

    def cut_at(self, columns: NDArray[np.float64]) -> bool:
        """Cut off a solution whose z exceed F(u); return whether a new cut was made."""
        new = False
        u, n, z, p = columns[self.u], np.rint(columns[self.n]), columns[self.z], columns[self.p]
        for i in range(len(self.active)):
            if p[i] > _HALF and u[i] > 0 and z[i] - float(self.f(u[i])) > _VIOLATED / 10:
                new |= self.cut(i, [u[i]], plain=bool(n[i] != self._strength(i, u[i])[1]))
        return new

    def relax(self, deadline: float) -> float:
        """Return the bound of the relaxation, cut where it exceeds the utilities; add more cuts near its optimum.

        All relaxations together end by `deadline`, a time of `time.perf_counter`.
        """
        bound = math.inf
        u = np.zeros(len(self.active))
        for _ in range(_RELAXATIONS):
            outcome = self.model.solve(seconds=deadline - time.perf_counter(), relaxed=True)
            if outcome.infeasible:
                return -math.inf
            gained = bound - outcome.bound
            bound = min(bound, outcome.bound)
            if outcome.columns is None or gained < 1e-6 or time.perf_counter() >= deadline:
                break
            u, n, z = (outcome.columns[c] for c in (self.u, self.n, self.z))
            new = False
            for i, c in enumerate(self.active):
                m = int(np.searchsorted(self.reach[c], u[i]))
                near = {u[i], *self.reach[c][max(m - 1, 1) : m + 2], *self.reach[c][math.ceil(n[i] - _VIOLATED) :][:1]}
                over = {p: z[i] - self._above(i, p, u[i], n[i]) for p in near if p > 0}
                worst = max(over, key=over.__getitem__, default=0.0)
                if worst > 0 and over[worst] > _ABOVE:
                    new |= self.cut(i, [worst])
            if not new:
                break
        for i in range(len(self.active)):
            self.cut(i, [u[i] * (1 + way * by) for by in _NEAR for way in (-1, 1)], plain=True)
        return bound

    def _strength(self, i: int, point: float) -> tuple[float, int]:
        """Return b and m of the cut at a point."""
        reach = self.reach[self.active[i]]
        m = int(np.searchsorted(reach, point * (1 - 1e-12)))  # a point kept in `points` has 13 digits
        if m < (2 if self.barred[i] else 1) or m == len(reach):
            return 0.0, m
        below = reach[m - 1]
        return max(float(self.f(point) - self.f(below)) + point ** (self.alpha - 1) * (below - point), 0.0), m

    def _above(self, i: int, point: float, u: float, n: float) -> float:
        """Return the right-hand side of a cut, for a client with positive utility."""
        b, m = self._strength(i, point)
        return float(self.f(point)) + float(point ** (self.alpha - 1)) * (u - point) + b * (n - m)
