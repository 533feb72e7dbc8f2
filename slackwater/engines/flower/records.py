"""Work and replies of `slackwater.live` as Flower's records, and back.

Sent: "arrays" is the model, "config" the slot and the user's settings. Returned: "arrays" and "metrics" as in any Flower
app, and "slackwater", in which our client helper reports its name, time and measured energy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from slackwater.engines.metering import reported_number, reported_times
from slackwater.live.sites import Arrays, Outcome, Reply, Work

ARRAYS, CONFIG, METRICS, OWN = "arrays", "config", "metrics", "slackwater"
NAME, ZONE, POWER = "name", "zone", "power-w"
PARTITION, PARTITIONS = "partition-id", "num-partitions"
QUERY = "query.slackwater"  # the message that asks a node for its identity
_LOSSES = ("train-loss", "train_loss", "loss")
_FAILURE = re.compile(r"\[slackwater (\{.*?\})\]")
_RAISED = re.compile(r"<class '([\w.]+)'>:<'(.*)'>", flags=re.DOTALL)  # Flower's format of an error in an app
_OUT_OF_TIME = "out-of-time"
_NODE_UNAVAILABLE, _EXPIRED = 5, (3, 4)
"""Flower's codes for a node without heartbeat, and for a message or reply that no longer exists."""


def to_arrays(arrays: Arrays) -> ArrayRecord:
    """Return a model as Flower's record, in the model's order."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def from_arrays(record: ArrayRecord) -> dict[str, Any]:
    """Return a model from Flower's record."""
    return {name: value.numpy() for name, value in record.items()}


def as_arrays(model: Mapping[str, Any] | ArrayRecord) -> Arrays:
    """Return a model as arrays by name, from a state dict of tensors or arrays, or Flower's record."""
    if isinstance(model, ArrayRecord):
        return from_arrays(model)
    state: Mapping[str, Any] = model
    return {name: value.detach().cpu().numpy() if hasattr(value, "detach") else value for name, value in state.items()}


def to_content(work: Work, arrays: ArrayRecord, left_s: float) -> RecordDict:
    """Return the content of a message to a client; `left_s` is for clients whose clock is wrong."""
    config = ConfigRecord(
        {
            **work.config,
            "server-round": work.number + 1,
            "slot": work.slot,
            "number": work.number,
            "attempt": work.attempt,
            "seed": work.seed,
            "ends-at": work.ends_at.timestamp(),
            "seconds-left": left_s,
        }
    )
    return RecordDict({ARRAYS: arrays, CONFIG: config})


def to_reply(client: str, message: Message, *, verified: bool) -> Reply:
    """Return the reply in a message; an unreadable message is a failure, with the reason.

    A reported energy is used only if it is a possible number; the runner compares it with the power.
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
    if record is None:
        return Reply(client=client, outcome="failed", error=f"{client!r} replied without a model.", **times)
    try:
        arrays = from_arrays(record)
    except (TypeError, ValueError) as error:
        unreadable = f"The model of {client!r} cannot be read: {error}"
        return Reply(client=client, outcome="failed", error=unreadable, **times)
    samples = reported_number(told.get("num-examples"))
    return Reply(
        client=client, outcome="done", arrays=arrays,
        loss=next((reported_number(told[key], finite=False) for key in _LOSSES if key in told), None),
        samples=None if samples is None else int(samples), **times,
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
