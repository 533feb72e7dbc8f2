"""From readings to what planning works on: `Traces` over slots, or a `Forecast`, with their origin told."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.series import (
    ZoneSeries,
    describe_gaps,
    fill,
    gaps_of,
    hours_in,
    minute_of,
    moment,
    to_slots,
)
from slackwater.carbon.traces import Factor, Provenance, Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.providers.base import Context, Source, checked_range
from slackwater.providers.cache import Cache
from slackwater.providers.chain import Chain, Names
from slackwater.providers.values import KINDS, Answer, Asked, Kind, Reading, floor_hour, merged
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.forecasting.forecast import Forecast

logger = logging.getLogger(__name__)

_NAMED = 6
"""How many hours a provenance lists one by one."""


def traces(
    zones: Sequence[str],
    start: datetime,
    end: datetime,
    *,
    factor: Factor | None = None,
    providers: Names | None = None,
    cache: Cache | None = None,
    mix_factors: bool = False,
    kind: Asked | None = None,
    slot_minutes: int = 60,
    fill_hours: int = 0,
    context: Context | None = None,
) -> Traces:
    """Intensity of zones over the slots of [start, end), from providers through the cache; life-cycle if nothing is said.

    Without `kind`, what is past is actual where it is known, and the rest is forecast. Gaps are errors, unless they are at
    most `fill_hours` long. Everything odd is logged as a warning; each zone's provenance tells sources and kinds.
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
    """Readings of one kind; or of both: actual values, and forecasts of the hours that are not over."""
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
    answer: Answer,
    zones: Sequence[str],
    start: datetime,
    end: datetime,
    *,
    mix_factors: bool = False,
    slot_minutes: int = 60,
    fill_hours: int = 0,
) -> Traces:
    """The readings of an answer as traces; an actual value goes before an estimate, and that before a forecast."""
    begin, stop = minute_of(start), minute_of(end)
    rows: list[NDArray[np.float64]] = []
    provenance: list[Provenance] = []
    problems: list[str] = []
    used: list[Reading] = []
    for zone in zones:
        chosen = _chosen(answer.of(zone), start, end)
        reason = f" {answer.failures[zone]}" if zone in answer.failures else ""
        if not chosen:
            problems.append(reason.strip() or f"There are no values of {zone} from {iso(start)} to {iso(end)}.")
            continue
        used += chosen
        series = _series(zone, chosen, begin, stop)
        factor = chosen[0].factor
        gaps = gaps_of(series, factor)
        short = [gap for gap in gaps if not gap.at_edge and gap.minutes <= 60 * fill_hours]
        left = [gap for gap in gaps if gap not in short]
        if left:
            problems.append(describe_gaps(series, factor, left, begin, stop, fill_hours) + reason)
            continue
        filled = tuple(iso(moment(hour)) for hour in hours_in(short, begin, stop))
        if filled:
            logger.warning("Zone %s: filled %d hours by interpolation: %s.", zone, len(filled), ", ".join(filled))
        rows.append(to_slots(series, fill(series.intensity[factor], short), begin, stop, slot_minutes))
        provenance.append(
            Provenance(
                zone=zone,
                source=describe(chosen),
                filled_hours=filled,
                estimated_hours=_hours_of(chosen, "estimated"),
                forecast_hours=_hours_of(chosen, "forecast"),
            )
        )
    mixed = refuse_mixed(used, mix_factors=mix_factors)
    if problems:
        raise DataError("\n".join(dict.fromkeys(problems)))
    return Traces(
        zones=tuple(zones),
        start=start,
        intensity=np.array(rows),
        factor=mixed,
        slot_minutes=slot_minutes,
        provenance=tuple(provenance),
    )


def forecast(
    zones: Sequence[str],
    start: datetime,
    end: datetime,
    *,
    factor: Factor | None = None,
    providers: Names | None = None,
    cache: Cache | None = None,
    mix_factors: bool = False,
    slot_minutes: int = 60,
    context: Context | None = None,
) -> Forecast:
    """The providers' own forecast. They give no range, so it is the mean itself, with a coverage of 0."""
    from slackwater.forecasting.forecast import Forecast

    made = traces(
        zones,
        start,
        end,
        factor=factor,
        providers=providers,
        cache=cache,
        mix_factors=mix_factors,
        kind="forecast",
        slot_minutes=slot_minutes,
        context=context,
    )
    return Forecast(
        zones=made.zones,
        start=made.start,
        mean=made.intensity,
        low=made.intensity,
        high=made.intensity,
        coverage=0.0,
        factor=made.factor,
        source="; ".join(dict.fromkeys(one.source for one in made.provenance)),
        slot_minutes=slot_minutes,
    )


def refuse_mixed(readings: Sequence[Reading], *, mix_factors: bool) -> Factor:
    """The factor of all readings, or "mixed" if that was asked for."""
    factors = sorted({reading.factor for reading in readings})
    if len(factors) == 1:
        return factors[0]
    if factors and not mix_factors:
        by_factor = {
            factor: ", ".join(dict.fromkeys(reading.zone for reading in readings if reading.factor == factor))
            for factor in factors
        }
        listed = "; ".join(f"{factor}: {zones}" for factor, zones in by_factor.items())
        raise DataError(
            f"The values have several emission factors ({listed}), whose grams cannot be compared. Name providers that "
            "have the same, or allow it with mix_factors."
        )
    return "mixed" if factors else "lifecycle"


def describe(readings: Sequence[Reading]) -> str:
    """Where a zone's values come from, on one line: sources, hours of each kind, factor, and when they were fetched."""
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
        parts.append(text + (f", {stale / 60:g} h of it old values, as the provider was down" if stale else ""))
    return "; ".join(parts)


def _hours_of(readings: Sequence[Reading], kind: Kind) -> tuple[str, ...]:
    """Starts of the hours into which readings of a kind reach."""
    hours = {
        floor_hour(reading.start) + timedelta(hours=i)
        for reading in readings
        if reading.kind == kind
        for i in range(-(-(reading.start.minute + reading.minutes) // 60))
    }
    return tuple(iso(hour) for hour in sorted(hours))


def _slots(start: datetime, end: datetime, slot_minutes: int, fill_hours: int) -> tuple[datetime, datetime]:
    if slot_minutes < 1 or (60 % slot_minutes and (slot_minutes % 60 or 1440 % slot_minutes)):
        raise ScenarioError(
            f"slot_minutes is {slot_minutes}; a slot is a whole part of an hour (15, 20, 30, 60) or whole hours that "
            "divide a day (120, 180, 240, 360, 480, 720, 1440)."
        )
    if fill_hours < 0:
        raise ScenarioError(f"fill_hours is {fill_hours}; give 0 to fill no gaps, or the longest gap to fill in hours.")
    begin, stop = checked_range(["any"], start, end, "actual")
    if minute_of(begin) % slot_minutes or minute_of(stop) % slot_minutes:
        raise ScenarioError(
            f"{iso(begin)} to {iso(stop)} is not a whole number of {slot_minutes}-minute slots, which are counted from "
            "00:00 UTC."
        )
    return begin, stop


def _chosen(readings: Sequence[Reading], start: datetime, end: datetime) -> list[Reading]:
    """One reading at most for every minute; the best kind goes first."""
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


def _series(zone: str, readings: Sequence[Reading], begin: int, end: int) -> ZoneSeries:
    step = gcd(60, *(reading.minutes for reading in readings))
    values = np.full((end - begin) // step, np.nan)
    for reading in readings:
        first = (minute_of(reading.start) - begin) // step
        values[first : first + reading.minutes // step] = reading.kg_per_kwh
    return ZoneSeries(
        zone=zone,
        source=", ".join(dict.fromkeys(reading.source for reading in readings)),
        start_minute=begin,
        step_minutes=step,
        steps=len(values),
        intensity={readings[0].factor: values},
    )
