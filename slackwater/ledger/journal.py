"""Records of a live run beside its ledger: attempts, re-plannings, expected emissions, and its own state."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slackwater import time_source
from slackwater.errors import SlackwaterError
from slackwater.ledger.ledger import Method, transaction
from slackwater.ledger.schema import damage
from slackwater.units import utc

Outcome = Literal["running", "done", "failed", "late", "lost", "rejected", "offline", "refused"]
"""`failed`: the client reported it. `late`: no answer in time. `lost`: the node, or the server, was gone. `rejected`: its
update was unusable. `offline`: it could not be reached when the slot began. `refused`: the budget had no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One client that was to train in a slot."""

    slot: int
    client: str
    attempt: int = 0
    sent_at: datetime | None = None  # None if nothing was sent, and so nothing charged
    ended_at: datetime | None = None
    outcome: Outcome = "running"
    seconds: float | None = None  # of local training
    energy_kwh: float | None = None  # charged
    method: Method | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """One re-planning of the rest of a run."""

    slot: int
    reason: str
    changes: Mapping[str, tuple[int, int]]
    """Client -> slots left before the window, before and after; only clients that changed."""
    reserve_kg: float
    planned_kg: float
    at: datetime | None = None  # wall clock; None: the time of recording


_KNOWN = ("num-examples", "train-loss", "train_loss", "loss")  # a round has them itself
_METRICS = "metrics/"  # of names in `state`, before the slot


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReport:
    """A client's report of more energy than is possible; the ledger has the bound until a person confirms the report."""

    slot: int
    client: str
    reported_kwh: float  # as the client reported it
    bound_kwh: float  # charged instead: with PUE, without idle draw
    pue: float
    idle_kwh: float  # idle draw in the time of the report, which has its own line
    training_share: float  # share of its energy that is charged as training
    evaluation_share: float  # the same as evaluation; the two may add up to more, where an evaluation was not timed
    confirmed_kwh: float | None = None  # as a person confirmed it, in the client's terms; None: quarantined
    confirmed_at: str | None = None

    def parts_kwh(self, reported_kwh: float) -> tuple[float, float]:
        """Return the energy of the ledger's training and evaluation lines for a reported energy."""
        energy = charged_kwh(reported_kwh, self.pue, self.idle_kwh)
        return energy * self.training_share, energy * self.evaluation_share


def charged_kwh(reported_kwh: float, pue: float, idle_kwh: float) -> float:
    """Return the energy to charge for what a client measured: with PUE, and without idle draw, which has its own line."""
    return max(0.0, reported_kwh * pue - idle_kwh)


_ATTEMPT = [field.name for field in fields(Attempt)]
_QUARANTINE = "quarantine"


class Journal:
    """The tables `attempts`, `replans`, `state` and `planned` of a run's file; older files have none."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._db, self._path = connection, path
        self._version = int(connection.execute("PRAGMA user_version").fetchone()[0])

    def note(self, *attempts: Attempt) -> None:
        """Record attempts; replace those recorded before."""
        rows = [
            [v.isoformat() if isinstance(v := getattr(one, name), datetime) else v for name in _ATTEMPT]
            for one in attempts
        ]
        marks = ", ".join("?" * len(_ATTEMPT))
        with transaction(self._db, self._path):
            self._db.executemany(f"INSERT OR REPLACE INTO attempts ({', '.join(_ATTEMPT)}) VALUES ({marks})", rows)

    def attempts(self, *, slot: int | None = None, outcome: Outcome | None = None) -> list[Attempt]:
        """Return attempts in the order of slots and clients, by default all."""
        query = (
            "SELECT * FROM attempts WHERE (?1 IS NULL OR slot = ?1) AND (?2 IS NULL OR outcome = ?2) ORDER BY 1, 2, 3"
        )
        with damage(self._path):
            return [
                Attempt(**dict(row) | {name: row[name] and utc(row[name], name) for name in ("sent_at", "ended_at")})
                for row in self._rows(query, (slot, outcome), since=2)
            ]

    def note_replan(self, replan: Replan) -> None:
        """Record a re-planning."""
        at = (replan.at or time_source.now()).isoformat(timespec="milliseconds")
        row = (replan.slot, at, replan.reason, json.dumps(replan.changes), replan.reserve_kg, replan.planned_kg)
        with transaction(self._db, self._path):
            self._db.execute(
                "INSERT INTO replans (slot, at, reason, changes, reserve_kg, planned_kg) VALUES (?, ?, ?, ?, ?, ?)", row
            )

    def replans(self) -> list[Replan]:
        """Return all re-plannings, in order."""
        with damage(self._path):
            return [
                Replan(
                    slot=row["slot"],
                    at=utc(row["at"]),
                    reason=row["reason"],
                    changes={name: (then, now) for name, (then, now) in json.loads(row["changes"]).items()},
                    reserve_kg=row["reserve_kg"],
                    planned_kg=row["planned_kg"],
                )
                for row in self._rows("SELECT * FROM replans ORDER BY id", (), since=2)
            ]

    def note_planned(self, slot: int, expected_kg: Mapping[tuple[str, str], float]) -> None:
        """Record the emissions that the plan in force expects in a slot, by client and cause, kg."""
        rows = [(slot, client, cause, kg) for (client, cause), kg in expected_kg.items()]
        with transaction(self._db, self._path):
            self._db.executemany("INSERT OR REPLACE INTO planned VALUES (?, ?, ?, ?)", rows)

    def planned(self) -> dict[int, dict[tuple[str, str], float]]:
        """Return slot -> (client, cause) -> kg by the plan in force when the slot was decided; empty for a training."""
        found: dict[int, dict[tuple[str, str], float]] = {}
        with damage(self._path):
            for row in self._rows("SELECT * FROM planned ORDER BY slot, client, cause", (), since=3):
                found.setdefault(row["slot"], {})[row["client"], row["cause"]] = row["kg"]
        return found

    def note_metrics(self, slot: int, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Record numbers of a round by client ('' for the model of the round); others of that round stay."""
        found = self.get(f"{_METRICS}{slot}", {})
        merged = {who: {**found.get(who, {}), **numbers} for who, numbers in metrics.items() if numbers}
        if merged:
            self.put(**{f"{_METRICS}{slot}": {**found, **merged}})

    def metrics(self) -> dict[int, dict[str, dict[str, float]]]:
        """Return slot -> client ('' for the model of the round) -> its numbers by name."""
        with damage(self._path):
            rows = self._rows("SELECT name, value FROM state WHERE name LIKE ?", (f"{_METRICS}%",), since=2)
            return {int(row["name"].removeprefix(_METRICS)): json.loads(row["value"]) for row in rows}

    def round_metrics(self, slot: int) -> dict[str, float]:
        """Return a round's own numbers by name: those of its model, and the mean over its clients of others."""
        by_client = dict(self.get(f"{_METRICS}{slot}", {}))
        own = dict(by_client.pop("", {}))
        for name in dict.fromkeys(name for numbers in by_client.values() for name in numbers):
            if name not in own and name not in _KNOWN:
                values = [numbers[name] for numbers in by_client.values() if name in numbers]
                own[name] = math.fsum(values) / len(values)
        return {name: value for name, value in own.items() if name != "clients"}

    def quarantine(self, report: EnergyReport) -> None:
        """Record a report that needs a person's confirmation; replace the one of this client and slot."""
        with transaction(self._db, self._path):
            others = [one for one in self.reports() if (one.slot, one.client) != (report.slot, report.client)]
            self.put(**{_QUARANTINE: [asdict(one) for one in (*others, report)]})

    def reports(self) -> list[EnergyReport]:
        """Return all reports of more energy than is possible, confirmed or not, in the order of slots and clients."""
        with damage(self._path):
            found = [EnergyReport(**one) for one in self.get(_QUARANTINE, [])]
        return sorted(found, key=lambda one: (one.slot, one.client))

    def quarantined(self) -> list[EnergyReport]:
        """Return the reports that no person has confirmed yet."""
        return [one for one in self.reports() if one.confirmed_kwh is None]

    def put(self, **values: Any) -> None:
        """Store JSON values by name."""
        rows = [(name, json.dumps(value, allow_nan=False)) for name, value in values.items()]
        with transaction(self._db, self._path):
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or `default` if there is none."""
        with damage(self._path):
            for row in self._rows("SELECT value FROM state WHERE name = ?", (name,), since=2):
                try:
                    return json.loads(row["value"])
                except (ValueError, RecursionError):
                    raise SlackwaterError(
                        f"{self._path} is damaged: its value {name!r} is not JSON. Restore it from a backup."
                    ) from None
        return default

    def _rows(self, query: str, values: tuple[object, ...], *, since: int) -> list[sqlite3.Row]:
        """Return rows of a table that exists since a version; older files have none."""
        return self._db.execute(query, values).fetchall() if self._version >= since else []
