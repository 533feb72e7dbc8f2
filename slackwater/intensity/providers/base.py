"""The base of all providers: callers use `fetch`, and a new provider only implements `read`."""

from __future__ import annotations

import math
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Protocol

from slackwater.errors import ScenarioError
from slackwater.intensity.providers.http import Client
from slackwater.intensity.providers.keys import Keys
from slackwater.intensity.providers.provider_errors import BadAnswerError, NotOfferedError, NoValuesError, ProviderError
from slackwater.intensity.providers.readings import ASKED, Answer, Asked, Intake, merged
from slackwater.intensity.traces import Factor
from slackwater.units import ceil_hour, floor_hour, iso, utc

LOOPBACK_VARIABLE = "SLACKWATER_LOOPBACK_HTTP"
REST = timedelta(minutes=1)
"""Pause after a failure of the whole provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The settings of a provider."""

    factor: Factor = "lifecycle"
    """The wanted emission factor. A provider without it returns its own, and every reading says so."""
    option: str = ""
    """The part after the colon of a name like `files:data/ci`."""
    client: Client = field(default_factory=Client)
    keys: Keys = field(default_factory=Keys)
    folder: Path = field(default_factory=Path)
    """Base of relative paths."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """By provider: an address that replaces the default, for a mirror or a test."""

    @classmethod
    def usual(
        cls, *, factor: Factor = "lifecycle", folder: Path | None = None, max_requests: int | None = None
    ) -> Context:
        """Return a context from the environment: SLACKWATER_URL_<PROVIDER> replaces an address."""
        client = Client(loopback_http=os.environ.get(LOOPBACK_VARIABLE, "0") not in ("", "0"))
        if max_requests is not None:  # the user fetches months of data, and waits
            client.max_requests, client.max_seconds = max_requests, math.inf
        start = "SLACKWATER_URL_"
        addresses = {name[len(start) :].lower(): url for name, url in os.environ.items() if name.startswith(start)}
        return cls(factor=factor, client=client, folder=folder or Path(), addresses=addresses)


class Source(Protocol):
    """Anything that can be asked: a provider, a provider behind a cache, or several by priority."""

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Return the readings of zones over [start, end), which is widened to full hours."""
        ...


class Provider(ABC):
    """Base of the providers. Set the class variables and implement `read`; add `covers` unless every zone may be asked."""

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
        """Return how readings name their origin."""
        return self.name

    def covers(self, zone: str) -> bool:
        """Return whether to ask for a zone at all."""
        return bool(zone)

    @abstractmethod
    def read(self, intake: Intake) -> None:
        """Request the intake's zone, range and kind, and add every value to it; an error keeps what was added before."""

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Return the readings of zones over [start, end), widened to full hours, and the failures by zone."""
        begin, stop = checked_range(zones, start, end, kind)
        return merged(self._fetch_zone(zone, begin, stop, kind) for zone in zones)

    def _fetch_zone(self, zone: str, start: datetime, end: datetime, kind: Asked) -> Answer:
        now = self.client.now()
        if self._down and now < self._down[0]:
            return Answer(failures={zone: self._down[1]})
        intake = Intake(
            source=self.source, zone=zone, start=start, end=end, kind=kind, factor=self.factor, fetched_at=now,
            now=self.client.latest_now, quoted=self.client.quoted,
        )  # fmt: skip
        error: ProviderError | None = None
        try:
            self._check_offer(zone, kind)
            self.client.clock_gap = timedelta(0)
            self.read(intake)
            if not intake.readings:
                raise NoValuesError(
                    f"{self.source} has no usable {kind} values of {zone} from {iso(start)} to {iso(end)}."
                )
        except ScenarioError:
            raise
        except ProviderError as trouble:
            error = trouble
            # From now, not from the start of the request, which may have taken minutes.
            self._down = (self.client.now() + REST, trouble) if trouble.whole else None
        except Exception as surprise:  # no error in an answer may end a run
            error = bad_shape(self.source, zone, surprise)
        if error is not None:
            error.args = (self.client.clean(str(error)), *error.args[1:])
        notes = tuple(self.client.clean(note) for note in intake.notes)
        gap = self.client.clock_gap
        if gap:
            notes += (f"{self.source}: its clock is {_length(abs(gap))} {'ahead of' if gap > timedelta(0) else 'behind'} "
                      "this machine's. Set this clock; until then, past and future values may be confused.",)  # fmt: skip
        return Answer(readings=intake.readings, notes=notes, failures={zone: error} if error else {})

    def _check_offer(self, zone: str, kind: Asked) -> None:
        if kind not in self.kinds:
            kinds = " and ".join(self.kinds)
            raise NotOfferedError(f"{self.name} has no {kind} intensity, only {kinds}.")
        if not self.covers(zone):
            raise NotOfferedError(f"{self.name} does not have the zone {zone}.")

    def address(self, usual: str) -> str:
        """Return the address to ask."""
        return self.context.addresses.get(self.name, usual).rstrip("/")

    def key(self) -> str:
        """Return the provider's key, and hide it in every text from now on."""
        return self.client.hide(self.context.keys.get(self.name))


def bad_shape(source: str, zone: str, surprise: Exception) -> ProviderError:
    """Return the error for an answer in an undocumented form."""
    # Type and place only: the text of such an error may hold a piece of the answer.
    place = traceback.extract_tb(surprise.__traceback__)[-1]
    return BadAnswerError(
        f"The answer of {source} for {zone} does not have the documented form ({type(surprise).__name__} in "
        f"{Path(place.filename).name}, line {place.lineno}). Has the API changed? Use another provider until this is fixed."
    )


def checked_range(zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> tuple[datetime, datetime]:
    """Return the range in full hours; raise ScenarioError for a mistake in the request."""
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
    """Return [start, end) in pieces of at most `longest`."""
    starts = [start + i * longest for i in range(-(-(end - start) // longest))]
    return [(begin, min(begin + longest, end)) for begin in starts]


def _length(gap: timedelta) -> str:
    minutes = round(gap.total_seconds() / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
