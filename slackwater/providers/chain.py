"""Several providers by priority, per zone: the first one that has an hour gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from slackwater.carbon.traces import Factor
from slackwater.errors import ScenarioError
from slackwater.providers.base import Context, Provider, Source, checked_range
from slackwater.providers.cache import Cache
from slackwater.providers.cached import Cached
from slackwater.providers.errors import NotOfferedError, NoValuesError, ProviderError, ThrottledError, UnavailableError
from slackwater.providers.registry import make_provider, usual_providers
from slackwater.providers.values import UNPUBLISHED, Answer, Asked, Reading, merged, missing_hours
from slackwater.units import ceil_hour, floor_hour

Names = str | Sequence[str] | Mapping[str, Sequence[str]]
"""One provider, several in order of priority, or those by zone; "*" stands for all other zones."""
OTHERS = "*"


class Chain:
    """Ask providers by priority. Old values from the cache come last, after every provider was asked for new ones."""

    def __init__(
        self, providers: Names | None = None, *, context: Context, cache: Cache | None = None, mix_factors: bool = False
    ) -> None:
        """Make the providers; `mix_factors` allows those that have another factor than the context's."""
        if context.factor == "mixed":
            raise ScenarioError("factor is 'mixed'; ask for the one that is wanted most, and for mix_factors.")
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
        # Nobody has actual values of what is to come, so nobody is asked for them; nor for forecasts of what was.
        now = self._now()
        begin, stop = (begin, min(stop, ceil_hour(now))) if kind == "actual" else (max(begin, floor_hour(now)), stop)
        if begin >= stop:
            why = "are still to come. Ask for forecasts" if kind == "actual" else "are past. Ask for actual values"
            wrong = "The hours of {} that were asked for {}."
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
                    f"{provider.name} gives {provider.factor} intensity, and {self._wanted} was asked for; the two are not "
                    f"mixed unless asked for (mix_factors). Ask for {provider.factor}, or name another provider."
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
        # No note for a provider that never has this zone or kind, nor for hours that nobody has published or forecast yet.
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
        raise ScenarioError('providers names none; give at least one, like ["neso"].')
    return {zone: tuple(names) for zone, names in named.items()}


def _take(
    kept: dict[datetime, list[Reading]], readings: Iterable[Reading], missing: set[datetime], *,
    earlier_first: bool = False,
) -> None:  # fmt: skip
    """Put readings into the missing hours; an hour is of one provider, the one that has more of it."""
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
            f"No provider is named for the zone {zone}. Name one, or some under {OTHERS!r} for all others."
        )
    if len(errors) == 1:
        return errors[0]
    reasons = " ".join(dict.fromkeys(str(error) for error in errors))
    down = any(isinstance(error, UnavailableError | ThrottledError) for error in errors)
    return (UnavailableError if down else ProviderError)(f"No provider has {kind} values of {zone}. {reasons}")
