"""The workflow and its transport on a FLARE server that is played: who is asked, when, and what becomes of the replies."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flare_jobs import Direct, light_job, task_of
from plans import ZONES, final_model, small_plan
from recount import check

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")

from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from slackwater import time_source
from slackwater.engines.nvflare import workflow
from slackwater.errors import ScenarioError
from slackwater.ledger.run import Run
from slackwater.live.folder import LiveSettings, prepare
from slackwater.live.runner import carry_out
from slackwater.live.sites import Work
from slackwater.nvflare import CarbonAware, FlareTransport, measured

MODEL = {"w": np.arange(3, dtype=np.float32)}
Train = Callable[[FLModel, str], FLModel]


def plus_one(received: FLModel, site: str) -> FLModel:
    with measured(received, energy=False) as meter:
        meter.result({"w": received.params["w"] + 1}, num_examples=1, loss=0.5)
    return meter.reply()


class Server(CarbonAware):
    """The workflow on a server with sites that answer at once, each in its own thread, or never."""

    def __init__(self, sites: list[str], train: Train = plus_one, **options: Any) -> None:
        super().__init__(**options)
        self.engine = types.SimpleNamespace(
            get_clients=lambda: [types.SimpleNamespace(name=name) for name in sites], get_component=lambda name: None
        )
        self.fl_ctx, self.abort_signal = FLContext(), types.SimpleNamespace(triggered=False)
        self.sites, self.answer, self.silent = sites, train, set[str]()
        self.sent: list[tuple[str, Task]] = []
        self.cancelled: list[str] = []
        self.disconnected: set[str] = set()
        for name in sites:
            self.asks(name)

    def asks(self, name: str) -> None:
        """A site asks for work, as FLARE reports it."""
        context, peer = FLContext(), FLContext()
        peer.set_prop("__identity_name__", name, private=False, sticky=False)
        context.set_peer_context(peer)
        self.handle_event(EventType.BEFORE_PROCESS_TASK_REQUEST, context)

    def get_client_disconnect_time(self, client_name: str) -> float | None:
        return 1.0 if client_name in self.disconnected else None

    def send(self, task: Task, fl_ctx: FLContext, targets: list[str], **_: Any) -> None:  # type: ignore[override, unused-ignore]
        (name,) = targets
        self.sent.append((name, task))
        if name not in self.silent:
            threading.Thread(target=self._reply, args=(name, task)).start()

    def _reply(self, name: str, task: Task) -> None:
        model = FLModelUtils.from_shareable(task.data)
        result: Shareable = FLModelUtils.to_shareable(self.answer(model, name))
        client_task = types.SimpleNamespace(client=types.SimpleNamespace(name=name), result=result)
        task.result_received_cb(client_task, self.fl_ctx)
        self.asks(name)

    def cancel_task(self, task: Task, **_: Any) -> None:  # type: ignore[override, unused-ignore]
        self.cancelled.append(next(name for name, sent in self.sent if sent is task))


def work(seconds: float = 30.0, **config: Any) -> Work:
    ends_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return Work(slot=4, number=2, attempt=0, seed=7, ends_at=ends_at, arrays=MODEL, config=config)


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_each_client_gets_its_own_task_and_its_reply_is_read() -> None:
    server = Server(["lyon", "oslo"])
    replies = {one.client: one for one in FlareTransport(server).train({"oslo": work(), "lyon": work()}, soon(30))}
    assert [name for name, _ in server.sent] == ["lyon", "oslo"]
    assert {one.outcome for one in replies.values()} == {"done"}
    np.testing.assert_array_equal(replies["lyon"].arrays["w"], MODEL["w"] + 1)  # type: ignore[index]
    assert server.cancelled == []
    sent = FLModelUtils.from_shareable(server.sent[0][1].data)
    assert sent.current_round == 2
    assert (sent.meta["slackwater"]["slot"], sent.meta["slackwater"]["seed"]) == (4, 7)
    assert 0 < sent.meta["slackwater"]["seconds-left"] <= 30
    assert server.sent[0][1].timeout == 30


def test_the_users_settings_are_sent_unchanged_and_cannot_replace_the_slots() -> None:
    server = Server(["lyon"])
    list(FlareTransport(server).train({"lyon": work(lr=0.5, slot=99)}, soon(30)))
    sent = FLModelUtils.from_shareable(server.sent[0][1].data).meta["slackwater"]
    assert (sent["lr"], sent["slot"]) == (0.5, 4)


def test_who_does_not_reply_by_the_end_of_the_slot_is_late_and_its_task_is_cancelled() -> None:
    server = Server(["lyon", "oslo"])
    server.silent.add("oslo")
    replies = {
        one.client: one.outcome
        for one in FlareTransport(server).train({n: work() for n in ("lyon", "oslo")}, soon(0.4))
    }
    assert replies == {"lyon": "done", "oslo": "late"}
    assert server.cancelled == ["oslo"]


def test_an_aborted_job_loses_those_who_train() -> None:
    server = Server(["lyon"])
    server.silent.add("lyon")
    replies = FlareTransport(server).train({"lyon": work()}, soon(30))
    threading.Timer(0.1, lambda: setattr(server.abort_signal, "triggered", True)).start()
    assert [(one.client, one.outcome) for one in replies] == [("lyon", "lost")]
    assert server.cancelled == ["lyon"]


def test_online_is_who_asked_for_work_lately_and_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(["lyon", "oslo", "dublin"])
    server.disconnected.add("dublin")
    transport = FlareTransport(server)
    assert list(transport.online()) == ["lyon", "oslo"]
    later = time_source.monotonic() + workflow._ALIVE_S + 1
    monkeypatch.setattr(time_source, "monotonic", lambda: later)
    assert not transport.online()
    server.asks("oslo")
    assert list(transport.online()) == ["oslo"]


def test_the_first_slot_waits_for_the_sites_of_the_job_only() -> None:
    server = Server(["lyon", "oslo"])
    del server.asked_at["oslo"]
    threading.Timer(0.2, server.asks, ["oslo"]).start()
    assert set(FlareTransport(server).wait_for(["lyon", "oslo", "dublin"], 30.0)) == {"lyon", "oslo"}
    del server.asked_at["oslo"]
    assert set(FlareTransport(server).wait_for(["lyon", "oslo"], 0.0)) == {"lyon"}


def test_a_run_has_the_bits_of_the_same_run_without_an_engine(tmp_path: Path) -> None:
    task, plan = task_of(light_job(tmp_path / "job")), small_plan()

    def train(received: FLModel, site: str) -> FLModel:
        with measured(received, energy=False) as meter:
            model, loss = task.train(received.params, site, meter.seed, lambda: False)
            meter.result(model, num_examples=1, loss=loss)
        return meter.reply()

    prepare(tmp_path / "flare", plan, LiveSettings(slot_seconds=0.0))
    Server(list(ZONES), train, run=str(tmp_path / "flare"), initial="task:initial_model").run()
    prepare(tmp_path / "direct", plan, LiveSettings(slot_seconds=0.0))
    direct = Direct(list(ZONES), lambda arrays, site, meter: task.train(arrays, site, meter.seed, lambda: False))
    carry_out(tmp_path / "direct", direct, task.initial_model())
    check(tmp_path / "flare")
    assert final_model(tmp_path / "flare")["w"].tobytes() == final_model(tmp_path / "direct")["w"].tobytes()
    assert np.any(final_model(tmp_path / "flare")["w"])


def test_an_abort_saves_the_run_and_a_new_job_continues_it(tmp_path: Path) -> None:
    task, plan = task_of(light_job(tmp_path / "job")), small_plan(rounds=3, slack=0)
    prepare(tmp_path / "run", plan, LiveSettings(slot_seconds=0.0))
    options = {"run": str(tmp_path / "run"), "initial": "task:initial_model"}

    class Aborted(Server):
        """FLARE aborts the job while its second round trains, and no site replies any more."""

        def send(self, task: Task, fl_ctx: FLContext, targets: list[str], **_: Any) -> None:
            if FLModelUtils.from_shareable(task.data).current_round == 1:
                self.silent.update(targets)
                self.abort_signal.triggered = True
            super().send(task, fl_ctx, targets)

    server = Aborted(list(ZONES), **options)
    server.run()
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert run.status == "stopped"
        assert sum(1 for _ in run.rounds()) == 1
        assert {one.outcome for one in run.journal.attempts() if one.slot == 1} == {"lost"}
    Server(list(ZONES), **options).run()
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert run.status == "done"
    check(tmp_path / "run")
    assert len(final_model(tmp_path / "run")["w"]) == task.SIZE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "run is empty"),
        ({"run": "/nowhere"}, "on the machine of the FLARE server"),
        ({"run": "RUN"}, "no first model"),
        ({"run": "RUN", "initial": "nothing"}, 'write it as "module:function"'),
        ({"run": "RUN", "initial": "task:nothing"}, "no attribute 'nothing'"),
        ({"run": "RUN", "initial": "task:initial_model", "evaluate": "absent:f"}, "No module named 'absent'"),
    ],
)
def test_a_wrong_configuration_is_said(tmp_path: Path, options: dict[str, str], message: str) -> None:
    task_of(light_job(tmp_path / "job"))
    prepare(tmp_path / "run", small_plan(), LiveSettings(slot_seconds=0.0))
    named = {key: value.replace("RUN", str(tmp_path / "run")) for key, value in options.items()}
    with pytest.raises(ScenarioError, match=message) as raised:
        Server(list(ZONES), **named).run()
    if "RUN" in options.values():  # where `slackwater run` finds it
        assert str(raised.value) in (tmp_path / "run" / "nvflare.log").read_text()


def test_a_stop_file_ends_the_run_after_its_round(tmp_path: Path) -> None:
    task_of(light_job(tmp_path / "job"))
    folder = prepare(tmp_path / "run", small_plan(rounds=3, slack=0), LiveSettings(slot_seconds=0.0))

    def asked_to_stop(received: FLModel, site: str) -> FLModel:
        if received.current_round == 1:
            (folder / "nvflare.stop").touch()
            time.sleep(3 * workflow._LOOK_S)
        return plus_one(received, site)

    Server(list(ZONES), asked_to_stop, run=str(folder), initial="task:initial_model").run()
    with Run.open(folder, read_only=True) as run:
        assert run.status == "stopped"
        assert [one.slot for one in run.rounds()] == [0, 1]
        assert {one.outcome for one in run.journal.attempts()} == {"done"}
    check(folder)


def test_a_persistor_gives_the_first_model_and_gets_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    persistor = types.SimpleNamespace(
        load=lambda fl_ctx: make_model_learnable({"w": np.full(3, 5, dtype=np.float32)}, {}),
        save=lambda learnable, fl_ctx: kept.append(learnable["weights"]),
    )
    folder = prepare(tmp_path / "run", small_plan(rounds=2, slack=0), LiveSettings(slot_seconds=0.0))
    server = Server(list(ZONES), run=str(folder), persistor_id="persistor")
    monkeypatch.setattr(server, "event", lambda event_type: None)
    server.persistor = persistor
    server.run()
    np.testing.assert_array_equal(kept[-1]["w"], final_model(folder)["w"])
    assert np.all(kept[-1]["w"] > 5)
