"""A problem as a scenario file, for "copy as scenario": what `slackwater plan` reads back to the same problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import tomlkit
from pydantic import BaseModel

from slackwater.config import ClientSection, DataSection, Scenario
from slackwater.dashboard.library import DataText
from slackwater.errors import ScenarioError
from slackwater.planning.problem import SETTINGS, Problem

_ALWAYS = {"slack", "fine_tune", "alpha", "source", "factor"}
"""Keys that are written even if they have their default value."""


def scenario_text(problem: Problem, data: DataText, *, end: int | None = None) -> str:
    """Return TOML; an end time that was fixed is a comment, since it is an option of the command."""
    if problem.server_kg is not None or problem.available is not None:
        raise ScenarioError(
            "This plan was made in Python with arrays (server_kg or available), which a scenario file cannot hold."
        )
    if problem.traces.start.year == 1970:
        raise ScenarioError("This plan was made from costs alone (Problem.from_costs); it has no zones for a scenario.")
    settings = {name: getattr(problem, name) for name in (*SETTINGS, "budget_kg")} | {
        "slot_minutes": problem.traces.slot_minutes,
        "slack": problem.horizon - problem.rounds,
        "deadline": None,
    }
    content: dict[str, Any] = _keys(Scenario, settings) | {"data": _keys(DataSection, asdict(data))}
    if problem.server is not None:
        content["server"] = asdict(problem.server)
    if problem.reported_by:
        content["report"] = dict(problem.reported_by)
    content["client"] = [_keys(ClientSection, asdict(client)) for client in problem.fleet]
    option = "" if end is None else f" --end {end}"
    return f"# Copied from the Slackwater dashboard. Plan it with: slackwater plan scenario.toml{option}\n\n{toml(content)}"


def _keys(section: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a section, in its order, that differ from their defaults."""
    fields = section.model_fields
    return {
        key: values[key] for key in fields if key in values and (key in _ALWAYS or values[key] != fields[key].default)
    }


def toml(content: Mapping[str, Any]) -> str:
    """Return TOML; half a surrogate pair, which no UTF-8 file can hold, is replaced."""
    return tomlkit.dumps(_plain(content)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # the same providers for every zone are a list
        return _plain(value["*"]) if set(value) == {"*"} else {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
