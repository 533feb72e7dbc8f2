"""Any strategy of Flower inside a plan: it configures and aggregates, Slackwater chooses, charges, screens and saves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flwr.serverapp.strategy as flower
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Krum, Strategy
from plans import ZONES, small_plan
from small_apps import TroubledGrid

from slackwater.engines.flower.records import from_arrays, to_arrays
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.flower import CarbonAware, measured, register, run
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, NoRoundsError, RunStopped, prepare
from slackwater.planning.planner import plan as make_plan

SITES = {name: {"zone": zone} for name, zone in ZONES.items()}
INITIAL = {"w": np.zeros((2, 3), dtype=np.float32), "b": np.zeros(2, dtype=np.float32)}
NOISE = "DifferentialPrivacyServerSideFixedClipping"


def app(seen: list[tuple[str, float]] | None = None, *, nan: str = "") -> ClientApp:
    """Each client moves a tenth of the way to its own number; what it got is in `seen`."""
    made = register(ClientApp())

    @made.train()
    def train(msg: Message, context: Context) -> Message:
        name, number = str(context.node_config["name"]), int(context.node_config["partition-id"])
        arrays = {key: value.numpy().copy() for key, value in msg.content["arrays"].items()}
        if seen is not None:
            seen.append((name, float(arrays["w"].mean())))
        with measured(msg, context, energy=False) as meter:
            arrays = {key: (value + 0.1 * (1 + number - value)).astype(value.dtype) for key, value in arrays.items()}
        if name == nan:
            arrays["w"][0, 0] = np.nan
        mu = float(msg.content["config"].get("proximal-mu", 0.0))
        # norm_bit is what adaptiveclipping_mod would report.
        return meter.reply(
            arrays, num_examples=10 * (number + 1), loss=1.0 / (number + 1), mine=float(number), mu=mu, norm_bit=1.0,
            train_loss=1.0,
        )  # fmt: skip

    @made.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        score = float(msg.content["arrays"]["w"].numpy().mean())
        metrics = MetricRecord({"num-examples": 5, "score": score})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return made


def charged(folder: Path) -> float:
    with Run.open(folder, read_only=True) as held:
        return held.ledger.spent_kg()


def carried(strategy: Strategy | None, folder: Path, **options: Any) -> tuple[Any, CarbonAware]:
    carbon = CarbonAware(strategy, plan=small_plan(), ledger=folder, wait=False)
    return carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL), **options), carbon


MADE: dict[str, Callable[[type[Any]], Strategy]] = {
    "DifferentialPrivacyServerSideFixedClipping": lambda c: c(FedAvg(), 0.1, 1.0, 3),
    "DifferentialPrivacyClientSideFixedClipping": lambda c: c(FedAvg(), 0.1, 1.0, 3),
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda c: c(FedAvg(), 0.1, 3),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda c: c(FedAvg(), 0.1, 3),
    "Bulyan": lambda c: c(num_malicious_nodes=0),
    "QFedAvg": lambda c: c(client_learning_rate=0.1),
}
TREES = {"FedXgbBagging", "FedXgbCyclic"}
CLASSES = [name for name in flower.__all__ if name not in ("Result", "Strategy", *TREES)]


@pytest.mark.parametrize("name", CLASSES)
def test_every_strategy_of_flower_carries_out_a_plan(name: str, tmp_path: Path) -> None:
    kind = getattr(flower, name)
    strategy = MADE.get(name, lambda c: c())(kind)
    # Bulyan needs three replies in every round.
    plan = small_plan(rounds=3, slack=0, budget_kg=5.0) if name == "Bulyan" else small_plan()
    carbon = CarbonAware(strategy, plan=plan, ledger=tmp_path / "run", wait=False)
    result = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    assert carbon.live_result is not None
    assert len(carbon.live_result.history) == carbon.num_rounds
    assert charged(tmp_path / "run") == pytest.approx(plan.emissions_kg)
    assert np.isfinite(from_arrays(result.arrays)["w"]).all()
    assert from_arrays(result.arrays)["w"].mean() != 0
    assert sorted(result.train_metrics_clientapp) == list(range(1, carbon.num_rounds + 1))
    assert 0 <= result.train_metrics_clientapp[1]["mine"] <= 2
    with Run.open(tmp_path / "run", read_only=True) as held:
        kept = held.journal.metrics()
        assert held.status == "done"
    first = carbon.live_result.history[0]
    assert set(kept[first.slot]) == {"", *first.participants}
    assert kept[first.slot][""]["mine"] == pytest.approx(result.train_metrics_clientapp[1]["mine"])


def test_the_strategy_does_what_it_does_alone(tmp_path: Path) -> None:
    """With everybody in every slot, FedAdam inside a plan is FedAdam."""
    plan = small_plan(rounds=3, slack=0, fine_tune=1, budget_kg=5.0)
    assert plan.matrix.all()
    carbon = CarbonAware(FedAdam(eta=0.3), plan=plan, ledger=tmp_path / "run", wait=False)
    ours = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    alone = FedAdam(eta=0.3, fraction_evaluate=0.0).start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=3)
    np.testing.assert_allclose(from_arrays(ours.arrays)["w"], from_arrays(alone.arrays)["w"], rtol=1e-6)


class Proximal(FedProx):
    """A user's subclass that post-processes the model."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return to_arrays({name: value * 0.5 for name, value in from_arrays(arrays).items()}), metrics


def test_what_clients_get_is_what_the_strategy_made(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    made: list[float] = []
    carbon = CarbonAware(Proximal(proximal_mu=0.7), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    result = carbon.start(
        TroubledGrid(app(seen), SITES),
        to_arrays(INITIAL),
        on_round=lambda done, arrays: made.append(float(arrays["w"].numpy().mean())),
    )
    assert carbon.live_result is not None
    got = [value for record, start in zip(carbon.live_result.history[1:], made, strict=False) for value in [start]]
    later = [value for _, value in seen if value != 0]
    assert set(np.round(later, 6)) == set(np.round(got, 6))
    assert result.train_metrics_clientapp[1]["mu"] == pytest.approx(0.7)


def test_the_noise_of_differential_privacy_reaches_the_clients(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    noisy = getattr(flower, NOISE)(FedAvg(), 9.0, 1.0, 99)
    carbon = CarbonAware(noisy, plan=small_plan(), ledger=tmp_path / "run", wait=False)
    np.random.seed(1)  # noqa: NPY002  what Flower draws its noise from
    result = carbon.start(TroubledGrid(app(seen), SITES), to_arrays(INITIAL))
    later = np.array([value for _, value in seen if value != 0])
    assert later.min() < 0  # without noise, every model is between 0 and 3
    assert not ((from_arrays(result.arrays)["w"] >= 0) & (from_arrays(result.arrays)["w"] <= 3)).all()
    assert carbon.live_result is not None
    # The divisor of the noise is the number of clients in the slot, not 99.
    assert noisy.num_sampled_clients == len(carbon.live_result.history[-1].participants)


def test_differential_privacy_around_us_is_refused(tmp_path: Path) -> None:
    around = getattr(flower, NOISE)(CarbonAware(plan=small_plan(), ledger=tmp_path / "run", wait=False), 1.0, 1.0, 3)
    with pytest.raises(ScenarioError, match=rf"CarbonAware\({NOISE}\(FedAvg"):
        around.start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=3)


class Halving(Strategy):
    """Somebody's wrapper: it halves every model that the strategy inside makes."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        return to_arrays({name: value * 0.5 for name, value in from_arrays(arrays).items()}), metrics

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None: ...


@pytest.mark.parametrize("inner", [None, FedAvg])
def test_others_can_wrap_it_and_their_model_is_sent_and_saved(inner: Any, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    carbon = CarbonAware(inner and inner(), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    result = Halving(carbon).start(TroubledGrid(app(seen), SITES), to_arrays(INITIAL), num_rounds=carbon.num_rounds)
    assert carbon.live_result is not None
    np.testing.assert_array_equal(carbon.live_result.arrays["w"], from_arrays(result.arrays)["w"])
    assert len(result.train_metrics_clientapp) == carbon.num_rounds
    assert max(value for _, value in seen) < 1.5
    with Run.open(tmp_path / "run", read_only=True) as held:
        assert held.status == "done"
    assert charged(tmp_path / "run") == pytest.approx(carbon.plan.emissions_kg)


@pytest.mark.parametrize("kind", [FedAdam, Krum, flower.FedMedian])
def test_inheriting_from_two_strategies_is_refused(kind: Any) -> None:
    for bases in ((kind, CarbonAware), (CarbonAware, kind)):
        with pytest.raises(ScenarioError, match=rf"Wrap instead: CarbonAware\({kind.__name__}\("):
            type("Both", bases, {})


class Shrinking(CarbonAware):
    """A subclass that post-processes our own model."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return to_arrays({name: value * 0.0 for name, value in from_arrays(arrays).items()}), metrics


def test_a_subclass_that_changes_the_model_has_an_effect(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    carbon = Shrinking(plan=small_plan(), ledger=tmp_path / "run", wait=False)
    result = carbon.start(TroubledGrid(app(seen), SITES), to_arrays(INITIAL))
    assert not from_arrays(result.arrays)["w"].any()
    assert {value for _, value in seen} == {0.0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: {"w": arrays["w"]}, "Odd made a model that cannot be used: its arrays differ"),
        (lambda arrays: {**arrays, "w": arrays["w"] * np.nan}, "Odd made a model with NaN or infinite values in w"),
    ],
)
def test_a_subclass_that_spoils_the_model_is_named(change: Any, said: str, tmp_path: Path) -> None:
    class Odd(CarbonAware):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            return to_arrays(change(from_arrays(arrays))), metrics

    carbon = Odd(plan=small_plan(), ledger=tmp_path / "run", wait=False)
    with pytest.raises(SlackwaterError, match=said):
        carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))


def test_a_subclass_that_combines_alone_is_followed(tmp_path: Path) -> None:
    class Alone(CarbonAware):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return to_arrays({name: value + server_round for name, value in INITIAL.items()}), None

    carbon = Alone(plan=small_plan(), ledger=tmp_path / "run", wait=False)
    result = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    assert (from_arrays(result.arrays)["w"] == carbon.num_rounds).all()


# -- kill and resume


def killed_and_resumed(make: Callable[[], Strategy], folder: Path, rounds: int) -> Any:
    """Carry out a plan with a stop after some rounds, as two processes would."""
    for limit in (rounds, None):
        carbon = CarbonAware(make(), plan=small_plan(), ledger=folder, wait=False)
        result = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=limit)
    return result


class SeededNoise(getattr(flower, NOISE)):  # type: ignore[misc]
    """Draws the noise of a round from a generator seeded by the round, so that two runs can be compared."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        np.random.seed(server_round)  # noqa: NPY002
        return super().aggregate_train(server_round, replies)


RESUMED: dict[str, Callable[[], Strategy]] = {
    "FedAdam": lambda: FedAdam(eta=0.3),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedYogi": lambda: flower.FedYogi(),
    "FedAdagrad": lambda: flower.FedAdagrad(),
    "Krum": Krum,
    "private": lambda: SeededNoise(FedAvgM(server_momentum=0.9), 5.0, 1.0, 3),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_strategy_gives_the_same_model(name: str, tmp_path: Path) -> None:
    whole, _ = carried(RESUMED[name](), tmp_path / "whole")
    parts = killed_and_resumed(RESUMED[name], tmp_path / "parts", 2)
    for key in INITIAL:
        np.testing.assert_array_equal(from_arrays(parts.arrays)[key], from_arrays(whole.arrays)[key])
    assert charged(tmp_path / "parts") == pytest.approx(charged(tmp_path / "whole"))


def test_the_saved_model_always_has_its_noise(tmp_path: Path) -> None:
    carbon = CarbonAware(SeededNoise(FedAvg(), 5.0, 1.0, 3), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    stopped = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=1)
    seen: list[tuple[str, float]] = []
    again = CarbonAware(SeededNoise(FedAvg(), 5.0, 1.0, 3), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    again.start(TroubledGrid(app(seen), SITES), to_arrays(INITIAL), num_rounds=1)
    assert {value for _, value in seen} == {float(from_arrays(stopped.arrays)["w"].mean())}


class Counting(FedAvg):
    """A user's strategy with state that nobody declared."""

    def __init__(self) -> None:
        super().__init__()
        self.drift = np.zeros(2)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.drift = self.drift + server_round
        return super().aggregate_train(server_round, replies)


class Declared(Counting):
    """The same, with its state declared; one part of it is a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        noise = self.generator.normal() + float(self.drift[0])
        return to_arrays(
            {name: (value + noise).astype(value.dtype) for name, value in from_arrays(arrays).items()}
        ), metrics

    def state_dict(self) -> dict[str, Any]:
        return {"drift": self.drift, "generator": self.generator, "more": {"a": [1, 2.5, None], "b": b"xyz"}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["more"] == {"a": [1, 2.5, None], "b": b"xyz"}
        self.drift, self.generator = state["drift"], state["generator"]


def test_an_unknown_stateful_strategy_is_named_and_refused_on_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SlackwaterError, match=r"Counting changes drift during a run.*state_dict\(\)"):
        killed_and_resumed(Counting, tmp_path / "run", 2)
    assert "so a stopped run cannot be resumed" in caplog.text


def test_a_declared_state_is_resumed(tmp_path: Path) -> None:
    whole, _ = carried(Declared(), tmp_path / "whole")
    parts = killed_and_resumed(Declared, tmp_path / "parts", 2)
    np.testing.assert_array_equal(from_arrays(parts.arrays)["w"], from_arrays(whole.arrays)["w"])


def test_another_strategy_is_refused_on_resume(tmp_path: Path) -> None:
    carried(FedAdam(), tmp_path / "run", num_rounds=1)
    with pytest.raises(SlackwaterError, match="started with the strategy CarbonAware around FedAdam"):
        carried(FedAvg(), tmp_path / "run")


def test_no_pickle_in_a_checkpoint(tmp_path: Path) -> None:
    carried(FedAdam(), tmp_path / "run", num_rounds=2)
    with Run.open(tmp_path / "run", read_only=True) as held:
        parts = {part.name for part in held.last_parts()}
        state = held.journal.get("model")
    assert {"model/w", "strategy/1.m_t.w", "strategy/1.v_t.b"} <= parts
    json.dumps(state)


# -- charging, screening, and what is refused


def test_a_bad_update_is_screened_before_the_strategy_sees_it(tmp_path: Path) -> None:
    carbon = CarbonAware(FedAvg(), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    result = carbon.start(TroubledGrid(app(nan="dublin"), SITES), to_arrays(INITIAL))
    assert np.isfinite(from_arrays(result.arrays)["w"]).all()
    with Run.open(tmp_path / "run", read_only=True) as held:
        outcomes = {one.outcome for one in held.journal.attempts() if one.client == "dublin"}
    assert "rejected" in outcomes


class OneOnly(FedAvg):
    """Asks one of the due clients."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        return list(super().configure_train(server_round, arrays, config, grid))[:1]


def test_clients_that_the_strategy_leaves_out_are_not_charged(tmp_path: Path) -> None:
    _, carbon = carried(OneOnly(), tmp_path / "run")
    assert carbon.live_result is not None
    assert all(len(done.participants) == 1 for done in carbon.live_result.history)
    with Run.open(tmp_path / "run", read_only=True) as held:
        lines = [line for line in held.ledger.charges() if line.cause == "training" and line.kind == "charge"]
    assert len(lines) == carbon.num_rounds < carbon.plan.matrix.sum()


class Waiting(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        from slackwater import time_source

        while len(list(grid.get_node_ids())) < 99:
            time_source.sleep(1.0)
        return []


class Sending(FedAvg):
    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        return list(grid.send_and_receive(super().configure_train(server_round, arrays, config, grid)))


class Broken(FedAvg):
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        raise KeyError("accuracy")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Waiting, "waits for more nodes than the"),
        (Sending, "neither planned nor charged"),
        (Broken, "Broken could not aggregate round 1: KeyError"),
    ],
)
def test_a_strategy_that_cannot_work_ends_in_a_sentence(kind: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SlackwaterError, match=said):
        carried(kind(), tmp_path / "run")


def test_settings_without_an_effect_are_refused(tmp_path: Path) -> None:
    plan, folder = small_plan(), tmp_path / "run"
    for options, said in (
        ({"strategy": FedAvg(fraction_train=0.5)}, "fraction_train is 0.5, but the plan chooses"),
        ({"fraction_train": 0.5}, "fraction_train is 0.5, but the plan chooses"),
        ({"strategy": FedAvg(), "aggregator": "echo"}, "aggregator has no effect"),
        ({"strategy": FedAvg(), "arrayrecord_key": "x"}, "arrayrecord_key has no effect"),
        ({"min_train_nodes": 3}, "min_train_nodes has no effect"),
        (
            {"strategy": FedAvg(), "settings": LiveSettings(weighting="samples", slot_seconds=0.0)},
            "weights the updates",
        ),
    ):
        with pytest.raises(ScenarioError, match=said):
            CarbonAware(plan=plan, ledger=folder, **options)


def test_keys_and_metrics_functions_have_an_effect_without_a_strategy(tmp_path: Path) -> None:
    made = register(ClientApp())

    @made.train()
    def train(msg: Message, context: Context) -> Message:
        arrays = {key: value.numpy() + 1 for key, value in msg.content["weights"].items()}
        assert msg.content["settings"]["lr"] == 0.1
        metrics = MetricRecord({"n": 3, "acc": 0.5})
        return Message(RecordDict({"weights": to_arrays(arrays), "metrics": metrics}), reply_to=msg)

    carbon = CarbonAware(
        plan=small_plan(), ledger=tmp_path / "run", wait=False, arrayrecord_key="weights", configrecord_key="settings",
        weighted_by_key="n", train_metrics_aggr_fn=lambda records, key: MetricRecord({"summed": float(len(records))}),
    )  # fmt: skip
    result = carbon.start(TroubledGrid(made, SITES), to_arrays(INITIAL), train_config=ConfigRecord({"lr": 0.1}))
    assert from_arrays(result.arrays)["w"].mean() > 0
    assert result.train_metrics_clientapp[1]["summed"] >= 1


def test_a_ledger_of_another_plan_is_refused(tmp_path: Path) -> None:
    CarbonAware(FedAvg(), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    with pytest.raises(ScenarioError, match="holds a run of another plan"):
        CarbonAware(FedAvg(), plan=small_plan(rounds=3), ledger=tmp_path / "run", wait=False)


def test_a_relative_ledger_is_refused_where_flower_sets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CarbonAware(plan=small_plan(), ledger="run", wait=False).folder == tmp_path / "run"
    monkeypatch.setattr("sys.argv", ["/usr/bin/flwr-serverapp"])
    with pytest.raises(ScenarioError, match="give the absolute path"):
        CarbonAware(plan=small_plan(), ledger="run", wait=False)


def test_clients_evaluate_only_if_the_plan_counts_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    without, _ = carried(FedAvg(), tmp_path / "without")
    assert without.evaluate_metrics_clientapp == {}
    assert "Clients do not evaluate" in caplog.text
    plan = make_plan(small_plan().problem.with_settings(evaluation_share=0.1))
    carbon = CarbonAware(FedAvg(), plan=plan, ledger=tmp_path / "with", wait=False)
    result = carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    assert sorted(result.evaluate_metrics_clientapp) == list(range(1, carbon.num_rounds + 1))
    assert charged(tmp_path / "with") == pytest.approx(plan.emissions_kg)
    with Run.open(tmp_path / "with", read_only=True) as held:
        kept = held.journal.metrics()
    assert all("clients/score" in numbers[""] for numbers in kept.values())


# -- run()


def context(folder: Path) -> Context:
    return Context(1, 1, {}, RecordDict(), {"slackwater-run": str(folder)})


def test_run_takes_a_strategy_a_config_and_a_function_for_every_round(tmp_path: Path) -> None:
    plan = make_plan(small_plan().problem.with_settings(evaluation_share=0.1))
    for name, strategy in {"ours": None, "theirs": FedAdam()}.items():
        folder = prepare(tmp_path / name, plan, LiveSettings(slot_seconds=0.0))
        grid = TroubledGrid(app(), SITES)
        rounds: list[int] = []

        def note(done: Any, arrays: ArrayRecord, rounds: list[int] = rounds) -> dict[str, float]:
            rounds.append(done.number)
            return {"mean": float(arrays["w"].numpy().mean())}

        result = run(
            grid, context(folder), INITIAL, lambda arrays: {"accuracy": 0.5}, strategy=strategy,
            train_config={"lr": 0.25}, evaluate_config={"full": True}, on_round=note,
        )  # fmt: skip
        sent = {message.metadata.message_type for message in grid.pushed}
        assert {"train", "evaluate"} <= sent
        for message in grid.pushed:
            kind = message.metadata.message_type
            if kind in ("train", "evaluate"):
                assert message.content["config"]["lr" if kind == "train" else "full"] == (
                    0.25 if kind == "train" else True
                )
        assert rounds == list(range(len(result.history)))
        with Run.open(folder, read_only=True) as held:
            kept = held.journal.metrics()
            assert [done.accuracy for done in held.rounds()] == [0.5] * len(result.history)
        assert all("mean" in numbers[""] for numbers in kept.values())


def test_no_round_is_no_success(tmp_path: Path) -> None:
    broken = register(ClientApp())

    @broken.train()
    def train(msg: Message, context: Context) -> Message:
        raise RuntimeError("no data today")

    carbon = CarbonAware(FedAvg(), plan=small_plan(), ledger=tmp_path / "run", wait=False)
    with pytest.raises(NoRoundsError, match=r"over without a single round.*no data today"):
        carbon.start(TroubledGrid(broken, SITES), to_arrays(INITIAL))
    with Run.open(tmp_path / "run", read_only=True) as held:
        assert held.status == "failed"
    assert not (tmp_path / "run" / "model.pt").exists()


def test_stopping_is_no_error_only_if_it_was_asked_for(tmp_path: Path) -> None:
    class Stopping(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            raise RunStopped("Stopped.")

    with pytest.raises(RunStopped):
        carried(Stopping(), tmp_path / "run")


class Killed(BaseException):
    """Ends the process in the middle of a round, after the strategy has changed its state."""


def test_a_kill_in_the_middle_of_a_round_loses_the_round_and_nothing_else(tmp_path: Path) -> None:
    class Dying(FedAdam):
        dies = True

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            found = super().aggregate_train(server_round, replies)
            if self.dies and server_round == 3:
                raise Killed
            return found

    plan, folder = small_plan(), tmp_path / "run"
    carbon = CarbonAware(Dying(), plan=plan, ledger=folder, wait=False)
    with pytest.raises(Killed):
        carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    again = Dying()
    again.dies = False
    carbon = CarbonAware(again, plan=plan, ledger=folder, wait=False)
    carbon.start(TroubledGrid(app(), SITES), to_arrays(INITIAL))
    assert carbon.live_result is not None
    lost = int(np.flatnonzero(plan.matrix.any(axis=0))[2])
    assert [one.slot for one in carbon.live_result.history] == [
        slot for slot in np.flatnonzero(plan.matrix.any(axis=0)) if slot != lost
    ]
    assert charged(folder) == pytest.approx(plan.emissions_kg)
    # The same as if the clients of that slot had never replied, also in the strategy's state.
    grid = TroubledGrid(app(), SITES)
    other = CarbonAware(Silent(lost, grid), plan=plan, ledger=tmp_path / "lost", wait=False)
    want = other.start(grid, to_arrays(INITIAL))
    np.testing.assert_array_equal(carbon.live_result.arrays["w"], from_arrays(want.arrays)["w"])


class Silent(FedAdam):
    """Makes all clients unavailable in one slot."""

    def __init__(self, slot: int, grid: TroubledGrid) -> None:
        super().__init__()
        self.slot, self.grid, self.number = slot, grid, -1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        self.number += 1
        slots = np.flatnonzero(small_plan().matrix.any(axis=0))
        self.grid.unavailable = set(self.grid.ids.values()) if slots[self.number] == self.slot else set()
        return super().configure_train(server_round, arrays, config, grid)


def test_a_loop_that_ends_early_is_resumed_and_errors_reach_it(tmp_path: Path) -> None:
    for rounds in (2, 99):
        carbon = CarbonAware(plan=small_plan(), ledger=tmp_path / "run", wait=False)
        loop = Halving(carbon)
        result = loop.start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=min(rounds, carbon.num_rounds))
        carbon.close()
        with Run.open(tmp_path / "run", read_only=True) as held:
            assert held.status == ("stopped" if rounds == 2 else "done")
    whole = CarbonAware(plan=small_plan(), ledger=tmp_path / "whole", wait=False)
    at_once = Halving(whole).start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=whole.num_rounds)
    np.testing.assert_array_equal(from_arrays(result.arrays)["w"], from_arrays(at_once.arrays)["w"])
    broken = CarbonAware(plan=small_plan(), ledger=tmp_path / "broken", wait=False)
    live = tmp_path / "broken" / "live.json"
    live.write_text(live.read_text().replace('"echo"', '"ecko"'))
    with pytest.raises(SlackwaterError, match="Did you mean 'echo'"):
        Halving(broken).start(TroubledGrid(app(), SITES), to_arrays(INITIAL), num_rounds=2)


class Accountant:
    """Counts releases, as Flower's accountant of privacy does; the real one needs a package of its own."""

    def __init__(self) -> None:
        from flwr.supercore.privacy_accounting import SamplingMethod

        self.config = SimpleNamespace(
            sampling_method=SamplingMethod.NO_AMPLIFICATION, population_size=3, max_epsilon=None, target_delta=1e-5
        )
        self.num_releases = 0

    def compose(self, event: Any, count: int = 1) -> None:
        assert event.noise_multiplier == 0.5
        self.num_releases += count

    def get_privacy_spent(self) -> Any:
        return SimpleNamespace(epsilon=float(self.num_releases), delta=1e-5, num_releases=self.num_releases)

    def state_dict(self) -> dict[str, object]:
        return {"releases": self.num_releases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_releases = state["releases"]


@pytest.mark.skipif("accountant" not in signature(getattr(flower, NOISE)).parameters, reason="Flower accounts later")
def test_the_account_of_privacy_fits_every_slot_and_survives_a_stop(tmp_path: Path) -> None:
    alike = register(ClientApp())

    @alike.train()
    def train(msg: Message, context: Context) -> Message:
        arrays = {key: value.numpy() + 0.1 for key, value in msg.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": to_arrays(arrays), "metrics": metrics}), reply_to=msg)

    for rounds in (2, None):
        accountant = Accountant()
        private = getattr(flower, NOISE)(FedAvg(), 0.5, 1.0, 3, accountant=accountant)
        carbon = CarbonAware(private, plan=small_plan(), ledger=tmp_path / "run", wait=False)
        assert len({int(count) for count in carbon.plan.matrix.sum(axis=0) if count}) > 1  # slots of different sizes
        carbon.start(TroubledGrid(alike, SITES), to_arrays(INITIAL), num_rounds=rounds)
    assert accountant.num_releases == carbon.num_rounds
