"""A small world to carry plans out in: a fleet, its intensity, and sites that can go wrong in every way."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity.traces import Provenance, Traces
from slackwater.ledger.ledger import Charge
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare
from slackwater.live.sites import Arrays, Reply, Site, Work
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import plan_from_matrix

START = datetime(2023, 3, 1, tzinfo=UTC)
NAMES = ("lyon", "oslo", "rome")
ZONES = ("FR", "NO", "IT")
HISTORY = 14 * 24
AFTER = 48
"""Hours of actuals after the longest run."""


def intensity(slots: int, seed: int = 1) -> NDArray[np.float64]:
    """Days that look like days, kg/kWh."""
    rng = np.random.default_rng(seed)
    wave = 1 + 0.4 * np.sin(2 * np.pi * (np.arange(slots) - rng.uniform(0, 24, (3, 1))) / 24)
    return np.asarray(rng.uniform(0.2, 0.6, (3, 1)) * wave * (1 + 0.1 * rng.uniform(-1, 1, (3, slots))))


def actuals(horizon: int, seed: int = 1) -> Traces:
    """From two weeks before the run to two days after it."""
    slots = HISTORY + horizon + AFTER
    return Traces(
        zones=ZONES,
        start=START - timedelta(hours=HISTORY),
        intensity=intensity(slots, seed),
        factor="direct",
        provenance=tuple(Provenance(zone=zone, source=f"measured in {zone}") for zone in ZONES),
    )


def problem(slots: int = 6, *, slack: int = 0, fine_tune: int = 1, budget_kg: float = 1e3, **more: Any) -> Problem:
    traces = actuals(slots + slack)
    client = {"power_w": 1000, "idle_w": more.pop("idle_w", 0.0), "max_slots": more.pop("max_slots", None)}
    fleet = [Client(name=n, zone=z, **client) for n, z in zip(NAMES, ZONES, strict=True)]
    return Problem(
        clients=fleet, traces=traces, start=START, rounds=slots, slack=slack, fine_tune=fine_tune, budget_kg=budget_kg, **more
    )  # fmt: skip


def plan(rows: list[str] | None = None, **more: Any) -> Plan:
    """A plan from rows like "x.xxX" of equal length; the last `fine_tune` slots are filled."""
    rows = rows or ["xx.x.x", "x.xx.x", ".x.xxx"]
    asked = problem(len(rows[0]), **more)
    matrix = np.array([[mark == "x" for mark in row] for row in rows])
    return plan_from_matrix(asked, matrix, end=0)


def made(folder: Path, what: Plan | None = None, **settings: Any) -> Path:
    """A folder that is ready; slots do not wait."""
    settings = {"slot_seconds": 0.0, "aggregator": "ufedavg"} | settings
    given = actuals((what or plan()).problem.horizon) if settings.get("source") == "playback" else None
    return prepare(folder, what or plan(), LiveSettings(**settings), actuals=given)


def initial() -> dict[str, NDArray[Any]]:
    return {
        "layer.weight": np.zeros((2, 3), dtype=np.float32),
        "layer.bias": np.zeros(2, dtype=np.float32),
        "norm.running_mean": np.zeros(2, dtype=np.float32),
        "norm.num_batches_tracked": np.zeros((), dtype=np.int64),
    }


Trick = Callable[[Reply], Reply | None]
"""What becomes of a reply; None: it never comes."""


@dataclass
class Sites:
    """Clients that each pull the model to a place of their own; `tricks` go wrong at (slot, name) or ("*", name)."""

    tricks: Mapping[tuple[int | str, str], str] = field(default_factory=dict)
    offline: Callable[[int], set[str]] = lambda look: set()
    """Names that are offline at the look of this number."""
    sites: dict[str, Site] = field(default_factory=lambda: {name: Site(name=name) for name in NAMES})
    energy_kwh: Callable[[Work, str], float | None] = lambda work, name: None
    before_train: Callable[[Mapping[str, Work]], None] = lambda work: None
    looks: int = 0
    trained: list[tuple[int, str]] = field(default_factory=list)

    def online(self) -> Mapping[str, Site]:
        gone = self.offline(self.looks)
        self.looks += 1
        return {name: site for name, site in self.sites.items() if name not in gone}

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        self.before_train(work)
        self.trained += [(one.slot, name) for name, one in work.items()]
        for name in sorted(work, reverse=True):  # never in the order of clients
            one = work[name]
            trick = self.tricks.get((one.slot, name)) or self.tricks.get(("*", name), "")
            reply = Reply(
                client=name, outcome="done", arrays=local_work(name, one), loss=0.5, samples=10, energy_kwh=self.energy_kwh(one, name)
            )  # fmt: skip
            if (answer := spoilt(reply, trick)) is not None:
                yield answer


def local_work(name: str, work: Work) -> dict[str, NDArray[Any]]:
    """Half-way to the client's own place, with noise of its seed."""
    noise = np.random.default_rng(work.seed)
    target = float(1 + NAMES.index(name))
    moved: dict[str, NDArray[Any]] = {}
    for key, array in work.arrays.items():
        if key == "norm.num_batches_tracked":
            moved[key] = array + 30
        else:
            moved[key] = (array + 0.5 * (target - array) + 0.01 * noise.standard_normal(array.shape)).astype(
                array.dtype
            )
    return moved


def spoilt(reply: Reply, trick: str) -> Reply | None:
    assert reply.arrays is not None
    arrays = dict(reply.arrays)
    match trick:
        case "":
            return reply
        case "silent":
            return None
        case "failed" | "late" | "lost":
            return Reply(client=reply.client, outcome=trick, error="something broke " * 30)
        case "nan":
            arrays["layer.bias"] = np.full(2, np.nan, dtype=np.float32)
        case "shape":
            arrays["layer.bias"] = np.zeros(3, dtype=np.float32)
        case "names":
            arrays["more"] = np.zeros(1)
        case "long":
            arrays["layer.bias"] = np.full(2, 1e9, dtype=np.float32)
        case "empty":
            return Reply(client=reply.client, outcome="done")
    return Reply(client=reply.client, outcome="done", arrays=arrays, loss=0.5)


def recount(folder: Path) -> float:
    """The ledger's sum from energies and intensities alone: every charge with its newest energy and intensity."""
    with Run.open(folder, read_only=True) as run:
        lines = list(run.ledger.charges())
    total: list[float] = []
    for line in (one for one in lines if one.kind == "charge"):
        about, ids = list[Charge](), {line.id}
        for one in lines:  # in the order of booking: a line about a correction comes after it
            if one.corrects in ids:
                about.append(one)
                ids.add(one.id)
        assert len({(one.kind, one.corrects) for one in about}) == len(about)
        total.append(_kg(line, about))
    keys = [(one.slot, one.client, one.cause, one.attempt) for one in lines if one.kind == "charge"]
    assert len(keys) == len(set(keys))
    return math.fsum(total)


def _kg(line: Charge, about: list[Charge]) -> float:
    assert line.energy_kwh is not None
    assert line.intensity_kg_per_kwh is not None
    energy = line.energy_kwh + sum(one.energy_kwh or 0.0 for one in about)
    settled = [one.intensity_kg_per_kwh for one in about if one.kind == "settlement"]
    return energy * (settled[0] if settled and settled[0] is not None else line.intensity_kg_per_kwh)


def spent(folder: Path) -> float:
    with Run.open(folder, read_only=True) as run:
        return run.ledger.spent_kg()


def outcomes(folder: Path) -> dict[tuple[int, str], str]:
    with Run.open(folder, read_only=True) as run:
        return {(one.slot, one.client): one.outcome for one in run.journal.attempts()}


def said(folder: Path) -> str:
    with Run.open(folder, read_only=True) as run:
        return "\n".join(message for _, _, _, message in run.events())


def same(one: Arrays, other: Arrays) -> bool:
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


class StopAfter:
    """An event to stop a run after so many looks at who is online."""

    def __init__(self, sites: Sites, looks: int) -> None:
        self.event = threading.Event()
        sites.before_train = lambda work: self.event.set() if sites.looks >= looks else None
