"""The ledger: every charge is booked once and never changed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slackwater import time_source
from slackwater.errors import SlackwaterError
from slackwater.ledger.schema import damage, damaged
from slackwater.planning.emissions import sleepers_kwh
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import Plan
from slackwater.planning.problem import RoundCause
from slackwater.units import energy_kwh, iso, utc

Cause = Literal["training", "idle", "server", "network", "evaluation", "startup"]
"""`network`: sending the model to a client and back. `evaluation`: a client that evaluates. `startup`: a client that
starts after being off."""
WAITING: tuple[Cause, ...] = ("idle", "startup")
"""Causes that are charged whether or not a client's round starts."""
Kind = Literal["charge", "correction", "settlement"]
IntensityKind = Literal["actual", "forecast", "estimated", "synthetic", "bound"]
"""`bound`: a stated upper bound, until the actual is known."""
Method = Literal["modelled", "measured"]


_OF_THE_DISK = ("full", "locked", "busy", "I/O", "readonly", "unable to open", "too big")
"""Words in SQLite's errors when an undamaged file cannot be written."""


class OverBudgetError(SlackwaterError):
    """The charges would exceed the budget; nothing was booked."""


class ChargedTwiceError(SlackwaterError):
    """A client's slot is in the ledger already; nothing was booked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One line of the ledger: what one client emitted in one slot, or the difference to an earlier line."""

    slot: int
    """Counted from 0."""
    slot_start: datetime
    client: str
    """Name; empty for the server."""
    zone: str
    kg: float
    """kg CO2e; of a correction or settlement, the difference to the booked charge."""
    energy_kwh: float | None
    """kWh; None where only the kg are known."""
    intensity_kg_per_kwh: float | None
    intensity_source: str
    intensity_kind: IntensityKind
    factor: str
    """Which emissions the intensity counts: direct or lifecycle."""
    cause: Cause = "training"
    kind: Kind = "charge"
    method: Method = "modelled"
    attempt: int = 0
    """A retry is charged again, under the next number."""
    planned: bool = True
    started_at: datetime | None = None
    ended_at: datetime | None = None
    corrects: int | None = None
    """Number of the line that a correction or settlement is about."""
    note: str = ""
    id: int | None = None
    """Number of the line, once booked."""


_COLUMNS = [field.name for field in fields(Charge) if field.name != "id"]
_TIMES = ("slot_start", "started_at", "ended_at")
_INSERT = (
    f"INSERT INTO charges (run_id, booked_at, {', '.join(_COLUMNS)}) VALUES (?, ?, {', '.join('?' * len(_COLUMNS))})"
)

_ABOUT = """
WITH RECURSIVE about(id) AS (
    SELECT id FROM charges WHERE corrects = ?1 UNION ALL SELECT c.id FROM charges c JOIN about ON c.corrects = about.id)
SELECT charges.* FROM charges JOIN about USING (id) ORDER BY id"""
CHAINED = """
WITH RECURSIVE up(id, at) AS (
    SELECT c.id, p.corrects FROM charges c JOIN charges p ON p.id = c.corrects WHERE p.kind <> 'charge'
    UNION ALL SELECT up.id, p.corrects FROM up JOIN charges p ON p.id = up.at WHERE p.kind <> 'charge'),
chained(id, root) AS (SELECT up.id, up.at FROM up JOIN charges p ON p.id = up.at WHERE p.kind = 'charge')"""
"""The few lines about an earlier correction, and the charge to which that belongs."""
ROOT = "coalesce(chained.root, charges.corrects, charges.id)"
"""The charge that a line belongs to, in a query on `charges LEFT JOIN chained USING (id)`."""
_UNSETTLED = """kind = 'charge' AND intensity_kind IN ('bound', 'forecast')
    AND NOT EXISTS (SELECT 1 FROM charges s WHERE s.corrects = c.id AND s.kind = 'settlement')"""


class Ledger:
    """The charges of one run: `charge` at the start, `correct` when the energy is known, `settle` when the intensity is.

    Corrections and settlements are differences, so the sum of all lines is the amount spent, with open charges at their bound.
    """

    def __init__(
        self, connection: sqlite3.Connection, *, run_id: str, budget_kg: float | None, path: Path | None
    ) -> None:
        self._db = connection
        self._run_id = run_id
        self._path = path
        self.budget_kg = budget_kg  # charges beyond it are rejected; None: no limit

    def charge(self, *charges: Charge, protected_kg: float = 0.0, spent: bool = False) -> None:
        """Book all of these or none; on return they are on disk, unless the caller's own transaction is open.

        The budget never rejects corrections, settlements and charges that are already `spent`.

        Raises:
            ChargedTwiceError: One of them is booked already.
            OverBudgetError: They exceed the budget less `protected_kg`.
        """
        now = time_source.now().isoformat(timespec="milliseconds")
        rows = [(self._run_id, now, *_to_row(charge)) for charge in charges]
        with transaction(self._db, self._path):
            if not spent and any(charge.kind == "charge" for charge in charges):
                self._check_budget(charges, protected_kg)
            last = self._db.execute("SELECT coalesce(max(id), 0) FROM charges").fetchone()[0]
            try:
                self._db.executemany(_INSERT, rows)
            except sqlite3.IntegrityError as error:
                raise self._refused(charges, last, error) from None

    def correct(
        self, charge: Charge, energy_kwh: float, *, method: Method = "modelled", started_at: datetime | None = None,
        ended_at: datetime | None = None, note: str = "", again: bool = False,
    ) -> bool:  # fmt: skip
        """Correct a charge to the energy that was used, once; return False, and book nothing, if that was done before.

        With `again`, an earlier correction is corrected in turn: the new line is about that line.
        """
        energy, _, last = self._now(charge)
        assert last.intensity_kg_per_kwh is not None
        difference = energy_kwh - energy
        return self._book_once(
            replace(
                charge,
                kind="correction",
                corrects=self._last_correction(charge) if again else charge.id,
                energy_kwh=difference,
                kg=difference * last.intensity_kg_per_kwh,
                intensity_kg_per_kwh=last.intensity_kg_per_kwh,
                intensity_source=last.intensity_source,
                intensity_kind=last.intensity_kind,
                method=method,
                started_at=started_at,
                ended_at=ended_at,
                note=note,
            )
        )

    def settle(self, charge: Charge, intensity_kg_per_kwh: float, *, source: str, kind: IntensityKind) -> bool:
        """Settle a charge at the actual intensity, once; return False, and book nothing, if that was done before."""
        energy, kg, _ = self._now(charge)
        return self._book_once(
            replace(
                charge,
                kind="settlement",
                corrects=charge.id,
                energy_kwh=0.0,
                kg=energy * intensity_kg_per_kwh - kg,
                intensity_kg_per_kwh=intensity_kg_per_kwh,
                intensity_source=source,
                intensity_kind=kind,
                note="",
            )
        )

    def unsettled(self, *, before: int | None = None) -> list[Charge]:
        """Return the charges at an upper bound or a forecast whose actual is not booked, by default of all slots.

        This is the only definition of unsettled; status, dashboard and report use it.
        """
        query = f"SELECT * FROM charges c WHERE {_UNSETTLED} AND (?1 IS NULL OR slot < ?1) ORDER BY id"
        with damage(self._path):
            return [_from_row(row) for row in self._db.execute(query, (before,))]

    def unsettled_kg(self) -> float:
        """Return the part of the sum that is not settled, kg."""
        query = f"""{CHAINED} SELECT kg FROM charges LEFT JOIN chained USING (id)
            WHERE {ROOT} IN (SELECT id FROM charges c WHERE {_UNSETTLED})"""
        return math.fsum(row[0] for row in self._db.execute(query))

    def spent_kg(self, *, through: int | None = None) -> float:
        """Return the sum of all lines, or of the slots through one, kg."""
        return math.fsum(
            row[0] for row in self._db.execute("SELECT kg FROM charges WHERE ?1 IS NULL OR slot <= ?1", (through,))
        )

    def last_slot(self) -> int:
        """Return the last slot with a charge; -1 where there is none."""
        return int(self._db.execute("SELECT coalesce(max(slot), -1) FROM charges WHERE kind = 'charge'").fetchone()[0])

    def charges(self, *, slot: int | None = None, client: str | None = None) -> Iterator[Charge]:
        """Yield lines in the order of booking, by default all."""
        asked = {name: value for name, value in (("slot", slot), ("client", client)) if value is not None}
        where = " AND ".join(f"{name} = ?" for name in asked) or "TRUE"
        query = f"SELECT * FROM charges WHERE {where} ORDER BY id"
        with damage(self._path):
            for row in self._db.execute(query, tuple(asked.values())):
                yield _from_row(row)

    def slot_kg(self, slot: int, cause: Cause | None = None) -> dict[str, float]:
        """Return client -> kg of its lines in a slot, by default of all causes."""
        query = "SELECT client, sum(kg) FROM charges WHERE slot = ?1 AND (?2 IS NULL OR cause = ?2) GROUP BY client"
        return {row[0]: float(row[1]) for row in self._db.execute(query, (slot, cause))}

    def round_kg(self, *, before: int) -> dict[tuple[int, str], float]:
        """Return (slot, client) -> kg of rounds in the slots before one: training, network and evaluation, corrected."""
        query = """
            SELECT slot, client, sum(kg) FROM charges
            WHERE cause IN ('training', 'network', 'evaluation') AND slot < ? GROUP BY slot, client"""
        return {(row[0], row[1]): float(row[2]) for row in self._db.execute(query, (before,))}

    def _now(self, charge: Charge) -> tuple[float, float, Charge]:
        """Return energy and kg of a charge with its corrections and settlement, and its last line, for the intensity."""
        if charge.id is None or charge.energy_kwh is None or charge.intensity_kg_per_kwh is None:
            raise SlackwaterError(
                "Only a line of the ledger with its energy and intensity can be corrected or settled."
            )
        energy, kg, last = charge.energy_kwh, charge.kg, charge
        for row in self._about(charge):
            last = _from_row(row)
            energy, kg = energy + float(row["energy_kwh"]), kg + float(row["kg"])
        return energy, kg, last

    def _last_correction(self, charge: Charge) -> int | None:
        """Return the number of the charge's last correction, or of the charge if there is none."""
        return max((int(row["id"]) for row in self._about(charge) if row["kind"] == "correction"), default=charge.id)

    def _about(self, charge: Charge) -> list[sqlite3.Row]:
        """Return the corrections and the settlement of a charge, and what corrects those, in the order of booking."""
        return self._db.execute(_ABOUT, (charge.id,)).fetchall()

    def _book_once(self, line: Charge) -> bool:
        with transaction(self._db, self._path):
            known = "SELECT 1 FROM charges WHERE corrects = ? AND kind = ?"
            if self._db.execute(known, (line.corrects, line.kind)).fetchone():
                return False
            self.charge(line)
        return True

    def _check_budget(self, charges: Iterable[Charge], protected_kg: float) -> None:
        if self.budget_kg is None:
            return
        new = math.fsum(charge.kg for charge in charges)
        spent = float(self._db.execute("SELECT coalesce(sum(kg), 0.0) FROM charges").fetchone()[0])
        # The same allowance for rounding as the planner's, so that no plan is rejected for the order of its sums.
        if not spent + new + protected_kg <= self.budget_kg * (1 + 2 * BUDGET_ROUNDING):
            first = next(iter(charges))
            kept = f"and the {protected_kg:.9g} kg kept for the fine-tuning window " if protected_kg else ""
            raise OverBudgetError(
                f"Slot {first.slot} ({iso(first.slot_start)}) would cost {new:.9g} kg, which with the {spent:.9g} kg "
                f"spent {kept}is over the budget of {self.budget_kg:.9g} kg. It is not booked and must not run. "
                "Re-plan the rest, or raise the budget."
            )

    def _refused(self, charges: Iterable[Charge], last: int, error: sqlite3.IntegrityError) -> SlackwaterError:
        if "UNIQUE" not in str(error):
            return SlackwaterError(
                f"The ledger rejects a line: {error}. If its file is damaged, restore the folder from a backup."
            )
        query = (
            "SELECT 1 FROM charges WHERE id <= ? AND kind = 'charge' AND (slot, client, cause, attempt) = (?, ?, ?, ?)"
        )
        keys = {(c.slot, c.client, c.cause, c.attempt): c for c in charges}
        twice = [c for key, c in keys.items() if self._db.execute(query, (last, *key)).fetchone()]
        first = twice[0] if twice else next(iter(charges))
        return ChargedTwiceError(
            f"Slot {first.slot} ({iso(first.slot_start)}) is charged already for {first.client or 'the server'} "
            f"({first.cause}). Nothing was booked; a retry needs the next attempt number."
        )


@contextmanager
def transaction(db: sqlite3.Connection, path: Path | None) -> Iterator[None]:
    """Write all or nothing, on disk at the end; inside another transaction, as part of it.

    Raises:
        SlackwaterError: The disk is full, or the file is damaged or in use.
    """
    if db.in_transaction:
        yield
        return
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk has rolled back already
                db.execute("ROLLBACK")
            raise
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        if not any(word in str(error) for word in _OF_THE_DISK):
            raise damaged(path, error) from error
        raise SlackwaterError(
            f"{path or 'The run'} cannot be written: {error}. Earlier work is safe. Free disk space, or close other "
            f"programs that use the file, then continue with: slackwater resume {path.parent if path else 'DIR'}"
        ) from None


def _to_row(charge: Charge) -> list[object]:
    if not math.isfinite(charge.kg):
        raise SlackwaterError(
            f"A charge of {charge.kg} kg for {charge.client!r} in slot {charge.slot} cannot be booked."
        )
    values: list[object] = []
    for name in _COLUMNS:
        value = getattr(charge, name)
        if isinstance(value, datetime):
            value = utc(value, name).isoformat()
        values.append(int(value) if isinstance(value, bool) else value)
    return values


def _from_row(row: sqlite3.Row) -> Charge:
    values = {name: row[name] for name in (*_COLUMNS, "id")}
    for name in _TIMES:
        values[name] = None if values[name] is None else utc(values[name], name)
    values["planned"] = bool(values["planned"])
    return Charge(**values)


_ESTIMATED: IntensityKind = "estimated"
GIVEN_KG = "kg per slot as given in the scenario"


class ModelledCharges:
    """Lines for the slots of a plan. Over all slots they sum to the plan's emissions, cause by cause."""

    def __init__(self, plan: Plan, *, note: str = "") -> None:
        problem = plan.problem
        self._problem, self._costs, self._matrix, self._note = problem, problem.costs, plan.matrix, note
        self._round_time = timedelta(minutes=problem.round_minutes or problem.traces.slot_minutes)
        self._slot = timedelta(minutes=problem.traces.slot_minutes)
        self._idle = [int(client) for client in np.flatnonzero(problem.costs.idle_kwh > 0)]
        self._asleep = np.flatnonzero(problem.costs.sleeps)
        self._up_kwh, self._start_kwh = sleepers_kwh(problem, plan.packed, plan.end, self._asleep)
        self._levels = plan.levels
        self._provenance = {known.zone: known for known in problem.traces.provenance}
        self.slots = problem.rounds + plan.end  # until the run is over

    @cached_property
    def _round_kwh(self) -> dict[RoundCause, NDArray[np.float64]]:
        """Return cause -> kWh of one round [client, level]."""
        costs = self._costs
        by_level = {"training": costs.level_training_kwh, "evaluation": costs.level_evaluation_kwh}
        return {cause: by_level.get(cause, kwh[:, None]) for cause, kwh in costs.round_kwh.items()}

    def of(self, first: int, last: int) -> list[Charge]:
        """Return lines of the slots first .. last: idle draw and starts, a round and the server where anyone trains."""
        lines: list[Charge] = []
        for slot in range(first, last + 1):
            lines += [self._client(slot, client, "idle", self._costs.idle_kwh[client]) for client in self._idle]
            for row, client in enumerate(map(int, self._asleep)):
                for waiting, kwh in zip(WAITING, (self._up_kwh, self._start_kwh), strict=True):
                    if kwh[row, slot] > 0:
                        lines.append(self._client(slot, client, waiting, kwh[row, slot]))
            for client in map(int, np.flatnonzero(self._matrix[:, slot])):
                level = 0 if self._levels is None else int(self._levels[client, slot])
                for cause, kwh in self._round_kwh.items():
                    energy = kwh[client, level if kwh.shape[1] > 1 else 0]
                    if cause == "training" or energy > 0:
                        lines.append(self._client(slot, client, cause, energy))
            if self._costs.server_kg is not None and self._matrix[:, slot].any():
                lines.append(self._server(slot, float(self._costs.server_kg[slot])))
        return lines

    def _client(self, slot: int, client: int, cause: Cause, kwh: float) -> Charge:
        costs, start, energy = self._costs, self._problem.slot_start(slot), float(kwh)
        intensity = float(costs.intensity[costs.row[client], slot])
        zone = str(self._problem.fleet.zone[client])
        source, kind = self._source(zone, slot)
        return Charge(
            slot=slot, slot_start=start, client=str(self._problem.fleet.names[client]), zone=zone, cause=cause,
            kg=energy * intensity, energy_kwh=energy, intensity_kg_per_kwh=intensity, intensity_source=source,
            intensity_kind=kind, factor=self._problem.traces.factor, started_at=start,
            ended_at=start + (self._slot if cause in WAITING else self._round_time),
            note=self._note if cause == "training" else "",
        )  # fmt: skip

    def _server(self, slot: int, kg: float) -> Charge:
        problem, start = self._problem, self._problem.slot_start(slot)
        server, energy, intensity = problem.server, None, None
        source, kind = GIVEN_KG, _ESTIMATED
        if server is not None:
            energy = float(energy_kwh(server.power_w, problem.slot_hours) * server.pue)
            intensity = float(problem.traces.window(start, 1).intensity[problem.traces.index(server.zone), 0])
            source, kind = self._source(server.zone, slot)
        return Charge(
            slot=slot, slot_start=start, client="", zone=server.zone if server is not None else "", cause="server",
            kg=kg, energy_kwh=energy, intensity_kg_per_kwh=intensity, intensity_source=source, intensity_kind=kind,
            factor=problem.traces.factor, started_at=start, ended_at=start + self._slot,
        )  # fmt: skip

    def _source(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return the source of the intensity, and whether it was measured, filled in, forecast or synthetic."""
        known = self._provenance.get(zone)
        if known is None:
            return "unknown", "estimated"
        start = self._problem.slot_start(slot)
        return known.origin(start, start + self._slot)
