"""The server of a FLARE job: the workflow that carries out a run, and its transport over FLARE's tasks."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController

from slackwater import time_source
from slackwater.engines.metering import numbers_in, reported_result, reported_times
from slackwater.engines.nvflare.client_api import FAILURE, METRICS, REPORT
from slackwater.engines.nvflare.job import LOG, STOP
from slackwater.errors import ScenarioError
from slackwater.live.folder import PLAN, RunStopped
from slackwater.live.runner import carry_out
from slackwater.live.sites import Arrays, Outcome, Reply, Site, Work
from slackwater.planning.plan import Plan
from slackwater.training.vectors import as_array

log = logging.getLogger(__name__)
_ALIVE_S = 10.0
"""A site asks for work every two seconds unless it trains; after this time without a question it is offline."""
_PATIENCE_S = 30.0  # how long the first slot waits for the sites of the job to ask for work
_LOOK_S = 0.5  # between two looks whether the job is aborted


class CarbonAware(ModelController):  # type: ignore[misc, unused-ignore]
    """FLARE's workflow for a plan: Slackwater decides which sites train when, charges them and combines the updates."""

    def __init__(
        self,
        run: str = "",
        initial: str = "",
        evaluate: str = "",
        train_task: str = "train",
        persistor_id: str = "",
    ) -> None:
        """Carry out the run in a folder of the server's machine.

        Args:
            run: The run folder; `slackwater run` sets it.
            initial: Function that returns the first model as a state dict, as "module:function" of the job's custom
                folder. Default: the model of the job's persistor.
            evaluate: Function that gets a model as arrays by name and returns numbers, such as accuracy and loss.
            train_task: Name of the task that the sites' executor trains for.
            persistor_id: Component that gives the first model and gets the last one, as in FLARE's own workflows.
        """
        super().__init__(persistor_id=persistor_id)
        self._run, self._initial, self._evaluate, self._task = run, initial, evaluate, train_task
        self.asked_at: dict[str, float] = {}
        """Site -> when it last asked for work, on the monotonic clock."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note which site asks for work."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and (peer := fl_ctx.get_peer_context()) is not None:
            self.asked_at[str(peer.get_identity_name())] = time_source.monotonic()

    def run(self) -> None:
        """Carry out the run; FLARE calls it. An abort of the job stops it after saving, so that it can be resumed."""
        folder = _folder(self._run)
        try:
            self._carry_out(folder)
        except Exception as error:  # FLARE logs it too, but only on the server
            with contextlib.suppress(OSError), (folder / LOG).open("a", encoding="utf-8") as output:
                output.write(f"{time_source.now():%Y-%m-%d %H:%M:%S} - ERROR - {error}\n")
            raise

    def _carry_out(self, folder: Path) -> None:
        evaluate = _function(self._evaluate, "evaluate") if self._evaluate else None
        initial = self._first_model()
        stop, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_S):
                if self.abort_signal.triggered or (folder / STOP).exists():
                    stop.set()

        threading.Thread(target=watch, name="slackwater-abort", daemon=True).start()
        names = [str(name) for name in Plan.load(folder / PLAN).problem.fleet.names]
        transport = FlareTransport(self, task=self._task)
        try:
            online = transport.wait_for(names, _PATIENCE_S)
            log.info("%d of %d clients are online.", len(online), len(names))
            result = carry_out(folder, transport, initial, evaluate=evaluate, stop=stop)
        except RunStopped as stopped:
            self.warning(str(stopped))
            return
        finally:
            over.set()
        if self.persistor is not None:
            self.save_model(FLModel(params=dict(result.arrays)))

    def _first_model(self) -> Arrays:
        if self._initial:
            return to_arrays(_function(self._initial, "initial")())
        model = self.load_model() if self.persistor is not None else None
        if model is None or not model.params:
            raise ScenarioError(
                'The job has no first model. Give the workflow "initial": "task:initial_model", or the id of a persistor.'
            )
        return to_arrays(model.params)


class FlareTransport:
    """Sends work to the sites of a FLARE job by their names, one task each, and yields each reply as it arrives."""

    def __init__(
        self, controller: CarbonAware, *, task: str = "train", now: Callable[[], datetime] = time_source.now
    ) -> None:
        """Reach the sites of a job through its workflow; an abort of the job ends a wait for replies."""
        self._controller, self._task, self._now = controller, task, now

    def online(self) -> Mapping[str, Site]:
        """Return the sites that ask for work, by name; FLARE has checked their certificates, except in its simulator.

        Raises:
            RunStopped: The job was aborted, so that no further slot is charged.
        """
        if self._aborted:
            raise RunStopped("The FLARE job was aborted. Everything is saved. Resume with: slackwater resume")
        controller, since = self._controller, time_source.monotonic() - _ALIVE_S
        verified = bool(controller.fl_ctx.get_prop(FLContextKey.SECURE_MODE, False))
        return {
            name: Site(name=name, verified=verified)
            for name, asked_at in sorted(controller.asked_at.items())
            if asked_at >= since and controller.get_client_disconnect_time(name) is None
        }

    def wait_for(self, names: Sequence[str], patience_s: float) -> Mapping[str, Site]:
        """Wait until all these sites that are part of the job have asked for work; return those that are online."""
        until = time_source.monotonic() + patience_s
        while True:
            expected = {str(client.name) for client in self._controller.engine.get_clients()} & set(names)
            if expected <= set(online := self.online()) or time_source.monotonic() >= until:
                return online
            time_source.sleep(_LOOK_S)

    @property
    def _aborted(self) -> bool:
        return bool(self._controller.abort_signal.triggered)

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        """Send each client its work and yield each reply as it arrives; a client without a reply by `until` is late."""
        # From here on the monotonic clock: setting the wall clock must not change the deadline.
        deadline = time_source.monotonic() + (until - self._now()).total_seconds()
        came: queue.SimpleQueue[tuple[str, Shareable]] = queue.SimpleQueue()

        def receive(client_task: ClientTask, fl_ctx: FLContext) -> None:
            came.put((str(client_task.client.name), client_task.result))
            client_task.result = None

        waiting: dict[str, Task] = {}
        for client in sorted(work):
            task = self._made(work[client], until, receive)
            self._controller.send(task, fl_ctx=self._controller.fl_ctx, targets=[client])
            waiting[client] = task
        try:
            while waiting and (left_s := deadline - time_source.monotonic()) > 0 and not self._aborted:
                try:
                    client, result = came.get(timeout=min(left_s, _LOOK_S))
                except queue.Empty:
                    continue
                if waiting.pop(client, None) is not None:
                    yield to_reply(client, result, work[client].arrays)
            for client in sorted(waiting):
                if self._aborted:
                    yield Reply(client=client, outcome="lost", error=f"The job was aborted while {client!r} trained.")
                else:
                    yield Reply(
                        client=client, outcome="late", error=f"{client!r} did not reply by the end of its slot."
                    )
        finally:
            for task in waiting.values():
                self._controller.cancel_task(task)

    def _made(self, work: Work, until: datetime, receive: Callable[..., None]) -> Task:
        stops_in_s = min((work.ends_at - self._now()).total_seconds(), (until - self._now()).total_seconds())
        config = {
            **work.config, "slot": work.slot, "number": work.number, "attempt": work.attempt, "seed": work.seed,
            "ends-at": work.ends_at.timestamp(), "seconds-left": stops_in_s,
        }  # fmt: skip
        # FLARE's own conversion, so that its filters (privacy, encryption, quantisation) work on the model.
        model = FLModel(params=dict(work.arrays), current_round=work.number, meta={REPORT: config})
        timeout = max(1, math.ceil((until - self._now()).total_seconds()))
        return Task(self._task, FLModelUtils.to_shareable(model), timeout=timeout, result_received_cb=receive)


def to_arrays(model: Mapping[str, Any]) -> Arrays:
    """Return a state dict of tensors or arrays as arrays by name."""
    return {name: as_array(value) for name, value in model.items()}


def to_reply(client: str, result: Shareable, sent: Arrays) -> Reply:
    """Return the reply in a task's result; an unreadable one is a failure, with the reason.

    Args:
        client: The client's name.
        result: What FLARE received.
        sent: The model that was sent, to which a client may return the difference.
    """
    code = result.get_return_code()
    if code != ReturnCode.OK:
        outcome: Outcome = "lost" if code == ReturnCode.TASK_ABORTED else "failed"
        return Reply(client=client, outcome=outcome, error=f"FLARE reports {code} from {client!r}; see its log.")
    try:
        model = FLModelUtils.from_shareable(result)
    except Exception as error:
        return Reply(client=client, outcome="failed", error=f"The reply of {client!r} cannot be read: {error}")
    report = _mapping((model.meta or {}).get(REPORT))
    metrics = {**_mapping(report.get(METRICS)), **_mapping(model.metrics)}
    told = {**report, **metrics}
    times = reported_times(told)
    if not model.params:
        outcome = "late" if told.get("out-of-time") is True else "failed"
        reason = str(told.get(FAILURE) or f"{client!r} replied without a model.")
        return Reply(client=client, outcome=outcome, error=reason, **times)
    try:
        arrays = to_arrays(model.params)
        if model.params_type == ParamsType.DIFF:
            arrays = {name: sent[name] + value if name in sent else value for name, value in arrays.items()}
    except (TypeError, ValueError) as error:
        unreadable = f"The model of {client!r} cannot be read: {error}"
        return Reply(client=client, outcome="failed", error=unreadable, **times)
    return Reply(
        client=client, outcome="done", arrays=arrays, metrics=numbers_in(metrics), **reported_result(told), **times
    )


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _folder(named: str) -> Path:
    if not named:
        raise ScenarioError(
            "The workflow's run is empty. Start the job with: slackwater run scenario.toml --app DIR, which sets it."
        )
    folder = Path(named)
    if not (folder / PLAN).is_file():
        raise ScenarioError(f"{folder} has no {PLAN}. The run folder must be on the machine of the FLARE server.")
    return folder


def _function(reference: str, key: str) -> Callable[..., Any]:
    """Return a function of the job's custom folder."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ScenarioError(f'{key} is {reference!r}; write it as "module:function", like "task:{key}".')
    try:
        found = getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ScenarioError(f"The job names {reference!r} for {key}, but: {error}.") from None
    return found  # type: ignore[no-any-return]
