"""Margins for forecast error: an upper bound on what a slot can emit, and the reserve kept out of the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError
from slackwater.intensity.forecast.base import Forecast, Forecaster
from slackwater.intensity.traces import Traces
from slackwater.planning.problem import Problem
from slackwater.replanning.remaining import NoForecastError, outlook, solve

_NEAR_HOURS = 3
_LEAST_DAYS = 7
_MINUTES_PER_DAY = 1440
_MINUTES_PER_HOUR = 60


class Bounds:
    """Upper bounds at one moment, from the actuals known by then."""

    def __init__(self, known: Traces, *, margin: float = 1.5, lookback_days: int = 28) -> None:
        self.day = _MINUTES_PER_DAY // known.slot_minutes
        self.near = _NEAR_HOURS * _MINUTES_PER_HOUR // known.slot_minutes
        if known.slots < _LEAST_DAYS * self.day:
            raise DataError(
                f"Upper bounds need {_LEAST_DAYS} days of actual intensity before the run; there are "
                f"{known.slots / self.day:.1f}. Start later, or load more of the past."
            )
        self.recent: NDArray[np.float64] = known.intensity[:, -lookback_days * self.day :]
        self.margin = margin

    def kg(self, energy_kwh: NDArray[np.float64], lead: int) -> float:
        """Bound of the emissions of this energy [zone] in the slot `lead` slots after the last known one."""
        return self.kg_from(energy_kwh, float(energy_kwh @ self.recent[:, -1]), lead=lead, ahead=lead)

    def kg_from(self, energy_kwh: NDArray[np.float64], last_kg: float, *, lead: int, ahead: int) -> float:
        """Bound as it will be when the slot that is `ahead` slots ahead now is only `lead` after a known one of `last_kg`."""
        series = energy_kwh @ self.recent
        highest = self.margin * float(series.max())
        rises = self._rises(series, lead, ahead)
        if not len(rises):
            return highest
        return min(highest, last_kg + self.margin * max(0.0, float(rises.max())))

    def _rises(self, series: NDArray[np.float64], over: int, ahead: int) -> NDArray[np.float64]:
        """Rises over so many slots that ended near the time of day of the slot `ahead` slots ahead, in the past."""
        if over >= len(series) - self.day:
            return np.empty(0)
        away = (np.arange(over, len(series)) - (len(series) + ahead - 1) + self.near) % self.day
        return (series[over:] - series[:-over])[away <= 2 * self.near]


Floats = NDArray[np.float64]

PARTS = 3
"""Slots to come are told apart by the day that they are ahead: the first, the second, and all later ones."""
LEVELS = (0.6, 1.0)
"""Shares of the budget that plans of the past are made for."""
MOST, LEAST = 20, 5
"""Plans of the past: not more, and no use of fewer."""
_STEP_DAYS = 2
_PAST_DAYS = 8
"""What forecasters need before an origin; also the days whose mean scales the budget."""
_POOLED = 0.2
"""Share of a plan's kg by which the excess of a part of it is pulled to that of the whole: parts may hold next to nothing."""
_LEAST_SHARE, _FINE = 0.2, 0.0025
"""Never less than this share of the budget is planned with; how finely it is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What plans of the past emitted beyond what they said."""

    excess: Floats
    """[level, plan, part]: realised / planned - 1 of the slots that were so many days ahead."""
    apart: float
    """How many of the plans would have shared no hour with another: those that overlap tell less than their number."""

    def usable(self, planned_kg: Floats, probability: float) -> float:
        """Share of the budget to plan with, so that what is planned [part] and its excess keep it with this probability.

        The quantile of the excess has the (n + 1) / n of split conformal prediction, n being the plans that are apart.
        Between the levels, and below the least, it changes along a straight line.
        """
        total = float(planned_kg.sum())
        if total <= 0:
            return 1.0
        wanted = min(1.0, probability * (self.apart + 1) / self.apart)
        at_part, at_whole = np.quantile(self.excess @ (planned_kg / total), wanted, axis=1)
        shares = np.linspace(_LEAST_SHARE, 1.0, 1 + round((1 - _LEAST_SHARE) / _FINE))
        excess = at_whole + (at_part - at_whole) * (1 - shares) / (LEVELS[1] - LEVELS[0])
        kept = shares[shares * (1 + excess) <= 1 + 1e-9]
        return float(kept.max()) if len(kept) else _LEAST_SHARE

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"excess": self.excess.tolist(), "apart": self.apart}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Replay:
        """Back from JSON."""
        return cls(excess=np.array(data["excess"], dtype=np.float64), apart=float(data["apart"]))


def by_part(per_slot: Floats, slot_minutes: int) -> Floats:
    """[part] of what is [slot], from the end of what is known on."""
    day = _MINUTES_PER_DAY // slot_minutes
    parts = np.minimum(np.arange(len(per_slot)) // day, PARTS - 1)
    return np.bincount(parts, weights=per_slot, minlength=PARTS).astype(np.float64)


def replay(
    problem: Problem,
    known: Traces,
    forecaster: Forecaster,
    *,
    slots: int,
    lag: int = 1,
    since: datetime | None = None,
) -> Replay | None:
    """Plan at up to 20 origins before the run as it would be planned now; None where fewer than 5 can be had.

    `slots` is how many a forecast is asked for, from the end of what was known then, which was `lag` slots before the
    origin. `since` leaves out origins at which a provider had not issued anything yet. The budget is so many hours of
    the eight days before as the run's budget is of the eight days before the run.
    """
    planned, emitted, used = list[Floats](), list[Floats](), list[int]()
    for origin in _origins(problem, known, slots=slots, lag=lag, since=since):
        history = known.window(known.start, origin)
        try:
            forecast: Forecast | None = forecaster.forecast(history, slots)
        except NoForecastError:
            forecast = None
        except DataError:  # it has nothing to say of that time
            continue
        expected, _ = outlook(history, forecast, lag + problem.horizon)
        energy = [_planned_energy(problem, history, expected, known, lag=lag, share=share) for share in LEVELS]
        said = _kg(energy, expected.mean, known.slot_minutes)
        came = _kg(energy, known.intensity[:, origin : origin + expected.slots], known.slot_minutes)
        if said is None or came is None or not np.all(said.sum(axis=1) > 0):
            continue
        planned.append(said)
        emitted.append(came)
        used.append(origin)
    if len(used) < LEAST:
        return None
    apart = (max(used) - min(used)) / problem.horizon + 1
    return Replay(excess=_excess(np.array(planned), np.array(emitted)), apart=min(apart, len(used)))


def _kg(energy_kwh: list[Floats | None], intensity: Floats, slot_minutes: int) -> Floats | None:
    """[level, part]; None where there is no plan for one of the levels."""
    per_slot = [(one * intensity).sum(axis=0) for one in energy_kwh if one is not None]
    return np.array([by_part(one, slot_minutes) for one in per_slot]) if len(per_slot) == len(energy_kwh) else None


def _excess(planned_kg: Floats, emitted_kg: Floats) -> Floats:
    """[level, plan, part] from [plan, level, part], each part pulled to the whole of its plan."""
    said, more = (kg.transpose(1, 0, 2) for kg in (planned_kg, emitted_kg - planned_kg))
    whole, beyond = said.sum(axis=2, keepdims=True), more.sum(axis=2, keepdims=True)
    excess: Floats = (more + _POOLED * beyond) / (said + _POOLED * whole)
    return excess


def _origins(problem: Problem, known: Traces, *, slots: int, lag: int, since: datetime | None) -> list[int]:
    """Ends of what was known, at the run's time of day, the newest first: what was planned then has come by now."""
    day = _MINUTES_PER_DAY // known.slot_minutes
    first = _PAST_DAYS * day
    if since is not None:
        first = max(first, -((known.start - since) // timedelta(minutes=known.slot_minutes)))
    needed = max(slots, lag + problem.horizon)
    last = known.slots - -(-needed // day) * day
    if last < first:
        return []
    step = min(max((last - first) // (MOST - 1) // day, 1), _STEP_DAYS) * day
    return list(range(last, first - 1, -step))[:MOST]


def _planned_energy(
    problem: Problem, history: Traces, expected: Forecast, known: Traces, *, lag: int, share: float
) -> Floats | None:
    """[zone, slot] after what was known then: what the plan of that time would have drawn; None where nothing fitted."""
    costs = problem.costs
    there = costs.can_train()
    rows = np.array([known.index(zone) for zone in problem.fleet.zone], dtype=np.intp)
    days = _PAST_DAYS * _MINUTES_PER_DAY // known.slot_minutes
    then, now = (float(costs.energy_kwh @ one.intensity[rows, -days:].mean(axis=1)) for one in (history, known))
    if then <= 0 or now <= 0:
        return None
    asked = problem.with_settings(
        clients=replace(problem.fleet, unavailable={}),  # it is in `available`, slot by slot
        traces=expected.traces(),
        start=history.end + lag * timedelta(minutes=known.slot_minutes),
        slack=problem.horizon - problem.rounds,
        budget_kg=problem.budget_kg * share * then / now,
        max_parallel=None,
        server=None,
        server_kg=None,
        available=there,
        earned_kg=None,
        trained_ago=None,
        g_max_kg=None,
    )
    rest = solve(asked)
    if rest is None:
        return None
    stop = rest.window_at + problem.fine_tune
    trains = rest.matrix.copy()
    trains[:, rest.window_at : stop] = there[:, rest.window_at : stop]
    drawn = trains * costs.energy_kwh[:, None]
    drawn[:, :stop] += costs.idle_kwh[:, None]
    energy = np.zeros((len(known.zones), lag + problem.horizon))
    np.add.at(energy[:, lag:], rows, drawn)
    return energy


WIDENED = 0.7
"""Standard deviations that are added to what the interval says where no plan of the past could be looked at."""
_CERTAIN, _LEAST_COVERAGE = 1 - 1e-9, 0.1
"""An interval that is to hold less often says nothing of the size of errors."""


def usable_share(
    forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float, replay: Replay | None
) -> float:
    """Share of what is left to plan with, so that it is kept with the probability; the rest is the reserve.

    The plan draws the energy [zone, slot], or about that. Read off plans of the past, or where there are none off the
    forecast's interval, widened. The reserve falls as slots settle: those to come are nearer.
    """
    if probability <= 0:
        return 1.0
    kg = energy_kwh * forecast.mean
    if replay is not None:
        return replay.usable(by_part(kg.sum(axis=0), forecast.slot_minutes), probability)
    total = float(kg.sum())
    return total / (total + interval_kg(forecast, energy_kwh, probability)) if total > 0 else 1.0


def interval_kg(forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float) -> float:
    """By the forecast's interval, which gives the size of a slot's error.

    The errors of one zone last for hours, so they are taken to go all the same way; those of different zones are taken
    to be independent. That the slots were chosen because they look cheap is not in the interval: `WIDENED` is added.
    """
    law = NormalDist()
    # `high` has half of what the interval leaves out above it.
    reach = law.inv_cdf(min(0.5 + max(forecast.coverage, _LEAST_COVERAGE) / 2, _CERTAIN))
    deviation = (energy_kwh * (forecast.high - forecast.mean)).sum(axis=1) / reach
    return float((WIDENED + law.inv_cdf(probability)) * np.sqrt((deviation**2).sum()))
