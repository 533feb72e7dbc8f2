"""`register` and `keep_state`: identity in spite of mods, measuring without a change to the functions, state that stays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from plans import ZONES, small_plan
from small_apps import MODEL, TroubledGrid

from slackwater.engines.flower.grid import GridTransport
from slackwater.engines.flower.records import to_arrays
from slackwater.errors import SlackwaterError
from slackwater.flower import CarbonAware, InProcessGrid, keep_state, measured, register

SITES = {name: {"zone": zone} for name, zone in ZONES.items()}


def needs_everything(msg: Message, context: Context, call_next: Any) -> Message:
    """A mod that reads what only training messages carry."""
    assert msg.content["config"]["lr"] == 0.1
    return call_next(msg, context)


@pytest.mark.parametrize(
    "mod", [LocalDpMod(1.0, 0.1, 1.0, 0.1), fixedclipping_mod, adaptiveclipping_mod, needs_everything]
)
def test_mods_of_the_app_do_not_hide_who_a_node_is(mod: Any) -> None:
    app = register(ClientApp(mods=[mod]))
    found = GridTransport(InProcessGrid(app, SITES)).online()
    assert {name: site.zone for name, site in found.items()} == dict(ZONES)
    assert app._mods == [mod]  # later functions have it


def test_simulated_nodes_know_how_many_they_are() -> None:
    grid = InProcessGrid(register(ClientApp()), SITES)
    configs = [context.node_config for context in grid._contexts.values()]
    assert [(one["partition-id"], one["num-partitions"]) for one in configs] == [(0, 3), (1, 3), (2, 3)]


def asked(kind: str = "train", **config: Any) -> tuple[Message, Context]:
    InProcessGrid(None, ["lyon"])  # type: ignore[arg-type]  # so that messages know who they are from
    content = RecordDict({"arrays": to_arrays(MODEL), "config": ConfigRecord(config)})
    message = Message(content, dst_node_id=2, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    node = {"name": "lyon", "power-w": 300}
    return message, Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={})


PLANNED = {"slot": 3, "seed": 7, "ends-at": time.time() + 3600, "seconds-left": 60.0, "slackwater-run-id": "r1"}


def test_register_can_measure_without_a_change_to_the_functions() -> None:
    app = register(ClientApp(), measure=True)
    drawn: list[float] = []

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        drawn.append(float(np.random.random()))  # noqa: NPY002  as users' code does
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)

    for config in (PLANNED, PLANNED, {}):
        message, context = asked(**config)
        reply = app(message, context)
        assert ("slackwater" in reply.content.config_records) == bool(config)
    assert drawn[0] == drawn[1]  # seeded by the slot
    assert "declared" in app(*asked(**PLANNED)).content["slackwater"]["energy-method"]


def test_what_a_function_measures_itself_is_not_measured_again() -> None:
    app = register(ClientApp(), measure=True)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        with measured(msg, context, energy=False) as meter:
            pass
        with meter.evaluating():
            time.sleep(0.01)
        return meter.reply({"w": np.ones(2)}, num_examples=1)

    reply = app(*asked(**PLANNED))
    assert "evaluation-seconds" in reply.content["slackwater"]


def test_register_comes_first_and_needs_functions() -> None:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return msg

    with pytest.raises(SlackwaterError, match=r"before @app.train\(\)"):
        register(app, measure=True)
    with pytest.raises(SlackwaterError, match="has a client_fn"):
        register(ClientApp(client_fn=lambda context: None))  # type: ignore[arg-type, return-value]


def counting() -> ClientApp:
    """Counts its rounds in `context.state`, with a personal array."""
    app = ClientApp(mods=[keep_state])
    register(app)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        state = context.state
        times = int(state["mine"]["times"]) + 1 if "mine" in state else 1
        head = state["head"]["w"].numpy() + 1 if "head" in state else np.zeros(2)
        state["mine"] = MetricRecord({"times": times})
        state["head"] = ArrayRecord({"w": Array(head)})
        state["note"] = ConfigRecord({"raw": b"\x00\xff", "text": "a"})
        assert state["note"]["raw"] == b"\x00\xff"
        arrays = {key: value.numpy() + 1 for key, value in msg.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1, "times": times, "head": float(head[0])})
        return Message(RecordDict({"arrays": to_arrays(arrays), "metrics": metrics}), reply_to=msg)

    return app


def test_the_state_of_a_client_survives_a_new_flower_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STATE", str(tmp_path / "state"))
    plan = small_plan()
    model = to_arrays({"w": np.zeros(3, dtype=np.float32)})
    for rounds in (2, None):  # a new grid has new contexts, as a new Flower run has
        carbon = CarbonAware(plan=plan, ledger=tmp_path / "run", wait=False)
        carbon.start(TroubledGrid(counting(), SITES), model, num_rounds=rounds)
    from slackwater.ledger.run import Run

    with Run.open(tmp_path / "run", read_only=True) as run:
        kept = run.journal.metrics()
    for number, name in enumerate(ZONES):
        counts = [kept[slot][name]["times"] for slot in sorted(kept) if name in kept[slot]]
        assert counts == list(range(1, int(plan.matrix[number].sum()) + 1))
        assert [kept[slot][name]["head"] for slot in sorted(kept) if name in kept[slot]] == [n - 1 for n in counts]
    files = sorted((tmp_path / "state" / "clients").iterdir())
    assert len(files) == len(ZONES)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    other = CarbonAware(plan=plan, ledger=tmp_path / "other", wait=False)
    other.start(TroubledGrid(counting(), SITES), model)
    assert len(list((tmp_path / "state" / "clients").iterdir())) == 2 * len(ZONES)  # another run starts with nothing


def test_a_damaged_state_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STATE", str(tmp_path))
    app = counting()
    app(*asked(**PLANNED))
    (file,) = (tmp_path / "clients").iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(SlackwaterError, match=r"cannot be read .* Delete the file"):
        app(*asked(**PLANNED))
