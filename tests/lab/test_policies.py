"""The choice of each policy on a case made by hand equals what its paper prescribes; the arithmetic is beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_policies import small_problem, view

import slackwater as sw
from slackwater.errors import ScenarioError
from slackwater.lab.policies.cafe import Cafe
from slackwater.lab.policies.carbon_policies import CaFed, FedCarbon, Greed, Lowcarb, Random, Threshold
from slackwater.lab.policies.fedzero import FedZero, FreshFedZero, solve
from slackwater.lab.policies.registry import (
    PLANNED,
    check_method,
    make_policy,
    method_names,
    policy_names,
    register_policy,
)
from slackwater.lab.policies.speed_policies import REFL, FedCS, Oort, TiFL
from slackwater.training.local import LocalWork, share


class Dice:
    """A generator that always draws the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self.number)

    def permutation(self, values: np.ndarray) -> np.ndarray:
        return values


def test_oort_takes_the_highest_statistical_utility() -> None:
    # U = n sqrt(mean loss^2) = 100, 100, 50; over the largest 1, 1, 0.5. All trained in round 4 of 4: + sqrt(0.1 ln 4 / 4).
    tried = {"number": 4, "participation": [1, 1, 1], "age": [1, 1, 1]}
    seen = view(np.ones((3, 2)), samples=[100, 50, 200], losses=[1.0, 2.0, 0.25], **tried)
    confidence = math.sqrt(0.1 * math.log(4) / 4)
    assert Oort().scores(seen, [0, 1, 2]) == pytest.approx([1 + confidence, 1 + confidence, 0.5 + confidence])
    assert sorted(Oort(2).choose(seen).clients) == [0, 1]


def test_oort_punishes_the_slow() -> None:
    # Durations 1, 2, 1, their mean 4/3: the second's score times (4/3 / 2)^2 = 4/9, so 1.186 x 4/9 = 0.527 < 0.686.
    tried = {"number": 4, "participation": [1, 1, 1], "age": [1, 1, 1]}
    seen = view(np.ones((3, 2)), samples=[100, 50, 200], losses=[1.0, 2.0, 0.25], speeds=[1.0, 0.5, 1.0], **tried)
    assert sorted(Oort(2).choose(seen).clients) == [0, 2]


def test_oort_explores_whom_it_does_not_know() -> None:
    # In the first round 0.9 x 2 = 1.8, so both places go to new clients; only two are new.
    seen = view(np.ones((3, 2)), losses=[1.0, np.nan, np.nan], participation=[1, 0, 0], age=[1, 0, 0], number=1)
    assert sorted(Oort(2).choose(seen).clients) == [1, 2]


def test_tifl_draws_the_worst_tier_most_often_while_it_has_credits() -> None:
    # Tiers by speed {0, 1}, {2, 3}, {4, 5} with mean losses 0.5, 1, 1.5: chances 1/6, 1/3, 1/2.
    seen = view(
        np.ones((6, 9)),
        speeds=[3, 3, 2, 2, 1, 1],
        losses=[0.5, 0.5, 1, 1, 1.5, 1.5],
        participation=[1] * 6,
        age=[1] * 6,
    )
    policy = TiFL()
    assert policy.members(seen) == [[0, 1], [2, 3], [4, 5]]
    assert policy.chances(seen) == pytest.approx([1 / 6, 1 / 3, 1 / 2])
    policy.used[2] = 3  # a third of nine slots: its credits are used up
    assert policy.chances(seen) == pytest.approx([1 / 3, 2 / 3, 0])
    assert set(policy.choose(seen).clients) in ({0, 1}, {2, 3})


def test_refl_takes_those_first_who_will_be_there_least() -> None:
    there = [[1, 1, 1, 1, 1], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1]]  # of the next four slots: 1, 1/2, 1/4
    assert REFL(2).choose(view(np.ones((3, 5)), available=np.array(there, dtype=bool))).clients == [2, 1]


def test_fedcs_fills_the_round_up_to_its_deadline() -> None:
    # Times 1, 1.5, 2.5. Theta = 0.1 + 1 = 1.1; then + 0.1 + (1.5 - 1.1) = 1.6; then + 0.1 + (2.5 - 1.6) = 2.6 > 2.
    assert FedCS().choose(view(np.ones((3, 1)), speeds=[1, 1 / 1.5, 0.4])).clients == [0, 1]
    assert len(FedCS().choose(view(np.ones((7, 1)))).clients) == 7  # 1 + 7 x 0.1 = 1.7


def test_fedcarbon_waits_for_the_cheapest_rounds_that_are_paid() -> None:
    # One client a round: rounds cost 0.3, 0.1, 0.2 kg. With 0.3 kg the two cheapest are paid, and now is not one of them.
    ahead = [[0.3, 0.1, 0.2], [0.4, 0.5, 0.6], [0.9, 0.9, 0.9]]
    assert not FedCarbon(1).choose(view(ahead, budget_kg=0.3)).clients
    assert FedCarbon(1).choose(view(ahead, budget_kg=0.6)).clients == [0]


def test_greed_takes_as_many_as_the_moment_carries() -> None:
    # Released 1 kg x 2 / 10 = 0.2: 0.04 + 0.1 fit, 0.15 more does not.
    seen = view([[0.15] * 9, [0.04] * 9, [0.1] * 9], slot=1, slots=10)
    assert Greed().choose(seen).clients == [1, 2]


def test_lowcarb_lets_those_wait_who_took_part_much() -> None:
    # p = 4, 3, 2, 1, 0: windows 12 max(0, 2 p / 4 - 1) = 12, 6, 0, 0, 0. The 80th percentile of p is 3.2: the first is last.
    # Without a window: the cleanest first, 0.3, 0.4, 0.5.
    now = [0.5, 0.5, 0.5, 0.3, 0.4]
    seen = view([[ci] * 13 for ci in now], participation=[4, 3, 2, 1, 0])
    assert list(Lowcarb().windows(seen)) == [12, 6, 0, 0, 0]
    assert Lowcarb(4).choose(seen).clients == [3, 4, 2, 1]


def test_lowcarb_takes_those_first_who_would_gain_least_by_waiting() -> None:
    # Nobody took part, so all may wait twelve slots: they would gain 0.1, 0, and -0.2 (it gets dearer).
    ahead = [[0.5, *[0.4] * 12], [0.3] * 13, [0.6, *[0.8] * 12]]
    assert Lowcarb(3).choose(view(ahead)).clients == [2, 1, 0]


def test_fedzeros_program() -> None:
    # Two of four within 0.5 kg: {0, any} costs at least 0.6; {1, 2} has 1.4 for 0.5 kg, {1, 3} 1.1, {2, 3} 0.7.
    sigma, cost = np.array([1.0, 0.9, 0.5, 0.2]), np.array([0.5, 0.3, 0.2, 0.1])
    assert solve(sigma, cost, 2, 0.5) == [1, 2]
    assert solve(sigma, cost, 2, 0.29) == []  # the cheapest two cost 0.3


def test_fedzeros_utility_rises_with_the_loss() -> None:
    # n sqrt(mean loss^2) = 100, 300, 200: scaled to 0, 1, 0.5. The other way round would prefer who has learned most already.
    known = {"losses": [1.0, 3.0, 2.0], "participation": [1, 1, 1], "age": [2, 2, 2]}
    assert FedZero().utility(view(np.ones((3, 2)), **known)) == pytest.approx([0, 1, 0.5])
    seen = view(np.ones((3, 2)), budget_kg=4.0, rng=Dice(0.99), **known)  # 2 kg are released, 1 kg each
    assert FedZero(2).choose(seen).clients == [1, 2]
    fresh = view(np.ones((3, 2)), probed_losses=[9.0, 1.0, 5.0], **known)
    assert FreshFedZero().utility(fresh) == pytest.approx([1, 0, 0.5])


def test_fedzero_blocks_who_trained_and_frees_them_by_chance() -> None:
    # p = 3, 0, 0: 2 above the mean of 1, so the first is free again with probability 1/2; the others at once.
    trained = {"participation": [3, 0, 0], "age": [1, 0, 0], "losses": [1.0, np.nan, np.nan], "budget_kg": 6.0}
    stays = FedZero(3)
    assert not stays.choose(view(np.ones((3, 2)), rng=Dice(0.6), **trained)).clients
    assert stays.blocked is not None
    assert list(stays.blocked) == [True, False, False]
    assert len(FedZero(3).choose(view(np.ones((3, 2)), rng=Dice(0.4), **trained)).clients) == 3


def test_fedzero_trains_only_in_clean_hours() -> None:
    ahead = [[0.3, 0.1, 0.2], [0.1, 0.2, 0.3], [0.2, 0.2, 0.2]]  # medians 0.2
    assert list(FedZero().clean(view(ahead))) == [1, 2]


def test_cafe_takes_a_coreset_of_gradients() -> None:
    # Gradients (1, 0), (1, 0.1), (-1, 0) of lengths 1, 1.005, 1; V = 3, Q = 1, g / b = 0.5 each. The double greedy:
    # 0: alone explains 1 - (0 + 0.1 + 1) / 3.005 = 0.634, worth 3 x 0.634 - 0.5 = 1.40; out of all it costs 3 x 0.033 and saves 0.5: in.
    # 1: beside 0 it adds 0.033, worth 0.1 - 0.5 < 0; out of all it saves 0.4: out. 2: adds 0.333, worth 0.5: in.
    gradients = {0: np.array([1.0, 0.0]), 1: np.array([1.0, 0.1]), 2: np.array([-1.0, 0.0])}
    policy = Cafe(3.0)
    policy.queue, policy.seen_slot = 1.0, 0
    choice = policy.choose(view(np.full((3, 10), 0.05), gradients=gradients))
    assert sorted(choice.clients) == [0, 2]
    assert choice.weights == pytest.approx({0: 2 / 3, 2: 1 / 3})  # 0 stands for 1 too


def test_cafes_queue_is_what_was_spent_beyond_an_even_pace() -> None:
    # b = 1 kg / 10. After slot 0, 0.5 kg: Q = 0 + 5 - 1 = 4. After two slots without any: 2.
    policy, ahead = Cafe(), np.full((3, 10), 0.05)
    for slot, spent, queue in ((0, 0.0, 0.0), (1, 0.5, 4.0), (3, 0.5, 2.0)):
        policy.asks(view(ahead[:, slot:], slot=slot, slots=10, spent_kg=spent))
        assert policy.queue == pytest.approx(queue)


def test_ca_fed_ignores_who_is_rare_and_comes_in_stretches() -> None:
    # Always: e = 1. Every other slot: pi = 1/2, no positive correlation, e = 1/2, the median. Three slots of 30 in a row: pi = 0.1,
    # lambda = 0.63, e = 0.1 x 0.37 / 1.63 = 0.02, below a quarter of the median.
    stretch = [1.0] * 3
    policy = CaFed()
    policy.seen = np.array([[1.0] * 30, [1.0, 0.0] * 15, [0.0] * 13 + stretch + [0.0] * 14])
    assert policy.chances()[:2] == pytest.approx([1, 0.5])
    assert policy.chances()[2] < 0.03
    choice = policy.choose(view(np.full((3, 4), 0.1), budget_kg=9.0))
    pi = [31 / 31, 16 / 31]
    assert choice.weights == pytest.approx({i: (1 / p) / (1 / pi[0] + 1 / pi[1]) for i, p in enumerate(pi)})


def test_random_spends_the_budget_by_the_end() -> None:
    # All client-slots ahead cost 3 x 4 x 0.5 = 6 kg; with 1.5 kg each is taken with probability 1/4.
    ahead = np.full((3, 4), 0.5)
    assert list(Random().choose(view(ahead, budget_kg=1.5, rng=Dice(0.24))).clients) == [0, 1, 2]
    assert not Random().choose(view(ahead, budget_kg=1.5, rng=Dice(0.26))).clients


def test_plans_are_the_planners_own() -> None:
    problem = small_problem(fine_tune=1)
    made = {name: one.make(problem) for name, one in PLANNED.items()}
    assert (made["ours"][0].matrix == sw.plan(problem, planner="paper").matrix).all()
    assert made["ours"][1] == "ufedavg"
    assert (made["carbon-greedy"][0].matrix == sw.plan(problem.with_settings(alpha=1.0), planner="paper").matrix).all()
    assert made["no-slack"][0].matrix[:, : made["no-slack"][0].problem.rounds].all()
    assert made["ours-auto"][0].recommended is not None
    assert made["ours-auto"][1] == made["ours-auto"][0].recommended.aggregator


def test_what_a_probe_costs() -> None:
    # 30 steps of 128 samples are 30 x 128 x 3 = 11520 units; losses of 512 samples are 512, their gradient 1536.
    work = LocalWork(steps=30, epochs=None, batch_size=128, lr=0.1, weight_decay=0.0)
    assert share("losses", 512, 1000, work) == pytest.approx(512 / 11520)
    assert share("gradients", 512, 1000, work) == pytest.approx(1536 / 11520)
    # Two epochs over 1000 samples are 6000 units; a batch is never larger than what a client holds: 30 x 40 x 3.
    epochs = LocalWork(steps=30, epochs=2, batch_size=128, lr=0.1, weight_decay=0.0)
    assert share("losses", 1000, 1000, epochs) == pytest.approx(1 / 6)
    assert share("losses", 40, 40, work) == pytest.approx(40 / 3600)


def test_names() -> None:
    assert method_names()[:3] == ["ours", "ours-memory", "ours-auto"]
    assert {
        "fedzero",
        "cafe",
        "fedcarbon",
        "greed",
        "oort",
        "tifl",
        "refl",
        "fedcs",
        "ca-fed",
        "lowcarb",
        "random",
    } <= set(policy_names())
    assert check_method(" Oort:2 ") == "oort:2"
    assert check_method("fedzero+Memory:0.8") == "fedzero+memory:0.8"
    for wrong, said in (
        ("fedzeri", "Did you mean 'fedzero'"),
        ("random:2", "takes no number"),
        ("oort:x", "not a number"),
    ):
        with pytest.raises(ScenarioError, match=said):
            make_policy(wrong)
    with pytest.raises(ScenarioError, match="already"):
        register_policy("ours", Random)


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_is_not_an_online_policy(name: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make_policy(name)
    use = "sw.baseline" if name == "no-slack" else "sw.plan"
    assert str(caught.value) == f"{name!r} is a plan, not an online policy. Use `{use}`, or `slackwater rivals`."


def test_the_threshold_is_a_quantile_of_the_horizon_and_does_not_move() -> None:
    policy = Threshold(50)
    assert policy.choose(view([[0.2, 0.9], [0.1, 0.8], [0.7, 0.3]], budget_kg=1.0)).clients == [1, 0]
    assert policy.most == pytest.approx(0.5)
    assert policy.choose(view([[0.9], [0.8], [0.3]], slot=1, slots=2, budget_kg=1.0)).clients == [2]
    again = Threshold(50)
    again.restore(policy.state())
    assert again.most == policy.most


def test_the_threshold_takes_the_cleanest_that_the_budget_pays() -> None:
    assert Threshold(100).choose(view([[0.2], [0.1], [0.7]], budget_kg=0.31)).clients == [1, 0]
    assert Threshold(100).choose(view([[0.2], [0.1], [0.7]], budget_kg=0.05)).clients == []
