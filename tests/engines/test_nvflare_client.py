"""Around local training on FLARE: time, energy, seed, the end of the slot, and failures that do not end the script."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from slackwater.engines.nvflare.workflow import to_reply
from slackwater.errors import SlackwaterError
from slackwater.live.sites import Reply
from slackwater.nvflare import measured

SENT = {"w": np.arange(6, dtype=np.float32)}


def received(*, seconds: float = 60.0, **config: Any) -> FLModel:
    report = {"slot": 3, "seed": 7, "ends-at": time.time() + seconds, "seconds-left": seconds} | config
    return FLModel(params=dict(SENT), current_round=2, meta={"slackwater": report})


def read(model: FLModel) -> Reply:
    """As the server reads it, through FLARE's own conversion."""
    return to_reply("lyon", FLModelUtils.to_shareable(model), SENT)


def test_the_reply_has_the_model_its_numbers_and_how_long_it_took() -> None:
    with measured(received(), energy=False) as meter:
        time.sleep(0.05)
        meter.result({"w": torch.ones(6)}, num_examples=5, loss=0.25)
    reply = read(meter.reply())
    assert reply.outcome == "done"
    assert reply.arrays is not None
    np.testing.assert_array_equal(reply.arrays["w"], np.ones(6, dtype=np.float32))
    assert (reply.loss, reply.samples, reply.energy_kwh) == (0.25, 5, None)
    assert reply.started_at is not None
    assert reply.ended_at is not None
    assert (reply.ended_at - reply.started_at).total_seconds() >= 0.05


def test_the_scripts_own_metrics_arrive_as_numbers() -> None:
    with measured(received(), energy=False) as meter:
        meter.result(SENT, num_examples=5, loss=0.25, accuracy=0.75, f1=float("nan"))
    reply = read(meter.reply())
    assert reply.metrics == {"num-examples": 5, "train-loss": 0.25, "accuracy": 0.75}


def test_metrics_of_a_model_that_the_script_made_itself_arrive_too() -> None:
    reply = read(FLModel(params=dict(SENT), metrics={"loss": 0.5, "accuracy": 0.75}))
    assert (reply.loss, reply.metrics) == (0.5, {"loss": 0.5, "accuracy": 0.75})


def test_a_bfloat16_model_is_sent_as_float32() -> None:
    with measured(received(), energy=False) as meter:
        meter.result({"w": torch.full((6,), 0.5, dtype=torch.bfloat16)}, num_examples=1)
    reply = read(meter.reply())
    assert reply.arrays is not None
    np.testing.assert_array_equal(reply.arrays["w"], np.full(6, 0.5, dtype=np.float32))


def test_a_client_at_a_lower_power_level_knows_its_share_of_the_steps() -> None:
    with measured(received(work=0.85), energy=False) as meter:
        assert meter.work == 0.85
    with measured(received(), energy=False) as meter:
        assert meter.work == 1.0


def test_energy_is_reported_where_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wattmeter:
        name = "a wattmeter"

        def start(self) -> None: ...

        def stop(self) -> float:
            return 0.125

    monkeypatch.setattr("slackwater.engines.nvflare.client_api.best_meter", Wattmeter)
    with measured(received()) as meter:
        meter.result(SENT, num_examples=1)
    assert read(meter.reply()).energy_kwh == 0.125


def test_what_is_sent_is_not_changed_by_what_the_script_does_next() -> None:
    weights = torch.ones(6)
    with measured(received(), energy=False) as meter:
        meter.result({"w": weights}, num_examples=1)
    reply = meter.reply()
    weights.zero_()
    assert reply.params["w"].sum() == 6


def test_a_failure_is_sent_with_what_it_used_and_the_script_goes_on() -> None:
    with measured(received(), energy=False) as meter:
        meter.result(SENT, num_examples=1)
        raise ZeroDivisionError("the data is gone")
    reply = read(meter.reply())
    assert (reply.outcome, reply.error, reply.arrays) == ("failed", "ZeroDivisionError: the data is gone", None)
    assert reply.started_at is not None


def test_a_forgotten_result_is_a_failure_that_says_so() -> None:
    with measured(received(), energy=False) as meter:
        pass
    reply = read(meter.reply())
    assert reply.outcome == "failed"
    assert "did not call meter.result" in reply.error


def test_a_reply_inside_the_block_is_refused() -> None:
    with measured(received(), energy=False) as meter:
        with pytest.raises(SlackwaterError, match=r"Call meter\.reply after"):
            meter.reply()
        meter.result(SENT, num_examples=1)
    assert read(meter.reply()).outcome == "done"


def test_training_that_ignores_the_end_of_its_slot_is_interrupted_and_late() -> None:
    with measured(received(seconds=0.3), energy=False) as meter:
        while True:
            sum(range(1000))
    reply = read(meter.reply())
    assert reply.outcome == "late"
    assert "end of slot 3" in reply.error


@pytest.mark.parametrize("heeds", [True, False])
def test_work_that_comes_after_its_slot_is_late_and_the_script_goes_on(heeds: bool) -> None:
    began = time.monotonic()
    with measured(received(seconds=-1.0), energy=False) as meter:
        while not (heeds and meter.out_of_time):
            sum(range(1000))
        meter.result(SENT, num_examples=1)
    reply = read(meter.reply())
    assert (reply.outcome, reply.arrays) == ("late", None)
    assert "Check the clock" in reply.error
    assert time.monotonic() - began < 5
    time.sleep(0.3)  # nothing is raised afterwards


def test_a_sensor_that_fails_does_not_end_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "a broken sensor"

        def start(self) -> None:
            raise OSError("no such device")

        def stop(self) -> None: ...

    monkeypatch.setattr("slackwater.engines.nvflare.client_api.best_meter", Broken)
    with measured(received()) as meter:
        meter.result(SENT, num_examples=1)
    reply = read(meter.reply())
    assert (reply.outcome, reply.error) == ("failed", "OSError: no such device")


def test_the_slots_seed_decides_the_draws() -> None:
    drawn = []
    for seed in (7, 7, 8):
        with measured(received(seed=seed), energy=False) as meter:
            assert meter.seed == seed
            drawn.append(float(torch.rand(1)))
            meter.result(SENT, num_examples=1)
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_difference_is_added_to_what_was_sent() -> None:
    reply = read(FLModel(params={"w": np.full(6, 2, dtype=np.float32)}, params_type=ParamsType.DIFF))
    assert reply.arrays is not None
    np.testing.assert_array_equal(reply.arrays["w"], SENT["w"] + 2)


def test_an_app_without_our_report_is_read_too() -> None:
    reply = read(FLModel(params=dict(SENT), metrics={"loss": 0.5}))
    assert (reply.outcome, reply.loss, reply.energy_kwh) == ("done", 0.5, None)


@pytest.mark.parametrize(
    ("code", "outcome"), [(ReturnCode.EXECUTION_EXCEPTION, "failed"), (ReturnCode.TASK_ABORTED, "lost")]
)
def test_an_error_of_flare_is_named(code: str, outcome: str) -> None:
    reply = to_reply("lyon", make_reply(code), SENT)
    assert reply.outcome == outcome
    assert code in reply.error
