"""A problem as a scenario file, for "copy as scenario": what `slackwater plan` reads back to the same problem."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from slackwater.dashboard.library import DataText
from slackwater.errors import ScenarioError
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem
from slackwater.units import utc


def scenario_text(problem: Problem, data: DataText, *, end: int | None = None) -> str:
    """TOML; an end time that was fixed is a comment, since it is an option of the command."""
    if problem.server_kg is not None or problem.available is not None:
        raise ScenarioError(
            "This plan was made in Python with arrays (server_kg or available), which a scenario file cannot hold."
        )
    if problem.traces.start.year == 1970:
        raise ScenarioError("This plan was made from costs alone (Problem.from_costs); it has no zones for a scenario.")
    return "\n".join(_lines(problem, data, end)) + "\n"


def _lines(problem: Problem, data: DataText, end: int | None) -> Iterator[str]:
    yield "# Copied from the Slackwater dashboard. Plan it with: slackwater plan scenario.toml" + (
        "" if end is None else f" --end {end}"
    )
    yield ""
    yield f"start = {utc(problem.first_slot).strftime('%Y-%m-%dT%H:%M:%SZ')}"
    yield f"rounds = {problem.rounds}"
    yield f"slack = {problem.horizon - problem.rounds}"
    yield f"fine_tune = {problem.fine_tune}"
    if problem.recall:
        yield f"recall = {problem.recall}"
    yield f"budget_kg = {value(problem.budget_kg)}"
    yield f"alpha = {value(problem.alpha)}"
    if problem.traces.slot_minutes != 60:
        yield f"slot_minutes = {problem.traces.slot_minutes}"
    if problem.round_minutes is not None:
        yield f"round_minutes = {value(problem.round_minutes)}"
    if problem.window != "all":
        yield f"window = {value(problem.window)}"
    if problem.max_parallel is not None:
        yield f"max_parallel = {problem.max_parallel}"
    yield from ("", "[data]", f"source = {value(data.source)}", f"factor = {value(data.factor)}")
    if data.fill_hours:
        yield f"fill_hours = {data.fill_hours}"
    if problem.server is not None:
        server = problem.server
        yield from ("", "[server]", f"zone = {value(server.zone)}", f"power_w = {value(server.power_w)}")
        yield f"pue = {value(server.pue)}"
    for client in problem.fleet:
        yield from ("", "[[client]]", *_client(client))


def _client(client: Client) -> Iterator[str]:
    yield f"name = {value(client.name)}"
    yield f"zone = {value(client.zone)}"
    usual = {"power_w": None, "energy_kwh": None, "idle_w": 0.0, "pue": 1.0, "min_slots": 0, "max_slots": None}
    for key, default in usual.items():
        own = getattr(client, key)
        if own != default:
            yield f"{key} = {value(own)}"
    if client.unavailable:
        yield f"unavailable = {value(list(client.unavailable))}"


def value(item: object) -> str:
    """A TOML value on one line."""
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else str(item)
    if isinstance(item, str):
        # JSON escapes as TOML does, but for DEL; half a surrogate pair, which no UTF-8 file can hold, is replaced.
        whole = item.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, Mapping):
        if set(item) == {"*"}:
            return value(item["*"])
        return "{ " + ", ".join(f"{value(str(key))} = {value(one)}" for key, one in item.items()) + " }"
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(one) for one in item) + "]"
    raise ScenarioError(f"{item!r} cannot be written into a scenario.")
