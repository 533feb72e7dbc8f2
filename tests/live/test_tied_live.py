"""Live runs of tied clients: server, limit, quorum, starts, levels and prices, with re-planning and an exact recount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, ZONES, Sites

from slackwater.intensity.forecast.base import Persistence
from slackwater.intensity.prices import Prices
from slackwater.ledger.ledger import Charge
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveResult, LiveSettings
from slackwater.live.runner import _schedule, carry_out
from slackwater.live.sites import Work
from slackwater.planning.fleet import Client
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem, Server
from slackwater.planning.schedule import plan_from_matrix
from slackwater.replanning import backtest
from slackwater.replanning.run_state import Settings

SLOTS = 16
SLEEPER = {"idle_w": 100.0, "startup_kwh": 0.2, "startup_minutes": 60, "min_block_slots": 2}
LEVELS = {"levels": [{"power_w": 1000, "work": 1.0}, {"power_w": 450, "work": 0.7}]}


def tied(budget_kg: float = 7.0, **more: Any) -> Problem:
    """lyon sleeps, oslo has levels, rome is plain; a server in Norway, two or three clients in a slot, and prices."""
    own = {"lyon": SLEEPER, "oslo": LEVELS}
    clients = [
        Client(name=name, zone=zone, power_w=1000, **own.get(name, {}))  # type: ignore[arg-type]
        for name, zone in zip(NAMES, ZONES, strict=True)
    ]
    per_kwh = np.random.default_rng(2).uniform(-0.02, 0.3, (3, SLOTS))
    settings: dict[str, Any] = {
        "server": Server(zone="NO", power_w=200, pue=1.1),
        "max_parallel": 3,
        "min_parallel": 2,
        "price": Prices(zones=ZONES, start=world.START, per_kwh=per_kwh),
        "price_weight": 0.1,
    }
    return Problem(
        clients=clients, traces=world.actuals(SLOTS), start=world.START, rounds=6, slack=SLOTS - 6, fine_tune=1,
        budget_kg=budget_kg, **settings | more,
    )  # fmt: skip


def asked(**more: Any) -> Plan:
    return make_plan(tied(**more), solver="greedy", planner="paper")  # as back-tests plan


def run(folder: Path, sites: Sites | None = None, plan: Plan | None = None, **settings: Any) -> LiveResult:
    world.made(folder, plan or asked(), **{"source": "playback", "replan_slots": 5, "reserve": 0.0} | settings)
    return carry_out(folder, sites or Sites(), world.initial())


def lines(folder: Path) -> list[Charge]:
    with Run.open(folder, read_only=True) as found:
        return list(found.ledger.charges())


def trained(folder: Path) -> np.ndarray[Any, Any]:
    matrix = np.zeros((3, SLOTS), dtype=bool)
    for slot, name in world.outcomes(folder):
        matrix[NAMES.index(name), slot] = True
    return matrix


def test_a_run_is_what_the_back_test_says_to_the_last_gram(tmp_path: Path) -> None:
    plan = asked()
    work: list[Mapping[str, Work]] = []
    done = run(tmp_path, Sites(before_train=work.append), plan)
    expected = backtest(plan.problem, world.actuals(SLOTS), Persistence(), Settings(replan_slots=5, reserve=0.0))
    assert np.array_equal(trained(tmp_path), expected.trained)
    assert done.emissions_kg == pytest.approx(expected.realised_kg, rel=1e-9)
    assert done.emissions_kg <= plan.problem.budget_kg
    assert done.unsettled_kg == 0.0
    assert world.recount(tmp_path) == pytest.approx(done.emissions_kg, rel=1e-9)
    causes = Counter(line.cause for line in lines(tmp_path) if line.kind == "charge")
    assert causes["server"] == len(done.history)
    assert causes["startup"] >= 1
    assert causes["idle"] >= 2
    assert all(2 <= len(one.participants) <= 3 for one in done.history if not one.in_window)
    shares = {(one.slot, name): share for one in done.history for name, share in one.work.items()}
    sent = {
        (one[name].slot, name): one[name].config["work"] for one in work for name in one if "work" in one[name].config
    }
    assert shares == sent
    assert set(shares.values()) <= {0.7}
    assert {name for _, name in shares} == {"oslo"}


def test_a_lower_level_is_charged_at_its_own_power(tmp_path: Path) -> None:
    done = run(tmp_path, plan=asked(budget_kg=4.5))
    lower = {(one.slot, "oslo") for one in done.history if "oslo" in one.work}
    booked = {
        (line.slot, line.client): line.energy_kwh
        for line in lines(tmp_path)
        if (line.cause, line.kind) == ("training", "charge")
    }
    assert lower
    for key, kwh in booked.items():
        power = 0.45 if key in lower else 0.9 if key[1] == "lyon" else 1.0
        assert kwh == pytest.approx(power)


def test_without_a_quorum_nobody_trains_and_only_waiting_is_charged(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    first = next(one for one in whole.history if len(one.participants) == 2 and not one.in_window)
    gone = first.participants[0]
    cut = run(tmp_path / "cut", Sites(offline=lambda look: {gone} if look == first.slot else set()))
    assert first.slot not in {one.slot for one in cut.history}
    assert {line.cause for line in lines(tmp_path / "cut") if line.slot == first.slot} <= {"idle", "startup"}
    assert f"Nobody trains in slot {first.slot}: only 1 of 2 planned clients can" in world.said(tmp_path / "cut")
    assert all(2 <= len(one.participants) <= 3 for one in cut.history if not one.in_window)
    assert cut.emissions_kg <= whole.budget_kg
    with Run.open(tmp_path / "cut", read_only=True) as found:
        assert first.slot + 1 in {one.slot for one in found.journal.replans()}


def test_a_fixed_plan_keeps_the_quorum_too(tmp_path: Path) -> None:
    problem = world.problem(4, min_parallel=2, server=Server(zone="IT", power_w=100))
    matrix = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]], dtype=bool)
    world.made(tmp_path, plan_from_matrix(problem, matrix, end=0))
    done = carry_out(tmp_path, Sites(offline=lambda look: {"oslo"} if look in (2, 3) else set()), world.initial())
    assert [one.slot for one in done.history] == [0, 1, 3], "the window trains with those who are there"
    assert "Nobody trains in slot 2: only 1 of 2 planned clients can" in world.said(tmp_path)
    assert not [line for line in lines(tmp_path) if line.slot == 2]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("at", [1, 3])
def test_a_killed_run_goes_on_and_pays_nothing_twice(tmp_path: Path, at: int) -> None:
    plan = asked()
    world.made(tmp_path, plan, source="playback", replan_slots=5, reserve=0.0)
    sites = Sites()

    def kill(work: Mapping[str, Work]) -> None:
        if len({slot for slot, _ in sites.trained}) == at:
            raise Killed

    sites.before_train = kill
    with pytest.raises(Killed):
        carry_out(tmp_path, sites, world.initial())
    sites.before_train = lambda work: None
    done = carry_out(tmp_path, sites, world.initial())
    assert "lost" in world.outcomes(tmp_path).values()
    assert done.emissions_kg <= plan.problem.budget_kg
    assert done.unsettled_kg == 0.0
    assert world.recount(tmp_path) == pytest.approx(
        done.emissions_kg, rel=1e-9
    )  # which also finds what is charged twice
    starts = [line.slot for line in lines(tmp_path) if (line.cause, line.kind) == ("startup", "charge")]
    idle = [line.slot for line in lines(tmp_path) if (line.cause, line.kind, line.client) == ("idle", "charge", "lyon")]
    assert {slot + 1 for slot in starts} <= {*idle}, "a start leads to being up, whenever the server was gone"
    assert max(Counter(sites.trained).values()) == 1


def test_a_server_whose_kg_are_given_is_charged_as_given(tmp_path: Path) -> None:
    given = np.linspace(0.01, 0.02, SLOTS)
    done = run(tmp_path, plan=asked(server=None, server_kg=given))
    server = [line for line in lines(tmp_path) if line.cause == "server"]
    assert [line.slot for line in server] == [one.slot for one in done.history]
    assert [line.kg for line in server] == [pytest.approx(given[line.slot]) for line in server]
    assert all(line.kind == "charge" and line.intensity_kind == "estimated" for line in server)
    assert done.unsettled_kg == 0.0


def test_the_budget_in_money_holds(tmp_path: Path) -> None:
    prices = replace(tied().price, per_kwh=np.full((3, SLOTS), 0.2))  # type: ignore[type-var]
    plan = asked(price=prices, price_weight=0.0, budget_money=2.2, budget_kg=50.0)
    run(tmp_path, plan=plan)
    kwh = sum(line.energy_kwh or 0.0 for line in lines(tmp_path) if line.kind == "charge")
    assert 1.5 < kwh * 0.2 <= 2.2 * (1 + 1e-9)


def test_providers_are_asked_for_the_servers_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []

    def of(data: Any, zones: list[str], **more: Any) -> Any:
        asked_for.extend(zones)

    monkeypatch.setattr("slackwater.live.runner.ProviderFeed.of", of)
    plan = world.plan()
    clients = [Client(name=name, zone="FR", power_w=1000) for name in NAMES]
    moved = replace(plan, problem=plan.problem.with_settings(clients=clients, server=Server(zone="NO", power_w=100)))
    settings = LiveSettings(source="providers", replan_slots=1)
    _schedule(tmp_path, moved, settings, moved.problem)
    assert asked_for == ["FR", "NO"]
