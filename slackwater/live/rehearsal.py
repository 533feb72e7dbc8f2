"""A live run on a past period, in minutes: with the forecasts of that time, compared with perfect foresight.

Re-planning, upper bounds, settlement, ledger and report are those of a live run. The clock does not wait, and the run
sees only the intensity that was known at each moment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.errors import DataError, InfeasibleError
from slackwater.intensity.forecast.archive import ForecastArchive
from slackwater.intensity.forecast.base import SameHourMean
from slackwater.intensity.traces import Traces, joined
from slackwater.ledger.run import Run
from slackwater.ledger.schema import damage
from slackwater.ledger.score import MetricLabel
from slackwater.live.folder import LiveSettings, load_actuals, prepare
from slackwater.planning.goals import with_room
from slackwater.planning.plan import Plan
from slackwater.planning.planner import optimise
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Planner, Problem
from slackwater.planning.storage import plan_from_dict
from slackwater.replanning.backtest import BLEND, backtest_forecaster, objective_and_share, utility_of
from slackwater.replanning.remaining import NoForecastError
from slackwater.units import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The best plan that knows all intensity in advance."""

    emissions_kg: float
    rounds: int
    client_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal."""

    folder: str
    start: datetime
    end: datetime  # of the last slot with a round
    forecast: str
    budget_kg: float
    emissions_kg: float
    unsettled_kg: float
    planned_kg: float  # predicted by the first plan
    rounds: int
    client_slots: int  # with a used update
    lost_client_slots: int  # charged, but not used
    score: float | None  # of the last evaluation, by `metric`
    metric: MetricLabel
    replans: int
    reserve_kg: float  # reserve of the first plan
    largest_reserve_kg: float
    share: float | None  # of the objective of perfect foresight; None if that has no plan
    foresight: Foresight | None

    @property
    def accuracy(self) -> float | None:
        """Return the score if it is an accuracy, else None."""
        return self.metric.scored(self.score)["accuracy"]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON holds it."""
        return asdict(self) | self.metric.scored(self.score) | {"start": iso(self.start), "end": iso(self.end)}


def prepare_rehearsal(
    folder: str | Path, problem: Problem, actuals: Traces, settings: LiveSettings, *,
    archive: ForecastArchive | None = None, planner: Planner | None = None,
) -> Plan:  # fmt: skip
    """Create the folder of a rehearsal, with the plan that would have been made then, and return that plan.

    Args:
        folder: The new run folder.
        problem: The run, with any traces that cover it; they are not used.
        actuals: Actual intensity, from some weeks before the run to its end or later.
        settings: Settings of a playback; `forecast` names the forecaster. Default: the blend.
        archive: Forecasts that a provider issued, for `blend` and `file`.
        planner: "auto" or "paper", as for `plan`. Default: the problem's.
    """
    known_until = problem.slot_start(-settings.lag_slots)
    step = timedelta(minutes=actuals.slot_minutes)
    if not actuals.start < known_until < actuals.end:
        raise DataError(
            f"The actuals cover {iso(actuals.start)} to {iso(actuals.end)}; the run from {iso(problem.first_slot)} needs "
            "some weeks of them before it. Choose another --start."
        )
    known = actuals.window(actuals.start, (known_until - actuals.start) // step)
    slots = problem.horizon + settings.lag_slots
    chosen = backtest_forecaster(settings.forecast or BLEND, actuals, archive, lag=settings.lag_slots)
    try:
        expected = chosen.forecast(known, slots)
    except NoForecastError:
        expected = SameHourMean().forecast(known, slots)
    traces = joined(known, expected.traces()).window(problem.first_slot, problem.horizon)
    plan = with_room(make_plan(problem.with_settings(traces=traces), planner=planner), problem, settings.bound)
    prepare(folder, plan, settings, actuals=actuals, archive=archive)
    return plan


def outcome(folder: str | Path) -> Rehearsal:
    """Return the result of a rehearsal, read from its folder."""
    where = Path(folder)
    with Run.open(where, read_only=True) as run, run.one_moment(), damage(run.path):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        attempts, replans, rounds = run.journal.attempts(), run.journal.replans(), list(run.rounds())
        emissions_kg, unsettled_kg = run.ledger.spent_kg(), run.ledger.unsettled_kg()
        metric = run.metric
        forecast = str(run.settings.get("forecast") or BLEND)
        problem = plan.problem
        row = {str(name): client for client, name in enumerate(problem.fleet.names)}
        trained = np.zeros((len(row), problem.horizon), dtype=bool)
        levels = None if problem.costs.level_work.shape[1] == 1 else np.zeros(trained.shape, dtype=np.uint8)
        for done in rounds:
            trained[[row[name] for name in done.participants], done.slot] = True
            if levels is not None:
                for name, work in done.work.items():
                    levels[row[name], done.slot] = np.abs(problem.costs.level_work[row[name]] - work).argmin()
    actuals = load_actuals(where)
    came = problem.with_settings(traces=actuals.window(problem.first_slot, problem.horizon))
    foresight: Foresight | None = None
    share: float | None = None
    try:
        best = make_plan(came) if came.goal == "work" else optimise(came)
        share = objective_and_share(came, utility_of(came, trained, levels), best)[1]
        foresight = Foresight(
            emissions_kg=best.emissions_kg,
            rounds=int(np.count_nonzero(best.matrix.any(axis=0))),
            client_slots=int(best.slots_per_client.sum()),
        )
    except InfeasibleError:
        pass
    last = max((done.slot for done in rounds), default=0)
    return Rehearsal(
        folder=str(where), start=problem.first_slot, end=problem.slot_start(last + 1), forecast=forecast,
        budget_kg=problem.budget_kg, emissions_kg=emissions_kg, unsettled_kg=unsettled_kg,
        planned_kg=replans[0].planned_kg if replans else plan.emissions_kg, rounds=len(rounds),
        client_slots=int(trained.sum()),
        lost_client_slots=sum(one.sent_at is not None and one.outcome != "done" for one in attempts),
        score=next((done.accuracy for done in reversed(rounds) if done.accuracy is not None), None), metric=metric,
        replans=len(replans), reserve_kg=replans[0].reserve_kg if replans else 0.0,
        largest_reserve_kg=max((one.reserve_kg for one in replans), default=0.0), share=share, foresight=foresight,
    )  # fmt: skip
