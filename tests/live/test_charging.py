"""What a live run writes beside its model: the plan in force in every slot, and which charges it expected."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, Sites
from test_live_runner import Late

from slackwater.intensity.forecast.base import Persistence
from slackwater.ledger.journal import Journal
from slackwater.ledger.ledger import Charge
from slackwater.ledger.run import Run
from slackwater.live.charging import BYTES_PER_MB, Meter, model_bytes
from slackwater.live.folder import LiveResult, LiveSettings, NoRoundsError
from slackwater.live.runner import carry_out
from slackwater.live.schedule_sources import Replanned
from slackwater.live.sites import Reply
from slackwater.planning.fleet import Client, Level
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Server
from slackwater.planning.schedule import plan_from_matrix
from slackwater.replanning import backtest
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.run_state import Settings

ROWS = ["xx.x.x", "x.xx.x", ".x.xxx"]
MODEL_MB = model_bytes(world.initial()) / BYTES_PER_MB
OVERHEADS = {"model_mb": MODEL_MB, "network_kwh_per_gb": 2e6, "evaluation_share": 0.1}
"""A network that counts for so small a model: a fifth of the training."""
Expected = dict[int, dict[tuple[str, str], float]]


def asked(slots: int = 6, slack: int = 10, hours: int = 6, **more: Any) -> Plan:
    problem = world.problem(slots, slack=slack, fine_tune=2, **more)
    budget = problem.costs.dense()[:, :hours].sum() + problem.costs.idle_kg().sum()
    return make_plan(problem.with_settings(budget_kg=float(budget)), planner="paper")  # as back-tests plan


def replanned(folder: Path, sites: Sites | None = None, plan: Plan | None = None, **settings: Any) -> LiveResult:
    world.made(folder, plan or asked(), **{"source": "playback", "replan_slots": 1, "reserve": 0.0} | settings)
    return carry_out(folder, sites or Sites(), world.initial())


def planned(folder: Path) -> Expected:
    with Run.open(folder, read_only=True) as run:
        return run.journal.planned()


def charged(folder: Path) -> list[Charge]:
    with Run.open(folder, read_only=True) as run:
        return [line for line in run.ledger.charges() if line.kind == "charge"]


def total(rows: Expected) -> float:
    return math.fsum(kg for row in rows.values() for kg in row.values())


def trains(row: dict[tuple[str, str], float]) -> set[str]:
    return {client for client, cause in row if cause == "training"}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"slot_seconds": 0.0}, "simulated"),
        ({"slot_seconds": 5.0}, "simulated"),
        ({"slot_seconds": 0.0, "source": "playback"}, "rehearsed"),
        ({"slot_seconds": 5.0, "source": "playback"}, "rehearsed"),
        ({"source": "plan"}, "live"),
        ({"source": "providers"}, "live"),
    ],
)
def test_the_kind_of_a_run_follows_from_its_clock_and_its_source(settings: dict[str, Any], kind: str) -> None:
    assert LiveSettings(**settings).kind == kind


def test_the_kind_is_in_the_run_file(tmp_path: Path) -> None:
    world.made(tmp_path / "simulated")
    carry_out(tmp_path / "simulated", Sites(), world.initial())
    replanned(tmp_path / "rehearsed")
    world.made(tmp_path / "live", slot_seconds=None)
    carry_out(tmp_path / "live", Sites(), world.initial(), clock=Late(0.0))
    for kind in ("simulated", "rehearsed", "live"):
        with Run.open(tmp_path / kind, read_only=True) as run:
            assert run.kind == kind


def test_a_followed_plan_is_the_plan_in_force_with_losses_too(tmp_path: Path) -> None:
    plan = world.plan(ROWS, idle_w=100.0, server=Server(zone="FR", power_w=50.0))
    sites = Sites(tricks={(1, "lyon"): "lost"}, offline=lambda look: {"oslo"} if look == 2 else set())
    world.made(tmp_path, plan)
    carry_out(tmp_path, sites, world.initial())
    rows = planned(tmp_path)
    assert sorted(rows) == list(range(6))
    assert total(rows) == pytest.approx(plan.emissions_kg, rel=1e-12)
    costs = plan.problem.costs
    assert rows[2]["oslo", "training"] == costs.dense()[1, 2]  # it could not be reached
    assert rows[1]["lyon", "training"] == costs.dense()[0, 1]
    assert rows[0]["rome", "idle"] > 0
    assert ("rome", "training") not in rows[0]
    assert rows[0]["", "server"] == pytest.approx(costs.server_kg[0])  # type: ignore[index]
    assert all(line.planned for line in charged(tmp_path))


def test_slots_that_went_by_and_rounds_refused_were_planned(tmp_path: Path) -> None:
    plan = world.plan(ROWS)
    plan = world.plan(ROWS, budget_kg=plan.emissions_kg * 1.0001)
    much = Sites(energy_kwh=lambda work, name: 9.0 if work.slot == 3 else None)
    world.made(tmp_path, plan)
    carry_out(tmp_path, much, world.initial(), clock=Late(1.9))
    rows = planned(tmp_path)
    assert "refused" in world.outcomes(tmp_path).values()
    assert total(rows) == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert trains(rows[0]) == {"lyon", "oslo"}


def test_the_plan_in_force_is_noted_with_the_decision_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    world.made(tmp_path, world.plan(ROWS))
    note = Journal.note
    monkeypatch.setattr(Journal, "note", killed)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, Sites(), world.initial())
    assert planned(tmp_path) == {}
    assert charged(tmp_path) == []
    monkeypatch.setattr(Journal, "note", note)
    carry_out(tmp_path, Sites(), world.initial())
    assert total(planned(tmp_path)) == pytest.approx(world.plan(ROWS).emissions_kg, rel=1e-12)


def _steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The controller's own steps, as they are made."""
    steps: list[Step] = []
    step = Controller.step

    def noted(self: Controller, *args: Any, **more: Any) -> Step:
        steps.append(step(self, *args, **more))
        return steps[-1]

    monkeypatch.setattr(Controller, "step", noted)
    return steps


def test_a_replanned_slot_is_expected_at_the_forecast_and_not_at_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = _steps(monkeypatch)
    plan = asked(idle_w=50.0)
    first = next(slot for slot in range(16) if plan.matrix[0, slot])
    replanned(tmp_path, Sites(tricks={(first, "lyon"): "lost"}), plan)
    rows, lines = planned(tmp_path), charged(tmp_path)
    assert sorted(rows) == [step.slot for step in steps]
    costs = plan.problem.costs
    for step in steps:
        for client, name in enumerate(NAMES):
            assert rows[step.slot][name, "idle"] == costs.idle_kwh[client] * step.intensity[client]
            wanted = step.wanted is not None and step.wanted[client]
            assert ((name, "training") in rows[step.slot]) == wanted >= step.trains[client]
            if wanted:
                assert rows[step.slot][name, "training"] == costs.energy_kwh[client] * step.intensity[client]
    assert any("planned clients train in slot" in message for step in steps for message in step.messages)
    assert not any(step.wanted is not None and (step.wanted & ~step.trains).any() for step in steps), (
        "who is held back for the budget is not planned for the slot any more"
    )
    by_key = {(line.slot, line.client, line.cause): line for line in lines}
    assert all(line.planned for line in lines)
    assert all(line.kg >= rows[slot][client, cause] * 0.999 for (slot, client, cause), line in by_key.items())
    booked = {(line.slot, line.client, line.cause) for line in lines}
    expected = math.fsum(kg for slot in rows for (who, why), kg in rows[slot].items() if (slot, who, why) in booked)
    assert sum(line.kg for line in lines) > 1.05 * expected  # booked at a bound


def test_who_is_planned_and_missing_is_in_the_plan_in_force(tmp_path: Path) -> None:
    plan = asked(slack=14, hours=20, max_slots=3)
    whole = replanned(tmp_path / "whole", plan=plan)
    first = next(one for one in whole.history if "lyon" in one.participants)
    replanned(tmp_path / "cut", Sites(offline=lambda look: {"lyon"} if look == first.slot else set()), plan)
    rows = planned(tmp_path / "cut")
    assert "lyon" in trains(rows[first.slot])
    assert rows[first.slot] == planned(tmp_path / "whole")[first.slot]


def test_before_its_first_plan_the_plan_it_began_with_is_in_force(tmp_path: Path) -> None:
    plan = asked()
    with pytest.raises(NoRoundsError):
        replanned(tmp_path, Sites(offline=lambda look: set(NAMES)), plan, gone_after=99)
    rows = planned(tmp_path)
    wanted = {
        slot: {NAMES[client] for client in np.flatnonzero(plan.matrix[:, slot])} for slot in range(plan.problem.horizon)
    }
    assert {slot: trains(rows.get(slot, {})) for slot in wanted} == wanted
    assert {key for key, outcome in world.outcomes(tmp_path).items() if outcome == "offline"} == {
        (slot, name) for slot, names in wanted.items() for name in names
    }


def test_a_window_that_nobody_could_begin_was_planned(tmp_path: Path) -> None:
    plan = asked(hours=16, max_slots=3)
    whole = replanned(tmp_path / "whole", plan=plan)
    first = next(one.slot for one in whole.history if one.in_window)
    replanned(tmp_path / "cut", Sites(offline=lambda look: set(NAMES) if look == first else set()), plan)
    assert trains(planned(tmp_path / "cut")[first]) == set(NAMES)


def test_a_run_that_ends_before_a_slot_charges_nothing_in_it(tmp_path: Path) -> None:
    problem = world.problem(3, slack=10, fine_tune=1, idle_w=400.0)
    plan = make_plan(problem.with_settings(budget_kg=float(problem.costs.idle_kg()[:9].sum())))
    with pytest.raises(NoRoundsError):
        replanned(tmp_path, Sites(offline=lambda look: set(NAMES) if look < 7 else set()), plan, gone_after=99)
    assert "idle draw alone may cost more" in world.said(tmp_path)
    with Run.open(tmp_path, read_only=True) as run:
        guide = Replanned(plan.problem, None, LiveSettings().replanning)  # type: ignore[arg-type]
        guide.restore(run.journal.get("guide"))
        stopped = guide.controller.state.stopped_at
    assert stopped is not None
    assert max(line.slot for line in charged(tmp_path)) == max(planned(tmp_path)) == stopped - 1


# -- network and evaluation


def by_cause(folder: Path, **only: Any) -> dict[str, float]:
    """Cause -> kg of all lines, or of those of a slot or client."""
    sums: dict[str, float] = {}
    with Run.open(folder, read_only=True) as run:
        for line in run.ledger.charges(**only):
            sums[line.cause] = sums.get(line.cause, 0.0) + line.kg
    return sums


def test_a_followed_plan_charges_each_cause_as_planned(tmp_path: Path) -> None:
    plan = world.plan(ROWS, idle_w=100.0, server=Server(zone="FR", power_w=50.0), **OVERHEADS)
    world.made(tmp_path, plan)
    done = carry_out(tmp_path, Sites(), world.initial())
    causes = plan.emissions.by_cause_kg
    assert causes["network"] == pytest.approx(0.192 * causes["training"] / 0.9, rel=1e-9)  # 2e6 kWh/GB x 2 x 48 B
    assert by_cause(tmp_path) == pytest.approx(causes, rel=1e-12)
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12) == world.recount(tmp_path)
    rows = planned(tmp_path)
    assert total(rows) == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert {cause for row in rows.values() for _, cause in row} == set(causes)
    assert all(line.planned for line in charged(tmp_path))
    assert "model_mb" not in world.said(tmp_path)


def test_without_the_keys_a_round_is_training_alone(tmp_path: Path) -> None:
    world.made(tmp_path, world.plan(ROWS))
    carry_out(tmp_path, Sites(), world.initial())
    assert {line.cause for line in charged(tmp_path)} == {"training"}
    assert "MB" not in world.said(tmp_path)


@pytest.mark.parametrize(
    ("trick", "network"),
    [("", 1.0), ("late", 1.0), ("lost", 1.0), ("silent", 1.0), ("nan", 1.0), ("failed", 0.5), ("empty", 0.5)],
)
def test_the_network_is_charged_for_what_was_sent(tmp_path: Path, trick: str, network: float) -> None:
    plan = world.plan(ROWS, **OVERHEADS)
    world.made(tmp_path, plan)
    carry_out(tmp_path, Sites(tricks={(1, "lyon"): trick}), world.initial())
    costs = plan.problem.costs
    at = {cause: float(kwh[0] * costs.intensity[costs.row[0], 1]) for cause, kwh in costs.round_kwh.items()}
    found = {line.cause: 0.0 for line in charged(tmp_path) if (line.slot, line.client) == (1, "lyon")}
    with Run.open(tmp_path, read_only=True) as run:
        for line in run.ledger.charges(slot=1, client="lyon"):
            found[line.cause] += line.kg
    assert found == pytest.approx(at | {"network": network * at["network"]}, rel=1e-12)
    assert by_cause(tmp_path, slot=1, client="rome") == pytest.approx(
        {cause: float(kwh[2] * costs.intensity[costs.row[2], 1]) for cause, kwh in costs.round_kwh.items()}
    )


def test_who_is_sent_nothing_is_charged_nothing(tmp_path: Path) -> None:
    plan = world.plan(ROWS, **OVERHEADS)
    plan = world.plan(ROWS, **OVERHEADS, budget_kg=plan.emissions_kg * 1.0001)
    much = Sites(
        energy_kwh=lambda work, name: 4.0 if (work.slot, name) == (0, "oslo") else None,
        offline=lambda look: {"lyon"} if look == 1 else set(),
    )
    world.made(tmp_path, plan)
    done = carry_out(tmp_path, much, world.initial())
    outcomes = world.outcomes(tmp_path)
    unsent = {key for key, outcome in outcomes.items() if outcome in ("offline", "refused")}
    assert {outcomes[key] for key in unsent} == {"offline", "refused"}
    assert not {(line.slot, line.client) for line in charged(tmp_path)} & unsent
    assert done.emissions_kg <= plan.problem.budget_kg


def test_what_a_stopped_server_had_sent_stays_charged(tmp_path: Path) -> None:
    def cut(work: Any) -> None:
        if next(iter(work.values())).slot == 2:
            raise ConnectionError

    plan = world.plan(ROWS, **OVERHEADS)
    world.made(tmp_path, plan)
    with pytest.raises(ConnectionError):
        carry_out(tmp_path, Sites(before_train=cut), world.initial())
    done = carry_out(tmp_path, Sites(), world.initial())
    assert by_cause(tmp_path) == pytest.approx(
        {cause: kg for cause, kg in plan.emissions.by_cause_kg.items() if kg}, rel=1e-12
    )
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)


def test_a_model_of_another_size_is_told_and_charged_as_it_is(tmp_path: Path) -> None:
    plan = world.plan(ROWS, **OVERHEADS | {"model_mb": MODEL_MB / 2})
    world.made(tmp_path, plan)
    sites = Sites()
    stop = world.StopAfter(sites, looks=2).event
    with pytest.raises(Exception, match="Stopped before slot 2"):
        carry_out(tmp_path, sites, world.initial(), stop=stop)
    carry_out(tmp_path, Sites(), world.initial())
    told = "The model has 4.8e-05 MB, but model_mb is 2.4e-05. The network is charged for the real size."
    assert world.said(tmp_path).count(told) == 1
    assert "set model_mb = 4.8e-05." in world.said(tmp_path)
    causes = plan.emissions.by_cause_kg
    assert by_cause(tmp_path)["network"] == pytest.approx(2 * causes["network"], rel=1e-12)
    assert by_cause(tmp_path)["training"] == pytest.approx(causes["training"], rel=1e-12)
    assert total(planned(tmp_path)) == pytest.approx(plan.emissions_kg, rel=1e-12)  # the plan's own


def test_a_model_of_about_the_planned_size_is_not_worth_a_word(tmp_path: Path) -> None:
    plan = world.plan(ROWS, **OVERHEADS | {"model_mb": MODEL_MB * 0.98})
    world.made(tmp_path, plan)
    carry_out(tmp_path, Sites(), world.initial())
    assert "MB" not in world.said(tmp_path)
    assert by_cause(tmp_path)["network"] == pytest.approx(plan.emissions.by_cause_kg["network"] / 0.98, rel=1e-12)


def test_a_larger_model_cannot_break_the_budget(tmp_path: Path) -> None:
    asked = OVERHEADS | {"model_mb": MODEL_MB / 20}
    plan = world.plan(ROWS, **asked)
    plan = world.plan(ROWS, **asked, budget_kg=plan.emissions_kg * 1.0001)
    world.made(tmp_path, plan)
    done = carry_out(tmp_path, Sites(), world.initial())
    assert "refused" in world.outcomes(tmp_path).values()
    assert done.emissions_kg <= plan.problem.budget_kg
    assert done.history[-1].in_window  # that is what was protected


@pytest.mark.parametrize("size", [1.0, 4.0])
def test_a_replanned_run_holds_and_settles_every_cause(tmp_path: Path, size: float) -> None:
    plan = asked(idle_w=50.0, **OVERHEADS | {"model_mb": MODEL_MB / size})
    seen: list[float] = []

    def look(work: Any) -> None:
        with Run.open(tmp_path, read_only=True) as found:
            seen.append(found.ledger.spent_kg())

    done = replanned(tmp_path, Sites(before_train=look), plan)
    real = plan.problem.with_settings(model_mb=MODEL_MB)
    settings = Settings(replan_slots=1, reserve=0.0)
    expected = backtest(real, world.actuals(real.horizon), Persistence(), settings)
    trained = np.zeros_like(expected.trained)
    for slot, name in world.outcomes(tmp_path):
        trained[NAMES.index(name), slot] = True
    assert np.array_equal(trained, expected.trained)
    assert done.emissions_kg == pytest.approx(expected.realised_kg, rel=1e-9)
    assert world.recount(tmp_path) == pytest.approx(done.emissions_kg, rel=1e-9)
    assert done.unsettled_kg == 0.0
    assert max(seen) <= plan.problem.budget_kg * (1 + 1e-9)
    costs = real.costs
    g = {cause: (trained * costs.dense(kwh=kwh)).sum() for cause, kwh in costs.round_kwh.items()}
    assert by_cause(tmp_path) == pytest.approx(g | {"idle": by_cause(tmp_path)["idle"]}, rel=1e-9)
    rows = planned(tmp_path)
    assert {cause for row in rows.values() for _, cause in row} == {"idle", "training", "network", "evaluation"}


def test_a_slot_is_booked_at_what_the_controller_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = _steps(monkeypatch)
    replanned(tmp_path, plan=asked(idle_w=50.0, **OVERHEADS))
    for step in steps:
        booked = math.fsum(line.kg for line in charged(tmp_path) if line.slot == step.slot)
        assert booked == pytest.approx(step.held_kg, rel=1e-12)


class Timed(Sites):
    """Sites on a clock: half an hour of work, of which ten minutes are said to be evaluation."""

    said: float | None = 600.0

    def train(self, work: Any, until: datetime) -> Any:
        for reply in super().train(work, until):
            start = world.START + timedelta(hours=work[reply.client].slot)
            yield replace(
                reply,
                started_at=start,
                ended_at=start + timedelta(minutes=30),
                evaluation_seconds=self.said,
            )


def timed(folder: Path, said: float | None, share: float, energy: float | None = None) -> list[Charge]:
    """Lines of lyon in slot 0 of a run in which rounds take half of their slots, with what they were corrected to."""
    clock = Late(0.0)
    sites = Timed(energy_kwh=lambda work, name: energy)
    sites.said = said
    sites.before_train = lambda work: setattr(clock, "at", clock.at + 0.5)
    world.made(folder, world.plan(ROWS, evaluation_share=share))
    done = carry_out(folder, sites, world.initial(), clock=clock)
    assert done.emissions_kg == pytest.approx(world.recount(folder), rel=1e-12)
    with Run.open(folder, read_only=True) as run:
        lines = list(run.ledger.charges(slot=0, client="lyon"))
    return [
        replace(line, energy_kwh=sum(one.energy_kwh or 0.0 for one in lines if line.id in (one.id, one.corrects)))
        for line in lines
        if line.kind == "charge"
    ]


def test_an_evaluation_that_is_timed_is_booked_by_its_time(tmp_path: Path) -> None:
    training, evaluation = timed(tmp_path, 600.0, share=0.1)
    assert (training.cause, evaluation.cause) == ("training", "evaluation")
    assert training.energy_kwh == pytest.approx(1 / 3)  # 1 kW for 20 minutes
    assert evaluation.energy_kwh == pytest.approx(1 / 6)
    assert evaluation.planned


def test_an_evaluation_that_nobody_planned_is_a_line_that_was_not_planned(tmp_path: Path) -> None:
    training, evaluation = timed(tmp_path, 600.0, share=0.0)
    assert (training.energy_kwh, evaluation.energy_kwh) == pytest.approx((1 / 3, 1 / 6))
    assert (evaluation.cause, evaluation.planned, training.planned) == ("evaluation", False, True)
    assert ("lyon", "evaluation") not in planned(tmp_path)[0]


def test_an_evaluation_that_is_not_timed_is_the_planned_share(tmp_path: Path) -> None:
    training, evaluation = timed(tmp_path, None, share=0.1)
    assert (training.energy_kwh, evaluation.energy_kwh) == pytest.approx((0.5, 0.05))
    assert evaluation.cause == "evaluation"
    timed(tmp_path / "full", None, share=0.1, energy=1.0)
    assert "drew" not in world.said(tmp_path / "full")  # 1.1 kWh were held for both
    timed(tmp_path / "more", None, share=0.1, energy=1.2)
    assert "lyon used 1.32 kWh in slot 0, more than its upper bound of 1.1 kWh" in world.said(tmp_path / "more")


def test_measured_energy_is_shared_by_time(tmp_path: Path) -> None:
    training, evaluation = timed(tmp_path, 600.0, share=0.1, energy=0.3)
    assert (training.energy_kwh, evaluation.energy_kwh) == pytest.approx((0.2, 0.1))
    with Run.open(tmp_path, read_only=True) as run:
        methods = {line.method for line in run.ledger.charges(slot=0) if line.kind == "correction"}
    assert methods == {"measured"}


def test_where_nobody_evaluates_nothing_is_booked(tmp_path: Path) -> None:
    lines = timed(tmp_path, None, share=0.0)
    assert [line.cause for line in lines] == ["training"]
    assert [line.cause for line in timed(tmp_path / "0", 0.0, share=0.0)] == ["training"]


def test_a_round_of_given_energy_keeps_its_planned_share(tmp_path: Path) -> None:
    """Slots without a length have no time to count, so no time divides their energy."""
    world.made(tmp_path, world.plan(ROWS, evaluation_share=0.1))
    sites = Timed()
    done = carry_out(tmp_path, sites, world.initial())
    assert done.emissions_kg == pytest.approx(world.plan(ROWS, evaluation_share=0.1).emissions_kg, rel=1e-12)


def sleeping(rows: list[str] = ROWS, **more: Any) -> Plan:
    """The plan of three sites: one with levels, one that starts for a slot, one as before."""
    base = world.problem(len(rows[0]), **more)
    clients = [
        Client(name=NAMES[0], zone=world.ZONES[0], power_w=1000, idle_w=50, levels=[Level(1000, 1.0), Level(500, 0.7)]),
        Client(name=NAMES[1], zone=world.ZONES[1], power_w=1000, idle_w=50, startup_kwh=0.1, min_block_slots=2),
        Client(name=NAMES[2], zone=world.ZONES[2], power_w=1000, idle_w=50, startup_kwh=0.2, startup_minutes=60),
    ]
    matrix = np.array([[mark == "x" for mark in row] for row in rows])
    levels = np.zeros(matrix.shape, dtype=np.uint8)
    levels[0, 1] = 1
    return plan_from_matrix(base.with_settings(clients=clients), matrix, end=0, levels=levels)


def test_starts_and_levels_are_charged_as_planned(tmp_path: Path) -> None:
    plan = sleeping()
    asked: list[tuple[int, str, object]] = []

    def note(work: Any) -> None:
        asked.extend((one.slot, name, one.config.get("work")) for name, one in work.items())

    world.made(tmp_path, plan)
    done = carry_out(tmp_path, Sites(before_train=note), world.initial())
    expected = {cause: kg for cause, kg in plan.emissions.by_cause_kg.items() if kg}
    assert by_cause(tmp_path) == pytest.approx(expected, rel=1e-12)
    assert expected["startup"] > 0
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert {one for one in asked if one[2] is not None} == {(1, "lyon", 0.7)}
    assert [row.work for row in done.history] == [{}, {"lyon": 0.7}, {}, {}, {}, {}]


def test_starts_stay_charged_where_a_round_does_not_start(tmp_path: Path) -> None:
    plan = sleeping()
    world.made(tmp_path, plan)
    with pytest.raises(NoRoundsError):
        carry_out(tmp_path, Sites(offline=lambda look: set(NAMES)), world.initial())
    causes = plan.emissions.by_cause_kg
    assert by_cause(tmp_path) == pytest.approx({"idle": causes["idle"], "startup": causes["startup"]}, rel=1e-12)


def test_a_measured_round_of_a_sleeping_client_leaves_out_its_idle_draw(tmp_path: Path) -> None:
    plan = sleeping()
    world.made(tmp_path, plan, slot_seconds=3600.0)
    meter = Meter(plan.problem, 3600.0)
    at = world.START
    reply = Reply(client=NAMES[1], outcome="done", energy_kwh=0.6, started_at=at, ended_at=at + timedelta(minutes=30))
    assert meter.read(1, reply, at, at + timedelta(hours=1)).energy_kwh == pytest.approx(0.6 - 0.5 * 0.05)
    modelled = replace(reply, client=NAMES[0], energy_kwh=None)
    assert meter.read(0, modelled, at, at + timedelta(hours=1), 0.45).energy_kwh == pytest.approx(0.225)
