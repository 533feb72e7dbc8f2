"""The scenario file: TOML in, a `Problem` out. Unknown keys are refused with the key that was probably meant."""

from __future__ import annotations

import difflib
import math
import tomllib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slackwater.carbon.load import load_traces
from slackwater.carbon.traces import Factor
from slackwater.errors import ScenarioError
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem, Server
from slackwater.units import utc

_MINUTES_PER_HOUR = 60


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class ClientSection(_Section):
    """[[client]]: one site."""

    name: str
    zone: str
    power_w: float | None = None
    idle_w: float = 0.0
    pue: float = 1.0
    energy_kwh: float | None = None
    unavailable: tuple[str, ...] = ()
    min_slots: int = 0
    max_slots: int | None = None
    required: bool = False


class DataSection(_Section):
    """[data]: where the intensity comes from."""

    source: str = "typical"
    factor: Factor = "lifecycle"
    fill_hours: int = 0


class ServerSection(_Section):
    """[server]: what runs beside the clients in each slot in which anyone trains."""

    zone: str
    power_w: float
    pue: float = 1.0


class Scenario(_Section):
    """A whole scenario file."""

    start: datetime | str
    rounds: int
    budget_kg: float
    slack: int | None = None
    deadline: datetime | str | None = None
    fine_tune: int = 1
    alpha: float | str = 0.1
    slot_minutes: int = 60
    round_minutes: float | None = None
    window: Literal["all", "available"] = "all"
    max_parallel: int | None = None
    data: DataSection = Field(default_factory=DataSection)
    server: ServerSection | None = None
    client: tuple[ClientSection, ...] = ()

    def changed(self, **settings: Any) -> Scenario:
        """The same scenario with some settings replaced; slack and deadline replace each other."""
        if settings.get("slack") is not None:
            settings.setdefault("deadline", None)
        return self.model_copy(update=settings)

    def problem(self, folder: Path, *, data: str | None = None) -> Problem:
        """The problem with its traces; `data` replaces the scenario's source, whose relative paths start at `folder`."""
        start, step = utc(self.start, "start"), timedelta(minutes=self.slot_minutes)
        if self.deadline is not None:
            slots = max((utc(self.deadline, "deadline") - start) // step, 1)
        else:
            slots = self.rounds + (self.slack or 0)
        zones = {section.zone for section in self.client} | ({self.server.zone} if self.server else set())
        if not zones:
            raise ScenarioError("There are no clients. Add at least one [[client]] with a name, a zone and power_w.")
        traces = load_traces(
            data if data is not None else _located(self.data.source, folder),
            zones=sorted(zones),
            start=start,
            hours=max(math.ceil(slots * self.slot_minutes / _MINUTES_PER_HOUR), 1),
            factor=self.data.factor,
            slot_minutes=self.slot_minutes,
            fill_hours=self.data.fill_hours,
        )
        return Problem(
            clients=[Client(**section.model_dump()) for section in self.client],
            traces=traces,
            rounds=self.rounds,
            budget_kg=self.budget_kg,
            slack=self.slack,
            deadline=self.deadline,
            fine_tune=self.fine_tune,
            alpha=self.alpha,
            round_minutes=self.round_minutes,
            window=self.window,
            max_parallel=self.max_parallel,
            server=Server(**self.server.model_dump()) if self.server else None,
        )


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(
            f"There is no scenario at {path}. Write one to start from with: slackwater init {path}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read as a scenario: {error}.") from None
    try:
        return Scenario.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path} is not valid TOML: {error}.") from None
    except ValidationError as error:
        raise ScenarioError(
            "\n".join(_sentence(path, problem, tomllib.loads(text)) for problem in error.errors())
        ) from None


def _located(source: str, folder: Path) -> str:
    if source == "typical":
        return source
    return str(folder / Path(source).expanduser())


def _sentence(path: Path, error: Any, content: dict[str, Any]) -> str:
    """One error of pydantic's as a sentence that names the key, the value and the fix."""
    *inside, key = error["loc"]
    where: str = str(path)
    model: type[_Section] = Scenario
    if inside:
        model = _SECTIONS.get(str(inside[0]), Scenario)
        where += f", [{inside[0]}]"
        if len(inside) > 1 and isinstance(inside[1], int):
            section = content[inside[0]][inside[1]]
            where = f"{path}, [[{inside[0]}]] {section.get('name', f'number {inside[1] + 1}')!r}"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(key), model.model_fields, n=1, cutoff=0.5)
        known = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(model.model_fields)}."
        return f"{where}: unknown key {key!r}; {known}"
    if error["type"] == "missing":
        return f"{where}: {key!r} is missing. `slackwater init` writes an example with all keys."
    if key in _SECTIONS and error["type"] in ("model_type", "tuple_type"):
        mark = f"[[{key}]]" if key == "client" else f"[{key}]"
        return f"{where}: {key!r} must be a section, written {mark}, not {error['input']!r}."
    return f"{where}: {key} = {error['input']!r} is not accepted: {error['msg'][:1].lower()}{error['msg'][1:]}."


_SECTIONS: dict[str, type[_Section]] = {"client": ClientSection, "data": DataSection, "server": ServerSection}
