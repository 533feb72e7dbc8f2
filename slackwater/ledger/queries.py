"""Queries of a run: every sum of its `charges`, the plan in force in each slot, and the figures all screens share.

The tables `charges` and `planned` are read here and in `ledger`, and nowhere else.
"""

from __future__ import annotations

import base64
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import SlackwaterError
from slackwater.ledger.journal import Attempt, Journal, Replan
from slackwater.ledger.ledger import CHAINED, ROOT, Charge, Ledger
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem

LAST_SLOT = 10_000_000  # nineteen years of minutes: a slot beyond it is a damaged number

_CELLS = """
SELECT client, zone, substr(slot_start, 1, 10) AS day, cause, kind, method, intensity_source, intensity_kind, factor,
       count(*) AS lines, sum(kg) AS kg, coalesce(sum(energy_kwh), 0.0) AS energy_kwh,
       coalesce(sum(CASE WHEN energy_kwh IS NULL THEN kg END), 0.0) AS kg_without_energy
FROM charges GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""
_WORK = """
SELECT client, cause, count(DISTINCT slot) AS slots, sum(kg) AS kg, coalesce(sum(energy_kwh), 0.0) AS energy_kwh,
       min(started_at) AS first, max(ended_at) AS last
FROM charges GROUP BY 1, 2
"""
_CLIENT_SLOTS = """
SELECT slot, client, sum(kg) AS kg, min(planned) AS planned FROM charges
WHERE cause = 'training' GROUP BY slot, client ORDER BY slot, client
"""
_MEASURED = """
SELECT client, count(*) AS starts, coalesce(sum(kwh), 0.0) AS energy_kwh FROM (
    SELECT client, slot, attempt, sum(energy_kwh) AS kwh FROM charges WHERE cause = 'training'
    GROUP BY client, slot, attempt HAVING max(method = 'measured')
) GROUP BY client ORDER BY client
"""
_STARTED = "SELECT DISTINCT slot, client FROM charges WHERE cause = 'training' AND kind = 'charge'"
_VALUES = """
SELECT DISTINCT intensity_source, intensity_kind, zone, slot_start, intensity_kg_per_kwh FROM charges
WHERE intensity_kg_per_kwh IS NOT NULL ORDER BY 1, 2, 3, 4, 5
"""
_CHECKED = """
SELECT id, slot, client FROM charges WHERE kind = 'charge' AND energy_kwh > 0 AND intensity_kg_per_kwh > 0
ORDER BY cause <> 'training', kg DESC, id LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All lines of the ledger that agree in these fields; every breakdown is a sum of cells."""

    client: str
    zone: str
    day: str  # of the slot's start, UTC
    cause: str
    kind: str
    method: str
    intensity_source: str
    intensity_kind: str
    factor: str
    lines: int
    kg: float
    energy_kwh: float  # of the lines that have it
    kg_without_energy: float  # of the lines that have none


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one client did for one cause."""

    client: str
    cause: str
    slots: int  # distinct: a second attempt is in the same slot
    kg: float
    energy_kwh: float
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSlot:
    """Training of one client in one slot, all its lines together."""

    slot: int
    client: str
    kg: float
    planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures that status, dashboard and report show alike."""

    spent_kg: float  # sum of the ledger
    unsettled_kg: float  # the part of it that is at an upper bound or a forecast
    planned_kg: float
    """Emissions that the plans in force expected of the slots decided so far, and the last one of the rest."""
    planned_until_now_kg: float  # the first part of that
    to_come_kg: float  # the second part
    expected_kg: float  # spent and to come: the expected total of the run
    first_plan_kg: float  # what the first plan expected of the whole run, for reference
    replans: int
    by_cause_kg: Mapping[str, float]
    client_slots_planned: int  # by the plans in force, those of the slots to come included
    client_slots_missed: int  # planned in slots that are decided, and never started: nothing is charged for them
    client_slots_extra: int  # started and charged without being planned
    money: float | None = None  # price of the electricity in the ledger; None without prices
    currency: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON; those of prices only if there are any."""
        return {
            name: value for name, value in asdict(self).items() if self.currency or name not in ("money", "currency")
        }


class LedgerQueries:
    """Reads the ledger of one run."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._db = connection
        self.ledger = Ledger(connection, run_id="", budget_kg=None, path=path)
        self.journal = Journal(connection, path)

    def cells(self) -> list[Cell]:
        """Return the whole ledger, lines that agree added up."""
        return [Cell(**dict(row)) for row in self._db.execute(_CELLS)]

    def work(self) -> list[Work]:
        """Return what each client did, by cause."""
        return [Work(**dict(row)) for row in self._db.execute(_WORK)]

    def client_slots(self) -> Iterator[ClientSlot]:
        """Yield training by slot and client."""
        for row in self._db.execute(_CLIENT_SLOTS):
            yield ClientSlot(slot=row["slot"], client=row["client"], kg=row["kg"], planned=bool(row["planned"]))

    def measured(self) -> list[tuple[str, int, float]]:
        """Return for each client with measured training: its measured starts, and their energy in kWh."""
        return [(str(client), int(starts), float(kwh)) for client, starts, kwh in self._rows(_MEASURED)]

    def booked_at(self) -> dict[int, str]:
        """Return slot -> when its last charge was booked, on the wall clock, UTC."""
        query = "SELECT slot, max(booked_at) FROM charges WHERE kind = 'charge' GROUP BY slot"
        return {int(slot): str(at) for slot, at in self._rows(query)}

    def kg_by_slot(self) -> dict[int, float]:
        """Return slot -> kg of all its lines."""
        return {int(slot): float(kg) for slot, kg in self._rows("SELECT slot, sum(kg) FROM charges GROUP BY slot")}

    def kg_by_cause(self) -> dict[str, float]:
        """Return cause -> kg of all its lines."""
        return {str(c): float(kg) for c, kg in self._rows("SELECT cause, sum(kg) FROM charges GROUP BY 1 ORDER BY 1")}

    def energy_by_zone_slot(self) -> dict[tuple[str, int], float]:
        """Return (zone, slot) -> kWh of the lines that have it."""
        query = "SELECT zone, slot, sum(energy_kwh) FROM charges WHERE energy_kwh IS NOT NULL GROUP BY zone, slot"
        return {(str(zone), int(slot)): float(energy) for zone, slot, energy in self._rows(query)}

    def money(self, problem: Problem) -> float | None:
        """Return the price of the energy in the ledger, in the currency of the problem's prices; None without prices."""
        if problem.price is None:
            return None
        prices = problem.price.window(problem.first_slot, problem.horizon)
        return math.fsum(
            energy * float(prices.per_kwh[prices.index(zone), slot])
            for (zone, slot), energy in self.energy_by_zone_slot().items()
        )

    def by_intensity(self) -> dict[str, tuple[int, float]]:
        """Return kind of intensity -> lines and kg."""
        query = "SELECT intensity_kind, count(*), sum(kg) FROM charges GROUP BY intensity_kind"
        return {str(kind): (int(count), float(kg)) for kind, count, kg in self._rows(query)}

    def unplanned(self) -> tuple[int, float]:
        """Return the number and kg of the lines that were not planned."""
        return self._count_and_kg("count(*)", "planned = 0")

    def lines(self, last: int) -> Iterator[dict[str, Any]]:
        """Return the lines up to this number as they stand in the ledger, in the order of booking."""
        return map(dict, self._db.execute("SELECT * FROM charges WHERE id <= ? ORDER BY id", (last,)))

    def differences(self) -> list[tuple[str, int, float, float, float]]:
        """Return for corrections and settlements: the lines changed, their kg before, the sum and the sum without signs."""
        query = f"""{CHAINED}
            SELECT d.kind, count(*), sum(c.kg), sum(d.kg), sum(abs(d.kg)) FROM
                (SELECT kind, {ROOT} AS root, sum(kg) AS kg FROM charges LEFT JOIN chained USING (id)
                 WHERE kind <> 'charge' GROUP BY 1, 2) d
            JOIN charges c ON c.id = d.root GROUP BY d.kind ORDER BY d.kind
        """
        return [(str(kind), int(n), float(a), float(b), float(c)) for kind, n, a, b, c in self._rows(query)]

    def retried(self) -> tuple[int, float]:
        """Return the number and kg of the lines of second and later attempts."""
        return self._count_and_kg("count(*)", "attempt > 0")

    def without_round(self) -> tuple[int, float]:
        """Return the number and kg of the slots with charged training but no recorded round."""
        without = "cause = 'training' AND slot NOT IN (SELECT slot FROM rounds)"
        return self._count_and_kg("count(DISTINCT slot)", without)

    def extent(self) -> tuple[int, int, int, int]:
        """Return the number of lines, the first and last slot, and the number of the last line; 0 without lines."""
        query = "SELECT count(*), coalesce(min(slot), 0), coalesce(max(slot), 0), coalesce(max(id), 0) FROM charges"
        return tuple(map(int, self._rows(query)[0]))  # type: ignore[return-value]

    def last_line(self) -> int:
        """Return the number of the last line; 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM charges")[0][0])

    def intensity_values(self) -> Iterator[tuple[str, str, str, str, float]]:
        """Yield every distinct intensity of a line, in order: source, kind, zone, start of the slot and kg/kWh."""
        yield from map(tuple, self._db.execute(_VALUES))

    def checked_line(self) -> tuple[Charge, list[Charge]] | None:
        """Return one charge that can be checked by hand, the largest of training, and the lines that changed it."""
        for row in self._rows(_CHECKED):
            lines: list[Charge] = []
            for one in self.ledger.charges(slot=row["slot"], client=row["client"]):
                if one.id == row["id"] or one.corrects in {line.id for line in lines}:
                    lines.append(one)
            return lines[0], lines[1:]
        return None

    def in_force(self, plan: Plan, *, done: bool, spent_kg: float) -> PlanInForce:
        """Return the plan in force in every slot; `plan` is the first one of the run."""
        journal = self.journal
        noted, rest = journal.planned(), ToCome.from_dict(journal.get("to_come"), len(plan.problem.fleet))
        replans = tuple(journal.replans())
        decided = max(self.ledger.last_slot(), max(noted, default=-1)) + 1
        if done and not noted and not replans:
            decided = max(decided, plan.problem.rounds + plan.end)
        decided = max(decided, 0 if rest is None else rest.slot)
        if min(noted, default=0) < 0 or decided > LAST_SLOT:
            raise SlackwaterError(
                "The run's file is damaged: it has a slot with an impossible number. Restore it from a backup."
            )
        return PlanInForce(
            first=plan, noted=noted, replans=replans, rest=rest,
            attempts=tuple(journal.attempts()) if replans and not noted else (), decided=decided, done=done,
            spent_kg=spent_kg,
        )  # fmt: skip

    def figures(self, in_force: PlanInForce) -> Figures:
        """Return the figures that all screens show, at the moment of the plan in force."""
        missed, extra = self._missed_and_extra(in_force)
        price = in_force.first.problem.price
        return Figures(
            spent_kg=in_force.spent_kg, unsettled_kg=self.ledger.unsettled_kg(), planned_kg=in_force.planned_kg,
            planned_until_now_kg=in_force.until_now_kg, to_come_kg=in_force.to_come_kg,
            expected_kg=in_force.spent_kg + in_force.to_come_kg, first_plan_kg=in_force.first.emissions_kg,
            replans=len(in_force.replans), by_cause_kg=self.kg_by_cause(),
            client_slots_planned=int(in_force.wanted.sum()), client_slots_missed=missed, client_slots_extra=extra,
            money=self.money(in_force.first.problem), currency=price.currency if price else None,
        )  # fmt: skip

    def _missed_and_extra(self, in_force: PlanInForce) -> tuple[int, int]:
        """Return how many client-slots were planned and not started, and how many were started without a plan."""
        wanted = in_force.wanted[:, : in_force.decided]
        started = np.zeros_like(wanted)
        extra = 0
        for slot, client in self._rows(_STARTED):
            row = in_force.row.get(client)
            if row is not None and 0 <= slot < wanted.shape[1] and wanted[row, slot]:
                started[row, slot] = True
            else:
                extra += 1
        return int((wanted & ~started).sum()), extra

    def _count_and_kg(self, what: str, where: str) -> tuple[int, float]:
        count, kg = self._rows(f"SELECT {what}, coalesce(sum(kg), 0.0) FROM charges WHERE {where}")[0]
        return int(count), float(kg)

    def _rows(self, query: str) -> list[sqlite3.Row]:
        return self._db.execute(query).fetchall()


@contextmanager
def one_moment(db: sqlite3.Connection) -> Iterator[None]:
    """Show the run at one moment to every query inside, even while it is written."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToCome:
    """What the plan in force still expects, from one slot on; a live run stores it after every slot."""

    slot: int  # the next slot to decide
    kg: NDArray[np.float64]  # [slot], from that one to the plan's end
    schedule: NDArray[np.bool_]  # [client, slot], who is planned to train in them

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        bits = base64.b64encode(np.packbits(self.schedule, axis=1).tobytes()).decode()
        return {"slot": self.slot, "kg": self.kg.tolist(), "schedule": bits}

    @classmethod
    def from_dict(cls, data: Any, clients: int) -> ToCome | None:
        """Return what `to_dict` described; None where nothing was noted."""
        if data is None:
            return None
        try:
            kg = np.array(data["kg"], dtype=np.float64)
            bits = np.frombuffer(base64.b64decode(data["schedule"]), dtype=np.uint8).reshape(
                clients, (len(kg) + 7) // 8
            )
            schedule = np.unpackbits(bits, axis=1, count=len(kg)).astype(bool)
            return cls(slot=int(data["slot"]), kg=kg, schedule=schedule)
        except (KeyError, TypeError, ValueError) as error:
            raise SlackwaterError(
                f"The run's file is damaged: its record of the coming slots cannot be read ({error}). Restore it from a backup."
            ) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanInForce:
    """The emissions expected of each slot by the plan in force when that slot was decided.

    A run that re-plans stores what its plan expects of each slot when the slot is decided; the rest is by its last plan.
    """

    first: Plan  # the first plan of the run
    noted: Mapping[int, Mapping[tuple[str, str], float]]
    """Slot -> (client, cause) -> kg; empty for a run that follows one plan."""
    replans: tuple[Replan, ...]
    rest: ToCome | None
    attempts: tuple[Attempt, ...]
    """Who was asked, in files of re-planned runs that do not store what was expected."""
    decided: int  # slots that are decided
    done: bool
    spent_kg: float

    @property
    def is_first(self) -> bool:
        """Return whether the first plan was in force throughout."""
        return not self.noted and not self.replans

    @property
    def is_noted(self) -> bool:
        """Return whether the expected emissions of every decided slot are known."""
        return self.is_first or bool(self.noted)

    @cached_property
    def end(self) -> int:
        """Return the number of slots until the end of the plan or the run."""
        stop = self.first.problem.rounds + self.first.end
        if self.is_first:
            return max(stop, self.decided)
        if self.done:
            return self.decided
        return max(self.decided, stop if self.rest is None else self.rest.slot + len(self.rest.kg))

    @cached_property
    def kg_by_slot(self) -> NDArray[np.float64]:
        """Return the expected emissions of each slot until the end [slot], kg; NaN where they were not stored."""
        kg = np.zeros(self.end)
        if self.is_first:
            planned = self.first.kg_by_slot[: self.end]
            kg[: len(planned)] = planned
            return kg
        kg[: self.decided] = 0.0 if self.noted else np.nan
        for slot, expected in self.noted.items():
            kg[slot] = math.fsum(expected.values())
        if self.rest is not None and not self.done:
            kg[self.decided :] = self.rest.kg[self.decided - self.rest.slot :]
        elif not self.done:
            kg[self.decided :] = np.nan
        return kg

    @cached_property
    def to_come_kg(self) -> float:
        """Return the expected emissions of the slots that are not decided, kg."""
        if self.done:
            return 0.0
        if self.is_first or self.rest is not None:
            return math.fsum(self.kg_by_slot[self.decided :])
        return max(0.0, self.replans[-1].planned_kg - self.spent_kg) if self.replans else 0.0

    @property
    def until_now_kg(self) -> float:
        """Return the expected emissions of the slots that are decided, kg."""
        if self.is_noted:
            return math.fsum(self.kg_by_slot[: self.decided])
        return max(0.0, self.planned_kg - self.to_come_kg)

    @cached_property
    def planned_kg(self) -> float:
        """Return the expected emissions of the whole run, kg."""
        if self.is_first:
            return self.first.emissions_kg
        if self.is_noted:
            return self.until_now_kg + self.to_come_kg
        return self.replans[-1].planned_kg

    @cached_property
    def wanted(self) -> NDArray[np.bool_]:
        """Return who was or is planned to train [client, slot], until the end."""
        clients = len(self.first.problem.fleet)
        found = np.zeros((clients, max(self.end, self.first.problem.horizon)), dtype=bool)
        if self.is_first:
            found[:, : self.first.problem.horizon] = self.first.matrix
            return found[:, : self.end]
        for slot, client in self._asked():
            if (row := self.row.get(client)) is not None and slot < found.shape[1]:
                found[row, slot] = True
        if self.rest is not None and not self.done:
            later = self.rest.schedule[:, self.decided - self.rest.slot :]
            found[:, self.decided : self.decided + later.shape[1]] = later
        return found[:, : self.end]

    def training_kg(self, client: int, slot: int) -> float:
        """Return the expected emissions of one client's training in a planned slot, kg; NaN where they were not stored."""
        if self.is_first:
            costs, levels = self.first.problem.costs, self.first.levels
            level = 0 if levels is None else int(levels[client, slot])
            return float(costs.level_training_kwh[client, level] * costs.intensity[costs.row[client], slot])
        name = str(self.first.problem.fleet.names[client])
        return self.noted.get(slot, {}).get((name, "training"), math.nan)

    @cached_property
    def row(self) -> dict[str, int]:
        """Return name -> number of a client."""
        return {str(name): row for row, name in enumerate(self.first.problem.fleet.names)}

    def _asked(self) -> Iterator[tuple[int, str]]:
        for slot, expected in self.noted.items():
            yield from ((slot, client) for client, cause in expected if cause == "training")
        yield from ((one.slot, one.client) for one in self.attempts)
