"""The status of a run, read from its folder alone, while it runs and after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from slackwater.errors import SlackwaterError
from slackwater.ledger.queries import Figures
from slackwater.ledger.run import Run, is_written
from slackwater.ledger.schema import KINDS, RunKind, damage
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.live.folder import PLAN, is_live, load_settings
from slackwater.planning.plan import Plan
from slackwater.planning.storage import plan_from_dict
from slackwater.units import iso, utc

Stands = Literal["prepared", "running", "interrupted", "stopped", "diverged", "failed", "done"]
"""`interrupted`: its state is running, but it has no process."""
_EVENTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A planned round."""

    slot: int
    at: datetime  # wall clock, UTC
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """A run at one moment."""

    folder: str
    kind: RunKind
    stands: Stands
    synthetic: bool
    """Whether its intensity is synthetic (typical profiles)."""
    budget_kg: float
    spent_kg: float = 0.0
    """Sum of the ledger."""
    held_kg: float = 0.0
    """The part of it at an upper bound, until the actual is known."""
    left_kg: float
    figures: Figures | None = None
    """The figures of dashboard and report; None before the run starts."""
    rounds: int = 0
    """Rounds done."""
    score: float | None = None
    """Of the last evaluation, by `metric`."""
    metric: MetricLabel = ACCURACY
    training: tuple[str, ...] = ()
    """Clients that are training."""
    training_slot: int | None = None
    coming: tuple[Coming, ...] = ()
    """The next rounds, as planned now."""
    clients: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Client -> outcome -> how often."""
    replans: int = 0
    events: tuple[tuple[str, str, str], ...] = ()
    """The last warnings and errors: time, level, message; the newest first."""

    @property
    def accuracy(self) -> float | None:
        """Return the score if it is an accuracy, else None."""
        return self.metric.scored(self.score)["accuracy"]

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON holds it."""
        return (
            asdict(self)
            | self.metric.scored(self.score)
            | {
                "figures": None if self.figures is None else self.figures.to_dict(),
                "about": KINDS[self.kind].sentence,
                "coming": [asdict(one) | {"at": iso(one.at)} for one in self.coming],
                "events": [{"at": at, "level": level, "message": message} for at, level, message in self.events],
            }
        )


def read_status(folder: str | Path) -> LiveStatus:
    """Return the status of a run, read-only; the run need not be running."""
    where = Path(folder)
    if not Run.begun(where):
        return _prepared(where)
    with Run.open(where, read_only=True) as run, damage(run.path), run.one_moment():
        ledger, journal = run.ledger, run.journal
        spent, budget = ledger.spent_kg(), ledger.budget_kg or 0.0
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        figures = run.queries.figures(run.queries.in_force(plan, done=run.status == "done", spent_kg=spent))
        outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one in journal.attempts():
            outcomes[one.client][one.outcome] += 1
        rounds = list(run.rounds())
        open_slot = journal.get("open")
        stands: Stands = run.status
        running = stands == "running" and is_written(where) is not False
        coming = [one for one in journal.get("coming", []) if open_slot is None or one["slot"] > open_slot]
        events = [(at, level, message) for at, level, _, message in run.events() if level != "info"]
        return LiveStatus(
            folder=str(where),
            kind=run.kind,
            stands="interrupted" if stands == "running" and not running else stands,
            synthetic=bool(run.plan.get("synthetic")),
            budget_kg=budget,
            spent_kg=spent,
            held_kg=figures.unsettled_kg,
            left_kg=budget - spent,
            figures=figures,
            rounds=len(rounds),
            score=next((done.accuracy for done in reversed(rounds) if done.accuracy is not None), None),
            metric=run.metric,
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
    """Return the status of a folder whose run has not started."""
    if not is_live(where):
        raise SlackwaterError(
            f"There is no live run in {where}. Start one with: slackwater run scenario.toml --app DIR --out {where}"
        )
    plan = Plan.load(where / PLAN)
    budget = plan.problem.budget_kg
    return LiveStatus(
        folder=str(where), kind=load_settings(where).kind, stands="prepared", synthetic=plan.problem.traces.synthetic,
        budget_kg=budget, left_kg=budget,
    )  # fmt: skip
