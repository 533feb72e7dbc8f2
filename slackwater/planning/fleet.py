"""The clients: a single one, many as columns, and when each cannot train."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import ScenarioError
from slackwater.intensity.cloud import grid_zone
from slackwater.units import time_zone, utc

log = logging.getLogger(__name__)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"^(?P<days>[a-z,\-]+)(?:\s+(?P<from>\d{1,2}:\d{2})-(?P<to>\d{1,2}:\d{2}))?$")
_HELP = (
    "Write an interval like '2022-01-03T08:00Z/2022-01-03T18:00Z', or weekly hours in UTC like "
    "'daily 08:00-18:00', 'mon-fri 22:00-06:00' or 'sat,sun'. For local time, add its zone: 'mon-fri 08:00-18:00 Europe/Paris'."
)
_ZONE_NAME = re.compile(r"[A-Z][A-Za-z_+\-0-9]*(/[A-Z][A-Za-z_+\-0-9]*)*")


def localised(period: str, zone: str) -> str:
    """Return an unavailable period in a time zone; one that names its own, or whose times do, stays as it is."""
    own = period.split()[-1:] and _ZONE_NAME.fullmatch(period.split()[-1])
    return period if own or zone == "UTC" else f"{period} {zone}"


def available_slots(unavailable: Sequence[str], start: datetime, slots: int, slot_minutes: int) -> NDArray[np.bool_]:
    """Return the availability [slot]; False where any of the periods touches the slot."""
    free = np.ones(slots, dtype=bool)
    for period in unavailable:
        if not isinstance(period, str):
            raise ScenarioError(f"unavailable period {period!r} is not text. {_HELP}")
        free &= ~_touched(period.strip(), start, slots, slot_minutes)
    return free


def _touched(period: str, start: datetime, slots: int, slot_minutes: int) -> NDArray[np.bool_]:
    begins = np.arange(slots) * float(slot_minutes)
    ends = begins + slot_minutes
    local: tzinfo | None = None
    if len(words := period.rsplit(None, 1)) == 2 and _ZONE_NAME.fullmatch(words[1]):
        period, local = words[0], time_zone(words[1])
    if "/" in period:
        ends_of_it = [part.strip() for part in period.split("/")]
        if len(ends_of_it) != 2:
            raise ScenarioError(f"unavailable period {period!r} has more than a start and an end. {_HELP}")
        try:
            first, last = (utc(part, f"unavailable period {period!r}:", local) for part in ends_of_it)
        except OverflowError:
            raise ScenarioError(f"unavailable period {period!r} has a year outside 1 to 9999. {_HELP}") from None
        if last <= first:
            raise ScenarioError(f"unavailable period {period!r} does not end after it starts. {_HELP}")
        low, high = ((moment - start) / timedelta(minutes=1) for moment in (first, last))
        return (begins < high) & (ends > low)
    match = _HOURS.match(period.lower())
    if match is None:
        raise ScenarioError(f"unavailable period {period!r} is not understood. {_HELP}")
    days = _days(match["days"], period)
    low, high = (_minutes(match["from"], period), _minutes(match["to"], period)) if match["from"] else (0, 24 * 60)
    if high == low:
        raise ScenarioError(
            f"unavailable period {period!r} ends when it starts. For whole days leave the hours out: {match['days']!r}."
        )
    if high < low:  # over midnight: the part after midnight belongs to the day on which it began
        high += 24 * 60
    if local is not None:
        return _touched_locally(days, low, high, local, start, begins, ends)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    offset = (start - midnight) / timedelta(minutes=1)
    touched = np.zeros(slots, dtype=bool)
    for day in range(-1, int((offset + slots * slot_minutes) // (24 * 60)) + 1):
        if (midnight + timedelta(days=day)).weekday() in days:
            shift = day * 24 * 60 - offset
            touched |= (begins < high + shift) & (ends > low + shift)
    return touched


def _touched_locally(
    days: set[int],
    low: int,
    high: int,
    local: tzinfo,
    start: datetime,
    begins: NDArray[Any],
    ends: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return the slots that weekly hours of a local clock touch; a day on which it changes has 23 or 25 hours."""
    touched = np.zeros(len(begins), dtype=bool)
    first = start.astimezone(local).date() - timedelta(days=1)
    last = (start + timedelta(minutes=float(ends[-1]))).astimezone(local).date()
    for day in range((last - first).days + 1):
        date = first + timedelta(days=day)
        if date.weekday() in days:
            bounds = (
                datetime.combine(
                    date + timedelta(days=minutes // 1440), time(minutes % 1440 // 60, minutes % 60), local
                )
                for minutes in (low, high)
            )
            begin, end = ((bound.astimezone(UTC) - start) / timedelta(minutes=1) for bound in bounds)
            touched |= (begins < end) & (ends > begin)
    return touched


def _days(text: str, period: str) -> set[int]:
    if text in ("daily", "every-day"):
        return set(range(7))
    found: set[int] = set()
    for part in text.split(","):
        names = part.split("-")
        if len(names) > 2 or any(name not in DAYS for name in names):
            raise ScenarioError(f"unavailable period {period!r}: {part!r} is not a day or a range of days. {_HELP}")
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        found.update((first + i) % 7 for i in range((last - first) % 7 + 1))
    return found


def _minutes(clock: str, period: str) -> int:
    hours, minutes = map(int, clock.split(":"))
    if hours * 60 + minutes > 24 * 60 or minutes > 59:
        raise ScenarioError(f"unavailable period {period!r}: {clock} is not a time of day. {_HELP}")
    return hours * 60 + minutes


NO_LIMIT = np.iinfo(np.int32).max
_MAX_PUE = 10.0
_MAX_POWER_W = 1e9
"""A power station; a larger value is a wrong unit or a typing error."""
_LEAST_POWER_W = 1.0
"""A smaller power is possible, for a microcontroller, but more often it is in kW."""
_MAX_ENERGY_KWH = 1e9
_MAX_STARTUP_MINUTES = 7 * 24 * 60.0
_MOST_LEVELS = 100
_NONE = "There are no clients. Add at least one [[client]] with a name, a zone and power_w."


def doubt_watts(who: str, watts: float, *, others: int = 0) -> None:
    """Warn if a power looks like kW; `others` draw as little."""
    if 0 < watts < _LEAST_POWER_W:
        more = f" {others} more draw{'s' * (others == 1)} under {_LEAST_POWER_W:g} W." if others else ""
        log.warning("%s draws %g W. If that is kW, write power_w = %g.%s", who, watts, 1000 * watts, more)


@dataclass(frozen=True, slots=True)
class Level:
    """An operating point of a client: its total draw while training, and its share of the work of full power."""

    power_w: float
    work: float

    def __post_init__(self) -> None:
        for key, most in (("power_w", _MAX_POWER_W), ("work", 1.0)):
            value = getattr(self, key)
            if not is_finite_number(value) or not 0 < value <= most:
                raise ScenarioError(f"A level's {key} must be a number above 0 and at most {most:g}, not {value!r}.")


def _levels(client: str, given: Iterable[Level | Mapping[str, float]]) -> tuple[Level, ...]:
    """Return a client's levels, full power first; the position of a level is its number in plans."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ScenarioError(
            f"Client {client!r}: levels must be a list, like [{{power_w = 300, work = 1.0}}, {{power_w = 180, work = 0.85}}]."
        )
    levels: list[Level] = []
    for one in given:
        if not isinstance(one, Level | Mapping) or (isinstance(one, Mapping) and set(one) != {"power_w", "work"}):
            raise ScenarioError(f"Client {client!r}: a level has power_w and work, not {one!r}.")
        try:
            levels.append(one if isinstance(one, Level) else Level(**one))
        except ScenarioError as error:
            raise ScenarioError(f"Client {client!r}: {error}") from None
    levels.sort(key=lambda level: -level.work)
    works = [level.work for level in levels]
    if levels and works.count(1.0) != 1:
        raise ScenarioError(
            f"Client {client!r}: {works.count(1.0)} levels have work = 1; exactly one is full power. Others have less work."
        )
    for level in levels[1:]:
        if level.power_w > levels[0].power_w:
            raise ScenarioError(
                f"Client {client!r}: the level with work = {level.work:g} draws {level.power_w:g} W, more than the "
                f"{levels[0].power_w:g} W of full power. Check its power_w, or remove it."
            )
    if len(levels) > _MOST_LEVELS:
        raise ScenarioError(f"Client {client!r} has {len(levels)} levels; at most {_MOST_LEVELS} are possible.")
    return tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A site that trains: its zone, its power, and when and how often it may or must train."""

    name: str
    zone: str
    power_w: float | None = None
    """Total draw while training, idle draw included."""
    idle_w: float = 0.0
    """Draw while waiting; charged in every slot until the run ends. A client that sleeps draws it only while up."""
    pue: float = 1.0
    """Power usage effectiveness of the site; multiplies all its energy."""
    energy_kwh: float | None = None
    """Energy that one round adds to the idle draw; replaces power_w and the length of a round."""
    unavailable: tuple[str, ...] = ()
    """Periods in which it cannot train; see `slackwater.planning.fleet`."""
    min_slots: int = 0
    """Least number of slots before the fine-tuning window."""
    max_slots: int | None = None
    """Largest number of slots before the fine-tuning window."""
    required: bool = False
    """Whether it must train before the window: the same as min_slots of at least 1."""
    startup_kwh: float = 0.0
    """Energy of one start from off to up. This and the next two keys make the client sleep: it is off between blocks."""
    startup_minutes: float = 0.0
    """Time that a start takes before the first slot in which the client is up."""
    min_block_slots: int = 1
    """Least number of slots in a row that the client is up; a block may be shorter only at the end of the run."""
    levels: tuple[Level, ...] = ()
    """Operating points, full power (work = 1) first. Without them the client always trains at power_w."""

    def __post_init__(self) -> None:
        for key in ("name", "zone"):
            if not isinstance(getattr(self, key), str):
                raise ScenarioError(f"Client {self.name!r}: {key} must be text, not {getattr(self, key)!r}.")
        object.__setattr__(self, "zone", grid_zone(self.zone))
        for key, optional in (
            ("power_w", True), ("idle_w", False), ("pue", False), ("energy_kwh", True), ("startup_kwh", False),
            ("startup_minutes", False),
        ):  # fmt: skip
            self._check_number(key, optional)
        for key in ("min_slots", "max_slots", "min_block_slots"):
            value = getattr(self, key)
            if not (value is None and key == "max_slots"):
                self._check_whole(key, value)
        if not isinstance(self.required, (bool, np.bool_)):
            raise ScenarioError(f"Client {self.name!r}: required must be true or false, not {self.required!r}.")
        if isinstance(self.unavailable, str):
            raise ScenarioError(
                f"Client {self.name!r}: unavailable is the text {self.unavailable!r}; give a list, like "
                f"[{self.unavailable!r}]."
            )
        object.__setattr__(self, "unavailable", tuple(self.unavailable))
        object.__setattr__(self, "levels", _levels(self.name, self.levels))

    def _check_number(self, key: str, optional: bool) -> None:
        value = getattr(self, key)
        if value is None and optional:
            return
        if not is_finite_number(value):
            raise ScenarioError(f"Client {self.name!r}: {key} must be a finite number, not {value!r}.")

    def _check_whole(self, key: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= NO_LIMIT:
            raise ScenarioError(
                f"Client {self.name!r}: {key} must be a whole number from 0 to {NO_LIMIT}, not {value!r}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """Many clients as columns, up to a million; also a sequence of `Client`.

    Columns are [client]. `power_w` and `energy_kwh` hold NaN where the other is given; `max_slots` holds NO_LIMIT by default.
    `unavailable` and `levels` are by client, and hold only clients that have any.
    """

    names: Sequence[str]
    zone: Sequence[str]
    power_w: NDArray[np.float64]
    idle_w: NDArray[np.float64]
    pue: NDArray[np.float64]
    energy_kwh: NDArray[np.float64]
    min_slots: NDArray[np.int32]
    max_slots: NDArray[np.int32]
    startup_kwh: NDArray[np.float64]
    startup_minutes: NDArray[np.float64]
    min_block_slots: NDArray[np.int32]
    unavailable: dict[int, tuple[str, ...]]
    levels: dict[int, tuple[Level, ...]]
    """Levels of the clients that have more than full power."""

    @classmethod
    def of(
        cls,
        zone: Sequence[str],
        *,
        names: Sequence[str] | None = None,
        power_w: ArrayLike | None = None,
        idle_w: ArrayLike = 0.0,
        pue: ArrayLike = 1.0,
        energy_kwh: ArrayLike | None = None,
        min_slots: ArrayLike = 0,
        max_slots: ArrayLike | None = None,
        startup_kwh: ArrayLike = 0.0,
        startup_minutes: ArrayLike = 0.0,
        min_block_slots: ArrayLike = 1,
        unavailable: dict[int, tuple[str, ...]] | None = None,
        levels: Mapping[int, Sequence[Level]] | None = None,
    ) -> Fleet:
        """Return a checked fleet from columns, or one value for all clients."""
        for key, texts in (("zone", zone), ("names", names)):
            if isinstance(texts, str):
                raise ScenarioError(f"{key} is the text {texts!r}; give a list with an entry for each client.")
        zone = [grid_zone(one) for one in zone] if any(":" in str(one) for one in zone) else zone
        count = len(zone)

        def column(key: str, values: ArrayLike | None, missing: float) -> NDArray[np.float64]:
            try:
                filled = np.asarray(missing if values is None else values, dtype=np.float64)
            except (TypeError, ValueError):
                raise ScenarioError(f"{key} must be numbers, not {values!r}.") from None
            if filled.shape not in ((), (count,)):
                raise ScenarioError(
                    f"{key} has the shape {filled.shape}; give one value, or one for each of the {count} clients."
                )
            return np.ascontiguousarray(np.broadcast_to(filled, (count,)))

        def whole(key: str, values: ArrayLike | None, missing: int) -> NDArray[np.int32]:
            numbers = column(key, values, missing)
            wrong = ~((numbers >= 0) & (numbers <= NO_LIMIT) & (numbers == np.floor(numbers)))
            if wrong.any():
                raise ScenarioError(f"{key} must be whole numbers from 0 to {NO_LIMIT}, not {numbers[wrong][0]:g}.")
            return numbers.astype(np.int32)

        names = names if names is not None else [f"client-{i:0{len(str(count))}d}" for i in range(1, count + 1)]
        power = column("power_w", power_w, np.nan)
        points = _points(levels or {}, names, power)
        if points:
            power = power.copy()
            for index, found in points.items():
                power[index] = found[0].power_w
        fleet = cls(
            names=names,
            zone=zone,
            power_w=power,
            idle_w=column("idle_w", idle_w, 0.0),
            pue=column("pue", pue, 1.0),
            energy_kwh=column("energy_kwh", energy_kwh, np.nan),
            min_slots=whole("min_slots", min_slots, 0),
            max_slots=whole("max_slots", max_slots, NO_LIMIT),
            startup_kwh=column("startup_kwh", startup_kwh, 0.0),
            startup_minutes=column("startup_minutes", startup_minutes, 0.0),
            min_block_slots=whole("min_block_slots", min_block_slots, 1),
            unavailable=dict(unavailable or {}),
            levels={index: found for index, found in points.items() if len(found) > 1},
        )
        fleet._check()
        return fleet

    @classmethod
    def from_clients(cls, clients: Sequence[Client] | Fleet) -> Fleet:
        """Return the clients as columns."""
        if isinstance(clients, Fleet):
            return clients
        if isinstance(clients, Client):
            raise ScenarioError(f"clients is a single client ({clients.name!r}); give a list, like [client].")
        for client in clients:
            if not isinstance(client, Client):
                raise ScenarioError(f"clients must be a list of Client, or a Fleet; {client!r} is neither.")
        return cls.of(
            [c.zone for c in clients],
            names=[c.name for c in clients],
            power_w=[np.nan if c.power_w is None else c.power_w for c in clients],
            idle_w=[c.idle_w for c in clients],
            pue=[c.pue for c in clients],
            energy_kwh=[np.nan if c.energy_kwh is None else c.energy_kwh for c in clients],
            min_slots=[max(c.min_slots, int(c.required)) for c in clients],
            max_slots=[NO_LIMIT if c.max_slots is None else c.max_slots for c in clients],
            startup_kwh=[c.startup_kwh for c in clients],
            startup_minutes=[c.startup_minutes for c in clients],
            min_block_slots=[c.min_block_slots for c in clients],
            unavailable={i: c.unavailable for i, c in enumerate(clients) if c.unavailable},
            levels={i: c.levels for i, c in enumerate(clients) if c.levels},
        )

    def __len__(self) -> int:
        return len(self.zone)

    def __getitem__(self, index: int) -> Client:
        limit = int(self.max_slots[index])
        return Client(
            name=self.names[index],
            zone=self.zone[index],
            power_w=_number(self.power_w[index]),
            idle_w=float(self.idle_w[index]),
            pue=float(self.pue[index]),
            energy_kwh=_number(self.energy_kwh[index]),
            unavailable=self.unavailable.get(index, ()),
            min_slots=int(self.min_slots[index]),
            max_slots=None if limit == NO_LIMIT else limit,
            startup_kwh=float(self.startup_kwh[index]),
            startup_minutes=float(self.startup_minutes[index]),
            min_block_slots=int(self.min_block_slots[index]),
            levels=self.levels.get(index, ()),
        )

    @property
    def sleeps(self) -> NDArray[np.bool_]:
        """Return which clients are off between blocks of slots [client]: those with a start-up or a minimum block."""
        return (self.startup_kwh > 0) | (self.startup_minutes > 0) | (self.min_block_slots > 1)

    def __iter__(self) -> Iterator[Client]:
        return (self[i] for i in range(len(self)))

    def _check(self) -> None:
        if len(self) == 0:
            raise ScenarioError(_NONE)
        if len(self.names) != len(self):
            raise ScenarioError(f"There are {len(self.names)} names for {len(self)} clients; give one for each.")
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise ScenarioError(f"Two clients are called {name!r}; plans are keyed by name, so names must differ.")
            if not name:
                raise ScenarioError("A client has an empty name; plans are keyed by name, so give it one.")
            seen.add(name)
        strangers = [index for index in self.unavailable if not 0 <= index < len(self)]
        if strangers:
            raise ScenarioError(f"unavailable names client {strangers[0]}; clients are numbered 0 to {len(self) - 1}.")
        given, per_round = ~np.isnan(self.power_w), ~np.isnan(self.energy_kwh)
        self._refuse(~given & ~per_round, "needs power_w (or energy_kwh, the energy of one round)")
        self._refuse(given & per_round, "has both power_w and energy_kwh; give one of them")
        self._bound("power_w", given & ~(self.power_w > 0), "it must be above 0 W")
        self._doubt_watts(given)
        self._bound("power_w", given & ~(self.power_w <= _MAX_POWER_W), f"that is more than {_MAX_POWER_W:g} W")
        self._bound("energy_kwh", per_round & ~(self.energy_kwh >= 0), "it must be 0 kWh or more")
        self._bound(
            "energy_kwh",
            per_round & ~(self.energy_kwh <= _MAX_ENERGY_KWH),
            f"that is more than {_MAX_ENERGY_KWH:g} kWh",
        )
        self._bound(
            "idle_w", ~((self.idle_w >= 0) & (self.idle_w <= _MAX_POWER_W)), "it must be 0 W or more, and finite"
        )
        self._bound(
            "idle_w", given & (self.idle_w > self.power_w), "it draws more when idle than when training (power_w)"
        )
        self._bound(
            "pue",
            ~((self.pue >= 1) & (self.pue <= _MAX_PUE)),
            f"a power usage effectiveness is from 1 (no overhead) to {_MAX_PUE:g}",
        )
        self._bound(
            "max_slots", self.max_slots < self.min_slots, "that is below its min_slots (required counts as at least 1)"
        )
        for key, most in (("startup_kwh", _MAX_ENERGY_KWH), ("startup_minutes", _MAX_STARTUP_MINUTES)):
            values = getattr(self, key)
            self._bound(key, ~((values >= 0) & (values <= most)), f"it must be from 0 to {most:g}")
        self._bound("min_block_slots", self.min_block_slots < 1, "it must be at least 1")
        for index, levels in self.levels.items():
            if per_round[index]:
                raise ScenarioError(
                    f"Client {self.names[index]!r} has levels and energy_kwh; levels need power_w, so leave energy_kwh out."
                )
            if (least := min(level.power_w for level in levels)) < self.idle_w[index]:
                raise ScenarioError(
                    f"Client {self.names[index]!r} has a level of {least:g} W, below its idle_w of {self.idle_w[index]:g} W."
                )

    def _doubt_watts(self, given: NDArray[np.bool_]) -> None:
        """Warn about powers that look like kW: a phone draws a few watts while it trains."""
        small = np.flatnonzero(given & (self.power_w > 0) & (self.power_w < _LEAST_POWER_W))
        if len(small):
            doubt_watts(f"Client {self.names[small[0]]!r}", float(self.power_w[small[0]]), others=len(small) - 1)

    def _bound(self, key: str, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ScenarioError(f"Client {self.names[first]!r} has {key} = {getattr(self, key)[first]:g}; {what}.")

    def _refuse(self, wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            raise ScenarioError(f"Client {self.names[int(np.argmax(wrong))]!r} {what}.")


def _points(
    levels: Mapping[int, Sequence[Level]], names: Sequence[str], power_w: NDArray[np.float64]
) -> dict[int, tuple[Level, ...]]:
    """Return the checked levels by client; their full power must be the client's power_w, if it has one."""
    found: dict[int, tuple[Level, ...]] = {}
    for index, given in levels.items():
        if not 0 <= index < len(power_w):
            raise ScenarioError(f"levels names client {index}; clients are numbered 0 to {len(power_w) - 1}.")
        points = _levels(names[index], given)
        if not points:
            continue
        if not np.isnan(power_w[index]) and power_w[index] != points[0].power_w:
            raise ScenarioError(
                f"Client {names[index]!r} has power_w = {power_w[index]:g}, but its level of work 1 has "
                f"{points[0].power_w:g} W. Leave power_w out, or make them equal."
            )
        found[index] = points
    return found


def is_finite_number(value: object) -> bool:
    """Return whether a value is a finite number, and not true or false."""
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and math.isfinite(value)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
