"""Around local training: time, energy, seed, and the end of the slot."""

from __future__ import annotations

import random
import sys
import time
import types
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from small_apps import MODEL

from slackwater import time_source
from slackwater.engines.flower.records import to_arrays, to_reply
from slackwater.engines.metering import CodeCarbon, Rapl, best_meter
from slackwater.errors import SlackwaterError
from slackwater.flower import InProcessGrid, LocalTrainingError, measured
from slackwater.time_source import VirtualTime


def asked(**config: Any) -> tuple[Message, Context]:
    InProcessGrid(None, ["lyon"])  # type: ignore[arg-type]  # so that messages know who they are from
    content = RecordDict({"arrays": to_arrays(MODEL), "config": ConfigRecord(config)})
    message = Message(content, dst_node_id=2, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(
        run_id=1, node_id=2, node_config={"name": "lyon", "power-w": 300}, state=RecordDict(), run_config={}
    )
    return message, context


def ends_in(seconds: float) -> dict[str, Any]:
    return {"slot": 3, "seed": 7, "ends-at": time.time() + seconds, "seconds-left": seconds}


def test_the_reply_says_how_long_it_took_and_that_nothing_was_measured() -> None:
    message, context = asked(**ends_in(60))
    with measured(message, context, energy=False) as meter:
        time.sleep(0.05)
        assert not meter.out_of_time
    reply = meter.reply({"w": torch.ones(2)}, num_examples=5, loss=0.25, accuracy=0.5)
    own = reply.content["slackwater"]
    assert own["seconds"] >= 0.05
    assert own["energy-method"] == f"not measured: 300 W declared, for {own['seconds']:.1f} s"
    assert "energy-kwh" not in own
    assert dict(reply.content["metrics"]) == {"num-examples": 5, "train-loss": 0.25, "accuracy": 0.5}
    read = to_reply("lyon", reply, verified=False)
    assert read.outcome == "done"
    assert read.started_at is not None
    assert read.ended_at is not None


def test_a_client_that_waits_in_virtual_time_is_at_it_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    VirtualTime.begin(tmp_path / "clock", datetime(2031, 3, 1, tzinfo=UTC))
    monkeypatch.setenv("SLACKWATER_CLOCK", str(tmp_path / "clock"))
    ends_at = time_source.now().timestamp() + 3600
    message, context = asked(**{"slot": 3, "seed": 7, "ends-at": ends_at, "seconds-left": 3600.0})
    with measured(message, context, energy=False) as meter:
        time_source.sleep(1800)
        assert not meter.out_of_time
        time_source.sleep(1790)
        assert meter.out_of_time
    read = to_reply("lyon", meter.reply({"w": torch.ones(2)}, num_examples=5), verified=False)
    assert read.started_at is not None
    assert read.ended_at is not None
    assert 3590 <= (read.ended_at - read.started_at).total_seconds() < 3650
    assert abs(read.ended_at.timestamp() - ends_at) < 60


def test_energy_is_reported_where_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wattmeter:
        name = "a wattmeter"

        def start(self) -> None: ...

        def stop(self) -> float:
            return 0.125

    monkeypatch.setattr("slackwater.engines.flower.client.best_meter", Wattmeter)
    message, context = asked(**ends_in(60))
    with measured(message, context) as meter:
        pass
    reply = meter.reply(ArrayRecord([np.ones(2)]), num_examples=5)
    assert reply.content["slackwater"]["energy-method"] == "measured by a wattmeter"
    assert to_reply("lyon", reply, verified=False).energy_kwh == 0.125


def test_time_spent_evaluating_is_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr("slackwater.engines.metering.time_source.monotonic", lambda: clock.now)
    message, context = asked(slot=3, seed=7)
    with measured(message, context, energy=False) as meter:
        clock.now += 20
        assert meter.told()["evaluation-seconds"] is None
        for _ in range(2):
            with meter.evaluating():
                clock.now += 5
    read = to_reply("lyon", meter.reply(MODEL, num_examples=1), verified=False)
    assert read.evaluation_seconds == 10.0
    assert read.started_at is not None
    assert read.ended_at is not None
    assert (read.ended_at - read.started_at).total_seconds() == pytest.approx(30.0)
    with measured(message, context, energy=False) as plain:
        pass
    assert to_reply("lyon", plain.reply(MODEL, num_examples=1), verified=False).evaluation_seconds is None


def test_a_failure_carries_what_it_used() -> None:
    message, context = asked(**ends_in(60))
    with pytest.raises(LocalTrainingError, match="ValueError: no data") as raised, measured(message, context) as meter:
        raise ValueError("no data")
    assert '"seconds":' in str(raised.value)
    assert meter.told()["seconds"] >= 0


def test_training_that_heeds_the_time_sends_what_it_has() -> None:
    message, context = asked(**ends_in(0.5))
    with measured(message, context, energy=False) as meter:
        while not meter.out_of_time:
            time.sleep(0.01)
    reply = meter.reply(MODEL, num_examples=1)
    assert reply.content["slackwater"]["stopped-early"] is True
    assert reply.content["slackwater"]["seconds"] < 0.5


def test_training_that_does_not_is_interrupted_at_the_end_of_the_slot() -> None:
    message, context = asked(**ends_in(0.3))
    began = time.monotonic()

    def train() -> None:
        with measured(message, context, energy=False):
            while True:
                sum(range(1000))

    with pytest.raises(LocalTrainingError, match="end of slot 3") as raised:
        train()
    assert 0.2 < time.monotonic() - began < 5
    assert '"out-of-time": true' in str(raised.value)
    time.sleep(0.05)  # nothing is raised afterwards


def test_work_that_comes_after_its_slot_is_not_begun() -> None:
    message, context = asked(**ends_in(-1))
    with pytest.raises(LocalTrainingError, match="clock of this machine"), measured(message, context, energy=False):
        pytest.fail("must not begin")


def test_a_slow_clock_does_not_make_a_client_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    message, context = asked(**{**ends_in(3600.0), "seconds-left": 0.3})  # as if this clock were an hour behind
    with measured(message, context, energy=False) as meter:
        time.sleep(0.28)
        assert meter.out_of_time


def test_a_client_at_a_lower_power_level_knows_its_share_of_the_steps() -> None:
    message, context = asked(**ends_in(60), work=0.85)
    with measured(message, context, energy=False) as meter:
        assert meter.work == 0.85


def test_without_an_end_there_is_none() -> None:
    message, context = asked()
    with measured(message, context, energy=False) as meter:
        assert not meter.out_of_time
        assert meter.seed is None
        assert meter.work == 1.0
    assert meter.reply(MODEL, num_examples=1).has_content()


def test_generators_start_from_the_slots_seed_and_go_on_undisturbed() -> None:
    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]  # noqa: NPY002

    inside = []
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for _ in range(2):
        message, context = asked(**ends_in(60))
        with measured(message, context, energy=False):
            inside.append(draws())
            assert torch.get_num_threads() == 1
    assert inside[0] == inside[1]
    assert torch.equal(before, torch.get_rng_state())


def test_a_reply_before_the_end_is_refused() -> None:
    message, context = asked(**ends_in(60))
    with (
        pytest.raises(LocalTrainingError, match=r"Call meter\.reply after"),
        measured(message, context, energy=False) as meter,
    ):
        meter.reply(MODEL, num_examples=1)
    assert issubclass(LocalTrainingError, SlackwaterError)


def rapl(folder: Path, *packages: int) -> Path:
    for number, energy in enumerate(packages):
        for name in (f"intel-rapl:{number}", f"intel-rapl:{number}:0"):
            (folder / name).mkdir(parents=True)
            (folder / name / "energy_uj").write_text(str(energy))
            (folder / name / "max_energy_range_uj").write_text("1000000000")
    return folder


def test_rapl_counts_the_packages_and_their_wrap_around(tmp_path: Path) -> None:
    folder = rapl(tmp_path, 900_000_000, 100)
    meter = Rapl(folder)
    meter.start()
    (folder / "intel-rapl:0" / "energy_uj").write_text("80000000")  # over its range: 180 J
    (folder / "intel-rapl:1" / "energy_uj").write_text("180000100")  # 180 J
    (folder / "intel-rapl:1:0" / "energy_uj").write_text("999")  # inside package 1
    assert meter.stop() == pytest.approx(360 / 3.6e6)


def test_nothing_measures_where_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.engines.metering.POWERCAP", tmp_path)
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    assert best_meter() is None


@pytest.mark.parametrize(("mode", "sensor"), [("intel_rapl", True), ("constant", False), ("cpu_load", False)])
def test_codecarbon_counts_only_with_a_sensor(mode: str, sensor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class OfflineEmissionsTracker:
        def __init__(self, **options: Any) -> None:
            assert options["save_to_file"] is False
            self._hardware = [types.SimpleNamespace(_mode=mode)]
            self.final_emissions_data = types.SimpleNamespace(energy_consumed=0.5)

        def start(self) -> None: ...

        def stop(self) -> None: ...

    module = types.ModuleType("codecarbon")
    module.OfflineEmissionsTracker = OfflineEmissionsTracker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "codecarbon", module)
    meter = best_meter()
    assert isinstance(meter, CodeCarbon)
    meter.start()
    assert meter.stop() == (0.5 if sensor else None)
