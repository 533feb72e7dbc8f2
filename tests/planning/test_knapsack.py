"""The knapsack on its own, against every subset."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.planning import knapsack

_NUMBERS = st.sampled_from([0.125, 0.25, 0.5, 1.0, 2.0]) | st.floats(0.001, 5.0)
_ITEMS = st.lists(st.tuples(_NUMBERS | st.just(0.0), _NUMBERS), min_size=1, max_size=11)


@given(_ITEMS, st.floats(0.01, 15.0) | st.sampled_from([0.5, 1.0, 2.0, 4.0]))
@settings(max_examples=1500, derandomize=True, deadline=None)
def test_equals_every_subset(items: list[tuple[float, float]], capacity: float) -> None:
    values, weights = (np.array(column) for column in zip(*items, strict=True))
    subsets = np.array(list(itertools.product([0, 1], repeat=len(items))))
    feasible = subsets[subsets @ weights <= capacity * (1 + 1e-13)]  # sums of the same numbers differ by rounding
    totals = feasible @ values
    best = totals.max()
    choice = knapsack.solve(values, weights, capacity)
    assert weights[choice.taken].sum() <= capacity * (1 + 1e-12)
    assert values[choice.taken].sum() == pytest.approx(best, abs=1e-9)
    assert best - 1e-9 <= choice.upper_bound <= best + 1e-9
    ties = feasible[totals >= best - 1e-12]
    assert choice.taken.sum() == ties.sum(axis=1).max(), "among equals, more items"
    assert knapsack.fractional_bound(values, weights, capacity) >= best - 1e-9


@given(_ITEMS, st.floats(0.01, 15.0))
@settings(max_examples=500, derandomize=True, deadline=None)
def test_greedy_is_feasible_maximal_and_at_least_half(items: list[tuple[float, float]], capacity: float) -> None:
    values, weights = (np.array(column) for column in zip(*items, strict=True))
    choice = knapsack.solve(values, weights, capacity, greedy=True)
    best = knapsack.solve(values, weights, capacity)
    left = capacity - weights[choice.taken].sum()
    assert left >= -1e-12
    assert values[choice.taken].sum() >= values[best.taken].sum() / 2 - 1e-9
    assert choice.upper_bound >= best.upper_bound - 1e-9


def test_large_and_correlated_is_closed_to_the_tolerance() -> None:
    """Values close to weights are the hard ones; the bound says how far the answer can be off."""
    rng = np.random.default_rng(7)
    weights = rng.uniform(0.5, 1.0, 4000)
    values = weights + 0.1 * rng.random(4000)
    choice = knapsack.solve(values, weights, 700.0)
    total = values[choice.taken].sum()
    assert weights[choice.taken].sum() <= 700.0
    assert (choice.upper_bound - total) / choice.upper_bound <= 1e-9


def test_giving_up_is_said_in_the_bound() -> None:
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 1.0, 22)
    short = knapsack.solve(weights + 0.3, weights, 8.0, most_work=10)
    full = knapsack.solve(weights + 0.3, weights, 8.0)
    assert short.upper_bound >= full.upper_bound
    assert (weights + 0.3)[short.taken].sum() <= full.upper_bound + 1e-9


def test_nothing_fits() -> None:
    choice = knapsack.solve(np.array([1.0]), np.array([2.0]), 1.0)
    assert not choice.taken.any()
    assert choice.upper_bound == 0
