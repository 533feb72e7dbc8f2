"""The run folder: settings, plan and actuals, so that a live run can be started or resumed from anywhere."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slackwater.atomic import write_whole
from slackwater.errors import DataError, ScenarioError, SlackwaterError
from slackwater.intensity.forecast.archive import ForecastArchive
from slackwater.intensity.traces import Provenance, Traces
from slackwater.ledger.run import FILE, RoundRecord
from slackwater.ledger.schema import RunKind
from slackwater.live.sites import Arrays
from slackwater.planning.plan import DEFAULT_AGGREGATOR, MEMORY_DTYPES, Plan
from slackwater.registry import unknown_key
from slackwater.replanning.run_state import Settings as Replanning
from slackwater.units import iso, utc

Source = Literal["plan", "playback", "providers"]
"""Where actual intensity comes from. `plan`: the plan's traces are the actuals, and its schedule is fixed. `playback`:
`actuals.json` in the folder, of which a run sees only what was known at the time. `providers`: asked during the run.
With the last two, the run re-plans."""

Weighting = Literal["equal", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Settings of a live run."""

    aggregator: str = DEFAULT_AGGREGATOR
    """How updates are combined before the window; in it they are averaged."""
    weighting: Weighting = "equal"
    """`equal`: every client counts alike, the paper's objective. `samples`: by its number of samples, as FedAvg does.
    A strategy of Flower weights as it does by itself."""
    server: str = "plain"
    """Server optimiser: plain, momentum or adam."""
    server_lr: float | None = None
    memory_dtype: str = "float32"
    """Type of stored updates: float32 keeps them unchanged; float16 and bfloat16 halve memory and disk space."""
    seed: int = 0
    eval_every: int = 1
    """Rounds between calls of `evaluate`; the last model is always evaluated."""
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The user's settings of local training, sent to the clients unchanged."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the engine: the app's folder, the SuperLink's name."""

    source: Source = "plan"
    replan_slots: int | None = None
    """Slots between re-plans; None: never. With the source `plan` the run never re-plans."""
    forecast: str | None = None
    """Name of the forecaster. Default: the providers' own forecast; for a playback, persistence."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For `providers`: the scenario's [data] (source, factor and fill_hours), and the folder of its relative paths."""
    lag_slots: int = 1
    """For `playback`: slots after its end until a slot's actual is known."""
    reserve: float = Replanning().reserve
    """Intended probability that a plan keeps the budget; 0: no reserve."""
    bound: float = Replanning().margin
    """Margin of the upper bound of intensity above the largest observed rise and level."""

    slot_seconds: float | None = None
    """Wall time of a slot. None: its real time. 0: no waiting, a slot lasts as long as its round."""
    margin_seconds: float | None = None
    """How long before the end of its time a client must reply. Default: a twentieth of it, at most a minute."""
    latest_start: float = 0.5
    """Share of a slot after which its round does not start any more."""

    max_norm_ratio: float | None = 10.0
    """An update longer than this many times the median of the recent ones is rejected; None rejects none for length."""
    max_rejections: int = 3
    """Rejected updates after which a client is excluded."""
    gone_after: int = 3
    """Consecutive offline slots after which plans leave a client out until it is back."""
    makeup: float = 3.0
    """Largest multiple of its planned weight that an update gets to make up for lost ones."""
    buffers: tuple[str, ...] = ()
    """Further name endings of model arrays that are averaged, like BatchNorm's statistics."""

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "buffers", tuple(self.buffers))
        for name, least in (("seed", 0), ("eval_every", 0), ("lag_slots", 0), ("max_rejections", 1), ("gone_after", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ScenarioError(f"{name} must be a whole number of at least {least}, not {value!r}.")
        for name, least in (
            ("server_lr", 0),
            ("slot_seconds", 0),
            ("margin_seconds", 0),
            ("max_norm_ratio", 1),
            ("makeup", 1),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and math.isfinite(value) and value >= least
            if not is_number and (value is not None or name == "makeup"):
                raise ScenarioError(f"{name} must be a number of at least {least:g}, not {value!r}.")
        if not 0 < self.latest_start <= 1:
            raise ScenarioError(f"latest_start must be above 0 and at most 1, not {self.latest_start!r}.")
        if self.weighting not in ("equal", "samples"):
            raise ScenarioError(f"weighting must be equal or samples, not {self.weighting!r}.")
        if self.source not in ("plan", "playback", "providers"):
            raise ScenarioError(f"source must be plan, playback or providers, not {self.source!r}.")
        if self.source == "plan" and self.replan_slots is not None:
            raise ScenarioError("Re-planning needs source 'playback' or 'providers', not 'plan'.")
        if self.source == "providers" and self.slot_seconds is not None:
            raise ScenarioError(
                "slot_seconds needs recorded actuals: use source='playback', or leave slot_seconds out."
            )
        _ = self.replanning

    @property
    def kind(self) -> RunKind:
        """Return the kind of the run: live in real time, rehearsed on a past period, else simulated."""
        if self.slot_seconds is None:
            return "live"
        return "rehearsed" if self.source == "playback" else "simulated"

    @property
    def replanning(self) -> Replanning:
        """Return the controller's settings."""
        return Replanning(replan_slots=self.replan_slots, reserve=self.reserve, margin=self.bound)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them."""
        return asdict(self) | {"buffers": list(self.buffers)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LiveSettings:
        """Return settings from JSON; raise for an unknown key."""
        known = [one.name for one in fields(cls)]
        for key in data:
            if key not in known:
                raise ScenarioError(f"A live run has no setting {key!r}; {unknown_key(key, known)}")
        try:
            return cls(**data)
        except ScenarioError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise ScenarioError(f"The settings of the live run are damaged: {error}.") from None

    def _check_types(self) -> None:
        """Reject values of a damaged live.json that are not names or tables."""
        for name in ("aggregator", "server", "memory_dtype", "source", "forecast"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "forecast" and value is None):
                raise ScenarioError(f"{name} must be a name, not {value!r}.")
        if self.memory_dtype not in MEMORY_DTYPES:
            raise ScenarioError(f"memory_dtype must be one of {', '.join(MEMORY_DTYPES)}, not {self.memory_dtype!r}.")
        for name in ("config", "engine", "data"):
            if not isinstance(getattr(self, name), Mapping):
                raise ScenarioError(f"{name} must be a table, not {getattr(self, name)!r}.")
        if isinstance(self.buffers, str) or not all(isinstance(ending, str) for ending in self.buffers):
            raise ScenarioError(f"buffers must be a list of name endings, not {self.buffers!r}.")


_AGAIN = "Restore it from a backup, or prepare the run again in another folder: slackwater run scenario.toml --out DIR"
PLAN, SETTINGS, ACTUALS, FORECASTS, MODEL = "plan.json", "live.json", "actuals.json", "forecasts.json", "model.pt"


class NoRoundsError(SlackwaterError):
    """The plan is over, and not one round was held: there is no model."""


class RunStopped(SlackwaterError):
    """A signal or an event stopped the run: everything is saved, and it can be resumed."""

    exit_code = 130


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveResult:
    """The result of a live run."""

    arrays: Arrays
    """The model after the last round."""
    metrics: Mapping[str, float]
    """What `evaluate` returned for it; empty without `evaluate`."""
    emissions_kg: float
    """Sum of the ledger; unsettled charges count at their upper bound."""
    unsettled_kg: float
    """The part of it that is not settled."""
    budget_kg: float
    history: tuple[RoundRecord, ...]
    """Every slot with a used update."""
    shortfall: Mapping[str, float]
    """Client -> share of its weight before the window that it lost with its slots; only clients that lost some."""
    seconds: float
    """Wall time of the rounds, over all sessions."""
    folder: Path


def refuse_begun(folder: str | Path) -> Path:
    """Return the path of a run folder; raise ScenarioError if a run has begun in it. Called before any planning too."""
    where = Path(folder)
    if (where / FILE).exists():
        raise ScenarioError(
            f"{where} already holds a run. Resume it with: slackwater resume {where}. Or name another folder."
        )
    return where


def prepare(
    folder: str | Path,
    plan: Plan,
    settings: LiveSettings | None = None,
    *,
    actuals: Traces | None = None,
    archive: ForecastArchive | None = None,
) -> Path:
    """Create the run folder, readable only by its owner.

    `actuals` are the recorded intensity of a playback, and `archive` the forecasts issued at the time.
    """
    settings = settings or LiveSettings()
    where = refuse_begun(folder)
    if (settings.source == "playback") != (actuals is not None):
        raise ScenarioError("source='playback' needs actuals, and other sources take none.")
    _check_margin(plan, settings)
    if settings.source == "plan" and (guessed := plan.problem.traces.forecast_zones()):
        raise ScenarioError(
            f"The plan uses forecasts ({', '.join(guessed)}), which cannot be charged as actual intensity. Use "
            "source='providers', as slackwater run does, which settles with the actuals."
        )
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(where, 0o700)
    except OSError as error:
        raise SlackwaterError(
            f"The run folder {where} cannot be created: {error.strerror}. Name another folder."
        ) from None
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
            f"margin_seconds is {margin_s:g}, but two margins (client and network) must fit into the {length_s:g} s in which "
            f"a client may train. Give less than {length_s / 2:g}."
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
    """Return the forecasts issued at the time of a playback; None if unknown."""
    if not (folder / FORECASTS).exists():
        return None
    data = _read(folder / FORECASTS)
    with _damage(folder / FORECASTS):
        return ForecastArchive.from_dict(data)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn errors from reading a damaged file into a clear message."""
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
            f"{path.parent} is not a live run: it has no {path.name}. Start one with: slackwater run scenario.toml --out "
            f"{path.parent}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SlackwaterError(f"{path} cannot be read: {error}. {_AGAIN}") from None
    if not isinstance(data, dict):
        raise SlackwaterError(f"{path} is damaged: it is not a table of settings. {_AGAIN}")
    return data
