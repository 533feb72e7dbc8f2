"""The client of a FLARE job: `measured` around the Client API, and the executor that runs the client's script."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel

from slackwater.engines.metering import EnergyMeter, OutOfTimeError, SlotMeter, best_meter
from slackwater.errors import SlackwaterError
from slackwater.training.vectors import as_array

log = logging.getLogger(__name__)
REPORT, FAILURE, METRICS = "slackwater", "error", "metrics"
"""Key of a model's meta: what the server sends besides the model, and what a client reports; in it, why training failed and
the client's numbers."""
FAILED = "slackwater-failed"  # metric of a reply without a model, since FLARE sends none that is empty


class Meter(SlotMeter):
    """One client's local training in one slot."""

    def __init__(self, model: FLModel, energy: EnergyMeter | None) -> None:
        config: Mapping[str, Any] = (model.meta or {}).get(REPORT, {})
        super().__init__(config, name="", power_w=None, energy=energy)
        self._round = model.current_round
        self._params: dict[str, Any] | None = None
        self._numbers: dict[str, int | float] = {}
        self.error = ""  # why training failed; empty if it did not
        self._out_of_time = False

    def result(
        self, model: Mapping[str, Any], *, num_examples: int, loss: float | None = None, **metrics: float
    ) -> None:
        """Set the result of training: the model as a state dict, how many samples it saw, its mean loss and metrics."""
        # Copies, since FLARE sends them after the script has moved on.
        self._params = {name: np.array(as_array(value)) for name, value in model.items()}
        self._numbers = {"num-examples": num_examples, **metrics}
        self._numbers |= {} if loss is None else {"train-loss": float(loss)}

    def fail(self, error: str, *, out_of_time: bool = False) -> None:
        """Record that training failed; `measured` calls it."""
        self._params, self.error, self._out_of_time = None, error, out_of_time

    def reply(self) -> FLModel:
        """Return the reply to the server, for `flare.send`: the result, or why there is none, with time and energy."""
        if self._ended_s is None:
            raise SlackwaterError(
                "Call meter.reply after the `with measured(..)` block: the energy is not known before."
            )
        if self._params is None and not self.error:
            self.error = "The client's script did not call meter.result in its `with measured(..)` block."
        report = {key: value for key, value in self.told().items() if value is not None}
        if self._params is None:
            report |= {FAILURE: self.error, "out-of-time": self._out_of_time}
            return FLModel(metrics={FAILED: 1.0}, current_round=self._round, meta={REPORT: report})
        return FLModel(params=self._params, current_round=self._round, meta={REPORT: report | {METRICS: self._numbers}})


@contextmanager
def measured(model: FLModel, *, energy: bool = True) -> Iterator[Meter]:
    """Measure local training: one PyTorch thread, the slot's seed, time and energy, and a stop at the end of the slot.

    Call `meter.result` at the end of the block, and send `meter.reply()` after it. An error in the block is logged and
    sent to the server with the energy used until then; it does not end the script, which waits for the next slot.

    Args:
        model: The model that `flare.receive()` returned.
        energy: Whether to measure energy where there is a sensor.
    """
    meter, entered = Meter(model, best_meter() if energy else None), False
    try:
        with meter.running(always_enter=True):
            entered = True
            yield meter
    except OutOfTimeError as error:
        meter.fail(str(error), out_of_time=True)
        log.warning("%s", error)
    except Exception as error:
        meter.fail(f"{type(error).__name__}: {error}")
        log.exception("Local training failed in slot %s.", meter.slot)
        if not entered:  # Python cannot skip the block, and an error here would end the script; its result is not used
            yield meter
            meter.fail(meter.error)
