"""Plans and runs made for tests: hostile names, and a run's file written step by step."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import tomlkit

import slackwater as sw
from slackwater.intensity.traces import Provenance
from slackwater.ledger.ledger import ModelledCharges
from slackwater.ledger.run import RoundRecord, Run
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.planning.plan import Plan

SCENARIO = """\
start = 2022-01-01T00:00:00Z
rounds = 4
slack = 20
fine_tune = 1
budget_kg = 2.0
alpha = 0.1
"""
CLIENT = """
[[client]]
name = {name}
zone = "{zone}"
power_w = 300
"""
ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "quote ' \" ` \\ &amp; ${1}",
    "\u202eright-to-left \u0000\u001b[31m",
    "日本 مرحبا 🌊",
    "'; DROP TABLE run; --",
)


def scenario(folder: Path, *, names: tuple[str, ...] = ZONES, head: str = SCENARIO) -> Path:
    """A scenario of seven clients."""
    folder.mkdir(parents=True, exist_ok=True)
    clients = "".join(
        CLIENT.format(name=tomlkit.item(name).as_string(), zone=zone) for name, zone in zip(names, ZONES, strict=False)
    )
    path = folder / "scenario.toml"
    path.write_text(head + clients, encoding="utf-8")
    return path


def hostile_plan() -> Plan:
    """Clients, zones and a source whose names are markup."""
    zones = tuple(f"{name} zone" for name in HOSTILE)
    rng = np.random.default_rng(0)
    traces = sw.Traces(
        zones=zones,
        start=datetime(2022, 1, 1, tzinfo=UTC),
        intensity=rng.uniform(0.05, 0.5, (len(zones), 30)),
        factor="lifecycle",
        provenance=tuple(Provenance(zone=zone, source=f"<b>{zone}</b>") for zone in zones),
    )
    clients = [sw.Client(name=name, zone=zone, power_w=300) for name, zone in zip(HOSTILE, zones, strict=True)]
    return sw.plan(sw.Problem(clients=clients, traces=traces, rounds=5, slack=20, budget_kg=1.0))


def small_plan(clients: int = 3, slots: int = 12) -> Plan:
    """A plan on random costs at real times."""
    rng = np.random.default_rng(1)
    zones = ["FR", "DE", "GB", "IE", "FI"]
    traces = sw.load_traces(zones=zones, start="2022-01-01T00:00Z", hours=slots)
    fleet = sw.Fleet.of([zones[i % 5] for i in range(clients)], power_w=rng.uniform(100, 400, clients))
    half = slots // 2
    return sw.plan(sw.Problem(clients=fleet, traces=traces, rounds=half, slack=slots - half, budget_kg=0.15 * clients))


def start_run(folder: Path, plan: Plan, metric: MetricLabel = ACCURACY) -> Run:
    """A run's file with nothing done yet."""
    return Run.create(
        folder,
        plan=plan.to_dict(),
        budget_kg=plan.problem.budget_kg,
        settings={"aggregator": "memory", "seed": 0},
        task={"name": "digits", "metric": metric.to_dict()},
    )


def do_rounds(run: Run, plan: Plan, first: int, count: int, *, absent: int | None = None) -> int:
    """Write rounds number `first` and on as training does; `absent` is a client that does not turn up. Rounds written."""
    charges, busy = ModelledCharges(plan), np.flatnonzero(plan.matrix.any(axis=0)).tolist()
    for number in range(first, min(first + count, len(busy))):
        slot, before = busy[number], busy[number - 1] if number else -1
        run.ledger.charge(*charges.of(before + 1, slot))
        there = [str(plan.problem.fleet.names[c]) for c in np.flatnonzero(plan.matrix[:, slot]) if c != absent]
        run.record(
            RoundRecord(
                slot=slot,
                number=number,
                slot_start=plan.problem.slot_start(slot),
                in_window=slot in plan.window,
                participants=tuple(there),
                weights=dict.fromkeys(there, 1.0),
                losses=dict.fromkeys(there, 0.5),
                loss=0.5,
                update_norm=1.0,
                spent_kg=run.ledger.spent_kg(),
                seconds=0.1,
                accuracy=1 - 0.8 * 0.9**number,
            )
        )
    return len(busy)
