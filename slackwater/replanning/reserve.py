"""Margins for forecast error: an upper bound on the emissions of a slot, and the reserve kept out of the budget."""

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
from slackwater.planning.emissions import sleepers_kwh
from slackwater.planning.problem import Problem
from slackwater.replanning.remaining import NoForecastError, expected_intensity, solve

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
        """Return the bound on the emissions of this energy [zone] in the slot `lead` slots after the last known one, kg."""
        return self.kg_from(energy_kwh, float(energy_kwh @ self.recent[:, -1]), lead=lead, ahead=lead)

    def kg_from(self, energy_kwh: NDArray[np.float64], last_kg: float, *, lead: int, ahead: int) -> float:
        """Return the later bound, kg, of the slot now `ahead` slots ahead, when it is `lead` after a known one of `last_kg`."""
        series = energy_kwh @ self.recent
        highest = self.margin * float(series.max())
        rises = self._rises(series, lead, ahead)
        if not len(rises):
            return highest
        return min(highest, last_kg + self.margin * max(0.0, float(rises.max())))

    def _rises(self, series: NDArray[np.float64], over: int, ahead: int) -> NDArray[np.float64]:
        """Return past rises over `over` slots that ended near the time of day of the slot `ahead` slots ahead."""
        if over >= len(series) - self.day:
            return np.empty(0)
        away = (np.arange(over, len(series)) - (len(series) + ahead - 1) + self.near) % self.day
        return (series[over:] - series[:-over])[away <= 2 * self.near]


Floats = NDArray[np.float64]

PARTS = 3
"""Number of parts of the coming slots, by day ahead: the first, the second, and all later ones."""
LEVELS = (0.6, 1.0)
"""Shares of the budget for which past plans are made."""
MOST, LEAST = 20, 5
"""Most past plans, and the fewest that are usable."""
_STEP_DAYS = 2
_PAST_DAYS = 8
"""Days that forecasters need before an origin; their mean also scales the budget."""
_POOLED = 0.2
"""Share of a plan's kg that pulls the excess of a part to that of the whole: parts may be almost empty."""
_LEAST_SHARE, _FINE = 0.2, 0.0025
"""Least share of the budget to plan with, and the resolution of the search for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastPlans:
    """Emissions of past plans beyond their prediction."""

    excess: Floats
    """[level, plan, part]: realised / planned - 1 of the slots in this part."""
    apart: float
    """Number of non-overlapping plans: those that overlap tell less than their number."""

    def usable(self, planned_kg: Floats, probability: float) -> float:
        """Return the share of the budget to plan with, so that plan [part] and excess keep it with this probability.

        The quantile of the excess has the (n + 1) / n of split conformal prediction, where n is the number of
        non-overlapping plans. Between the levels, and below the least, it is linear.
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
        """Return the values for JSON."""
        return {"excess": self.excess.tolist(), "apart": self.apart}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PastPlans:
        """Return the past plans that `to_dict` described."""
        return cls(excess=np.array(data["excess"], dtype=np.float64), apart=float(data["apart"]))


def by_part(per_slot: Floats, slot_minutes: int) -> Floats:
    """Return sums of slots by part [part], counted from the last actual."""
    day = _MINUTES_PER_DAY // slot_minutes
    parts = np.minimum(np.arange(len(per_slot)) // day, PARTS - 1)
    return np.bincount(parts, weights=per_slot, minlength=PARTS).astype(np.float64)


def past_plans(
    problem: Problem,
    known: Traces,
    forecaster: Forecaster,
    *,
    slots: int,
    lag: int = 1,
    since: datetime | None = None,
) -> PastPlans | None:
    """Plan at up to 20 origins before the run, and return how far the plans fell short; None with fewer than 5 plans.

    `slots` is the length of each forecast, from the last actual known then, which was `lag` slots before the origin.
    `since` skips origins before a provider's first forecast. The budget pays as many hours at the mean of the eight
    days before an origin as the run's budget pays at that of the eight days before the run.
    """
    planned, emitted, used = list[Floats](), list[Floats](), list[int]()
    for origin in _origins(problem, known, slots=slots, lag=lag, since=since):
        history = known.window(known.start, origin)
        try:
            forecast: Forecast | None = forecaster.forecast(history, slots)
        except NoForecastError:
            forecast = None
        except DataError:  # it has no forecast of that time
            continue
        expected, _ = expected_intensity(history, forecast, lag + problem.horizon)
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
    return PastPlans(excess=_excess(np.array(planned), np.array(emitted)), apart=min(apart, len(used)))


def _kg(energy_kwh: list[Floats | None], intensity: Floats, slot_minutes: int) -> Floats | None:
    """Return the emissions [level, part], kg; None if one of the levels has no plan."""
    per_slot = [(one * intensity).sum(axis=0) for one in energy_kwh if one is not None]
    return np.array([by_part(one, slot_minutes) for one in per_slot]) if len(per_slot) == len(energy_kwh) else None


def _excess(planned_kg: Floats, emitted_kg: Floats) -> Floats:
    """Return the excess [level, plan, part] from [plan, level, part], each part pulled to the whole of its plan."""
    said, more = (kg.transpose(1, 0, 2) for kg in (planned_kg, emitted_kg - planned_kg))
    whole, beyond = said.sum(axis=2, keepdims=True), more.sum(axis=2, keepdims=True)
    excess: Floats = (more + _POOLED * beyond) / (said + _POOLED * whole)
    return excess


def _origins(problem: Problem, known: Traces, *, slots: int, lag: int, since: datetime | None) -> list[int]:
    """Return past ends of actuals at the run's time of day, the newest first; the actuals of those plans are known now."""
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
    """Return the energy of a plan of that time [zone, slot], from the last actual then, kWh; None if nothing fitted."""
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
        available=there,
        earned_kg=None,
        trained_ago=None,
        up_before=None,
        g_max_kg=None,
        price=None,  # of the run, not of that time
        price_weight=0.0,
        budget_money=None,
    )
    rest = solve(asked, quick=True)
    if rest is None:
        return None
    stop = rest.window_at + problem.fine_tune
    trains = rest.matrix.copy()
    trains[:, rest.window_at : stop] = there[:, rest.window_at : stop]
    drawn = trains * costs.energy_kwh[:, None]
    if rest.levels is not None:
        drawn = trains * np.take_along_axis(costs.level_kwh, rest.levels.astype(np.intp), axis=1)
    drawn[:, :stop] += costs.idle_kwh[:, None]
    if len(asleep := np.flatnonzero(costs.sleeps)):
        up_kwh, start_kwh = sleepers_kwh(asked, np.packbits(trains, axis=1), stop - problem.rounds, asleep)
        drawn[asleep] += up_kwh + start_kwh
    energy = np.zeros((len(known.zones), lag + problem.horizon))
    np.add.at(energy[:, lag:], rows, drawn)
    if problem.server is not None:
        energy[known.index(problem.server.zone), lag:] += costs.server_kwh * trains.any(axis=0)
    return energy


WIDENED = 0.7
"""Standard deviations added to the interval if there are no past plans."""
_CERTAIN, _LEAST_COVERAGE = 1 - 1e-9, 0.1
"""An interval with less coverage says nothing about the size of errors."""


def usable_share(
    forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float, replay: PastPlans | None
) -> float:
    """Return the share of the remaining budget to plan with, so that it is kept with the probability; the rest is reserve.

    The plan draws about this energy [zone, slot]. The share comes from past plans, or without them from the forecast's
    interval, widened. The reserve falls as slots settle, because the coming ones are nearer.
    """
    if probability <= 0:
        return 1.0
    kg = energy_kwh * forecast.mean
    if replay is not None:
        return replay.usable(by_part(kg.sum(axis=0), forecast.slot_minutes), probability)
    total = float(kg.sum())
    return total / (total + interval_kg(forecast, energy_kwh, probability)) if total > 0 else 1.0


def interval_kg(forecast: Forecast, energy_kwh: NDArray[np.float64], probability: float) -> float:
    """Return the reserve by the forecast's interval, kg, which gives the size of a slot's error.

    Errors of one zone last for hours, so they are assumed to have the same sign; those of different zones are assumed
    independent. The interval ignores that slots were chosen because they look cheap: `WIDENED` is added.
    """
    law = NormalDist()
    # Half of what the interval excludes lies above `high`.
    reach = law.inv_cdf(min(0.5 + max(forecast.coverage, _LEAST_COVERAGE) / 2, _CERTAIN))
    deviation = (energy_kwh * (forecast.high - forecast.mean)).sum(axis=1) / reach
    return float((WIDENED + law.inv_cdf(probability)) * np.sqrt((deviation**2).sum()))
