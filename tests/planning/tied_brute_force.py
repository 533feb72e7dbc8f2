"""Small random problems with tied clients, and every schedule of one tried, by formulas of their own."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slackwater as sw
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Provenance
from slackwater.planning.fleet import Level

START = datetime(2024, 1, 1, tzinfo=UTC)
MOST_SCHEDULES = 30_000


@dataclass(frozen=True, kw_only=True)
class Small:
    """A problem, and what its schedules are worth by enumeration."""

    problem: sw.Problem
    levels: list[list[tuple[float, float]]]
    """[client], its levels as (kWh of a round, work), full power first."""
    intensity: NDArray[np.float64]
    """[client, slot], kg/kWh."""
    price: NDArray[np.float64] | None
    server_kg: NDArray[np.float64]
    server_money: NDArray[np.float64]
    available: NDArray[np.bool_]
    idle_kwh: list[float]

    def best(self) -> tuple[float, float] | None:
        """Return (level, objective) of the best schedule: the level is 0 unless max-min; None if nothing is feasible."""
        found = [self._at(end) for end in range(self.problem.horizon - self.problem.rounds + 1)]
        return max((one for one in found if one is not None), default=None)

    def _at(self, end: int) -> tuple[float, float] | None:
        p = self.problem
        clients, stop = len(self.levels), p.rounds + end
        before = stop - p.fine_tune
        if before < 0:
            return None
        window = self.available[:, before:stop]
        if p.window == "all" and not window.all():
            return None
        ways = [self._ways(c, before, stop) for c in range(clients)]
        if any(not way for way in ways):
            return None
        pick = np.array(list(itertools.product(*(range(len(way)) for way in ways))), dtype=np.intp)
        kg = sum(np.array([w["kg"] for w in way])[pick[:, c]] for c, way in enumerate(ways))
        money = sum(np.array([w["money"] for w in way])[pick[:, c]] for c, way in enumerate(ways))
        u = np.stack([np.array([w["u"] for w in way])[pick[:, c]] for c, way in enumerate(ways)], axis=1)
        trains = np.stack([np.array([w["trains"] for w in way])[pick[:, c]] for c, way in enumerate(ways)], axis=1)
        load = trains.sum(axis=1)  # [schedule, slot]
        active = load > 0
        kg = kg + (active * self.server_kg[:stop]).sum(axis=1)
        money = money + (active * self.server_money[:stop]).sum(axis=1)
        ok = kg <= p.budget_kg * (1 + 1e-11)
        if p.budget_money is not None:
            ok &= money <= p.budget_money + 1e-11 * abs(p.budget_money)
        early = load[:, :before]
        if p.max_parallel is not None:
            ok &= (early <= p.max_parallel).all(axis=1)
        if p.min_parallel is not None:
            ok &= ((early == 0) | (early >= p.min_parallel)).all(axis=1)
        if not ok.any():
            return None
        u = np.where(u[ok] > 1e-11 * p.g_max, u[ok], 0.0)
        if p.alpha == "log":
            positive = (u > 0).sum(axis=1)
            value = np.where(u > 0, np.log(np.where(u > 0, u, 1.0)), 0.0).sum(axis=1)
            top = positive.max()
            return float(top), float(value[positive == top].max())
        if isinstance(p.alpha, str):
            level = u.min(axis=1)
            top = level.max()
            fine = level >= top - 1e-9 * max(top, p.g_max * 1e-3)
            return float(top), float((u[fine] ** 0.1).sum(axis=1).max())
        return 0.0, float((u**p.alpha).sum(axis=1).max())

    def _ways(self, c: int, before: int, stop: int) -> list[dict[str, Any]]:
        """Return every way in which a client can train, with its own kg, money and utility."""
        p, fleet = self.problem, self.problem.fleet
        levels, ci = self.levels[c], self.intensity[c]
        weighed = ci if self.price is None else ci + p.price_weight * self.price[c]
        earned = 0.0 if p.earned_kg is None else float(np.asarray(p.earned_kg)[c])
        lead = math.ceil(fleet.startup_minutes[c] / 60)  # nobody is asked to train before a first start can be over
        slots = [t for t in range(before) if self.available[c, t] and t >= lead]
        late = [t for t in slots if t >= before - p.recall]
        ago = math.inf if p.trained_ago is None else float(np.asarray(p.trained_ago)[c])
        must = bool(p.recall) and bool(late) and ago + before > p.recall and fleet.max_slots[c] > 0
        found = []
        for choice in itertools.product(range(len(levels) + 1), repeat=len(slots)):
            taken = [(t, levels[k - 1]) for t, k in zip(slots, choice, strict=True) if k]
            if not max(fleet.min_slots[c], int(must)) <= len(taken) <= fleet.max_slots[c]:
                continue
            if must and not any(t in late for t, _ in taken):
                continue
            gains = [work * p.g_max - kwh * weighed[t] for t, (kwh, work) in taken]
            if any(gain < 1e-11 * p.g_max and lv != levels[0] for gain, (_, lv) in zip(gains, taken, strict=True)):
                continue
            taken += [(t, levels[0]) for t in range(before, stop) if self.available[c, t]]
            trains = np.zeros(stop, dtype=bool)
            trains[[t for t, _ in taken]] = True
            waiting = self._waiting(c, trains, stop)
            if waiting is None:
                continue
            kg = sum(kwh * ci[t] for t, (kwh, _) in taken) + waiting[0]
            money = waiting[1]
            if self.price is not None:
                money += sum(kwh * self.price[c][t] for t, (kwh, _) in taken)
            u = earned + sum(work * p.g_max - kwh * weighed[t] for t, (kwh, work) in taken)
            found.append({"kg": kg, "money": money, "u": u, "trains": trains})
        return found

    def _waiting(self, c: int, trains: NDArray[np.bool_], stop: int) -> tuple[float, float] | None:
        """Return the kg and money of idle draw and starts, at the least kg over all ways to be up."""
        fleet, ci = self.problem.fleet, self.intensity[c]
        price = np.zeros(stop) if self.price is None else self.price[c]
        pue = float(fleet.pue[c])
        idle = self.idle_kwh[c]
        startup, lead = float(fleet.startup_kwh[c]) * pue, math.ceil(fleet.startup_minutes[c] / 60)
        block = int(fleet.min_block_slots[c])
        if startup == 0 and lead == 0 and block == 1:
            return idle * ci[:stop].sum(), idle * float(price[:stop].sum())
        best = None
        for up in itertools.product((False, True), repeat=stop):
            if any(t and not v for t, v in zip(trains, up, strict=True)):
                continue
            kg = sum(idle * ci[t] for t in range(stop) if up[t])
            money = sum(idle * price[t] for t in range(stop) if up[t])
            fine = True
            for t in range(stop):
                if up[t] and not (t and up[t - 1]):
                    length = next((k for k in range(t, stop) if not up[k]), stop) - t
                    fine &= length >= block or t + length == stop
                    over = range(t - lead, t) if lead else [t]
                    fine &= t - lead >= 0 and not any(up[k] for k in range(max(t - lead, 0), t))
                    if fine:
                        kg += sum(startup / max(lead, 1) * ci[k] for k in over)
                        money += sum(startup / max(lead, 1) * price[k] for k in over)
            if fine and (best is None or (kg, sum(up)) < (best[0], best[2])):
                best = (kg, money, sum(up))
        return None if best is None else best[:2]


def random_small(rng: np.random.Generator, *, sleeping: bool = True) -> Small | None:
    """Return a random small problem with a random combination of everything; None if it has too many schedules."""
    clients = int(rng.integers(2, 4))
    rounds, slack = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    horizon = rounds + slack
    fine_tune = int(rng.integers(0, 2)) if rng.random() < 0.8 else int(rng.integers(0, min(3, horizon + 1)))
    zones = [f"z{c}" for c in range(clients + 1)]
    ci = np.round(rng.uniform(0.02, 0.9, (len(zones), horizon)), 3)
    if rng.random() < 0.15:
        ci[rng.integers(len(zones))] = 0.3  # equal hours: ties
    has_levels, has_price = rng.random() < 0.25, rng.random() < 0.3
    sleeps = sleeping and rng.random() < 0.35
    fleet, levels, idle_kwh = [], [], []
    for c in range(clients):
        power = float(rng.choice([150.0, 300.0, 700.0]))
        idle = float(rng.choice([0.0, 0.0, 50.0]))
        own: tuple[Level, ...] = ()
        if has_levels and rng.random() < 0.7:
            own = (
                Level(power_w=power, work=1.0),
                Level(power_w=round(power * 0.6), work=float(rng.choice([0.7, 0.85]))),
            )
        few = rng.random() < 0.3
        extra: dict[str, Any] = {}
        if sleeps and rng.random() < 0.7:
            extra = {
                "startup_kwh": float(rng.choice([0.0, 0.05, 0.2])),
                "startup_minutes": float(rng.choice([0, 0, 30, 60])),
                "min_block_slots": int(rng.integers(1, 4)),
            }
        fleet.append(
            sw.Client(
                name=f"c{c}",
                zone=zones[c],
                power_w=power,
                idle_w=idle,
                pue=float(rng.choice([1.0, 1.3])),
                min_slots=int(rng.integers(0, 2)) if few else 0,
                max_slots=int(rng.integers(1, 4)) if few else None,
                levels=own,
                **extra,
            )
        )
        pue = fleet[-1].pue
        powers = [(lv.power_w, lv.work) for lv in own] or [(power, 1.0)]
        levels.append([((w - idle) / 1000 * pue, work) for w, work in powers])
        idle_kwh.append(idle / 1000 * pue)
    free = rng.random((clients, horizon)) < 0.85 if rng.random() < 0.4 else np.ones((clients, horizon), dtype=bool)
    limit = int(rng.integers(1, clients + 1)) if rng.random() < 0.5 else None
    quorum = int(rng.integers(2, clients + 1)) if rng.random() < 0.4 and (limit or clients) >= 2 else None
    if quorum is not None and limit is not None:
        quorum = min(quorum, limit) if limit >= 2 else None
    server = sw.Server(zone=zones[-1], power_w=float(rng.choice([50.0, 200.0]))) if rng.random() < 0.5 else None
    prices = np.round(rng.uniform(-0.05, 0.4, ci.shape), 3) if has_price else None
    recall = int(rng.integers(1, 3)) if rng.random() < 0.25 else 0
    traces = sw.Traces(
        zones=tuple(zones),
        start=START,
        intensity=ci,
        factor="direct",
        provenance=tuple(Provenance(zone=z, source="random") for z in zones),
    )
    whole = sum(own[0][0] * float(ci[c].sum()) for c, own in enumerate(levels))
    settings: dict[str, Any] = {
        "alpha": [1.0, 0.5, 0.1, 0.001, "log", "max-min"][int(rng.integers(6))],
        "budget_kg": float(max(whole * rng.uniform(0.1, 1.1), 1e-3)),
        "max_parallel": limit,
        "min_parallel": quorum,
        "server": server,
        "recall": recall,
        "fine_tune": fine_tune,
        "window": str(rng.choice(["all", "available"])),
        "available": free,
    }
    if recall and rng.random() < 0.5:
        settings["trained_ago"] = rng.integers(1, 4, clients).astype(float)
    if rng.random() < 0.2:
        settings["earned_kg"] = rng.uniform(0.0, 0.3, clients)
    if prices is not None:
        settings["price"] = Prices(zones=tuple(zones), start=START, per_kwh=prices, currency="EUR", slot_minutes=60)
        if rng.random() < 0.5:
            settings["price_weight"] = float(rng.uniform(0.1, 1.0))
        if rng.random() < 0.5:
            settings["budget_money"] = float(rng.uniform(0.05, 0.6))
    many = math.prod((len(own) + 1) ** max(horizon - fine_tune, 0) for own in levels)
    if many > MOST_SCHEDULES:
        return None
    problem = sw.Problem(clients=fleet, traces=traces, rounds=rounds, slack=slack, **settings)
    return Small(
        problem=problem,
        levels=levels,
        intensity=ci[:clients],
        price=None if prices is None else prices[:clients],
        server_kg=np.zeros(horizon) if server is None else server.power_w / 1000 * ci[-1],
        server_money=np.zeros(horizon) if server is None or prices is None else server.power_w / 1000 * prices[-1],
        available=free,
        idle_kwh=idle_kwh,
    )
