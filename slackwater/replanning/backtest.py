"""Back-tests: past runs decided with the forecasts of their time, settled with actuals, against perfect foresight."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive
from slackwater.intensity.forecast.base import Forecast, Forecaster
from slackwater.intensity.forecast.blend import Blend
from slackwater.intensity.forecast.forecasters import NEED_TRUTH, Oracle, forecaster, forecaster_names
from slackwater.intensity.traces import Traces
from slackwater.planning.emissions import emissions, utilities_of
from slackwater.planning.exact import BUDGET_ROUNDING
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem, utilities
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.remaining import NoForecastError
from slackwater.replanning.reserve import PastPlans, past_plans
from slackwater.replanning.run_state import Settings, State, round_kwh, sleeping_kwh
from slackwater.units import iso


class Reversed:
    """A forecast that mirrors the truth: the cleanest hour of a zone is called its dirtiest."""

    name = "reversed"

    def __init__(self, truth: Traces) -> None:
        self.oracle = Oracle(truth)

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the truth mirrored between the least and the largest value of the coming slots."""
        true = self.oracle.forecast(history, slots)
        mirrored = true.mean.max(axis=1, keepdims=True) + true.mean.min(axis=1, keepdims=True) - true.mean
        return _sure_of(true, mirrored, self.name)


class Scaled:
    """A forecast that multiplies the truth by a factor, such as 2 or 0.5."""

    def __init__(self, truth: Traces, *, factor: float, name: str) -> None:
        self.oracle = Oracle(truth)
        self.factor = factor
        self.name = name

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the truth times the factor."""
        true = self.oracle.forecast(history, slots)
        return _sure_of(true, self.factor * true.mean, self.name)


class Constant:
    """A forecast of one value for all zones and hours, so that no slot looks better."""

    name = "constant"

    def __init__(self, truth: Traces) -> None:
        self.oracle = Oracle(truth)

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the mean of the last known slot over the zones."""
        true = self.oracle.forecast(history, slots)
        return _sure_of(true, np.full_like(true.mean, history.intensity[:, -1].mean()), self.name)


class Missing:
    """A forecast that never arrives."""

    name = "missing"

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Raise `NoForecastError`."""
        raise NoForecastError(f"There is no forecast of the {slots} slots after {history.end:%Y-%m-%d %H:%M}Z.")


ADVERSARIAL = ("reversed", "doubled", "halved", "constant", "missing")


def adversary(name: str, truth: Traces) -> Reversed | Scaled | Constant | Missing:
    """Return a forecaster that is wrong in the way its name says."""
    if name == "reversed":
        return Reversed(truth)
    if name == "doubled":
        return Scaled(truth, factor=2.0, name=name)
    if name == "halved":
        return Scaled(truth, factor=0.5, name=name)
    if name == "constant":
        return Constant(truth)
    if name == "missing":
        return Missing()
    raise ScenarioError(f"There is no adversarial forecast {name!r}. Choose one of {', '.join(ADVERSARIAL)}.")


def _sure_of(true: Forecast, mean: np.ndarray[tuple[int, int], np.dtype[np.float64]], name: str) -> Forecast:
    """Return wrong values with an interval of zero width: wrong and certain."""
    return replace(true, mean=mean, low=mean, high=mean, source=name)


FILE, BLEND = "file", "blend"
_HOUR_S = 3600


def backtest_forecaster(
    name: str, truth: Traces, archive: ForecastArchive | None = None, *, lag: int = 0
) -> Forecaster:
    """Return the forecaster of a name: `file` repeats the provider's forecasts, `blend` corrects and continues them.

    `lag` is the delay of actuals in slots; the blend knows what the provider issued in them.
    """
    if name in ADVERSARIAL:
        return adversary(name, truth)
    if name == FILE:
        if archive is None:
            raise ScenarioError(f"The forecast {name!r} needs the provider's forecasts: give --forecasts FOLDER.")
        return archive
    if name == BLEND:
        return Blend(archive, lag_hours=lag * truth.slot_minutes // 60)
    if name not in forecaster_names():
        known = ", ".join([*forecaster_names(), FILE, *ADVERSARIAL])
        raise ScenarioError(f"There is no forecast {name!r}. Choose one of {known}.")
    return forecaster(name, truth=truth) if name in NEED_TRUTH else forecaster(name)


def first_issue(forecaster: Forecaster) -> datetime | None:
    """Return when a provider had issued a forecast for each of its zones; None for forecasters without a provider."""
    archive = forecaster if isinstance(forecaster, ForecastArchive) else getattr(forecaster, "archive", None)
    if not isinstance(archive, ForecastArchive):
        return None
    first = [float(one.issued[0]) for one in archive.issues.values() if len(one)]
    return datetime.fromtimestamp(max(first) * _HOUR_S, UTC) if first else None


def archive_actuals(archive: ForecastArchive, zones: Sequence[str]) -> Traces:
    """Return the actuals of an archive over the time that all zones share."""
    rows = [archive.actuals[zone] for zone in zones]
    start, end = max(row.start for row in rows), min(row.end for row in rows)
    if start >= end:
        raise DataError(f"The forecasts of {', '.join(zones)} have no time in common.")
    parts = [row.window(start, round((end - start).total_seconds() / _HOUR_S)) for row in rows]
    return Traces(
        zones=tuple(zones),
        start=start,
        intensity=np.concatenate([part.intensity for part in parts]),
        factor=rows[0].factor,
        provenance=tuple(part.provenance[0] for part in parts),
    )


WARM_UP_DAYS = 14
"""Days of actuals before the first start of a series of back-tests: forecasts and bounds need a past."""
_MINUTES_PER_DAY = 1440


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backtest:
    """The result of one back-tested run."""

    start: datetime
    forecast: str
    replan_slots: int | None
    budget_kg: float
    planned_kg: float
    """Emissions that the first plan expected."""
    first_plan_kg: float
    """Emissions if the first plan had been followed exactly."""
    realised_kg: float
    slots: int
    """Client-slots trained, window included."""
    objective: float
    """The paper's objective of the trained slots, with actual intensity and the horizon's actual g_max."""
    oracle_objective: float
    oracle_slots: int
    oracle_kg: float
    share: float
    """Share of the oracle's objective; for alpha = "log" the geometric mean of the clients' shares of utility."""
    breaches: int
    """Slots that emitted more than the upper bound charged for them."""
    window: str
    """`kept`, `moved`, `shortened` or `dropped`: the worst that happened to the window."""
    stop: int
    """Length of the run in slots."""
    messages: tuple[str, ...]
    seconds: float
    trained: NDArray[np.bool_]
    """[client, slot]."""

    @property
    def overspend_kg(self) -> float:
        """Return the emissions beyond the budget, kg; 0 if that is rounding."""
        over = self.realised_kg - self.budget_kg
        return over if over > self.budget_kg * BUDGET_ROUNDING else 0.0

    @property
    def unused(self) -> float:
        """Return the share of the budget that was not used."""
        return max(0.0, 1 - self.realised_kg / self.budget_kg)

    def row(self) -> dict[str, object]:
        """Return the figures as a row of a table."""
        return {
            "start": iso(self.start),
            "forecast": self.forecast,
            "replan_slots": self.replan_slots,
            "budget_kg": self.budget_kg,
            "planned_kg": self.planned_kg,
            "first_plan_kg": self.first_plan_kg,
            "realised_kg": self.realised_kg,
            "unused": self.unused,
            "overspend_kg": self.overspend_kg,
            "slots": self.slots,
            "oracle_slots": self.oracle_slots,
            "objective": self.objective,
            "oracle_objective": self.oracle_objective,
            "share": self.share,
            "oracle_kg": self.oracle_kg,
            "breaches": self.breaches,
            "window": self.window,
            "stop": self.stop,
            "seconds": self.seconds,
        }


def backtest(
    problem: Problem,
    actuals: Traces,
    forecaster: Forecaster,
    settings: Settings | None = None,
    *,
    lag: int = 1,
    oracle: Plan | None = None,
    label: str | None = None,
    replayed: PastPlans | None = None,
) -> Backtest:
    """Run a problem slot by slot and return the result.

    Only settling and the oracle use the problem's traces; the run sees `actuals` as they become known. `lag` is how many
    slots after its end the actual of a slot is known: with 1, slot t is decided on those before t - 1. `label` names the
    forecast in the result. `replayed` is the result of `past_plans_before`, if already computed.
    """
    if lag < 0:
        raise ScenarioError(f"lag is {lag}; actuals cannot be known before their slot has ended (0).")
    began = time.perf_counter()
    settings = settings or Settings()
    best = oracle or plan(problem, planner="paper")
    if replayed is None and settings.reserve:
        replayed = past_plans_before(problem, actuals, forecaster, lag=lag)
    asked = without_intensity(problem)
    controller = Controller(asked, settings, State.initial(asked, replayed))
    steps: list[Step] = []
    forecast, first_plan_kg = None, math.nan
    while not controller.finished:
        known = _until(actuals, problem.slot_start(controller.state.slot - lag))
        if controller.due:
            forecast = _asked(forecaster, known, _slots_to_ask(problem, known, actuals))
        steps.append(controller.step(known, forecast))
        if len(steps) == 1:
            first_plan_kg = _plan_kg(problem, controller)
    seconds = time.perf_counter() - began
    return _settled(problem, label or forecaster.name, settings, controller, steps, best, first_plan_kg, seconds)


def past_plans_before(problem: Problem, actuals: Traces, forecaster: Forecaster, *, lag: int = 1) -> PastPlans | None:
    """Return how far plans before a run fell short, by what is known when it begins; None with too few plans."""
    known = _until(actuals, problem.slot_start(-lag))
    slots = _slots_to_ask(problem, known, actuals)
    return past_plans(
        without_intensity(problem), known, forecaster, slots=slots, lag=lag, since=first_issue(forecaster)
    )


def first_plan(
    problem: Problem,
    actuals: Traces,
    forecaster: Forecaster,
    settings: Settings,
    *,
    lag: int = 1,
    replayed: PastPlans | None = None,
) -> tuple[float, float]:
    """Return the emissions that the first plan of a run expects, and those of following it exactly, kg."""
    asked, known = without_intensity(problem), _until(actuals, problem.slot_start(-lag))
    controller = Controller(asked, settings, State.initial(asked, replayed))
    step = controller.step(known, _asked(forecaster, known, _slots_to_ask(problem, known, actuals)))
    return step.planned_kg, _plan_kg(problem, controller)


def without_intensity(problem: Problem) -> Problem:
    """Return the problem without its intensity, so that no plan can use values that are not known yet."""
    traces = problem.traces.window(problem.first_slot, problem.horizon)
    return problem.with_settings(traces=replace(traces, intensity=np.zeros_like(traces.intensity)))


def spread_starts(actuals: Traces, slots: int, count: int, *, first: datetime | None = None) -> list[datetime]:
    """Return `count` starts, evenly over the actuals, each with a horizon of `slots` after it and a past before it."""
    step = timedelta(minutes=actuals.slot_minutes)
    earliest = actuals.start + timedelta(days=WARM_UP_DAYS)
    if first is not None and first < earliest:
        raise DataError(
            f"The first start {iso(first)} is too early: the actuals begin {iso(actuals.start)}, and forecasts and upper "
            f"bounds need {WARM_UP_DAYS} days before a run. Start at {iso(earliest)} or later."
        )
    begin = first or earliest
    room = (actuals.end - begin) // step - slots
    if room < 0 or (begin - actuals.start) % step:
        raise DataError(
            f"A run of {slots} slots from {iso(begin)} does not fit the actuals, which end {iso(actuals.end)}."
            if room < 0
            else f"The first start {iso(begin)} is not the start of a {actuals.slot_minutes}-minute slot."
        )
    if count > room + 1:
        raise DataError(f"There is room for {room + 1} different starts, not for {count}. Ask for fewer.")
    return [begin + step * int(i) for i in np.linspace(0, room, count).round()]


def _until(actuals: Traces, end: datetime) -> Traces:
    slots = round((end - actuals.start) / timedelta(minutes=actuals.slot_minutes))
    return actuals.window(actuals.start, slots)


def _plan_kg(problem: Problem, controller: Controller) -> float:
    """Return the actual emissions of the controller's current plan, kg."""
    state, costs = controller.state, problem.costs
    stop = min(state.window_at + state.window_slots, problem.horizon)
    chosen = state.plan.copy()
    chosen[:, state.window_at : stop] = costs.can_train()[:, state.window_at : stop]
    if problem.coupled:
        levels = (
            None if state.levels is None else np.where(np.arange(problem.horizon) < state.window_at, state.levels, 0)
        )
        return emissions(problem, np.packbits(chosen, axis=1), stop - problem.rounds, levels).total_kg
    return float((chosen * costs.dense()).sum() + costs.idle_kg()[:stop].sum())


def _slots_to_ask(problem: Problem, known: Traces, actuals: Traces) -> int:
    """Return the slots to the end of the horizon, in whole days if the actuals reach: a forecaster's fit then serves for hours."""
    step = timedelta(minutes=known.slot_minutes)
    needed = (problem.slot_start(problem.horizon) - known.end) // step
    day = _MINUTES_PER_DAY // known.slot_minutes
    return max(needed, min(-(-needed // day) * day, (actuals.end - known.end) // step))


def _asked(forecaster: Forecaster, known: Traces, slots: int) -> Forecast | None:
    try:
        return forecaster.forecast(known, slots)
    except NoForecastError:
        return None


def _settled(
    problem: Problem,
    name: str,
    settings: Settings,
    controller: Controller,
    steps: list[Step],
    best: Plan,
    first_plan_kg: float,
    seconds: float,
) -> Backtest:
    """Return the result of a run, counted with actual intensity."""
    state, costs = controller.state, problem.costs
    stop = state.slot if state.stopped_at is None else state.stopped_at
    intensity = costs.intensity[costs.row]
    training = np.where(state.trained, round_kwh(problem, state) * intensity, 0.0)
    idle = np.where(np.arange(problem.horizon) < stop, costs.idle_kg(), 0.0)
    per_slot = training.sum(axis=0) + idle
    if state.up is not None and state.starting is not None:
        per_slot += (sum(sleeping_kwh(problem, state.up, state.starting)) * intensity).sum(axis=0)
    if costs.server_kg is not None:
        per_slot += np.where(state.trained.any(axis=0), costs.server_kg, 0.0)
    objective, share = objective_and_share(problem, utility_of(problem, state.trained, state.levels), best)
    return Backtest(
        start=problem.first_slot,
        forecast=name,
        replan_slots=settings.replan_slots,
        budget_kg=problem.budget_kg,
        planned_kg=steps[0].planned_kg,
        first_plan_kg=first_plan_kg,
        realised_kg=math.fsum(per_slot),
        slots=int(state.trained.sum()),
        objective=objective,
        oracle_objective=best.objective,
        oracle_slots=int(best.slots_per_client.sum()),
        oracle_kg=best.emissions_kg,
        share=share,
        breaches=int(np.count_nonzero(per_slot > state.held_kg * (1 + BUDGET_ROUNDING))),
        window=_window(problem, controller, steps),
        stop=stop,
        messages=tuple(message for step in steps for message in step.messages),
        seconds=seconds,
        trained=state.trained,
    )


def utility_of(problem: Problem, trained: NDArray[np.bool_], levels: NDArray[np.uint8] | None) -> NDArray[np.float64]:
    """Return the utility of each client [client], kg, from the slots in which it trained [client, slot], at which level."""
    if problem.coupled:
        return utilities_of(problem, np.packbits(trained, axis=1), levels)
    return utilities(trained.sum(axis=1), np.where(trained, problem.costs.dense(), 0.0).sum(axis=1), problem.g_max)


def objective_and_share(problem: Problem, u: NDArray[np.float64], best: Plan) -> tuple[float, float]:
    """Return the objective of utilities [client], and its share of the best plan's; NaN where they are not comparable."""
    positive = u[u > 0]
    if problem.utility.kind == "log":
        objective = math.fsum(np.log(positive))
        comparable = len(positive) == int(np.count_nonzero(best.emissions.utility > 0))
        return objective, math.exp((objective - best.objective) / len(u)) if comparable else math.nan
    objective = math.fsum(problem.utility.of(positive))
    return objective, objective / best.objective if best.objective > 0 else math.nan


def _window(problem: Problem, controller: Controller, steps: list[Step]) -> str:
    done = controller.state.window_done
    if done < problem.fine_tune:
        return "shortened" if done else "dropped"
    moved = any("window is moved" in message for step in steps for message in step.messages)
    return "moved" if moved else "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Back-tests with one forecast and one re-planning interval; shares are fractions of 1."""

    forecast: str
    replan_slots: int | None
    runs: int
    share_mean: float
    """Mean share of the oracle's objective."""
    share_least: float
    slots_share_mean: float
    """Client-slots trained, as a share of the oracle's."""
    planned_mean: float
    """Emissions that the first plan expected, as a share of the budget."""
    realised_mean: float
    """Emissions, as a share of the budget."""
    first_plan_kept: float
    """Share of runs in which the first plan, followed exactly, would have kept the budget."""
    unused_mean: float
    unused_most: float
    oracle_unused_mean: float
    overspent: int
    """Runs that emitted more than the budget."""
    overspent_within_bounds: int
    """Of those, the runs in which every slot stayed within its upper bound; must be 0."""
    breaches: int
    """Slots above their upper bound, in all runs."""
    window_kept: int
    window_moved: int
    window_shortened: int
    window_dropped: int

    def to_dict(self) -> dict[str, object]:
        """Return the summary for JSON."""
        return asdict(self)


def summarise(runs: Sequence[Backtest]) -> list[Summary]:
    """Return one summary for each forecast and re-planning interval, in order of appearance."""
    groups: dict[tuple[str, int | None], list[Backtest]] = {}
    for run in runs:
        groups.setdefault((run.forecast, run.replan_slots), []).append(run)
    return [_summary(*key, group) for key, group in groups.items()]


def _summary(forecast: str, replan_slots: int | None, runs: Sequence[Backtest]) -> Summary:
    shares = np.array([run.share for run in runs])
    budget = np.array([run.budget_kg for run in runs])
    over = [run for run in runs if run.overspend_kg > 0]

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    def count(window: str) -> int:
        return sum(run.window == window for run in runs)

    return Summary(
        forecast=forecast,
        replan_slots=replan_slots,
        runs=len(runs),
        share_mean=float(shares.mean()),
        share_least=float(shares.min()),
        slots_share_mean=mean([run.slots / max(run.oracle_slots, 1) for run in runs]),
        planned_mean=float((np.array([run.planned_kg for run in runs]) / budget).mean()),
        realised_mean=float((np.array([run.realised_kg for run in runs]) / budget).mean()),
        first_plan_kept=mean([run.first_plan_kg <= run.budget_kg for run in runs]),
        unused_mean=mean([run.unused for run in runs]),
        unused_most=max(run.unused for run in runs),
        oracle_unused_mean=mean([1 - run.oracle_kg / run.budget_kg for run in runs]),
        overspent=len(over),
        overspent_within_bounds=sum(run.breaches == 0 for run in over),
        breaches=sum(run.breaches for run in runs),
        window_kept=count("kept"),
        window_moved=count("moved"),
        window_shortened=count("shortened"),
        window_dropped=count("dropped"),
    )


def as_csv(runs: Sequence[Backtest]) -> str:
    """Return the back-tests as CSV, one line each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(runs[0].row()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(run.row() for run in runs)
    return text.getvalue()
