"""The scenario file: TOML in, a `Problem` out. Unknown keys are refused with the key that was probably meant."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo

from slackwater import time_source
from slackwater.carbon.load import TYPICAL
from slackwater.carbon.traces import Factor, Traces
from slackwater.errors import ScenarioError
from slackwater.intensity import actuals_of, traces_of
from slackwater.planning.fleet import Client, Fleet
from slackwater.planning.problem import NETWORK_KWH_PER_GB, SETTINGS, Problem, Server
from slackwater.registry import nearest, unknown_key
from slackwater.units import iso, utc

_HOUR = timedelta(hours=1)
_DAY_MINUTES = 24 * 60
MOST_SLOTS = 100_000
"""Longer horizons are a slip: this is eleven years of hours, and planning looks at every end time."""
_YEARS = range(1900, 2200)


def plausible_time(moment: str | datetime, what: str) -> datetime:
    """Return an aware UTC time that a run could have."""
    try:
        when = utc(moment, what)
        if when.year in _YEARS:
            return when
    except OverflowError:  # at either end of what a datetime can hold
        pass
    raise ScenarioError(
        f"{what} {_shown(moment)} is not in the years {_YEARS[0]} to {_YEARS[-1]}. Is the year mistyped?"
    )


class _Refused(ValueError):
    """Raised inside a validator, with the whole sentence."""


def _moment(value: object, info: ValidationInfo) -> datetime:
    """Read TOML's date-time with an offset, or ISO 8601 text."""
    key = str(info.field_name)
    if isinstance(value, datetime | str):
        try:
            return plausible_time(value, key)
        except ScenarioError as error:
            raise _Refused(str(error)) from None
    day = value.isoformat() if isinstance(value, date) else "2022-01-01"
    clock = value.isoformat() if isinstance(value, time) else "00:00:00"
    lacks = {date: " has no time of day", time: " has no date"}.get(type(value), " is not a time")
    raise _Refused(f"{key} {_shown(value)}{lacks}. Write date, time and zone, like {day}T{clock}Z.")


def _alpha(value: object) -> float | str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise _Refused(f"alpha must be a number above 0 and at most 1, or 'log' or 'max-min', not {_shown(value)}.")


def _source(value: object) -> object:
    """Check a source: text is a path or "typical"; a list names providers, a table such lists by zone."""
    if value == "":
        raise _Refused(f"source is empty. Name a CSV file or a folder of them, or {TYPICAL!r} for the embedded year.")
    if isinstance(value, str):
        return value
    example = 'A list names providers, like ["neso", "energycharts"], and a table gives such a list for each zone.'
    if not isinstance(value, list | dict):
        raise _Refused(f"source must be text in quotes, not {_shown(value)}. {example}")
    by_zone = value if isinstance(value, dict) else {"*": value}
    for names in by_zone.values():
        if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
            raise _Refused(f"source = {_shown(value)} is not understood. {example}")
    return {str(zone): tuple(names) for zone, names in by_zone.items()}


def _factor(value: object) -> object:
    if value in ("direct", "lifecycle", "marginal", "mixed"):
        return value
    raise _Refused(
        f"factor must be 'direct' or 'lifecycle', not {_shown(value)}. Providers also have 'marginal', and 'mixed' takes "
        "what each of them has."
    )


Moment = Annotated[datetime, BeforeValidator(_moment)]
Zone = Annotated[str, Field(min_length=1)]


class _Section(BaseModel):
    # Strict: pydantic would else read true as 1 and "300" as 300. Only TOML's lists are let in where a tuple is meant.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ClientSection(_Section):
    """[[client]]: one site."""

    name: str
    zone: Zone = Field(description="`slackwater zones` lists them")
    power_w: float | None = Field(None, description="draw while training, the whole of it")
    idle_w: float = Field(0.0, description="draw while waiting, charged until the run ends")
    pue: float = Field(1.0, description="of its data centre")
    energy_kwh: float | None = Field(None, description="of one round, instead of power_w")
    unavailable: tuple[str, ...] = Field((), strict=False, description="UTC")
    min_slots: int = Field(0, description="at least so many slots before the window")
    max_slots: int | None = Field(None, description="and at most so many")
    required: bool = Field(False, description="must train before the window: the same as min_slots = 1")


class DataSection(_Section):
    """[data]: where the intensity comes from."""

    source: Annotated[str | dict[str, tuple[str, ...]], BeforeValidator(_source)] = Field(
        TYPICAL,
        description="embedded and synthetic; or a CSV file or a folder of them, relative to this file",
        examples=[TYPICAL],
    )
    factor: Annotated[Factor, BeforeValidator(_factor)] = Field(
        "lifecycle", description='or "direct"', examples=["lifecycle"]
    )
    fill_hours: int = Field(
        0, description="fill gaps of up to 3 hours by interpolation (they are listed in every output)", examples=[3]
    )


class ServerSection(_Section):
    """[server]: what runs beside the clients in each slot in which anyone trains."""

    zone: Zone = Field(examples=["IE"])
    power_w: float = Field(examples=[150])
    pue: float = Field(1.0, examples=[1.2])


class ReportSection(_Section):
    """[report]: who hands in the emissions report."""

    organisation: str | None = Field(None, min_length=1, examples=["Example University"])
    preparer: str | None = Field(None, min_length=1, examples=["A. Person"])


class Scenario(_Section):
    """A whole scenario file. Each key is declared here; those of `Problem` have its names.

    `slackwater init` writes the keys with their descriptions and examples. The dashboard writes those that differ from
    their defaults.
    """

    start: Moment = Field(
        description="start of the first slot, with a time zone", examples=[datetime(2022, 1, 1, tzinfo=UTC)]
    )
    rounds: int = Field(description="T: slots the run needs at the least", examples=[10])
    budget_kg: float = Field(description="CO2e for everything below", examples=[3.0])
    slack: int | None = Field(None, description="extra slots it may take; or give a deadline instead:", examples=[90])
    deadline: Moment | None = Field(None, examples=[datetime(2022, 1, 5, 4, tzinfo=UTC)])
    fine_tune: int = Field(1, description="slots at the end in which every client trains (0 = none)", examples=[1])
    recall: int = Field(
        0, description="everybody trains at least once in so many slots before the window", examples=[10]
    )
    alpha: Annotated[float | str, BeforeValidator(_alpha)] = Field(
        0.1, description='1 = lowest carbon only, towards 0 = fair to clients; or "log", "max-min"', examples=[0.1]
    )
    slot_minutes: int = Field(60, description="length of a slot; intensity is averaged over it", examples=[60])
    round_minutes: float | None = Field(None, description="a round, where it is shorter than its slot", examples=[45])
    window: Literal["all", "available"] = Field(
        "all", description='fine-tune with those who are there; "all" (default) needs everybody', examples=["available"]
    )
    max_parallel: int | None = Field(
        None, description="at most so many clients in a slot before the window", examples=[4]
    )
    model_mb: float | None = Field(
        None, description="size of the model, MB; without it the network is not counted", examples=[12.5]
    )
    network_kwh_per_gb: float = Field(
        NETWORK_KWH_PER_GB,
        description="electricity of the network for a GB sent, to a client or back",
        examples=[NETWORK_KWH_PER_GB],
    )
    evaluation_share: float = Field(
        0.0, description="what evaluating on the clients adds to the energy of training", examples=[0.05]
    )
    data: DataSection = Field(default_factory=DataSection)
    server: ServerSection | None = Field(None, description="what runs beside the clients whenever anyone trains")
    report: ReportSection = Field(
        default_factory=ReportSection,
        description="who hands in the emissions report; `slackwater report` takes them as options too",
    )
    client: tuple[ClientSection, ...] = Field((), strict=False)
    _path: Path = PrivateAttr(Path("scenario.toml"))
    _data: str | None = PrivateAttr(None)

    @property
    def path(self) -> Path:
        """Return the file that the scenario was read from; relative paths in it start at its folder."""
        return self._path

    @property
    def source(self) -> Any:
        """Return where the intensity comes from: "typical", a path, or providers by zone."""
        return self.data.source if self._data is None else self._data

    @property
    def has_providers(self) -> bool:
        """Return whether the intensity comes from providers, not from files."""
        return not isinstance(self.source, str)

    def __repr__(self) -> str:
        """Name the file, the sites and the length of the run."""
        return (
            f"Scenario({str(self.path)!r}: {len(self.client)} clients, {self.rounds} rounds, {self.horizon} slots of "
            f"{self.slot_minutes} min from {iso(self.start)}, {self.budget_kg:g} kg)"
        )

    def changed(self, **settings: Any) -> Scenario:
        """Return the same scenario with some settings replaced; slack and deadline replace each other."""
        if settings.get("slack") is not None:
            settings.setdefault("deadline", None)
        return self.model_copy(update=settings)

    @property
    def horizon(self) -> int:
        """Return the number of slots from the start to the deadline, or with all of the slack."""
        if self.deadline is None:
            return self.rounds + (self.slack or 0)
        return int((self.deadline - self.start).total_seconds() / 60 // max(self.slot_minutes, 1))

    @property
    def length(self) -> timedelta:
        """Return the duration of the horizon."""
        return self.horizon * timedelta(minutes=self.slot_minutes)

    def problem(self, traces: Traces | None = None) -> Problem:
        """Return the planning problem.

        Args:
            traces: The intensity to plan on. Default: the scenario's own, as it is known now.
        """
        clients = Fleet.from_clients([Client(**section.model_dump()) for section in self.client])
        return Problem(
            clients=clients,
            traces=self.traces() if traces is None else traces,
            budget_kg=self.budget_kg,
            **{name: getattr(self, name) for name in SETTINGS},
            server=Server(**self.server.model_dump()) if self.server else None,
            reported_by=self.report.model_dump(exclude_none=True),
        )

    def traces(self) -> Traces:
        """Return the intensity of the run's zones over its horizon, as it is known now."""
        begin, hours = self._hours()
        return traces_of(self.located_data(), self.zones, begin, begin + hours * _HOUR, **self._where())

    def actuals(self, start: datetime | None = None, end: datetime | None = None) -> Traces:
        """Return the actuals of the run's zones in [start, end), or all that files have."""
        return actuals_of(self.located_data(), self.zones, start, end, **self._where())

    def _where(self) -> dict[str, Any]:
        return {"slot_minutes": self.slot_minutes, "folder": self.path.parent, "now": time_source.now()}

    @property
    def zones(self) -> list[str]:
        """Return the zones of all clients and of the server, in order."""
        return sorted({section.zone for section in self.client} | ({self.server.zone} if self.server else set()))

    def located_data(self) -> dict[str, Any]:
        """Return [data] with a path that does not depend on the scenario's folder."""
        source = self.source
        if self._data is None and isinstance(source, str) and source != TYPICAL:
            try:
                source = str(self.path.parent / Path(source).expanduser())
            except RuntimeError:  # ~somebody, whom the system does not know
                raise ScenarioError(f"source {source!r}: there is no such home folder. Write the path out.") from None
        return self.data.model_dump() | {"source": source}

    def _hours(self) -> tuple[datetime, int]:
        """Return which hours of intensity the horizon needs: from when, and how many."""
        step = timedelta(
            minutes=min(max(self.slot_minutes, 1), _DAY_MINUTES)
        )  # others are refused where traces are loaded
        slots = self.horizon
        if slots > MOST_SLOTS:
            raise ScenarioError(
                f"The horizon is {slots:,} slots of {self.slot_minutes} minutes, more than the {MOST_SLOTS:,} that can be "
                f"planned. Check {'deadline' if self.deadline else 'rounds, slack'} and slot_minutes."
            )
        begin = self.start
        if step < _HOUR and _HOUR % step == timedelta(0):  # within an hour: intensity is loaded by the hour
            since_hour = timedelta(minutes=begin.minute, seconds=begin.second, microseconds=begin.microsecond)
            begin -= since_hour if since_hour % step == timedelta(0) else timedelta(0)
        end = self.start + max(slots, 1) * step
        return begin, max(math.ceil((end - begin) / _HOUR), 1)


def load_scenario(path: str | Path, *, data: str | None = None, fill_hours: int | None = None) -> Scenario:
    """Read and check a scenario file.

    Args:
        path: The TOML file.
        data: A CSV file or a folder of them, which replaces the source in [data]; relative to the working directory.
        fill_hours: Gaps of up to so many hours are filled; replaces the value in [data].

    Raises:
        ScenarioError: The file is missing, is not TOML, or a key is missing, misspelt or out of range.
    """
    path = Path(path)
    try:
        # utf-8-sig: Notepad puts a byte-order mark in front.
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ScenarioError(
            f"There is no scenario at {path}. Write one to start from with: slackwater init {path}"
        ) from None
    except IsADirectoryError:
        raise ScenarioError(f"{path} is a folder. Name the scenario in it, like {path / 'scenario.toml'}.") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path} is not a text file in UTF-8. A scenario is TOML; save it as UTF-8.") from None
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if _is_plan(path):
            raise ScenarioError(
                f"{path} is a plan, not a scenario. Train by it with: slackwater train {path}, or name the scenario that "
                "it was made from."
            ) from None
        raise ScenarioError(f"{path} is not valid TOML: {error}.") from None
    try:
        scenario = Scenario.model_validate(content)
    except ValidationError as error:
        raise ScenarioError("\n".join(_sentences(path, error.errors(), content))) from None
    if fill_hours is not None:
        scenario = scenario.changed(data=scenario.data.model_copy(update={"fill_hours": fill_hours}))
    scenario._path, scenario._data = path, data
    return scenario


def _is_plan(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "format" in found and "matrix" in found


def _sentences(path: Path, errors: Iterable[Any], content: Mapping[str, Any]) -> list[str]:
    """Return pydantic's errors as sentences; a key that is missing because it is misspelt is reported once."""
    told: dict[str, None] = {}
    meant = set[tuple[str, str]]()
    for error in sorted(errors, key=lambda error: error["type"] == "missing"):
        where, model, key = _place(path, error["loc"], content)
        if error["type"] == "extra_forbidden":
            hint, near = _known(key, model)
            if near:
                meant.add((where, near))
            told[f"{where}: unknown key {key!r}; {hint}"] = None
        elif error["type"] != "missing":
            told[f"{where}: {_complaint(key, error)}"] = None
        elif (where, key) not in meant:
            told[f"{where}: {key!r} is missing. `slackwater init` writes an example with all keys."] = None
    return list(told)


def _place(path: Path, loc: Sequence[str | int], content: Mapping[str, Any]) -> tuple[str, type[_Section], str]:
    """Return where an error is, in words; the section's model; and the key."""
    first, *rest = loc
    section = _SECTIONS.get(str(first))
    if section is None or not rest:
        return str(path), Scenario, str(first)
    if not isinstance(rest[0], int):
        return f"{path}, [{first}]", section, str(rest[0])
    if len(rest) == 1:
        return str(path), Scenario, str(first)
    entry = content[str(first)][rest[0]]
    named = repr(entry["name"]) if isinstance(entry.get("name"), str) else f"number {rest[0] + 1}"
    return f"{path}, [[{first}]] {named}", section, str(rest[1])


def _known(key: str, model: type[_Section]) -> tuple[str, str | None]:
    """Return what to write instead of an unknown key, and the key that was probably meant."""
    near = nearest(key, model.model_fields, cutoff=0.5)
    if near:
        return unknown_key(key, near), near[0]
    homes: dict[str, type[_Section]] = {"": Scenario, **_SECTIONS}
    for name, home in homes.items():
        if home is not model and key in home.model_fields:
            belongs = f"in {_mark(name)}" if name else "at the top, before the first section"
            return f"it belongs {belongs}. Known here are {', '.join(model.model_fields)}.", None
    return f"known are {', '.join(model.model_fields)}.", None


def _complaint(key: str, error: Mapping[str, Any]) -> str:
    """Return key, value and fix, from an error about a value."""
    kind, value = str(error["type"]), error["input"]
    if key in _SECTIONS and kind in ("model_type", "tuple_type"):
        return f"{key!r} must be a section, written {_mark(key)}, not {_shown(value)}."
    if kind == "value_error":
        return str(error["ctx"]["error"])
    for start, wanted in _WANTED.items():
        if kind.startswith(start):
            return f"{key} must be {wanted}, not {_shown(value)}."
    expected = error.get("ctx", {}).get("expected")
    if expected:
        return f"{key} must be {expected}, not {_shown(value)}."
    return f"{key} = {_shown(value)} is not accepted: {error['msg'][:1].lower()}{error['msg'][1:]}."


def _shown(value: object) -> str:
    """Return a value as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date | time) else repr(value)


def _mark(section: str) -> str:
    return f"[[{section}]]" if section == "client" else f"[{section}]"


_SECTIONS: dict[str, type[_Section]] = {
    "client": ClientSection,
    "data": DataSection,
    "server": ServerSection,
    "report": ReportSection,
}
_WANTED = {
    "int": "a whole number, like 10",
    "finite_number": "a finite number",
    "float": "a number, without quotes or unit",
    "bool": "true or false",
    "string_too_short": "filled in",
    "string": "text in quotes",
    "tuple": 'a list, like ["sat,sun"]',
}
"""What a key wants, by how pydantic's error type begins; the first that fits."""
