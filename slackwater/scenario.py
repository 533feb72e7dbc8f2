"""The scenario file: its keys, reading and writing TOML, and conversion to a `Problem` and its traces."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError
from tomlkit.items import AoT, Table

from slackwater import time_source
from slackwater.errors import ScenarioError
from slackwater.intensity.cloud import grid_zone
from slackwater.intensity.feed import actuals_of, traces_of
from slackwater.intensity.files import read_prices
from slackwater.intensity.load import TYPICAL
from slackwater.intensity.prices import DEFAULT_CURRENCY, Prices
from slackwater.intensity.traces import Factor, Traces
from slackwater.planning.fleet import Client, Fleet, localised
from slackwater.planning.problem import DEFAULT_ENOUGH_SHARE, NETWORK_KWH_PER_GB, SETTINGS, Problem, Server
from slackwater.registry import nearest, unknown_key
from slackwater.units import iso, time_zone, utc

_HOUR = timedelta(hours=1)
_DAY_MINUTES = 24 * 60
MOST_SLOTS = 100_000
"""Longest horizon: eleven years of hours. A longer one is a typing error, and planning would try every end time."""
_YEARS = range(1900, 2200)


def plausible_time(moment: str | datetime, what: str, zone: str | None = None) -> datetime:
    """Return an aware UTC time that a run could have; `zone` is the time zone of a time without one."""
    try:
        when = utc(moment, what, None if zone is None else time_zone(zone))
        if when.year in _YEARS:
            return when
    except OverflowError:  # outside the range of datetime
        pass
    raise ScenarioError(
        f"{what} {_shown(moment)} is not in the years {_YEARS[0]} to {_YEARS[-1]}. Is the year mistyped?"
    )


class _Refused(ValueError):
    """Raised inside a validator, with the complete message."""


def _moment(value: object, info: ValidationInfo) -> datetime:
    """Read TOML's date-time with an offset, or ISO 8601 text."""
    key = str(info.field_name)
    if isinstance(value, datetime | str):
        try:
            return plausible_time(value, key, info.data.get("time_zone", "UTC"))  # it is missing if it is wrong
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
            raise _Refused(f"source = {_shown(value)} is not valid. {example}")
    return {str(zone): tuple(names) for zone, names in by_zone.items()}


def _factor(value: object) -> object:
    if value in ("direct", "lifecycle", "marginal", "mixed"):
        return value
    raise _Refused(
        f"factor must be 'direct' or 'lifecycle', not {_shown(value)}. Providers also have 'marginal'; 'mixed' takes "
        "what each has."
    )


def _time_zone(value: object) -> object:
    try:
        if isinstance(value, str):
            time_zone(value)
    except ScenarioError as error:
        raise _Refused(str(error)) from None
    return value


def _zone(value: str) -> str:
    try:
        return grid_zone(value)
    except ScenarioError as error:
        raise _Refused(str(error)) from None


def _budget(value: float | None, info: ValidationInfo) -> float | None:
    """Ask for a budget, except where it is the answer."""
    if value is None and info.data.get("goal", "work") != "work":
        raise PydanticCustomError("missing", "missing")
    return value


TimeZone = Annotated[str | None, BeforeValidator(_time_zone)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Zone = Annotated[str, Field(min_length=1), AfterValidator(_zone)]


class _Section(BaseModel):
    # Strict: otherwise pydantic reads true as 1 and "300" as 300. Only tuples are not strict, since TOML has lists.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class LevelSection(_Section):
    """One operating point in a client's levels."""

    power_w: float = Field(description="Total power while training at this level, in W.")
    work: float = Field(description="Work of a round at this level, as a share of that at full power (1.0).")


class ClientSection(_Section):
    """[[client]]: one site."""

    name: str = Field(description="Name of the client in plans and reports; must be unique.")
    zone: Zone = Field(
        description="Electricity zone of the site, or a cloud region like aws:eu-west-3. `slackwater zones` lists zones."
    )
    power_w: float | None = Field(None, description="Total power while training, in W. Give this or energy_kwh.")
    idle_w: float = Field(
        0.0, description="Power while waiting, in W. Charged in every slot until the run ends, or while it is up."
    )
    pue: float = Field(1.0, description="Power usage effectiveness of the data centre, at least 1.")
    energy_kwh: float | None = Field(
        None, description="Energy that one round adds to the idle draw, in kWh. Replaces power_w."
    )
    unavailable: tuple[str, ...] = Field(
        (), strict=False, description="Periods without training, in the site's time zone."
    )
    time_zone: TimeZone = Field(None, description="Time zone of `unavailable`. Default: the scenario's time_zone.")
    min_slots: int = Field(0, description="Fewest slots in which the client trains before the window.")
    max_slots: int | None = Field(None, description="Most slots before the window. Default: no limit.")
    required: bool = Field(False, description="true: the client must train before the window, like min_slots = 1.")
    startup_kwh: float = Field(
        0.0, description="Energy of one start, in kWh. With this or the next two keys the client is off between blocks."
    )
    startup_minutes: float = Field(0.0, description="Time that a start takes before the first slot, in minutes.")
    min_block_slots: int = Field(1, description="Fewest slots in a row that the client is up once started.")
    levels: tuple[LevelSection, ...] = Field(
        (),
        strict=False,
        description="Operating points: power and share of the work. Exactly one has work = 1.",
    )


class DataSection(_Section):
    """[data]: where the intensity comes from."""

    source: Annotated[str | dict[str, tuple[str, ...]], BeforeValidator(_source)] = Field(
        TYPICAL,
        description='"typical" (embedded, synthetic), a CSV file or folder relative to this file, or providers.',
        examples=[TYPICAL],
    )
    factor: Annotated[Factor, BeforeValidator(_factor)] = Field(
        "lifecycle",
        description='"lifecycle" or "direct". Providers also have "marginal"; "mixed" takes what each has.',
        examples=["lifecycle"],
    )
    fill_hours: int = Field(
        0, description="Longest gap to fill by interpolation, in hours. Every output lists filled gaps.", examples=[3]
    )


class ServerSection(_Section):
    """[server]: the machine that runs in every slot in which a client trains."""

    zone: Zone = Field(description="Electricity zone of the server.", examples=["IE"])
    power_w: float = Field(description="Power of the server, in W.", examples=[150])
    pue: float = Field(1.0, description="Power usage effectiveness of its data centre, at least 1.", examples=[1.2])


class PriceSection(_Section):
    """[price]: what electricity costs, beside what it emits."""

    file: str = Field(
        min_length=1,
        description="CSV file relative to this file: datetime_utc and a column for each zone, or datetime_utc, zone, price.",
        examples=["prices.csv"],
    )
    currency: str = Field(
        DEFAULT_CURRENCY, min_length=1, description="Currency of the prices.", examples=[DEFAULT_CURRENCY]
    )
    unit: str | None = Field(
        None,
        min_length=1,
        description='Unit of the prices: currency per kWh or per MWh. Default: "EUR/kWh", with the currency.',
        examples=["EUR/MWh"],
    )


class ReportSection(_Section):
    """[report]: names on the emissions report."""

    organisation: str | None = Field(
        None, min_length=1, description="Organisation that reports.", examples=["Example University"]
    )
    preparer: str | None = Field(
        None, min_length=1, description="Person who prepared the report.", examples=["A. Person"]
    )


class Scenario(_Section):
    """A whole scenario file. Each key is declared here; those of `Problem` have its names.

    `slackwater init` writes the keys with their descriptions and examples. The dashboard writes those that differ from
    their defaults.
    """

    time_zone: TimeZone = Field(
        None,
        description="Time zone of unavailable periods, charts, and a start or deadline without one. Default: UTC.",
        examples=["Europe/Paris"],
    )
    start: Moment = Field(
        description="Start of the first slot, with a time zone.", examples=[datetime(2022, 1, 1, tzinfo=UTC)]
    )
    rounds: int = Field(
        description="Length of the run without slack, in slots. The budget decides how many rounds are held.",
        examples=[10],
    )
    goal: Literal["budget", "work", "enough"] = Field(
        "budget",
        description='"budget": best training in it. "work": given rounds, least carbon. "enough": stop in time.',
        examples=["work"],
    )
    budget_kg: Annotated[float | None, AfterValidator(_budget)] = Field(
        None,
        validate_default=True,
        description='Most CO2e that the whole run may emit, in kg. Optional with goal = "work".',
        examples=[3.0],
    )
    rounds_each: int | None = Field(
        None, description='Rounds for every client, window included. With goal = "work".', examples=[20]
    )
    rounds_total: int | None = Field(
        None, description="Client-rounds of all clients together, instead of rounds_each.", examples=[100]
    )
    enough_share: float = Field(
        DEFAULT_ENOUGH_SHARE,
        description='With goal = "enough": 10 % more budget must lower the predicted error (1 at first) by this much.',
        examples=[DEFAULT_ENOUGH_SHARE],
    )
    slack: int | None = Field(
        None, description="Extra slots that the run may take. Default: 0, or up to the deadline.", examples=[90]
    )
    deadline: Moment | None = Field(
        None,
        description="Time by which the run must end. Give slack or a deadline, not both.",
        examples=[datetime(2022, 1, 5, 4, tzinfo=UTC)],
    )
    fine_tune: int | None = Field(
        None, description="Fine-tuning window: slots at the end in which every client trains. 0: none.", examples=[1]
    )
    recall: int | None = Field(
        None,
        description="Every available client trains at least once in this many slots before the window. 0: off.",
        examples=[10],
    )
    alpha: Annotated[float | str | None, BeforeValidator(_alpha)] = Field(
        None, description='1: lowest carbon only; towards 0: fair to clients. Or "log", "max-min".', examples=[0.1]
    )
    planner: Literal["auto", "paper"] = Field(
        "auto",
        description='"auto" chooses fine_tune, recall, alpha and the end, if they are not set. "paper": 1, 0, 0.1.',
        examples=["paper"],
    )
    slot_minutes: int = Field(
        60, description="Length of a slot: a divisor of 60, or whole hours that divide a day.", examples=[60]
    )
    round_minutes: float | None = Field(
        None, description="Length of a round, if shorter than a slot. Default: the slot.", examples=[45]
    )
    window: Literal["all", "available"] = Field(
        "all",
        description='"all": the window needs every client. "available": it skips unavailable clients.',
        examples=["available"],
    )
    max_parallel: int | None = Field(
        None, description="Most clients in one slot before the window. Default: no limit.", examples=[4]
    )
    min_parallel: int | None = Field(
        None, description="Fewest clients in a used slot before the window (quorum). Default: no limit.", examples=[2]
    )
    price_weight: float = Field(
        0.0,
        description="kg CO2e that one unit of currency counts as when slots are chosen. Needs [price].",
        examples=[0.5],
    )
    budget_money: float | None = Field(
        None,
        description="Most that the electricity may cost, in the currency of [price]. Default: no limit.",
        examples=[5.0],
    )
    model_mb: float | None = Field(
        None,
        description="Size of the model, in MB (10^6 bytes). Without it the network is not counted.",
        examples=[12.5],
    )
    network_kwh_per_gb: float = Field(
        NETWORK_KWH_PER_GB,
        description="Electricity that the network uses to send 1 GB, in kWh.",
        examples=[NETWORK_KWH_PER_GB],
    )
    evaluation_share: float = Field(
        0.0, description="Energy of evaluation on the clients, as a share of the energy of training.", examples=[0.05]
    )
    data: DataSection = Field(default_factory=DataSection, description="Source of the carbon intensity.")
    server: ServerSection | None = Field(None, description="Machine that runs in every slot in which a client trains.")
    price: PriceSection | None = Field(None, description="Price of electricity, reported beside its carbon.")
    report: ReportSection = Field(
        default_factory=ReportSection,
        description="Names on the emissions report. Options of `slackwater report` replace them.",
    )
    client: tuple[ClientSection, ...] = Field((), strict=False, description="One site. Repeat for each client.")
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
            f"{self.slot_minutes} min from {iso(self.start)}, {'no budget' if self.budget_kg is None else f'{self.budget_kg:g} kg'})"
        )

    def changed(self, **settings: Any) -> Scenario:
        """Return the same scenario with some settings replaced; slack and deadline replace each other."""
        if settings.get("slack") is not None:
            settings.setdefault("deadline", None)
        elif settings.get("deadline") is not None:
            settings.setdefault("slack", None)
        return self.model_copy(update=settings)

    @property
    def horizon(self) -> int:
        """Return the number of slots from the start to the deadline, or with all of the slack."""
        if self.deadline is None:
            return self.rounds + (self.slack or 0)
        return int((self.deadline - self.start).total_seconds() / 60 // max(self.slot_minutes, 1))

    @property
    def slots_of_slack(self) -> int:
        """Return the slack, also of a scenario with a deadline."""
        return self.horizon - self.rounds

    @property
    def length(self) -> timedelta:
        """Return the duration of the horizon."""
        return self.horizon * timedelta(minutes=self.slot_minutes)

    def problem(self, traces: Traces | None = None) -> Problem:
        """Return the planning problem.

        Args:
            traces: The intensity to plan on. Default: the scenario's own, as it is known now.
        """
        clients = Fleet.from_clients([self._client(section) for section in self.client])
        return Problem(
            clients=clients,
            traces=self.traces() if traces is None else traces,
            budget_kg=math.inf if self.budget_kg is None else self.budget_kg,
            **{name: getattr(self, name) for name in SETTINGS} | {"time_zone": self.time_zone or "UTC"},
            server=Server(**self.server.model_dump()) if self.server else None,
            price=self.prices(),
            reported_by=self.report.model_dump(exclude_none=True),
        )

    def _client(self, section: ClientSection) -> Client:
        """Return a site; its unavailable periods are in its own time zone, or the scenario's."""
        values = section.model_dump()
        zone = values.pop("time_zone") or self.time_zone or "UTC"
        return Client(**values | {"unavailable": tuple(localised(period, zone) for period in section.unavailable)})

    def traces(self) -> Traces:
        """Return the intensity of the run's zones over its horizon, as it is known now."""
        begin, hours = self._hours()
        return traces_of(self.located_data(), self.zones, begin, begin + hours * _HOUR, **self._where())

    def prices(self) -> Prices | None:
        """Return the price of electricity in the run's zones, as far as the file reaches; None without [price]."""
        if self.price is None:
            return None
        return read_prices(
            self._located(self.price.file, "file"),
            self.zones,
            currency=self.price.currency,
            unit=self.price.unit,
            start=self.start,
            slot_minutes=self.slot_minutes,
        )

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
            source = str(self._located(source, "source"))
        return self.data.model_dump() | {"source": source}

    def _located(self, name: str, key: str) -> Path:
        """Return a path of the scenario; a relative one starts at its folder."""
        try:
            return self.path.parent / Path(name).expanduser()
        except RuntimeError:  # ~name, and the system has no such user
            raise ScenarioError(f"{key} {name!r}: there is no such home folder. Write the path out.") from None

    def _hours(self) -> tuple[datetime, int]:
        """Return which hours of intensity the horizon needs: from when, and how many."""
        step = timedelta(
            minutes=min(max(self.slot_minutes, 1), _DAY_MINUTES)
        )  # other lengths are rejected when traces are loaded
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


def load_scenario(
    path: str | Path, *, data: str | None = None, fill_hours: int | None = None, text: str | None = None
) -> Scenario:
    """Read and check a scenario file.

    Args:
        path: The TOML file.
        data: A CSV file or a folder of them, which replaces the source in [data]; relative to the working directory.
        fill_hours: Longest gap to fill, in hours; replaces the value in [data].
        text: Content to use instead of that of the file, such as of `edited_text`; paths in it start at the file's folder.

    Raises:
        ScenarioError: The file is missing, is not TOML, or a key is missing, misspelt or out of range.
    """
    path = Path(path)
    try:
        # utf-8-sig: Notepad puts a byte-order mark in front.
        content = tomllib.loads(path.read_text(encoding="utf-8-sig") if text is None else text)
    except FileNotFoundError:
        raise ScenarioError(f"There is no scenario at {path}. Create one with: slackwater init {path}") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path} is a folder. Name the scenario in it, like {path / 'scenario.toml'}.") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path} is not a text file in UTF-8. A scenario is TOML; save it as UTF-8.") from None
    except OSError as error:
        raise ScenarioError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if _is_plan(path):
            raise ScenarioError(
                f"{path} is a plan, not a scenario. Train with it: slackwater train {path}. Or name the scenario that "
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
    where = f"{path}, [[{first}]] {named}"
    if rest[1] == "levels" and len(rest) > 3:
        return f"{where}, levels", LevelSection, str(rest[3])
    return where, section, str(rest[1])


def _known(key: str, model: type[_Section]) -> tuple[str, str | None]:
    """Return what to write instead of an unknown key, and the key that was probably meant."""
    near = nearest(key, model.model_fields, cutoff=0.5)
    if near:
        return unknown_key(key, near), near[0]
    homes: dict[str, type[_Section]] = {"": Scenario, **_SECTIONS}
    for name, home in homes.items():
        if home is not model and key in home.model_fields:
            belongs = f"in {_mark(name)}" if name else "at the top, before the first section"
            return f"it belongs {belongs}. Known here: {', '.join(model.model_fields)}.", None
    return f"known: {', '.join(model.model_fields)}.", None


def _complaint(key: str, error: Mapping[str, Any]) -> str:
    """Return key, value and fix, from an error about a value."""
    kind, value = str(error["type"]), error["input"]
    if key in _SECTIONS and kind in ("model_type", "tuple_type"):
        return f"{key!r} must be a section, written {_mark(key)}, not {_shown(value)}."
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if key == "levels" and kind.startswith("tuple"):
        return f"levels must be a list of tables, like [{{power_w = 300, work = 1.0}}], not {_shown(value)}."
    for start, wanted in _WANTED.items():
        if kind.startswith(start):
            return f"{key} must be {wanted}, not {_shown(value)}."
    expected = error.get("ctx", {}).get("expected")
    if expected:
        return f"{key} must be {expected}, not {_shown(value)}."
    return f"{key} = {_shown(value)} is not accepted: {error['msg'][:1].lower()}{error['msg'][1:]}."


def _shown(value: object) -> str:
    """Return a value as it is written in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date | time) else repr(value)


def _mark(section: str) -> str:
    return f"[[{section}]]" if section == "client" else f"[{section}]"


_SECTIONS: dict[str, type[_Section]] = {
    "client": ClientSection,
    "data": DataSection,
    "server": ServerSection,
    "price": PriceSection,
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
"""What a key must be, by the prefix of pydantic's error type; the first match counts."""


_COMMENTS_AT = 35
_FIRST = ("start", "rounds", "slack", "deadline", "fine_tune", "budget_kg", "alpha")
_OVERHEADS = ("model_mb", "network_kwh_per_gb", "evaluation_share")
_OPTIONAL = ("slot_minutes", "round_minutes", "window", "recall", "max_parallel", "min_parallel")
_SET = ("start", "rounds", "slack", "fine_tune", "budget_kg", "alpha", "source", "factor")
"""Keys that the template sets; the others are comments."""
_CLIENTS: tuple[dict[str, Any], ...] = (
    {"name": "brussels", "zone": "BE", "power_w": 300},
    {"name": "london", "zone": "GB", "power_w": 300, "idle_w": 40, "pue": 1.3},
    {"name": "dublin", "zone": "IE", "power_w": 300, "min_slots": 2, "# max_slots": 30},
    {
        "name": "helsinki", "zone": "FI", "power_w": 300,
        "unavailable": ["mon-fri 08:00-16:00", "2022-01-06T00:00Z/2022-01-07T00:00Z"], "# time_zone": "Europe/Helsinki",
    },
    {
        "name": "stockholm", "zone": "SE-SE3", "power_w": 300, "# startup_kwh": 0.05, "# startup_minutes": 10,
        "# min_block_slots": 3,
    },
    {
        "name": "frankfurt", "zone": "DE", "power_w": 300, "required": True,
        "# levels": [{"power_w": 300, "work": 1.0}, {"power_w": 180, "work": 0.85}],
    },
    {"name": "paris", "zone": "FR", "energy_kwh": 0.25},
)  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # the same providers for every zone are a list
        return _plain(value["*"]) if set(value) == {"*"} else {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and value and all(isinstance(one, Mapping) and "work" in one for one in value):
        return _inline(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _inline(levels: Sequence[Mapping[str, float]]) -> Any:
    """Return levels on one line: a section for each would end that of the client."""
    array = tomlkit.array()
    for level in levels:
        table = tomlkit.inline_table()
        table.update(level)
        array.append(table)
    return array


def _line(start: str, comment: str | None) -> str:
    return f"{start.ljust(_COMMENTS_AT - 3)}   # {comment}" if comment else start


def value_text(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    text: str = tomlkit.item(_plain(value)).as_string()
    return text


def _block(model: type[BaseModel], keys: Iterable[str]) -> Iterator[str]:
    names = {key: key if key in _SET else f"# {key}" for key in keys}
    width = max(map(len, [name for key, name in names.items() if key in _SET] or names.values()))
    for key, name in names.items():
        field = model.model_fields[key]
        yield _line(f"{name:<{width}} = {value_text((field.examples or [field.default])[0])}", field.description)


def _client(values: dict[str, Any], told: set[str]) -> Iterator[str]:
    """Yield the lines of one client; a description is written where its key occurs first."""
    for name, value in values.items():
        key = name.removeprefix("# ")
        comment = None if key in told else ClientSection.model_fields[key].description
        told.add(key)
        yield _line(f"{name:<7} = {value_text(value)}", comment)


def _lines() -> Iterator[str]:
    yield from ("# A federated run that must fit a carbon budget. Plan it with: slackwater plan scenario.toml", "")
    yield from _block(Scenario, _FIRST)
    sections = ("data", "server", "price", "report", "client")
    others = [key for key in Scenario.model_fields if key not in (*_FIRST, *_OPTIONAL, *_OVERHEADS, *sections)]
    yield from ("", *_block(Scenario, (*_OPTIONAL, *others)), "", *_block(Scenario, _OVERHEADS))
    yield from ("", "[data]", *_block(DataSection, DataSection.model_fields))
    for name, model in (("server", ServerSection), ("price", PriceSection), ("report", ReportSection)):
        yield from ("", _line(f"# [{name}]", Scenario.model_fields[name].description))
        yield from _block(model, model.model_fields)
    told: set[str] = set()
    for client in _CLIENTS:
        yield from ("", "[[client]]", *_client(client, told))


SCENARIO = "\n".join(_lines()) + "\n"


_ALWAYS = {"slack", "fine_tune", "alpha", "source", "factor"}
"""Keys that are written even if they have their default value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataText:
    """The [data] and [price] sections of a scenario, for writing one again."""

    source: object
    factor: str = "lifecycle"
    fill_hours: int = 0
    price: PriceSection | None = None


def scenario_text(problem: Problem, data: DataText, *, end: int | None = None) -> str:
    """Return TOML. A fixed end time becomes a comment, since it is an option of the command."""
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
    settings |= dict.fromkeys(problem.free if problem.planner == "auto" else problem.free & {"recall"})
    content: dict[str, Any] = _keys(Scenario, settings) | {"data": _keys(DataSection, asdict(data))}
    if problem.server is not None:
        content["server"] = asdict(problem.server)
    if problem.price is not None:  # a plan has its prices, but only the name of their file
        price = data.price or PriceSection(file=problem.price.source, currency=problem.price.currency)
        content["price"] = _keys(PriceSection, price.model_dump())
    if problem.reported_by:
        content["report"] = dict(problem.reported_by)
    content["client"] = [_keys(ClientSection, asdict(client)) for client in problem.fleet]
    option = "" if end is None else f" --end {end}"
    return f"# Copied from the Slackwater dashboard. Plan it with: slackwater plan scenario.toml{option}\n\n{toml(content)}"


def _keys(section: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a section, in its order, that differ from their defaults."""
    fields = section.model_fields
    return {
        key: values[key]
        for key in fields
        if (key in values and values[key] != fields[key].default) or (key in _ALWAYS and values.get(key) is not None)
    }


def toml(content: Mapping[str, Any]) -> str:
    """Return TOML; half a surrogate pair, which no UTF-8 file can hold, is replaced."""
    return _encodable(tomlkit.dumps(_plain(content)))


def _encodable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEdit:
    """Changes of a scenario file. A value of None removes its key."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys at the top of the file."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [data]."""
    clients: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    """Number of a [[client]], counted from 0 -> its keys; None removes the client."""
    added: Sequence[Mapping[str, Any]] = ()
    """New clients, after the others."""


def edited_text(text: str, edit: ScenarioEdit) -> str:
    """Return a scenario file with changes; comments and everything else stay as they are.

    Raises:
        ScenarioError: The text is not TOML, has no such client, or is written in a way that cannot be edited.
    """
    ends = "\r\n" if "\r\n" in text else "\n"
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        expected = _edited(tomllib.loads(text), edit)
        document = tomlkit.parse(text)
        _edited(document, edit)
        found = tomllib.loads(made := _encodable(tomlkit.dumps(document)))
    except (tomllib.TOMLDecodeError, tomlkit.exceptions.TOMLKitError, ValueError, TypeError, AttributeError) as error:
        raise ScenarioError(f"The scenario cannot be edited here: {error}. Change it in an editor.") from None
    if found != tomllib.loads(toml(expected)):
        raise ScenarioError("The scenario is written in a way that cannot be edited here. Change it in an editor.")
    return made.replace("\n", ends)


def _edited(content: Any, edit: ScenarioEdit) -> Any:
    """Apply an edit to the plain content of a scenario, or to a document of tomlkit that keeps its comments."""
    plain = not isinstance(content, tomlkit.TOMLDocument)

    def put(table: Any, values: Mapping[str, Any]) -> Any:
        for key, value in values.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = _plain(value)
        return table

    put(content, edit.settings)
    if edit.data:
        if "data" not in content:
            content["data"] = {} if plain else tomlkit.table()
        put(content["data"], edit.data)
    if edit.added and "client" not in content:
        content["client"] = [] if plain else tomlkit.aot()
    clients = content.get("client", [])
    for number, values in edit.clients.items():
        if not 0 <= number < len(clients):
            raise ScenarioError(f"The scenario has {len(clients)} clients; there is no client number {number + 1}.")
        if values is not None:
            put(clients[number], values)
    for number in sorted((number for number, values in edit.clients.items() if values is None), reverse=True):
        del clients[number]
    for values in edit.added:
        new: Any = {} if plain else tomlkit.table() if isinstance(clients, AoT) else tomlkit.inline_table()
        if isinstance(new, Table):
            new.trivia.indent = "\n"  # an empty line before it
        clients.append(put(new, values))
    return content
