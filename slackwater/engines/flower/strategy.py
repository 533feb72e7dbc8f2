"""The server: `run`, the complete main function of a ServerApp, and `CarbonAware`, which wraps any strategy of Flower."""

from __future__ import annotations

import hashlib
import logging
import math
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from slackwater.engines.flower.app import RUN, SLOT_SECONDS
from slackwater.engines.flower.grid import GridTransport
from slackwater.engines.flower.launch import refused
from slackwater.engines.flower.records import as_arrays, from_arrays, to_arrays
from slackwater.engines.flower.rounds import DueGrid, StrategyModel, StrategyTransport
from slackwater.engines.flower.strategy_state import StrategyState, layers
from slackwater.engines.metering import numbers_in
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.ledger.run import FILE, RoundRecord
from slackwater.live.folder import PLAN, LiveResult, LiveSettings, RunStopped, is_live, load_settings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Arrays, Reply, Site, Work
from slackwater.live.trust import RUN_KEY
from slackwater.live.updates import LiveModel
from slackwater.planning.plan import Plan

log = logging.getLogger(__name__)
_PATIENCE_S = 60.0  # time limit for new nodes to report their identity
_POLL_S = 1.0  # how often a side of the bridge looks whether the other still lives
_END_S = 600.0  # time limit for the runner to end after the last round
_FLOWERS = ("flwr-", "flower-")  # beginnings of the names of Flower's own processes

Evaluate = Callable[[ArrayRecord], Mapping[str, float]]
"""Evaluates a model on the server; returns for example {"accuracy": 0.9, "loss": 0.3}."""
OnRound = Callable[[RoundRecord, ArrayRecord], Mapping[str, float] | None]
"""Called after every round that is saved, with its model; numbers that it returns are stored with the round."""


def run(
    grid: Grid,
    context: Context,
    initial: Mapping[str, Any] | ArrayRecord,
    evaluate: Evaluate | None = None,
    *,
    strategy: Strategy | None = None,
    train_config: Mapping[str, Any] | None = None,
    evaluate_config: Mapping[str, Any] | None = None,
    on_round: OnRound | None = None,
    settings: LiveSettings | None = None,
) -> LiveResult:
    """Start or resume the run whose folder the run config names under "slackwater-run".

    `slackwater run` prepares the folder. Or the folder holds only a plan (`slackwater plan scenario.toml --out DIR`),
    which runs with `settings`. Default: without waiting, or with slots of "slackwater-slot-seconds".

    Args:
        grid: Flower's grid.
        context: The context of the ServerApp.
        initial: The model to start with, as a state dict.
        evaluate: Evaluates a model on the server.
        strategy: Strategy of Flower that configures and aggregates. Default: Slackwater's aggregator.
        train_config: Sent with all work, such as {"lr": 0.1}.
        evaluate_config: Clients that have trained evaluate too, and get this. The plan must count it (evaluation_share).
        on_round: Called after every round that is saved.
        settings: Settings of the run, if the folder holds only a plan.
    """
    folder = _folder(context)
    plan = Plan.load(folder / PLAN)
    if not is_live(folder):
        prepare(folder, plan, settings or LiveSettings(slot_seconds=_slot_seconds(context)))
    if strategy is not None or evaluate_config is not None:
        own: dict[str, Any] = {} if strategy is not None else {"fraction_evaluate": 1.0}
        carbon = CarbonAware(strategy, context=context, **own)
        carbon.start(
            grid, to_arrays(as_arrays(initial)), train_config=ConfigRecord(dict(train_config or {})),
            evaluate_config=ConfigRecord(dict(evaluate_config or {})), on_round=on_round,
            evaluate_fn=None if evaluate is None else lambda _, arrays: MetricRecord(dict(evaluate(arrays))),
        )  # fmt: skip
        assert carbon.live_result is not None
        return carbon.live_result
    names, is_new = [str(name) for name in plan.problem.fleet.names], not (folder / FILE).exists()
    # Ask nodes before the first slot, since that takes as long as a small round. A resumed run does not wait:
    # registered names are enough.
    transport = GridTransport(
        grid, names=names, ask_registered=is_new, patience_s=_PATIENCE_S, config=train_config, run=_run_key(folder)
    )
    _greet(transport, names, is_new=is_new, folder=folder)
    judge: Callable[[Arrays], Mapping[str, float]] | None = None
    if evaluate is not None:
        judge = lambda arrays: evaluate(to_arrays(arrays))  # noqa: E731
        judge.metric = getattr(evaluate, "metric", None)  # type: ignore[attr-defined]  # its direction and unit
    after = None if on_round is None else lambda done, arrays: on_round(done, to_arrays(arrays))
    return carry_out(folder, transport, as_arrays(initial), evaluate=judge, on_round=after)


def _greet(transport: GridTransport, names: Sequence[str], *, is_new: bool, folder: Path) -> None:
    """Find out who is online; stop a new run if nodes are there and none of them can be used."""
    known = transport.online(patiently=is_new)
    log.info("%d of %d clients are online.", len(known), len(names))
    if is_new and not known and transport.refused:
        raise refused(folder, f"No node can be used, so nothing was started. {next(iter(transport.refused.values()))}")


def _folder(context: Context) -> Path:
    named = str(context.run_config.get(RUN, "")).strip()
    if not named:
        raise ScenarioError(
            f"{RUN} in the run config is empty. Start the app with: slackwater run scenario.toml --app . Or plan into a "
            f"folder (slackwater plan scenario.toml --out DIR), then: flwr run . -c '{RUN}=\"/path/to/DIR\"'"
        )
    folder = Path(named).expanduser()
    if not folder.is_absolute():
        raise ScenarioError(f"{RUN} is {named!r}; give the absolute path, since Flower runs apps in its own folder.")
    if not (folder / PLAN).is_file():
        raise ScenarioError(
            f"{folder} has no {PLAN}. It must be on the machine of the ServerApp, where the SuperLink runs. Create it with: "
            f"slackwater plan scenario.toml --out {folder}"
        )
    return folder


def _slot_seconds(context: Context) -> float:
    value = context.run_config.get(SLOT_SECONDS, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ScenarioError(f"{SLOT_SECONDS} must be a number of seconds, or 0 for no waiting, not {value!r}.")
    return float(value)


class CarbonAware(FedAvg):
    """Any Flower strategy inside a plan: `CarbonAware(FedAdam(..), plan=.., ledger=..)`.

    The strategy configures and aggregates over the clients that are due. Slackwater decides who that is, charges them
    before it sends work, screens the updates, settles, and saves the strategy's model and state after every round.
    Without a strategy, Slackwater's aggregator combines the updates.
    """

    not_state = (
        "plan", "folder", "strategy", "live_result", "_bridge", "_model", "_transport", "_state", "_from_context",
        "_warned", "fraction_evaluate", "min_evaluate_nodes",
    )  # fmt: skip
    """Attributes of ours that are no state of a subclass."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse inheritance from a second strategy, of which one would be ignored."""
        super().__init_subclass__(**options)
        for kind in cls.__mro__:
            if issubclass(kind, Strategy) and not issubclass(kind, CarbonAware) and kind not in (FedAvg, Strategy):
                raise ScenarioError(
                    f"{cls.__name__} inherits from both CarbonAware and {kind.__name__}, which combine updates differently. "
                    f"Wrap instead: CarbonAware({kind.__name__}(..), plan=.., ledger=..)."
                )

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        plan: str | Path | Plan | None = None,
        ledger: str | Path | None = None,
        context: Context | None = None,
        aggregator: str | None = None,
        wait: bool | None = None,
        settings: LiveSettings | None = None,
        **fedavg: Any,
    ) -> None:
        """Follow a plan, new or to resume.

        Args:
            strategy: The strategy that configures and aggregates. Default: Slackwater's aggregator.
            plan: The plan or its file. Default: the one in the run folder.
            ledger: The run folder.
            context: In place of `plan` and `ledger`: the context of the ServerApp, whose run config names the folder under
                "slackwater-run". `slackwater run` sets it.
            aggregator: How updates are combined without a strategy. Default: the plan's.
            wait: False for simulation: slots follow each other without waiting. Default: True.
            settings: In place of `aggregator` and `wait`: all settings of the run.
            fedavg: Without a strategy, other keywords of FedAvg: its keys, metrics functions and `fraction_evaluate`.
        """
        if strategy is not None and not isinstance(strategy, Strategy):
            raise ScenarioError(
                f"CarbonAware wraps a strategy of Flower, not {strategy!r}. Give the plan by name: CarbonAware(plan=.., "
                "ledger=..)."
            )
        _check_chosen(strategy, aggregator, fedavg)
        super().__init__(**({"fraction_evaluate": 0.0, **fedavg} if strategy is None else {}))
        self.strategy = strategy
        self.folder, self._from_context = _run_folder(context, ledger), context is not None
        self.plan = self._read_plan(plan)
        if not is_live(self.folder):
            waits = (
                _slot_seconds(context) if context is not None and wait is None else None if wait is not False else 0.0
            )
            usual = LiveSettings(aggregator=aggregator or self.plan.aggregator, slot_seconds=waits)
            prepare(self.folder, self.plan, settings or usual)
        if strategy is not None and load_settings(self.folder).weighting != "equal":
            raise ScenarioError(
                f"{type(strategy).__name__} weights the updates itself. Remove weighting = 'samples', or use CarbonAware "
                "without a strategy."
            )
        for layer in layers(strategy) if strategy is not None else ():
            if type(layer).start is not Strategy.start:
                log.warning("%s.start is not called: CarbonAware.start carries out the plan.", type(layer).__name__)
        self._state = StrategyState(self, ignored=(CarbonAware,))
        self._bridge: _Bridge | None = None
        self._model: StrategyModel | None = None
        self._transport: StrategyTransport | None = None
        self._warned = False
        self.live_result: LiveResult | None = None  # set after the last slot

    @property
    def num_rounds(self) -> int:
        """Return the number of planned slots with participants, which is the number of rounds of Flower's loop."""
        return int(np.count_nonzero(self.plan.matrix.any(axis=0)))

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int | None = None, timeout: float | None = None,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        on_round: OnRound | None = None,
    ) -> Result:  # fmt: skip
        """Carry out the plan, as Flower's `start` does; the plan ends the run, and its slots end the work.

        Args:
            grid: Flower's grid.
            initial_arrays: The model to start with; a checkpoint replaces it.
            num_rounds: Stop after so many rounds; a later start continues. Under `slackwater run` the plan decides.
            timeout: Not used: work ends with its slot.
            train_config: Sent with all work.
            evaluate_config: Sent with evaluation on the clients.
            evaluate_fn: Evaluates the model on the server, after every round.
            on_round: Called after every round that is saved, with its record and its model.
        """
        result, stop, held = Result(), threading.Event(), 0
        if self._from_context and num_rounds not in (None, self.num_rounds):
            log.info("The plan decides the number of rounds: %d, not %d.", self.num_rounds, num_rounds)
            num_rounds = None
        transport = self._transport = StrategyTransport(
            grid, self, train_config or {}, names=[str(name) for name in self.plan.problem.fleet.names],
            run=_run_key(self.folder), patience_s=_PATIENCE_S, ask_registered=not (self.folder / FILE).exists(),
        )  # fmt: skip
        if not (self.folder / FILE).exists():
            _greet(transport, self.plan.problem.fleet.names, is_new=True, folder=self.folder)
            if evaluate_fn is not None and (first := evaluate_fn(0, initial_arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = first

        def judge(arrays: Arrays) -> Mapping[str, float]:
            number = self._model.round if self._model is not None else 0
            if evaluate_fn is None or number in result.evaluate_metrics_serverapp:
                return {}
            found = evaluate_fn(number, to_arrays(arrays))
            if found is None:
                return {}
            result.evaluate_metrics_serverapp[number] = found
            return numbers_in(found)

        def after(done: RoundRecord, arrays: Arrays) -> Mapping[str, float]:
            nonlocal held
            held += 1
            if num_rounds is not None and held >= num_rounds < self.num_rounds:
                stop.set()
            record, number, numbers = to_arrays(arrays), done.number + 1, dict[str, float]()
            result.arrays = record
            if self._model is not None and self._model.record is not None:
                result.train_metrics_clientapp[number] = self._model.record
            if self._evaluates():
                found = transport.evaluate(done.participants, done.number, done.slot, record, evaluate_config or {})
                if found is not None:
                    result.evaluate_metrics_clientapp[number] = found
                    numbers |= {f"clients/{name}": value for name, value in numbers_in(found).items()}
            if on_round is not None:
                numbers |= dict(on_round(done, record) or {})
            return numbers

        self.summary()
        try:
            self.live_result = carry_out(
                self.folder, transport, as_arrays(initial_arrays), evaluate=judge, stop=stop, on_round=after,
                make_model=self._make_model,
            )  # fmt: skip
        except RunStopped as error:
            if num_rounds is None or held < num_rounds:
                raise
            log.warning("%s", error)
        finally:
            self._model = self._transport = None
        if self.live_result is not None:
            result.arrays = to_arrays(self.live_result.arrays)
        return result

    # -- one round: called by the runner, or by Flower's own loop if another strategy wraps this one

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to the clients that are due: the strategy's, or the model and the config for all of them."""
        if not isinstance(grid, DueGrid):  # Flower's own loop: wait for the next slot with participants
            return self._bridged(arrays, grid).next_slot(arrays, config)
        if self.strategy is not None:
            return self.strategy.configure_train(server_round, arrays, config, grid)
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, grid.get_node_ids(), MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the usable replies: by the strategy, or by Slackwater's aggregator."""
        if self._bridge is not None:
            return self._bridge.replied(list(replies))
        return self.combine(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages for evaluation on the clients that have just trained."""
        if not isinstance(grid, DueGrid):
            return self._bridge.evaluation(arrays, config) if self._bridge is not None else []
        if self.strategy is not None:
            return self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Combine the metrics of an evaluation on the clients."""
        combine = super().aggregate_evaluate if self.strategy is None else self.strategy.aggregate_evaluate
        found = combine(server_round, replies)
        if self._bridge is not None and server_round >= self.num_rounds:
            self._bridge.finish()
            self.live_result = self._bridge.result
        return found

    def summary(self) -> None:
        """Log the plan, and the strategy's own summary."""
        log.info(
            "Plan in %s: %d rounds, budget %.4g kg CO2e.", self.folder, self.num_rounds, self.plan.problem.budget_kg
        )
        if self.strategy is not None:
            self.strategy.summary()

    def close(self) -> None:
        """Let the runner end, or stop it if rounds are left; it can be resumed."""
        if self._bridge is not None:
            self._bridge.close()
            self.live_result = self._bridge.result
            self._bridge = None

    def combine(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine replies with the wrapped strategy or our aggregator; the runner calls it through `aggregate_train`."""
        if self.strategy is not None:
            return self.strategy.aggregate_train(server_round, replies)
        if self._model is None:
            raise SlackwaterError(
                "Slackwater aggregates only inside a round of its plan. Start with CarbonAware.start."
            )
        came = [message for message in replies if not message.has_error()]
        arrays = self._model.own_step(came)
        return arrays, self._own_metrics([message.content for message in came])

    def _own_metrics(self, contents: list[RecordDict]) -> MetricRecord:
        """Return the aggregated metrics of a round; only their number if clients report different ones."""
        whole = [len(one.metric_records) == 1 for one in contents]
        keys = {tuple(sorted(next(iter(one.metric_records.values())))) for one in contents if one.metric_records}
        found = MetricRecord({})
        if all(whole) and len(keys) == 1 and self.weighted_by_key in next(iter(keys)):
            found = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return MetricRecord({**dict(found), "clients": len(contents)})

    def _evaluates(self) -> bool:
        """Return whether clients evaluate: only if the plan counts its energy."""
        asked = bool(getattr(list(layers(self))[-1], "fraction_evaluate", 1.0))
        if asked and not self.plan.problem.evaluation_share and not self._warned:
            self._warned = True
            log.warning(
                "Clients do not evaluate, since the plan does not count its energy. Plan with evaluation_share, such as "
                "0.1 of training, or evaluate on the server with evaluate_fn."
            )
        return asked and bool(self.plan.problem.evaluation_share)

    def _make_model(self, initial: Arrays, clients: int, settings: LiveSettings) -> StrategyModel:
        own = LiveModel(initial, clients, settings) if self.strategy is None else None
        strategy = self if self._bridge is None else self._bridge.strategy
        self._model = StrategyModel(strategy, self._state, initial, clients, settings, own)
        return self._model

    def _read_plan(self, plan: str | Path | Plan | None) -> Plan:
        """Return the plan; raise if the folder holds a run of another one."""
        given = plan if isinstance(plan, Plan) or plan is None else Plan.load(plan)
        if given is None:
            if not (self.folder / PLAN).is_file():
                raise ScenarioError(
                    f"{self.folder} has no {PLAN}. Give plan=.., or create it with: slackwater plan scenario.toml --out "
                    f"{self.folder}"
                )
            return Plan.load(self.folder / PLAN)
        if is_live(self.folder) and not _same_plan(given, Plan.load(self.folder / PLAN)):
            raise ScenarioError(
                f"{self.folder} holds a run of another plan. Resume it with its own plan ({self.folder / PLAN}), or name "
                "another ledger."
            )
        return given

    def _bridged(self, arrays: ArrayRecord, grid: Grid) -> _Bridge:
        """Return the bridge to Flower's own loop; the first call starts the runner."""
        if self._bridge is None:
            outer = _wrapper_of(self)
            if outer is not None and hasattr(outer, "noise_multiplier"):
                raise ScenarioError(
                    f"{type(outer).__name__} around CarbonAware has the noise of a plain average, which Slackwater's weights "
                    f"exceed. Wrap the other way round: CarbonAware({type(outer).__name__}(FedAvg(..), ..), plan=.., "
                    "ledger=..)."
                )
            self._bridge = _Bridge(self, grid, from_arrays(arrays))
        return self._bridge


def _check_chosen(strategy: Strategy | None, aggregator: str | None, fedavg: Mapping[str, Any]) -> None:
    """Raise for settings that would have no effect, because the plan or the strategy decides."""
    if strategy is not None and (aggregator is not None or fedavg):
        odd = next(iter(fedavg), "aggregator")
        raise ScenarioError(
            f"{odd} has no effect with a strategy: {type(strategy).__name__} decides it. Give it to {type(strategy).__name__}."
        )
    for name in ("min_train_nodes", "min_available_nodes", "min_evaluate_nodes"):
        if name in fedavg:
            raise ScenarioError(f"{name} has no effect: the plan chooses the clients of every slot. Remove it.")
    for layer in layers(strategy) if strategy is not None else ():
        _check_fraction(getattr(layer, "fraction_train", 1.0))
    _check_fraction(fedavg.get("fraction_train", 1.0))


def _check_fraction(fraction: float) -> None:
    if fraction != 1.0:
        raise ScenarioError(
            f"fraction_train is {fraction:g}, but the plan chooses the clients of every slot. Leave it at 1.0; a smaller "
            "budget_kg or max_slots trains less."
        )


def _same_plan(one: Plan, other: Plan) -> bool:
    """Return whether two plans ask the same clients in the same slots, under the same budget."""
    first, second = one.problem, other.problem
    return (
        list(first.fleet.names) == list(second.fleet.names)
        and (first.slot_start(0), first.slot_hours, first.budget_kg)
        == (second.slot_start(0), second.slot_hours, second.budget_kg)
        and np.array_equal(one.matrix, other.matrix)
    )


def _run_folder(context: Context | None, ledger: str | Path | None) -> Path:
    if context is not None:
        if ledger is not None:
            raise ScenarioError("Give CarbonAware context= or ledger=, not both.")
        return _folder(context)
    if ledger is None:
        raise ScenarioError(
            "CarbonAware needs the run folder: give ledger=.., or context=context under `slackwater run`."
        )
    folder = Path(ledger).expanduser()
    if not folder.is_absolute() and Path(sys.argv[0]).name.startswith(_FLOWERS):
        raise ScenarioError(
            f"ledger is {str(ledger)!r}; give the absolute path, since Flower runs apps in a folder of its own."
        )
    return folder.absolute()


def _run_key(folder: Path) -> str:
    """Return the id under which clients keep their state of this run."""
    named = load_settings(folder).engine.get(RUN_KEY) if is_live(folder) else None
    return str(named or hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32])


def _wrapper_of(strategy: Strategy) -> Strategy | None:
    """Return the strategy that calls this one from Flower's loop; None if the loop itself does."""
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Strategy) and found is not strategy:
            return found
        if found is not None and not isinstance(found, Strategy):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


_News = Literal["work", "model", "result", "error"]  # from the runner: messages, a model, or its end


class _Bridge:
    """The runner in a thread of its own, beside Flower's loop in which another strategy wraps ours; they take turns."""

    def __init__(self, carbon: CarbonAware, grid: Grid, initial: Arrays) -> None:
        self._carbon = carbon
        self.strategy = _Wrapped(self, carbon)
        self._transport = _BridgeTransport(
            self, grid, self.strategy, names=[str(name) for name in carbon.plan.problem.fleet.names],
            run=_run_key(carbon.folder),
        )  # fmt: skip
        self._news: queue.Queue[tuple[_News, Any]] = queue.Queue()
        self._replies: queue.Queue[list[Message]] = queue.Queue()
        self._final: queue.Queue[ArrayRecord | None] = queue.Queue()
        self._turn, self._stop = threading.Event(), threading.Event()
        self._sent: dict[str, Message | None] = {}
        self._waits_for_final = self._in_round = self._over = False
        self._done: RoundRecord | None = None
        self.result: LiveResult | None = None  # once the runner has ended
        self._error: BaseException | None = None

        def note(done: RoundRecord, arrays: Arrays) -> None:
            self._done = done

        def go() -> None:
            try:
                ended = carry_out(
                    carbon.folder,
                    self._transport,
                    initial,
                    stop=self._stop,
                    make_model=carbon._make_model,
                    on_round=note,
                )
                self._news.put(("result", ended))
            except BaseException as error:  # Flower's loop raises it
                self._news.put(("error", error))

        carbon._bridge = self  # the runner makes its model through it
        self._thread = threading.Thread(target=go, name="slackwater-runner", daemon=True)
        self._thread.start()

    # Flower's side. It waits only while the runner lives.

    def next_slot(self, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Let the runner continue to its next round; return its messages, none at its end."""
        self._finalise(arrays)
        self._transport.train_config = dict(config)
        self._sent = {}
        self._turn.set()
        while not self._over:
            news, value = self._next_news()
            if news == "work":
                self._sent = value
                return [message for message in self._sent.values() if message is not None]
        if self._error is not None:
            raise self._error
        return []

    def replied(self, replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pass on the replies; return the new model, if the runner made one, and its metrics."""
        if not self._sent:
            return None, None
        self._replies.put(replies)
        while not self._over:
            news, value = self._next_news()
            if news == "model":
                self._waits_for_final = value is not None
                return value if value is not None else (None, None)
        if self._error is not None:
            raise self._error
        return None, None

    def evaluation(self, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Take over the model that the wrapper made of ours; return messages for evaluation on the clients, if planned."""
        self._done = None
        self._finalise(arrays)
        done = self._done
        if done is None or not self._carbon._evaluates():
            return []
        return self._transport.evaluation(done.participants, done.number, done.slot, arrays, dict(config))

    def finish(self) -> None:
        """Let the runner pass over the rest of the plan."""
        self._turn.set()
        while not self._over:
            news, _ = self._next_news()
            if news == "work":
                return self.close()
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """End the runner, at the latest after the current round."""
        self._stop.set()
        self._finalise(None)
        self._turn.set()
        self._replies.put([])
        self._thread.join(_END_S)
        while not self._news.empty():
            self._note(*self._news.get())
        if isinstance(self._error, RunStopped):
            log.warning("%s", self._error)

    def _finalise(self, arrays: ArrayRecord | None) -> None:
        """Give the runner the model of the round as the wrapper left it, and wait until the round is saved."""
        if not self._waits_for_final:
            return
        self._waits_for_final = False
        self._turn.clear()
        self._final.put(arrays)
        while self._thread.is_alive() and not self._transport.idle.wait(_POLL_S):
            pass

    def _next_news(self) -> tuple[_News, Any]:
        while True:
            try:
                news, value = self._news.get(timeout=_POLL_S)
            except queue.Empty:
                if not self._thread.is_alive() and self._news.empty():
                    self._note("error", SlackwaterError("The runner ended without a result. See the log."))
                    return "error", self._error
                continue
            self._note(news, value)
            return news, value

    def _note(self, news: _News, value: Any) -> None:
        if news == "result":
            self._over, self.result = True, value
        elif news == "error":
            self._over, self._error = True, value

    # The runner's side. It waits only until the bridge is closed.

    def wait_for_turn(self) -> None:
        """Wait until Flower's loop asks for the next round; tell it first if the last one made no model."""
        if self._in_round:
            self._in_round = False
            self._news.put(("model", None))
        self._transport.idle.set()
        while not self._turn.wait(_POLL_S):
            if self._stop.is_set():
                break
        self._transport.idle.clear()
        if self._stop.is_set():
            raise RunStopped("Flower's loop ended before the plan. Run the same script again to resume.")

    def exchange(self, messages: dict[str, Message | None]) -> list[Message]:
        """Let Flower's loop send the messages; return the replies that it got."""
        self._turn.clear()
        self._in_round = True
        self._news.put(("work", messages))
        return self._got(self._replies) or []

    def shown(self, arrays: ArrayRecord | None, metrics: MetricRecord | None) -> ArrayRecord | None:
        """Show a new model to Flower's loop; return it as the wrapper left it."""
        self._in_round = False
        self._news.put(("model", (arrays, metrics)))
        found: ArrayRecord | None = self._got(self._final)
        return arrays if found is None else found

    def _got(self, where: queue.Queue[Any]) -> Any:
        while True:
            try:
                return where.get(timeout=_POLL_S)
            except queue.Empty:
                if self._stop.is_set():
                    return None


class _BridgeTransport(StrategyTransport):
    """Hands the messages of a round to Flower's loop, which sends them."""

    def __init__(self, bridge: _Bridge, grid: Grid, strategy: Strategy, **options: Any) -> None:
        super().__init__(grid, strategy, {}, **options)
        self._bridge = bridge
        self.idle = threading.Event()

    def online(self, *, patiently: bool = False) -> Mapping[str, Site]:
        """Return the clients that are online, once Flower's loop is ready for the next round."""
        self._bridge.wait_for_turn()
        return super().online(patiently=patiently)

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Let Flower's loop send the messages, and yield one reply for every client."""
        asked = self.messages(work, until)
        by_message = {id(message): client for client, message in asked.items() if message is not None}
        came = self._bridge.exchange(asked)
        by_id = {
            message.metadata.message_id: by_message[id(message)] for message in asked.values() if message is not None
        }
        waiting = set(asked)
        for message in came:
            client = by_id.get(message.metadata.reply_to_message_id)
            if client in waiting:
                waiting.discard(client)
                yield self.read(str(client), message)
        for client in sorted(waiting):
            if asked[client] is None:
                yield Reply(client=client, outcome="lost", error=f"{client!r} is not online.")
            else:
                yield Reply(client=client, outcome="late", error=f"{client!r} did not reply in time.")


class _Wrapped(Strategy):
    """What the runner sees of a `CarbonAware` that another strategy wraps: the wrapper has the last word on the model."""

    def __init__(self, bridge: _Bridge, carbon: CarbonAware) -> None:
        self._bridge, self._carbon = bridge, carbon
        self.strategy = carbon.strategy  # so that its least numbers of nodes are fitted too

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._carbon.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self._carbon.combine(server_round, replies)
        return self._bridge.shown(arrays, metrics), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._carbon.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self._carbon.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self._carbon.summary()
