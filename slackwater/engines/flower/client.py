"""The client of a Flower app: who it is, and how long and with how much energy it trained."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from slackwater.engines.flower import records
from slackwater.engines.flower.records import CONFIG, NAME, OWN, POWER, as_arrays, failure_text, to_arrays
from slackwater.engines.metering import EnergyMeter, LocalTrainingError, OutOfTimeError, SlotMeter, best_meter
from slackwater.errors import SlackwaterError

_DESCRIBES = (NAME, records.ZONE, POWER, records.PARTITION, records.PARTITIONS)
"""The keys of its node config that a node sends; it sends no others."""


def register(app: ClientApp) -> ClientApp:
    """Let an app report its node's name, zone and power-w from the node config."""

    @app.query("slackwater")  # type: ignore[untyped-decorator, unused-ignore]
    def who(message: Message, context: Context) -> Message:
        said: dict[str, Any] = {key: context.node_config[key] for key in _DESCRIBES if key in context.node_config}
        return Message(RecordDict({OWN: ConfigRecord(said)}), reply_to=message)

    return app


class Meter(SlotMeter):
    """One client's local training in one slot."""

    def __init__(self, message: Message, context: Context, energy: EnergyMeter | None) -> None:
        node: Mapping[str, Any] = context.node_config
        config: Mapping[str, Any] = message.content.config_records.get(CONFIG, {})
        super().__init__(config, name=str(node.get(NAME, "")), power_w=node.get(POWER), energy=energy)
        self._message = message

    def reply(
        self, model: Mapping[str, Any] | ArrayRecord, *, num_examples: int, loss: float | None = None, **metrics: float
    ) -> Message:
        """Return the reply to the server: the model as a state dict, how many samples it saw, and its mean loss."""
        if self._ended_s is None:
            raise SlackwaterError(
                "Call meter.reply after the `with measured(..)` block: the energy is not known before."
            )
        numbers: dict[str, int | float] = {"num-examples": num_examples, **metrics}
        numbers |= {} if loss is None else {"train-loss": float(loss)}
        content: dict[str, Any] = {
            records.ARRAYS: model if isinstance(model, ArrayRecord) else to_arrays(as_arrays(model)),
            records.METRICS: MetricRecord(dict(numbers)),
            OWN: ConfigRecord({key: value for key, value in self.told().items() if value is not None}),
        }
        return Message(RecordDict(content), reply_to=self._message)


@contextmanager
def measured(message: Message, context: Context, *, energy: bool = True) -> Iterator[Meter]:
    """Measure local training: one PyTorch thread, the slot's seed, time and energy, and a stop at the end of the slot.

    Training that ignores `meter.out_of_time` is interrupted when its slot ends. Energy is measured where possible (see
    `slackwater.engines.metering`); the reply says how.
    """
    meter = Meter(message, context, best_meter() if energy else None)
    # Flower starts a process for each message of a client, and calls clients in one process only in simulation.
    own_process = Path(sys.argv[0]).name.startswith("flwr-clientapp")
    try:
        with meter.running(own_process=own_process):
            yield meter
    except OutOfTimeError as error:
        raise LocalTrainingError(failure_text(str(error), {**meter.told(), "out-of-time": True})) from None
    except Exception as error:
        raise LocalTrainingError(failure_text(f"{type(error).__name__}: {error}", meter.told())) from error
