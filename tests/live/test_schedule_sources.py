"""Runs that plan anew: what is lost is replaced where the budget allows, and the budget holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, Sites

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.feed import ProviderFeed
from slackwater.intensity.forecast.base import Persistence
from slackwater.intensity.providers.provider_errors import ProviderError
from slackwater.intensity.providers.readings import Answer, Asked, Reading
from slackwater.intensity.traces import Origin, Traces
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveResult, LiveSettings, NoRoundsError, prepare
from slackwater.live.runner import carry_out, settle
from slackwater.live.schedule_sources import Playback, Providers, Replanned
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.replanning import backtest
from slackwater.replanning.run_state import Settings


def asked(slots: int = 6, slack: int = 10, hours: int = 6, **more: Any) -> Plan:
    problem = world.problem(slots, slack=slack, fine_tune=2, **more)
    costs = problem.costs
    budget = costs.dense()[:, :hours].sum() + costs.idle_kg().sum()
    return make_plan(problem.with_settings(budget_kg=float(budget)), planner="paper")  # as back-tests plan


def run(folder: Path, sites: Sites | None = None, plan: Plan | None = None, **settings: Any) -> LiveResult:
    world.made(folder, plan or asked(), **{"source": "playback", "replan_slots": 1, "reserve": 0.0} | settings)
    return carry_out(folder, sites or Sites(), world.initial())


def test_an_undisturbed_run_is_what_the_back_test_says(tmp_path: Path) -> None:
    plan = asked(idle_w=50.0)
    done = run(tmp_path, plan=plan)
    settings = Settings(replan_slots=1, reserve=0.0)
    expected = backtest(plan.problem, world.actuals(plan.problem.horizon), Persistence(), settings)
    trained = np.zeros_like(expected.trained)
    for slot, name in world.outcomes(tmp_path):
        trained[NAMES.index(name), slot] = True
    assert np.array_equal(trained, expected.trained)
    assert done.emissions_kg == pytest.approx(expected.realised_kg, rel=1e-9)
    assert done.unsettled_kg == 0.0
    assert world.recount(tmp_path) == pytest.approx(done.emissions_kg, rel=1e-9)
    with Run.open(tmp_path, read_only=True) as found:
        replans = found.journal.replans()
        kinds = {line.intensity_kind for line in found.ledger.charges() if line.kind == "settlement"}
    assert len(replans) >= 5
    assert replans[0].changes
    assert kinds == {"actual"}


def test_the_budget_holds_at_every_moment(tmp_path: Path) -> None:
    plan = asked()
    seen: list[float] = []

    def look(work: Any) -> None:
        with Run.open(tmp_path, read_only=True) as found:
            seen.append(found.ledger.spent_kg())

    done = run(tmp_path, Sites(before_train=look, tricks={(2, n): "lost" for n in NAMES}), plan)
    assert max(seen) <= plan.problem.budget_kg * (1 + 1e-9)
    assert done.emissions_kg <= plan.problem.budget_kg


@pytest.mark.parametrize("trouble", ["lost", "nan", "offline"])
def test_lost_slots_are_replaced(tmp_path: Path, trouble: str) -> None:
    plan = asked(slack=14, hours=20, max_slots=3)
    whole = run(tmp_path / "whole", plan=plan)
    first = next(one for one in whole.history if "lyon" in one.participants)
    sites = Sites(tricks={(first.slot, "lyon"): trouble})
    if trouble == "offline":
        sites = Sites(offline=lambda look: {"lyon"} if look == first.slot else set())
    again = run(tmp_path / "cut", sites, plan)
    assert world.outcomes(tmp_path / "cut")[first.slot, "lyon"] == {"nan": "rejected"}.get(trouble, trouble)
    slots = [one.slot for one in again.history if "lyon" in one.participants and not one.in_window]
    assert len(slots) == 3
    assert first.slot not in slots
    assert again.shortfall == {}
    assert again.emissions_kg <= plan.problem.budget_kg


def test_who_is_gone_for_good_is_planned_without_and_the_window_does_not_wait(tmp_path: Path) -> None:
    done = run(tmp_path, Sites(offline=lambda look: {"oslo"}), gone_after=2)
    assert all("oslo" not in one.participants for one in done.history)
    assert [one.in_window for one in done.history][-2:] == [True, True]
    assert "oslo was offline for 2 slots in a row" in world.said(tmp_path)
    assert done.shortfall.get("oslo", 1.0) == 1.0


def test_nobody_there_is_a_run_without_rounds(tmp_path: Path) -> None:
    with pytest.raises(NoRoundsError, match="over without a single round"):
        run(tmp_path, Sites(offline=lambda look: set(NAMES)))
    with Run.open(tmp_path, read_only=True) as found:
        assert found.status == "failed"
        assert found.ledger.spent_kg() == 0.0


def test_a_run_that_plans_once_only_keeps_to_it(tmp_path: Path) -> None:
    run(tmp_path, Sites(tricks={("*", "lyon"): "lost"}), replan_slots=None)
    with Run.open(tmp_path, read_only=True) as found:
        assert len(found.journal.replans()) == 1


def test_a_window_slot_that_was_lost_to_all_is_done_again(tmp_path: Path) -> None:
    plan = asked(hours=16, max_slots=3)
    whole = run(tmp_path / "whole", plan=plan)
    first = next(one.slot for one in whole.history if one.in_window)
    lost = {(first, name): "lost" for name in NAMES}
    again = run(tmp_path / "cut", Sites(tricks=lost), plan)
    window = [one.slot for one in again.history if one.in_window]
    assert first not in window
    assert len(window) == min(2, plan.problem.horizon - first - 1)
    assert again.emissions_kg <= plan.problem.budget_kg


def test_a_window_for_which_too_few_slots_are_left_is_shortened(tmp_path: Path) -> None:
    last = asked().problem.horizon - 1
    done = run(tmp_path, Sites(offline=lambda look: set(NAMES) if look < last else set()))
    assert [(one.slot, one.in_window) for one in done.history] == [(last, True)]
    assert "The window is shortened from 2 to 1 slots: no more are left." in world.said(tmp_path)


def test_a_stopped_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    from slackwater.live.folder import RunStopped

    whole = run(tmp_path / "whole")
    world.made(tmp_path / "cut", asked(), source="playback", replan_slots=1, reserve=0.0)
    for looks in (2, 3, 4):
        sites = Sites()
        stop = world.StopAfter(sites, looks=looks).event
        with pytest.raises(RunStopped):
            carry_out(tmp_path / "cut", sites, world.initial(), stop=stop)
    again = carry_out(tmp_path / "cut", Sites(), world.initial())
    assert world.same(again.arrays, whole.arrays)
    assert again.emissions_kg == whole.emissions_kg


def test_energy_that_was_measured_low_makes_room_for_more(tmp_path: Path) -> None:
    half = run(tmp_path / "half", Sites(energy_kwh=lambda work, name: 0.5))
    full = run(tmp_path / "full")
    assert sum(map(len, (one.participants for one in half.history))) > sum(
        map(len, (one.participants for one in full.history))
    )
    assert half.emissions_kg <= half.budget_kg
    assert world.recount(tmp_path / "half") == pytest.approx(half.emissions_kg, rel=1e-9)


def test_actuals_are_for_a_playback_only(tmp_path: Path) -> None:
    plan = make_plan(world.problem(6))
    with pytest.raises(ScenarioError, match="other sources take none"):
        prepare(tmp_path, plan, LiveSettings(), actuals=world.actuals(6))


def test_a_playback_shows_no_more_than_was_known() -> None:
    problem = world.problem(6)
    played = Playback(problem, world.actuals(6), Persistence(), lag=1)
    assert played.until(0).end == world.START - timedelta(hours=1)
    assert played.until(3).end == world.START + timedelta(hours=2)
    assert played.until(10_000).end == world.actuals(6).end
    assert played.origin("FR", 0) == ("measured in FR", "actual")
    assert played.origin("XX", 0) == ("unknown", "estimated")
    forecast = played.forecast(played.until(2))
    assert forecast is not None
    assert forecast.slots >= 5


class Grid:
    """A provider that knows the actuals up to a moment, and can be down."""

    def __init__(self, known_until: datetime) -> None:
        self.truth, self.known_until, self.down = world.actuals(48), known_until, False

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        if self.down:
            return Answer(failures={zone: ProviderError(f"nobody answers for {zone}") for zone in zones})
        first, last = (start, min(end, self.known_until)) if kind == "actual" else (max(start, self.known_until), end)
        first = max(first, self.truth.start)  # less than what is asked for
        steps = range(max(0, int((last - first) / timedelta(hours=1))))
        hours = [first + timedelta(hours=i) for i in steps]
        return Answer(
            readings=tuple(
                Reading(
                    zone=zone, start=at, end=at + timedelta(hours=1), kind="actual" if kind == "actual" else "forecast",
                    kg_per_kwh=float(self.truth.window(at, 1).intensity[self.truth.index(zone), 0]), factor="direct",
                    source="the grid", fetched_at=at,
                )
                for zone in zones
                for at in hours
            )
        )  # fmt: skip


def providers(grid: Grid, **more: Any) -> Providers:
    problem = world.problem(24)
    early = replace(problem, start=world.START + timedelta(hours=20), rounds=4)
    return Providers(early, ProviderFeed(grid, sorted(world.ZONES), **more))


def test_providers_are_asked_and_their_silence_is_told() -> None:
    grid = Grid(world.START + timedelta(hours=21))
    asked = providers(grid)
    known = asked.until(3)
    assert known.end == grid.known_until
    assert asked.origin(known.zones[0], 0) == ("the grid", "actual")
    assert asked.origin(known.zones[0], 2) == ("interpolated", "estimated")
    forecast = asked.forecast(known)
    assert (forecast.start, forecast.source) == (grid.known_until, "blend of the grid")
    assert np.all(forecast.low < forecast.high)
    grid.down = True
    assert asked.until(3).end == known.end
    assert asked.until(0).end == world.START + timedelta(hours=20)  # never of the future of a slot
    assert asked.forecast(asked.until(3)).source == "blend of the grid", "what was issued before is still there"
    notes = asked.notes()
    assert any("No new actual intensity: nobody answers" in note for note in notes)
    assert any("No new forecast from the providers: nobody answers" in note for note in notes)
    assert asked.notes() == []


def test_an_actual_is_waited_for_a_day_before_an_interpolated_value_is_settled_with(tmp_path: Path) -> None:
    class Gap(Playback):
        ends = world.START + timedelta(hours=25)

        def until(self, slot: int) -> Traces:
            return self._actuals.window(self._actuals.start, (self.ends - self._actuals.start) // timedelta(hours=1))

        def origin(self, zone: str, slot: int) -> tuple[str, Any]:
            return ("interpolated", "estimated") if slot == 1 else super().origin(zone, slot)

    plan = asked(idle_w=50.0)
    run(tmp_path, plan=plan, lag_slots=99)
    with Run.open(tmp_path) as found:
        knowledge = Gap(plan.problem, world.actuals(plan.problem.horizon), Persistence())
        guide = Replanned(plan.problem, knowledge, Settings())
        guide.restore(found.journal.get("guide"))
        booked = found.ledger.unsettled()
        waits = [line for line in booked if line.slot == 1]
        assert guide.settle(found.ledger) == len(booked) - len(waits) > 0
        assert {line.slot for line in found.ledger.unsettled()} == {1}
        knowledge.ends += timedelta(hours=1)
        assert guide.settle(found.ledger) == len(waits) > 0
        assert found.ledger.unsettled() == []


def test_without_any_actuals_a_run_does_not_begin() -> None:
    grid = Grid(world.START)
    grid.down = True
    with pytest.raises(DataError, match="nobody answers"):
        providers(grid).until(0)


def test_a_forecaster_of_our_own_goes_before_the_providers() -> None:
    grid = Grid(world.START + timedelta(hours=21))
    asked = providers(grid, forecaster=Persistence())
    assert asked.forecast(asked.until(1)).source == "persistence"


class Slots:
    """A clock of real slots that have long been, each begun when it is waited for."""

    slot_seconds = 3600.0

    def __init__(self) -> None:
        self.slot = 0

    def now(self) -> datetime:
        return self.starts_at(self.slot)

    def current(self) -> int:
        return self.slot

    def starts_at(self, slot: int) -> datetime:
        return world.START + timedelta(hours=slot)

    def ends_at(self, slot: int) -> datetime:
        return self.starts_at(slot + 1)

    def wait(self, until: datetime, stop: Any) -> bool:
        self.slot = max(self.slot, round((until - world.START) / timedelta(hours=1)))
        return True

    def stepped_seconds(self) -> float:
        return 0.0


def test_a_run_by_providers_settles_with_what_they_say(tmp_path: Path) -> None:
    plan = asked()
    truth = world.actuals(plan.problem.horizon)
    (tmp_path / "ci").mkdir()
    for zone, row in zip(truth.zones, truth.intensity, strict=True):
        lines = [
            f"{at:%Y-%m-%dT%H:%M}Z,{1000 * value:.12f},{1000 * value:.12f}"
            for at, value in zip(truth.slot_starts(), row, strict=True)
        ]
        header = "datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh"
        (tmp_path / "ci" / f"{zone}_2023.csv").write_text("\n".join([header, *lines]) + "\n")
    data = {"source": {"*": ["files:ci"]}, "factor": "direct", "fill_hours": 0, "folder": str(tmp_path)}
    settings = LiveSettings(source="providers", replan_slots=2, data=data, forecast="persistence", reserve=0.0)
    prepare(tmp_path / "run", plan, settings)
    energy = Sites(energy_kwh=lambda work, name: 0.5)
    done = carry_out(tmp_path / "run", energy, world.initial(), clock=Slots())
    costs = plan.problem.costs.dense()
    used = [(NAMES.index(name), slot) for slot, name in world.outcomes(tmp_path / "run")]
    assert done.emissions_kg == pytest.approx(sum(0.5 * costs[client, slot] for client, slot in used), rel=1e-6)
    assert done.unsettled_kg == 0.0
    with Run.open(tmp_path / "run", read_only=True) as found:
        settled = {line.intensity_source for line in found.ledger.charges() if line.kind == "settlement"}
    assert len(settled) == 1
    assert "files" in settled.pop()


def test_a_run_that_is_over_is_settled_when_the_actuals_are_there(tmp_path: Path) -> None:
    plan = asked()
    late = world.actuals(plan.problem.horizon)
    short = late.window(late.start, late.slots - world.AFTER - 1)  # the last slot's is not known
    settings = LiveSettings(source="playback", replan_slots=1, reserve=0.0, slot_seconds=0.0)
    prepare(tmp_path, plan, settings, actuals=short)
    done = carry_out(
        tmp_path, Sites(offline=lambda look: set() if look == plan.problem.horizon - 1 else set(NAMES)), world.initial()
    )
    assert done.unsettled_kg == done.emissions_kg > 0
    assert settle(tmp_path) == done.unsettled_kg
    from slackwater.live.folder import ACTUALS, _traces_to_dict

    (tmp_path / ACTUALS).write_text(json.dumps(_traces_to_dict(late)))
    assert settle(tmp_path) == 0.0
    assert settle(tmp_path) == 0.0
    last = plan.problem.horizon - 1
    assert world.spent(tmp_path) == pytest.approx(plan.problem.costs.dense()[:, last].sum()) == world.recount(tmp_path)


def test_a_plan_on_forecasts_is_not_charged_by_them(tmp_path: Path) -> None:
    plan = world.plan()
    traces = plan.problem.traces
    hours = Origin(start="2023-03-01T04:00Z", hours=2, source="neso", kind="forecast")
    guessed = replace(traces, provenance=(replace(traces.provenance[0], origins=(hours,)),))
    with pytest.raises(ScenarioError, match=r"The plan uses forecasts \(FR\)"):
        prepare(tmp_path, replace(plan, problem=plan.problem.with_settings(traces=guessed)))
    named = replace(traces, provenance=(replace(traces.provenance[0], source="a file about a 2 h forecast"),))
    prepare(tmp_path, replace(plan, problem=plan.problem.with_settings(traces=named)))
