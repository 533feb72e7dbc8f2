"""The statement: all contents of a report in plain types, computed once so that every form shows the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slackwater import time_source
from slackwater._version import __version__
from slackwater.charts import notebook
from slackwater.intensity.traces import Provenance
from slackwater.ledger.queries import Cell, Figures, Work
from slackwater.ledger.schema import KINDS, RunKind, task_name
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.planning.plan import Plan
from slackwater.report import standards
from slackwater.report.account import Account, ReportSettings, Snapshot, account, snapshot
from slackwater.report.comparison import (
    AnnualAverage,
    PlannedAndRealised,
    SameBudget,
    SameWork,
    annual_average,
    as_it_came,
    planned_and_realised,
    same_budget_without_slack,
    same_work_without_slack,
)
from slackwater.report.evidence import CheckedLine, DataSource, checked_line, data_sources
from slackwater.report.standards import Uncertainty, uncertainty
from slackwater.units import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about the run."""

    kind: RunKind
    id: str
    folder: str
    created_at: str
    status: str
    budget_kg: float | None
    slackwater: str
    """Version of Slackwater that ran it."""
    task: str
    aggregator: str
    seed: str
    score: float | None
    """On the global test set, by `metric`."""
    metric: MetricLabel
    metrics: Mapping[str, float]
    """The app's own numbers of the last round."""
    rounds: int
    client_rounds: int
    first_slot: str
    plan_ends_at: str
    slot_minutes: int
    clients: int
    zones: tuple[str, ...]
    plan_status: str
    plan_message: str
    solver: str
    alpha: str
    slack: int
    planned_rounds: int
    fine_tune: int
    factor: str
    synthetic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Who reports, when, and for which period."""

    organisation: str | None
    preparer: str | None
    prepared_on: str
    """Date of the report."""
    period_start: str | None
    """Start of the first slot with a charge; None if nothing was charged."""
    period_end: str | None
    """End of the last slot with a charge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Source and range of one zone's intensity over the run."""

    zone: str
    source: str
    synthetic: bool
    filled_hours: tuple[str, ...]
    low_kg_per_kwh: float
    mean_kg_per_kwh: float
    high_kg_per_kwh: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Statement:
    """A report's contents."""

    run: RunFacts
    preparation: Preparation
    figures: Figures
    """Also shown by `slackwater status` and the dashboard."""
    account: Account
    planned: PlannedAndRealised
    series: tuple[Series, ...]
    same_work: SameWork
    same_budget: SameBudget
    annual: AnnualAverage
    sci: standards.SCI
    bridge: tuple[standards.BridgeStep, ...]
    """Rows from the ledger's lines to the emissions that SCI divides."""
    sources: tuple[DataSource, ...]
    checked: CheckedLine | None
    scope2: standards.Scope2
    uncertainty: Uncertainty
    settings: ReportSettings
    plan: Plan
    work: tuple[Work, ...]

    def __repr__(self) -> str:
        """Show the run and its emissions on one line."""
        return f"Statement({self.run.kind} run {self.run.folder!r}, {self.run.status}: {self.account.total_kg:.4g} kg)"

    def _repr_html_(self) -> str:
        """Show a notebook the emissions, what they are, and their share by client."""
        total, run = self.account.total_kg, self.run
        budget = "" if run.budget_kg is None else f" of the budget of {run.budget_kg:.4g} kg"
        metric = run.metric
        reached = (
            "" if run.score is None else f"{metric.title} {metric.text(run.score)} on the test set{metric.direction}."
        )
        head = notebook.paragraph(
            f"{KINDS[run.kind].emitted} {total:.6g} kg CO2e{budget} in {run.rounds} rounds.",
            reached,
            KINDS[run.kind].sentence,
            notebook.synthetic_sentence(run.synthetic),
        )
        rows = [
            (
                group.key[0] or "server",
                f"{group.kg:.6g}",
                f"{group.energy_kwh:.4g}",
                f"{100 * group.kg / total:.1f}" if total else "",
            )
            for group in self.account.by_client.groups
        ]
        return head + notebook.table("client|>kg CO2e|>kWh|>% of all", rows)

    def to_frame(self) -> Any:
        """Return kg, kWh and lines of the ledger by client, as a data frame of pandas, else of polars."""
        groups = self.account.by_client.groups
        return notebook.as_frame(
            {
                "client": [group.key[0] or "server" for group in groups],
                "kg": [group.kg for group in groups],
                "kwh": [group.energy_kwh for group in groups],
                "lines": [group.lines for group in groups],
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the statement in plain types for JSON."""
        sections = (
            "run", "preparation", "figures", "planned", "same_work", "same_budget", "annual", "uncertainty", "settings",
        )  # fmt: skip
        found: dict[str, Any] = {"kind": self.run.kind, "about": KINDS[self.run.kind].sentence}
        found |= {name: asdict(getattr(self, name)) for name in sections}
        for name, score in (("run", self.run.score), ("same_budget", self.same_budget.score)):
            found[name] |= self.run.metric.scored(score)
        found["figures"] = self.figures.to_dict()
        found["settings"]["prepared_on"] = self.preparation.prepared_on
        found["slackwater"] = __version__
        found["scope2"] = asdict(self.scope2) | {
            "reported_kg": self.scope2.reported_kg,
            "reported_factor": self.scope2.reported_factor,
        }
        found["bridge"] = [asdict(step) for step in self.bridge]
        found["sources"] = [asdict(one) for one in self.sources]
        found["checked"] = None if self.checked is None else asdict(self.checked)
        found["account"] = asdict(self.account) | {
            name: [dict(zip(part.by, group.key, strict=True)) | _amounts(group) for group in part.groups]
            for name, part in self.breakdowns()
        }
        found["sci"] = asdict(self.sci) | {"score_g": self.sci.score_g}
        found["series"] = [asdict(one) for one in self.series]
        return found

    def breakdowns(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the groups of every breakdown."""
        for by in ("client", "zone", "day", "source", "cause", "kind", "method"):
            yield f"by_{by}", getattr(self.account, f"by_{by}")


def make_statement(folder: str | Path, settings: ReportSettings | None = None) -> Statement:
    """Read a run and return its statement."""
    with snapshot(Path(folder)) as run:
        return _statement(run, settings or ReportSettings())


def _statement(run: Snapshot, settings: ReportSettings) -> Statement:
    cells, work = run.cells(), tuple(run.work())
    found, came = account(run, cells), as_it_came(run.plan, run.folder)
    rounds, client_rounds = run.rounds_done()
    reached = run.score()
    accuracy = reached if run.metric() == ACCURACY else None
    in_force = run.in_force(run.plan, done=run.status == "done", spent_kg=run.spent_kg)
    figures = run.figures(in_force)
    units = standards.functional_units(settings, rounds=rounds, client_rounds=client_rounds, accuracy=accuracy)
    annual = annual_average(run.plan, _energy_by_zone(cells), found.kg_without_energy, settings.data)
    score = standards.sci(run.plan, work, found.total_kg, found.energy_kwh, units, settings)
    return Statement(
        run=_facts(run, rounds, client_rounds, reached),
        preparation=_preparation(run, settings),
        figures=figures,
        account=found,
        planned=planned_and_realised(run, in_force),
        series=tuple(_series(run.plan, one) for one in _provenance(run.plan)),
        same_work=same_work_without_slack(came, work, recorded=came is not run.plan, simulated=run.kind == "simulated"),
        same_budget=same_budget_without_slack(run, came),
        annual=annual,
        sci=score,
        bridge=standards.bridge(found, score, settings),
        sources=data_sources(run),
        checked=checked_line(run),
        scope2=standards.scope2(
            run.plan, found.total_kg, found.kg_without_energy, run.energy_by_zone_slot(), annual, settings.data
        ),
        uncertainty=uncertainty(found, cells, figures.unsettled_kg, settings),
        settings=settings,
        plan=run.plan,
        work=work,
    )


def _preparation(run: Snapshot, settings: ReportSettings) -> Preparation:
    problem, by_scenario = run.plan.problem, run.plan.problem.reported_by
    lines, first, last, _ = run.extent()
    return Preparation(
        organisation=settings.organisation or by_scenario.get("organisation"),
        preparer=settings.preparer or by_scenario.get("preparer"),
        prepared_on=(settings.prepared_on or time_source.now().date()).isoformat(),
        period_start=iso(problem.slot_start(first)) if lines else None,
        period_end=iso(problem.slot_start(last + 1)) if lines else None,
    )


def _energy_by_zone(cells: list[Cell]) -> dict[str, float]:
    zones: dict[str, list[float]] = {}
    for cell in cells:
        zones.setdefault(cell.zone, []).append(cell.energy_kwh)
    return {zone: math.fsum(part) for zone, part in zones.items()}


def _facts(run: Snapshot, rounds: int, client_rounds: int, score: float | None) -> RunFacts:
    plan, problem = run.plan, run.plan.problem
    return RunFacts(
        kind=run.kind,
        id=run.id,
        folder=str(run.folder),
        created_at=run.created_at,
        status=run.status,
        budget_kg=run.budget_kg,
        slackwater=str(run.versions.get("slackwater", "unknown")),
        task=task_name(run.task),
        aggregator=str(run.settings.get("aggregator", "unknown")),
        seed=str(run.settings.get("seed", "unknown")),
        score=score,
        metric=run.metric(),
        metrics=run.metrics(),
        rounds=rounds,
        client_rounds=client_rounds,
        first_slot=iso(problem.first_slot),
        plan_ends_at=iso(plan.ends_at),
        slot_minutes=problem.traces.slot_minutes,
        clients=len(problem.fleet),
        zones=tuple(dict.fromkeys(str(zone) for zone in problem.fleet.zone)),
        plan_status=plan.status,
        plan_message=plan.message,
        solver=plan.solver,
        alpha=str(problem.alpha),
        slack=problem.horizon - problem.rounds,
        planned_rounds=problem.rounds,
        fine_tune=problem.fine_tune,
        factor=problem.traces.factor,
        synthetic=problem.traces.synthetic,
    )


def _provenance(plan: Plan) -> list[Provenance]:
    """Return the provenance of every zone of the plan, with source `unknown` where there is none."""
    known = {one.zone: one for one in plan.problem.traces.provenance}
    return [known.get(zone, Provenance(zone=zone, source="unknown")) for zone in plan.problem.traces.zones]


def _series(plan: Plan, known: Provenance) -> Series:
    traces = plan.problem.traces
    row = traces.intensity[traces.index(known.zone)]
    return Series(
        zone=known.zone,
        source=known.source,
        synthetic=known.synthetic,
        filled_hours=known.filled_hours,
        low_kg_per_kwh=float(row.min()),
        mean_kg_per_kwh=float(row.mean()),
        high_kg_per_kwh=float(row.max()),
    )


def _amounts(group: Any) -> dict[str, Any]:
    return {"kg": group.kg, "energy_kwh": group.energy_kwh, "lines": group.lines}
