"""The continuous relaxation of tied clients, by Mehrotra's predictor-corrector interior point method.

Maximise the sum of F(u_c), u_c = base_c + sum_t gain_ct x_ct, over 0 <= x_ct <= y_t <= 1 with

    least y_t <= sum_c x_ct <= most y_t,   sum cost x + sum fixed y <= room,   low_c <= sum_t x_ct <= high_c

and, where a client is recalled, at least one slot among the late ones. A step solves a linear system that is diagonal in
the client-slots but for a 2 x 2 block per slot, up to three columns per client and one row per budget. These are
eliminated in turn, so the dense system left has at most three rows per client. Slacks carry residuals, so the method can
start anywhere.

What comes out is used for its multipliers and for rounding. The bound is recomputed from the multipliers (`tied.py`), so
nothing here has to be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.tied import Prices, Tied

Array = NDArray[np.float64]
_MOST_STEPS = 60
_BOUNDARY = 0.995
"""Share of the way to the boundary that a step may take."""
_TIMID = 0.1
"""Shorter steps than this mean that the correction was too bold: then a plain centring step is taken."""
_LOOSE = 1e-3
"""Share by which the quorum is lowered where it equals the most clients in a slot: the point needs an inside."""
_NEAR_COUNTS = 4
_SETTLED = 1e-6
"""Largest residual at which the point counts as feasible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxed:
    """A nearly optimal point of the relaxation, and the best multipliers on the way to it."""

    x: Array
    """[client, slot], share of the slot that is taken."""
    prices: Prices
    bound: float
    """Certified by `prices`: no schedule has a larger sum of F (or least utility, if that is the aim)."""
    value: float
    """Objective of the relaxation at `x`."""
    steps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Planes:
    """Planes above F in (u, n), n the number of slots: sharper than F itself, since utility comes by whole slots."""

    by_u: Array
    """[client, plane]."""
    by_n: Array
    constant: Array

    def at(self, u: Array, n: Array) -> Array:
        """Return the planes' heights [client, plane]."""
        return np.asarray(self.constant + self.by_u * u[:, None] + self.by_n * n[:, None])

    @classmethod
    def around(cls, tied: Tied, u: Array, n: Array) -> Planes:
        """Return planes near a point: the cuts of `core` through neighbouring counts, and tangents."""
        fair, clients = tied.fairness, np.arange(len(tied.base))
        reach = tied.base[:, None] + tied.reach
        most = np.maximum(np.minimum(tied.high, (tied.best_gain > 0).sum(axis=1)), 1)
        by_u, by_n, constant = [], [], []
        near = np.ceil(n - 1e-6).astype(np.intp)
        counts = [near + k for k in range(-_NEAR_COUNTS, _NEAR_COUNTS + 1)]
        counts += [np.rint(near * f).astype(np.intp) for f in (0.25, 0.5, 2, 4)]
        for m in (np.clip(one, 1, most) for one in counts):
            point, below = reach[clients, m], reach[clients, m - 1]
            slope = fair.slope(np.maximum(point, 1e-9))
            strength = np.maximum(fair.of(point) + slope * (below - point) - fair.of(below), 0.0)
            by_u.append(slope)
            by_n.append(strength)
            constant.append(fair.of(point) - slope * point - strength * m)
        for f in (0.97, 1.0, 1.03):
            point = np.maximum(u * f, 1e-9)
            slope = fair.slope(point)
            by_u.append(slope)
            by_n.append(np.zeros(len(clients)))
            constant.append(fair.of(point) - slope * point)
        return cls(by_u=np.array(by_u).T, by_n=np.array(by_n).T, constant=np.array(constant).T)


@dataclass(eq=False)
class _Rows:
    """A family of inequalities: slacks c, multipliers z, and how far the slacks are from the point (residuals)."""

    c: Array
    z: Array
    residual: Array
    target: Array | float = 0.0
    dc: Array = field(default_factory=lambda: np.zeros(0))
    dz: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def weight(self) -> Array:
        return self.z / self.c

    def push(self) -> Array:
        """Return what the family adds to the right-hand side, per unit of its rows."""
        return (self.target - self.z * self.residual) / self.c

    def move(self, change: Array) -> None:
        """Set the changes of slacks and multipliers from that of the rows."""
        self.dc = change + self.residual
        self.dz = (self.target - self.z * self.dc) / self.c - self.z


class _Point:
    """The interior point: variables, families of rows, and the solution of a step's linear system."""

    def __init__(self, tied: Tied, gain: Array, cost: Array, *, level: bool, planes: Planes | None) -> None:
        self.tied, self.gain, self.cost, self.level, self.planes = tied, gain, cost, level, planes
        open_, self.clients = tied.open, len(tied.base)
        self.shut = ~open_
        self.slots = open_.shape[1]
        self.quorum, self.limited = tied.fewest > 1, tied.parallel < self.clients
        self.fewest = tied.fewest * (1 - _LOOSE if tied.fewest == tied.parallel else 1)
        self.paid = bool(tied.fixed.any())
        self.active = self.quorum or self.paid  # whether a slot has a y
        self.late: NDArray[np.bool_] = tied.recalled[:, None] & (np.arange(self.slots) >= tied.late)
        self.room = np.maximum(tied.room, 1e-9)
        y = np.full(self.slots, 0.6)
        if self.paid:
            y *= min(1.0, 0.35 * float((self.room / np.maximum(np.abs(tied.fixed).sum(axis=1), 1e-300)).min()))
        self.y = np.maximum(y, 1e-6) if self.active else np.ones(self.slots)
        share = min(0.5, 0.45 * tied.parallel / max(self.clients, 1))
        x = np.where(open_, share * self.y, 0.0)
        spent = np.einsum("bct,ct->b", cost, x)
        self.x = x * min(1.0, 0.45 * float((self.room / np.maximum(spent, 1e-300)).min()))
        self.x = np.where(open_, np.maximum(self.x, 1e-9 * self.y), 0.0)
        self.z: Array = np.zeros(1)  # the level, or each client's value below its planes
        if level:
            self.z = self.utility().min(keepdims=True) - 0.1
        elif planes is not None:
            self.z = planes.at(self.utility(), self.x.sum(axis=1)).min(axis=1) - 0.05
        self._begin()

    def utility(self) -> Array:
        return np.asarray(self.tied.base + (self.gain * self.x).sum(axis=1))

    def _actual(self) -> dict[str, Array]:
        """Return every family's rows at the point."""
        tied, load, count = self.tied, self.x.sum(axis=0), self.x.sum(axis=1)
        rows = {"x": self.x, "u": np.where(self.shut, 1.0, self.y - self.x)}
        if self.limited:
            rows["most"] = tied.parallel * self.y - load
        if self.quorum:
            rows["fewest"] = load - self.fewest * self.y
        if self.active:
            rows["y"] = 1.0 - self.y
        rows["room"] = self.room - np.einsum("bct,ct->b", self.cost, self.x) - tied.fixed @ self.y
        if tied.low.any():
            rows["low"] = count - tied.low
        if (tied.high < tied.open.sum(axis=1)).any():
            rows["high"] = tied.high - count + 0.5  # the half keeps the inside from being empty where low = high
        if tied.recalled.any():
            rows["recall"] = np.where(tied.recalled, (self.x * self.late).sum(axis=1) - 1.0, 1.0) + 1e-6
        if self.level or (tied.least > 0).any():
            rows["level"] = self.utility() - (self.z if self.level else tied.least)
        if self.planes is not None:
            rows["plane"] = self.planes.at(self.utility(), count) - self.z[:, None]
        return rows

    def _begin(self) -> None:
        rows = self._actual()
        v = self.utility()
        slope = np.ones(1) if self.level else self.tied.fairness.slope(np.maximum(v, 1e-9))
        start = max(float(np.median(slope)), 1e-12) * 0.05
        self.rows: dict[str, _Rows] = {}
        for name, actual in rows.items():
            inside = (
                actual
                if name in ("x", "u")
                else np.maximum(actual, 0.05 * max(1.0, float(np.abs(actual).mean()) if actual.size else 0.0))
            )
            c = np.where(self.shut, 1.0, inside) if name in ("x", "u") else inside
            z = np.where(self.shut, 0.0, start / c) if name in ("x", "u") else start / c
            self.rows[name] = _Rows(c=c, z=z, residual=actual - inside if name not in ("x", "u") else np.zeros_like(c))
        if self.level:
            self.rows["level"].z = np.full(self.clients, 1.0 / self.clients)
        if self.planes is not None:
            c = self.rows["plane"].c
            self.rows["plane"].z = (1.0 / c) / (1.0 / c).sum(axis=1, keepdims=True)
        open_cells = int(self.tied.open.sum())
        self.complementary = 2 * open_cells + sum(r.c.size for n, r in self.rows.items() if n not in ("x", "u"))

    @property
    def residual(self) -> float:
        return max((float(np.abs(r.residual).max()) for r in self.rows.values() if r.residual.size), default=0.0)

    def gap(self, ap: float = 0.0, ad: float = 0.0) -> float:
        """Return the sum of slack x multiplier, after steps of these lengths."""
        total = 0.0
        for name, r in self.rows.items():
            c, z = (r.c + ap * r.dc, r.z + ad * r.dz) if ap else (r.c, r.z)
            total += float((c * z)[self.tied.open].sum() if name in ("x", "u") else (c * z).sum())
        return total

    def prices(self) -> Prices:
        """Return the multipliers at the point."""
        zero, r = np.zeros(self.clients), self.rows
        if self.level:
            theta = r["level"].z / max(float(r["level"].z.sum()), 1e-300)
            scale = 1.0 / max(float(r["level"].z.sum()), 1e-300)
        else:
            theta, scale = self._slope(), 1.0
            if "level" in r:
                theta = theta + r["level"].z
        nu = (r["low"].z if "low" in r else zero) - (r["high"].z if "high" in r else zero)
        if self.planes is not None:
            nu = nu + (r["plane"].z * self.planes.by_n).sum(axis=1)
        late = np.where(self.tied.recalled, r["recall"].z, 0.0) if "recall" in r else zero
        place = np.where(self.shut, 0.0, r["u"].z) if self.active else np.zeros_like(self.x)
        if self.limited:
            place = place + r["most"].z
        if self.quorum:
            place = place - r["fewest"].z
        return Prices(
            budget=scale * r["room"].z, utility=theta, slot=scale * nu, late=scale * late, place=scale * place
        )

    def _slope(self) -> Array:
        """Return what utility is worth [client]: F' at the point, or by the multipliers of the planes."""
        if self.planes is not None:
            return np.asarray((self.rows["plane"].z * self.planes.by_u).sum(axis=1))
        return self.tied.fairness.slope(np.maximum(self.utility(), 1e-12))

    def factor(self) -> None:
        """Prepare the linear system of this step."""
        tied, rows = self.tied, self.rows
        open_ = tied.open
        q = np.where(open_, rows["u"].weight, 0.0)
        diagonal = np.where(open_, rows["x"].weight, 1.0) + q
        self.inverse = np.where(open_, 1.0 / diagonal, 0.0)
        self.q, self.qi = q, q * self.inverse
        k1 = rows["most"].weight if self.limited else np.zeros(self.slots)
        k2 = rows["fewest"].weight if self.quorum else np.zeros(self.slots)
        ks, ky = k1 + k2, k1 * tied.parallel + k2 * self.fewest
        s1, sq, sqq = self.inverse.sum(axis=0), self.qi.sum(axis=0), (q * self.qi).sum(axis=0)
        self.ky = ky
        # sigma = (ks e0 + (ks sq - ky) dy) / (1 + ks s1), and one more equation for dy where slots have one.
        self.by_e0, self.by_dy = ks / (1 + ks * s1), (ks * sq - ky) / (1 + ks * s1)
        if self.active:
            kyy = k1 * tied.parallel**2 + k2 * self.fewest**2
            pivot = q.sum(axis=0) - sqq + kyy + rows["y"].weight - ky * sq + (sq + ky * s1) * self.by_dy
            self.over_pivot = 1.0 / np.maximum(pivot, 1e-300)
            self.e0_to_dy = ky - (sq + ky * s1) * self.by_e0
        self._client_columns()

    def _slots_only(self, rx: Array, ry: Array) -> tuple[Array, Array]:
        """Solve the system without clients' columns and budgets."""
        e0 = (self.inverse * rx).sum(axis=0)
        dy = np.zeros(self.slots)
        if self.active:
            e1 = (self.qi * rx).sum(axis=0)
            dy = self.over_pivot * (ry + e1 + self.e0_to_dy * e0)
        sigma = self.by_e0 * e0 + self.by_dy * dy
        return self.inverse * (rx - sigma) + self.qi * dy, dy

    def _client_columns(self) -> None:
        tied, rows, open_ = self.tied, self.rows, self.tied.open
        zero = np.zeros(self.clients)
        gain = np.where(open_, self.gain, 0.0)
        nn = (rows["low"].weight if "low" in rows else zero) + (rows["high"].weight if "high" in rows else zero)
        uu, un = (rows["level"].weight if "level" in rows else zero), zero
        if self.planes is not None:
            k = rows["plane"].weight
            self.mean_u, self.mean_n = (
                (k * by).sum(axis=1) / k.sum(axis=1) for by in (self.planes.by_u, self.planes.by_n)
            )
            off_u, off_n = self.planes.by_u - self.mean_u[:, None], self.planes.by_n - self.mean_n[:, None]
            uu, nn, un = (
                uu + (k * off_u**2).sum(axis=1),
                nn + (k * off_n**2).sum(axis=1),
                (k * off_u * off_n).sum(axis=1),
            )
        elif not self.level:
            uu = uu + tied.fairness.curvature(np.maximum(self.utility(), 1e-12))
        # The 2 x 2 form in (u, n) as two columns, by Cholesky's factors.
        first = np.sqrt(uu)
        mixed = np.where(first > 0, un / np.maximum(first, 1e-300), 0.0)
        second = np.sqrt(np.maximum(nn - mixed**2, 0.0))
        columns = [first[:, None] * gain + mixed[:, None] * open_] if uu.any() else []
        if second.any():
            columns.append(second[:, None] * open_)
        if "recall" in rows:
            columns.append(np.sqrt(np.where(tied.recalled, rows["recall"].weight, 0.0))[:, None] * (self.late & open_))
        self.columns = columns
        many = len(columns)
        if not many:
            return
        e = np.concatenate([a * self.inverse for a in columns])
        if self.active:
            e1 = np.concatenate([a * self.qi for a in columns])
            dy0, dy1 = self.over_pivot * self.e0_to_dy, self.over_pivot
            matrix = (e * -(self.by_e0 + self.by_dy * dy0)) @ e.T + (e1 * dy1) @ e1.T
            cross = (e1 * dy0) @ e.T
            matrix += cross + cross.T
        else:
            matrix = (e * -self.by_e0) @ e.T
        at = np.arange(self.clients)
        for i, a in enumerate(columns):
            for j, b in enumerate(columns):
                matrix[i * self.clients + at, j * self.clients + at] += (a * b * self.inverse).sum(axis=1)
        size = np.arange(many * self.clients)
        matrix[size, size] += 1.0
        self.solver = np.linalg.inv(matrix)

    def solve(self, rx: Array, ry: Array) -> tuple[Array, Array]:
        """Solve the system without budgets."""
        dx, dy = self._slots_only(rx, ry)
        if not self.columns:
            return dx, dy
        w = self.solver @ np.concatenate([(a * dx).sum(axis=1) for a in self.columns])
        back = sum(
            (a * part[:, None] for a, part in zip(self.columns, np.split(w, len(self.columns)), strict=True)),
            np.zeros_like(dx),
        )
        bx, by = self._slots_only(back, np.zeros(self.slots))
        return dx - bx, dy - by

    def border(self) -> None:
        """Prepare the rows that reach across all slots: budgets, and the common level if that is the aim."""
        tied = self.tied
        self.across = [
            (np.where(tied.open, cost, 0.0), fixed) for cost, fixed in zip(self.cost, tied.fixed, strict=True)
        ]
        weight = list(self.rows["room"].weight)
        if self.level:
            k = self.rows["level"].weight
            self.across.append((np.where(tied.open, k[:, None] * self.gain, 0.0), np.zeros(self.slots)))
            weight.append(-1.0 / float(k.sum()))
        self.solved = [self.solve(vx, vy) for vx, vy in self.across]
        small = np.array([[_dot(v, s) for s in self.solved] for v in self.across])
        self.small = np.linalg.inv(np.diag(1.0 / np.array(weight)) + small)

    def direction(self) -> tuple[float, float]:
        """Set the direction for the families' targets; return the longest steps of point and multipliers."""
        tied, rows = self.tied, self.rows
        push = {name: r.push() for name, r in rows.items()}
        theta, nu = np.zeros(self.clients), np.zeros(self.clients)
        rz = np.zeros(1)  # how far the multipliers of z are from a sum of 1
        if self.planes is not None:
            rz = 1.0 - push["plane"].sum(axis=1)
            theta = (push["plane"] * self.planes.by_u).sum(axis=1) + self.mean_u * rz
            nu = (push["plane"] * self.planes.by_n).sum(axis=1) + self.mean_n * rz
        elif not self.level:
            theta = self._slope()
        if "level" in rows:
            theta = theta + push["level"]
        if self.level:
            k = rows["level"].weight
            rz = 1.0 - push["level"].sum(keepdims=True)
            theta = theta + k * rz / k.sum()
        rx = theta[:, None] * self.gain + nu[:, None] + push["x"] - push["u"]
        if self.limited:
            rx = rx - push["most"]
        if self.quorum:
            rx = rx + push["fewest"]
        rx = rx - np.einsum("b,bct->ct", push["room"], self.cost)
        for name, sign in (("low", 1.0), ("high", -1.0)):
            if name in rows:
                rx = rx + sign * push[name][:, None]
        if "recall" in rows:
            rx = rx + np.where(tied.recalled, push["recall"], 0.0)[:, None] * self.late
        rx = np.where(self.shut, 0.0, rx)
        ry = np.zeros(self.slots)
        if self.active:
            ry = np.where(self.shut, 0.0, push["u"]).sum(axis=0) - push["y"] - push["room"] @ tied.fixed
            if self.limited:
                ry = ry + tied.parallel * push["most"]
            if self.quorum:
                ry = ry - self.fewest * push["fewest"]
        dx, dy = self.solve(rx, ry)
        share = self.small @ np.array([_dot(v, (dx, dy)) for v in self.across])
        for s, (bx, by) in zip(share, self.solved, strict=True):
            dx, dy = dx - s * bx, dy - s * by
        self.dx, self.dy = dx, dy
        self._move(rz)
        return self._longest("c", "dc"), self._longest("z", "dz")

    def _move(self, rz: Array) -> None:
        tied, rows, dx, dy = self.tied, self.rows, self.dx, self.dy
        load, count, du = dx.sum(axis=0), dx.sum(axis=1), (self.gain * dx).sum(axis=1)
        self.dz = np.zeros(1)
        if self.level:
            k = rows["level"].weight
            self.dz = (rz + k @ du) / k.sum()
        planes = np.zeros(1)
        if self.planes is not None:
            k = rows["plane"].weight
            planes = self.planes.by_u * du[:, None] + self.planes.by_n * count[:, None]
            self.dz = (rz + (k * planes).sum(axis=1)) / k.sum(axis=1)
            planes = planes - self.dz[:, None]
        changes = {
            "x": dx,
            "u": np.where(self.shut, 0.0, dy - dx),
            "most": tied.parallel * dy - load,
            "fewest": load - self.fewest * dy,
            "y": -dy,
            "room": -np.einsum("bct,ct->b", self.cost, dx) - tied.fixed @ dy,
            "low": count,
            "high": -count,
            "recall": np.where(tied.recalled, (dx * self.late).sum(axis=1), 0.0),
            "level": du - self.dz if self.level else du,
            "plane": planes,
        }
        for name, r in rows.items():
            r.move(changes[name])
            if name in ("x", "u"):
                r.dz = np.where(self.shut, 0.0, r.dz)
                r.dc = np.where(self.shut, 0.0, r.dc)

    def _longest(self, of: str, change: str) -> float:
        longest = 1.0 / _BOUNDARY
        for r in self.rows.values():
            value, by = getattr(r, of), getattr(r, change)
            down = by < 0
            if down.any():
                longest = min(longest, float((value[down] / -by[down]).min()))
        return _BOUNDARY * longest

    def aim(self, target: float, corrected: float) -> None:
        """Set what slack x multiplier should be, less a share of what the last direction misses by its second order."""
        for r in self.rows.values():
            r.target = target - corrected * r.dc * r.dz if corrected else target

    def step(self, ap: float, ad: float) -> None:
        """Take the step."""
        self.x, self.y, self.z = self.x + ap * self.dx, self.y + ap * self.dy, self.z + ap * self.dz
        actual = self._actual()
        for name, r in self.rows.items():
            r.c, r.z = r.c + ap * r.dc, r.z + ad * r.dz
            r.residual = np.zeros_like(r.c) if name in ("x", "u") else actual[name] - r.c
        self.rows["x"].c = np.where(self.shut, 1.0, self.x)
        self.rows["u"].c = actual["u"]


def _dot(row: tuple[Array, Array], solved: tuple[Array, Array]) -> float:
    return float((row[0] * solved[0]).sum() + row[1] @ solved[1])


def relax(
    tied: Tied,
    gain: Array,
    cost: Array,
    *,
    tolerance: float,
    level: bool = False,
    planes: Planes | None = None,
    stop: Callable[[], bool] | None = None,
) -> Relaxed:
    """Return a point of the relaxation whose certified bound is within `tolerance` of its value, or the best after 60 steps.

    Args:
        tied: The client-slots of one end time.
        gain: [client, slot], utility of the level that is used.
        cost: [budget, client, slot], its cost.
        tolerance: Relative to what can be gained beyond the window.
        level: Maximise the least utility of any client instead of the sum of F (max-min).
        planes: Maximise the sum of the lowest planes instead of the sum of F.
        stop: Asked before every step whether to give up.
    """
    alone = tied.alone_level if level else tied.alone
    with np.errstate(all="ignore"):
        point = _Point(tied, gain, cost, level=level, planes=planes)
        best, prices, value, steps = math.inf, point.prices(), -math.inf, 0
        for steps in range(_MOST_STEPS):
            now = point.prices()
            if steps > 1:
                bound = tied.level_bound(now) if level else tied.bound(now)
                if math.isfinite(bound) and bound < best and now.sound:
                    best, prices = bound, now
            if point.residual < _SETTLED:
                u = point.utility()
                if planes is not None:
                    now_value = float(planes.at(u, point.x.sum(axis=1)).min(axis=1).sum())
                else:
                    now_value = float(u.min()) if level else float(tied.fairness.of(u).sum())
                value = max(value, now_value)
            worth = max(best - alone, 1e-300 if level else tied.least_worth, 1e-300)
            if math.isfinite(best) and best - value <= tolerance * worth:
                break
            gap = point.gap()
            if (stop is not None and stop()) or not math.isfinite(gap):
                break
            try:
                point.factor()
                point.border()
            except np.linalg.LinAlgError:
                break
            point.aim(0.0, 0.0)
            ap, ad = point.direction()
            affine = max(point.gap(ap, ad), 0.0)
            centre = min(max((affine / gap) ** 3, 1e-4), 0.8)
            goal = centre * gap / point.complementary
            point.aim(goal, ap * ad)
            ap, ad = point.direction()
            if min(ap, ad) < _TIMID:
                goal = max(0.3, centre) * gap / point.complementary
                point.aim(goal, 0.0)
                ap, ad = point.direction()
            if not (math.isfinite(ap) and math.isfinite(ad)) or not np.isfinite(point.dx).all():
                break
            point.step(ap, ad)
    return Relaxed(x=point.x, prices=prices, bound=best, value=value, steps=steps)
