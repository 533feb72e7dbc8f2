"""Plans as JSON: readable when small, packed when large, and self-contained for training and reports."""

from __future__ import annotations

import base64
import json
import math
import os
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from slackwater._version import __version__
from slackwater.atomic import write_whole
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import Factor, Provenance, Traces
from slackwater.planning.fleet import NO_LIMIT, Fleet, Level
from slackwater.planning.plan import Plan, Recommendation
from slackwater.planning.problem import DEFAULT_ENOUGH_SHARE, SETTINGS, Problem, Server
from slackwater.units import iso, utc

FORMAT = 3
"""Format number, raised when an older version could not read the files of this one.

2: network and evaluation, which an older version would leave out of the costs.
3: starts, minimum blocks, levels, prices and a quorum, which it would leave out too. A plan is written in the lowest format
that holds it.
"""
_FIRST_SETTINGS = ("rounds", "fine_tune", "alpha", "round_minutes", "window", "max_parallel")
"""Settings in every plan file. Settings added later keep their defaults when an older file is read."""
_IF_USED = {"planner": "paper", "time_zone": "UTC", "min_parallel": None, "price_weight": 0.0, "budget_money": None,
            "goal": "budget", "rounds_each": None, "rounds_total": None, "enough_share": DEFAULT_ENOUGH_SHARE}  # fmt: skip
"""Settings that are written only if they differ from this default, so that other plans keep their text."""
_OF_GOALS = ("lower_bound_kg", "budget_limit_kg")
"""Fields of a plan that only some goals have."""
_READABLE = 100_000
"""Arrays with more entries than this are packed."""
LIMIT_VARIABLE = "SLACKWATER_MAX_PLAN_MB"
_MB = 1_000_000
_MOST_MB = 2_000
"""A million clients over a year take 1,200."""
_MOST_SLOTS = 10_000_000
_HIGHEST = 1e30
"""Highest intensity, kg/kWh; costs given as an array may be large, but their sum must be finite."""
_LONGEST_SAID = 300
_LONGEST_SCENARIO = 10_000_000
_CHUNK = 1 << 20
_SQLITE = b"SQLite format 3\0"
_DAMAGE = (
    KeyError,
    TypeError,
    IndexError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
    zlib.error,
    DataError,
)
"""Errors that a damaged plan causes. Errors of a problem's settings are ValueErrors."""


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return everything about a plan, in plain types."""
    problem, traces = plan.problem, plan.problem.traces
    small = len(problem.fleet) * problem.horizon <= _READABLE
    return {
        "format": _format(plan),
        "version": __version__,
        "status": plan.status,
        "message": plan.message,
        "objective": plan.objective,
        "upper_bound": plan.upper_bound,
        "gap": plan.gap,
        "level": plan.level,
        **{name: value for name in _OF_GOALS if (value := getattr(plan, name)) is not None},
        "emissions_kg": plan.emissions_kg,
        "emissions_by_cause_kg": plan.emissions.by_cause_kg,
        **_money(plan),
        "network_counted": problem.model_mb is not None,
        "budget_kg": problem.budget_kg,
        "seconds": plan.seconds,
        "solver": plan.solver,
        "end": plan.end,
        "window": list(plan.window),
        "ends_at": iso(plan.ends_at),
        "slot_starts": [iso(problem.slot_start(slot)) for slot in range(problem.horizon)],
        "clients": _clients(problem.fleet),
        "slots_per_client": _array(plan.slots_per_client),
        "matrix": plan.matrix.astype(int).tolist() if small else _packed(plan.packed),
        **({} if plan.levels is None else {"levels": plan.levels.tolist() if small else _packed(plan.levels)}),
        "metrics": {
            name: _array(np.array(value)) if isinstance(value, list) else value
            for name, value in plan.metrics.to_dict().items()
        },
        "problem": {
            **_settings(problem),
            "server": None
            if problem.server is None
            else {"zone": problem.server.zone, "power_w": problem.server.power_w, "pue": problem.server.pue},
            "server_kg": None if problem.server_kg is None else _array(np.asarray(problem.server_kg, dtype=float)),
            "available": None
            if problem.available is None
            else _array(np.packbits(np.asarray(problem.available, dtype=bool)[:, : problem.horizon], axis=1)),
        },
        "factor": traces.factor,
        "synthetic": traces.synthetic,
        "provenance": [known.to_dict() for known in traces.provenance],
        "intensity_kg_per_kwh": {
            "zones": list(traces.zones),
            "values": _array(traces.window(problem.first_slot, problem.horizon).intensity),
        },
        **({} if problem.price is None else {"price": _price(problem, problem.price)}),
        **({"report": dict(problem.reported_by)} if problem.reported_by else {}),
        **({} if plan.recommended is None else {"recommended": _plain(plan.recommended)}),
    }


def _format(plan: Plan) -> int:
    problem = plan.problem
    quorum = problem.min_parallel is not None
    if (
        plan.levels is not None
        or quorum
        or problem.price is not None
        or problem.costs.sleeps.any()
        or problem.fleet.levels
    ):
        return FORMAT
    return 2 if problem.model_mb is not None or problem.evaluation_share else 1


def _money(plan: Plan) -> dict[str, Any]:
    """Return the price of the electricity, if there are prices."""
    spent, price = plan.emissions, plan.problem.price
    if price is None or spent.client_money is None:
        return {}
    return {
        "money": spent.money,
        "currency": price.currency,
        "money_by_client": _array(spent.client_money),
        "server_money": spent.server_money,
    }


def _price(problem: Problem, price: Prices) -> dict[str, Any]:
    return {
        "currency": price.currency,
        "source": price.source,
        "zones": list(price.zones),
        "per_kwh": _array(price.window(problem.first_slot, problem.horizon).per_kwh),
    }


def _settings(problem: Problem) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for name in SETTINGS:
        if name in _IF_USED and getattr(problem, name) == _IF_USED[name]:
            continue
        stored[name] = getattr(problem, name)
        if name == "start":  # in this place since the first version of the format
            stored["slot_minutes"] = problem.traces.slot_minutes
    if problem.free:
        stored["free"] = sorted(problem.free)
    return stored | {
        "slack": problem.horizon - problem.rounds,
        "deadline": problem.deadline and iso(utc(problem.deadline)),
        "start": iso(problem.first_slot),
    }


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan; the file appears whole or not at all."""
    write_whole(path, json.dumps(plan_to_dict(plan), allow_nan=False))


def load_plan(path: Path) -> Plan:
    """Return a saved plan, with its emissions and metrics recomputed.

    Raises:
        SlackwaterError: The file is missing, damaged, not a plan, or too large when unpacked.
    """
    most = most_bytes()
    try:
        with path.open("rb") as file:
            content = bytearray()
            while len(content) <= most and (piece := file.read(_CHUNK)):
                content += piece
    except FileNotFoundError:
        raise SlackwaterError(
            f"There is no plan at {path}. Make one with: slackwater plan scenario.toml --out DIR"
        ) from None
    except IsADirectoryError:
        return load_plan(path / "plan.json")
    except OSError as error:
        raise SlackwaterError(f"{path} cannot be read as a plan: {error.strerror or error}.") from None
    if len(content) > most:
        raise _too_large(str(path), max(path.stat().st_size, len(content)), most)
    if content.startswith(_SQLITE):
        raise SlackwaterError(
            f"{path} is the file of a run, not a plan. Show the run with: slackwater report {path.parent}"
        )
    try:
        data = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if _is_scenario(path, content):
            raise SlackwaterError(
                f"{path} is a scenario, not a plan. First run: slackwater plan {path} --out run"
            ) from None
        raise SlackwaterError(f"{path} cannot be read as a plan: {error}. Plan again to replace it.") from None
    return plan_from_dict(data, str(path))


def plan_from_dict(data: Any, source: str) -> Plan:
    """Return the plan that `plan_to_dict` described; `source` names it in errors."""
    if not isinstance(data, dict) or "format" not in data:
        raise SlackwaterError(
            f"{source} is not a plan made by Slackwater: it has no format number. "
            "Plan again with: slackwater plan scenario.toml --out DIR"
        )
    if not isinstance(data["format"], int):
        raise SlackwaterError(
            f"{source} is damaged: its format is {data['format']!r:.40}, not a number. Plan again to replace it."
        )
    if data["format"] > FORMAT:
        raise SlackwaterError(
            f"{source} was made by Slackwater {data.get('version')!s:.40}, a newer version than this one ({__version__}). "
            "Upgrade with: pip install --upgrade slackwater"
        )
    try:
        return _plan(data, _Unpacking(source, most_bytes()))
    except _DAMAGE as error:
        said = f"{type(error).__name__}: {error}"
        raise SlackwaterError(
            f"{source} is damaged ({said if len(said) < _LONGEST_SAID else said[:_LONGEST_SAID] + ' ..'}). Plan again to "
            "replace it."
        ) from None


def most_bytes() -> int:
    """Return how much memory a plan may take when unpacked, bytes, from $SLACKWATER_MAX_PLAN_MB."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip() or str(_MOST_MB)
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) == 0:
        raise ScenarioError(f"{LIMIT_VARIABLE} is {text!r:.40}; give a whole number of megabytes, like {_MOST_MB}.")
    return int(text) * _MB


def _too_large(source: str, needed: int, most: int) -> SlackwaterError:
    return SlackwaterError(
        f"{source} would take {needed / _MB:,.0f} MB of memory, more than the {most // _MB:,} MB that a plan may take. If "
        f"you trust its source, allow more: {LIMIT_VARIABLE}={-(-needed // _MB)}"
    )


def _is_scenario(path: Path, content: bytearray) -> bool:
    if path.suffix.lower() == ".toml":
        return True
    try:
        found = tomllib.loads(content.decode("utf-8-sig")) if len(content) < _LONGEST_SCENARIO else {}
    except (ValueError, RecursionError):
        return False
    return not found.keys().isdisjoint(("client", "budget_kg", "rounds"))


def _clients(fleet: Fleet) -> Any:
    if len(fleet) * _READ_COLUMNS <= _READABLE:
        return [
            {key: getattr(client, key) for key in ("name", "zone", *_COLUMNS[:4])}
            | {"unavailable": list(client.unavailable), "min_slots": client.min_slots, "max_slots": client.max_slots}
            | {key: value for key, default in _SLEEP_COLUMNS.items() if (value := getattr(client, key)) != default}
            | ({"levels": [asdict(level) for level in client.levels]} if client.levels else {})
            for client in fleet
        ]
    used = [key for key, default in _SLEEP_COLUMNS.items() if (getattr(fleet, key) != default).any()]
    columns = {key: _packed(getattr(fleet, key)) for key in (*_COLUMNS, *used)}  # packed, since JSON has no NaN
    levels = {str(i): [asdict(level) for level in found] for i, found in fleet.levels.items()}
    return columns | {
        "names": list(fleet.names),
        "zone": list(fleet.zone),
        "unavailable": {str(i): list(p) for i, p in fleet.unavailable.items()},
        **({"levels": levels} if levels else {}),
    }


_COLUMNS = ("power_w", "idle_w", "pue", "energy_kwh", "min_slots", "max_slots")
_SLEEP_COLUMNS = {"startup_kwh": 0.0, "startup_minutes": 0.0, "min_block_slots": 1}
"""Columns that are written only where they differ from this default."""
_READ_COLUMNS = 9
"""Columns that count for whether clients are listed one by one: the six above, names, zones and periods."""


class _Unpacking:
    """Unpacks the arrays of one plan, and adds up their memory.

    Zeros are packed to a thousandth, so a file of some megabytes can unpack to gigabytes. The shape of every array
    follows from the rest of the plan. An array is unpacked only if it has that shape and fits the limit.
    """

    def __init__(self, source: str, most: int) -> None:
        self._source, self._most, self._taken = source, most, 0

    def take(self, count: int) -> None:
        """Count bytes; raise an error if one plan takes too many."""
        self._taken += count
        if self._taken > self._most:
            raise _too_large(self._source, self._taken, self._most)

    def array(self, data: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array of this shape from a list or from its packed form."""
        if not isinstance(data, dict):
            self.take(8 * math.prod(shape))
            found = np.array(data, dtype=np.float64)
            if found.shape != shape:
                raise ValueError(f"an array of shape {found.shape} instead of {shape}")
            return found
        if not isinstance(data["dtype"], str) or tuple(data["shape"]) != shape:
            raise ValueError(f"a packed array of shape {data['shape']!r:.40} instead of {shape}")
        dtype = np.dtype(data["dtype"])
        if dtype.kind not in "fiub":
            raise ValueError(f"a packed array of {dtype} instead of numbers")
        size = math.prod(shape) * dtype.itemsize
        self.take(size)
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(data["zlib"], validate=True), size + 1)
        if len(raw) != size or not unpacker.eof:
            raise ValueError(f"a packed array does not have the {size:,} bytes of its shape")
        return np.frombuffer(raw, dtype=dtype).reshape(shape)

    def bits(self, data: Any, rows: int, slots: int) -> NDArray[np.uint8]:
        """Return [row, ceil(slots / 8)], eight slots in a byte."""
        found = self.array(data, (rows, (slots + 7) // 8))
        if found.dtype != np.uint8 and (isinstance(data, dict) or not np.isin(found, range(256)).all()):
            raise ValueError("an array of other numbers instead of bits")
        return found.astype(np.uint8, copy=False)


def _fleet(data: Any, unpacking: _Unpacking) -> Fleet:
    if isinstance(data, dict):
        names, zones = _texts(data["names"], "names"), _texts(data["zone"], "zone")
        periods = {int(i): _texts(p, "unavailable") for i, p in data["unavailable"].items()}
        keys = (*_COLUMNS, *(key for key in _SLEEP_COLUMNS if key in data))
        columns = {key: unpacking.array(data[key], (len(zones),)) for key in keys}
        levels = {int(i): _levels(found) for i, found in data.get("levels", {}).items()}
        return Fleet.of(zones, names=names, unavailable=periods, levels=levels, **columns)
    return Fleet.of(
        _texts([c["zone"] for c in data], "zone"),
        names=_texts([c["name"] for c in data], "name"),
        unavailable={i: _texts(c["unavailable"], "unavailable") for i, c in enumerate(data) if c["unavailable"]},
        power_w=[np.nan if c["power_w"] is None else c["power_w"] for c in data],
        energy_kwh=[np.nan if c["energy_kwh"] is None else c["energy_kwh"] for c in data],
        max_slots=[NO_LIMIT if c["max_slots"] is None else c["max_slots"] for c in data],
        idle_w=[c["idle_w"] for c in data],
        pue=[c["pue"] for c in data],
        min_slots=[c["min_slots"] for c in data],
        levels={i: _levels(c["levels"]) for i, c in enumerate(data) if "levels" in c},
        **{key: [c.get(key, default) for c in data] for key, default in _SLEEP_COLUMNS.items()},
    )


def _levels(data: Any) -> list[Level]:
    return [Level(power_w=_number(one, "power_w"), work=_number(one, "work")) for one in data]


def _plan(data: dict[str, Any], unpacking: _Unpacking) -> Plan:
    settings, intensity = data["problem"], data["intensity_kg_per_kwh"]
    fleet = _fleet(data["clients"], unpacking)
    horizon = _whole(settings, "rounds", least=1) + _whole(settings, "slack")
    if len(data.get("slot_starts", range(horizon))) != horizon:
        raise ValueError(f"{len(data['slot_starts']):,} slots are listed, but rounds and slack make {horizon:,}")
    # Each distinct availability has its own row.
    unpacking.take(horizon * len(set(fleet.unavailable.values())))
    matrix = data["matrix"]
    if isinstance(matrix, dict):
        packed = unpacking.bits(matrix, len(fleet), horizon)
    else:
        rows = unpacking.array(matrix, (len(fleet), horizon))
        if not np.isin(rows, (0, 1)).all():
            raise ValueError("the matrix holds other numbers than 0 and 1")
        packed = np.packbits(rows.astype(bool), axis=1)
    levels = None
    if "levels" in data:
        numbers = unpacking.array(data["levels"], (len(fleet), horizon))
        most = np.array([len(fleet.levels.get(client, (None,))) for client in range(len(fleet))])
        if not np.isin(numbers, range(256)).all() or (numbers >= most[:, None]).any():
            raise ValueError("a slot has a level that its client does not have")
        levels = numbers.astype(np.uint8)
    problem = _problem(data, settings, intensity, fleet, horizon, unpacking)
    end = _whole(data, "end")
    if end > settings["slack"]:
        raise ValueError(f"s = {end} is beyond the slack of {settings['slack']}")
    if not isinstance(data["solver"], str):
        raise TypeError(f"solver is {data['solver']!r:.40}, not text")
    return Plan(
        problem=problem,
        end=end,
        packed=packed,
        objective=_number(data, "objective"),
        upper_bound=_number(data, "upper_bound"),
        gap=_number(data, "gap"),
        seconds=_number(data, "seconds"),
        solver=data["solver"],
        level=None if data["level"] is None else _number(data, "level"),
        levels=levels,
        **{name: _number(data, name) for name in _OF_GOALS if data.get(name) is not None},
        recommended=_recommendation(data.get("recommended")),  # older plans have none
    )


def _problem(
    data: dict[str, Any], settings: Any, intensity: Any, fleet: Fleet, horizon: int, unpacking: _Unpacking
) -> Problem:
    zones = _texts(intensity["zones"], "zones")
    traces = Traces(
        zones=zones,
        start=utc(_text(settings, "start")),
        intensity=unpacking.array(intensity["values"], (len(zones), horizon)).astype(np.float64, copy=False),
        factor=data["factor"],
        slot_minutes=_whole(settings, "slot_minutes", least=1),
        provenance=tuple(map(Provenance.from_dict, data["provenance"])),
    )
    if traces.intensity.max(initial=0.0) > _HIGHEST:
        raise ValueError(f"an intensity of {traces.intensity.max():g} kg/kWh")
    if traces.factor not in get_args(Factor):
        raise ValueError(f"factor is {traces.factor!r:.40}")
    for known in traces.provenance:
        if not (isinstance(known.zone, str) and isinstance(known.source, str) and isinstance(known.synthetic, bool)):
            raise TypeError("the provenance of a zone is not of the documented form")
        known.within(traces.start, traces.end)  # its hours are times
    server, server_kg, free = settings["server"], settings["server_kg"], settings["available"]
    available = None
    if free:
        unpacking.take(len(fleet) * horizon)
        available = np.unpackbits(unpacking.bits(free, len(fleet), horizon), axis=1, count=horizon)
    own = ("start", "slack", "deadline")
    return Problem(
        clients=fleet,
        traces=traces,
        budget_kg=data["budget_kg"],
        slack=None if settings["deadline"] else settings["slack"],
        deadline=settings["deadline"],
        **{"planner": _IF_USED["planner"]}
        | {
            name: settings[name]
            for name in SETTINGS
            if name in _FIRST_SETTINGS or (name in settings and name not in own)
        },
        free=frozenset(_texts(settings.get("free", []), "free")),
        server=Server(**server) if server else None,
        server_kg=unpacking.array(server_kg, (_length(server_kg),)) if server_kg else None,
        available=available,
        price=_prices(data.get("price"), traces, unpacking),
        reported_by={str(name): str(text) for name, text in dict(data.get("report", {})).items()},
    )


def _prices(data: Any, traces: Traces, unpacking: _Unpacking) -> Prices | None:
    if data is None:
        return None
    zones = _texts(data["zones"], "zones of the prices")
    return Prices(
        zones=zones,
        start=traces.start,
        per_kwh=unpacking.array(data["per_kwh"], (len(zones), traces.slots)).astype(np.float64, copy=False),
        currency=_text(data, "currency"),
        slot_minutes=traces.slot_minutes,
        source=_text(data, "source"),
    )


def _length(array: Any) -> int:
    """Return the length of an array, a list or packed, which may be longer than the horizon."""
    return _whole(dict(enumerate(array["shape"])), 0) if isinstance(array, dict) else len(array)


def _whole(data: Mapping[Any, Any], key: Any, least: int = 0) -> int:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_SLOTS:
        raise ValueError(f"{key} is {value!r:.40}, not a whole number from {least} to {_MOST_SLOTS}")
    return value


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r:.40}, not a number")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise TypeError(f"{key} is {data[key]!r:.40}, not text")
    return str(data[key])


def _texts(values: Any, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{what} must be a list of texts")
    return tuple(values)


def _plain(recommended: Recommendation) -> dict[str, Any]:
    return {**asdict(recommended), "why": list(recommended.why)}


def _recommendation(data: Any) -> Recommendation | None:
    if data is None:
        return None
    if not isinstance(data["settings"], dict):
        raise TypeError(f"the recommended settings are {data['settings']!r:.40}, not settings by name")
    json.dumps(data["settings"], allow_nan=False)
    return Recommendation(
        aggregator=_text(data, "aggregator"),
        settings=data["settings"],
        error=_number(data, "error"),
        why=_texts(data["why"], "why"),
    )


def _array(values: NDArray[Any]) -> Any:
    """Return a list, or a packed array if the list would be long."""
    return values.tolist() if values.size <= _READABLE else _packed(values)


def _packed(values: NDArray[Any]) -> dict[str, Any]:
    raw = np.ascontiguousarray(values)
    return {
        "dtype": raw.dtype.str,
        "shape": raw.shape,
        "zlib": base64.b64encode(zlib.compress(raw.tobytes(), 1)).decode(),
    }
