"""The states of sleeping clients: the cheapest pattern around given training slots, by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np
import pytest

from slackwater.errors import ScenarioError
from slackwater.intensity.traces import Traces
from slackwater.planning import states
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem
from slackwater.planning.states import reachable, startups, up_states


def problem(intensity: Sequence[float], clients: Sequence[dict[str, Any]], **more: Any) -> Problem:
    traces = Traces(
        zones=("Z",), start=datetime(2022, 1, 1, tzinfo=UTC), intensity=np.array([intensity]), factor="direct"
    )
    made = [Client(name=f"c{i}", zone="Z", **{"power_w": 900} | one) for i, one in enumerate(clients)]
    settings = {"rounds": len(intensity), "fine_tune": 0, "budget_kg": 9.0} | more
    return Problem(clients=made, traces=traces, **settings)


def sleeper(idle: float, startup: float, lead: int, block: int) -> dict[str, Any]:
    return {"idle_w": idle, "startup_kwh": startup, "startup_minutes": 60.0 * lead, "min_block_slots": block}


def up_of(asked: Problem, *rows: str, end: int = 0) -> list[str]:
    trains = np.array([[mark == "x" for mark in row] for row in rows])
    found = up_states(asked, np.packbits(trains, axis=1), end)
    return ["".join("u" if there else "." for there in row) for row in found]


def cost(
    up: Sequence[int], intensity: Sequence[float], idle: float, startup: float, lead: int, block: int, before: int
) -> float | None:
    """Return the kg of a pattern, spelled out block by block; None if it is not allowed."""
    slots, kg, slot = len(up), idle / 1000 * sum(i for i, there in zip(intensity, up, strict=True) if there), 0
    if 0 < before < block and not up[0]:
        return None
    while slot < slots:
        if not up[slot]:
            slot += 1
            continue
        stop = next((t for t in range(slot, slots) if not up[t]), slots)
        continues = slot == 0 and before > 0
        if stop < slots and stop - slot + (before if continues else 0) < block:
            return None
        if not continues:
            if slot < lead or any(up[slot - lead : slot]):
                return None
            over = intensity[slot - lead : slot] if lead else intensity[slot : slot + 1]
            kg += startup * sum(over) / len(over)
        slot = stop
    return kg


@pytest.mark.parametrize("seed", range(4))
def test_the_pattern_is_the_cheapest_of_all(seed: int) -> None:
    chance = np.random.default_rng(seed)
    seen = 0
    for case in range(150):
        slots, lead, block = int(chance.integers(3, 9)), int(chance.integers(0, 3)), int(chance.integers(1, 5))
        before = int(chance.integers(0, 4)) * int(chance.integers(0, 2))
        idle, startup = float(chance.choice([0, 100, 400])), float(chance.choice([0.0, 0.2, 1.0]))
        if not (startup or lead or block > 1):
            continue
        intensity = (chance.integers(1, 6, slots) / 10 if case % 2 else chance.random(slots)).tolist()
        trains = chance.random(slots) < 0.3
        one = sleeper(idle, startup, lead, block)
        asked = problem(intensity, [one], up_before=[before])
        ways = [
            (round(kg, 9), sum(up))
            for up in product((0, 1), repeat=slots)
            if np.all(np.array(up, dtype=bool) | ~trains)
            and (kg := cost(up, intensity, idle, startup, lead, block, before)) is not None
        ]
        packed = np.packbits(trains[None], axis=1)
        if not ways:
            with pytest.raises(ScenarioError, match="its start takes"):
                up_states(asked, packed, 0)
            continue
        up = up_states(asked, packed, 0)[0]
        kg = cost(up.astype(int).tolist(), intensity, idle, startup, lead, block, before)
        assert kg is not None
        assert (round(kg, 9), int(up.sum())) == min(ways)
        assert kg == pytest.approx((idle / 1000 * up * intensity).sum() + startups(asked, up[None]).sum(), abs=1e-12)
        seen += 1
    assert seen > 80


def test_a_client_that_does_not_sleep_is_up_until_the_end() -> None:
    asked = problem([0.1] * 6, [{"idle_w": 50}, sleeper(50, 1.0, 0, 1)], rounds=3, slack=3)
    assert up_of(asked, "x.....", "..x...", end=1) == ["uuuu..", "..u..."]
    assert asked.costs.sleeps.tolist() == [False, True]
    assert asked.costs.idle_kwh.tolist() == [0.05, 0.0]
    assert asked.costs.up_kwh.tolist() == [0.0, 0.05]


def test_waiting_or_starting_again() -> None:
    flat, dear = sleeper(100, 0.25, 0, 1), sleeper(100, 0.15, 0, 1)
    assert up_of(problem([0.1] * 4, [flat]), "x..x") == ["uuuu"]  # 0.2 kWh of waiting against 0.25 of a start
    assert up_of(problem([0.1] * 4, [dear]), "x..x") == ["u..u"]
    assert up_of(problem([0.1] * 4, [sleeper(100, 0.2, 0, 1)]), "x..x") == ["u..u"]  # equal: fewer slots up


def test_starts_begin_late_and_blocks_are_long_enough() -> None:
    assert up_of(problem([0.1] * 6, [sleeper(0, 0.1, 0, 3)]), "..x...") == ["..uuu."]  # of equal ones the latest start
    assert up_of(problem([0.1] * 6, [sleeper(10, 0.1, 0, 3)]), ".....x") == [".....u"]  # the run ends
    assert up_of(problem([0.1] * 6, [sleeper(10, 0.1, 0, 3)]), "....x.") == ["....uu"]
    two = problem([0.5, 0.5, 0.1, 0.1, 0.5, 0.5], [sleeper(100, 0.1, 0, 3)])
    assert up_of(two, "...x..") == [".uuu.."] or up_of(two, "...x..") == ["..uuu."]
    assert up_of(problem([0.1] * 6, [sleeper(10, 0.1, 0, 4)], up_before=[2]), "......") == ["uu...."]
    assert up_of(problem([0.1] * 6, [sleeper(10, 0.1, 0, 2)], up_before=[2]), "......") == ["......"]


def test_a_start_spreads_its_energy_over_the_slots_before_the_block() -> None:
    asked = problem([0.1, 0.2, 0.4, 0.8, 0.1], [sleeper(0, 0.6, 2, 1) | {"pue": 1.5}])
    up = up_states(asked, np.packbits(np.array([[0, 0, 0, 1, 0]], dtype=bool), axis=1), 0)
    assert up.tolist() == [[False, False, True, True, False]]  # idle power 0: it starts where that is cheapest
    assert startups(asked, up) == pytest.approx(np.array([[0.45 * 0.1, 0.45 * 0.2, 0, 0, 0]]))
    assert reachable(asked).tolist() == [[False, False, True, True, True]]
    assert reachable(problem([0.1] * 3, [sleeper(0, 0.6, 2, 1)], up_before=[1])).all()


@pytest.mark.parametrize(("minutes", "lead"), [(0, 0), (0.5, 1), (60, 1), (61, 2)])
def test_a_start_takes_whole_slots(minutes: float, lead: int) -> None:
    assert problem([0.1], [{"startup_minutes": minutes, "startup_kwh": 0.1}]).costs.lead.tolist() == [lead]


def test_training_before_the_first_start_is_over() -> None:
    asked = problem([0.1] * 5, [{}, sleeper(0, 0.6, 2, 1)])
    with pytest.raises(
        ScenarioError,
        match=r"'c1' trains in slot 1, but its start takes 2 slots \(startup_minutes\), so it can train from slot 2",
    ):
        up_of(asked, ".....", ".x...")
    assert up_of(asked.with_settings(up_before=[0, 1]), ".....", ".x...")[1] == "uu..."


def test_many_clients_are_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(5)
    asked = problem(
        chance.random(20).tolist(),
        [
            sleeper(float(chance.integers(0, 300)), 0.3, int(chance.integers(0, 2)), int(chance.integers(1, 5)))
            for _ in range(30)
        ],
    )
    packed = np.packbits((chance.random((30, 20)) < 0.2) & reachable(asked), axis=1)
    whole = up_states(asked, packed, 0)
    monkeypatch.setattr(states, "_CHUNK_CELLS", 300)
    assert np.array_equal(up_states(asked, packed, 0), whole)


@pytest.mark.parametrize("before", [[1], [-1, 0], [0.5, 0], "x"])
def test_up_before_that_is_wrong(before: Any) -> None:
    with pytest.raises(ScenarioError, match="up_before must"):
        problem([0.1] * 3, [{}, {}], up_before=before)
