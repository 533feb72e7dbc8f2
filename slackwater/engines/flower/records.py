"""Work and replies of `slackwater.live` as Flower's records, and back.

Sent: "arrays" is the model, "config" the slot and the user's settings. Returned: "arrays" and "metrics" as in any Flower
app, and "slackwater", in which our client helper reports its name, time and measured energy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from slackwater.engines.metering import numbers_in, reported_result, reported_times
from slackwater.live.sites import Arrays, Outcome, Reply, Work
from slackwater.training.vectors import BFLOAT16, as_array

ARRAYS, CONFIG, METRICS, OWN = "arrays", "config", "metrics", "slackwater"
NAME, ZONE, POWER = "name", "zone", "power-w"
PARTITION, PARTITIONS = "partition-id", "num-partitions"
ENDS_AT, RUN_ID = "ends-at", "slackwater-run-id"  # in the config of a message: the end of the slot, and the run
QUERY = "query.slackwater"  # the message that asks a node for its identity
_FAILURE = re.compile(r"\[slackwater (\{.*?\})\]")
_RAISED = re.compile(r"<class '([\w.]+)'>:<'(.*)'>", flags=re.DOTALL)  # Flower's format of an error in an app
_OUT_OF_TIME = "out-of-time"
_NODE_UNAVAILABLE, _EXPIRED = 5, (3, 4)
"""Flower's codes for a node without heartbeat, and for a message or reply that no longer exists."""


def to_arrays(arrays: Arrays) -> ArrayRecord:
    """Return a model as Flower's record, in the model's order."""
    return ArrayRecord({name: _to_array(np.asarray(value)) for name, value in arrays.items()})


def from_arrays(record: ArrayRecord) -> dict[str, Any]:
    """Return a model from Flower's record."""
    return {name: _from_array(value) for name, value in record.items()}


def _to_array(value: Any) -> Array:
    """Return an array as Flower's; bfloat16 as JAX's arrays arrive: its name, and two bytes for each number."""
    if value.dtype != BFLOAT16:
        return Array(value)
    return replace(Array(value.view("V2")), dtype="bfloat16")


def _from_array(value: Array) -> Any:
    array = value.numpy()
    return array.view(BFLOAT16) if value.dtype == "bfloat16" and array.dtype.itemsize == BFLOAT16.itemsize else array


def as_arrays(model: Mapping[str, Any] | ArrayRecord) -> Arrays:
    """Return a model as arrays by name, from a state dict of tensors or arrays, or Flower's record."""
    if isinstance(model, ArrayRecord):
        return from_arrays(model)
    return {name: as_array(value) for name, value in dict(model).items()}


def to_content(work: Work, arrays: ArrayRecord, left_s: float, run: str = "") -> RecordDict:
    """Return the content of a message to a client; `left_s` is for clients whose clock is wrong."""
    return with_slot(RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord()}), work, left_s, run)


def with_slot(content: RecordDict, work: Work, left_s: float, run: str = "") -> RecordDict:
    """Return a copy of a content whose config says slot, seed and end; other keys and records stay.

    They go into the config record that is there: Flower's mods want exactly one.
    """
    records: dict[str, Any] = dict(content.items())
    configs = content.config_records
    name = CONFIG if CONFIG in configs or not configs else next(iter(configs))
    records[name] = ConfigRecord(
        {
            **configs.get(name, {}),
            **work.config,
            "server-round": work.number + 1,
            "slot": work.slot,
            "number": work.number,
            "attempt": work.attempt,
            "seed": work.seed,
            ENDS_AT: work.ends_at.timestamp(),
            "seconds-left": left_s,
            **({RUN_ID: run} if run else {}),
        }
    )
    return RecordDict(records)


def slot_config(message: Message) -> Mapping[str, Any]:
    """Return the config that `with_slot` wrote into a message; empty if the message is not from a plan."""
    if not message.has_content():
        return {}
    return next((dict(one) for one in message.content.config_records.values() if ENDS_AT in one), {})


def to_reply(client: str, message: Message, *, verified: bool, for_strategy: bool = False) -> Reply:
    """Return the reply in a message; an unreadable message is a failure, with the reason.

    A reported energy is used only if it is a possible number; the runner compares it with the power. `for_strategy`
    keeps the message for a strategy of Flower, and accepts replies of any form, since the strategy reads them.
    """
    if message.has_error():
        return _failure(client, message)
    content = message.content
    own = dict(content.config_records.get(OWN, {}))
    claimed = own.get(NAME)
    if verified and claimed is not None and claimed != client:
        return Reply(
            client=client,
            outcome="failed",
            error=f"The node is registered as {client!r} but reports the name {claimed!r}: its update is not used. "
            "Correct its --node-config, or its registered name.",
        )
    metrics = dict(_only(content.metric_records, METRICS) or {})
    told: dict[str, Any] = {**own, **metrics}
    record = _only(content.array_records, ARRAYS)
    times = reported_times(told)
    if for_strategy and record is None:
        joined = {f"{key}.{name}": one for key, held in content.array_records.items() for name, one in held.items()}
        record = ArrayRecord(joined)
    if record is None:
        return Reply(client=client, outcome="failed", error=f"{client!r} replied without a model.", **times)
    try:
        arrays = from_arrays(record)
    except (TypeError, ValueError) as error:
        unreadable = f"The model of {client!r} cannot be read: {error}"
        return Reply(client=client, outcome="failed", error=unreadable, **times)
    return Reply(
        client=client, outcome="done", arrays=arrays, metrics=numbers_in(metrics),
        message=message if for_strategy else None, **reported_result(told), **times,
    )  # fmt: skip


def failure_text(sentence: str, told: Mapping[str, Any]) -> str:
    """Return the text of a failure with the measurements in it, since Flower sends only text for failures."""
    return f"{sentence} [slackwater {json.dumps(dict(told))}]"


def _failure(client: str, message: Message) -> Reply:
    code, reason = message.error.code, message.error.reason or ""
    found = _FAILURE.search(reason)
    told: dict[str, Any] = {}
    if found:
        try:
            said = json.loads(found[1])
        except (ValueError, RecursionError):
            said = None
        told = said if isinstance(said, dict) else {}
    outcome: Outcome = "failed"
    if code == _NODE_UNAVAILABLE:
        outcome, reason = "lost", f"The node of {client!r} is gone."
    elif code in _EXPIRED or told.get(_OUT_OF_TIME):
        outcome = "late"
    return Reply(
        client=client, outcome=outcome, error=_plain(reason) or f"Flower's error {code}.", **reported_times(told)
    )


def _plain(reason: str) -> str:
    """Return the reason without the measurements, and without Flower's marks around our errors."""
    text = _FAILURE.sub("", reason).strip()
    raised = _RAISED.fullmatch(text)
    if raised is None:
        return text
    kind, said = raised[1].rpartition(".")[2], raised[2].strip()
    return said if kind == "LocalTrainingError" else f"{kind}: {said}"


def _only(records: Mapping[str, Any], usual: str) -> Any:
    """Return the record with the usual name, or the only record."""
    if usual in records:
        return records[usual]
    return next(iter(records.values())) if len(records) == 1 else None
