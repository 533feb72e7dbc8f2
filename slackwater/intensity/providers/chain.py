"""Providers by name, each behind the cache, and several by priority: an hour comes from the first that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from slackwater.errors import ScenarioError
from slackwater.intensity.providers.base import Context, Provider, Source, checked_range
from slackwater.intensity.providers.cache import Cache, CacheError, Place, Request, issue_of
from slackwater.intensity.providers.eia import Eia
from slackwater.intensity.providers.electricity_maps import ElectricityMaps
from slackwater.intensity.providers.energy_charts import EnergyCharts
from slackwater.intensity.providers.entsoe import Entsoe
from slackwater.intensity.providers.keys import Keys
from slackwater.intensity.providers.local_files import LocalFiles
from slackwater.intensity.providers.neso import Neso
from slackwater.intensity.providers.provider_errors import (
    NotOfferedError,
    NoValuesError,
    ProviderError,
    ThrottledError,
    UnavailableError,
)
from slackwater.intensity.providers.readings import UNPUBLISHED, Answer, Asked, Reading, merged, missing_hours
from slackwater.intensity.providers.watttime import WattTime
from slackwater.intensity.traces import Factor
from slackwater.registry import Registry
from slackwater.units import ceil_hour, floor_hour, iso

Factory = Callable[[Context], Provider]

_OWN: dict[str, Factory] = {
    "electricitymaps": ElectricityMaps,
    "neso": Neso,
    "energycharts": EnergyCharts,
    "entsoe": Entsoe,
    "eia": Eia,
    "watttime": WattTime,
    "files": LocalFiles,
}
PROVIDERS = Registry("provider", "slackwater.providers", _OWN)
_IN_ORDER = ("electricitymaps", "neso", "energycharts", "entsoe", "eia", "watttime")
_KEYLESS = ("neso", "energycharts")


def register_provider(name: str, factory: Factory) -> None:
    """Register a provider. Packages use an entry point in the group `slackwater.providers` instead.

    Args:
        name: New name, without a colon, as `source` in a scenario uses it.
        factory: Makes the provider from a `Context`; a subclass of `slackwater.intensity.providers.Provider`.
    """
    if not name or ":" in name:
        raise ScenarioError(f"A provider cannot be called {name!r}: the name must not be empty or contain a colon.")
    PROVIDERS.register(name, factory)


def provider_names() -> list[str]:
    """Return all names, with those of installed packages."""
    return PROVIDERS.names()


def usual_providers(keys: Keys) -> tuple[str, ...]:
    """Return the default providers, in order: those that need no key, and those whose key is set."""
    return tuple(name for name in _IN_ORDER if name in _KEYLESS or keys.find(name) is not None)


def make_provider(spec: str, context: Context) -> Provider:
    """Make a provider from its name and option: `neso`, `electricitymaps:v4`, `files:data/ci`."""
    name, _, option = spec.strip().partition(":")
    made = PROVIDERS.get(name)(replace(context, option=option))
    if not isinstance(made, Provider):
        raise ScenarioError(
            f"The provider {name!r} is not a slackwater.intensity.providers.Provider; see docs/guides/providers.md."
        )
    return made


FRESH = timedelta(minutes=30)
"""Age at which forecasts, and actual values that may be revised, are fetched again."""
SETTLED = timedelta(days=3)
"""Actual values fetched this long after their hour are final."""
SETTLED_ESTIMATE = timedelta(days=14)
"""The same for estimates, which are replaced by measurements later."""
_AHEAD = timedelta(minutes=5)


class Cached:
    """Fetch from a provider through the cache."""

    def __init__(self, provider: Provider, cache: Cache) -> None:
        self.provider, self.cache = provider, cache

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Return readings from the cache and, for what it lacks, from the provider."""
        begin, stop = checked_range(zones, start, end, kind)
        return merged(self._zone(zone, begin, stop, kind) for zone in zones)

    def _zone(self, zone: str, start: datetime, end: datetime, kind: Asked) -> Answer:
        place = Place(source=self.provider.source, zone=zone, factor=self.provider.factor, asked=kind)
        try:
            known = self.cache.find(place, start, end)
            last = self.cache.last_request(place)
        except CacheError as trouble:  # ask the provider anyway
            answer = self.provider.fetch([zone], start, end, kind)
            return replace(answer, notes=(str(trouble), *answer.notes))
        now = self.provider.client.now()
        wanted = self._wanted([reading for reading in known if is_fresh(reading, now)], start, end, kind, now)
        if not wanted or _just_asked(last, wanted, now):
            return Answer(readings=tuple(known))
        answer = self.provider.fetch([zone], wanted[0], wanted[1], kind)
        notes = [*answer.notes, *self._keep(place, answer, wanted, now)]
        error = answer.failures.get(zone)
        if isinstance(error, NoValuesError) and kind == "actual" and known and known[-1].end > now - UNPUBLISHED:
            error = None  # the hours since the last value are not published yet
        fetched = {reading.start: reading for reading in answer.readings}
        begin, stop = wanted
        old = [
            replace(reading, stale=True) if error and not is_fresh(reading, now) else reading
            for reading in known
            if reading.end <= begin or reading.start >= stop or not _overlapped(reading, fetched)
        ]
        readings = tuple(sorted((*old, *answer.readings), key=lambda reading: reading.start))
        stale = [reading for reading in old if reading.stale]
        if stale and error:
            first, latest = stale[0], max(reading.fetched_at for reading in stale)
            hours = sum(reading.minutes for reading in stale) / 60
            notes.append(
                f"{self.provider.source}, {zone}: {hours:g} h from {iso(first.start)} are old values from the cache, "
                f"fetched by {iso(latest)}. Reason: {error}"
            )
        return Answer(readings=readings, notes=tuple(notes), failures={zone: error} if error else {})

    def _keep(self, place: Place, answer: Answer, wanted: tuple[datetime, datetime], now: datetime) -> list[str]:
        error = answer.failures.get(place.zone)
        request = Request(start=wanted[0], end=wanted[1], answered_at=now) if error is None else None
        try:
            self.cache.store(place, answer.readings, request)
            if (issue := issue_of(answer.readings)) is not None:
                self.cache.keep_issue(place, issue)
        except CacheError as trouble:
            return [f"The fetched values are not cached: {trouble}"]
        return []

    def _wanted(
        self, fresh: list[Reading], start: datetime, end: datetime, kind: Asked, now: datetime
    ) -> tuple[datetime, datetime] | None:
        """Return one range around all values to fetch: one request is better than several short ones."""
        if kind == "actual":
            end = min(end, ceil_hour(now))
        else:
            start = max(start, floor_hour(now))
        missing = missing_hours(fresh, start, end) if start < end else []
        return (missing[0], missing[-1] + timedelta(hours=1)) if missing else None


def is_fresh(reading: Reading, now: datetime) -> bool:
    """Return whether a value need not be fetched again."""
    if reading.fetched_at > now + _AHEAD:
        return False  # a clock was wrong when it was fetched
    settled = {"actual": SETTLED, "estimated": SETTLED_ESTIMATE}.get(reading.kind)
    if settled is not None and reading.fetched_at >= reading.end + settled:
        return True
    return now - reading.fetched_at < FRESH


def _overlapped(reading: Reading, fetched: dict[datetime, Reading]) -> bool:
    if reading.start in fetched:
        return True
    hour = floor_hour(reading.start)
    return any(
        other.start < reading.end and reading.start < other.end
        for i in range(12)
        if (other := fetched.get(hour + timedelta(minutes=5 * i))) is not None
    )


def _just_asked(last: Request | None, wanted: tuple[datetime, datetime], now: datetime) -> bool:
    """Return whether the provider was asked for this recently and had no more."""
    recent = last is not None and timedelta(0) <= now - last.answered_at < FRESH
    return last is not None and recent and last.start <= wanted[0] and wanted[1] <= last.end


Names = str | Sequence[str] | Mapping[str, Sequence[str]]
"""One provider, several in order of priority, or either by zone; "*" means all other zones."""
OTHERS = "*"


class Chain:
    """Ask providers by priority. Old values from the cache come last, after every provider was asked for new ones."""

    def __init__(
        self, providers: Names | None = None, *, context: Context, cache: Cache | None = None, mix_factors: bool = False
    ) -> None:
        """Make the providers; `mix_factors` allows those that have another factor than the context's."""
        if context.factor == "mixed":
            raise ScenarioError("factor is 'mixed'. Name the preferred factor instead, and set mix_factors.")
        self._mix = mix_factors
        self._now = context.client.latest_now
        self._wanted: Factor = context.factor
        by_zone = _by_zone(providers, context)
        made = {name: make_provider(name, context) for names in by_zone.values() for name in names}
        self._by_zone = {zone: [made[name] for name in names] for zone, names in by_zone.items()}
        self._sources: dict[Provider, Source] = {
            provider: Cached(provider, cache) if cache is not None and provider.cacheable else provider
            for provider in made.values()
        }

    def fetch(self, zones: Sequence[str], start: datetime, end: datetime, kind: Asked) -> Answer:
        """Return the readings of zones over [start, end); a zone fails if none of its providers has a value."""
        begin, stop = checked_range(zones, start, end, kind)
        # No provider has actual values of the future, so none is asked for them; nor for forecasts of the past.
        now = self._now()
        begin, stop = (begin, min(stop, ceil_hour(now))) if kind == "actual" else (max(begin, floor_hour(now)), stop)
        if begin >= stop:
            why = "in the future. Ask for forecasts" if kind == "actual" else "in the past. Ask for actual values"
            wrong = "All requested hours of {} are {}."
            return Answer(failures={zone: NotOfferedError(wrong.format(zone, why)) for zone in zones})
        return merged(self._zone(zone, begin, stop, kind) for zone in zones)

    def _zone(self, zone: str, start: datetime, end: datetime, kind: Asked) -> Answer:
        providers = self._by_zone.get(zone, self._by_zone.get(OTHERS, []))
        kept: dict[datetime, list[Reading]] = {}
        old: dict[datetime, list[Reading]] = {}
        notes: list[str] = []
        errors: list[ProviderError] = []
        for provider in providers:
            missing = missing_hours((reading for hour in kept.values() for reading in hour), start, end)
            if not missing:
                break
            if provider.factor != self._wanted and not self._mix:
                errors.append(NotOfferedError(
                    f"{provider.name} has {provider.factor} intensity, not {self._wanted}; the two are not mixed by default. "
                    f"Use factor {provider.factor}, another provider, or mix_factors."
                ))  # fmt: skip
                continue
            answer = self._sources[provider].fetch([zone], missing[0], missing[-1] + timedelta(hours=1), kind)
            notes += answer.notes
            errors += answer.failures.values()
            _take(kept, (reading for reading in answer.readings if not reading.stale), set(missing))
            _take(old, (reading for reading in answer.readings if reading.stale), set(missing), earlier_first=True)
        missing = missing_hours((reading for hour in kept.values() for reading in hour), start, end)
        _take(kept, (reading for hour in missing for reading in old.get(hour, ())), set(missing))
        readings = tuple(reading for hour in sorted(kept) for reading in kept[hour])
        if not readings:
            return Answer(notes=tuple(notes), failures={zone: _nobody(zone, kind, providers, errors)})
        # No note for a provider that never has this zone or kind, nor for hours that no provider has yet.
        pending = kind == "forecast" or not missing or missing[0] >= self._now() - UNPUBLISHED
        usual = (NotOfferedError, NoValuesError) if pending else NotOfferedError
        notes += [
            str(error)
            for error in errors
            if not isinstance(error, usual) and not any(str(error) in note for note in notes)
        ]
        return Answer(readings=readings, notes=tuple(notes))


def _by_zone(providers: Names | None, context: Context) -> dict[str, tuple[str, ...]]:
    if providers is None:
        return {OTHERS: usual_providers(context.keys)}
    if isinstance(providers, str):
        return {OTHERS: (providers,)}
    named = providers if isinstance(providers, Mapping) else {OTHERS: providers}
    if not named or any(not names for names in named.values()):
        raise ScenarioError('providers is empty; name at least one, like ["neso"].')
    return {zone: tuple(names) for zone, names in named.items()}


def _take(
    kept: dict[datetime, list[Reading]], readings: Iterable[Reading], missing: set[datetime], *,
    earlier_first: bool = False,
) -> None:  # fmt: skip
    """Put readings into the missing hours. Each hour comes from one provider, the one that has more of it."""
    by_hour: dict[datetime, list[Reading]] = {}
    for reading in readings:
        by_hour.setdefault(floor_hour(reading.start), []).append(reading)
    for hour, found in by_hour.items():
        known = kept.get(hour, [])
        if hour in missing and _minutes(found) > _minutes(known) and not (earlier_first and known):
            kept[hour] = found


def _minutes(readings: Sequence[Reading]) -> int:
    return sum(reading.minutes for reading in readings)


def _nobody(zone: str, kind: Asked, providers: Sequence[Provider], errors: Sequence[ProviderError]) -> ProviderError:
    if not providers:
        return ProviderError(
            f"No provider is named for zone {zone}. Name one, or one for all other zones under {OTHERS!r}."
        )
    if len(errors) == 1:
        return errors[0]
    reasons = " ".join(dict.fromkeys(str(error) for error in errors))
    down = any(isinstance(error, UnavailableError | ThrottledError) for error in errors)
    return (UnavailableError if down else ProviderError)(f"No provider has {kind} values of {zone}. {reasons}")
