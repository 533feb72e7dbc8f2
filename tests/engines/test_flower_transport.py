"""Work out and replies back: by name, once, by the end of the slot, whatever goes wrong."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from small_apps import MODEL, SITES, TroubledGrid, adding_app, work

from slackwater.engines.flower.grid import GridTransport
from slackwater.engines.flower.records import to_reply
from slackwater.live.sites import Reply, Work


def sent(grid: Grid, tasks: dict[str, Work], seconds: float = 30.0) -> dict[str, Reply]:
    transport = GridTransport(grid, patience_s=seconds)
    transport.online()
    replies = list(transport.train(tasks, datetime.now(UTC) + timedelta(seconds=seconds)))
    assert sorted(reply.client for reply in replies) == sorted(tasks)  # everyone exactly once
    return {reply.client: reply for reply in replies}


def test_everyone_replies() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    replies = sent(grid, {name: work(3) for name in SITES})
    for number, name in enumerate(SITES):
        reply = replies[name]
        assert reply.outcome == "done"
        assert reply.arrays is not None
        np.testing.assert_array_equal(reply.arrays["w"], MODEL["w"] + 1 + number)
        assert reply.arrays["count"].shape == ()
        assert list(reply.arrays) == list(MODEL)
        assert reply.loss == 0.5
        assert reply.samples == 10 + number
        assert reply.energy_kwh is None
        assert reply.started_at is not None
        assert reply.ended_at is not None
        assert reply.started_at <= reply.ended_at


def test_what_a_client_is_told() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    task = work(3, config={"lr": 0.1, "slot": 99})
    sent(grid, {"lyon": task})
    message = grid.pushed[-1]
    config = message.content["config"]
    assert {key: config[key] for key in ("slot", "number", "attempt", "seed", "lr", "server-round")} == {
        "slot": 3, "number": 3, "attempt": 0, "seed": 7, "lr": 0.1, "server-round": 4,
    }  # fmt: skip
    assert config["ends-at"] == task.ends_at.timestamp()
    assert 0 < message.metadata.ttl <= 30
    assert message.metadata.dst_node_id == grid.ids["lyon"]


def test_each_is_sent_its_work_once_and_the_model_once() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    sent(grid, {name: work() for name in SITES})
    trained = [message for message in grid.pushed if message.metadata.message_type == "train"]
    assert len(trained) == len(SITES)


def test_a_failure_is_told_with_its_reason_and_time() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    reply = sent(grid, {"lyon": work(config={"fail": "lyon"})})["lyon"]
    assert reply.outcome == "failed"
    assert reply.error == "ZeroDivisionError: the data is gone"
    assert reply.ended_at is not None


@pytest.mark.parametrize(
    "told",
    ["[1]", "{" * 3, '{"ended-at":' * 5000 + "1" + "}" * 5000, '{"energy-kwh": 1' + "0" * 400 + "}", "9" * 5000, '{"ended-at": []}'],
)  # fmt: skip
def test_a_failure_that_says_nonsense_is_a_failure(told: str) -> None:
    """What a client sends does not end the run of all."""
    message = SimpleNamespace(
        has_error=lambda: True, error=SimpleNamespace(code=0, reason=f"It broke. [slackwater {told}]")
    )
    reply = to_reply("lyon", message, verified=True)  # type: ignore[arg-type]
    assert reply.outcome == "failed"
    assert (reply.energy_kwh, reply.ended_at) == (None, None)


def test_a_node_that_is_gone_is_lost_though_the_reply_hides_it() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.unavailable = {grid.ids["dublin"]}
    transport = GridTransport(grid, patience_s=0.2)
    grid.unavailable, unavailable = set(), grid.unavailable
    transport.online()
    grid.unavailable = unavailable
    until = datetime.now(UTC) + timedelta(seconds=30)
    replies = {reply.client: reply for reply in transport.train({name: work() for name in SITES}, until)}
    assert {name: reply.outcome for name, reply in replies.items()} == {
        "lyon": "done", "dublin": "lost", "helsinki": "done",
    }  # fmt: skip
    assert "'dublin' is gone" in replies["dublin"].error


def test_who_does_not_answer_is_late() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    transport = GridTransport(grid, patience_s=0.2)
    transport.online()
    grid.silent = {grid.ids["helsinki"]}
    began = time.monotonic()
    until = datetime.now(UTC) + timedelta(seconds=0.6)
    replies = {reply.client: reply for reply in transport.train({name: work() for name in SITES}, until)}
    assert replies["helsinki"].outcome == "late"
    assert replies["lyon"].outcome == "done"
    assert 0.5 < time.monotonic() - began < 3


def test_a_client_that_is_not_online_is_lost_at_once() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.gone = {grid.ids["lyon"]}
    replies = sent(grid, {"lyon": work(), "dublin": work()})
    assert replies["lyon"].outcome == "lost"
    assert "not online" in replies["lyon"].error
    assert replies["dublin"].outcome == "done"


def test_a_step_of_the_clock_changes_nothing() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    step = timedelta(0)
    transport = GridTransport(grid, patience_s=0.2, now=lambda: datetime.now(UTC) + step)
    transport.online()
    grid.silent = {grid.ids["lyon"]}
    replies = transport.train({name: work() for name in SITES}, datetime.now(UTC) + timedelta(seconds=1))
    first = next(replies)
    step = timedelta(hours=1)
    assert first.outcome == "done"
    assert [reply.outcome for reply in replies] == ["done", "late"]


def test_a_reply_from_another_node_is_not_used() -> None:
    class Forged(TroubledGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                reply.metadata.__dict__["_src_node_id"] = self.ids["dublin"]
            return reply

    reply = sent(Forged(adding_app(), SITES), {"lyon": work()})["lyon"]
    assert reply.outcome == "failed"
    assert "another node" in reply.error


def test_a_registered_client_that_says_it_is_another_is_not_used() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.registered = {grid.ids["lyon"]: "paris"}
    grid.silent = {grid.ids["lyon"]}  # so that its claim is not heard before
    transport = GridTransport(grid, patience_s=0.05)
    assert transport.online()["paris"].verified
    grid.silent = set()
    until = datetime.now(UTC) + timedelta(seconds=30)
    (reply,) = transport.train({"paris": work()}, until)
    assert reply.outcome == "failed"
    assert "reports the name 'lyon'" in reply.error


def test_a_superlink_that_stumbles_is_asked_again() -> None:
    class Stumbling(TroubledGrid):
        stumbles = 3

        def pull_messages(self, message_ids: object) -> list[Message]:
            if self.pushed and self.pushed[-1].metadata.message_type == "train" and self.stumbles:
                self.stumbles -= 1
                raise httpx.ReadError("reset")
            return super().pull_messages(message_ids)  # type: ignore[arg-type]

    assert sent(Stumbling(adding_app(), SITES), {"lyon": work()})["lyon"].outcome == "done"


def test_a_message_that_the_superlink_does_not_take_is_lost_and_not_sent_again() -> None:
    class Refusing(TroubledGrid):
        def push_messages(self, messages: object) -> list[str]:
            ids = super().push_messages(messages)  # type: ignore[arg-type]
            if self.pushed[-1].metadata.message_type == "train" and len(self.pushed) == len(SITES) + 1:
                raise httpx.HTTPStatusError("busy", request=httpx.Request("POST", "x:"), response=httpx.Response(500))
            return ids

    grid = Refusing(adding_app(), SITES)
    replies = sent(grid, {name: work() for name in SITES})
    assert sorted(reply.outcome for reply in replies.values()) == ["done", "done", "lost"]
    assert len(grid.pushed) == 2 * len(SITES)


class Remote(TroubledGrid):
    """As behind a SuperLink: work is done elsewhere, and a pull may hang in a reply whose upload does not end."""

    works_when_pulled = False

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.hanging: set[int] = set()
        self.uploaded = threading.Event()
        self.one = threading.Lock()  # nodes are processes of their own: here they take turns

    def pull_messages(self, message_ids: object) -> list[Message]:
        ids = list(message_ids)  # type: ignore[call-overload]
        if self.hanging.intersection(self._node(one) for one in ids if one in self._pending):
            self.uploaded.wait(30)
        with self.one:
            return super().pull_messages(ids)


def test_a_reply_that_hangs_holds_up_neither_the_others_nor_the_slot() -> None:
    grid = Remote(adding_app(), SITES)
    transport = GridTransport(grid, patience_s=5)
    transport.online()
    grid.hanging = {grid.ids["dublin"]}
    replies = transport.train({name: work() for name in SITES}, datetime.now(UTC) + timedelta(seconds=2))
    began = time.monotonic()
    first = [next(replies), next(replies)]
    assert {reply.client: reply.outcome for reply in first} == {"lyon": "done", "helsinki": "done"}
    (last,) = replies
    assert (last.client, last.outcome) == ("dublin", "late")
    assert time.monotonic() - began < 10
    grid.hanging, _ = set(), grid.uploaded.set()
    assert transport.online().keys() == SITES.keys()
    again = transport.train({"dublin": work()}, datetime.now(UTC) + timedelta(seconds=30))
    assert [reply.outcome for reply in again] == ["done"]


@pytest.mark.parametrize("kind", [TroubledGrid, Remote])
def test_many_clients(kind: type[TroubledGrid]) -> None:
    names = [f"c{i}" for i in range(200)]
    replies = sent(kind(adding_app(), {name: {} for name in names}), {name: work() for name in names}, 60.0)
    assert all(reply.outcome == "done" for reply in replies.values())


def test_a_grid_that_fails_in_reading_makes_who_is_left_late_at_once() -> None:
    class Broken(Remote):
        def pull_messages(self, message_ids: object) -> list[Message]:
            if self.pushed[-1].metadata.message_type == "train":
                raise ValueError("not a message")
            return super().pull_messages(message_ids)

    began = time.monotonic()
    assert sent(Broken(adding_app(), SITES), {"lyon": work()})["lyon"].outcome == "late"
    assert time.monotonic() - began < 20
