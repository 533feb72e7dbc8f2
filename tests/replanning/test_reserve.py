"""What is kept back: read off plans of the past, or off the interval; it holds as often as it says, and is released."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from worlds import HISTORY, START, daily, forecast, problem, traces

from slackwater.errors import DataError
from slackwater.intensity.forecast.archive import ForecastArchive, Issues, hours_since_1970
from slackwater.intensity.forecast.base import Forecast, Persistence
from slackwater.intensity.traces import Traces
from slackwater.replanning import backtest
from slackwater.replanning.backtest import first_issue, first_plan, past_plans_before, without_intensity
from slackwater.replanning.controller import Controller
from slackwater.replanning.reserve import (
    LEAST,
    MOST,
    WIDENED,
    PastPlans,
    _excess,
    by_part,
    interval_kg,
    past_plans,
    usable_share,
)
from slackwater.replanning.run_state import Settings, State

KNOWN = traces(daily(3, 10 * 24, seed=7))
DAYS = 60
LONG = START - timedelta(days=DAYS)


def _world(seed: int, noise: float = 0.4, days: int = DAYS + 3) -> Traces:
    return traces(daily(4, 24 * days, seed, noise), LONG)


class _Noting:
    """Persistence that notes what it is asked."""

    name = "noting"

    def __init__(self, least_slots: int = 0) -> None:
        self.asked: list[tuple[datetime, int]] = []
        self.least = least_slots

    def forecast(self, history: Traces, slots: int) -> Forecast:
        if history.slots < self.least:
            raise DataError("too short")
        self.asked.append((history.end, slots))
        return Persistence().forecast(history, slots)


class _Yesterday:
    """Persistence that takes no time to be unsure."""

    name = "yesterday"

    def forecast(self, history: Traces, slots: int) -> Forecast:
        return forecast(history, np.tile(history.intensity[:, -24:], slots // 24 + 1)[:, :slots])


def _replay(excess: NDArray[np.float64], apart: float = 1e9) -> PastPlans:
    return PastPlans(excess=np.array([excess, excess]), apart=apart)


def test_the_interval_gives_a_reserve_where_there_is_no_past() -> None:
    given = forecast(KNOWN, np.ones((3, 4)), 0.5)  # 10 % lie above 1.5
    one_zone = np.zeros((3, 4))
    one_zone[0] = 1.0
    wider = (WIDENED + NormalDist().inv_cdf(0.9)) / NormalDist().inv_cdf(0.9)
    assert interval_kg(given, one_zone, 0.9) == pytest.approx(4 * 0.5 * wider)
    assert interval_kg(given, np.ones((3, 4)), 0.9) == pytest.approx(4 * 0.5 * wider * np.sqrt(3)), "zones err alone"
    assert 0 < interval_kg(given, one_zone, 0.7) < interval_kg(given, one_zone, 0.9)
    assert interval_kg(given, one_zone * [1, 1, 0, 0], 0.9) == pytest.approx(2 * 0.5 * wider), (
        "it falls as slots settle"
    )
    sure = forecast(KNOWN, np.ones((3, 4)))
    assert interval_kg(sure, one_zone, 0.99) == 0
    assert interval_kg(replace(sure, coverage=1.0), one_zone, 0.99) == 0
    assert usable_share(given, one_zone, 0.9, None) == pytest.approx(1 / (1 + 0.5 * wider))
    assert usable_share(given, one_zone, 0.0, None) == 1
    assert usable_share(given, 0 * one_zone, 0.9, None) == 1


def test_the_past_gives_the_quantile_of_what_came_above_plan() -> None:
    excess = np.repeat(np.linspace(-0.1, 0.4, 11)[:, None], 3, axis=1)
    past, kg = _replay(excess), np.array([1.0, 2.0, 1.0])
    near = partial(pytest.approx, abs=0.003)  # it is looked for in steps
    assert past.usable(kg, 0.6) == near(1 / 1.2)
    assert past.usable(kg, 0.9) == near(1 / 1.35)
    assert _replay(excess, apart=4).usable(kg, 0.6) == near(1 / 1.275), "fewer that are apart: a higher quantile"
    assert _replay(excess, apart=4).usable(kg, 0.9) == near(1 / 1.4), "the largest is all that is known"
    assert _replay(excess - 1).usable(kg, 0.6) == 1, "nothing is added to the budget"
    assert past.usable(0 * kg, 0.9) == 1
    given = forecast(KNOWN, np.ones((3, 4)))
    assert usable_share(given, np.ones((3, 4)), 0.6, past) == near(1 / 1.2), "whatever the interval says"
    choosy = PastPlans(excess=np.array([excess + 0.2, excess]), apart=1e9)
    share = choosy.usable(kg, 0.6)
    assert share * (1.2 + 0.2 * (1 - share) / 0.4) == near(1), "a smaller plan falls short by more"
    assert _replay(excess + 50).usable(kg, 0.6) == near(0.2), "something is always planned"


def test_near_slots_need_less() -> None:
    past = _replay(np.linspace(0, 1, 11)[:, None] * [0.1, 0.2, 0.4])
    assert past.usable(np.array([4.0, 0, 0]), 0.5) == pytest.approx(1 / 1.05, abs=0.003)
    assert past.usable(np.array([0, 0, 4.0]), 0.5) == pytest.approx(1 / 1.2, abs=0.003)
    assert by_part(np.ones(60), 60).tolist() == [24, 24, 12]
    assert by_part(np.ones(5), 360).tolist() == [4, 1, 0]


def test_nothing_after_the_start_is_looked_at() -> None:
    truth, noting = _world(1), _Noting()
    asked = problem(truth)
    first = past_plans_before(asked, truth, noting, lag=2)
    assert first is not None
    assert first.excess.shape[1] == len(noting.asked) == MOST
    assert all(end + timedelta(hours=slots) <= START - timedelta(hours=2) for end, slots in noting.asked)
    assert all((START - timedelta(hours=2) - end) % timedelta(days=1) == timedelta(0) for end, _ in noting.asked)
    assert 1 < first.apart <= MOST
    other = truth.intensity.copy()
    other[:, 24 * DAYS - 2 :] *= 5  # another future
    again = past_plans_before(asked, traces(other, LONG), Persistence(), lag=2)
    assert again is not None
    assert np.array_equal(first.excess, again.excess)


def test_too_short_a_past_is_said_and_the_interval_used() -> None:
    truth = traces(daily(4, HISTORY + 24 * 5, seed=11))
    asked = problem(truth)
    assert past_plans_before(asked, truth, Persistence()) is None
    done = backtest(asked, truth, Persistence())
    assert "too few past forecasts" in done.messages[0]
    assert "too few" not in " ".join(backtest(asked, truth, Persistence(), Settings(reserve=0)).messages)
    assert "too few" not in " ".join(backtest(problem(_world(1)), _world(1), Persistence()).messages)


def test_origins_without_a_forecast_or_a_plan_are_left_out() -> None:
    truth = _world(2)
    asked, known = without_intensity(problem(truth)), truth.window(truth.start, 24 * DAYS - 1)
    some = past_plans(asked, known, _Noting(least_slots=24 * 45), slots=25)
    assert some is not None
    assert LEAST <= some.excess.shape[1] < MOST
    assert past_plans(asked, known, _Noting(least_slots=24 * 57), slots=25) is None
    assert past_plans(asked, known, Persistence(), slots=25, since=START - timedelta(days=4)) is None
    poor = asked.with_settings(budget_kg=1e-6)
    assert past_plans(poor, known, Persistence(), slots=25) is None, "no plan fits"


def test_five_origins_are_enough_and_four_are_not() -> None:
    truth = _world(2)
    asked, known = without_intensity(problem(truth)), truth.window(truth.start, 24 * DAYS - 1)
    # The newest origin is two days before the end of what is known: the 25 slots after it must have come.
    enough, too_few = (_Noting(least_slots=known.slots - 24 * days) for days in (2 + 2 * 4, 2 + 2 * 3))
    five = past_plans(asked, known, enough, slots=25)
    assert five is not None
    assert len(enough.asked) == five.excess.shape[1] == LEAST == 5
    assert past_plans(asked, known, too_few, slots=25) is None
    assert len(too_few.asked) == LEAST - 1


def test_the_excess_of_a_part_is_pulled_to_that_of_its_plan() -> None:
    planned, emitted = np.array([[[8.0, 2.0, 0.0]]]), np.array([[[8.0, 3.0, 0.0]]])
    # The plan of 10 kg emitted 1 kg more. A fifth of both is added to each part.
    assert _excess(planned, emitted)[0, 0].tolist() == pytest.approx([0.2 / 10, 1.2 / 4, 0.2 / 2])


def test_a_provider_is_replayed_from_its_first_issue_on() -> None:
    issued = np.array([hours_since_1970(START - timedelta(days=days)) for days in (9, 3)])
    issues = Issues(issued=issued, first=issued.astype(np.int64), values=np.ones((2, 48)))
    assert first_issue(ForecastArchive({"z0": issues})) == START - timedelta(days=9)
    assert first_issue(Persistence()) is None
    assert first_issue(ForecastArchive({})) is None


def test_plans_of_the_past_pay_for_network_and_evaluation_too() -> None:
    """Twice the energy at twice the budget is the same plan, so it falls short by the same share."""
    truth = _world(3)
    plain = problem(truth)
    double = plain.with_settings(model_mb=2.5e4, evaluation_share=0.5, budget_kg=2 * plain.budget_kg)  # 0.5 + 0.5 kWh
    once, twice = (past_plans_before(asked, truth, Persistence()) for asked in (plain, double))
    assert once is not None
    assert twice is not None
    assert twice.excess == pytest.approx(once.excess)


def test_clients_that_wait_or_are_away_are_replayed_as_they_are() -> None:
    truth = _world(3)
    away = np.ones((4, 24), dtype=bool)
    away[1, 5:9] = False
    plain, other = (
        past_plans_before(problem(truth, idle_w=idle, available=there), truth, Persistence())
        for idle, there in ((0.0, None), (200.0, away))
    )
    assert plain is not None
    assert other is not None
    assert not np.allclose(plain.excess, other.excess)


def test_plans_keep_the_budget_as_often_as_asked() -> None:
    """Forecasts that are right on average; choosing the cheapest picks those that are too low."""
    kept: dict[float, list[bool]] = {0.0: [], 0.6: [], 0.9: []}
    for seed in range(16):
        truth = _world(seed, noise=0.5)
        asked = problem(truth, hours=8)
        past = past_plans_before(asked, truth, _Yesterday())
        for probability, all_kept in kept.items():
            settings = Settings(reserve=probability, margin=1.0)
            planned, emitted = first_plan(asked, truth, _Yesterday(), settings, replayed=past)
            assert planned <= asked.budget_kg
            all_kept.append(emitted <= asked.budget_kg)
    assert np.mean(kept[0.0]) < 0.4
    assert np.mean(kept[0.6]) >= 0.6 - 0.1
    assert np.mean(kept[0.9]) >= 0.9 - 0.06


def test_the_reserve_is_released_and_survives_storage() -> None:
    truth = _world(5)
    asked = problem(truth, rounds=8, slack=60, hours=8)
    past = past_plans_before(asked, truth, Persistence())
    stored = json.loads(json.dumps(State.initial(asked, past).to_dict()))
    controller = Controller(without_intensity(asked), Settings(reserve=0.8, replan_slots=6), State.from_dict(stored))
    kept = []
    while not controller.finished:
        known = truth.window(truth.start, 24 * DAYS + controller.state.slot - 1)
        kept.append(controller.step(known, _Yesterday().forecast(known, 80)).reserve_kg)
    assert kept[0] > 0.02 * asked.budget_kg
    assert kept[-1] < 0.5 * kept[0]
    assert max(kept) < 1.5 * kept[0]


@pytest.mark.parametrize("coverage", [0.01, 0.8, 1.0])
@pytest.mark.parametrize("width", [0.0, 0.5])
def test_the_reserve_is_finite_for_every_forecast(coverage: float, width: float) -> None:
    given = replace(forecast(KNOWN, np.ones((3, 4)), width), coverage=coverage)
    share = usable_share(given, np.ones((3, 4)), 0.6, None)
    assert 0 < share <= 1
    assert np.isfinite(share)
    least = usable_share(replace(given, coverage=0.1), np.ones((3, 4)), 0.6, None)
    assert share >= least, "an interval that says nothing does not turn the whole budget into reserve"
    with pytest.raises(DataError, match="coverage"):
        replace(given, coverage=0.0)


def test_a_large_reserve_is_announced_with_its_reason_once() -> None:
    truth = traces(daily(4, HISTORY + 24 * 5, seed=11))
    asked = problem(truth, rounds=8, slack=60, hours=8)
    controller = Controller(without_intensity(asked), Settings(reserve=0.9, replan_slots=1))
    said: list[str] = []
    for slot in range(3):
        known = truth.window(truth.start, HISTORY + slot)
        given = forecast(known, truth.window(known.end, 70).intensity, 2.0)
        said += controller.step(known, given).messages
    large = [message for message in said if "in reserve" in message]
    assert len(large) == 1
    assert "of the budget) are kept in reserve at slot 0: the forecast's interval is wide" in large[0]
