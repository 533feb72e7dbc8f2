"""Everybody ends with the same weight, whatever was lost on the way."""

import json

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from slackwater.live.updates import MakeupWeights
from slackwater.training.aggregators import Participation, UFedAvg


def given(kept: MakeupWeights, used: list[int], left: np.ndarray, before: int) -> np.ndarray:
    """The effective pi of a slot, which a query does not change, and whose weights are then counted."""
    before_asking = json.dumps(kept.to_dict())
    pi = kept.pi(used, left, before)
    assert json.dumps(kept.to_dict()) == before_asking
    kept.give(used, left, before)
    return pi


def realised(plan: np.ndarray, lost: np.ndarray, makeup: float) -> tuple[np.ndarray, MakeupWeights]:
    """[client, slot], weights of U-FedAvg with effective pi, where `lost` slots came to nothing."""
    clients, before = plan.shape
    weights, kept = np.zeros(plan.shape), MakeupWeights(clients, makeup=makeup)
    for slot in range(before):
        used = [int(c) for c in np.flatnonzero(plan[:, slot] & ~lost[:, slot])]
        kept.expect(plan[:, slot:].sum(axis=1))
        if used:
            pi = given(kept, used, plan[:, slot:].sum(axis=1), before)
            found = UFedAvg().weights(used, Participation(slot=slot, number=slot, clients=clients, pi=pi))
            weights[used, slot] = [found[c] for c in used]
        kept_again = MakeupWeights(clients, makeup=makeup)
        kept_again.restore(json.loads(json.dumps(kept.to_dict())))
        kept = kept_again  # as after a restart in every slot
    return weights, kept


plans = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).random((4, 24)) < 0.4)


@settings(max_examples=40, deadline=None)
@for_all(plan=plans)
def test_without_losses_it_is_ufedavg_exactly(plan: np.ndarray) -> None:
    pi = plan.sum(axis=1) / plan.shape[1]
    weights, _ = realised(plan, np.zeros_like(plan), makeup=1.0)
    for slot in range(plan.shape[1]):
        used = [int(c) for c in np.flatnonzero(plan[:, slot])]
        wanted = UFedAvg().weights(used, Participation(slot=slot, number=slot, clients=len(plan), pi=pi))
        assert [weights[c, slot] for c in used] == [wanted[c] for c in used]


@settings(max_examples=40, deadline=None)
@for_all(plan=plans, seed=st.integers(0, 2**32 - 1), share=st.floats(0.0, 0.9))
def test_totals_are_equal_under_losses(plan: np.ndarray, seed: int, share: float) -> None:
    clients, before = plan.shape
    lost = np.random.default_rng(seed).random(plan.shape) < share
    for client in range(clients):  # the last planned slot of each is there: the one before it may be
        lost[client, np.flatnonzero(plan[client])[-1:]] = False
    weights, kept = realised(plan, lost, makeup=1e9)
    there = plan.any(axis=1)
    assert weights.sum(axis=1)[there] == pytest.approx(before / clients, rel=1e-9)
    assert kept.shortfall(before)[there] == pytest.approx(0.0, abs=1e-9)
    assert kept.shortfall(before)[~there] == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@for_all(plan=plans, seed=st.integers(0, 2**32 - 1))
def test_no_weight_is_above_the_cap_and_what_is_missing_is_told(plan: np.ndarray, seed: int) -> None:
    clients, before = plan.shape
    lost = np.random.default_rng(seed).random(plan.shape) < 0.5
    weights, kept = realised(plan, lost, makeup=2.0)
    total = weights.sum(axis=1)
    assert kept.shortfall(before) == pytest.approx(np.maximum(0, 1 - total * clients / before), abs=1e-9)
    assert np.all(total <= before / clients * (1 + 1e-9))
    most = 2.0 * before / (clients * np.maximum(1, plan.sum(axis=1)))
    assert np.all(weights <= most[:, None] * (1 + 1e-9))


def test_a_late_update_carries_what_was_lost_up_to_the_cap() -> None:
    kept = MakeupWeights(2, makeup=3.0)
    assert given(kept, [1], np.array([4, 3]), 8).tolist() == [4 / 8, 3 / 8]
    two_left = given(kept, [0], np.array([2, 2]), 8)  # two of four are lost: twice the planned 8 / 4
    assert two_left.tolist() == [1 / 4, 3 / 8]
    late = MakeupWeights(1, makeup=3.0)
    late.expect(np.array([4]))
    assert given(late, [0], np.array([1]), 8)[0] == pytest.approx(1 / 6)  # 8 / 1 wanted, three times 8 / 4 allowed
    assert late.shortfall(8).tolist() == [0.25]


def test_a_client_that_has_had_enough_has_no_weight() -> None:
    kept = MakeupWeights(1)
    given(kept, [0], np.array([1]), 8)
    assert given(kept, [0], np.array([1]), 4)[0] == np.inf  # the window came earlier than planned
