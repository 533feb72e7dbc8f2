"""Convert readings for planning: to `Traces` over slots, or a `Forecast`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.providers.base import Context, Source, checked_range
from slackwater.intensity.providers.cache import Cache
from slackwater.intensity.providers.chain import Chain, Names
from slackwater.intensity.providers.readings import KINDS, Answer, Asked, Kind, Reading, merged
from slackwater.intensity.traces import (
    Factor,
    Origin,
    Provenance,
    Traces,
    ZoneSeries,
    check_slots,
    filled_slots,
    minute_of,
    origins_of,
)
from slackwater.units import floor_hour, iso

if TYPE_CHECKING:
    from slackwater.intensity.forecast.base import Forecast

logger = logging.getLogger(__name__)

_NAMED = 6
"""Most hours that a provenance lists one by one."""


def traces(
    zones: Sequence[str], start: datetime, end: datetime, *, factor: Factor | None = None,
    providers: Names | None = None, cache: Cache | None = None, mix_factors: bool = False,
    kind: Asked | None = None, slot_minutes: int = 60, fill_hours: int = 0, context: Context | None = None,
) -> Traces:  # fmt: skip
    """Fetch the intensity of zones over the slots of [start, end), through the cache; warnings are logged.

    Args:
        zones: Zones, in the order of the traces.
        start: Start of the first slot.
        end: End of the last slot.
        factor: Emission factor. Default: the context's, "lifecycle".
        providers: Providers to ask. Default: those without a key, and those whose key is set.
        cache: Default: the user's.
        mix_factors: Let zones have different emission factors.
        kind: Default: actual values where they are known, else forecasts.
        slot_minutes: Length of a slot.
        fill_hours: Longest gap to interpolate.
        context: Client, keys and addresses. Default: from the environment.
    """
    begin, stop = _slots(start, end, slot_minutes, fill_hours)
    context = context or Context.usual()
    if factor is not None:
        context = replace(context, factor=factor)
    source = Chain(providers, context=context, cache=cache or Cache(), mix_factors=mix_factors)
    answer = fetch_kinds(source, zones, begin, stop, kind, context.client.now())
    for note in answer.notes:
        logger.warning("%s", note)
    return to_traces(
        answer, zones, begin, stop, mix_factors=mix_factors, slot_minutes=slot_minutes, fill_hours=fill_hours
    )


def fetch_kinds(
    source: Source, zones: Sequence[str], start: datetime, end: datetime, kind: Asked | None, now: datetime
) -> Answer:
    """Return readings of one kind; or of both: actual values, and forecasts of the hours that are not over."""
    if kind is not None:
        return source.fetch(zones, start, end, kind)
    asked: list[Answer] = []
    current = floor_hour(now)
    if start < now:
        asked.append(source.fetch(zones, start, min(end, now), "actual"))
    if end > current:
        asked.append(source.fetch(zones, max(start, current), end, "forecast"))
    return merged(asked)


def to_traces(
    answer: Answer, zones: Sequence[str], start: datetime, end: datetime, *, mix_factors: bool = False,
    slot_minutes: int = 60, fill_hours: int = 0,
) -> Traces:  # fmt: skip
    """Return the readings of an answer as traces; actual values replace estimates, and both replace forecasts."""
    begin, stop = minute_of(start), minute_of(end)
    rows: list[NDArray[np.float64]] = []
    provenance: list[Provenance] = []
    problems: list[str] = []
    used: list[Reading] = []
    for zone in zones:
        chosen = best_readings(answer.of(zone), start, end)
        reason = f" {answer.failures[zone]}" if zone in answer.failures else ""
        if not chosen:
            problems.append(reason.strip() or f"There are no values of {zone} from {iso(start)} to {iso(end)}.")
            continue
        used += chosen
        series = series_of(zone, chosen, begin, stop)
        try:
            row, filled = filled_slots(series, chosen[0].factor, begin, stop, slot_minutes, fill_hours)
        except DataError as error:
            problems.append(str(error) + reason)
            continue
        rows.append(row)
        provenance.append(Provenance(zone=zone, source=describe(chosen), filled_hours=filled, origins=origins(chosen)))
    mixed = refuse_mixed(used, mix_factors=mix_factors)
    if problems:
        raise DataError("\n".join(dict.fromkeys(problems)))
    return Traces(
        zones=tuple(zones), start=start, intensity=np.array(rows), factor=mixed, slot_minutes=slot_minutes,
        provenance=tuple(provenance),
    )  # fmt: skip


def forecast(zones: Sequence[str], start: datetime, end: datetime, **settings: Any) -> Forecast:
    """Return the providers' own forecast, with settings as for `traces`.

    Providers give no interval, so it has the default one.
    """
    from slackwater.intensity.forecast.base import STATED_COVERAGE, Forecast, stated

    made = traces(zones, start, end, kind="forecast", **settings)
    low, high = stated(made.intensity, made.slot_minutes)
    return Forecast(
        zones=made.zones, start=made.start, mean=made.intensity, low=low, high=high, coverage=STATED_COVERAGE,
        factor=made.factor, source="; ".join(dict.fromkeys(one.source for one in made.provenance)),
        slot_minutes=made.slot_minutes, origins=tuple(one.origins for one in made.provenance),
    )  # fmt: skip


def refuse_mixed(readings: Sequence[Reading], *, mix_factors: bool) -> Factor:
    """Return the factor of all readings, or "mixed" if that is allowed."""
    factors = sorted({reading.factor for reading in readings})
    if len(factors) == 1:
        return factors[0]
    if factors and not mix_factors:
        listed = "; ".join(
            f"{factor}: {', '.join(dict.fromkeys(one.zone for one in readings if one.factor == factor))}"
            for factor in factors
        )
        raise DataError(
            f"The values have different emission factors ({listed}), which cannot be compared. Name providers with the "
            "same factor, or allow it with mix_factors."
        )
    return "mixed" if factors else "lifecycle"


def describe(readings: Sequence[Reading]) -> str:
    """Return on one line where a zone's values come from: sources, hours of each kind, factor, time of fetching."""
    parts = []
    for source in dict.fromkeys(reading.source for reading in readings):
        mine = [reading for reading in readings if reading.source == source]
        minutes: Counter[Kind] = Counter()
        for reading in mine:
            minutes[reading.kind] += reading.minutes
        text = f"{source}: " + ", ".join(f"{minutes[kind] / 60:g} h {kind}" for kind in KINDS if minutes[kind])
        estimated = sorted({floor_hour(reading.start) for reading in mine if reading.kind == "estimated"})
        if estimated:
            more = f" and {len(estimated) - _NAMED} more" if len(estimated) > _NAMED else ""
            text += f" (estimated: {', '.join(iso(hour) for hour in estimated[:_NAMED])}{more})"
        factors = "/".join(sorted({reading.factor for reading in mine}))
        text += f", {factors}, fetched {iso(max(reading.fetched_at for reading in mine))}"
        stale = sum(reading.minutes for reading in mine if reading.stale)
        parts.append(text + (f", {stale / 60:g} h of it old values, since the provider was down" if stale else ""))
    return "; ".join(parts)


def origins(readings: Sequence[Reading]) -> tuple[Origin, ...]:
    """Return the origin of every hour with readings; of several in an hour, the least certain."""
    hours: dict[datetime, Reading] = {}
    for reading in readings:
        for i in range(-(-(reading.start.minute + reading.minutes) // 60)):
            hour = floor_hour(reading.start) + timedelta(hours=i)
            known = hours.get(hour)
            if known is None or KINDS.index(reading.kind) > KINDS.index(known.kind):
                hours[hour] = reading
    return origins_of((hour, r.source, r.kind, r.issued_at or r.fetched_at if r.kind == "forecast" else None)
                      for hour, r in sorted(hours.items()))  # fmt: skip


def _slots(start: datetime, end: datetime, slot_minutes: int, fill_hours: int) -> tuple[datetime, datetime]:
    check_slots(slot_minutes, fill_hours)
    begin, stop = checked_range(["any"], start, end, "actual")
    if minute_of(begin) % slot_minutes or minute_of(stop) % slot_minutes:
        raise ScenarioError(
            f"{iso(begin)} to {iso(stop)} is not a whole number of {slot_minutes}-minute slots, which are counted from "
            "00:00 UTC."
        )
    return begin, stop


def best_readings(readings: Sequence[Reading], start: datetime, end: datetime) -> list[Reading]:
    """Return at most one reading for every minute; the most certain kind has priority."""
    taken: set[int] = set()
    chosen: list[Reading] = []
    for kind in KINDS:
        for reading in readings:
            first = minute_of(reading.start) // 5
            steps = range(first, first + reading.minutes // 5)
            if reading.kind == kind and start <= reading.start < end and taken.isdisjoint(steps):
                taken.update(steps)
                chosen.append(reading)
    return sorted(chosen, key=lambda reading: reading.start)


def series_of(zone: str, readings: Sequence[Reading], begin: int, end: int) -> ZoneSeries:
    """Return readings as one series over [begin, end), minutes since 1970; NaN without a reading."""
    step = gcd(60, *(reading.minutes for reading in readings))
    values = np.full((end - begin) // step, np.nan)
    for reading in readings:
        first = (minute_of(reading.start) - begin) // step
        values[first : first + reading.minutes // step] = reading.kg_per_kwh
    return ZoneSeries(
        zone=zone, source=", ".join(dict.fromkeys(reading.source for reading in readings)), start_minute=begin,
        step_minutes=step, steps=len(values), intensity={readings[0].factor: values},
    )  # fmt: skip
