"""The rule that `plan --planner auto` recommends: against its formula, and what it promises about lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import slackwater as sw
from slackwater.errors import ScenarioError
from slackwater.planning.plan import ECHO_GAMMA, ECHO_MOST
from slackwater.training.aggregators import ECHO_WHOLE, Echo, FedAvg, Participation, Stride, make_aggregator

CLIENTS, SIZE = 3, 4


def who(number: int) -> Participation:
    return Participation(slot=2 * number, number=number, clients=CLIENTS, pi=np.full(CLIENTS, 0.5))


def rounds(seed: int = 0) -> list[dict[int, torch.Tensor]]:
    """Six rounds of some clients; updates get shorter."""
    draw = torch.Generator().manual_seed(seed)
    there = [[0], [0, 1], [0], [2], [0, 1, 2], [1]]
    return [{c: torch.randn(SIZE, generator=draw) / (1 + n) for c in some} for n, some in enumerate(there)]


def expected(history: list[dict[int, torch.Tensor]], gamma: float) -> np.ndarray:
    """The last aggregate by the formula, in NumPy, from all rounds so far."""
    last = len(history) - 1
    fresh = [update.numpy().astype(float) for update in history[-1].values()]
    usual = np.mean([np.linalg.norm(update) for update in fresh])
    seen = {client: number for number, updates in enumerate(history) for client in updates}
    weights = {client: gamma ** (last - number) for client, number in seen.items()}
    total, mean, length = sum(weights.values()), np.zeros(SIZE), 0.0
    for client, number in seen.items():
        update = history[number][client].numpy().astype(float)
        update = update * min(1, usual / np.linalg.norm(update))
        mean = mean + weights[client] / total * update
        length += weights[client] / total * np.linalg.norm(update)
    return mean * min(ECHO_MOST, length / np.linalg.norm(mean))


@pytest.mark.parametrize("gamma", [0.5, ECHO_GAMMA])
def test_it_follows_the_formula(gamma: float) -> None:
    rule, history = Stride(gamma), list[dict[int, torch.Tensor]]()
    for number, updates in enumerate(rounds()):
        history.append(updates)
        found = rule.aggregate(updates, who(number))
        assert found.update.numpy() == pytest.approx(expected(history, gamma), rel=1e-5, abs=1e-7)
        stored = {client: update for past in history for client, update in past.items()}
        again = sum(weight * stored[client] for client, weight in found.weights.items())
        assert torch.allclose(found.update, torch.as_tensor(again), atol=1e-6), (
            "the weights it reports are those it used"
        )


def test_a_client_alone_moves_the_model_as_with_fedavg() -> None:
    (updates,) = ({1: torch.tensor([3.0, -4.0])},)
    assert torch.equal(Stride().aggregate(updates, who(0)).update, FedAvg().aggregate(updates, who(0)).update)


def test_a_step_is_as_long_as_the_updates_are_on_average_up_to_a_bound() -> None:
    apart = {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}
    assert float(Stride().aggregate(apart, who(0)).update.norm()) == pytest.approx(1.0)
    opposed = {0: torch.tensor([1.0, 0.1]), 1: torch.tensor([-1.0, 0.1])}
    assert float(Stride().aggregate(opposed, who(0)).update.norm()) == pytest.approx(0.1 * ECHO_MOST)
    nothing = {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([-1.0, 0.0])}
    assert float(Stride().aggregate(nothing, who(0)).update.norm()) == 0


def test_an_old_update_counts_no_longer_than_the_fresh_ones() -> None:
    rule = Stride(1.0)
    rule.aggregate({0: torch.tensor([100.0, 0.0])}, who(0))
    step = rule.aggregate({1: torch.tensor([0.0, 1.0])}, who(1)).update
    assert float(step.norm()) == pytest.approx(1.0)
    assert float(step[0]) == pytest.approx(float(step[1]))


def test_echo_lengthens_as_far_as_clients_repeat_themselves() -> None:
    # Two updates at a right angle: their mean is 1 / sqrt(2) as long as they are, so stride's factor is sqrt(2).
    echo, apart = Echo(), {0: torch.tensor([1.0, 0.0, 0.0]), 1: torch.tensor([0.0, 1.0, 0.0])}
    assert float(echo.aggregate(apart, who(0)).update.norm()) == pytest.approx(1.0), "nobody has trained twice"
    assert float(echo.aggregate(apart, who(1)).update.norm()) == pytest.approx(1.0), "both repeat themselves"
    # Client 0 turns by 60 degrees, cosine 0.5, client 1 repeats itself: 0.75 on average, more than it takes for all of it.
    turned = {0: torch.tensor([0.5, 0.0, math.sqrt(0.75)]), 1: apart[1]}
    assert float(echo.aggregate(turned, who(2)).update.norm()) == pytest.approx(1.0)
    # Client 0 turns by 60 degrees once more, client 1 by a right angle: 0.25 on average, so the power is (0.25 / 0.4)^2.
    aside = {0: torch.tensor([1.0, 0.0, 0.0]), 1: torch.tensor([0.0, 0.0, 1.0])}
    assert float(echo.aggregate(aside, who(3)).update.norm()) == pytest.approx(2**-0.5 * 2 ** (0.5 * 0.625**2))
    # Both turn by a right angle: a plain mean. Then both turn back on it: no less than that.
    up = {0: torch.tensor([0.0, 1.0, 0.0]), 1: torch.tensor([1.0, 0.0, 0.0])}
    assert float(echo.aggregate(up, who(4)).update.norm()) == pytest.approx(2**-0.5)
    down = {client: -update for client, update in up.items()}
    assert float(echo.aggregate(down, who(5)).update.norm()) == pytest.approx(2**-0.5)
    nothing = {client: update * 0 for client, update in up.items()}
    assert float(echo.aggregate(nothing, who(6)).update.norm()) == 0


def test_who_is_long_gone_says_little_about_whether_clients_repeat_themselves() -> None:
    echo, apart = Echo(0.5), {0: torch.tensor([1.0, 0.0]), 1: torch.tensor([0.0, 1.0])}
    for number in (0, 1):
        echo.aggregate(apart, who(number))
    # Client 1 alone, turned by a right angle: its cosine of 0 counts 1, that of client 0, which is 1, counts 0.5.
    step = echo.aggregate({1: torch.tensor([1.0, 0.0])}, who(2))
    assert float(step.update.norm()) == pytest.approx(1.0), "both point the same way: nothing to make good"
    assert echo.cosine == {0: pytest.approx(1.0), 1: 0.0}
    assert echo.lengthened(2.0, {0: 0.5, 1: 1.0}) == pytest.approx(2.0 ** ((1 / 3 / ECHO_WHOLE) ** 2))


@pytest.mark.parametrize("rule", [Stride, Echo])
def test_it_goes_on_from_its_state(rule: type[Stride]) -> None:
    history = rounds(1)
    straight, stopped, resumed = rule(), rule(), rule()
    for number, updates in enumerate(history[:4]):
        straight.aggregate(updates, who(number))
        stopped.aggregate(updates, who(number))
    resumed.restore(stopped.state())
    for number, updates in enumerate(history[4:], start=4):
        assert torch.equal(
            resumed.aggregate(updates, who(number)).update, straight.aggregate(updates, who(number)).update
        )


def test_its_name() -> None:
    default, other = make_aggregator("stride"), make_aggregator("stride:0.8")
    assert isinstance(default, Stride)
    assert isinstance(other, Stride)
    assert (default.gamma, other.gamma) == (ECHO_GAMMA, 0.8)
    with pytest.raises(ScenarioError, match="above 0 and at most 1"):
        make_aggregator("stride:0")


def test_a_plan_is_trained_by_what_it_recommends() -> None:
    problem = sw.Problem.from_costs(np.full((2, 8), 0.1), rounds=3, slack=5, budget_kg=0.7)
    task = sw.tasks.digits(clients=2, seed=0)
    plan = sw.plan(problem, planner="auto")
    assert plan.recommended is not None
    by_default, asked, other = (
        sw.train(plan, task, local_steps=2, threads=1, eval_every=0, **more)
        for more in ({}, {"aggregator": plan.recommended.aggregator}, {"aggregator": "fedavg"})
    )
    assert by_default.loss == asked.loss != other.loss
