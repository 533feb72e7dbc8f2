"""Where a run stands, read from its folder alone: from anywhere, while it runs and after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run, is_written
from slackwater.live.folder import PLAN, is_live
from slackwater.units import iso, utc

Stands = Literal["prepared", "running", "interrupted", "stopped", "diverged", "failed", "done"]
"""`interrupted`: it says that it runs, but no process does."""
_EVENTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A round that is planned."""

    slot: int
    at: datetime
    """Wall clock, UTC."""
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """A run at one moment."""

    folder: str
    stands: Stands
    synthetic: bool
    """Whether its intensity is typical profiles, not measured."""
    budget_kg: float
    spent_kg: float
    """All that the ledger holds."""
    held_kg: float
    """The part of it that is at an upper bound until its actual is known."""
    left_kg: float
    rounds: int
    """Done."""
    accuracy: float | None
    """The last that was found."""
    training: tuple[str, ...]
    """Clients that are at it now."""
    training_slot: int | None
    coming: tuple[Coming, ...]
    """The next rounds, as planned now."""
    clients: Mapping[str, Mapping[str, int]]
    """Client -> outcome -> how often."""
    replans: int
    events: tuple[tuple[str, str, str], ...]
    """The last warnings and errors: time, level, message; the newest first."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {
            "coming": [asdict(one) | {"at": iso(one.at)} for one in self.coming],
            "events": [{"at": at, "level": level, "message": message} for at, level, message in self.events],
        }


def read_status(folder: str | Path) -> LiveStatus:
    """Read-only; the run need not run."""
    where = Path(folder)
    if not Run.begun(where):
        return _prepared(where)
    with Run.open(where, read_only=True) as run:
        ledger, journal = run.ledger, run.journal
        spent, budget = ledger.spent_kg(), ledger.budget_kg or 0.0
        outcomes: dict[str, Counter[str]] = {}
        for one in journal.attempts():
            outcomes.setdefault(one.client, Counter())[one.outcome] += 1
        rounds = list(run.rounds())
        open_slot = journal.get("open")
        stands: Stands = run.status
        running = stands == "running" and is_written(where) is not False
        coming = [one for one in journal.get("coming", []) if open_slot is None or one["slot"] > open_slot]
        events = [(at, level, message) for at, level, _, message in run.events() if level != "info"]
        return LiveStatus(
            folder=str(where),
            stands="interrupted" if stands == "running" and not running else stands,
            synthetic=bool(run.plan.get("synthetic")),
            budget_kg=budget,
            spent_kg=spent,
            held_kg=ledger.unsettled_kg(),
            left_kg=budget - spent,
            rounds=len(rounds),
            accuracy=next((done.accuracy for done in reversed(rounds) if done.accuracy is not None), None),
            training=tuple(one.client for one in journal.attempts(slot=open_slot, outcome="running"))
            if open_slot is not None and running
            else (),
            training_slot=open_slot if running else None,
            coming=tuple(Coming(slot=one["slot"], at=utc(one["at"]), clients=tuple(one["clients"])) for one in coming),
            clients={name: dict(found) for name, found in sorted(outcomes.items())},
            replans=len(journal.replans()),
            events=tuple(events[: -_EVENTS - 1 : -1]),
        )


def _prepared(where: Path) -> LiveStatus:
    """A folder whose run has not begun."""
    if not is_live(where):
        raise SlackwaterError(
            f"There is no live run in {where}. Start one with: slackwater run scenario.toml --app DIR --out {where}"
        )
    plan = json.loads((where / PLAN).read_text(encoding="utf-8"))
    budget = float(plan["budget_kg"])
    return LiveStatus(
        folder=str(where),
        stands="prepared",
        synthetic=bool(plan["synthetic"]),
        budget_kg=budget,
        spent_kg=0.0,
        held_kg=0.0,
        left_kg=budget,
        rounds=0,
        accuracy=None,
        training=(),
        training_slot=None,
        coming=(),
        clients={},
        replans=0,
        events=(),
    )
