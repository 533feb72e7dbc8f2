"""The study of changes of auto and echo: bounds on updates, local steps at the same kg, and a whole small sweep."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from slackwater.lab.studies import raising
from slackwater.lab.studies.raising import Bounded, BoundedByAll, BoundedByOwn, Cell, Sources, Stressed, Watched
from slackwater.training.aggregators import FedAvg, Participation

WHO = Participation(slot=0, number=0, clients=3, pi=np.full(3, 1.0))
UPDATES = {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0]), 2: torch.tensor([0.0, 30.0])}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raising, "SLACK", 16)
    monkeypatch.setattr(raising, "FULL_HOURS", 8)
    monkeypatch.setattr(raising, "STEPS_PER_HOUR", 6)
    monkeypatch.setattr(raising, "TRIED", (("digits", 0.5),))
    monkeypatch.setattr(raising, "TRIED_SEEDS", (0, 1))


def test_an_update_is_bounded_by_the_median_or_by_the_clients_own() -> None:
    by_median = Bounded(FedAvg(), 2.0, {}).aggregate(UPDATES, WHO)
    assert by_median.update.tolist() == pytest.approx([1 / 3, (1 + 2) / 3])
    by_own = BoundedByOwn(FedAvg(), 1.0, {1: 0.5, 2: 6.0}).aggregate(UPDATES, WHO)
    assert by_own.update.tolist() == pytest.approx([1 / 3, (0.5 + 6) / 3])  # the first has none before: the median
    by_all = BoundedByAll(FedAvg(), 1.0, {3: 5.0, 4: 5.0}).aggregate(UPDATES, WHO)
    assert by_all.update.tolist() == pytest.approx([1 / 3, (1 + 5) / 3])


def test_long_updates_may_count_more_and_differences_are_watched() -> None:
    assert Stressed(FedAvg(), 1.0, {}).aggregate(UPDATES, WHO).weights[2] == pytest.approx(30 / 32)
    rule = Watched()
    rule.aggregate({0: UPDATES[0], 1: UPDATES[1]}, WHO)
    assert rule.differ == [pytest.approx(1 - 0.5**0.5)]


@pytest.mark.parametrize("variant", ["early=0.5", "late=0.5", "rare=0.25", "often=0.25", "taper=0.5"])
def test_other_local_steps_emit_what_the_budget_allows(
    small: None, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(raising, "STEPS_PER_HOUR", 3000)  # so that rounding to whole steps does not matter
    cell, sources = Cell(task="digits", beta=0.5, hours=3, variant=variant, seed=0), Sources()
    plan = sources.plan(cell)
    budget = raising._budget_kg("typical", 3)
    steps = raising.local_steps(plan, *cell.change, budget)
    kg = float((np.where(plan.matrix, plan.problem.costs.dense(), 0.0) * steps).sum()) / 3000
    assert kg == pytest.approx(budget if variant == "taper=0.5" else plan.emissions_kg, rel=1e-3)
    assert kg <= budget * 1.001
    assert len(set(steps[plan.matrix].tolist())) > 1
    assert set(steps[:, list(plan.window)].reshape(-1).tolist()) == {3000}


def test_it_trains_continues_and_shows(small: None, tmp_path: Path) -> None:
    results = tmp_path / "cells.jsonl"
    variants = "median=1,own=1,always=2,stress=1,cool=0.5,early=0.5,window=2,window=9"
    asked = ["run", "--variants", variants, "--budgets", "3", "--results", str(results)]
    done = CliRunner().invoke(raising.main, asked)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == 2 * 9
    assert {row["status"] for row in rows if row["variant"] == "window=9"} == {"infeasible"}
    scores = {row["variant"]: row["accuracy"] for row in rows if row["seed"] == 0}
    assert scores["auto"] > 0.3
    assert CliRunner().invoke(raising.main, asked).exit_code == 0
    assert len(results.read_text().splitlines()) == len(rows)
    shown = CliRunner().invoke(raising.main, ["table", "--results", str(results)]).output
    assert "| early=0.5 |" in shown
    assert "| window=9 |" not in shown
