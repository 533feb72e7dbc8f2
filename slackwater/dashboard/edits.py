"""Edits of a scenario on the page. An edited scenario is its id, "~", and the changes as JSON: a link holds all of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.errors import ScenarioError
from slackwater.intensity.load import TYPICAL, typical_zones
from slackwater.ledger.run import FILE as RUN_FILE
from slackwater.scenario import Scenario, ScenarioEdit, edited_text, load_scenario

MARK = "~"
_MOST_CHANGES, _MOST_TEXT, _MOST_PERIODS = 6_000, 200, 50
_MOST_CHOICES, _DEEPEST = 20, 2
_CLIENT_KEYS = ("name", "zone", "power_w", "unavailable")
_KEYS = {"of", "data", "factor", "clients", "added"}


def scenario_file(path: Path, changes: str = "") -> str:
    """Return the text of a scenario file with the changes of a page.

    Raises:
        ScenarioError: The changes are not valid, or the file has changed since they were made.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path.name} cannot be read: {error}.") from None
    if not changes:
        return text
    asked = _parsed(changes)
    if asked.get("of") != tag_of(text):
        raise ScenarioError(
            f"{path.name} has changed since these edits were made. Undo all edits, and make them again."
        )
    return edited_text(text, _edit(asked, data_choices(path)))


def tag_of(text: str) -> str:
    """Return a short hash of a scenario file: the clients of an edit are numbered as they are in this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def names_data(changes: str) -> bool:
    """Return whether the changes choose another source of data."""
    return bool(changes) and "data" in _parsed(changes)


def with_settings(text: str, settings: Mapping[str, Any]) -> str:
    """Return a scenario file with settings of the sliders; slack replaces a deadline, and a budget another goal."""
    wanted = dict(settings)
    if "slack" in wanted:
        wanted["deadline"] = None
    if "budget_kg" in wanted:
        wanted |= dict.fromkeys(("goal", "rounds_each", "rounds_total", "enough_share"))
    return edited_text(text, ScenarioEdit(settings=wanted))


def edit_answer(path: Path, *, given_data: str | None, writable: bool) -> dict[str, Any]:
    """Return what the Edit panel shows: clients and data of the file as it is written, and the choices."""
    text = scenario_file(path)
    scenario = load_scenario(path, text=text)
    return {
        "file": path.name,
        "of": tag_of(text),
        "writable": writable,
        "clients": [
            {
                "name": one.name,
                "zone": one.zone,
                "power_w": one.power_w,
                "energy_kwh": one.energy_kwh,
                "unavailable": list(one.unavailable),
                "levels": len(one.levels),
            }
            for one in scenario.client
        ],
        "source": given_data or _named(scenario),
        "factor": scenario.data.factor,
        "choices": [{"id": TYPICAL, "label": "typical year (synthetic)"}]
        + [
            {"id": key, "label": "all CSV files beside the scenario" if name == "." else name}
            for key, name in data_choices(path).items()
            if key != TYPICAL
        ],
        "zones": list(typical_zones()),
    }


def data_choices(path: Path) -> dict[str, str]:
    """Return id -> what [data] source is then, of the typical year and the CSV files beside a scenario.

    A page sends ids from this list, never a path.
    """
    found, base = {TYPICAL: TYPICAL}, path.parent
    for where, folders, files in os.walk(base):  # links are not followed
        here = Path(where)
        depth = len(here.relative_to(base).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < _DEEPEST else []
        tables = sorted(name for name in files if name.lower().endswith(".csv"))
        if RUN_FILE in files or not tables:
            continue
        tables = [name for name in tables if not (here / name).is_symlink()] if depth == 0 else []
        for place in (here.relative_to(base).as_posix(), *tables):
            found["d" + hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:12]] = place
        if len(found) > _MOST_CHOICES:
            break
    return dict(list(found.items())[: _MOST_CHOICES + 1])


def _named(scenario: Scenario) -> str:
    source = scenario.data.source
    return (
        source
        if isinstance(source, str)
        else ", ".join(dict.fromkeys(name for names in source.values() for name in names))
    )


def _parsed(changes: str) -> dict[str, Any]:
    """Return the changes of a page; raise ScenarioError if they are not a table of changes."""
    if len(changes) > _MOST_CHANGES:
        raise ScenarioError(
            "There are too many changes for the page. Download the scenario file, and edit it in an editor."
        )
    try:
        asked = json.loads(changes)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict) or not set(asked) <= _KEYS:
        raise ScenarioError("The changes of this link cannot be read. Open the scenario without them.")
    return asked


def _edit(asked: Mapping[str, Any], choices: Mapping[str, str]) -> ScenarioEdit:
    data: dict[str, Any] = {}
    if "data" in asked:
        if not isinstance(asked["data"], str) or asked["data"] not in choices:
            raise ScenarioError(
                "There is no such source of data beside the scenario; it may have been moved. Reload the page."
            )
        data["source"] = choices[asked["data"]]
    if "factor" in asked:
        data["factor"] = asked["factor"]
    clients, added = asked.get("clients", {}), asked.get("added", [])
    if not isinstance(clients, dict) or not isinstance(added, list) or not all(map(str.isdecimal, clients)):
        raise ScenarioError("The changes of this link cannot be read. Open the scenario without them.")
    return ScenarioEdit(
        data=data,
        clients={int(number): None if values is None else _client(values) for number, values in clients.items()},
        added=tuple({key: value for key, value in _client(one).items() if value is not None} for one in added),
    )


def _client(values: object) -> dict[str, Any]:
    """Return the keys of a client; the scenario checks what they mean."""
    if not isinstance(values, dict) or not set(values) <= set(_CLIENT_KEYS):
        raise ScenarioError(f"A client is changed by {', '.join(_CLIENT_KEYS)}.")
    found: dict[str, Any] = {}
    for key in ("name", "zone"):
        if key in values:
            if not isinstance(values[key], str) or not 0 < len(values[key]) <= _MOST_TEXT:
                raise ScenarioError(f"The {key} of a client must be text of at most {_MOST_TEXT} letters.")
            found[key] = values[key]
    if "power_w" in values:
        power_w = values["power_w"]
        if isinstance(power_w, bool) or not isinstance(power_w, int | float):
            raise ScenarioError("power_w of a client must be a number of watts.")
        found |= {"power_w": power_w, "energy_kwh": None}
    if "unavailable" in values:
        periods = values["unavailable"]
        if (
            not isinstance(periods, list)
            or len(periods) > _MOST_PERIODS
            or not all(isinstance(one, str) for one in periods)
        ):
            raise ScenarioError(f"unavailable must be a list of at most {_MOST_PERIODS} periods.")
        found["unavailable"] = periods or None
    return found
