"""Small runs with known emissions, made without training anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from slackwater.intensity.traces import Provenance, Traces
from slackwater.ledger.journal import Attempt, Replan
from slackwater.ledger.ledger import Charge, ModelledCharges
from slackwater.ledger.queries import ToCome
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.ledger.schema import RunKind
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem, Server
from slackwater.planning.schedule import plan_from_matrix

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


def write(folder: Path, schedule: Plan, *, until: int = 3, status: str = "done", kind: RunKind = "simulated") -> Path:
    """A run by the plan, as far as slot `until`."""
    with Run.create(
        folder,
        plan=schedule.to_dict(),
        budget_kg=schedule.problem.budget_kg,
        settings={"aggregator": "memory", "seed": 0},
        task={"name": "digits"},
        kind=kind,
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
        in_window=slot >= 3,
        participants=names,
        weights=ones,
        losses=ones,
        loss=1.0,
        update_norm=1.0,
        spent_kg=spent_kg,
        seconds=0.1,
        accuracy=0.8,
    )


REPLANNED_INTENSITY = {"A": [0.1, 0.2, 0.3, 0.4, 0.2, 0.1], "B": [0.5, 0.4, 0.3, 0.2, 0.3, 0.4]}
IN_FORCE: dict[int, dict[tuple[str, str], float]] = {
    0: {("alice", "training"): 0.11},
    1: {("bob", "training"): 0.75},
    2: {},
    3: {("alice", "training"): 0.38, ("bob", "training"): 0.42},
    4: {("alice", "training"): 0.22, ("bob", "training"): 0.58},
}
"""What the plan in force expected of each slot: 0.11, 0.75, 0.8 and 0.8 kg."""


def first_plan() -> Plan:
    """The plan that `replanned` begins with: over after four slots, 0.1 + 0.4 and 0.6 + 0.4 = 1.5 kg."""
    traces = Traces(
        zones=("A", "B"),
        start=START,
        intensity=np.array(list(REPLANNED_INTENSITY.values())),
        factor="direct",
        provenance=tuple(Provenance(zone=zone, source="neso") for zone in ("A", "B")),
    )
    clients = [Client(name="alice", zone="A", energy_kwh=1.0), Client(name="bob", zone="B", energy_kwh=2.0)]
    problem = Problem(clients=clients, traces=traces, rounds=2, slack=4, fine_tune=1, budget_kg=5.0)
    return plan_from_matrix(problem, [[1, 0, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0]], end=2)


def replanned(folder: Path, *, until: int = 4, note: bool = True, kind: RunKind = "live") -> Path:
    """A live run that was re-planned in slot 1, and ends a slot after its first plan; nothing of it went wrong.

    The ledger has 0.1, 0.8 and 0.8 kg in slots 0, 1 and 3, and 0.9 + 1.1 kg in slot 4, which is not settled.
    """
    schedule = first_plan()
    names = ("alice", "bob")
    with Run.create(
        folder,
        plan=schedule.to_dict(),
        budget_kg=5.0,
        settings={"aggregator": "echo", "seed": 0, "slot_seconds": None},
        task={"name": "/home/me/projects/hospitals", "live": True},
        kind=kind,
    ) as run:
        number = 0
        for slot in range(until + 1):
            who = [client for client, cause in IN_FORCE[slot] if cause == "training"]
            if note:
                run.journal.note_planned(slot, IN_FORCE[slot])
            if slot == 1:
                run.journal.note_replan(
                    Replan(slot=1, reason="due", changes={"bob": (1, 2)}, reserve_kg=0.1, planned_kg=2.45)
                )
            _train(run, slot, who, settled=slot < 4)
            if who:
                run.record(_round(slot, number, tuple(who), run.ledger.spent_kg()))
                number += 1
            rest = [sum(IN_FORCE[later].values()) for later in range(slot + 1, 5)]
            wanted = [[(name, "training") in IN_FORCE[later] for later in range(slot + 1, 5)] for name in names]
            come = ToCome(slot=slot + 1, kg=np.array(rest), schedule=np.array(wanted, dtype=bool).reshape(2, len(rest)))
            coming = [
                {"slot": t, "at": (START + timedelta(hours=t)).isoformat(), "clients": ["bob"]}
                for t in (3, 4)
                if t > slot
            ]
            run.journal.put(to_come=come.to_dict(), coming=coming, guide={}, open=None)
        run.set_status("done" if until == 4 else "running")
    return folder


def _train(run: Run, slot: int, names: list[str], *, settled: bool) -> None:
    start, energy = START + timedelta(hours=slot), {"alice": 1.0, "bob": 2.0}
    zone, held = {"alice": "A", "bob": "B"}, {"alice": 0.9, "bob": 0.55}
    lines = [
        Charge(
            slot=slot,
            slot_start=start,
            client=name,
            zone=zone[name],
            kg=energy[name] * held[name],
            energy_kwh=energy[name],
            intensity_kg_per_kwh=held[name],
            intensity_source="upper bound from the last 28 days",
            intensity_kind="bound",
            factor="direct",
            started_at=start,
            ended_at=start + timedelta(hours=1),
        )
        for name in names
    ]
    run.ledger.charge(*lines)
    run.journal.note(*(Attempt(slot=slot, client=name, sent_at=start, outcome="done") for name in names))
    for line in run.ledger.unsettled() if settled else ():
        actual = REPLANNED_INTENSITY[line.zone][slot]
        run.ledger.settle(line, actual, source="neso", kind="actual")
