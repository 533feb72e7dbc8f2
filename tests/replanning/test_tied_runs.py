"""Re-planning where clients are tied: by a server, a limit, a quorum, starts, levels, prices and a budget in money."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from worlds import HISTORY, START, daily, forecast, traces

import slackwater as sw
from slackwater.intensity.forecast.base import Persistence
from slackwater.intensity.forecast.forecasters import Oracle
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import HIGHEST_KG_PER_KWH, Traces
from slackwater.planning.emissions import emissions
from slackwater.planning.problem import Server
from slackwater.replanning import backtest, past_plans_before
from slackwater.replanning.backtest import without_intensity
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.remaining import solve
from slackwater.replanning.reserve import Bounds
from slackwater.replanning.run_state import Settings, State

_ROUNDING = 1 + 1e-9
SERVER = Server(zone="z4", power_w=400, pue=1.2)


def _clients(**more: dict[str, Any]) -> list[sw.Client]:
    """Four clients of 1 kW; `z1={..}` gives one of them further settings."""
    return [
        sw.Client(**({"name": zone, "zone": zone, "power_w": 1000} | more.get(zone, {}))) for zone in ("z0", "z1", "z2", "z3")
    ]  # fmt: skip


SLEEPER = {"idle_w": 120.0, "startup_kwh": 0.3, "startup_minutes": 120, "min_block_slots": 3}
LEVELS = {"levels": [{"power_w": 1000, "work": 1.0}, {"power_w": 500, "work": 0.75}]}


def _problem(truth: NDArray[np.float64], clients: list[sw.Client] | None = None, **settings: Any) -> sw.Problem:
    settings = {"rounds": 4, "slack": 20, "budget_kg": 5.0} | settings
    return sw.Problem(clients=clients or _clients(), traces=traces(truth), start=START, **settings)


def _prices(seed: int) -> Prices:
    per_kwh = np.random.default_rng(seed).uniform(-0.05, 0.4, (5, 24 + 48))
    return Prices(zones=tuple(f"z{i}" for i in range(5)), start=START, per_kwh=per_kwh)


def _tied(seed: int) -> tuple[sw.Problem, NDArray[np.float64]]:
    """A problem with a random choice of all that ties clients, and the intensity that comes."""
    rng = np.random.default_rng(seed)
    truth = daily(5, HISTORY + 24, seed, float(rng.choice([0.1, 0.5])))
    pick = iter(rng.random(12) < 0.5)
    more: dict[str, Any] = {}
    if next(pick):
        more["max_parallel"] = int(rng.integers(1, 4))
    if next(pick):
        more["min_parallel"] = int(rng.integers(1, more.get("max_parallel", 3) + 1))
    if next(pick):
        more["server"] = SERVER
    elif next(pick):
        more["server_kg"] = rng.uniform(0.0, 0.1, 24)
    if next(pick):
        more |= {"price": _prices(seed), "price_weight": float(rng.choice([0.0, 0.5]))}
        if next(pick):
            more["budget_money"] = float(rng.uniform(1.0, 6.0))
    sleeper = SLEEPER | {"startup_minutes": float(rng.choice([0, 60, 180])), "min_block_slots": int(rng.integers(1, 5))}
    named = {
        "z1": sleeper if next(pick) else {},
        "z2": LEVELS if next(pick) else {},
        "z3": {"idle_w": 40.0 * next(pick)},
    }
    return _problem(
        truth, _clients(**named), fine_tune=int(rng.integers(0, 3)), recall=int(rng.choice([0, 0, 6])),
        alpha=rng.choice([1.0, 0.1]).item(), budget_kg=float(rng.uniform(0.3, 14)), **more,
    ), truth  # fmt: skip


def _guess(rng: np.random.Generator, known: Traces, slots: int) -> Any:
    if rng.random() < 0.2:
        return None
    return forecast(known, rng.uniform(0, 1, (len(known.zones), slots)), 0.5)


def _drive(
    asked: sw.Problem, truth: NDArray[np.float64], settings: Settings, *, seed: int = 0, absent: float = 0.0
) -> tuple[Controller, list[Step], NDArray[np.float64], list[NDArray[np.bool_]]]:
    """Slot by slot, with every slot right at its bound; the state goes through JSON each time."""
    truth, rng = truth.copy(), np.random.default_rng(seed)
    controller, steps, seen = Controller(without_intensity(asked), settings), list[Step](), []
    while not controller.finished:
        slot = controller.state.slot
        known = traces(truth[:, : HISTORY + slot - 1])
        present = rng.random(4) >= absent
        step = controller.step(known, _guess(rng, known, asked.horizon - slot + 1), present=present)
        steps.append(step)
        seen.append(present)
        if controller.state.stopped_at != slot:
            emitted = _slot_kg(asked, controller.state, slot, truth[:, HISTORY + slot])
            given = _given_kg(asked, controller.state, slot)
            bound = Bounds(known, margin=settings.margin, lookback_days=settings.lookback_days)
            held_kg = (
                bound.kg(_slot_kwh(asked, controller.state, slot), 2) + given
            )  # its actual is two slots after the last
            assert step.held_kg == pytest.approx(held_kg) or (step.in_window and step.held_kg < held_kg)
            if emitted > given:
                truth[:, HISTORY + slot] *= (step.held_kg - given) / (emitted - given)
                truth[:, HISTORY + slot] = np.minimum(truth[:, HISTORY + slot], HIGHEST_KG_PER_KWH)
        if not controller.finished:
            state = State.from_dict(json.loads(json.dumps(controller.state.to_dict())))
            controller = Controller(without_intensity(asked), settings, state)
    return controller, steps, truth, seen


def _given_kg(asked: sw.Problem, state: State, slot: int) -> float:
    return (
        float(np.asarray(asked.server_kg)[slot])
        if asked.server_kg is not None and state.trained[:, slot].any()
        else 0.0
    )


def _slot_kwh(asked: sw.Problem, state: State, slot: int) -> NDArray[np.float64]:
    """Return the energy of each client, and of the server as the fifth: counted here from the state alone."""
    costs, kwh = asked.costs, np.zeros(5)
    for client in range(4):
        if state.trained[client, slot]:
            kwh[client] += costs.level_kwh[client, 0 if state.levels is None else state.levels[client, slot]]
        kwh[client] += costs.idle_kwh[client]
        if state.up is not None and state.starting is not None and costs.sleeps[client]:
            before = slot > 0 and state.up[client, slot - 1]
            kwh[client] += costs.up_kwh[client] * state.up[client, slot]
            if costs.lead[client]:
                kwh[client] += costs.startup_kwh[client] / costs.lead[client] * state.starting[client, slot]
            elif state.up[client, slot] and not before:
                kwh[client] += costs.startup_kwh[client]
    if asked.server is not None and state.trained[:, slot].any():
        kwh[4] += asked.server.power_w / 1000 * asked.server.pue
    return kwh


def _slot_kg(asked: sw.Problem, state: State, slot: int, intensity: NDArray[np.float64]) -> float:
    return float(_slot_kwh(asked, state, slot) @ intensity) + _given_kg(asked, state, slot)


def _assert_states(asked: sw.Problem, state: State, stop: int) -> None:
    """Clients that sleep train only while up, after a whole start, and stay up as long as they must."""
    costs = asked.costs
    if state.up is None or state.starting is None:
        return
    assert not (state.up & state.starting).any()
    for client in np.flatnonzero(costs.sleeps):
        up, starting = state.up[client, :stop], state.starting[client, :stop]
        assert not (state.trained[client, :stop] & ~up).any()
        for slot in np.flatnonzero(up & ~np.concatenate([[False], up[:-1]])):
            lead = int(costs.lead[client])
            assert slot >= lead
            assert starting[slot - lead : slot].all()
            block = up[slot:].tolist().index(False) if not up[slot:].all() else None
            assert block is None or block >= costs.min_block[client], "a block ends early only at the end of the run"
        begun = np.flatnonzero(starting & ~np.concatenate([[False], starting[:-1]]))
        for slot in begun:
            over = slot + int(costs.lead[client])
            assert over >= stop or up[over], "every start leads to a slot up"


@pytest.mark.parametrize("seed", range(30))
def test_the_budget_holds_whatever_ties_the_clients(seed: int) -> None:
    asked, truth = _tied(seed)
    every = (1, 4, None)[seed % 3]
    controller, steps, truth, seen = _drive(
        asked, truth, Settings(replan_slots=every, reserve=0.6), seed=seed, absent=(0.0, 0.3)[seed % 2]
    )
    state = controller.state
    stop = state.slot if state.stopped_at is None else state.stopped_at
    emitted = sum(_slot_kg(asked, state, slot, truth[:, HISTORY + slot]) for slot in range(stop))
    assert emitted <= asked.budget_kg * _ROUNDING
    for step, present in zip(steps, seen, strict=True):
        held = step.spent_kg + step.in_flight_kg + step.held_kg
        assert held <= asked.budget_kg * _ROUNDING
        count = int(step.trains.sum())
        assert not (step.trains & ~present).any()
        if count and not step.in_window:
            assert held + step.protected_kg <= asked.budget_kg * _ROUNDING
            assert count <= (asked.max_parallel or 4)
            assert count >= (asked.min_parallel or 1)
        if step.in_window:
            assert not step.level.any(), "the window trains at full power"
    _assert_states(asked, state, stop)
    if asked.budget_money is not None and asked.costs.price is not None:
        price = np.concatenate([asked.costs.price[asked.costs.row], np.zeros((1, 24))])
        if asked.costs.server_price is not None:
            price[4] = asked.costs.server_price
        money = sum(float(_slot_kwh(asked, state, slot) @ price[:, slot]) for slot in range(stop))
        waiting = asked.costs.sleeps.any() or asked.costs.idle_kwh.any()
        assert money <= asked.budget_money * _ROUNDING or waiting


@pytest.mark.parametrize(
    ("named", "more"),
    [
        ({}, {"server": SERVER, "max_parallel": 3}),
        ({}, {"server": SERVER, "min_parallel": 2}),
        ({}, {"max_parallel": 1}),
        ({"z2": LEVELS}, {}),
        ({}, {"price": _prices(3), "price_weight": 0.4}),
        ({}, {"price": _prices(3), "budget_money": 2.0}),
        ({}, {"server": SERVER, "max_parallel": 3, "recall": 5, "min_parallel": 2}),
    ],
)
def test_perfect_foresight_captures_almost_everything(named: dict[str, Any], more: dict[str, Any]) -> None:
    truth = daily(5, HISTORY + 24, 7)
    asked = _problem(truth, _clients(**named), fine_tune=1, budget_kg=6.0, **more)
    done = backtest(asked, traces(truth), Oracle(traces(truth)), Settings(reserve=0.0, margin=1.0), lag=0)
    assert done.breaches == 0
    assert done.realised_kg <= asked.budget_kg * _ROUNDING
    assert 0.9 < done.share <= 1.001


def test_a_backtest_counts_what_came() -> None:
    truth = daily(5, HISTORY + 24, 5)
    clients = _clients(z2=LEVELS)
    asked = _problem(truth, clients, fine_tune=1, budget_kg=6.0, server=SERVER, max_parallel=3, min_parallel=2)
    done = backtest(asked, traces(truth), Persistence())
    packed = np.packbits(done.trained, axis=1)
    lowest = np.zeros((4, 24), dtype=np.uint8)
    lowest[2, : done.stop - 1] = 1
    least = emissions(asked, packed, done.stop - asked.rounds, lowest).total_kg
    most = emissions(asked, packed, done.stop - asked.rounds).total_kg
    assert least <= done.realised_kg <= most, "levels are somewhere between the lowest and full power"
    together = done.trained.sum(axis=0)
    assert set(together[: done.stop - 1].tolist()) <= {0, 2, 3}
    free = backtest(_problem(truth, fine_tune=1, budget_kg=6.0), traces(truth), Persistence())
    assert free.slots > done.slots, "the server and the limit cost slots"


def _step_with(asked: sw.Problem, truth: NDArray[np.float64], present: list[bool]) -> Step:
    controller = Controller(without_intensity(asked), Settings(reserve=0.0))
    known = traces(truth[:, : HISTORY - 1])
    mean = forecast(known, truth[:, HISTORY - 1 :])
    return controller.step(known, mean, present=np.array(present))


def test_without_a_quorum_nobody_trains() -> None:
    truth = np.full((5, HISTORY + 24), 0.5)
    truth[:, HISTORY] = 0.1  # now is the time, for everybody
    asked = _problem(truth, budget_kg=4.5, min_parallel=3)
    assert int(_step_with(asked, truth, [True] * 4).trains.sum()) == 4
    assert _step_with(asked, truth, [True, True, True, False]).trains.tolist() == [True, True, True, False]
    few = _step_with(asked, truth, [True, False, True, False])
    assert not few.trains.any()
    assert few.held_kg == 0
    assert (
        "Nobody trains in slot 0: only 2 of 4 planned clients can, and min_parallel asks for at least 3."
        in few.messages
    )
    assert few.wanted is not None
    assert few.wanted.tolist() == [False, True, False, True], "they are missing; the others are not"


def test_a_start_in_progress_is_carried_on() -> None:
    """Half-way through a start the run re-plans, and the client is up when its start is over."""
    truth = np.full((5, HISTORY + 24), 0.5)
    truth[1] = 0.6  # the dearest, so that it gains nothing
    truth[1, HISTORY + 6 : HISTORY + 12] = 0.05
    asked = _problem(truth, _clients(z1=SLEEPER), budget_kg=8.0)
    controller = Controller(without_intensity(asked), Settings(reserve=0.0))
    for slot in range(8):
        known = traces(truth[:, : HISTORY + slot])
        controller.step(known, forecast(known, truth[:, HISTORY + slot :]))
    state = controller.state
    assert state.up is not None
    assert state.starting is not None
    assert state.starting[1, :8].tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert state.up[1, :8].tolist() == [False] * 6 + [True] * 2
    assert not state.trained[1, :6].any()


def test_states_without_ties_are_written_as_before() -> None:
    truth = daily(5, HISTORY + 24, 1)
    plain, tied = _problem(truth), _problem(truth, _clients(z1=SLEEPER, z2=LEVELS))
    assert not {"levels", "up", "starting"} & set(State.initial(plain).to_dict())
    assert {"levels", "up", "starting"} <= set(State.initial(tied).to_dict())


def test_past_plans_know_the_ties() -> None:
    truth = traces(daily(5, HISTORY + 24 * 30, 2), START - timedelta(hours=HISTORY + 24 * 20))
    asked = sw.Problem(
        clients=_clients(z1=SLEEPER), traces=truth, start=START, rounds=4, slack=20, budget_kg=6.0, server=SERVER, max_parallel=2,
        price=_prices(1), price_weight=0.2,
    )  # fmt: skip
    tied, free = (
        past_plans_before(one, truth, Persistence())
        for one in (asked, asked.with_settings(server=None, max_parallel=None, clients=_clients()))
    )
    assert tied is not None
    assert free is not None
    assert tied.excess.shape == free.excess.shape
    assert not np.allclose(tied.excess, free.excess)


def test_the_rest_pays_for_starts() -> None:
    truth = daily(5, HISTORY + 24, 4)
    asked = _problem(truth, _clients(z1=SLEEPER | {"startup_kwh": 2.0}), budget_kg=3.0)
    rest = solve(asked)
    assert rest is not None
    chosen = rest.matrix.copy()
    chosen[:, rest.window_at] = True
    came = emissions(asked, np.packbits(chosen, axis=1), rest.window_at + 1 - asked.rounds, rest.levels)
    assert came.startup_kg[1] > 0
    assert came.total_kg <= asked.budget_kg * _ROUNDING
    assert solve(asked.with_settings(budget_kg=0.3)) is None
