"""The client of a Flower app: who it is, its state between runs, and how long and with how much energy it trained."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from slackwater.engines.flower import records
from slackwater.engines.flower.records import NAME, OWN, POWER, as_arrays, failure_text, to_arrays
from slackwater.engines.metering import EnergyMeter, LocalTrainingError, OutOfTimeError, SlotMeter, best_meter
from slackwater.errors import SlackwaterError
from slackwater.live.trust import state_folder

_WORK = ("train.", "evaluate.", "query.")  # beginnings of the names of an app's functions
_DESCRIBES = (NAME, records.ZONE, POWER, records.PARTITION, records.PARTITIONS)
"""The keys of its node config that a node sends; it sends no others."""


def register(app: ClientApp, *, measure: bool = False) -> ClientApp:
    """Let an app report its node's name, zone and power-w from the node config.

    Args:
        app: The app. Mods of the app are not applied to this report, which carries no model.
        measure: Measure all work that a plan sends, as `measured` does inside a function. Register before the functions.
    """
    if getattr(app, "_call", None) is not None:
        raise SlackwaterError(
            "This ClientApp has a client_fn, which cannot report who its node is. Use Flower's functions with messages "
            "(@app.train()), or register the node under a name: flwr supernode register KEY.pub NAME --name lyon"
        )
    if measure:
        if any(name.startswith(_WORK) for name in app._registered_funcs):
            raise SlackwaterError(
                "Call register(app, measure=True) before @app.train(): it applies to later functions."
            )
        app._mods.insert(0, _measuring)  # the outermost, so that it counts the work of other mods too
    mods, app._mods = app._mods, []
    try:

        @app.query("slackwater")  # type: ignore[untyped-decorator, unused-ignore]
        def who(message: Message, context: Context) -> Message:
            said: dict[str, Any] = {key: context.node_config[key] for key in _DESCRIBES if key in context.node_config}
            return Message(RecordDict({OWN: ConfigRecord(said)}), reply_to=message)

    finally:
        app._mods = mods
    return app


def _measuring(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Measure the work of a message from a plan; leave other messages alone, and replies that were measured already."""
    if not records.slot_config(message):
        return call_next(message, context)
    with measured(message, context) as meter:
        reply = call_next(message, context)
    if reply.has_error() or OWN in reply.content.config_records:
        return reply
    return meter.stamp(reply)


def keep_state(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Keep `context.state` at the site, as a mod: `ClientApp(mods=[keep_state])`.

    Flower gives clients an empty state in every new Flower run, and a crash of the server starts a new one. This mod
    saves the state after each message under the run's id and the node's name, and restores it if Flower's is empty.
    The folder is `state-dir` of the node config. Default: `clients` in the user's state folder ($SLACKWATER_STATE).
    """
    run, name = str(records.slot_config(message).get(records.RUN_ID, "")), str(context.node_config.get(NAME, ""))
    if not run or not name:
        return call_next(message, context)
    folder = Path(str(context.node_config.get("state-dir") or state_folder() / "clients")).expanduser()
    path = folder / f"{hashlib.sha256(f'{run}/{name}'.encode()).hexdigest()[:32]}.npz"
    if not context.state and path.exists():
        _load_state(path, context)
    reply = call_next(message, context)
    _save_state(path, context)
    return reply


def _save_state(path: Path, context: Context) -> None:
    """Write the records of a state: arrays as NumPy's format, the rest as JSON, no pickle."""
    arrays: dict[str, Any] = {}
    kept: dict[str, Any] = {"arrays": {}, "metrics": {}, "config": {}}
    for key, held in context.state.array_records.items():
        kept["arrays"][key] = {name: f"a{len(arrays) + number}" for number, name in enumerate(held)}
        arrays |= {kept["arrays"][key][name]: one.numpy() for name, one in held.items()}
    kept["metrics"] = {key: dict(held) for key, held in context.state.metric_records.items()}
    for key, settings in context.state.config_records.items():
        kept["config"][key] = {
            name: {"bytes": value.hex()} if isinstance(value, bytes) else value for name, value in settings.items()
        }
    text = np.frombuffer(json.dumps(kept).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, state=text, **arrays)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_bytes(buffer.getvalue())
    draft.chmod(0o600)
    draft.replace(path)


def _load_state(path: Path, context: Context) -> None:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            kept = json.loads(file["state"].tobytes())
            for key, names in kept["arrays"].items():
                context.state[key] = to_arrays({name: file[part] for name, part in names.items()})
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise SlackwaterError(
            f"The state of this client in {path} cannot be read ({error}). Delete the file."
        ) from None
    for key, metrics in kept["metrics"].items():
        context.state[key] = MetricRecord(metrics)
    for key, settings in kept["config"].items():
        context.state[key] = ConfigRecord(
            {
                name: bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value
                for name, value in settings.items()
            }
        )


class Meter(SlotMeter):
    """One client's local training in one slot."""

    def __init__(self, message: Message, context: Context, energy: EnergyMeter | None) -> None:
        node: Mapping[str, Any] = context.node_config
        super().__init__(
            records.slot_config(message), name=str(node.get(NAME, "")), power_w=node.get(POWER), energy=energy
        )
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

    def stamp(self, reply: Message) -> Message:
        """Add the report of time and energy to a reply that the app made itself, and return it."""
        if self._ended_s is None:
            raise SlackwaterError(
                "Call meter.stamp after the `with measured(..)` block: the energy is not known before."
            )
        reply.content[OWN] = ConfigRecord({key: value for key, value in self.told().items() if value is not None})
        return reply


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
