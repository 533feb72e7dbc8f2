"""Reports of more energy than is possible: charged at the bound, named everywhere, and corrected when a person confirms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import live_world as world
import pytest
from click.testing import CliRunner, Result
from live_world import Sites, StopAfter
from test_live_runner import Late

from slackwater.cli.main import cli
from slackwater.dashboard.runs import RunReader
from slackwater.errors import ScenarioError
from slackwater.ledger.ledger import Charge
from slackwater.ledger.run import Run
from slackwater.live import RunStopped
from slackwater.live.charging import MOST_OF_PLANNED, confirm
from slackwater.live.folder import LiveResult
from slackwater.live.runner import carry_out
from slackwater.live.status import read_status

ROWS = ["xx.x.x", "x.xx.x", ".x.xxx"]
FALSE_KWH = 1000.0


def lying(kwh: float = FALSE_KWH, slot: int = 0, name: str = "oslo") -> Sites:
    return Sites(energy_kwh=lambda work, client: kwh if (work.slot, client) == (slot, name) else None)


def run(folder: Path, sites: Sites, *, budget: float | None = None, **more: Any) -> LiveResult:
    plan = world.plan(ROWS, **more)
    if budget is not None:
        plan = world.plan(ROWS, **more, budget_kg=plan.emissions_kg * budget)
    world.made(folder, plan)
    return carry_out(folder, sites, world.initial())


def lines(folder: Path, slot: int = 0, client: str = "oslo") -> list[Charge]:
    with Run.open(folder, read_only=True) as opened:
        return list(opened.ledger.charges(slot=slot, client=client))


def kwh(found: list[Charge], cause: str = "training") -> float:
    return math.fsum(line.energy_kwh or 0.0 for line in found if line.cause == cause)


def called(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)


def test_a_false_report_is_charged_at_the_bound_and_does_not_end_the_run(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", Sites())
    done = run(tmp_path / "run", lying())
    assert len(done.history) == len(whole.history)
    assert kwh(lines(tmp_path / "run")) == pytest.approx(MOST_OF_PLANNED)  # 1 kW for an hour is planned
    intensity = lines(tmp_path / "run")[0].intensity_kg_per_kwh or 0.0
    assert done.emissions_kg == pytest.approx(whole.emissions_kg + (MOST_OF_PLANNED - 1) * intensity)
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path / "run"))
    assert "oslo reported 1000 kWh in slot 0, more than is possible" in world.said(tmp_path / "run")
    assert f"slackwater confirm {tmp_path / 'run'} --client oslo --slot 0" in world.said(tmp_path / "run")


@pytest.mark.parametrize(("factor", "quarantined"), [(0.999, False), (1.001, True)])
def test_the_bound_counts_pue_evaluation_and_the_declared_power(
    tmp_path: Path, factor: float, quarantined: bool
) -> None:
    kwh_planned = 1.1  # with a tenth for the evaluation, which a measured energy holds as well
    report = factor * MOST_OF_PLANNED * kwh_planned / 1.1
    run(tmp_path, lying(report), evaluation_share=0.1)
    assert bool(read_status(tmp_path).quarantined) == quarantined
    most = MOST_OF_PLANNED * min(factor, 1.0)
    assert kwh(lines(tmp_path)) == pytest.approx(most)
    assert kwh(lines(tmp_path), "evaluation") == pytest.approx(0.1 * most)


def test_in_short_slots_the_bound_counts_real_seconds(tmp_path: Path) -> None:
    """A meter measures what a machine draws in two seconds, not in the hour that they stand for."""
    clock = Late(0.0)
    clock.slot_seconds = 2.0
    world.made(tmp_path, world.plan(ROWS))
    carry_out(tmp_path, lying(), world.initial(), clock=clock)
    (report,) = read_status(tmp_path).quarantined
    assert report.bound_kwh == pytest.approx(MOST_OF_PLANNED * 1.0 * 2 / 3600)
    assert kwh(lines(tmp_path)) == pytest.approx(report.bound_kwh)


def test_a_confirmed_report_is_charged_in_full_by_a_correction(tmp_path: Path) -> None:
    run(tmp_path, lying(), evaluation_share=0.1)
    before, spent = lines(tmp_path), world.spent(tmp_path)
    report = confirm(tmp_path, "oslo", 0)
    assert (report.confirmed_kwh, report.reported_kwh) == (FALSE_KWH, FALSE_KWH)
    after = lines(tmp_path)
    assert after[: len(before)] == before  # nothing that was booked changes
    added = after[len(before) :]
    assert {line.cause for line in added} == {"training", "evaluation"}
    assert {(line.kind, line.method) for line in added} == {("correction", "measured")}
    assert (kwh(after), kwh(after, "evaluation")) == pytest.approx((FALSE_KWH, 0.1 * FALSE_KWH))
    assert world.spent(tmp_path) == pytest.approx(world.recount(tmp_path))
    assert world.spent(tmp_path) == pytest.approx(spent + math.fsum(line.kg for line in added))
    assert read_status(tmp_path).quarantined == ()
    with Run.open(tmp_path, read_only=True) as opened:
        assert opened.journal.attempts(slot=0)[1].energy_kwh == pytest.approx(FALSE_KWH)


def test_a_person_may_give_another_value_and_correct_it_again(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", Sites())
    run(tmp_path / "run", lying(1000.0))  # Wh, reported as kWh
    confirm(tmp_path / "run", "oslo", 0, 0.5)
    assert kwh(lines(tmp_path / "run")) == pytest.approx(0.5)
    confirm(tmp_path / "run", "oslo", 0, 1.0)
    assert world.spent(tmp_path / "run") == pytest.approx(whole.emissions_kg)
    assert world.recount(tmp_path / "run") == pytest.approx(whole.emissions_kg)
    with Run.open(tmp_path / "run", read_only=True) as opened:
        corrections = [one for one in opened.queries.differences() if one[0] == "correction"]
        charge, changes = opened.queries.checked_line() or (None, [])
    assert [(n, round(kg, 12)) for _, n, _, kg, _ in corrections] == [(1, 0.0)]  # one charge, back at its first value
    assert charge is not None
    assert len(changes) in (0, 3)


@pytest.mark.parametrize("first", ["settle", "confirm"])
def test_settlement_and_confirmation_give_the_same_sum_in_either_order(tmp_path: Path, first: str) -> None:
    plan = world.plan(ROWS)
    world.made(tmp_path, plan, source="playback", replan_slots=1, reserve=0.0, lag_slots=0 if first == "settle" else 30)
    carry_out(tmp_path, lying(), world.initial())
    with Run.open(tmp_path, read_only=True) as opened:
        unsettled = opened.ledger.unsettled_kg()
        open_lines = {line.client for line in opened.ledger.unsettled(before=1)}
    assert ("oslo" in open_lines) == (first == "confirm")
    confirm(tmp_path, "oslo", 0, 2.0)
    with Run.open(tmp_path) as opened:
        if first == "confirm":
            # The confirmed energy is at an upper bound until the actual intensity settles all of it.
            assert opened.ledger.unsettled_kg() < unsettled
            assert opened.ledger.unsettled_kg() == pytest.approx(opened.ledger.spent_kg())
            for line in opened.ledger.unsettled():
                opened.ledger.settle(line, 0.25, source="test", kind="actual")
        else:
            assert opened.ledger.unsettled_kg() == pytest.approx(unsettled)
            added = list(opened.ledger.charges(slot=0, client="oslo"))[-1]
            assert added.intensity_kind == "actual"
        assert opened.ledger.unsettled_kg() == pytest.approx(0.0, abs=1e-12) or first == "settle"
    assert world.spent(tmp_path) == pytest.approx(world.recount(tmp_path))
    found = [line for line in lines(tmp_path) if line.cause == "training"]
    settled = next(line.intensity_kg_per_kwh for line in found if line.kind == "settlement")
    assert math.fsum(line.kg for line in found) == pytest.approx(2.0 * (settled or 0.0))


def test_confirming_while_the_run_goes_on(tmp_path: Path) -> None:
    """The run has its lock: another process may add the correction, and the rest of the run counts it."""
    sites = lying(slot=0)

    def between(work: Any) -> None:
        if next(iter(work.values())).slot == 2:
            confirm(tmp_path, "oslo", 0, 50.0)

    sites.before_train = between
    done = run(tmp_path, sites, budget=1e6)
    assert kwh(lines(tmp_path)) == pytest.approx(50.0)
    assert done.emissions_kg == pytest.approx(world.recount(tmp_path))
    assert done.history[-1].spent_kg == pytest.approx(done.emissions_kg)


def test_reports_survive_a_stop_and_are_named_everywhere(tmp_path: Path) -> None:
    sites = lying()
    stop = StopAfter(sites, 1)
    world.made(tmp_path, world.plan(ROWS))
    with pytest.raises(RunStopped):
        carry_out(tmp_path, sites, world.initial(), stop=stop.event)
    carry_out(tmp_path, Sites(), world.initial())
    shown = " ".join(called("status", tmp_path).output.split())
    assert "quarantined: oslo reported 1000 kWh in slot 0, more than is possible; 3 kWh are charged" in shown
    (found,) = json.loads(called("status", tmp_path, "--json").output)["quarantined"]
    assert (found["client"], found["slot"], found["reported_kwh"]) == ("oslo", 0, 1000.0)
    state = RunReader(path=tmp_path / "run.db", label="run").look()
    assert state["quarantined"] == [found]
    said = " ".join(called("report", tmp_path).output.split())
    assert "too large and not confirmed: oslo in slot 0." in said
    assert "oslo reported 1000 kWh in slot 0, more than is possible." in called("report", tmp_path, "--json").output
    confirm(tmp_path, "oslo", 0)
    assert json.loads(called("status", tmp_path, "--json").output)["quarantined"] == []
    assert RunReader(path=tmp_path / "run.db", label="run").look()["quarantined"] == []
    assert "more than is possible. The bound" not in called("report", tmp_path, "--json").output
    assert "not confirmed" not in called("report", tmp_path).output


def test_the_command_lists_and_confirms(tmp_path: Path) -> None:
    run(tmp_path, lying())
    assert "oslo" in called("confirm", tmp_path).output
    done = called("confirm", tmp_path, "--client", "oslo", "--slot", 0, "--kwh", 0.4, "--json")
    assert json.loads(done.output)["reports"][0]["confirmed_kwh"] == 0.4
    assert kwh(lines(tmp_path)) == pytest.approx(0.4)
    assert "0.4 kWh" in called("confirm", tmp_path).output
    for arguments in (["--client", "oslo"], ["--slot", 1], ["--kwh", 1]):
        assert "both --client and --slot" in called("confirm", tmp_path, *arguments).stderr
    wrong = called("confirm", tmp_path, "--client", "rome", "--slot", 1)
    assert (wrong.exit_code, "oslo in slot 0" in wrong.stderr) == (2, True)


def test_a_run_without_such_reports_says_so(tmp_path: Path) -> None:
    run(tmp_path, Sites())
    assert "No energy report" in called("confirm", tmp_path).stderr
    with pytest.raises(ScenarioError, match="The run has none"):
        confirm(tmp_path, "oslo", 0)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_an_impossible_energy_is_refused(tmp_path: Path, value: float) -> None:
    run(tmp_path, lying())
    before = lines(tmp_path)
    with pytest.raises(ScenarioError, match="at least 0 kWh"):
        confirm(tmp_path, "oslo", 0, value)
    assert lines(tmp_path) == before
