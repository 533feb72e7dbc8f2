"""The invariant, whatever happens: spent + in flight + protected <= budget, and nothing is booked twice."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import fsum
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from slackwater.errors import SlackwaterError
from slackwater.ledger.ledger import Charge, ChargedTwiceError, OverBudgetError
from slackwater.ledger.run import Run

START = datetime(2023, 3, 1, tzinfo=UTC)
BUDGET = 10.0
NEAR = 1e-9


@dataclass
class Booked:
    """One charge as we recount it ourselves."""

    charge: Charge
    energy_kwh: float
    intensity: float

    @property
    def kg(self) -> float:
        return self.energy_kwh * self.intensity


def line(slot: int, client: int, energy_kwh: float, bound: float, note: str = "") -> Charge:
    return Charge(
        slot=slot, slot_start=START, client=f"c{client}", zone="FR", kg=energy_kwh * bound, energy_kwh=energy_kwh,
        intensity_kg_per_kwh=bound, intensity_source="bound", intensity_kind="bound", factor="direct", note=note,
    )  # fmt: skip


energies = st.floats(0.0, 2.0)
bounds = st.floats(0.01, 1.0)
shares = st.floats(0.0, 1.0)


class Rounds(RuleBasedStateMachine):
    """Starts, ends, losses, measured energies, settlements, restarts and full disks in any order."""

    running = Bundle("running")
    unsettled = Bundle("unsettled")

    @initialize(protected=st.floats(0.0, 5.0))
    def begin(self, protected: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.run = Run.create(self.folder, plan={}, budget_kg=BUDGET, settings={}, task={})
        self.protected, self.slot = protected, 0
        self.booked: list[Booked] = []
        self.within = True
        """Whether energies and actuals stayed within their bounds so far."""

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.close()
            shutil.rmtree(self.folder)

    @property
    def spent(self) -> float:
        return fsum(one.kg for one in self.booked)

    @rule(target=running, energy=st.lists(energies, min_size=1, max_size=3), bound=bounds)
    def start(self, energy: list[float], bound: float) -> list[Booked]:
        lines = [line(self.slot, client, kwh, bound) for client, kwh in enumerate(energy)]
        needed = self.spent + fsum(one.kg for one in lines) + self.protected
        try:
            self.run.ledger.charge(*lines, protected_kg=self.protected)
        except OverBudgetError:
            assert needed > BUDGET * (1 - NEAR)
            return []
        assert needed <= BUDGET * (1 + NEAR)
        kept = list(self.run.ledger.charges(slot=self.slot))
        new = [Booked(one, one.energy_kwh or 0.0, bound) for one in kept]
        self.booked += new
        self.slot += 1
        return new

    @rule(target=unsettled, some=consumes(running), share=shares)
    def end(self, some: list[Booked], share: float) -> list[Booked]:
        for one in some:
            assert one.charge.energy_kwh is not None
            self._correct(one, one.charge.energy_kwh * share)
        return some

    @rule(target=unsettled, some=consumes(running))
    def lose(self, some: list[Booked]) -> list[Booked]:
        return some  # what was held stays

    @rule(target=unsettled, some=consumes(running), factor=st.floats(1.0, 3.0))
    def draw_more_than_declared(self, some: list[Booked], factor: float) -> list[Booked]:
        for one in some:
            assert one.charge.energy_kwh is not None
            self._correct(one, one.charge.energy_kwh * factor)
            self.within &= factor == 1.0 or one.charge.energy_kwh == 0.0
        return some

    @rule(some=consumes(unsettled), share=shares)
    def settle(self, some: list[Booked], share: float) -> None:
        for one in some:
            assert one.charge.intensity_kg_per_kwh is not None
            self._settle(one, one.charge.intensity_kg_per_kwh * share)

    @rule(some=consumes(unsettled), factor=st.floats(1.0, 2.0))
    def settle_above_the_bound(self, some: list[Booked], factor: float) -> None:
        for one in some:
            assert one.charge.intensity_kg_per_kwh is not None
            self._settle(one, one.charge.intensity_kg_per_kwh * factor)
            self.within &= factor == 1.0 or one.energy_kwh == 0.0

    @rule(target=running, some=consumes(running), share=shares)
    def settle_before_the_end(self, some: list[Booked], share: float) -> list[Booked]:
        """Actuals may come before a client's last word."""
        for one in some:
            assert one.charge.intensity_kg_per_kwh is not None
            if one.intensity == one.charge.intensity_kg_per_kwh:
                self._settle(one, one.charge.intensity_kg_per_kwh * share)
        return some

    @rule()
    def begin_the_window(self) -> None:
        self.protected = 0.0

    @rule()
    def restart(self) -> None:
        self.run.close()
        self.run = Run.open(self.folder)

    @precondition(lambda self: self.booked)
    @rule(data=st.data())
    def book_again(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.booked))
        with pytest.raises((ChargedTwiceError, OverBudgetError)):
            self.run.ledger.charge(replace(one.charge, id=None))

    @rule(energy=energies, bound=bounds)
    def fill_the_disk(self, energy: float, bound: float) -> None:
        db = self.run.ledger._db
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        try:
            with pytest.raises(SlackwaterError, match=r"cannot be written: .*full|over the"):
                self.run.ledger.charge(line(self.slot, 0, energy, bound, note="x" * 50_000))
        finally:
            db.execute("PRAGMA max_page_count = 1000000")

    @invariant()
    def the_sum_is_ours(self) -> None:
        if hasattr(self, "run"):
            assert self.run.ledger.spent_kg() == pytest.approx(self.spent, rel=1e-9, abs=1e-12)

    @invariant()
    def the_budget_holds(self) -> None:
        if hasattr(self, "run") and self.within:
            booked_any = bool(self.booked)
            assert self.run.ledger.spent_kg() + (self.protected if booked_any else 0.0) <= BUDGET * (1 + NEAR)

    def _correct(self, one: Booked, energy_kwh: float) -> None:
        assert self.run.ledger.correct(one.charge, energy_kwh, method="measured")
        assert not self.run.ledger.correct(one.charge, 99.0)
        one.energy_kwh = energy_kwh

    def _settle(self, one: Booked, intensity: float) -> None:
        done = self.run.ledger.settle(one.charge, intensity, source="actual", kind="actual")
        assert not self.run.ledger.settle(one.charge, 99.0, source="actual", kind="actual")
        if done:
            one.intensity = intensity


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_what_is_spent_in_any_case_is_booked_over_the_budget() -> None:
    with Run.create(None, plan={}, budget_kg=1.0, settings={}, task={}) as run:
        run.ledger.charge(line(0, 0, 2.0, 1.0), spent=True)
        assert run.ledger.spent_kg() == 2.0
        with pytest.raises(OverBudgetError, match="over the budget"):
            run.ledger.charge(line(1, 0, 0.0, 1.0))


def test_what_is_protected_is_named() -> None:
    with Run.create(None, plan={}, budget_kg=1.0, settings={}, task={}) as run:
        with pytest.raises(OverBudgetError, match=r"0\.8 kg kept for the fine-tuning window is over"):
            run.ledger.charge(line(0, 0, 0.5, 1.0), protected_kg=0.8)
        assert run.ledger.spent_kg() == 0.0


def test_in_flight_is_what_is_not_settled() -> None:
    with Run.create(None, plan={}, budget_kg=9.0, settings={}, task={}) as run:
        run.ledger.charge(line(0, 0, 1.0, 1.0), line(1, 0, 1.0, 2.0))
        first, second = run.ledger.unsettled()
        assert [one.slot for one in run.ledger.unsettled(before=1)] == [0]
        run.ledger.correct(first, 0.5)
        assert run.ledger.unsettled_kg() == pytest.approx(2.5)
        run.ledger.settle(first, 0.4, source="a file", kind="actual")
        assert run.ledger.unsettled() == [second]
        assert run.ledger.spent_kg() == pytest.approx(0.5 * 0.4 + 2.0)
        assert run.ledger.round_kg(before=1) == {(0, "c0"): pytest.approx(0.2)}
        assert run.ledger.slot_kg(1) == {"c0": pytest.approx(2.0)}
        with pytest.raises(SlackwaterError, match="energy and intensity"):
            run.ledger.correct(replace(second, energy_kwh=None), 1.0)
