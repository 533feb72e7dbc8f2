"""Runs by a policy: within the budget whatever it wants, its probes charged, and resumed to the same bits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_policies import small_problem
from small_tasks import classes, plan_of

from slackwater import Client, Fleet, training
from slackwater.errors import ScenarioError
from slackwater.lab import policies
from slackwater.lab.policies import registry
from slackwater.lab.policies.comparison import _measured
from slackwater.lab.policies.policy import Choice, Online, View
from slackwater.lab.policies.registry import policy_names
from slackwater.ledger.run import Run
from slackwater.training.loop import Progress, Result, Training
from slackwater.training.task import Samples, Task

SMALL: dict[str, Any] = {"local_steps": 3, "batch_size": 16, "threads": 1, "eval_every": 2}


class Wants(Online):
    """Everybody, always, in an order and with weights that change with the slot."""

    def choose(self, view: View) -> Choice:
        order = [int(c) for c in view.rng.permutation(view.clients)]
        weights = {c: float(1 + c) for c in order} if view.slot % 2 else {}
        return Choice(clients=order, weights=weights)


class AsksAll(Wants):
    """The same, after asking everybody for a gradient."""

    needs = "gradients"

    def asks(self, view: View) -> list[int]:
        return list(range(view.clients))


OWN = {"wants": Wants, "asks-all": AsksAll}


@pytest.fixture(scope="module", autouse=True)
def _own_policies() -> Iterator[None]:
    """Known while these tests run, so that others do not meet them."""
    before = dict(registry.POLICIES.own)
    for name, policy in OWN.items():
        policies.register_policy(name, policy)
    yield
    registry.POLICIES.own.clear()
    registry.POLICIES.own.update(before)


def blobs(clients: int = 3) -> Task:
    draw = torch.Generator().manual_seed(1)
    means = 2 * torch.randn(3, 5, generator=draw)

    def samples(count: int) -> Samples:
        y = torch.randint(0, 3, (count,), generator=draw)
        return Samples(x=means[y] + torch.randn(count, 5, generator=draw), y=y)

    return Task(
        name="blobs",
        clients=[samples(40 + 7 * i) for i in range(clients)],
        test=samples(60),
        model=lambda: torch.nn.Linear(5, 3),
        client_tests=[samples(20) for _ in range(clients)],
    )


@pytest.fixture(scope="module")
def task() -> Task:
    return blobs()


@pytest.fixture(scope="module")
def digits() -> Task:
    return training.tasks.make("digits", clients=3)


def same(one: Result, other: Result) -> bool:
    """Bit for bit, wall times aside."""
    rows = [
        [(d.slot, d.participants, d.weights, d.losses, d.update_norm, d.accuracy, d.spent_kg) for d in result.history]
        for result in (one, other)
    ]
    return rows[0] == rows[1] and all(torch.equal(one.model[key], other.model[key]) for key in one.model)


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_learns_digits_within_the_budget(name: str, digits: Task) -> None:
    result = policies.train(small_problem(), digits, policy=name, local_steps=10, threads=1, eval_every=0)
    assert result.emissions_kg <= 0.4 * (1 + 1e-11)
    assert result.accuracy > 0.5
    assert result.history[-1].accuracy == result.last_accuracy


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=st.floats(0.001, 1.5),
    policy=st.sampled_from(["wants", "asks-all"]),
    idle=st.booleans(),
    server=st.booleans(),
    beside=st.booleans(),
    most=st.none() | st.integers(1, 3),
    absent=st.integers(0, 4095),
)
def test_no_policy_can_overspend(
    task: Task, budget: float, policy: str, idle: bool, server: bool, beside: bool, most: int | None, absent: int
) -> None:
    there = np.ones((3, 12), dtype=bool)
    there[0] = [bool(absent >> slot & 1) for slot in range(12)]
    problem = small_problem(
        budget_kg=budget, available=there, max_parallel=most, server_kg=np.full(12, 0.01) if server else None
    )
    if idle:
        zones = zip("abc", problem.traces.zones, strict=True)
        problem = problem.with_settings(clients=[Client(name=n, zone=z, power_w=1000, idle_w=100) for n, z in zones])
    if beside:
        problem = problem.with_settings(model_mb=9000.0, evaluation_share=0.2)
    result = policies.train(problem, task, policy=policy, **SMALL)
    assert result.emissions_kg <= budget * (1 + 1e-11)
    names = [str(name) for name in problem.fleet.names]
    for done in result.history:
        assert len(done.participants) <= (most or 3)
        assert all(there[names.index(name), done.slot] for name in done.participants)
        if done.slot % 2:  # the policy's weights keep their sum where somebody was left out
            assert sum(done.weights.values()) == pytest.approx(6)


class InOrder(Online):
    def choose(self, view: View) -> Choice:
        return Choice(clients=[2, 0, 1])


def test_the_most_wanted_of_as_many_as_may_train_at_once(task: Task) -> None:
    policies.register_policy("in-order", InOrder)
    problem = small_problem().from_costs([[0.3], [0.2], [0.6]], rounds=1, slack=0, budget_kg=2, max_parallel=2)
    result = policies.train(problem, task, policy="in-order", **SMALL)
    assert [done.participants for done in result.history] == [("client-1", "client-3")]


def test_a_round_that_the_budget_does_not_pay_whole_ends_the_run(task: Task) -> None:
    policies.register_policy("in-order", InOrder)
    g = [[0.3, 0.3, 0.1], [0.2, 0.2, 0.1], [0.4, 0.4, 0.1]]  # 0.9 is paid; of the second 0.9 kg only 0.7 are left
    problem = small_problem().from_costs(g, rounds=1, slack=2, budget_kg=1.6)
    result = policies.train(problem, task, policy="in-order", **SMALL)
    assert [done.slot for done in result.history] == [0]
    assert result.emissions_kg == pytest.approx(0.9)
    assert not any("No client trained" in note for note in result.notes)
    poor = policies.train(problem.with_settings(budget_kg=0.8), task, policy="in-order", **SMALL)
    assert not poor.history
    assert poor.notes[-1].startswith("No client trained: the budget of 0.8 kg does not pay the first round")


def test_probes_are_charged_to_those_who_compute_them(task: Task, tmp_path: Path) -> None:
    problem = small_problem(budget_kg=0.3)
    free = policies.train(problem, task, policy="asks-all", probes="free", **SMALL)
    paid = policies.train(problem, task, policy="asks-all", out=tmp_path / "run", **SMALL)
    assert sum(len(d.participants) for d in paid.history) < sum(len(d.participants) for d in free.history)
    assert any("not charged" in note for note in free.notes)
    g = problem.costs.dense()
    with Run.open(tmp_path / "run", read_only=True) as run:
        probes = [line for line in run.ledger.charges(slot=0) if line.note.startswith("probe")]
        assert run.ledger.spent_kg() == pytest.approx(paid.emissions_kg)
    # A gradient over 40, 47 and 54 samples costs three units each; the training 3 steps of 16 samples, three units each.
    assert [line.kg for line in probes] == pytest.approx([g[i, 0] * (40 + 7 * i) / (3 * 16) for i in range(3)])


def test_network_and_evaluation_are_charged_to_a_policy_as_to_a_plan(task: Task, tmp_path: Path) -> None:
    problem = small_problem(budget_kg=0.3).with_settings(model_mb=9000.0, evaluation_share=0.2)
    seen: list[float] = []

    class Watches(AsksAll):
        def asks(self, view: View) -> list[int]:
            seen.extend(view.probe_kg)
            return super().asks(view)

    policies.register_policy("watches", Watches)
    done = policies.train(problem, task, policy="watches", out=tmp_path / "run", **SMALL)
    costs = problem.costs
    by_cause: dict[str, float] = {}
    with Run.open(tmp_path / "run", read_only=True) as run:
        for line in run.ledger.charges():
            cause = "probe" if line.note.startswith("probe") else line.cause
            by_cause[cause] = by_cause.get(cause, 0.0) + line.kg
        assert run.kind == "simulated"
        first = [line for line in run.ledger.charges(slot=0) if line.note.startswith("probe")]
    names = [str(name) for name in problem.fleet.names]
    took_part = [(names.index(name), one.slot) for one in done.history for name in one.participants]
    assert took_part
    whole = sum(costs.dense()[client, slot] for client, slot in took_part)
    lit = sum(costs.intensity[costs.row[client], slot] for client, slot in took_part)
    assert by_cause["training"] + by_cause["network"] + by_cause["evaluation"] == pytest.approx(whole, rel=1e-12)
    assert by_cause["network"] == pytest.approx(0.18 * lit, rel=1e-12)  # 0.01 kWh/GB x 2 x 9 GB
    # A probe is a share of the training alone: nothing is sent or evaluated for it.
    g = costs.dense(kwh=costs.training_kwh)
    assert [line.kg for line in first] == pytest.approx([g[i, 0] * (40 + 7 * i) / (3 * 16) for i in range(3)])
    assert seen[:3] == pytest.approx([line.kg for line in first])
    assert sum(by_cause.values()) == pytest.approx(done.emissions_kg, rel=1e-12)


def test_a_gradient_is_that_of_the_current_model(task: Task) -> None:
    seen: list[Any] = []

    class Looks(AsksAll):
        def choose(self, view: View) -> Choice:
            seen.append((view.slot, dict(view.gradients), view.probed_losses))
            return Choice(clients=[0])

    policies.register_policy("looks", Looks)
    policies.train(small_problem(), task, policy="looks", seed=5, **SMALL)
    torch.manual_seed(5)
    model = task.model()
    x, y = task.clients[1].x, task.clients[1].y
    each = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    each.mean().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()  # type: ignore[union-attr]
    slot, gradients, losses = seen[0]
    assert slot == 0
    assert gradients[1] == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert losses[1] == pytest.approx(float(each.detach().square().mean().sqrt()), rel=1e-5)


class Killed(BaseException):
    """As if the process had been killed."""


@pytest.mark.parametrize("name", ["fedzero-fresh", "cafe", "tifl", "ca-fed", "random", "asks-all"])
@pytest.mark.parametrize("moment", ["round", "probe"])
def test_a_killed_run_goes_on_to_the_same_bits(
    name: str, moment: str, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, how = small_problem(budget_kg=0.35, slots=24), SMALL | {"local_steps": 20}
    whole = policies.train(problem, task, policy=name, out=tmp_path / "whole", **how)
    assert len(whole.history) > 2
    calls = [0]

    def die(step: Progress) -> None:
        if step.done.number == 1:
            raise Killed

    def probe(self: Training, *arguments: Any) -> Any:
        calls[0] += 1
        if moment == "probe" and calls[0] == 3:  # its charge is booked, and nobody has trained in the slot
            raise Killed
        return inner(self, *arguments)

    inner = Training._probe
    with monkeypatch.context() as patch:
        patch.setattr(Training, "_probe", probe)
        with contextlib.suppress(Killed):
            policies.train(problem, task, policy=name, out=tmp_path / "run", progress=die, **how)
    resumed = policies.resume(tmp_path / "run", task=task)
    assert same(resumed, whole)
    books = []
    for folder in ("whole", "run"):
        with Run.open(tmp_path / folder, read_only=True) as run:
            books.append(sorted((c.slot, c.client, c.cause, c.attempt, c.kg) for c in run.ledger.charges()))
    assert books[0] == books[1]
    assert same(policies.resume(tmp_path / "run", task=task), whole)  # done: the same again


def test_a_run_by_a_policy_is_not_taken_for_one_by_a_plan(task: Task, tmp_path: Path) -> None:
    policies.train(small_problem(), task, policy="wants", out=tmp_path / "run", **SMALL)
    with pytest.raises(ScenarioError, match="uses the policy 'wants'"):
        training.resume(tmp_path / "run", task=task)


def test_what_does_not_fit_together_is_refused(task: Task) -> None:
    for wrong, said in (
        ({"averaging": 3}, "averaging"),
        ({"speeds": [1, 2]}, "speeds has 2"),
        ({"probes": "cheap"}, "'charged' or 'free'"),
        ({"tensorboard": True}, "folder"),
    ):
        with pytest.raises(ScenarioError, match=said):
            policies.train(small_problem(), task, policy="random", **SMALL | wrong)
    with pytest.raises(ScenarioError, match="clients=2"):
        policies.train(small_problem(2), task, policy="random", **SMALL)


def test_a_policy_keeps_the_quorum(digits: Task) -> None:
    there = np.ones((3, 12), dtype=bool)
    there[1:, 4:] = False  # only one client is left: nobody trains
    problem = small_problem(budget_kg=9.0, available=there, min_parallel=2)
    result = policies.train(problem, digits, policy="wants", **SMALL)
    assert [row.slot for row in result.history] == [0, 1, 2, 3]
    assert {len(row.participants) for row in result.history} == {3}


def test_a_policy_cannot_plan_starts(digits: Task) -> None:
    problem = small_problem()
    fleet = Fleet.of(list(problem.fleet.zone), energy_kwh=1.0, startup_kwh=0.1)
    with pytest.raises(ScenarioError, match=r"cannot plan starts\. Leave out startup_kwh"):
        policies.train(problem.with_settings(clients=fleet), digits, policy="wants", **SMALL)


def test_rho_h_of_a_comparison_is_that_of_the_plan() -> None:
    """A client that trains in the window alone made the plan's figure infinite, and that of `rivals` a number."""
    matrix = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 1]])
    for schedule, finite in ((matrix, False), (np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 1]]), True)):
        plan = plan_of(schedule, window=1)
        result = training.train(plan, classes(), local_steps=1, threads=1)
        found = _measured(result, plan.problem)["rho_h"]
        assert float(found) == plan.metrics.rho_h
        assert math.isfinite(float(found)) is finite
