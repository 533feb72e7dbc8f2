"""Cells of the paper's experiments: what they are called, that a sweep goes on where it stopped, what a table makes of them."""

from dataclasses import replace

import pytest

from slackwater.lab.paper import accuracy, published
from slackwater.lab.paper import cells as sweeps
from slackwater.lab.paper.cells import Cell, open_store, sweep, train_cell
from slackwater.lab.paper.setting import ENDS, HOURS, Source, problem

DIGITS = Source(task="digits")


def test_the_papers_tables_are_whole():
    assert set(published.BASELINE) == {(ft, T) for ft, rows in HOURS.items() for T in rows}
    assert len(published.ACCURACY) == 2 * 7 * len(ENDS)
    assert published.ACCURACY[1, 3, 70] == (98.26, 0.16)
    assert published.ACCURACY[3, 4, 70] is None
    assert published.BASELINE[1, 40] == (98.82, 0.06)


def test_cells_have_names_of_their_own():
    cells = [
        *sweeps.setting_cells(), *sweeps.baseline_cells(), *sweeps.table_cells(1), *sweeps.table_cells(3),
        *sweeps.alpha_cells(), *sweeps.process_cells(), *sweeps.with_rates(sweeps.table_cells(1)),
    ]  # fmt: skip
    assert len({cell.name for cell in cells}) == len(set(cells))
    assert sweeps.table_cells(1)[0] == sweeps.table_cell(1, 3, 1)  # the tightest budget first


def test_budgets_are_what_everybody_costs():
    row = problem(Source(), rounds=3, fine_tune=1)
    assert row.budget_kg == pytest.approx(row.costs.dense()[:, :3].sum(), rel=1e-9)


def test_budgets_equal_the_papers(shared_data):
    source = Source(data=str(shared_data / "ci_paper7"))
    kg = [problem(source, rounds=T, fine_tune=1).budget_kg for T in (3, 4, 5, 9, 10, 20, 30, 40)]
    assert [round(x, 6) for x in kg] == [0.557535, 0.744726, 0.942855, 1.773765, 1.983414, 4.235079, 6.196011, 7.980066]


@pytest.mark.parametrize("fine_tune", [1, 3])
def test_the_same_cells_are_infeasible_as_in_the_paper(shared_data, fine_tune):
    can = accuracy.feasible(Source(data=str(shared_data / "ci_paper7")), fine_tune)
    assert can == {(T, s): value is not None for (ft, T, s), value in published.ACCURACY.items() if ft == fine_tune}


def test_a_sweep_trains_only_what_is_missing(tmp_path):
    store = open_store(tmp_path / "cells.jsonl", DIGITS)
    cells = [Cell(rounds=2, end=1, slack=3, local_steps=1, lr=0.1, seed=seed) for seed in (0, 1)]
    done = list(sweep(cells[:1], DIGITS, store, jobs=1))
    done += list(sweep([*cells, cells[0]], DIGITS, store, jobs=1))
    assert [row["seed"] for row in done] == [0, 1]
    assert store.get(cells[1]) == done[1]
    again = open_store(tmp_path / "cells.jsonl", DIGITS)
    assert list(sweep(cells, DIGITS, again, jobs=1)) == []
    assert again.accuracies(cells) == [100 * row["accuracy"] for row in done]
    assert open_store(tmp_path / "cells.jsonl", replace(DIGITS, beta=0.1)).get(cells[0]) is None


def test_two_at_a_time_find_the_same(tmp_path):
    store = open_store(tmp_path / "cells.jsonl", DIGITS)
    cells = [Cell(rounds=2, end=1, slack=3, local_steps=1, lr=0.1, seed=seed) for seed in (0, 1)]
    found = {row["seed"]: row["accuracy"] for row in sweep(cells, DIGITS, store, jobs=2)}
    assert found == {cell.seed: train_cell(cell, DIGITS)["accuracy"] for cell in cells}


def test_an_infeasible_cell_is_stored_as_such(tmp_path):
    cell = Cell(rounds=2, end=1, slack=3, budget_kg=1e-6, local_steps=1, lr=0.1)
    store = open_store(tmp_path / "cells.jsonl", DIGITS)
    assert [row["status"] for row in sweep([cell], DIGITS, store, jobs=1)] == ["infeasible"]
    assert store.accuracies([cell]) == []


def test_the_rate_is_tuned_by_the_mean_over_seeds(tmp_path):
    store = open_store(tmp_path / "cells.jsonl", DIGITS)
    cells = [sweeps.table_cell(1, 3, 50, seed, lr) for lr in (0.1, 0.0316) for seed in (0, 1)]
    for cell, value in zip(cells, (0.1, 0.99, 0.9, 0.92), strict=True):
        store.add(cell, {"status": "trained", "accuracy": value})
    best = accuracy.best_rate(store, cells)
    assert (best.lr, best.mean, best.seeds) == (0.0316, pytest.approx(91.0), 2)
    # A rate tried on one seed only does not win by it.
    lucky = replace(cells[0], lr=0.01)
    store.add(lucky, {"status": "trained", "accuracy": 1.0})
    assert accuracy.best_rate(store, [*cells, lucky]).lr == 0.0316
    diverged = replace(cells[3], seed=2)
    store.add(diverged, {"status": "diverged"})
    assert accuracy.best_rate(store, [*cells[2:], diverged]).mean == pytest.approx((90 + 92 + 10) / 3)


def test_one_baseline_run_holds_the_column(tmp_path):
    store = open_store(tmp_path / "cells.jsonl", DIGITS)
    curve = [i / 100 for i in range(1, 41)]
    for seed, cell in enumerate(sweeps.baseline_cells((0, 1))):
        store.add(cell, {"status": "trained", "by_round": [x + seed / 10 for x in curve]})
    found = accuracy.no_slack(store, sweeps.baseline_cells())
    assert found[3].mean == pytest.approx(8.0)
    assert found[40].mean == pytest.approx(45.0)
    assert found[3].seeds == 2


def test_the_baseline_of_a_smaller_budget_is_the_same_run_cut_short():
    long, short = (train_cell(Cell(kind="no-slack", rounds=T, local_steps=1, lr=0.1), DIGITS) for T in (4, 2))
    assert long["by_round"][:2] == short["by_round"]
    assert short["accuracy"] == short["by_round"][-1]
