"""A report, a page and a status that are made while the run is written are of one moment each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import plan as small_plan
from report_runs import replanned, write

from slackwater.dashboard.runs import RunReader
from slackwater.ledger.queries import LedgerQueries
from slackwater.ledger.run import Run
from slackwater.live.status import read_status
from slackwater.report.account import Snapshot
from slackwater.report.statement import make_statement


@pytest.fixture
def booked_between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, type, str], list[int]]:
    """Book another line whenever a reader comes to one of its queries; the numbers of the lines booked so."""

    def install(folder: Path, reader: type, query: str) -> list[int]:
        asked, booked = getattr(reader, query), list[int]()

        def first_book(self: Any, *args: Any, **options: Any) -> Any:
            with Run.open(folder) as run:
                line = next(run.ledger.charges())
                run.ledger.charge(replace(line, id=None, attempt=1 + len(booked), kg=0.125))
            booked.append(1)
            return asked(self, *args, **options)

        monkeypatch.setattr(reader, query, first_book)
        return booked

    return install


def test_a_report_made_while_the_run_goes_on_is_of_one_moment(
    tmp_path: Path, booked_between: Callable[[Path, type, str], list[int]]
) -> None:
    folder = write(tmp_path / "run", small_plan(), until=2, status="running")
    before = make_statement(folder)
    booked = booked_between(folder, Snapshot, "cells")
    found = make_statement(folder)
    assert booked
    assert found.account.total_kg == before.account.total_kg
    for _, breakdown in found.breakdowns():
        assert math.fsum(group.kg for group in breakdown.groups) == pytest.approx(found.account.total_kg)
    assert found.account.lines == before.account.lines
    assert found.account.last_line == before.account.last_line
    with Run.open(folder, read_only=True) as run:
        assert run.ledger.spent_kg() == pytest.approx(before.account.total_kg + 0.125 * len(booked))


@pytest.mark.parametrize("query", ["in_force", "figures"])
def test_status_and_page_are_of_one_moment(
    tmp_path: Path, query: str, booked_between: Callable[[Path, type, str], list[int]]
) -> None:
    folder = replanned(tmp_path / "run", until=3)
    booked = booked_between(folder, LedgerQueries, query)
    for look in (_status, _page):
        count = len(booked)
        spent, parts = look(folder)
        assert len(booked) > count
        assert math.fsum(parts) == pytest.approx(spent, abs=1e-12)


def _status(folder: Path) -> tuple[float, Iterator[float]]:
    found = read_status(folder)
    assert found.figures is not None
    assert found.spent_kg == found.figures.spent_kg
    return found.spent_kg, iter(found.figures.by_cause_kg.values())


def _page(folder: Path) -> tuple[float, Iterator[float]]:
    state = RunReader(path=folder / "run.db", label="run").look()
    return state["spent_kg"], (one["kg"] for one in state["charges"]["by_intensity"].values())
