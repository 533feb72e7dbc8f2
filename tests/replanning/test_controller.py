"""The controller keeps the budget whatever the forecasts say, as long as actuals stay within the stated bound."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from worlds import HISTORY, daily, forecast, problem, traces

import slackwater as sw
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.intensity.forecast.base import Forecast
from slackwater.intensity.traces import HIGHEST_KG_PER_KWH, Traces
from slackwater.replanning.backtest import without_intensity
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.run_state import Settings, State

_ROUNDING = 1 + 1e-9


def _drive(
    asked: sw.Problem, truth: NDArray[np.float64], guess: Any, chosen: Settings, *, lag: int = 1, worst: bool = False
) -> tuple[Controller, list[Step], NDArray[np.float64]]:
    """Slot by slot; a slot that would break its bound is brought down to it (with `worst` every slot is right at it)."""
    truth = truth.copy()
    controller, steps = Controller(without_intensity(asked), chosen), list[Step]()
    costs = asked.costs
    while not controller.finished:
        slot = controller.state.slot
        known = traces(truth[:, : HISTORY + slot - lag])
        step = controller.step(known, guess(known, asked.horizon - slot + lag))
        steps.append(step)
        if controller.state.stopped_at != slot:
            energy = np.where(step.trains, costs.energy_kwh, 0.0) + costs.idle_kwh
            emitted = float(energy @ truth[:, HISTORY + slot])
            if emitted > step.held_kg or (worst and emitted > 0):
                truth[:, HISTORY + slot] *= step.held_kg / emitted
                truth[:, HISTORY + slot] = np.minimum(truth[:, HISTORY + slot], HIGHEST_KG_PER_KWH)
    return controller, steps, truth


def _emitted(asked: sw.Problem, controller: Controller, truth: NDArray[np.float64]) -> float:
    state, costs = controller.state, asked.costs
    stop = state.slot if state.stopped_at is None else state.stopped_at
    came = truth[:, HISTORY : HISTORY + asked.horizon]
    energy = np.where(state.trained, costs.energy_kwh[:, None], 0.0)
    energy[:, :stop] += costs.idle_kwh[:, None]
    return float((energy * came).sum())


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    zones, rounds = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return {
        "seed": draw(st.integers(0, 10**6)),
        "zones": zones,
        "rounds": rounds,
        "slack": draw(st.integers(0, 10)),
        "fine_tune": draw(st.integers(0, min(3, rounds))),
        "alpha": draw(st.sampled_from([1.0, 0.5, 0.1, "log", "max-min"])),
        "hours": draw(st.sampled_from([0.3, 1.0, 2.5, 6.0, 30.0])),
        "idle_w": draw(st.sampled_from([0.0, 0.0, 50.0])),
        "noise": draw(st.sampled_from([0.0, 0.2, 1.0])),
        "guess": draw(st.sampled_from(["random", "zero", "huge", "none", "short", "stale"])),
        "worst": draw(st.booleans()),
        "lag": draw(st.integers(0, 3)),
        "window": draw(st.sampled_from(["all", "available"])),
        "away": draw(st.booleans()),
        "settings": Settings(
            replan_slots=draw(st.sampled_from([1, 3, None])),
            reserve=draw(st.sampled_from([0.5, 0.9])),
            margin=draw(st.sampled_from([1.0, 1.25])),
        ),
    }


def _guesser(kind: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def guess(known: Traces, slots: int) -> Forecast | None:
        shape = (len(known.zones), slots)
        if kind == "none":
            return None
        if kind == "short":
            return forecast(known, rng.uniform(0, 1, (shape[0], max(1, slots // 3))), 0.5)
        if kind == "stale":
            old = traces(known.intensity[:, :-5])
            return forecast(old, rng.uniform(0, 1, (shape[0], 8)), 0.5)
        scale = {"random": rng.uniform(0, 1, shape), "zero": np.zeros(shape), "huge": np.full(shape, 50.0)}[kind]
        return forecast(known, scale, 0.5)

    return guess


@given(_cases())
@settings(max_examples=250, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_budget_holds_whatever_is_forecast(case: dict[str, Any]) -> None:
    horizon = case["rounds"] + case["slack"]
    truth = daily(case["zones"], HISTORY + horizon, case["seed"], case["noise"])
    asked = problem(
        traces(truth),
        rounds=case["rounds"],
        slack=case["slack"],
        fine_tune=case["fine_tune"],
        alpha=case["alpha"],
        idle_w=case["idle_w"],
        window=case["window"],
        hours=None,
        available=np.random.default_rng(case["seed"]).uniform(size=(case["zones"], horizon)) > 0.1 * case["away"],
        budget_kg=case["hours"] * float(truth[:, HISTORY].sum()),
    )
    controller, steps, truth = _drive(
        asked, truth, _guesser(case["guess"], case["seed"]), case["settings"], lag=case["lag"], worst=case["worst"]
    )
    assert _emitted(asked, controller, truth) <= asked.budget_kg * _ROUNDING
    for step in steps:
        held = step.spent_kg + step.in_flight_kg + step.held_kg
        assert held <= asked.budget_kg * _ROUNDING
        if step.trains.any() and not step.in_window:
            assert held + step.protected_kg <= asked.budget_kg * _ROUNDING
    _assert_the_window_is_last(asked, controller, steps)


def _assert_the_window_is_last(asked: sw.Problem, controller: Controller, steps: list[Step]) -> None:
    state, there = controller.state, asked.costs.can_train()
    assert not (state.trained & ~there).any(), "nobody trains when unavailable"
    window = [step.slot for step in steps if step.in_window]
    assert len(window) == state.window_done
    if window:
        assert window == list(range(window[0], window[0] + len(window)))
        assert not state.trained[:, window[-1] + 1 :].any(), "nobody trains after the window"
        assert np.array_equal(state.trained[:, window], there[:, window]), "everybody who is there does the window"
        assert state.window_done < asked.fine_tune or window[-1] + 1 >= asked.rounds
    if state.window_done < asked.fine_tune:
        said = " ".join(message for step in steps for message in step.messages)
        assert "shortened" in said or "dropped" in said


@pytest.mark.parametrize("guess", ["random", "zero", "huge", "none"])
@pytest.mark.parametrize("overheads", [{"model_mb": 2e4}, {"evaluation_share": 0.3}])
def test_the_budget_holds_with_network_and_evaluation(guess: str, overheads: dict[str, float]) -> None:
    truth = daily(3, HISTORY + 24, 3, 0.3)
    asked = problem(traces(truth), hours=14, idle_w=20.0, fine_tune=2, **overheads)
    controller, steps, truth = _drive(asked, truth, _guesser(guess, 1), Settings(replan_slots=1), worst=True)
    assert any(step.trains.any() for step in steps)
    assert _emitted(asked, controller, truth) <= asked.budget_kg * _ROUNDING
    for step in steps:
        held = step.spent_kg + step.in_flight_kg + step.held_kg
        kept = step.protected_kg if step.trains.any() and not step.in_window else 0.0
        assert held + kept <= asked.budget_kg * _ROUNDING


def test_slots_and_the_window_are_held_at_all_that_a_round_draws() -> None:
    flat = np.full((2, HISTORY + 12), 0.5)  # its bound is itself
    asked = problem(traces(flat), rounds=3, slack=9, hours=6, fine_tune=1, model_mb=2e4, evaluation_share=0.3)
    assert asked.costs.energy_kwh == pytest.approx([1.0 + 0.4 + 0.3] * 2)  # 0.01 kWh/GB x 2 x 20 GB
    controller, steps, _ = _drive(asked, flat, _guesser("none", 0), Settings(replan_slots=1, reserve=0.0))
    assert any(step.trains.any() and not step.in_window for step in steps)
    assert steps[0].planned_kg == pytest.approx(asked.budget_kg) == 0.5 * 1.7 * 12
    for step in steps:
        assert step.held_kg == pytest.approx(0.5 * 1.7 * step.trains.sum())
        if step.trains.any() and not step.in_window:
            assert step.protected_kg == pytest.approx(0.5 * 1.7 * 2)
    assert steps[-1].spent_kg + steps[-1].in_flight_kg == pytest.approx(
        0.5 * 1.7 * controller.state.trained[:, :-1].sum()
    )


@given(_cases())
@settings(max_examples=120, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_window_that_was_once_protected_is_had(case: dict[str, Any]) -> None:
    """One slot of window and no idle draw: enough is kept for it in some place, whatever is forecast."""
    horizon = case["rounds"] + case["slack"] + 1
    truth = daily(case["zones"], HISTORY + horizon, case["seed"], case["noise"])
    budget = case["hours"] * float(truth[:, HISTORY].sum())
    asked = problem(traces(truth), rounds=case["rounds"], slack=case["slack"] + 1, hours=None, budget_kg=budget)
    guess = _guesser(case["guess"], case["seed"])
    controller, steps, _ = _drive(asked, truth, guess, case["settings"], lag=case["lag"], worst=case["worst"])
    first = steps[0]
    if first.in_window or first.held_kg + first.protected_kg <= budget:
        assert controller.state.window_done == 1, [step.messages for step in steps]


def test_perfect_forecasts_come_close_to_the_plan_of_perfect_foresight() -> None:
    truth = daily(4, HISTORY + 60, seed=3)
    asked = problem(traces(truth), rounds=10, slack=50, hours=10)

    def guess(known: Traces, slots: int) -> Forecast:
        return forecast(known, truth[:, known.slots : known.slots + slots])

    controller, _, _ = _drive(asked, truth, guess, Settings())
    best = sw.plan(asked)
    trained = controller.state.trained
    assert trained.sum() >= 0.9 * best.matrix.sum()
    u = (trained * (asked.g_max - asked.costs.dense())).sum(axis=1)
    assert (u**0.1).sum() >= 0.98 * best.objective


def _first_plan(
    later: int, kg: float, width: float, every: int | None = 1, always: bool = False, **more: Any
) -> list[int]:
    """Slots of a plan that buys one: slot 0 at 0.5 kg, or a later one; all others are dear."""
    known = traces(np.full((1, HISTORY), 0.5))
    ahead = np.full((1, 24), 0.8)
    ahead[0, 0], ahead[0, later] = 0.5, kg
    asked = problem(
        traces(np.full((1, HISTORY + 24), 0.5)), rounds=1, slack=23, hours=None, fine_tune=0, budget_kg=0.55, **more
    )
    controller = Controller(without_intensity(asked), Settings(replan_slots=every, reserve=0.0))
    wider = width * np.minimum(np.arange(24) / 12, 1)  # over the first twelve hours
    unsure = replace(forecast(known, ahead), low=ahead * (1 - wider), high=ahead * (1 + wider))
    step = controller.step(known, forecast(known, ahead, 0.2) if always else unsure)
    assert step.trains.tolist() == [bool(controller.state.plan[0, 0])]
    return [int(slot) for slot in np.flatnonzero(controller.state.plan[0])]


def test_a_slot_that_a_later_plan_decides_is_preferred_where_it_is_about_as_cheap() -> None:
    assert _first_plan(12, 0.515, width=0.2) == [12], "3 % dearer"
    assert _first_plan(12, 0.53, width=0.2) == [0], "6 % dearer"
    assert _first_plan(1, 0.505, width=0.2) == [0], "in an hour little more is known"
    assert _first_plan(12, 0.515, width=0.0) == [0], "a sure forecast cannot be improved"
    assert _first_plan(12, 0.515, width=0.05) == [0], "nor can this one by 3 %"
    assert _first_plan(12, 0.51, width=0.05) == [12]
    assert _first_plan(12, 0.515, width=0.2, always=True) == [0], "it is as unsure of the next slot"
    assert _first_plan(12, 0.515, width=0.2, every=None) == [0], "no later plan"
    assert _first_plan(20, 0.51, width=0.2, every=6) == [20]
    assert _first_plan(12, 0.515, width=0.2, every=13) == [0], "the same plan decides both"
    away = np.ones((1, 24), dtype=bool)
    away[0, 12] = False
    assert _first_plan(12, 0.515, width=0.2, available=away) == [0]
    assert _first_plan(12, 0.515, width=0.2, recall=24) == [0], "who is recalled keeps its slots"


@pytest.mark.parametrize(
    ("budget_kg", "every", "present", "most", "expected"),
    [
        (2.0, 1, [True, True], None, [True, True]),
        (2.0, 6, [True, True], None, [True, True]),
        (1.6, 1, [True, True], None, [True, False]),
        (1.4, 1, [True, True], None, [False, False]),
        (2.0, 1, [False, True], None, [False, True]),
        (2.0, 1, [True, True], 0, [False, False]),
        (2.0, None, [True, True], None, [False, False]),
    ],
)
def test_what_is_left_in_the_last_slot_before_the_window_is_used(
    budget_kg: float, every: int | None, present: list[bool], most: int | None, expected: list[bool]
) -> None:
    """The forecast says that the slot costs 2 kg a client, so that nobody is planned; its upper bound is 0.5 kg."""
    flat = np.full((2, HISTORY + 2), 0.5)
    fleet = sw.Fleet.of(["z0", "z1"], power_w=1000, max_slots=most)
    asked = problem(traces(flat), rounds=2, slack=0, hours=None, budget_kg=budget_kg).with_settings(clients=fleet)
    controller = Controller(without_intensity(asked), Settings(replan_slots=every, reserve=0.0))
    known = traces(flat[:, :HISTORY])
    ahead = forecast(known, np.array([[2.0, 0.5], [2.0, 0.5]]))
    step = controller.step(known, ahead, present=np.array(present))
    assert step.trains.tolist() == expected
    assert step.wanted is not None
    assert step.wanted[np.array(present)].tolist() == step.trains[np.array(present)].tolist()
    how_many = {1: "1 more client than planned trains", 2: "2 more clients than planned train"}.get(sum(expected), "-")
    said = [message for message in step.messages if "than planned" in message]
    assert len(said) == any(expected)
    assert all(message.startswith(f"{how_many} in slot ") for message in said)
    assert step.held_kg == pytest.approx(0.5 * sum(expected))
    last = controller.step(traces(flat[:, : HISTORY + 1]), None)
    assert last.in_window
    assert last.trains.all()


def test_slots_before_the_last_one_are_not_filled() -> None:
    flat = np.full((2, HISTORY + 3), 0.5)
    asked, known = problem(traces(flat), rounds=3, slack=0, hours=None, budget_kg=2.0), traces(flat[:, :HISTORY])
    controller = Controller(without_intensity(asked), Settings(reserve=0.0))
    step = controller.step(known, forecast(known, np.array([[2.0, 2.0, 0.5]] * 2)))
    assert not step.trains.any()


def test_the_window_is_put_where_little_is_held_in_vain() -> None:
    """Every day at 05:00 intensity has risen by 0.4, so that a window within three hours of that is held much higher."""
    history = np.full((2, HISTORY + 30), 0.5)
    history[:, 5::24] = 0.9
    asked = problem(traces(history), rounds=2, slack=28, hours=None, budget_kg=4.0)  # the last slot is at 05:00
    controller = Controller(without_intensity(asked), Settings(reserve=0.0))
    for slot in range(5):
        known = traces(history[:, : HISTORY + slot])
        controller.step(known, forecast(known, np.full((2, 30 - slot), 0.5)))
        assert controller.state.window_at == 25, "01:00, the last hour that is not near it"


def test_fairness_counts_what_clients_already_got() -> None:
    """Client 0 had all of the first half; what is left goes to the other."""
    truth = np.full((2, HISTORY + 20), 0.2)
    truth[:, ::7] = 0.5
    asked = problem(traces(truth), rounds=2, slack=18, hours=None, fine_tune=0, budget_kg=3.0)
    state = State.initial(asked)
    state.trained[0, :8], state.slot = True, 8
    controller = Controller(without_intensity(asked), Settings(), state)
    known = traces(truth[:, : HISTORY + 8])
    controller.step(known, forecast(known, truth[:, HISTORY + 8 :]))
    left = controller.state.plan[:, 8:].sum(axis=1)
    assert left[1] > left[0]


def test_a_state_can_be_stored_and_goes_on_the_same() -> None:
    truth = daily(3, HISTORY + 24, seed=5)
    asked = problem(traces(truth))
    guess = _guesser("random", 1)
    first = Controller(without_intensity(asked), Settings())
    for slot in range(10):
        known = traces(truth[:, : HISTORY + slot - 1])
        first.step(known, guess(known, 24))
    again = Controller(
        without_intensity(asked), Settings(), State.from_dict(json.loads(json.dumps(first.state.to_dict())))
    )
    for slot in range(10, 14):
        known = traces(truth[:, : HISTORY + slot - 1])
        ahead = forecast(known, daily(3, 30, slot))
        one, other = first.step(known, ahead), again.step(known, ahead)
        assert np.array_equal(one.trains, other.trains)
        assert one.held_kg == other.held_kg
    with pytest.raises(DataError, match="state of the run cannot be read"):
        State.from_dict({"slot": 3})


@pytest.mark.parametrize("shape", [[10**6, 10**6], [3, 1], [-3, -24], [10**30, 24], [2.5, 3], ["a", 3], [3]])
def test_a_state_that_claims_another_size_is_refused_before_it_is_unpacked(shape: list[object]) -> None:
    data = State.initial(problem(traces(daily(3, HISTORY + 24, seed=5)))).to_dict()
    State.from_dict(data)
    data["plan"] = data["plan"] | {"shape": shape}
    with pytest.raises(DataError, match="state of the run cannot be read"):
        State.from_dict(data)


def test_measured_emissions_take_the_place_of_modelled_ones() -> None:
    truth = daily(2, HISTORY + 24, seed=6)
    asked = problem(traces(truth))
    state = State.initial(asked)
    state.trained[:, :3], state.slot = True, 4
    known = traces(truth[:, : HISTORY + 4])
    measured = np.full((2, 24), np.nan)
    measured[0, 0] = 0.7
    modelled = (
        Controller(without_intensity(asked), Settings(), State.from_dict(state.to_dict())).step(known, None).spent_kg
    )
    spent = Controller(without_intensity(asked), Settings(), state).step(known, None, measured_kg=measured).spent_kg
    assert spent == pytest.approx(modelled + 0.7 - truth[0, HISTORY])


def test_the_window_is_moved_then_shortened_then_dropped_and_said() -> None:
    """What seems to cost nothing costs a lot: the budget goes before the window, which must give way."""
    truth = np.full((2, HISTORY + 12), 0.4)
    truth[:, ::3] = 0.1
    asked = problem(traces(truth), rounds=4, slack=8, fine_tune=3, hours=None, budget_kg=1.7)
    _, steps, _ = _drive(asked, truth, _guesser("none", 0), Settings(margin=1.5), lag=2)
    said = " ".join(message for step in steps for message in step.messages)
    assert "The window is moved from slot" in said
    assert "The window is shortened to" in said
    poor = problem(traces(truth), rounds=4, slack=8, fine_tune=1, hours=None, budget_kg=0.1)
    controller, steps, _ = _drive(poor, truth, _guesser("none", 0), Settings())
    assert "The window is dropped" in " ".join(message for step in steps for message in step.messages)
    assert controller.state.window_done == 0


def test_never_plans_once_and_six_plans_every_six() -> None:
    truth = daily(2, HISTORY + 24, seed=8)
    asked = problem(traces(truth))
    for every, most in ((None, 1), (6, 8), (1, 24)):
        _, steps, _ = _drive(asked, truth, _guesser("random", 2), Settings(replan_slots=every))
        planned = [step.slot for step in steps if step.replanned]
        assert planned[0] == 0
        assert len(planned) <= most
        if every == 6:
            assert planned[1] == 6


def test_what_cannot_be_steered_is_refused() -> None:
    truth = daily(2, HISTORY + 24)
    asked = problem(traces(truth))
    with pytest.raises(DataError, match="they lie in the future"):
        Controller(asked).step(traces(truth), None)
    with pytest.raises(DataError, match="need 7 days of actual intensity"):
        Controller(asked).step(
            traces(truth[:, 100:HISTORY], asked.first_slot - 92 * (asked.slot_start(1) - asked.slot_start(0))), None
        )
    with pytest.raises(DataError, match="The state belongs to a run"):
        Controller(asked, Settings(), State.initial(asked.with_settings(slack=3)))
    controller, _, _ = _drive(asked, truth, _guesser("none", 0), Settings())
    with pytest.raises(SlackwaterError, match="The run is over"):
        controller.step(traces(truth[:, :HISTORY]), None)


@pytest.mark.parametrize(
    ("key", "value"),
    [("replan_slots", 0), ("reserve", 0.4), ("reserve", -0.1), ("reserve", 1.0), ("margin", 0.9), ("lookback_days", 3)],
)
def test_settings_are_checked(key: str, value: float) -> None:
    with pytest.raises(ScenarioError, match=key.split("_")[0]):
        Settings(**{key: value})  # type: ignore[arg-type]
