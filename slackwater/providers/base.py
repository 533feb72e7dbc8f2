"""What a provider is: one verb, `fetch`, and beneath it `read`, the only method that a new one has to write."""

from __future__ import annotations

import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Protocol

from slackwater.carbon.traces import Factor
from slackwater.errors import ScenarioError
from slackwater.providers.errors import BadAnswerError, NotOfferedError, NoValuesError, ProviderError
from slackwater.providers.http import Client
from slackwater.providers.intake import Intake
from slackwater.providers.keys import Keys
from slackwater.providers.values import ASKED, Answer, Asked, ceil_hour, floor_hour, merged
from slackwater.units import iso, utc

LOOPBACK_VARIABLE = "SLACKWATER_LOOPBACK_HTTP"
REST = timedelta(minutes=1)
"""A provider that failed as a whole is left alone for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a provider is made with."""

    factor: Factor = "lifecycle"
    """What is asked for; a provider that does not have it gives its own, and says so in every reading."""
    option: str = ""
    """What follows the colon of a name like `files:data/ci`."""
    client: Client = field(default_factory=Client)
    keys: Keys = field(default_factory=Keys)
    folder: Path = field(default_factory=Path)
    """Relative paths start here."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By provider: another address than its usual one, as for a mirror or a test."""

    @classmethod
    def usual(
        cls, *, factor: Factor = "lifecycle", folder: Path | None = None, max_requests: int | None = None
    ) -> Context:
        """From the environment: SLACKWATER_URL_<PROVIDER> gives another address."""
        loopback = os.environ.get(LOOPBACK_VARIABLE, "0") not in ("", "0")
        client = (
            Client(loopback_http=loopback)
            if max_requests is None
            else Client(loopback_http=loopback, max_requests=max_requests)
        )
        start = "SLACKWATER_URL_"
        addresses = {name[len(start) :].lower(): url for name, url in os.environ.items() if name.startswith(start)}
        return cls(factor=factor, client=client, folder=folder or Path(), addresses=addresses)

    def with_option(self, option: str) -> Context:
        """The same with another option."""
        return replace(self, option=option)


class Source(Protocol):
    """Anything that can be asked: a provider, a provider behind a cache, or several in a row."""

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Readings of zones over [start, end), which is widened to full hours."""
        ...


class Provider(ABC):
    """Base of the providers. Set the class variables and write `read`; add `covers` unless every zone may be asked."""

    name: ClassVar[str]
    factors: ClassVar[tuple[Factor, ...]] = ("lifecycle", "direct")
    kinds: ClassVar[tuple[Asked, ...]] = ASKED
    cacheable: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        self.context, self.client = context, context.client
        self.factor: Factor = context.factor if context.factor in self.factors else self.factors[0]
        self._down: tuple[datetime, ProviderError] | None = None

    @property
    def source(self) -> str:
        """How readings name their origin."""
        return self.name

    def covers(self, zone: str) -> bool:
        """Whether it makes sense to ask for a zone."""
        return bool(zone)

    @abstractmethod
    def read(self, intake: Intake) -> None:
        """Ask for the zone, range and kind of the intake, and add every value to it; what was added before an error stays."""

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Readings of zones over [start, end), which is widened to full hours. Failures are in the answer, not raised."""
        begin, stop = checked_range(zones, start, end, kind)
        return merged(self._fetch_zone(zone, begin, stop, kind) for zone in zones)

    def _fetch_zone(self, zone: str, start: datetime, end: datetime, kind: Asked) -> Answer:
        now = self.client.now()
        if self._down and now < self._down[0]:
            return Answer(failures={zone: self._down[1]})
        intake = Intake(
            source=self.source,
            zone=zone,
            start=start,
            end=end,
            kind=kind,
            factor=self.factor,
            fetched_at=now,
            now=self.client.latest_now,
        )
        error: ProviderError | None = None
        try:
            self._check_offer(zone, kind)
            self.client.clock_gap = timedelta(0)
            self.read(intake)
            if not intake.readings:
                raise NoValuesError(
                    f"{self.source} has no usable {kind} values of {zone} from {iso(start)} to {iso(end)}."
                )
        except ProviderError as trouble:
            error = trouble
            self._down = (now + REST, trouble) if trouble.whole else None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as surprise:
            if isinstance(surprise, ScenarioError):
                raise
            error = bad_shape(self.source, zone, surprise)
        notes = intake.notes
        gap = self.client.clock_gap
        if gap:
            notes += (f"{self.source}: its clock is {_length(abs(gap))} {'ahead of' if gap > timedelta(0) else 'behind'} "
                      "this machine's. Set the clock; until then, what is past and what is to come may be mixed up.",)  # fmt: skip
        return Answer(readings=intake.readings, notes=notes, failures={zone: error} if error else {})

    def _check_offer(self, zone: str, kind: Asked) -> None:
        if kind not in self.kinds:
            raise NotOfferedError(
                f"{self.name} has no {kind} values of intensity, only {' and '.join(self.kinds)} ones."
            )
        if not self.covers(zone):
            raise NotOfferedError(f"{self.name} does not have the zone {zone}.")

    def address(self, usual: str) -> str:
        """Where to ask."""
        return self.context.addresses.get(self.name, usual).rstrip("/")

    def key(self) -> str:
        """The provider's key, which from now on is hidden in every text."""
        return self.client.hide(self.context.keys.get(self.name))


def bad_shape(source: str, zone: str, surprise: Exception) -> ProviderError:
    """The error of an answer in which something is not where it belongs."""
    # Type and place only: the text of such an error may hold a piece of the answer.
    place = traceback.extract_tb(surprise.__traceback__)[-1]
    return BadAnswerError(
        f"The answer of {source} for {zone} is not of the documented form ({type(surprise).__name__} in "
        f"{Path(place.filename).name}, line {place.lineno}). Has the API changed? Another provider may do meanwhile."
    )


def checked_range(zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> tuple[datetime, datetime]:
    """The range in full hours; mistakes in a request are refused."""
    if isinstance(zones, str):
        raise ScenarioError(f"zones is the text {zones!r}; give a list, like [{zones!r}].")
    if not zones:
        raise ScenarioError("zones is empty; name at least one.")
    if kind not in ASKED:
        raise ScenarioError(f"kind is {kind!r}; ask for 'actual' or 'forecast'.")
    begin, stop = floor_hour(utc(start, "start")), ceil_hour(utc(end, "end"))
    if begin >= stop:
        raise ScenarioError(f"end {iso(stop)} is not after start {iso(begin)}.")
    return begin, stop


def pieces(start: datetime, end: datetime, longest: timedelta) -> list[tuple[datetime, datetime]]:
    """[start, end) in pieces of at most `longest`."""
    found = []
    while start < end:
        stop = min(start + longest, end)
        found.append((start, stop))
        start = stop
    return found


def _length(gap: timedelta) -> str:
    minutes = round(gap.total_seconds() / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
