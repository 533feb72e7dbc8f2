"""The run's folder: everything a live run needs, so that it can be begun or taken up from anywhere.

plan.json     the plan with its problem and traces
live.json     LiveSettings
actuals.json  what a playback plays back
forecasts.json  what a provider had issued at the time, where that is known
run.db        once it has begun: ledger, rounds, attempts, checkpoint
model.pt      once it is done
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.atomic import write_whole
from slackwater.carbon.traces import Provenance, Traces
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.forecasting.files import ForecastArchive
from slackwater.ledger.run import FILE, RoundRecord
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays
from slackwater.planning.plan import Plan
from slackwater.units import iso, utc

_AGAIN = "Restore it from a backup, or prepare the run again in another folder: slackwater run scenario.toml --out DIR"
PLAN, SETTINGS, ACTUALS, FORECASTS, MODEL = "plan.json", "live.json", "actuals.json", "forecasts.json", "model.pt"


class RunStopped(SlackwaterError):
    """Asked to stop, by a signal or an event: everything is kept, and the run can be resumed."""

    exit_code = 130


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveResult:
    """What a run came to."""

    arrays: Arrays
    """The model after the last round."""
    metrics: Mapping[str, float]
    """What `evaluate` said of it; empty without it."""
    emissions_kg: float
    """All that the ledger holds; what is not settled yet is in it at its upper bound."""
    unsettled_kg: float
    """The part of it that is."""
    budget_kg: float
    history: tuple[RoundRecord, ...]
    """Every slot in which somebody's update was used."""
    shortfall: Mapping[str, float]
    """Client -> share of its weight before the window that lost slots have cost; only those that fell short."""
    seconds: float
    """Wall time of the rounds, over all sessions."""
    folder: Path


def prepare(
    folder: str | Path,
    plan: Plan,
    settings: LiveSettings | None = None,
    *,
    actuals: Traces | None = None,
    archive: ForecastArchive | None = None,
) -> Path:
    """Make the run's folder, readable by its owner alone.

    `actuals` are what a playback plays back, and `archive` what a provider had issued at the time.
    """
    settings = settings or LiveSettings()
    where = Path(folder)
    if (where / FILE).exists():
        raise ScenarioError(
            f"{where} already holds a run. Go on with it (slackwater resume {where}), or name another folder."
        )
    if (settings.source == "playback") != (actuals is not None):
        raise ScenarioError("Actuals are given with source='playback', and only with it.")
    if settings.source != "plan" and plan.problem.coupled:
        raise ScenarioError(
            "Re-planning does not know max_parallel and [server] yet. Take them out of the scenario, or follow the plan "
            "(--replan never)."
        )
    _check_margin(plan, settings)
    if settings.source == "plan" and (guessed := plan.problem.traces.forecast_zones()):
        raise ScenarioError(
            f"The plan is made on forecasts ({', '.join(guessed)}): its intensity is not what will be emitted, so it cannot "
            "be charged by it. Take source='providers' (slackwater run does), which settles with the actuals."
        )
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(where, 0o700)
    except OSError as error:
        raise SlackwaterError(f"The run folder {where} cannot be made: {error.strerror}. Name another.") from None
    if actuals is not None:
        write_whole(where / ACTUALS, json.dumps(_traces_to_dict(actuals)))
    if archive is not None:
        write_whole(where / FORECASTS, json.dumps(archive.to_dict()))
    plan.save(where / PLAN)
    write_whole(where / SETTINGS, json.dumps(settings.to_dict(), indent=1) + "\n")
    return where


def _check_margin(plan: Plan, settings: LiveSettings) -> None:
    """Raise if the margins leave clients no time to train."""
    problem, margin_s = plan.problem, settings.margin_seconds or 0.0
    slot_s = problem.slot_hours * 3600.0 if settings.slot_seconds is None else settings.slot_seconds
    length_s = slot_s * (problem.round_minutes or problem.traces.slot_minutes) / problem.traces.slot_minutes
    if length_s and 2 * margin_s >= length_s:
        raise ScenarioError(
            f"margin_seconds is {margin_s:g}: two margins, one for the client and one for the way, leave nothing of the "
            f"{length_s:g} s in which a client may train. Give less than {length_s / 2:g}."
        )


def is_live(folder: Path) -> bool:
    """Return whether a folder is a live run's."""
    return (folder / SETTINGS).is_file()


def load_settings(folder: Path) -> LiveSettings:
    """Return the settings of a prepared folder."""
    try:
        return LiveSettings.from_dict(_read(folder / SETTINGS))
    except ScenarioError as error:
        raise ScenarioError(f"{folder / SETTINGS} cannot be used: {error} {_AGAIN}") from None


def load_actuals(folder: Path) -> Traces:
    """Return the actuals of a playback."""
    data = _read(folder / ACTUALS)
    with _damage(folder / ACTUALS):
        found = Traces(
            zones=tuple(data["zones"]), start=utc(data["start"]),
            intensity=np.array(data["intensity_kg_per_kwh"], dtype=np.float64), factor=data["factor"],
            slot_minutes=data["slot_minutes"], provenance=tuple(map(Provenance.from_dict, data["provenance"])),
        )  # fmt: skip
        _ = found.end
        return found


def load_archive(folder: Path) -> ForecastArchive | None:
    """Return what a provider had issued at the time of a playback; None where nobody knows."""
    if not (folder / FORECASTS).exists():
        return None
    data = _read(folder / FORECASTS)
    with _damage(folder / FORECASTS):
        return ForecastArchive.from_dict(data)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into a sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, DataError) as error:
        raise SlackwaterError(f"{path} is damaged ({error!r}). {_AGAIN}") from None


def _traces_to_dict(traces: Traces) -> dict[str, Any]:
    return {
        "zones": list(traces.zones), "start": iso(traces.start), "slot_minutes": traces.slot_minutes,
        "factor": traces.factor, "provenance": [known.to_dict() for known in traces.provenance],
        "intensity_kg_per_kwh": traces.intensity.tolist(),
    }  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlackwaterError(
            f"There is no {path.name} in {path.parent}: it is not a live run. Make one with: slackwater run scenario.toml "
            f"--out {path.parent}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SlackwaterError(f"{path} cannot be read: {error}. {_AGAIN}") from None
    if not isinstance(data, dict):
        raise SlackwaterError(f"{path} is damaged: it holds no settings by name. {_AGAIN}")
    return data
