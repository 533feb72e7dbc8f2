"""The store of the studies: nothing is lost, a torn line is ignored, and a sweep continues."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slackwater.errors import DataError
from slackwater.lab.store import Store, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    name: str
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer:
    name: str
    seed: int = 0
    since: str = "added later"


def measure(cell: Cell) -> dict[str, Any]:
    return {"value": f"{cell.name}{cell.seed}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "study.jsonl"


CELLS = [Cell(name=name, seed=seed) for name in "ab" for seed in (0, 1)]


def test_rows_are_appended_and_read_again(path: Path) -> None:
    rows = list(sweep(CELLS, measure, Store(path, Cell, {"task": "digits"})))
    assert [row["value"] for row in rows] == ["a0", "a1", "b0", "b1"]
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    again = Store(path, Cell, {"task": "digits"})
    assert again.rows() == rows
    assert [cell for cell, _ in again.cells()] == CELLS
    assert list(sweep(CELLS, measure, again)) == []
    assert len(list(sweep(CELLS, measure, Store(path, Cell, {"task": "mnist"})))) == 4
    assert len(path.read_text().splitlines()) == 8
    assert len(list(again.cells())) == 4


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_last_line_is_measured_again(path: Path, cut: int) -> None:
    rows = list(sweep(CELLS, measure, Store(path, Cell)))
    path.write_bytes(path.read_bytes()[:-cut])
    store = Store(path, Cell)
    assert store.rows() == (rows if cut == 1 else rows[:3])  # without its newline a line is still whole
    list(sweep(CELLS, measure, store))
    list(sweep([Cell(name="c")], measure, store))
    assert [row["value"] for row in Store(path, Cell).rows()] == ["a0", "a1", "b0", "b1", "c0"]
    assert len(path.read_text().splitlines()) == 5


def test_a_file_that_holds_only_a_torn_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"name": "a", "se')
    store = Store(path, Cell)
    assert store.rows() == []
    row = store.add(CELLS[0], {"value": 1})
    assert Store(path, Cell).rows() == [row]


@pytest.mark.parametrize("damage", ['{"name": ', "[]", "{}", "7"])
def test_a_damaged_line_says_what_to_do(path: Path, damage: str) -> None:
    list(sweep(CELLS, measure, Store(path, Cell)))
    path.write_text(damage + "\n" + path.read_text())
    with pytest.raises(DataError, match=r"line 1: this is not a stored cell\. Delete the line"):
        Store(path, Cell)


def test_what_was_measured_before_a_failure_is_kept(path: Path) -> None:
    def fails(cell: Cell) -> dict[str, Any]:
        if cell == CELLS[2]:
            raise OSError("full")
        return measure(cell)

    with pytest.raises(OSError, match="full"):
        list(sweep(CELLS, fails, Store(path, Cell)))
    assert [row["value"] for row in Store(path, Cell).rows()] == ["a0", "a1"]
    assert [row["value"] for row in sweep(CELLS, measure, Store(path, Cell))] == ["b0", "b1"]


def test_two_jobs_store_the_same(path: Path) -> None:
    assert sorted(row["value"] for row in sweep(CELLS, measure, Store(path, Cell), jobs=2)) == ["a0", "a1", "b0", "b1"]
    assert len(Store(path, Cell).rows()) == 4


def test_a_field_that_came_later_has_its_default_in_old_rows(path: Path) -> None:
    list(sweep(CELLS, measure, Store(path, Cell)))
    store = Store(path, Longer)
    assert store.get(Longer(name="a")) is not None
    assert store.get(Longer(name="a", since="now")) is None


def test_of_two_lines_the_later_one_counts(path: Path) -> None:
    store = Store(path, Cell)
    store.add(CELLS[0], {"value": 1})
    store.add(CELLS[0], {"value": 2})
    assert [row["value"] for row in Store(path, Cell).rows()] == [2]


def test_stored_results_can_be_read() -> None:
    from slackwater.lab.paper.cells import open_store
    from slackwater.lab.paper.setting import Source
    from slackwater.lab.policies.comparison import Cell as Comparison
    from slackwater.lab.studies import aggregation, auto_cells, backtests, correlation, forecasts

    top = Path(__file__).resolve().parents[2] / "experiments"
    results = top / "results"
    kept: dict[str, tuple[Store[Any], int]] = {
        "paper": (open_store(top / "paper" / "cells.jsonl", Source()), 382),
        "cnn": (open_store(results / "auto_cnn.jsonl", Source()), 227),
        "mnist": (Store(top / "rivals" / "mnist" / "cells.jsonl", Comparison), 153),
        "fashion": (Store(top / "rivals" / "fashion" / "cells.jsonl", Comparison), 51),
        "digits": (Store(top / "rivals" / "digits" / "cells.jsonl", Comparison), 138),
        "auto": (Store(results / "auto.jsonl", auto_cells.Cell), 3218),
        "aggregation": (Store(results / "aggregation.jsonl", aggregation.Cell, {"task": ""}), 63),
        "correlation": (Store(results / "correlation.jsonl", correlation.Cell, {"task": ""}), 96),
        "backtests": (Store(results / "backtests.jsonl", backtests.Cell, {"study": ""}), 1321),
        "first plans": (Store(results / "first_plans.jsonl", backtests.FirstPlan, {"study": ""}), 1200),
        "forecasts": (Store(results / "forecasts.jsonl", forecasts.Cell), 119),
    }
    assert {name: len(store.rows()) >= least for name, (store, least) in kept.items()} == dict.fromkeys(kept, True)
