"""Small runs with known emissions, made without training anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from slackwater.carbon.traces import Provenance, Traces
from slackwater.ledger import EvaluationRecord, ModelledCharges, RoundRecord, Run
from slackwater.planning.fleet import Client
from slackwater.planning.given import plan_from_matrix
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem, Server

START = datetime(2022, 1, 1, 22, tzinfo=UTC)
INTENSITY = {"A": [0.1, 0.2, 0.3, 0.4], "B": [0.5, 0.4, 0.3, 0.2]}
MATRIX = {"alice": [1, 0, 0, 1], "bob": [0, 0, 1, 1]}
HOSTILE = (
    "<script>alert('x')</script>",
    '"><img src=x onerror=alert(1)>',
    '=HYPERLINK("http://x","y")',
    "@SUM(1)|' and $title ${body}",
    "東京 😀 Ünïcode",
    "right\u202eto left\x1b[31m\nline",
)


def plan(names: tuple[str, str] = ("alice", "bob"), zones: tuple[str, str] = ("A", "B"), **more: object) -> Plan:
    """Two clients over four hours, around midnight: 0.5 kg and 1.0 kg, 2 kWh and 4 kWh."""
    traces = Traces(
        zones=zones,
        start=START,
        intensity=np.array(list(INTENSITY.values())),
        factor="direct",
        provenance=tuple(Provenance(zone=zone, source=f"meter <of> {zone}") for zone in zones),
    )
    clients = [
        Client(name=names[0], zone=zones[0], energy_kwh=1.0),
        Client(name=names[1], zone=zones[1], energy_kwh=2.0),
    ]
    settings = {"rounds": 2, "slack": 2, "fine_tune": 1, "budget_kg": 3.0} | more
    problem = Problem(clients=clients, traces=traces, **settings)  # type: ignore[arg-type]
    return plan_from_matrix(problem, list(MATRIX.values()), end=2)


def rich_plan() -> Plan:
    """The same with idle draw, PUE and a server."""
    base = plan(server=Server(zone="A", power_w=100.0, pue=1.5))
    clients = [
        Client(name="alice", zone="A", energy_kwh=1.0, idle_w=50.0),
        Client(name="bob", zone="B", energy_kwh=2.0, pue=1.2),
    ]
    return plan_from_matrix(replace(base.problem, clients=clients), list(MATRIX.values()), end=2)


def write(folder: Path, schedule: Plan, *, until: int = 3, status: str = "done") -> Path:
    """A run by the plan, as far as slot `until`."""
    with Run.create(
        folder,
        plan=schedule.to_dict(),
        budget_kg=schedule.problem.budget_kg,
        settings={"aggregator": "memory", "seed": 0},
        task={"name": "digits"},
    ) as run:
        charges = ModelledCharges(schedule)
        number = 0
        for slot in range(until + 1):
            run.ledger.charge(*charges.of(slot, slot))
            names = tuple(str(schedule.problem.fleet.names[c]) for c in np.flatnonzero(schedule.matrix[:, slot]))
            if names:
                run.record(_round(slot, number, names, run.ledger.spent_kg()))
                number += 1
        run.record_evaluation(
            EvaluationRecord(slot=until, model="last", client="", data="test", accuracy=0.8, loss=0.5, samples=10)
        )
        run.set_status(status)  # type: ignore[arg-type]
    return folder


def eventful(folder: Path) -> Path:
    """A run in which something of everything happened."""
    write(folder, rich_plan(), until=2, status="stopped")
    with Run.open(folder) as run:
        lines = [line for line in run.ledger.charges() if line.cause == "training"]
        first = lines[0]
        late = START + timedelta(hours=3)
        run.ledger.charge(
            replace(first, id=None, attempt=1, intensity_kind="forecast", kg=0.11, intensity_source="seer"),
            replace(first, id=None, slot=3, slot_start=late, intensity_kind="forecast", kg=0.37, planned=False),
        )
        again, last = list(run.ledger.charges())[-2:]
        run.ledger.charge(
            replace(
                again, kind="settlement", corrects=again.id, id=None, kg=-0.013, energy_kwh=0.0, intensity_kind="actual"
            ),
            replace(first, kind="correction", corrects=first.id, id=None, kg=0.021, energy_kwh=0.21, method="measured"),
        )
        assert last.id is not None
        run.log("the client went away", level="error", slot=3)
    return folder


def _round(slot: int, number: int, names: tuple[str, ...], spent_kg: float) -> RoundRecord:
    ones = dict.fromkeys(names, 1.0)
    return RoundRecord(
        slot=slot,
        number=number,
        slot_start=START + timedelta(hours=slot),
        in_window=slot == 3,
        participants=names,
        weights=ones,
        losses=ones,
        loss=1.0,
        update_norm=1.0,
        spent_kg=spent_kg,
        seconds=0.1,
        accuracy=0.8,
    )
