"""The scenario that `slackwater init` writes: every key of the model with its example and description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import tomlkit
from pydantic import BaseModel

from slackwater.config import ClientSection, DataSection, ReportSection, Scenario, ServerSection

_COMMENTS_AT = 35
_FIRST = ("start", "rounds", "slack", "deadline", "fine_tune", "budget_kg", "alpha")
_OVERHEADS = ("model_mb", "network_kwh_per_gb", "evaluation_share")
_OPTIONAL = ("slot_minutes", "round_minutes", "window", "recall", "max_parallel")
_SET = ("start", "rounds", "slack", "fine_tune", "budget_kg", "alpha", "source", "factor")
"""Keys that the template sets; the others are comments."""
_CLIENTS: tuple[dict[str, Any], ...] = (
    {"name": "brussels", "zone": "BE", "power_w": 300},
    {"name": "london", "zone": "GB", "power_w": 300, "idle_w": 40, "pue": 1.3},
    {"name": "dublin", "zone": "IE", "power_w": 300, "min_slots": 2, "# max_slots": 30},
    {
        "name": "helsinki", "zone": "FI", "power_w": 300,
        "unavailable": ["mon-fri 08:00-16:00", "2022-01-06T00:00Z/2022-01-07T00:00Z"],
    },
    {"name": "stockholm", "zone": "SE-SE3", "power_w": 300},
    {"name": "frankfurt", "zone": "DE", "power_w": 300, "required": True},
    {"name": "paris", "zone": "FR", "energy_kwh": 0.25},
)  # fmt: skip


def _line(start: str, comment: str | None) -> str:
    return f"{start.ljust(_COMMENTS_AT - 3)}   # {comment}" if comment else start


def _value(value: object) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else tomlkit.item(value).as_string()


def _block(model: type[BaseModel], keys: Iterable[str]) -> Iterator[str]:
    names = {key: key if key in _SET else f"# {key}" for key in keys}
    width = max(map(len, [name for key, name in names.items() if key in _SET] or names.values()))
    for key, name in names.items():
        field = model.model_fields[key]
        yield _line(f"{name:<{width}} = {_value((field.examples or [field.default])[0])}", field.description)


def _client(values: dict[str, Any], told: set[str]) -> Iterator[str]:
    """Yield the lines of one client; a description is written where its key occurs first."""
    for name, value in values.items():
        key = name.removeprefix("# ")
        comment = None if key in told else ClientSection.model_fields[key].description
        told.add(key)
        yield _line(f"{name:<7} = {_value(value)}", comment)


def _lines() -> Iterator[str]:
    yield from ("# A federated run that must fit a carbon budget. Plan it with: slackwater plan scenario.toml", "")
    yield from _block(Scenario, _FIRST)
    sections = ("data", "server", "report", "client")
    others = [key for key in Scenario.model_fields if key not in (*_FIRST, *_OPTIONAL, *_OVERHEADS, *sections)]
    yield from ("", *_block(Scenario, (*_OPTIONAL, *others)), "", *_block(Scenario, _OVERHEADS))
    yield from ("", "[data]", *_block(DataSection, DataSection.model_fields))
    for name, model in (("server", ServerSection), ("report", ReportSection)):
        yield from ("", _line(f"# [{name}]", Scenario.model_fields[name].description))
        yield from _block(model, model.model_fields)
    told: set[str] = set()
    for client in _CLIENTS:
        yield from ("", "[[client]]", *_client(client, told))


SCENARIO = "\n".join(_lines()) + "\n"
