"""Aggregators and server optimisers on NumPy arrays, as in live runs, against the same on tensors, as in `train`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slackwater.ledger.run import Run
from slackwater.training.aggregators import (
    AGGREGATORS,
    Aggregate,
    FedAvg,
    Participation,
    make_aggregator,
    on_arrays,
)
from slackwater.training.global_model import Checkpoint, GlobalModel, Update, make_server
from slackwater.training.vectors import BFLOAT16, average_buffers, dot, is_finite, norm, numpy_dtype

NAMES = [
    "fedavg", "ufedavg", "normalised", "clipped:0.8", "mifa", "memory:0.5", "fedvarp", "fedstale:0.3", "stride", "echo",
]  # fmt: skip
PI = np.array([0.5, 0.3, 0.2, 1.0])
ROUNDS = [(0, 1), (2,), (0, 3), (1,), (0, 1, 2, 3), (2, 3)]


def updates(number: int, size: int = 501) -> dict[int, Any]:
    random = np.random.default_rng(number)
    return {client: random.standard_normal(size).astype(np.float32) * (1 + client) for client in ROUNDS[number]}


def who(number: int) -> Participation:
    return Participation(slot=number, number=number, clients=4, pi=PI)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_arrays_and_tensors_give_the_same_and_arrays_are_restored_to_the_same_bits(name: str, dtype: str) -> None:
    arrays, tensors = make_aggregator(name, dtype), make_aggregator(name, dtype)
    for number in range(len(ROUNDS)):
        sent = updates(number)
        restored = make_aggregator(name, dtype)
        restored.restore(copy.deepcopy(arrays.state()))
        again = restored.aggregate(copy.deepcopy(sent), who(number))
        one = arrays.aggregate(copy.deepcopy(sent), who(number))
        other = tensors.aggregate({c: torch.from_numpy(u.copy()) for c, u in sent.items()}, who(number))
        assert isinstance(one.update, np.ndarray)
        assert one.update.dtype == np.float32
        np.testing.assert_array_equal(one.update, again.update)
        np.testing.assert_allclose(one.update, other.update.numpy(), rtol=2e-5, atol=2e-5)
        assert one.weights == pytest.approx(other.weights, rel=1e-5)
        assert one.weights == again.weights


@pytest.mark.parametrize("name", ["plain", "momentum", "adam"])
def test_server_optimisers_are_the_same_on_arrays(name: str) -> None:
    arrays, tensors = make_server(name, 0.3), make_server(name, 0.3)
    model = np.zeros(501, dtype=np.float32)
    other = torch.zeros(501)
    for number in range(4):
        step = updates(number)[ROUNDS[number][0]]
        before = model.copy()
        moved = arrays.step(model, step)
        np.testing.assert_array_equal(model, before)  # the old model is not changed
        model, other = moved, tensors.step(other, torch.from_numpy(step))
        assert model.dtype == np.float32
        np.testing.assert_allclose(model, other.numpy(), rtol=1e-5, atol=1e-5)


def test_lengths_are_exact_and_do_not_overflow() -> None:
    assert norm(np.full(10**6, 0.1, dtype=np.float32)) == pytest.approx(0.1 * 1e3, rel=1e-7)
    assert norm(np.array([3e38, 4e38, 0], dtype=np.float64)) == pytest.approx(5e38)
    assert norm(np.array([3e38, 2e38], dtype=np.float32)) > 3.4e38  # beyond single precision
    assert dot(np.array([1.0, 2.0]), np.array([3.0, -1.0])) == 1.0
    assert norm(np.array([], dtype=np.float32)) == 0.0
    assert not is_finite(np.array([1.0, np.inf]))
    assert is_finite(np.zeros((2, 0)))


def test_buffers_of_arrays_are_averaged_in_their_type() -> None:
    one = {"mean": np.float32([1, 2]), "count": np.array(3), "on": np.array([True]), "c": np.complex64([1 + 1j])}
    two = {"mean": np.float32([2, 4]), "count": np.array(6), "on": np.array([True]), "c": np.complex64([3 - 1j])}
    mean = average_buffers([one, two])
    assert mean["mean"].tolist() == [1.5, 3.0]
    assert mean["count"] == 4  # 4.5, rounded to even
    assert mean["on"].tolist() == [True]
    assert mean["c"].tolist() == [2 + 0j]
    assert {name: value.dtype for name, value in mean.items()} == {name: value.dtype for name, value in one.items()}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "complex64", "uint8", "int64", "bool"])
def test_a_checkpoint_of_arrays_is_read_as_arrays_or_tensors(tmp_path: Path, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    assert kind is not None
    array = np.zeros((2, 3), dtype=kind) if kind == BFLOAT16 else np.arange(6).reshape(2, 3).astype(kind)
    with Run.create(tmp_path, plan={}, budget_kg=None, settings={}, task={}) as run:
        Checkpoint(run).save(None, {"x": {"y": array, "empty": array[:0]}})
        back = Checkpoint(run).load()["x"]
        tensor = Checkpoint(run).load(torch.device("cpu"))["x"]["y"]
    assert back["y"].dtype == kind
    assert np.array_equal(back["y"], array)
    assert back["empty"].shape == (0, 3)
    assert str(tensor.dtype) == f"torch.{dtype}"


class Median:
    """A rule of somebody else, who knows only tensors."""

    def aggregate(self, updates: Mapping[int, Any], who: Participation) -> Aggregate:
        middle = torch.stack(list(updates.values())).median(dim=0).values
        return Aggregate(update=middle, weights=dict.fromkeys(updates, 1.0))

    def state(self) -> dict[str, Any]:
        return {"seen": torch.ones(2)}

    def restore(self, state: dict[str, Any]) -> None:
        self.restored = state["seen"].mul_(2)


class ArrayMedian(Median):
    takes_arrays = True

    def aggregate(self, updates: Mapping[int, Any], who: Participation) -> Aggregate:
        middle = np.median(np.stack(list(updates.values())), axis=0)
        return Aggregate(update=middle, weights=dict.fromkeys(updates, 1.0))


@pytest.mark.parametrize("rule", [Median, ArrayMedian])
def test_a_registered_rule_for_tensors_works_in_a_live_run(rule: type[Median]) -> None:
    model = GlobalModel(
        np.zeros(3, dtype=np.float32), {}, clients=3, aggregator=on_arrays(rule()), server=make_server("plain")
    )
    sent = {c: Update(update=np.full(3, c, dtype=np.float32), buffers={}) for c in range(3)}
    model.step(sent, slot=0, number=0, in_window=False, pi=PI[:3])
    assert isinstance(model.theta, np.ndarray)
    assert model.theta.tolist() == [-1.0, -1.0, -1.0]


def test_the_state_of_a_rule_for_tensors_comes_back_as_tensors() -> None:
    rule = Median()
    on_arrays(rule).restore({"seen": np.ones(2, dtype=np.float32)})
    assert rule.restored.tolist() == [2.0, 2.0]
    ours = FedAvg()
    assert on_arrays(ours) is ours
    assert all(on_arrays(made) is made for made in map(make_aggregator, AGGREGATORS.own))
