"""`sw.compare_methods`: names, plans, policies and aggregators of one's own, and the test of their differences."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_tasks import classes

import slackwater as sw
from slackwater.charts import notebook
from slackwater.errors import ScenarioError
from slackwater.lab import policies
from slackwater.lab.policies.methods import Cell, MethodComparison, _holm, sign_flip_p
from slackwater.lab.policies.registry import PLANNED, POLICIES, Planned
from slackwater.ledger.score import ACCURACY, LABELS
from slackwater.training.aggregators import AGGREGATORS, make_aggregator
from slackwater.training.loop import TrainingStopped

FAST: dict[str, Any] = {"local_steps": 2, "batch_size": 16}


class First(policies.Online):
    """Only the first client."""

    def __init__(self) -> None:
        self.seen = 0

    def choose(self, view: policies.View) -> policies.Choice:
        self.seen += 1
        return policies.Choice(clients=[0])


@pytest.fixture
def problem() -> sw.Problem:
    traces = sw.load_traces(zones=["FR", "DE", "IE"], start="2022-01-01T00:00Z", hours=16)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]
    return sw.Problem(clients=clients, traces=traces, rounds=3, slack=13, budget_kg=0.9)


def test_every_kind_of_method(problem: sw.Problem) -> None:
    mine = First()
    found = sw.compare_methods(
        problem,
        lambda seed: classes(),
        {
            "baseline": "no-slack",
            "plan": sw.plan(problem),
            "policy": mine,
            "class": First,
            "aggregator": make_aggregator("memory:0.5"),
            "named": "random+ufedavg",
        },
        seeds=2,
        **FAST,
    )
    assert found.methods == ["baseline", "plan", "policy", "class", "aggregator", "named"]
    assert [cell.seed for cell in found.cells[:2]] == [0, 1]
    assert found.scores("policy") == found.scores("class")
    assert mine.seen == 0  # each run has its own copy
    assert all(cell.kg <= problem.budget_kg * (1 + 1e-9) for cell in found.cells)
    assert not [name for name in (*AGGREGATORS.names(), *POLICIES.names()) if name.startswith("own-")]
    direct = sw.train(sw.plan(problem), classes(), aggregator="memory:0.5", seed=1, threads=1, **FAST)
    assert found.scores("aggregator")[1] == direct.score
    assert "aggregator against baseline" in repr(found)
    assert repr(comparison(LABELS["mae"])).startswith("MAE (lower is better) at 2 kg")


def test_a_plan_is_made_once_for_all_seeds(problem: sw.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(name: str, method: Planned) -> Planned:
        def schedule(one: sw.Problem) -> sw.Plan:
            made.append(name)
            return method.schedule(one)

        return replace(method, schedule=schedule)

    for name, method in PLANNED.items():
        monkeypatch.setitem(PLANNED, name, counted(name, method))
    sw.compare_methods(problem, classes(), ["no-slack", "ours", "ours+fedavg"], seeds=3, **FAST)
    assert sorted(made) == ["no-slack", "ours"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), TrainingStopped("stopped")])
def test_ctrl_c_compares_the_finished_runs(
    problem: sw.Problem, stop: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def task(seed: int) -> sw.Task:
        if seed == 1:
            raise stop
        return classes()

    found = sw.compare_methods(problem, task, ["no-slack", "ours"], seeds=4, **FAST)
    assert [cell.seed for cell in found.cells] == [0, 0]
    assert "2 of 8 runs are done" in caplog.text
    with pytest.raises(type(stop)):
        sw.compare_methods(problem, task, ["no-slack"], seeds=[1], **FAST)


def test_a_task_by_name_and_one_for_all_seeds(problem: sw.Problem) -> None:
    named = sw.compare_methods(problem, "digits", ["no-slack"], seeds=[3], **FAST)
    assert [cell.seed for cell in named.cells] == [3]
    assert named.differences == []
    one = classes()
    fixed = sw.compare_methods(problem, one, ["no-slack"], seeds=2, **FAST)
    assert len(set(fixed.scores("no-slack"))) == 2


def test_a_method_that_has_no_schedule_is_a_row_with_a_note(problem: sw.Problem) -> None:
    poor = problem.with_settings(budget_kg=0.05)
    found = sw.compare_methods(poor, classes(), ["ours", First], seeds=1, **FAST)
    assert math.isnan(found.cells[0].score)
    assert "kg" in found.cells[0].note
    assert math.isnan(found.differences[0].p)


@pytest.mark.parametrize(
    ("methods", "seeds", "sentence"),
    [
        ([], 2, "at least one method"),
        ("ours", 2, "give a list"),
        ([First, First], 2, "same name"),
        (["ors"], 2, "There is no method"),
        ([lambda: 3], 2, "neither a name, a plan, a policy"),
        (["no-slack"], 0, "at least one seed"),
        (["no-slack"], [1, 1], "each seed once"),
    ],
)
def test_mistakes_are_sentences(problem: sw.Problem, methods: Any, seeds: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        sw.compare_methods(problem, classes(), methods, seeds, **FAST)


class Sum:
    """An aggregator that forgets the weights."""

    def aggregate(self, updates: Any, who: Any) -> Any:
        return sum(updates.values())

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Numbers(First):
    """A policy that returns a list."""

    def choose(self, view: policies.View) -> Any:
        return [0]


class Last(First):
    """A policy that counts from the end."""

    def choose(self, view: policies.View) -> policies.Choice:
        return policies.Choice(clients=[-1])


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Sum, r"aggregator Sum returns Tensor; aggregate must return slackwater.training.Aggregate"),
        (Numbers, r"policy Numbers returns list; choose must return policies.Choice"),
        (Last, "policy Last chooses the client number -1, but the numbers are 0 to 2"),
    ],
)
def test_what_ones_own_method_returns_is_checked(problem: sw.Problem, method: Any, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        sw.compare_methods(problem, classes(), [method], seeds=1, **FAST)


def test_the_sign_flip_test_counts_all_flips() -> None:
    rng = np.random.default_rng(3)
    for count in (2, 5, 8):
        apart = rng.normal(0.3, 1.0, size=count)
        flips = [abs(sum(s * d for s, d in zip(signs, apart, strict=True))) for signs in product((-1, 1), repeat=count)]
        wanted = sum(flip >= abs(apart.sum()) - 1e-12 for flip in flips) / len(flips)
        assert sign_flip_p(apart) == wanted
    assert sign_flip_p(np.ones(5)) == 2 / 32  # five seeds cannot reach 0.05
    assert sign_flip_p(np.ones(6)) == 2 / 64
    assert sign_flip_p(np.zeros(6)) == 1.0
    assert math.isnan(sign_flip_p(np.ones(1)))
    assert 0 < sign_flip_p(np.ones(20)) < 1e-3


def test_equal_methods_are_rarely_called_different() -> None:
    rng = np.random.default_rng(0)
    p = [sign_flip_p(rng.normal(size=8)) for _ in range(400)]
    assert sum(one <= 0.05 for one in p) / 400 == pytest.approx(0.05, abs=0.03)


def test_holms_correction() -> None:
    assert _holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert _holm([0.6, 0.9]) == [1.0, 1.0]
    assert math.isnan(_holm([math.nan, 0.02])[0])


def comparison(metric: Any) -> MethodComparison:
    scores = {"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "b": [0.5, 1.4, 2.2, 3.9, 4.0, 5.5]}
    cells = [
        Cell(method=name, seed=seed, score=score, worst_client=None, kg=1.0, rounds=3, client_rounds=6)
        for name, values in scores.items()
        for seed, score in enumerate(values)
    ]
    return MethodComparison(cells=tuple(cells), metric=metric, budget_kg=2.0, synthetic=True)


def test_pairs_by_seed_and_the_direction_of_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = comparison(ACCURACY).differences
    assert (one.seeds, one.better, one.p) == (6, False, 2 / 64)  # each seed differs a little, and all the same way
    found = comparison(LABELS["rmse"])
    assert found.differences[0].better
    html = found._repr_html_()
    assert "RMSE (lower is better) at 2 kg CO2e. p: sign-flip test, two-sided, paired by seed, against a" in html
    figure = found.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.axes[0].get_xlabel() == "test RMSE (lower is better)"
    fake = ModuleType("pandas")
    fake.DataFrame = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", fake)
    monkeypatch.setattr(notebook, "find_spec", lambda name: name == "pandas" or None)
    assert found.to_frame()["RMSE"][:2] == [1.0, 2.0]
