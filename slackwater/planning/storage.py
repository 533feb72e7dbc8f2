"""Plans as JSON: readable when small, packed when large, and self-contained, so that training and reports need nothing else."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater._version import __version__
from slackwater.carbon.traces import Provenance, Traces
from slackwater.errors import SlackwaterError
from slackwater.planning.fleet import NO_LIMIT, Fleet
from slackwater.planning.plan import Plan, Recommendation
from slackwater.planning.problem import Problem, Server
from slackwater.units import iso, utc

FORMAT = 1
"""Raised when a file of this version could not be read by an older one."""
_READABLE = 100_000
"""Arrays with more entries than this are packed."""


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Everything about a plan, in plain types."""
    problem, traces = plan.problem, plan.problem.traces
    small = len(problem.fleet) * problem.horizon <= _READABLE
    return {
        "format": FORMAT,
        "version": __version__,
        "status": plan.status,
        "message": plan.message,
        "objective": plan.objective,
        "upper_bound": plan.upper_bound,
        "gap": plan.gap,
        "level": plan.level,
        "emissions_kg": plan.emissions_kg,
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
        "metrics": {
            name: _array(np.array(value)) if isinstance(value, list) else value
            for name, value in plan.metrics.to_dict().items()
        },
        "problem": {
            "rounds": problem.rounds,
            "slack": problem.horizon - problem.rounds,
            "deadline": problem.deadline and iso(utc(problem.deadline)),
            "fine_tune": problem.fine_tune,
            "recall": problem.recall,
            "alpha": problem.alpha,
            "start": iso(problem.first_slot),
            "slot_minutes": traces.slot_minutes,
            "round_minutes": problem.round_minutes,
            "window": problem.window,
            "max_parallel": problem.max_parallel,
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
        **({} if plan.recommended is None else {"recommended": asdict(plan.recommended)}),
    }


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan; the file appears whole or not at all."""
    write_whole(path, json.dumps(plan_to_dict(plan), allow_nan=False))


def load_plan(path: Path) -> Plan:
    """Read a plan that was saved; its emissions and metrics are counted anew."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlackwaterError(
            f"There is no plan at {path}. Make one with: slackwater plan scenario.toml --out DIR"
        ) from None
    except IsADirectoryError:
        return load_plan(path / "plan.json")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SlackwaterError(f"{path} cannot be read as a plan: {error}. Plan again to replace it.") from None
    return plan_from_dict(data, str(path))


def plan_from_dict(data: Any, source: str) -> Plan:
    """The plan that `plan_to_dict` described; `source` is what errors call it."""
    if not isinstance(data, dict) or "format" not in data:
        raise SlackwaterError(f"{source} is not a plan made by Slackwater: it has no format number.")
    if not isinstance(data["format"], int):
        raise SlackwaterError(
            f"{source} is damaged: its format is {data['format']!r}, not a number. Plan again to replace it."
        )
    if data["format"] > FORMAT:
        raise SlackwaterError(
            f"{source} was made by Slackwater {data.get('version')}, a newer version than this one ({__version__}). "
            "Upgrade with: pip install --upgrade slackwater"
        )
    try:
        return _plan(data)
    except (KeyError, TypeError, IndexError, ValueError, zlib.error) as error:
        raise SlackwaterError(
            f"{source} is damaged ({type(error).__name__}: {error}). Plan again to replace it."
        ) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically, making its folder."""
    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=".tmp", delete=False) as file:
            part = file.name
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise SlackwaterError(
            f"{path} cannot be written: {error.strerror or error}. What was there is unchanged."
        ) from None
    finally:
        if part is not None:
            Path(part).unlink(missing_ok=True)


def _clients(fleet: Fleet) -> Any:
    if len(fleet) * len(fleet.__slots__) <= _READABLE:
        return [
            {key: getattr(client, key) for key in client.__slots__ if key != "required"}
            | {"unavailable": list(client.unavailable)}
            for client in fleet
        ]
    columns = {key: _packed(getattr(fleet, key)) for key in _COLUMNS}  # packed, since JSON has no NaN
    return columns | {
        "names": list(fleet.names),
        "zone": list(fleet.zone),
        "unavailable": {str(i): list(p) for i, p in fleet.unavailable.items()},
    }


_COLUMNS = ("power_w", "idle_w", "pue", "energy_kwh", "min_slots", "max_slots")


def _fleet(data: Any) -> Fleet:
    if isinstance(data, dict):
        periods = {int(i): tuple(p) for i, p in data["unavailable"].items()}
        columns = {key: _unarray(data[key]) for key in _COLUMNS}
        return Fleet.of(data["zone"], names=data["names"], unavailable=periods, **columns)
    return Fleet.of(
        [c["zone"] for c in data],
        names=[c["name"] for c in data],
        unavailable={i: tuple(c["unavailable"]) for i, c in enumerate(data) if c["unavailable"]},
        power_w=[np.nan if c["power_w"] is None else c["power_w"] for c in data],
        energy_kwh=[np.nan if c["energy_kwh"] is None else c["energy_kwh"] for c in data],
        max_slots=[NO_LIMIT if c["max_slots"] is None else c["max_slots"] for c in data],
        idle_w=[c["idle_w"] for c in data],
        pue=[c["pue"] for c in data],
        min_slots=[c["min_slots"] for c in data],
    )


def _plan(data: dict[str, Any]) -> Plan:
    settings, intensity = data["problem"], data["intensity_kg_per_kwh"]
    fleet = _fleet(data["clients"])
    horizon = settings["rounds"] + settings["slack"]
    free = settings["available"]
    problem = Problem(
        clients=fleet,
        traces=Traces(
            zones=tuple(intensity["zones"]),
            start=utc(settings["start"]),
            intensity=_unarray(intensity["values"]).astype(np.float64),
            factor=data["factor"],
            slot_minutes=settings["slot_minutes"],
            provenance=tuple(map(Provenance.from_dict, data["provenance"])),
        ),
        rounds=settings["rounds"],
        budget_kg=data["budget_kg"],
        slack=None if settings["deadline"] else settings["slack"],
        deadline=settings["deadline"],
        fine_tune=settings["fine_tune"],
        recall=settings.get("recall", 0),  # plans made before there was one ask for none
        alpha=settings["alpha"],
        round_minutes=settings["round_minutes"],
        window=settings["window"],
        max_parallel=settings["max_parallel"],
        server=Server(**settings["server"]) if settings["server"] else None,
        server_kg=_unarray(settings["server_kg"]) if settings["server_kg"] else None,
        available=np.unpackbits(_unarray(free).astype(np.uint8), axis=1, count=horizon) if free else None,
    )
    matrix = data["matrix"]
    packed = _unarray(matrix) if isinstance(matrix, dict) else np.packbits(_rows(matrix, horizon), axis=1)
    if packed.shape != (len(fleet), (horizon + 7) // 8) or not 0 <= data["end"] <= settings["slack"]:
        raise ValueError(f"a matrix of {packed.shape} bytes and s = {data['end']} do not fit the problem")
    return Plan(
        problem=problem,
        end=data["end"],
        packed=packed,
        objective=data["objective"],
        upper_bound=data["upper_bound"],
        gap=data["gap"],
        seconds=data["seconds"],
        solver=data["solver"],
        level=data["level"],
        recommended=_recommendation(data.get("recommended")),  # plans made before there was one have none
    )


def _recommendation(data: Any) -> Recommendation | None:
    return None if data is None else Recommendation(**{**data, "why": tuple(data["why"])})


def _rows(matrix: list[list[int]], horizon: int) -> NDArray[np.bool_]:
    rows = np.array(matrix, dtype=bool)
    if rows.ndim != 2 or rows.shape[1] != horizon:
        raise ValueError(f"a matrix of shape {rows.shape} for {horizon} slots")
    return rows


def _array(values: NDArray[Any]) -> Any:
    """A list, or a packed array where that would be long."""
    return values.tolist() if values.size <= _READABLE else _packed(values)


def _packed(values: NDArray[Any]) -> dict[str, Any]:
    raw = np.ascontiguousarray(values)
    return {
        "dtype": raw.dtype.str,
        "shape": raw.shape,
        "zlib": base64.b64encode(zlib.compress(raw.tobytes(), 1)).decode(),
    }


def _unarray(data: Any) -> NDArray[Any]:
    if not isinstance(data, dict):
        return np.array(data)
    return np.frombuffer(zlib.decompress(base64.b64decode(data["zlib"])), dtype=data["dtype"]).reshape(data["shape"])
