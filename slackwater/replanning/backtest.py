"""Runs of the past, steered on the forecasts of their time and settled with what came, beside perfect foresight."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.forecasting.forecast import Forecast, Forecaster
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem
from slackwater.planning.stage import BUDGET_ROUNDING
from slackwater.planning.utility import utilities
from slackwater.replanning.adversarial import NoForecastError
from slackwater.replanning.choices import first_issue
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.replay import Replay, replay
from slackwater.replanning.settings import Settings
from slackwater.replanning.state import State
from slackwater.units import iso

WARM_UP_DAYS = 14
"""Actuals before the first start of a series of back-tests: forecasts and bounds need a past."""
_MINUTES_PER_DAY = 1440


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backtest:
    """What one run came to."""

    start: datetime
    forecast: str
    replan_slots: int | None
    budget_kg: float
    planned_kg: float
    """What the first plan expected to emit."""
    first_plan_kg: float
    """What the first plan would have emitted, followed to the letter."""
    realised_kg: float
    slots: int
    """Client-slots trained, the window's included."""
    objective: float
    """The paper's, of what was trained, with actual intensity and the horizon's actual g_max."""
    oracle_objective: float
    oracle_slots: int
    oracle_kg: float
    share: float
    """Of the oracle's objective; for alpha = "log" the geometric mean of the clients' shares of utility."""
    breaches: int
    """Slots that emitted more than they were held at."""
    window: str
    """`kept`, `moved`, `shortened` or `dropped`, the worst of what happened to it while it was due."""
    stop: int
    """Slots that the run lasted."""
    messages: tuple[str, ...]
    seconds: float
    trained: NDArray[np.bool_]
    """[client, slot]."""

    @property
    def overspend_kg(self) -> float:
        """What was emitted beyond the budget; 0 where that is rounding."""
        over = self.realised_kg - self.budget_kg
        return over if over > self.budget_kg * BUDGET_ROUNDING else 0.0

    @property
    def unused(self) -> float:
        """Share of the budget that was left."""
        return max(0.0, 1 - self.realised_kg / self.budget_kg)

    def row(self) -> dict[str, object]:
        """As a line of a table."""
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
    replayed: Replay | None = None,
) -> Backtest:
    """Run a problem slot by slot. Its traces are only used to settle, and by the oracle; the run sees `actuals` as they come.

    The actual of a slot is known `lag` slots after its end: with 1, when slot t is decided, those before t - 1. `label` is
    what the forecast is called in the result. `replayed` is what `replay_before` gave, where it was asked already.
    """
    if lag < 0:
        raise ScenarioError(f"lag is {lag}; actuals cannot be known before their slot has ended (0).")
    began = time.perf_counter()
    settings = settings or Settings()
    best = oracle or plan(problem)
    if replayed is None and settings.reserve:
        replayed = replay_before(problem, actuals, forecaster, lag=lag)
    asked = blind(problem)
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


def replay_before(problem: Problem, actuals: Traces, forecaster: Forecaster, *, lag: int = 1) -> Replay | None:
    """How far plans of the time before a run fell short, from what is known when it begins."""
    known = _until(actuals, problem.slot_start(-lag))
    slots = _slots_to_ask(problem, known, actuals)
    return replay(blind(problem), known, forecaster, slots=slots, lag=lag, since=first_issue(forecaster))


def first_plan(
    problem: Problem,
    actuals: Traces,
    forecaster: Forecaster,
    settings: Settings,
    *,
    lag: int = 1,
    replayed: Replay | None = None,
) -> tuple[float, float]:
    """What the first plan of a run says it emits, and what it would have emitted, followed to the letter; kg."""
    asked, known = blind(problem), _until(actuals, problem.slot_start(-lag))
    controller = Controller(asked, settings, State.initial(asked, replayed))
    step = controller.step(known, _asked(forecaster, known, _slots_to_ask(problem, known, actuals)))
    return step.planned_kg, _plan_kg(problem, controller)


def blind(problem: Problem) -> Problem:
    """The same problem without its intensity, so that nothing can be planned on what is not known yet."""
    traces = problem.traces.window(problem.first_slot, problem.horizon)
    return problem.with_settings(traces=replace(traces, intensity=np.zeros_like(traces.intensity)))


def spread_starts(actuals: Traces, slots: int, count: int, *, first: datetime | None = None) -> list[datetime]:
    """So many starts, evenly over the actuals, each with a horizon of `slots` after it and a past before it."""
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
    """What the plan that the controller has now would really emit."""
    state, costs = controller.state, problem.costs
    stop = min(state.window_at + state.window_slots, problem.horizon)
    chosen = state.plan.copy()
    chosen[:, state.window_at : stop] = costs.can_train()[:, state.window_at : stop]
    return float((chosen * costs.dense()).sum() + costs.idle_kg()[:stop].sum())


def _slots_to_ask(problem: Problem, known: Traces, actuals: Traces) -> int:
    """To the end of the horizon, in whole days where the actuals reach so far: a forecaster's fit then serves for hours."""
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
    """Everything counted with what really came."""
    state, costs = controller.state, problem.costs
    stop = state.slot if state.stopped_at is None else state.stopped_at
    g = costs.dense()
    training = np.where(state.trained, g, 0.0)
    idle = np.where(np.arange(problem.horizon) < stop, costs.idle_kg(), 0.0)
    per_slot = training.sum(axis=0) + idle
    u = utilities(state.trained.sum(axis=1), training.sum(axis=1), problem.g_max)
    objective, share = objective_and_share(problem, u, best)
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


def objective_and_share(problem: Problem, u: NDArray[np.float64], best: Plan) -> tuple[float, float]:
    """Return the objective of utilities [client], and what share that is of the best plan's; NaN where they cannot compare."""
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
