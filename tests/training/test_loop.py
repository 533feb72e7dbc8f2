import math
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import SCHEDULE, classes, plan_of, quadratic

from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Traces
from slackwater.ledger.ledger import OverBudgetError
from slackwater.ledger.run import Run
from slackwater.planning.fleet import Client, Level
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import plan_from_matrix
from slackwater.training import local as workers
from slackwater.training import loop as algorithm
from slackwater.training.global_model import Checkpoint
from slackwater.training.loop import Progress, TrainingDiverged, TrainingStopped, baseline, resume, train
from slackwater.training.task import Samples, Task

FAST = {"local_steps": 3, "batch_size": 16, "threads": 1}


def same(one: object, other: object) -> bool:
    """Whether two results are equal bit for bit, wall times aside."""
    keys = (
        "slot",
        "number",
        "participants",
        "weights",
        "losses",
        "loss",
        "update_norm",
        "accuracy",
        "test_loss",
        "spent_kg",
    )
    rows = [[tuple(getattr(row, key) for key in keys) for row in result.history] for result in (one, other)]  # type: ignore[attr-defined]
    models = [result.model for result in (one, other)]  # type: ignore[attr-defined]
    scores = [(r.accuracy, r.loss, r.test_loss, r.client_accuracy, r.emissions_kg) for r in (one, other)]  # type: ignore[attr-defined]
    return (
        rows[0] == rows[1]
        and scores[0] == scores[1]
        and all(torch.equal(models[0][k], models[1][k]) for k in models[0])
    )


@pytest.mark.parametrize(
    "more", [{}, {"server": "adam", "averaging": 0.5}, {"local_epochs": 2, "aggregator": "fedstale"}]
)
def test_the_same_seed_gives_the_same_bits(more: dict[str, object], tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes(dropout=0.2, norm=True)
    first, second = train(plan, task, **FAST, **more), train(plan, task, out=tmp_path, **FAST, **more)
    assert same(first, second)
    assert not same(first, train(plan, task, seed=1, **FAST, **more))


def test_the_same_bits_on_two_threads_and_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a large model: clients side by side, and two threads on the step of one that is alone."""
    monkeypatch.setattr(workers, "SIDE_BY_SIDE", 0.0)
    monkeypatch.setattr(workers, "SHARED", 0.0)
    plan, task, asked = plan_of(SCHEDULE, window=1), classes(hidden=300), FAST | {"threads": 2}
    whole = train(plan, task, **asked)
    assert same(whole, train(plan, task, **asked))

    def press(progress: Progress) -> None:
        if progress.done.number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped):
        train(plan, task, out=tmp_path, progress=press, **asked)
    assert same(resume(tmp_path, task=task), whole)


def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    seen: list[Progress] = []
    result = train(plan, task, out=tmp_path / "run", eval_every=3, progress=seen.append, **FAST)
    names = list(plan.problem.fleet.names)
    assert [row.slot for row in result.history] == [0, 2, 3, 4, 6, 7, 8]  # 1 and 5 are empty
    assert result.history[2].participants == (names[0], names[1])
    assert [row.accuracy is not None for row in result.history] == [False, False, True, False, False, True, True]
    assert [progress.done for progress in seen] == list(result.history)
    assert result.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert result.history[-1].spent_kg == result.emissions_kg
    assert result.accuracy == result.last_accuracy == result.history[-1].accuracy
    assert result.worst_client_accuracy == min(result.client_accuracy.values())
    assert list(result.client_accuracy) == names
    assert result.accuracy > 0.8
    with torch.no_grad():
        module = task.model()
        module.load_state_dict(torch.load(tmp_path / "run" / "model.pt"))
        losses = [float(task.loss(module(samples.x), samples.y)) for samples in task.clients]
    assert result.loss == pytest.approx(sum(losses) / 3, rel=1e-5)  # equal weights, though the clients' sizes differ
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert run.status == "done"
        assert run.settings["aggregator"] == "echo"
        assert run.plan["emissions_kg"] == plan.emissions_kg
        assert {"slackwater", "torch", "python"} <= set(run.versions)
        assert [message for _, _, _, message in run.events()] == list(result.notes)
        by_data = {(row.client, row.data) for row in run.evaluations()}
        assert {("", "test"), (names[0], "test"), (names[2], "train")} <= by_data
        assert tuple(run.rounds()) == result.history
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "run").rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_a_round_lasts_as_long_as_its_training_and_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def taking(seconds: float, really: Any) -> Any:
        def slow(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return really(*given)

        return slow

    monkeypatch.setattr(algorithm.time, "perf_counter", lambda: now)
    monkeypatch.setattr(algorithm.Training, "_train_clients", taking(5.0, algorithm.Training._train_clients))
    monkeypatch.setattr(algorithm.Training, "_score", taking(0.25, algorithm.Training._score))
    between = taking(100.0, lambda progress: None)
    result = train(plan_of(SCHEDULE, window=1), classes(), out=tmp_path, eval_every=3, progress=between, **FAST)
    assert [row.seconds for row in result.history] == [5.0, 5.0, 5.25, 5.0, 5.0, 5.25, 5.25]
    assert result.seconds == 35.75
    with Run.open(tmp_path, read_only=True) as kept:
        assert [row.seconds for row in kept.rounds()] == [row.seconds for row in result.history]


def test_the_training_loss_can_be_left_out() -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    whole, less = (train(plan, task, training_loss=asked, **FAST) for asked in (True, False))
    assert whole.loss is not None
    assert less.loss is None
    assert less.accuracy == whole.accuracy
    assert less.client_accuracy == whole.client_accuracy


def test_the_charge_is_booked_before_anybody_trains(tmp_path: Path) -> None:
    booked: list[int] = []

    class Watching(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and (tmp_path / "run.db").exists():
                with Run.open(tmp_path, read_only=True) as run:
                    booked.append(run.ledger.last_slot())
            return super().forward(x)

    task = classes()
    watched = Task(name="w", clients=task.clients, test=task.test, model=lambda: Watching(5, 3))
    train(plan_of(SCHEDULE, window=1), watched, out=tmp_path, local_steps=1, threads=1)
    assert [slot for slot in booked if slot >= 0] == [0, 2, 3, 3, 4, 6, 7, 8, 8, 8]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 3),
    slots=st.integers(1, 6),
    window=st.integers(0, 2),
    server=st.booleans(),
)
def test_the_ledger_holds_what_the_plan_says(seed: int, clients: int, slots: int, window: int, server: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.random((clients, slots)) < 0.5
    window = min(window, slots)
    matrix[:, slots - window :] = True
    matrix[0, 0] = True
    g_kg, server_kg = rng.uniform(0, 1, (clients, slots)), rng.uniform(0, 1, slots) if server else None
    draft = plan_of(matrix, window=window, g_kg=g_kg, server_kg=server_kg)
    exact = plan_of(matrix, window=window, g_kg=g_kg, server_kg=server_kg, budget_kg=draft.emissions_kg)
    task = quadratic(rng.normal(size=(clients, 2)))
    result = train(exact, task, aggregator="ufedavg", local_steps=1, lr=0.01, threads=1, eval_every=0)
    assert result.emissions_kg == pytest.approx(exact.emissions_kg, rel=1e-12)
    assert result.emissions_kg <= exact.problem.budget_kg * (1 + 1e-11)
    less = plan_of(matrix, window=window, g_kg=g_kg, server_kg=server_kg, budget_kg=draft.emissions_kg * (1 - 1e-6))
    with pytest.raises(OverBudgetError, match="over its budget"):
        train(less, task, local_steps=1, threads=1)


def test_the_ledger_holds_network_and_evaluation_as_the_plan_says(tmp_path: Path) -> None:
    plan = plan_of(SCHEDULE, window=1)
    more = plan.problem.with_settings(model_mb=9000.0, evaluation_share=0.25)  # 0.18 kWh beside 1 kWh of training
    plan = replace(plan, problem=more)
    result = train(plan, classes(), out=tmp_path, **FAST)
    by_cause: dict[str, float] = {}
    with Run.open(tmp_path, read_only=True) as run:
        for line in run.ledger.charges():
            by_cause[line.cause] = by_cause.get(line.cause, 0.0) + line.kg
        assert run.kind == "simulated"
    expected = {cause: kg for cause, kg in plan.emissions.by_cause_kg.items() if kg}
    assert by_cause == pytest.approx(expected, rel=1e-12)
    assert by_cause["network"] == pytest.approx(0.18 * by_cause["training"])
    assert result.emissions_kg == pytest.approx(1.43 * by_cause["training"], rel=1e-12)
    exact = replace(plan, problem=more.with_settings(budget_kg=plan.emissions_kg * (1 - 1e-6)))
    with pytest.raises(OverBudgetError, match="over its budget"):
        train(exact, classes(), **FAST)


def sleeping_plan() -> Plan:
    """Two clients, one with levels, one that sleeps."""
    traces = Traces(
        zones=("A", "B"),
        start=datetime(2022, 1, 1, tzinfo=UTC),
        intensity=np.random.default_rng(3).uniform(0.1, 0.5, (2, 6)),
        factor="direct",
    )
    clients = [
        Client(name="a", zone="A", idle_w=10, levels=[Level(300, 1.0), Level(180, 0.85), Level(90, 0.2)]),
        Client(name="b", zone="B", power_w=200, idle_w=50, startup_kwh=0.02, startup_minutes=30),
    ]
    problem = Problem(clients=clients, traces=traces, rounds=6, fine_tune=1, budget_kg=3.0)
    matrix = np.array([[1, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 1]], dtype=bool)
    return plan_from_matrix(problem, matrix, end=0, levels=[[0, 1, 2, 0, 0, 0], [0] * 6])


@pytest.mark.parametrize("more", [{"local_steps": 10}, {"local_epochs": 2}])
def test_levels_and_starts_are_trained_and_charged_as_planned(tmp_path: Path, more: dict[str, Any]) -> None:
    plan, task = sleeping_plan(), classes(clients=2)
    result = train(plan, task, out=tmp_path, **FAST | more)
    done = [row.work for row in result.history]
    if "local_epochs" in more:  # 2 epochs of 40 samples in batches of 16 are 6 steps
        assert done == [{}, {"a": 5 / 6}, {"a": 1 / 6}, {}]
    else:
        assert done == [{}, {"a": 0.8}, {"a": 0.2}, {}]  # round(8.5) is 8
    with Run.open(tmp_path, read_only=True) as run:
        assert [row.work for row in run.rounds()] == done
        by_cause = run.queries.kg_by_cause()
    expected = {cause: kg for cause, kg in plan.emissions.by_cause_kg.items() if kg}
    assert by_cause == pytest.approx(expected, rel=1e-12)
    assert by_cause["startup"] > 0
    assert resume(tmp_path, task=task).emissions_kg == result.emissions_kg


def test_a_level_changes_only_what_comes_after_it() -> None:
    plan, task, ten = sleeping_plan(), classes(clients=2), FAST | {"local_steps": 10}
    whole, lower = train(replace(plan, levels=None), task, **ten), train(plan, task, **ten)
    assert whole.history[0].losses == lower.history[0].losses
    assert whole.history[1].losses != lower.history[1].losses
    assert lower.emissions_kg < whole.emissions_kg


def test_a_plan_over_its_money_does_not_train() -> None:
    plan = sleeping_plan()
    price = Prices(zones=("A", "B"), start=datetime(2022, 1, 1, tzinfo=UTC), per_kwh=np.full((2, 6), 0.3))
    priced = replace(plan, problem=plan.problem.with_settings(price=price, budget_money=0.1))
    with pytest.raises(OverBudgetError, match=r"costs .*, over budget_money = 0\.1\. Training does not start"):
        train(priced, classes(clients=2), **FAST)


def test_the_baseline_is_fedavg_of_everybody() -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    budget = float(plan.problem.costs.dense()[:, :4].sum())
    problem = plan.problem.with_settings(budget_kg=budget)
    result = baseline(problem, task, **FAST)
    assert [len(row.participants) for row in result.history] == [3] * 4
    assert all(weight == 1 / 3 for row in result.history for weight in row.weights.values())
    assert result.emissions_kg == pytest.approx(budget, rel=1e-12)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    task, plan = classes(), plan_of(SCHEDULE, window=1)
    names, good = list(plan.problem.fleet.names), task.clients
    spoilt = Samples(x=torch.full_like(good[1].x, 3e38), y=good[1].y)
    bad = Task(name="bad", clients=[good[0], spoilt, good[2]], test=task.test, model=task.model)
    with pytest.raises(TrainingDiverged, match=f"client '{names[1]}' .* round 2 of 7 .* kept in {tmp_path}") as caught:
        train(plan, bad, out=tmp_path, **FAST)
    assert (caught.value.client, caught.value.slot, caught.value.number) == (names[1], 2, 1)
    with Run.open(tmp_path) as run:
        assert run.status == "diverged"
        assert [row.slot for row in run.rounds()] == [0]
        kept = Checkpoint(run).load(torch.device("cpu"))["model"]["theta"]
        assert torch.isfinite(kept).all()
        assert run.ledger.last_slot() == 2  # the energy was spent
        assert "no longer finite" in run.events()[-1][3]


def test_a_model_that_explodes_stops_the_run() -> None:
    plan = plan_of(np.ones((2, 40)))
    with pytest.raises(TrainingDiverged, match="Try an lr below 1e"):
        train(plan, quadratic([[1.0], [2.0]]), aggregator="fedavg", local_steps=5, lr=1e30, threads=1)


def test_an_update_that_is_far_too_long_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan, centres = plan_of(np.ones((4, 3)), window=1), [[1.0], [1.1], [-0.9], [60.0]]
    train(plan, quadratic(centres), aggregator="fedavg", local_steps=1, lr=0.01, threads=1, out=tmp_path, batch_size=1)
    far = f"client '{plan.problem.fleet.names[3]}' in slot 0 is 57.1 times as long as usual"
    (said,) = (record.message for record in caplog.records)
    assert far in said
    assert "Try an lr below 0.01" in said
    with Run.open(tmp_path) as run:
        assert [event[3] for event in run.events()] == [said]


def test_ctrl_c_stops_cleanly_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    handler = signal.getsignal(signal.SIGINT)

    def press(progress: Progress) -> None:
        if progress.done.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStopped, match=r"Stopped after 3 of 7 rounds, .*slackwater resume") as caught:
        train(plan, task, out=tmp_path, progress=press, **FAST)
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is handler
    with Run.open(tmp_path) as run:
        assert run.status == "stopped"
    whole = train(plan, task, **FAST)
    assert same(resume(tmp_path, task=task), whole)
    assert same(resume(tmp_path, task=task), whole)  # a run that is done gives its result again


def test_cross_device_samples_devices_of_the_region(tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes(samples=60)
    regions = [[Samples(x=s.x[i::6], y=s.y[i::6]) for i in range(6)] for s in task.clients]
    cross = Task(name="cross", clients=task.clients, test=task.test, model=task.model, devices=regions)
    kwh = {"devices_per_slot": 2, "device_kwh": 0.5}
    first, second = train(plan, cross, **kwh, **FAST), train(plan, cross, out=tmp_path, **kwh, **FAST)
    assert same(first, second)
    assert first.emissions_kg == pytest.approx(plan.emissions_kg, rel=1e-12)
    assert "18 devices" in first.notes[-1] or "of 18" in first.notes[-1]
    assert not same(first, train(plan, cross, devices_per_slot=3, **FAST))
    with Run.open(tmp_path) as run:
        assert next(run.ledger.charges()).note == "2 devices together"
    with pytest.raises(ScenarioError, match=r"2 devices of 0\.4 kWh use 0\.8 kWh .* energy_kwh=0\.8"):
        train(plan, cross, devices_per_slot=2, device_kwh=0.4, **FAST)
    sent = replace(plan, problem=plan.problem.with_settings(model_mb=1.0, evaluation_share=0.1))
    train(sent, cross, **kwh, **FAST)  # what devices draw is training; network and evaluation are beside it
    with pytest.raises(ScenarioError, match="devices_per_slot"):
        train(plan, cross, **FAST)
    with pytest.raises(ScenarioError, match="has no devices"):
        train(plan, task, devices_per_slot=2, **FAST)
    with pytest.raises(ScenarioError, match="has 6 devices"):
        train(plan, cross, devices_per_slot=7, **FAST)


def test_the_mean_over_the_devices_is_the_regions_update() -> None:
    """With all devices of a quadratic region drawn, one step is that of the region's mean."""
    centres = torch.tensor([[1.0], [3.0], [8.0]], dtype=torch.float64)
    whole = quadratic([[4.0]])
    region = [[Samples(x=c[None], y=c[None]) for c in centres]]
    task = replace(whole, devices=region)
    plan = plan_of(np.ones((1, 1)))
    result = train(plan, task, local_steps=1, lr=0.5, weight_decay=0, devices_per_slot=3, threads=1)
    assert float(result.model["theta"]) == pytest.approx(2.0)


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    plan, task = plan_of(SCHEDULE, window=1), classes()
    with pytest.raises(ScenarioError, match=r"plan has 3 clients .* data for 2\. Make the task with clients=3"):
        train(plan, classes(2))
    for setting, value in (
        ("local_steps", 0), ("batch_size", 1.5), ("lr", 0.0), ("lr", math.nan), ("weight_decay", -1), ("seed", -1),
        ("eval_every", -1), ("threads", 0), ("aggregator", "fedavrg"), ("server", "sgd"), ("averaging", 0),
        ("device", "gpu"), ("local_epochs", 0), ("devices_per_slot", 0),
    ):  # fmt: skip
        with pytest.raises(ScenarioError, match=r"\."):
            train(plan, task, **{setting: value})
    with pytest.raises(ScenarioError, match="No client trains"):
        train(plan_of(np.zeros((3, 4))), task)
    with pytest.raises(ScenarioError, match="out="):
        train(plan, task, tensorboard=True)
    train(plan, task, out=tmp_path, **FAST)
    with pytest.raises(SlackwaterError, match="already holds a run"):
        train(plan, task, out=tmp_path, **FAST)
    with pytest.raises(ScenarioError, match="your own task"):
        resume(tmp_path)
    with pytest.raises(ScenarioError, match="other data"):
        resume(tmp_path, task=classes(samples=41))
    with pytest.raises(SlackwaterError, match="no run in"):
        resume(tmp_path / "nowhere")


def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(plan_of(SCHEDULE, window=1), classes(), out=tmp_path, tensorboard=True, **FAST)
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(path)).Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    assert losses == {done.slot: pytest.approx(done.loss) for done in result.history}
    assert events.Scalars("kg (simulated)")[-1].value == pytest.approx(result.emissions_kg)
    assert events.Scalars("test/accuracy")[-1].value == pytest.approx(result.last_accuracy)
    assert {f"client_loss/{name}" for name in result.client_accuracy or result.history[-1].losses} <= set(
        events.Tags()["scalars"]
    )


def test_tensorboard_is_looked_for_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.training.settings.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'slackwater\[tensorboard\]'"):
        train(plan_of(SCHEDULE, window=1), classes(), out=tmp_path / "run", tensorboard=True, **FAST)
    assert not (tmp_path / "run").exists()


def test_importing_slackwater_does_not_import_torch() -> None:
    code = (
        "import sys, slackwater, slackwater.training, slackwater.ledger, slackwater.planning.schedule;"
        "assert 'torch' not in sys.modules;"
        "sys.modules['torch'] = None;"
        "from slackwater.errors import MissingExtraError\n"
        "try:\n    slackwater.training.train\n"
        "except MissingExtraError as error:\n    assert 'PyTorch' in str(error)\n"
        "else:\n    raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
