"""Whole runs with everything that can go wrong, at random: the books are right and the budget holds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, Sites

from slackwater.ledger.run import Run
from slackwater.live.runner import carry_out
from slackwater.planning.planner import plan as make_plan

TRICKS = ["", "", "", "failed", "late", "lost", "silent", "nan", "shape", "long", "empty"]


class Cut(Exception):
    """The process is gone."""


class Chaos(Sites):
    """Sites whose every slot may go wrong, on a machine that may stop at any moment."""

    def __init__(self, seed: int, session: int) -> None:
        super().__init__()
        self.chance = random.Random(f"{seed} {session}")
        self.tricks = _Any(self.chance)
        self.offline = lambda look: {name for name in NAMES if self.chance.random() < 0.15}
        self.energy_kwh = lambda work, name: self.chance.choice([None, self.chance.uniform(0.0, 1.0)])

    def online(self) -> Any:
        self._perhaps_stop()
        return super().online()

    def train(self, work: Any, until: Any) -> Any:
        self._perhaps_stop()
        for reply in super().train(work, until):
            self._perhaps_stop()
            yield reply

    def _perhaps_stop(self) -> None:
        if self.chance.random() < 0.04:
            raise Cut


class _Any(dict[Any, str]):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    def get(self, key: Any, default: Any = None) -> Any:
        return self.chance.choice(TRICKS)


def carried_out(folder: Path, seed: int) -> Any:
    """The sessions that a run takes, and all that was asked of clients in them."""
    asked: list[tuple[int, str]] = []
    for session in range(200):
        sites = Chaos(seed, session)
        try:
            done = carry_out(folder, sites, world.initial())
        except Cut:
            asked += sites.trained
            assert world.recount(folder) == pytest.approx(world.spent(folder), rel=1e-9)
            continue
        return done, asked + sites.trained
    raise AssertionError("the run never ended")


@pytest.mark.parametrize("guide", ["plan", "replanned"])
@pytest.mark.parametrize("seed", range(4))
def test_anything_goes_wrong(tmp_path: Path, guide: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    idle = float(chance.choice([0.0, 50.0]))
    if guide == "plan":
        rows = ["".join(chance.choice(list("x."), 9)) + "xx" for _ in NAMES]
        budget = world.plan(rows, fine_tune=2, idle_w=idle).emissions_kg
        world.made(
            tmp_path, world.plan(rows, fine_tune=2, idle_w=idle, budget_kg=budget * (1 + 1e-12)), max_rejections=9
        )
    else:
        asked_for = world.problem(6, slack=8, fine_tune=2, idle_w=idle)
        costs = asked_for.costs
        budget = float(costs.dense()[:, : int(chance.integers(3, 9))].sum() + 1.3 * costs.idle_kg().sum())
        made = make_plan(asked_for.with_settings(budget_kg=budget))
        world.made(
            tmp_path, made, source="playback", replan_slots=int(chance.choice([1, 3])), reserve=0.0, max_rejections=9
        )
    done, asked = carried_out(tmp_path, seed)
    assert len(asked) == len(set(asked)), "nobody trains a slot twice"
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path), rel=1e-9)
    assert done.emissions_kg <= done.budget_kg * (1 + 1e-9)
    assert done.unsettled_kg == 0.0
    outcomes = world.outcomes(tmp_path)
    assert "running" not in outcomes.values()
    used = {(one.slot, name) for one in done.history for name in one.participants}
    assert used == {key for key, outcome in outcomes.items() if outcome == "done"}
    started = {key for key, outcome in outcomes.items() if outcome not in ("offline", "refused")}
    assert set(asked) <= started
    assert {outcomes[key] for key in started - set(asked)} <= {"lost"}, "booked, and cut before it was sent"
    with Run.open(tmp_path, read_only=True) as run:
        charged = {(line.slot, line.client) for line in run.ledger.charges() if line.cause == "training"}
    assert charged == started
    assert np.isfinite(done.arrays["layer.bias"]).all()
