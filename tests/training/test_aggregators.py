"""Each rule against its formula, computed here on its own; and U-FedAvg's unbiasedness as a statistical test."""

import copy
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tasks import SCHEDULE, classes, plan_of, quadratic

from slackwater.errors import ScenarioError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings
from slackwater.training.aggregators import (
    AGGREGATORS,
    Aggregator,
    FedAvg,
    Memory,
    Participation,
    UFedAvg,
    aggregator_names,
    make_aggregator,
    register_aggregator,
)
from slackwater.training.loop import Progress, resume, train

CENTRES = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, -3.0]])
LR = 0.25
NAMES = ["fedavg", "ufedavg", "normalised", "clipped:0.8", "mifa", "memory:0.5", "fedvarp", "fedstale:0.3"]


def expected(name: str, schedule: np.ndarray, window: int) -> np.ndarray:
    """The final model by the formulas, in NumPy, with dense arrays over all clients."""
    clients, slots = schedule.shape
    before = slots - window
    pi = schedule[:, :before].mean(axis=1)
    theta, stored, seen, number = np.zeros(2), np.zeros((clients, 2)), np.full(clients, -1), 0
    for slot in range(slots):
        there = np.flatnonzero(schedule[:, slot])
        if not len(there):
            continue
        fresh = LR * (theta - CENTRES)
        if slot >= before:
            step = fresh[there].mean(axis=0)
        else:
            inverse = 1 / (clients * pi[there])
            if name == "fedavg":
                step = fresh[there].mean(axis=0)
            elif name == "ufedavg":
                step = inverse @ fresh[there]
            elif name == "normalised":
                step = inverse / max(1, inverse.sum()) @ fresh[there]
            elif name.startswith("clipped"):
                step = np.minimum(inverse, 0.8) @ fresh[there]
            elif name == "fedvarp":
                step = (fresh - stored)[there].mean(axis=0) + stored.mean(axis=0)
            elif name.startswith("fedstale"):
                step = inverse @ (fresh - 0.3 * stored)[there] + 0.3 * stored.mean(axis=0)
            stored[there], seen[there] = fresh[there], number
            if name == "mifa":
                step = stored[seen >= 0].mean(axis=0)
            elif name.startswith("memory"):
                weight = np.where(seen >= 0, 0.5 ** (number - seen), 0.0)
                step = weight / weight.sum() @ stored
        theta = theta - step
        number += 1
    return theta


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("everyone_before", [False, True])
def test_training_follows_the_formula(name: str, everyone_before: bool) -> None:
    schedule = SCHEDULE.copy()
    if everyone_before:
        schedule[2, 2] = 1
    plan = plan_of(schedule, window=1)
    result = train(plan, quadratic(CENTRES), aggregator=name, local_steps=1, lr=LR, weight_decay=0, threads=1)
    np.testing.assert_allclose(result.model["theta"].numpy(), expected(name, schedule, 1), rtol=1e-12, atol=1e-14)
    assert result.never == (() if everyone_before else (plan.problem.fleet.names[2],))
    if not everyone_before:
        assert plan.problem.fleet.names[2] in result.notes[0]
        assert "biased" in result.notes[0]
        before_window = [done for done in result.history if not done.in_window]
        assert all(plan.problem.fleet.names[2] not in done.weights for done in before_window)


def test_weights_are_recorded() -> None:
    result = train(plan_of(SCHEDULE, window=1), quadratic(CENTRES), aggregator="ufedavg", local_steps=1, threads=1)
    # Clients 1 and 2 are in 4 and 3 of the 8 slots before the window; two of these slots are empty and count.
    assert list(result.history[2].weights.values()) == [1 / (3 * 4 / 8), 1 / (3 * 3 / 8)]
    assert list(result.history[-1].weights.values()) == [1 / 3] * 3


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_aggregator_goes_on_the_same(name: str) -> None:
    rng = np.random.default_rng(3)
    pi = np.array([0.5, 0.25, 0.75])
    rounds = [
        {int(c): torch.tensor(rng.normal(size=4)) for c in np.flatnonzero(rng.random(3) < 0.6)} for _ in range(12)
    ]
    rounds = [updates for updates in rounds if updates]
    whole, first = make_aggregator(name), make_aggregator(name)
    outcomes = [
        whole.aggregate(u, Participation(slot=i, number=i, clients=3, pi=pi)).update for i, u in enumerate(rounds)
    ]
    for i, updates in enumerate(rounds[:5]):
        first.aggregate(updates, Participation(slot=i, number=i, clients=3, pi=pi))
    second = make_aggregator(name)
    second.restore(copy.deepcopy(first.state()))
    for i, updates in enumerate(rounds[5:], start=5):
        again = second.aggregate(updates, Participation(slot=i, number=i, clients=3, pi=pi)).update
        assert torch.equal(again, outcomes[i])


def test_normalised_weights_are_left_alone_below_one() -> None:
    who = Participation(slot=0, number=0, clients=4, pi=np.array([0.9, 1.0, 1.0, 1.0]))
    weights = make_aggregator("normalised").aggregate({1: torch.ones(1)}, who).weights
    assert weights == {1: 0.25}


def _mean_of_runs(rule: Aggregator, pi: np.ndarray, centres: np.ndarray, runs: int) -> tuple[float, float]:
    """Mean of the final models of many runs with random participation, and its standard error; one-dimensional."""
    rng = np.random.default_rng(11)
    finals = np.empty(runs)
    points = torch.tensor(centres)
    for run in range(runs):
        theta = torch.zeros((), dtype=torch.float64)
        for number in range(80):
            there = np.flatnonzero(rng.random(len(pi)) < pi)
            if len(there):
                # One local step on a quadratic of curvature 1.
                updates = {int(c): 0.1 * (theta - points[c]) for c in there}
                theta = (
                    theta - rule.aggregate(updates, Participation(slot=0, number=number, clients=len(pi), pi=pi)).update
                )
        finals[run] = float(theta)
    return float(finals.mean()), float(finals.std(ddof=1) / math.sqrt(runs))


def test_ufedavg_is_unbiased_and_fedavg_is_not() -> None:
    """E theta obeys a linear recursion whose fixed point is the optimum of F; (1 - 0.1)^80 = 2e-4 of the start is left.

    The mean of 300 runs is compared with it at 5 standard errors: were it unbiased, the test would fail by chance with
    probability 6e-7 (the draws are seeded, so it either always passes or never). FedAvg must miss it by as much.
    """
    pi, centres = np.array([0.9, 0.5, 0.3, 0.2]), np.array([1.0, -1.0, 4.0, 8.0])
    optimum = centres.mean() * (1 - 0.9**80)
    mean, error = _mean_of_runs(UFedAvg(), pi, centres, 300)
    assert abs(mean - optimum) < 5 * error
    assert error < 0.1  # the test can see a bias of half a unit
    biased, error = _mean_of_runs(FedAvg(), pi, centres, 300)
    assert abs(biased - optimum) > 5 * error
    assert abs(biased - optimum) > 0.5


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(ScenarioError, match="Did you mean 'ufedavg'"):
        make_aggregator("u-fedavg")
    with pytest.raises(ScenarioError, match="takes no number"):
        make_aggregator("fedavg:2")
    with pytest.raises(ScenarioError, match="'x' is not a number"):
        make_aggregator("memory:x")
    for bad in ("memory:0", "memory:1.5", "fedstale:2", "clipped:0"):
        with pytest.raises(ScenarioError, match="Write"):
            make_aggregator(bad)


def test_an_object_is_answered_with_how_to_register_it() -> None:
    for given in (FedAvg, FedAvg()):
        with pytest.raises(ScenarioError, match=re.escape("sw.register_aggregator('mine', FedAvg), then")):
            make_aggregator(given)  # type: ignore[arg-type]


def test_others_can_register_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(AGGREGATORS.own, "mine", raising=False)
    register_aggregator("mine", Memory)
    try:
        assert "mine" in aggregator_names()
        aggregator = make_aggregator("mine:0.7")
        assert isinstance(aggregator, Memory)
        assert aggregator.gamma == 0.7
        with pytest.raises(ScenarioError, match="already"):
            register_aggregator("mine", FedAvg)
    finally:
        del AGGREGATORS.own["mine"]
    with pytest.raises(ScenarioError, match="colon"):
        register_aggregator("a:b", FedAvg)


REMEMBERING = ["mifa", "memory", "stride", "echo", "fedvarp", "fedstale"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", REMEMBERING)
def test_stored_updates_of_half_precision_are_close_and_restored_to_the_same_bits(
    name: str, dtype: torch.dtype
) -> None:
    full, half = make_aggregator(name), make_aggregator(name, str(dtype).removeprefix("torch."))
    rng = torch.Generator().manual_seed(3)
    pi = np.array([0.5, 0.3, 0.2, 1.0])
    for number, there in enumerate([(0, 1), (2,), (0, 3), (1,), (0,), (2, 3)]):
        updates = {client: torch.randn(500, generator=rng) for client in there}
        who = Participation(slot=number, number=number, clients=4, pi=pi)
        again = make_aggregator(name, str(dtype).removeprefix("torch."))
        again.restore(copy.deepcopy(half.state()))
        exact, rounded, restored = (rule.aggregate(updates, who) for rule in (full, half, again))
        assert rounded.update.dtype == torch.float32
        assert torch.equal(rounded.update, restored.update)
        assert rounded.weights == restored.weights
        assert float((rounded.update - exact.update).norm() / exact.update.norm()) < 0.01
        assert number == 0 or not torch.equal(rounded.update, exact.update)
    assert {value.dtype for key, value in half.state().items() if key.startswith("latest/")} == {dtype}
    assert {value.dtype for key, value in full.state().items() if key.startswith("latest/")} == {torch.float32}


def test_a_fresh_update_counts_in_full_precision() -> None:
    update = torch.tensor([1.0, 1e-9, 0.1])
    who = Participation(slot=0, number=0, clients=1, pi=np.ones(1))
    for name in ("mifa", "echo", "fedvarp"):
        counted = make_aggregator(name, "float16").aggregate({0: update}, who).update
        assert torch.allclose(counted, update, rtol=1e-5, atol=0.0), "1e-9 would be 0 in half precision"


def test_a_value_too_large_for_half_precision_is_stored_as_the_largest() -> None:
    rule = make_aggregator("mifa", "float16")
    rule.aggregate({0: torch.tensor([1e9, -1e9])}, Participation(slot=0, number=0, clients=1, pi=np.ones(1)))
    assert rule.state()["latest/0"].tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_run_with_half_precision_is_resumed_to_the_same_bits(tmp_path: Path, dtype: str) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    settings = {"local_steps": 3, "batch_size": 16, "threads": 1, "memory_dtype": dtype}
    whole = train(plan, task, **settings)

    def stop(progress: Progress) -> None:
        if progress.done.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, task, out=tmp_path, progress=stop, **settings)
    with Run.open(tmp_path, read_only=True) as run:
        stored = [part for part in run.last_parts() if part.name.startswith("aggregator/latest/")]
        assert {(part.dtype, part.size) for part in stored} == {(dtype, 2 * 75)}
    resumed = resume(tmp_path, task=task)
    assert all(torch.equal(resumed.model[key], whole.model[key]) for key in whole.model)
    full = train(plan, task, **settings | {"memory_dtype": "float32"})
    assert not all(torch.equal(full.model[key], whole.model[key]) for key in whole.model)


def test_an_unknown_type_of_stored_updates_is_refused() -> None:
    with pytest.raises(ScenarioError, match="memory_dtype must be one of float32, float16, bfloat16, not 'int8'"):
        train(plan_of(SCHEDULE, window=1), classes(), memory_dtype="int8", threads=1)
    with pytest.raises(ScenarioError, match="memory_dtype must be one of"):
        LiveSettings(memory_dtype="int8")
