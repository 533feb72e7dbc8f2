"""The grid in this process: what Flower promises of a grid, each client with a context of its own."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from small_apps import MODEL, SITES, adding_app

from slackwater.engines.flower import grid as inprocess
from slackwater.engines.flower.records import to_arrays
from slackwater.errors import SlackwaterError
from slackwater.flower import InProcessGrid


def messages(grid: InProcessGrid, content: RecordDict) -> list[Message]:
    return [Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]


def model() -> RecordDict:
    return RecordDict({"arrays": to_arrays(MODEL), "config": ConfigRecord({})})


def test_replies_come_in_order_and_answer_their_messages() -> None:
    grid = InProcessGrid(adding_app(), SITES)
    sent = messages(grid, model())
    replies = grid.send_and_receive(sent, timeout=1)
    assert [reply.metadata.reply_to_message_id for reply in replies] == [each.metadata.message_id for each in sent]
    assert [reply.metadata.src_node_id for reply in replies] == grid.get_node_ids()


def test_each_node_has_its_own_config_and_state() -> None:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        seen = context.state.config_records.setdefault("seen", ConfigRecord({"times": 0}))
        seen["times"] = int(seen["times"]) + 1  # type: ignore[arg-type]
        msg.content["arrays"].clear()  # what one does to its message the others do not see
        said = {"name": context.node_config["name"], "times": seen["times"], "lr": context.run_config["lr"]}
        return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=msg)

    grid = InProcessGrid(app, ["a", "b"], run_config={"lr": 0.1})
    content = model()
    for times in (1, 2):
        replies = grid.send_and_receive(messages(grid, content))
        assert [dict(reply.content["said"]) for reply in replies] == [
            {"name": name, "times": times, "lr": 0.1} for name in "ab"
        ]
    assert len(content["arrays"]) == len(MODEL)
    assert isinstance(content["arrays"], ArrayRecord)


def test_work_is_done_when_its_reply_is_pulled() -> None:
    grid = InProcessGrid(adding_app(), SITES)
    ids = grid.push_messages(messages(grid, model()))
    assert len(grid.pull_messages(ids)) == 1
    assert len(grid.pull_messages(ids)) == 1
    assert len(grid.pull_messages(ids[-1:])) == 1
    assert grid.pull_messages(ids) == []


def test_an_app_that_raises_replies_with_an_error() -> None:
    grid = InProcessGrid(ClientApp(), ["a"])
    (reply,) = grid.send_and_receive(messages(grid, model()))
    assert reply.has_error()
    assert reply.error.code == 2
    assert "No train function" in str(reply.error.reason)


def test_a_flower_that_moved_its_parts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flwr.supercore.run", None)
    with pytest.raises(SlackwaterError, match="has moved or changed flwr"):
        InProcessGrid(ClientApp(), ["a"])
    assert inprocess._SUPERLINK == 1
