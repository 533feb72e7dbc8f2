"""The stated upper bound: what it looks at, and that it tightens."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import daily, traces

from slackwater.errors import DataError
from slackwater.replanning.reserve import Bounds

_DAY = 24


def test_a_rise_that_was_seen_is_within_the_bound() -> None:
    x = daily(3, 40 * _DAY, seed=1, noise=0.0)
    bounds = Bounds(traces(x[:, : 30 * _DAY]), margin=1.0)
    energy = np.array([1.0, 2.0, 0.5])
    for lead in (1, 2, 5, 24, 60):
        assert bounds.kg(energy, lead) >= energy @ x[:, 30 * _DAY + lead - 1] - 1e-12


def test_it_tightens_as_the_slot_comes_nearer_and_never_exceeds_the_level() -> None:
    x = daily(4, 30 * _DAY, seed=2)
    bounds = Bounds(traces(x), margin=1.25)
    energy = np.ones(4)
    near, far = bounds.kg(energy, 1), bounds.kg(energy, 12)
    level = 1.25 * (energy @ x).max()
    assert near < far <= level
    assert bounds.kg(energy, 100_000) == pytest.approx(1.25 * (energy @ x[:, -28 * _DAY :]).max()), (
        "no rise is that long"
    )


def test_zones_together_are_held_at_less_than_one_by_one() -> None:
    x = daily(5, 30 * _DAY, seed=3, noise=0.5)
    bounds = Bounds(traces(x))
    alone = sum(bounds.kg(row, 2) for row in np.eye(5))
    assert bounds.kg(np.ones(5), 2) < alone


def test_as_it_will_be_uses_the_value_expected_then() -> None:
    x = daily(2, 30 * _DAY, seed=4)
    bounds = Bounds(traces(x))
    energy = np.ones(2)
    assert bounds.kg_from(energy, 0.1, lead=2, ahead=30) < bounds.kg_from(energy, 0.3, lead=2, ahead=30)
    assert bounds.kg_from(energy, float(energy @ x[:, -1]), lead=3, ahead=3) == bounds.kg(energy, 3)


def test_only_the_lookback_counts() -> None:
    x = np.full((1, 30 * _DAY), 0.2)
    x[0, :_DAY] = 5.0  # a glitch a month ago
    assert Bounds(traces(x), margin=1.0, lookback_days=28).kg(np.ones(1), 2) == pytest.approx(0.2)
    assert Bounds(traces(x), margin=1.0, lookback_days=30).kg(np.ones(1), 10_000) == pytest.approx(5.0)


def test_a_short_past_is_refused() -> None:
    with pytest.raises(DataError, match=r"need 7 days of actual intensity before the run; there are 4\.0"):
        Bounds(traces(np.ones((1, 4 * _DAY))))
