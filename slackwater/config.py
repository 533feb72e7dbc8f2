"""The scenario file: TOML in, a `Problem` out. Unknown keys are refused with the key that was probably meant."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from slackwater.carbon.load import TYPICAL, load_traces
from slackwater.carbon.traces import Factor, Traces
from slackwater.errors import ScenarioError
from slackwater.planning.fleet import Client, Fleet
from slackwater.planning.problem import Problem, Server
from slackwater.units import utc

_HOUR = timedelta(hours=1)
_DAY_MINUTES = 24 * 60
MOST_SLOTS = 100_000
"""Longer horizons are a slip: this is eleven years of hours, and planning looks at every end time."""
_YEARS = range(1900, 2200)


def plausible_time(moment: str | datetime, what: str) -> datetime:
    """An aware UTC time that a run could have."""
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
    """From TOML's date-time with an offset, or ISO 8601 text."""
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
    """Text is a path or "typical"; a list names providers, a table such lists by zone."""
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
    zone: Zone
    power_w: float | None = None
    idle_w: float = 0.0
    pue: float = 1.0
    energy_kwh: float | None = None
    unavailable: Annotated[tuple[str, ...], Field(strict=False)] = ()
    min_slots: int = 0
    max_slots: int | None = None
    required: bool = False


class DataSection(_Section):
    """[data]: where the intensity comes from."""

    source: Annotated[str | dict[str, tuple[str, ...]], BeforeValidator(_source)] = TYPICAL
    factor: Annotated[Factor, BeforeValidator(_factor)] = "lifecycle"
    fill_hours: int = 0


class ServerSection(_Section):
    """[server]: what runs beside the clients in each slot in which anyone trains."""

    zone: Zone
    power_w: float
    pue: float = 1.0


class Scenario(_Section):
    """A whole scenario file."""

    start: Moment
    rounds: int
    budget_kg: float
    slack: int | None = None
    deadline: Moment | None = None
    fine_tune: int = 1
    recall: int = 0
    alpha: Annotated[float | str, BeforeValidator(_alpha)] = 0.1
    slot_minutes: int = 60
    round_minutes: float | None = None
    window: Literal["all", "available"] = "all"
    max_parallel: int | None = None
    data: DataSection = Field(default_factory=DataSection)
    server: ServerSection | None = None
    client: Annotated[tuple[ClientSection, ...], Field(strict=False)] = ()

    def changed(self, **settings: Any) -> Scenario:
        """The same scenario with some settings replaced; slack and deadline replace each other."""
        if settings.get("slack") is not None:
            settings.setdefault("deadline", None)
        return self.model_copy(update=settings)

    def problem(self, folder: Path, *, data: str | None = None) -> Problem:
        """The problem with its traces; `data` replaces the scenario's source, whose relative paths start at `folder`."""
        clients = Fleet.from_clients([Client(**section.model_dump()) for section in self.client])
        zones = {section.zone for section in self.client} | ({self.server.zone} if self.server else set())
        traces = self._traces(sorted(zones), folder, data)
        return Problem(
            clients=clients,
            traces=traces,
            start=self.start,
            rounds=self.rounds,
            budget_kg=self.budget_kg,
            slack=self.slack,
            deadline=self.deadline,
            fine_tune=self.fine_tune,
            recall=self.recall,
            alpha=self.alpha,
            round_minutes=self.round_minutes,
            window=self.window,
            max_parallel=self.max_parallel,
            server=Server(**self.server.model_dump()) if self.server else None,
        )

    def _traces(self, zones: Sequence[str], folder: Path, data: str | None) -> Traces:
        begin, hours = self._hours()
        source = self.data.source if data is None else data
        if not isinstance(source, str):
            from slackwater.providers import Context
            from slackwater.providers import traces as provider_traces

            mixed = self.data.factor == "mixed"
            return provider_traces(
                zones,
                begin,
                begin + hours * _HOUR,
                providers=source,
                mix_factors=mixed,
                slot_minutes=self.slot_minutes,
                fill_hours=self.data.fill_hours,
                context=Context.usual(factor="lifecycle" if mixed else self.data.factor, folder=folder),
            )
        return load_traces(
            _located(source, folder) if data is None else source,
            zones=zones,
            start=begin,
            hours=hours,
            factor=self.data.factor,
            slot_minutes=self.slot_minutes,
            fill_hours=self.data.fill_hours,
        )

    def _hours(self) -> tuple[datetime, int]:
        """Which hours of intensity the horizon needs: from when, and how many."""
        step = timedelta(
            minutes=min(max(self.slot_minutes, 1), _DAY_MINUTES)
        )  # others are refused where traces are loaded
        slots = self.rounds + (self.slack or 0)
        if self.deadline is not None:
            slots = (self.deadline - self.start) // step
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


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file."""
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
        raise ScenarioError(f"{path} is not valid TOML: {error}.") from None
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise ScenarioError("\n".join(_sentences(path, error.errors(), content))) from None


def _located(source: str, folder: Path) -> str:
    if source == TYPICAL:
        return source
    try:
        return str(folder / Path(source).expanduser())
    except RuntimeError:  # ~somebody, whom the system does not know
        raise ScenarioError(f"source {source!r}: there is no such home folder. Write the path out.") from None


def _sentences(path: Path, errors: Iterable[Any], content: Mapping[str, Any]) -> list[str]:
    """Errors of pydantic's as sentences; a key that is missing because it is misspelt is told once, as misspelt."""
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
    """Where an error is, in words; the section's model; and the key."""
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
    """What to write instead of an unknown key, and the key that was probably meant."""
    near = difflib.get_close_matches(key.lower(), model.model_fields, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?", near[0]
    homes: dict[str, type[_Section]] = {"": Scenario, **_SECTIONS}
    for name, home in homes.items():
        if home is not model and key in home.model_fields:
            belongs = f"in {_mark(name)}" if name else "at the top, before the first section"
            return f"it belongs {belongs}. Known here are {', '.join(model.model_fields)}.", None
    return f"known are {', '.join(model.model_fields)}.", None


def _complaint(key: str, error: Mapping[str, Any]) -> str:
    """Key, value and fix, from an error about a value."""
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
    """A value as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date | time) else repr(value)


def _mark(section: str) -> str:
    return f"[[{section}]]" if section == "client" else f"[{section}]"


_SECTIONS: dict[str, type[_Section]] = {"client": ClientSection, "data": DataSection, "server": ServerSection}
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
