"""The stand-in for learning: exact where it can be computed by hand, and in the right order where it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import slackwater as sw
from slackwater.planning.auto import MOST_GROUPS, RATES, follow, quality
from slackwater.planning.schedule import plan_from_matrix


def of(rows: list[str], window: int = 0, times: list[float] | None = None) -> tuple[float, float]:
    """`unlearned` and `uneven` of a schedule drawn in characters."""
    matrix = np.array([[char == "#" for char in row] for row in rows])
    in_window = np.arange(matrix.shape[1]) >= matrix.shape[1] - window
    found = follow(matrix, np.array(times or [1.0] * len(rows)), in_window)
    return found.unlearned, found.uneven


def plan_of(rows: list[str], fine_tune: int = 0) -> sw.Plan:
    matrix = np.array([[char == "#" for char in row] for row in rows])
    problem = sw.Problem.from_costs(
        np.ones(matrix.shape), rounds=matrix.shape[1], budget_kg=1e6, fine_tune=fine_tune, alpha=0.5
    )
    return plan_from_matrix(problem, matrix, end=0)


def test_one_client_covers_its_share_of_the_way_in_each_round() -> None:
    unlearned, uneven = of(["####"])
    assert unlearned == pytest.approx(np.mean([(1 - a) ** 8 for a in RATES]))
    assert uneven == pytest.approx(0)


def test_everybody_in_the_window_counts_the_same() -> None:
    unlearned, uneven = of(["##", "##", "##"], window=2)
    assert unlearned == pytest.approx(np.mean([(1 - a) ** 4 for a in RATES]))
    assert uneven == pytest.approx(0)


def test_more_rounds_are_better_and_a_client_that_is_missing_is_worse() -> None:
    assert sum(of(["###", "###"])) < sum(of(["##", "##"]))
    assert of(["####", "#..."])[1] > of(["####", "#.#."])[1]


def test_clients_with_the_same_slots_are_one_group() -> None:
    apart = of(["#.##", "#.##", ".#.#"], window=1)
    assert apart == pytest.approx(of(["#.##", ".#.#"], window=1, times=[2, 1]))


def test_empty_slots_do_not_count() -> None:
    assert quality(plan_of(["#.#.#", "#...#"], fine_tune=1)) == quality(plan_of(["###", "#.#"], fine_tune=1))


def test_a_large_fleet_is_sampled() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((3 * MOST_GROUPS, 12)) < 0.5
    problem = sw.Problem.from_costs(np.ones(matrix.shape), rounds=12, budget_kg=1e6, fine_tune=0)
    found = quality(plan_from_matrix(problem, matrix, end=0))
    assert 0 < found.unlearned < 1
    assert 0 <= found.uneven < 1
