"""Plans carried out with sites that lose, delay, falsify and go away."""

from __future__ import annotations

import errno
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import live_world as world
import numpy as np
import pytest
from live_world import NAMES, Sites

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveResult, RunStopped
from slackwater.live.runner import carry_out
from slackwater.live.sites import Site
from slackwater.live.status import read_status

ROWS = ["xx.x.x", "x.xx.x", ".x.xxx"]


def run(folder: Path, sites: Sites | None = None, what: Any = None, **settings: Any) -> LiveResult:
    world.made(folder, what, **settings)
    return carry_out(folder, sites or Sites(), world.initial())


def test_a_plan_is_carried_out(tmp_path: Path) -> None:
    sites, plan = Sites(), world.plan(ROWS)
    done = run(tmp_path, sites, plan)
    assert sorted(sites.trained) == sorted((int(t), NAMES[c]) for c, t in np.argwhere(plan.matrix))
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12) == world.recount(tmp_path)
    assert [one.participants for one in done.history][:2] == [("lyon", "oslo"), ("lyon", "rome")]
    assert [one.in_window for one in done.history] == [False] * 5 + [True]
    assert done.history[-1].weights == dict.fromkeys(NAMES, 1 / 3)
    assert done.history[0].weights == dict.fromkeys(("lyon", "oslo"), 1 / (3 * 3 / 5))
    assert done.shortfall == {}
    assert done.arrays["norm.num_batches_tracked"] == 6 * 30
    assert (tmp_path / "model.pt").exists()
    assert read_status(tmp_path).stands == "done"


def test_who_answers_first_makes_no_difference(tmp_path: Path) -> None:
    class Forwards(Sites):
        def train(self, work: Any, until: datetime) -> Any:
            yield from reversed(list(super().train(work, until)))

    assert world.same(run(tmp_path / "one").arrays, run(tmp_path / "other", Forwards()).arrays)


def test_idle_draw_and_server_are_charged_too(tmp_path: Path) -> None:
    from slackwater.planning.problem import Server

    plan = world.plan(ROWS, idle_w=100.0, server=Server(zone="FR", power_w=50.0))
    done = run(tmp_path, Sites(tricks={("*", "oslo"): "lost"}), plan, gone_after=9)
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)


@pytest.mark.parametrize("trick", ["failed", "late", "lost", "silent"])
def test_what_does_not_come_back_is_charged_and_made_up_for(tmp_path: Path, trick: str) -> None:
    plan = world.plan(ROWS)
    done = run(tmp_path, Sites(tricks={(1, "lyon"): trick}), plan)
    outcome = "late" if trick == "silent" else trick
    assert world.outcomes(tmp_path)[1, "lyon"] == outcome
    assert f"{outcome} in slot 1, and stays charged" in world.said(tmp_path)
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert done.history[1].participants == ("rome",)
    # 3 of 5 slots planned: 5/9 each. The second is lost, so the third carries two.
    assert [one.weights["lyon"] for one in done.history if "lyon" in one.weights][:2] == [5 / 9, pytest.approx(10 / 9)]
    assert done.shortfall == {}


@pytest.mark.parametrize(
    ("trick", "why"),
    [
        ("nan", "NaN or infinite values"),
        ("shape", "has shape"),
        ("names", "arrays differ"),
        ("long", "times as long as usual"),
        ("empty", "has no model"),
    ],
)
def test_updates_that_would_spoil_the_model_are_rejected(tmp_path: Path, trick: str, why: str) -> None:
    plan = world.plan(ROWS)
    done = run(tmp_path, Sites(tricks={(3, "rome"): trick}), plan)
    assert world.outcomes(tmp_path)[3, "rome"] == "rejected"
    assert why in world.said(tmp_path)
    assert done.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert np.isfinite(done.arrays["layer.bias"]).all()
    assert abs(done.arrays["layer.bias"]).max() < 10


def test_who_is_rejected_again_and_again_is_set_aside(tmp_path: Path) -> None:
    sites = Sites(tricks={("*", "rome"): "nan"})
    done = run(tmp_path, sites, world.plan(ROWS), max_rejections=2)
    assert [slot for slot, name in sites.trained if name == "rome"] == [1, 3]
    assert "rome is excluded: 2 of its updates" in world.said(tmp_path)
    assert world.outcomes(tmp_path)[4, "rome"] == "offline"
    assert done.history[-1].participants == ("lyon", "oslo")
    assert done.shortfall == {"rome": 1.0}


def test_a_slot_without_any_usable_update_leaves_the_model(tmp_path: Path) -> None:
    done = run(tmp_path, Sites(tricks={(4, "rome"): "lost"}), world.plan(ROWS))
    assert [one.slot for one in done.history] == [0, 1, 2, 3, 5]
    assert [one.number for one in done.history] == [0, 1, 2, 3, 4]
    assert "No update of slot 4 is usable" in world.said(tmp_path)


def test_who_is_offline_is_not_charged(tmp_path: Path) -> None:
    plan = world.plan(ROWS)
    done = run(tmp_path, Sites(offline=lambda look: {"lyon"} if look == 1 else set()), plan)
    assert world.outcomes(tmp_path)[1, "lyon"] == "offline"
    saved = plan.problem.costs.dense()[0, 1]
    assert done.emissions_kg == pytest.approx(plan.emissions_kg - saved, rel=1e-12)
    assert done.history[2].participants == ("oslo",)


def test_a_client_that_never_shows_up_and_one_that_nobody_knows(tmp_path: Path) -> None:
    sites = Sites(sites={name: Site(name=name) for name in ("lyon", "rome", "stranger")})
    done = run(tmp_path, sites, world.plan(ROWS))
    assert "oslo was offline for 3 slots in a row" in world.said(tmp_path)
    assert world.said(tmp_path).count("stranger is online") == 1
    assert done.shortfall == {"oslo": 1.0}
    assert {name for _, name in sites.trained} == {"lyon", "rome"}


def test_measured_energy_above_what_was_held_is_charged_and_stops_later_rounds(tmp_path: Path) -> None:
    plan = world.plan(ROWS)
    plan = world.plan(ROWS, budget_kg=plan.emissions_kg * 1.0001)
    sites = Sites(energy_kwh=lambda work, name: 2.5 if (work.slot, name) == (0, "oslo") else None)
    done = run(tmp_path, sites, plan)
    more = 1.5 * plan.problem.costs.intensity[plan.problem.costs.row[1], 0]
    first = plan.problem.costs.dense()[:2, 0].sum() + more
    assert done.history[0].spent_kg == pytest.approx(first)
    assert "oslo used 2.5 kWh in slot 0, more than its upper bound of 1 kWh" in world.said(tmp_path)
    assert "does not start: Slot 3" in world.said(tmp_path)
    assert "refused" in world.outcomes(tmp_path).values()
    assert done.emissions_kg <= plan.problem.budget_kg
    assert done.history[-1].in_window  # that is what was protected


def test_a_refused_round_is_refused_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.live.runner import Runner

    plan = world.plan(ROWS, idle_w=10.0)
    plan = world.plan(ROWS, idle_w=10.0, budget_kg=plan.emissions_kg * 1.0001)
    much = Sites(energy_kwh=lambda work, name: 2.5 if (work.slot, name) == (0, "oslo") else None)
    keep = Runner._keep

    def killed(self: Runner, decision: Any, started: Any, *more: Any) -> None:
        if decision.trains.any() and not started.any():
            raise KeyboardInterrupt
        keep(self, decision, started, *more)

    world.made(tmp_path, plan)
    monkeypatch.setattr(Runner, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, much, world.initial())
    monkeypatch.setattr(Runner, "_keep", keep)
    done = carry_out(tmp_path, Sites(), world.initial())
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path))
    assert done.emissions_kg < plan.problem.budget_kg
    assert "is lost" not in world.said(tmp_path).replace("because it lost slots", "")


def test_measured_energy_below_is_given_back(tmp_path: Path) -> None:
    done = run(tmp_path, Sites(energy_kwh=lambda work, name: 0.25), world.plan(ROWS))
    assert done.emissions_kg == pytest.approx(world.plan(ROWS).emissions_kg / 4, rel=1e-12)
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path), rel=1e-12)


def test_answers_that_were_not_asked_for_are_left_out(tmp_path: Path) -> None:
    class Twice(Sites):
        def train(self, work: Any, until: datetime) -> Any:
            for reply in super().train(work, until):
                yield from (reply, reply)

    assert world.same(run(tmp_path / "one", Twice()).arrays, run(tmp_path / "other").arrays)
    assert "An unexpected reply" in world.said(tmp_path / "one")
    assert world.recount(tmp_path / "one") == pytest.approx(world.recount(tmp_path / "other"))


def test_work_is_what_local_training_has_always_been(tmp_path: Path) -> None:
    from slackwater.training.process import stream

    seen: list[tuple[int, str, int, int, Any]] = []
    sites = Sites(
        before_train=lambda work: seen.extend((w.slot, n, w.number, w.seed, w.config) for n, w in work.items())
    )
    run(tmp_path, sites, world.plan(["x..x", "...x", "x..x"]), seed=7, config={"lr": 0.1})
    assert seen[0] == (0, "lyon", 0, stream(7, 0, 0), {"lr": 0.1})
    assert seen[1] == (0, "rome", 0, stream(7, 2, 0), {"lr": 0.1})
    assert [(slot, number) for slot, _, number, _, _ in seen[2:]] == [(3, 1)] * 3  # empty slots have no number


def test_evaluations_are_kept_and_their_failure_is_told(tmp_path: Path) -> None:
    def judge(arrays: Any) -> dict[str, float]:
        if arrays["norm.num_batches_tracked"] == 60:
            raise RuntimeError("no memory")
        return {"accuracy": 0.5, "loss": float(arrays["layer.bias"][0])}

    world.made(tmp_path, world.plan(ROWS), eval_every=2)
    done = carry_out(tmp_path, Sites(), world.initial(), evaluate=judge)
    assert [one.accuracy for one in done.history] == [None, None, None, 0.5, None, 0.5]
    assert done.metrics["accuracy"] == 0.5
    assert "The evaluation failed: RuntimeError: no memory" in world.said(tmp_path)
    assert read_status(tmp_path).accuracy == 0.5


class Late:
    """A clock whose slots can go by: `now` is the start of slot `at`, plus a share of it."""

    def __init__(self, at: float, step: float = 1.0) -> None:
        self.at, self.step, self.slot_seconds, self.jump = at, step, 3600.0, 0.0

    def now(self) -> datetime:
        return world.START + timedelta(hours=self.at)

    def current(self) -> int:
        return int(np.floor(self.at))

    def starts_at(self, slot: int) -> datetime:
        return world.START + timedelta(hours=slot)

    def ends_at(self, slot: int) -> datetime:
        return self.starts_at(slot + 1)

    def wait(self, until: datetime, stop: threading.Event) -> bool:
        self.at = max(self.at, (until - world.START) / timedelta(hours=1))
        return not stop.is_set()

    def stepped_seconds(self) -> float:
        jump, self.jump = self.jump, 0.0
        return jump


def test_slots_that_went_by_are_passed_over(tmp_path: Path) -> None:
    plan = world.plan(ROWS, idle_w=10.0)
    world.made(tmp_path, plan)
    sites = Sites()
    done = carry_out(tmp_path, sites, world.initial(), clock=Late(2.7))
    assert {slot for slot, _ in sites.trained} == {3, 4, 5}  # 2 had begun, but too long ago
    assert "Slot 0 was missed; planned: lyon, oslo." in world.said(tmp_path)
    with Run.open(tmp_path, read_only=True) as found:
        idle = [line.slot for line in found.ledger.charges() if line.cause == "idle"]
    assert sorted(set(idle)) == list(range(6))  # they waited all the time
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path))


def test_a_clock_that_is_set_back_makes_no_slot_run_twice(tmp_path: Path) -> None:
    clock = Late(0.0)

    def set_back(work: Any) -> None:
        if next(iter(work.values())).slot == 2:
            clock.at, clock.jump = 0.1, -6840.0

    world.made(tmp_path, world.plan(ROWS))
    sites = Sites(before_train=set_back)
    carry_out(tmp_path, sites, world.initial(), clock=clock)
    assert sorted({slot for slot, _ in sites.trained}) == list(range(6))
    assert len(sites.trained) == len(set(sites.trained)) == 12
    assert "The clock was set back by 6840 s" in world.said(tmp_path)


def test_a_clock_that_is_set_on_passes_slots_over(tmp_path: Path) -> None:
    clock = Late(0.0)

    def set_on(work: Any) -> None:
        if next(iter(work.values())).slot == 1:
            clock.at = 4.0

    world.made(tmp_path, world.plan(ROWS))
    sites = Sites(before_train=set_on)
    carry_out(tmp_path, sites, world.initial(), clock=clock)
    assert sorted({slot for slot, _ in sites.trained}) == [0, 1, 4, 5]


def test_a_round_that_has_no_time_left_does_not_start(tmp_path: Path) -> None:
    class Slow(Sites):
        def online(self) -> Any:
            if self.looks == 1:
                clock.at = 1.99
            return super().online()

    clock, sites = Late(0.0), Slow()
    world.made(tmp_path, world.plan(ROWS))
    carry_out(tmp_path, sites, world.initial(), clock=clock)
    assert "The round of slot 1 does not start: too little time was left" in world.said(tmp_path)
    assert {slot for slot, _ in sites.trained} == {0, 2, 3, 4, 5}


def test_a_compressed_clock_keeps_its_beginning(tmp_path: Path) -> None:
    plan = world.plan(["xx", "xx", "xx"])
    world.made(tmp_path, plan, slot_seconds=0.3)
    began = datetime.now(UTC)
    ends: list[datetime] = []
    sites = Sites(before_train=lambda work: ends.extend(one.ends_at for one in work.values()))
    done = carry_out(tmp_path, sites, world.initial())
    assert len(done.history) == 2
    assert ends[0] == ends[2] < began + timedelta(seconds=0.5)
    assert (ends[3] - ends[0]).total_seconds() == pytest.approx(0.3, abs=1e-3)
    with Run.open(tmp_path, read_only=True) as found:
        begun = datetime.fromisoformat(found.journal.get("begun_at"))
        assert all(one.method == "modelled" for one in found.journal.attempts())
    assert begun >= began
    assert done.emissions_kg < plan.emissions_kg  # the rounds were shorter than their slots
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path))


def test_a_run_stops_when_asked_and_goes_on(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    world.made(tmp_path / "cut")
    sites = Sites()
    stop = world.StopAfter(sites, looks=3).event
    with pytest.raises(RunStopped, match=r"Stopped before slot 3 .* with 3 rounds done"):
        carry_out(tmp_path / "cut", sites, world.initial(), stop=stop)
    assert read_status(tmp_path / "cut").stands == "stopped"
    assert [one.slot for one in read_status(tmp_path / "cut").coming] == [3, 4, 5]
    other = {name: array + 1 for name, array in world.initial().items()}  # the checkpoint counts
    again = carry_out(tmp_path / "cut", Sites(), other)
    assert world.same(again.arrays, whole.arrays)
    assert again.emissions_kg == whole.emissions_kg
    assert world.same(carry_out(tmp_path / "cut", Sites(), world.initial()).arrays, whole.arrays)  # done is done


def test_another_model_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(SlackwaterError, match="The model has 2 parameters, but the run's has 8"):
        carry_out(tmp_path, Sites(), {"w": np.zeros(2, dtype=np.float32)})


@pytest.mark.parametrize("where", ["run.db", "state"])
def test_a_full_disk_is_a_sentence_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from slackwater.ledger import run as run_module
    from slackwater.ledger import state_files as state_module

    connected, synced = run_module.connect, os.fsync

    def small(path: Any, **how: Any) -> Any:
        """Room for the plan and the first lines."""
        connection = connected(path, **how)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 8}")
        return connection

    def full(handle: int) -> None:
        """Room for the state before the first round."""
        if (tmp_path / "state" / "2-0-model-theta.bin").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(handle)

    monkeypatch.setattr(*((run_module, "connect", small) if where == "run.db" else (state_module.os, "fsync", full)))
    plan = world.plan([10 * row for row in ("x..x", ".x.x", "..xx")])
    world.made(tmp_path, plan, aggregator="memory")
    why = "No space left on device" if where == "state" else "database or disk is full"
    with pytest.raises(SlackwaterError, match=rf"{where}\S* cannot be written: {why}.*slackwater resume"):
        carry_out(tmp_path, Sites(), world.initial())
    assert world.recount(tmp_path) == world.spent(tmp_path) > 0
    monkeypatch.undo()
    sites = Sites()
    done = carry_out(tmp_path, sites, world.initial())
    assert sites.trained[0][0] > 0
    assert where == "run.db" or "Slot 0 is lost, and stays charged" in world.said(tmp_path)
    assert done.emissions_kg == pytest.approx(plan.emissions_kg)
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path))


def test_a_run_is_done_only_once_its_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.live import runner

    def full(path: Path, arrays: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    world.made(tmp_path)
    monkeypatch.setattr(runner, "save_arrays", full)
    with pytest.raises(
        SlackwaterError, match=r"model\.pt cannot be written: No space left on device.*slackwater resume"
    ):
        carry_out(tmp_path, Sites(), world.initial())
    assert read_status(tmp_path).stands == "failed"
    monkeypatch.undo()
    sites = Sites()
    carry_out(tmp_path, sites, world.initial())
    assert sites.trained == []
    assert (tmp_path / "model.pt").exists()
    assert read_status(tmp_path).stands == "done"


def test_an_error_of_the_transport_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    def cut(work: Any) -> None:
        if next(iter(work.values())).slot == 2:
            raise ConnectionError("the SuperLink is gone")

    world.made(tmp_path)
    with pytest.raises(ConnectionError):
        carry_out(tmp_path, Sites(before_train=cut), world.initial())
    sites = Sites()
    done = carry_out(tmp_path, sites, world.initial())
    assert {slot for slot, _ in sites.trained} == {3, 4, 5}
    assert {name: world.outcomes(tmp_path)[2, name] for name in ("oslo",)} == {"oslo": "lost"}
    assert "Slot 2 is lost, and stays charged" in world.said(tmp_path)
    assert done.emissions_kg == pytest.approx(world.plan().emissions_kg) == world.recount(tmp_path)
