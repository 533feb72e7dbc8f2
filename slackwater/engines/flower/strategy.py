"""The server: `run`, the complete main function of a ServerApp, and a strategy for Flower's own loop."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from slackwater.engines.flower.grid import GridTransport
from slackwater.engines.flower.records import CONFIG, as_arrays, from_arrays, to_arrays
from slackwater.errors import ScenarioError
from slackwater.ledger.run import FILE
from slackwater.live.folder import PLAN, LiveResult, LiveSettings, RunStopped, is_live, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Arrays, Reply, Site, Work
from slackwater.planning.plan import Plan

log = logging.getLogger(__name__)
RUN, SLOT_SECONDS = "slackwater-run", "slackwater-slot-seconds"
"""Keys of an app's run config: the run folder and, if it holds only a plan, the wall time of a slot."""

_PATIENCE_S = 60.0  # time limit for new nodes to report their identity

Evaluate = Callable[[ArrayRecord], Mapping[str, float]]
"""Evaluates a model on the server; returns for example {"accuracy": 0.9, "loss": 0.3}."""


def run(
    grid: Grid,
    context: Context,
    initial: Mapping[str, Any] | ArrayRecord,
    evaluate: Evaluate | None = None,
    *,
    settings: LiveSettings | None = None,
) -> LiveResult:
    """Start or resume the run whose folder the run config names under "slackwater-run".

    `initial` is the model to start with, as a state dict. `slackwater run` prepares the folder. Or the folder holds only
    a plan (`slackwater plan scenario.toml --out DIR`), which runs with `settings`. Default: without waiting, or with
    slots of "slackwater-slot-seconds".
    """
    folder = _folder(context)
    plan = Plan.load(folder / PLAN)
    if not is_live(folder):
        prepare(folder, plan, settings or LiveSettings(slot_seconds=_slot_seconds(context)))
    names, is_new = [str(name) for name in plan.problem.fleet.names], not (folder / FILE).exists()
    # Ask nodes before the first slot, since that takes as long as a small round. A resumed run does not wait:
    # registered names are enough.
    transport = GridTransport(grid, names=names, ask_registered=is_new, patience_s=_PATIENCE_S)
    known = transport.online(patiently=is_new)
    log.info("%d of %d clients are online.", len(known), len(names))
    judge: Callable[[Arrays], Mapping[str, float]] | None = None
    if evaluate is not None:
        judge = lambda arrays: evaluate(to_arrays(arrays))  # noqa: E731
        judge.metric = getattr(evaluate, "metric", None)  # type: ignore[attr-defined]  # its direction and unit
    return carry_out(folder, transport, as_arrays(initial), evaluate=judge)


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


_News = Literal["work", "model", "result", "error"]  # from the runner: messages, arrays, or its end
_MODEL_S = 60.0  # time limit from the last reply to the new model
_END_S = 600.0  # time limit for the runner to end after the last round


class CarbonAware(FedAvg):
    """Flower's FedAvg with a plan: Slackwater decides which clients train when, charges them and combines the updates.

    Evaluation on the clients is as in FedAvg, and off by default. Its energy is charged only as the scenario's
    `evaluation_share` of training; without one, evaluate on the server with `evaluate_fn`.
    """

    def __init__(
        self,
        plan: str | Path | Plan,
        ledger: str | Path,
        *,
        aggregator: str | None = None,
        wait: bool = True,
        settings: LiveSettings | None = None,
        fraction_evaluate: float = 0.0,
        **fedavg: Any,
    ) -> None:
        """Follow a plan; `ledger` is the run folder, new or to resume. The default aggregator is the plan's.

        `wait=False` is for simulation: slots follow each other without waiting. `settings` replaces both `aggregator` and
        `wait`; other keywords are FedAvg's, for evaluation.
        """
        super().__init__(fraction_evaluate=fraction_evaluate, **fedavg)
        self.plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self.folder = Path(ledger)
        if not is_live(self.folder):
            usual = LiveSettings(aggregator=aggregator or self.plan.aggregator, slot_seconds=None if wait else 0.0)
            prepare(self.folder, self.plan, replace(settings or usual, eval_every=1))  # so that Flower sees every model
        if fraction_evaluate and not self.plan.problem.evaluation_share:
            log.warning(
                "Evaluation on the clients uses energy that is neither planned nor charged. Plan with evaluation_share."
            )
        self._bridge: _Bridge | None = None
        self.live_result: LiveResult | None = None  # set after the last slot

    @property
    def num_rounds(self) -> int:
        """Return the number of planned slots with participants, which is the number of rounds of Flower's loop."""
        return int(np.count_nonzero(self.plan.matrix.any(axis=0)))

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int | None = None, timeout: float | None = None,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Start as in Flower, by default for all rounds of the plan. Messages end with their slot, whatever the timeout."""
        slot_s = self.plan.problem.slot_hours * 3600
        try:
            result = super().start(
                grid=grid, initial_arrays=initial_arrays,
                num_rounds=self.num_rounds if num_rounds is None else num_rounds,
                timeout=slot_s if timeout is None else timeout, train_config=train_config,
                evaluate_config=evaluate_config, evaluate_fn=evaluate_fn,
            )  # fmt: skip
        finally:
            self.close()
        if self.live_result is not None:
            result.arrays = to_arrays(self.live_result.arrays)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for the next slot with participants; return messages to planned clients that are online, none at the end."""
        if self._bridge is None:
            self._bridge = _Bridge(self.folder, self.plan, grid, from_arrays(arrays))
        messages = self._bridge.next_slot()
        self.live_result = self._bridge.result
        for message in messages:
            ours = message.content.config_records[CONFIG]
            for key, value in config.items():
                ours.setdefault(key, value)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the replies to the runner, which charges, checks and aggregates them; return the new model, if there is one."""
        if self._bridge is None:
            return None, None
        arrays, losses = self._bridge.replied(list(replies))
        metrics = MetricRecord({"train-loss": sum(losses) / len(losses), "clients": len(losses)}) if losses else None
        return None if arrays is None else to_arrays(arrays), metrics

    def summary(self) -> None:
        """Log the plan."""
        log.info(
            "Plan in %s: %d rounds, budget %.4g kg CO2e.", self.folder, self.num_rounds, self.plan.problem.budget_kg
        )

    def close(self) -> None:
        """Let the runner end, or stop it if rounds are left; it can be resumed."""
        if self._bridge is not None:
            self._bridge.close()
            self.live_result = self._bridge.result
            self._bridge = None


class _Bridge:
    """The runner in its thread, and its transport; the runner and Flower's loop take turns."""

    def __init__(self, folder: Path, plan: Plan, grid: Grid, initial: Arrays) -> None:
        self._transport = GridTransport(grid, names=[str(name) for name in plan.problem.fleet.names])
        self._from_runner: queue.Queue[tuple[_News, Any]] = queue.Queue()
        self._replies: queue.Queue[list[Message]] = queue.Queue()
        self._turn, self._stop = threading.Event(), threading.Event()
        self._sent: dict[str, Message | None] = {}
        self._over = False
        self.result: LiveResult | None = None  # once the runner has ended
        self._error: BaseException | None = None

        def show(arrays: Arrays) -> Mapping[str, float]:
            self._from_runner.put(("model", arrays))
            return {}

        def go() -> None:
            try:
                self._from_runner.put(("result", carry_out(folder, self, initial, evaluate=show, stop=self._stop)))
            except BaseException as error:  # Flower's loop raises it
                self._from_runner.put(("error", error))

        self._thread = threading.Thread(target=go, name="slackwater-runner", daemon=True)
        self._thread.start()

    # Flower's side.

    def next_slot(self) -> list[Message]:
        """Let the runner continue to its next round; return its messages, none at its end."""
        self._sent = {}
        self._turn.set()
        while not self._over:
            news, value = self._from_runner.get()
            if news == "work":
                self._sent = value
                return [message for message in self._sent.values() if message is not None]
            self._note(news, value)
        if self._error is not None:
            raise self._error
        return []

    def replied(self, replies: list[Message]) -> tuple[Arrays | None, list[float]]:
        """Pass on the replies; return the new model, if the runner made one, and the clients' losses."""
        if not self._sent:
            return None, []
        read = list(self._read(replies))
        self._replies.put(replies)
        losses = [reply.loss for reply in read if reply.outcome == "done" and reply.loss is not None]
        if not any(reply.outcome == "done" for reply in read):
            return None, []
        try:
            news, value = self._from_runner.get(timeout=_MODEL_S)
        except queue.Empty:  # no usable update
            return None, losses
        self._note(news, value)
        if news == "model":
            return value, losses
        return (None if self.result is None else self.result.arrays), losses

    def close(self) -> None:
        """End the runner, at the latest after the current round."""
        if not self._over:
            self._thread.join(1.0)  # the runner ends by itself after the last slot
            if self._thread.is_alive():
                self._stop.set()
        self._turn.set()
        if self._sent:
            self._replies.put([])
        self._thread.join(_END_S)
        while not self._from_runner.empty():
            self._note(*self._from_runner.get())
        if isinstance(self._error, RunStopped):
            log.warning("%s", self._error)

    def _note(self, news: _News, value: Any) -> None:
        if news == "result":
            self._over, self.result = True, value
        elif news == "error":
            self._over, self._error = True, value

    # The runner's side: its transport, and its evaluation, which shows every new model.

    def online(self) -> Mapping[str, Site]:
        """Return the clients that are online, once Flower's loop is ready for the next round."""
        self._turn.wait()
        if self._stop.is_set():
            raise RunStopped("Flower's loop ended before the plan. Run the same script again to resume.")
        return self._transport.online()

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Let Flower's loop send the messages, and yield the replies that it got."""
        self._turn.wait()
        self._turn.clear()
        messages = self._transport.messages(work, until)
        self._from_runner.put(("work", messages))
        yield from self._read(self._replies.get(), messages)

    def _read(self, replies: list[Message], sent: dict[str, Message | None] | None = None) -> Iterator[Reply]:
        """Yield one reply for every client, also for those that did not answer."""
        asked = self._sent if sent is None else sent
        by_message = {message.metadata.message_id: client for client, message in asked.items() if message is not None}
        waiting = set(asked)
        for message in replies:
            client = by_message.get(message.metadata.reply_to_message_id)
            if client in waiting:
                waiting.discard(client)
                yield self._transport.read(str(client), message)
        for client in sorted(waiting):
            if asked[client] is None:
                yield Reply(client=client, outcome="lost", error=f"{client!r} is not online.")
            else:
                yield Reply(client=client, outcome="late", error=f"{client!r} did not reply in time.")
