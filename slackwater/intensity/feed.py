"""The intensity as known at one moment: actuals, then the provider's forecast, then ours, joined without a jump.

`plan`, `run`, `rehearse`, `backtest` and the dashboard all use it. A history can be too short to forecast from:
Electricity Maps' free plan has 24 hours. It is then extended to two weeks by the zone's typical profile, scaled to the
measured level.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, Issues, hours_since_1970
from slackwater.intensity.forecast.base import Forecast, Forecaster, stated
from slackwater.intensity.forecast.blend import Blend
from slackwater.intensity.forecast.ridge import LEAST_DAYS, Ridge
from slackwater.intensity.load import TYPICAL, load_traces, typical_zones
from slackwater.intensity.providers.base import Context, Source
from slackwater.intensity.providers.cache import Cache, CacheError, Issue, issue_of
from slackwater.intensity.providers.chain import Chain
from slackwater.intensity.providers.provider_errors import ThrottledError, UnavailableError
from slackwater.intensity.providers.readings import Answer, Asked
from slackwater.intensity.providers.to_traces import best_readings, describe, origins, refuse_mixed, series_of
from slackwater.intensity.providers.to_traces import traces as provider_traces
from slackwater.intensity.traces import (
    FACTORS,
    INTERPOLATED,
    Certainty,
    Factor,
    Origin,
    Provenance,
    Traces,
    joined,
    minute_of,
    moment,
    to_slots,
)
from slackwater.units import floor_hour, iso

logger = logging.getLogger(__name__)

LOOKBACK = timedelta(days=35)
"""How far back to load actuals: upper bounds need four weeks, the reserve needs past plans."""
SHORTEST = timedelta(days=14)
"""Shortest history to return; the typical profile fills what is missing."""
PATIENCE = timedelta(hours=6)
"""How long to wait for a missing actual. Then it is interpolated, if later ones are known."""
FARTHEST = timedelta(days=14)
"""Files that end earlier than this before a run are too old to forecast from."""
PROXY = "DE"
"""Zone whose profile is used for zones without a typical year: one of the most variable."""
_NUMBER = re.compile(r"\d[\d.,:TZ-]*")
"""Numbers and times, in which two notes about the same problem may differ."""

Floats = NDArray[np.float64]


class ProviderFeed:
    """Follow the intensity of zones as time passes. While no provider answers, the last known values stay.

    Args:
        source: The providers to ask.
        zones: Zones, in the order of the traces.
        slot_minutes: Length of a slot.
        fill_hours: Gaps up to this length are interpolated at once, longer gaps after `PATIENCE`.
        mix_factors: Let zones have different emission factors.
        forecaster: Default: a blend of the providers' forecasts and ours.
        context: Its request budget is reset at every update: a run of weeks asks more than any command.
        cache: Where issued forecasts are stored.
    """

    def __init__(
        self, source: Source, zones: Sequence[str], *, slot_minutes: int = 60, fill_hours: int = 0,
        mix_factors: bool = False, forecaster: Forecaster | None = None, context: Context | None = None,
        cache: Cache | None = None,
    ) -> None:  # fmt: skip
        self.zones = tuple(zones)
        self._source, self._context, self._cache = source, context, cache
        self._minutes, self._fill_hours, self._mix = slot_minutes, fill_hours, mix_factors
        self._step = timedelta(minutes=slot_minutes)
        self._factor: Factor = context.factor if context is not None else "lifecycle"
        self._forecaster, self._blend = forecaster, Blend()
        self._issues: dict[str, list[Issue]] | None = None
        self._known: Traces | None = None
        self._measured_from: datetime | None = None
        self._at: datetime | None = None
        self._notes: list[str] = []
        self._said, self._lasting = set[str](), set[str]()

    @classmethod
    def of(
        cls, data: Mapping[str, Any], zones: Sequence[str], *, slot_minutes: int, folder: Path,
        forecaster: Forecaster | None = None,
    ) -> ProviderFeed:  # fmt: skip
        """Make a feed from a scenario's [data]; relative paths start at `folder`."""
        mixed = data.get("factor") == "mixed"
        context = _context(data.get("factor", "lifecycle"), folder)
        cache = Cache()
        chain = Chain(data["source"], context=context, cache=cache, mix_factors=mixed)
        return cls(chain, zones, slot_minutes=slot_minutes, fill_hours=int(data.get("fill_hours", 0)), mix_factors=mixed,
                   forecaster=forecaster, context=context, cache=cache)  # fmt: skip

    def until(self, at: datetime, since: datetime | None = None) -> Traces:
        """Return the actuals that all zones have at a moment, the start of a slot; at least two weeks.

        `since` also asks for actuals older than `LOOKBACK`. If the request fails, the last known actuals are returned.
        """
        self._at = at
        if self._context is not None:
            self._context.client.requests = 0
        start = at - LOOKBACK if since is None else min(at - LOOKBACK, self._slot(since))
        try:
            answer = self._source.fetch(self.zones, start, at, "actual")
            self._notes += answer.notes
            known, measured_from = self._as_traces(answer, start, at)
        except DataError as error:
            if self._known is None:
                raise
            self._notes.append(f"No new actual intensity: {error}")
        else:
            if self._known is None or known.end >= self._known.end:
                self._known, self._measured_from = known, measured_from
        slots = (at - self._known.start) // self._step
        return self._known.window(self._known.start, min(self._known.slots, slots))

    def measured(self, known: Traces) -> Traces | None:
        """Return the measured part of what `until` returned; None if all of it is a typical profile."""
        begin = max(self._measured_from or known.start, known.start)
        slots = (known.end - begin) // self._step
        return known.window(begin, slots) if slots > 0 else None

    def origin(self, zone: str, start: datetime) -> tuple[str, Certainty]:
        """Return the source and the kind of an actual, for the slot that starts then."""
        if self._known is None or not self._known.start <= start < self._known.end:
            return INTERPOLATED, "estimated"
        return self._known.provenance[self._known.index(zone)].origin(start, start + self._step)

    def notes(self) -> list[str]:
        """Return the notes since the last call, without those that the last call had with other numbers."""
        noted, self._notes = list(dict.fromkeys(self._notes)), []
        before, self._lasting = self._lasting, {_NUMBER.sub("#", note) for note in noted}
        return [note for note in noted if _NUMBER.sub("#", note) not in before]

    def forecast(self, known: Traces, slots: int) -> Forecast:
        """Return the forecast of the slots after the last actual; there always is one."""
        if self._forecaster is not None:
            return self._forecaster.forecast(known, slots)
        at = self._at or known.end
        self._learn(known.factor, known.end + slots * self._step, at)
        self._blend.lag_hours = max(0, math.ceil((at - known.end) / timedelta(hours=1)))
        made = self._blend.forecast(known, slots)
        measured = self.measured(known)
        if measured is not None and measured.slots * self._step >= timedelta(days=LEAST_DAYS):
            return made
        low, high = stated(made.mean, self._minutes, (at - known.end) // self._step)
        return replace(made, low=np.minimum(made.low, low), high=np.maximum(made.high, high))

    @property
    def forecaster(self) -> Forecaster:
        """Return the forecaster; it knows which forecasts were issued by any time, for past plans."""
        return self._forecaster or self._blend

    def traces(self, start: datetime, end: datetime, now: datetime) -> Traces:
        """Return the intensity of [start, end) as it is known now: actual, then forecast. Notes are logged."""
        at = self._slot(now)
        try:
            known = self.until(at, start if start < at else None)
        except DataError as error:
            known = self._from_forecast(at, end, error)
        ahead = self.forecast(known, max(1, (end - known.end) // self._step)).traces()
        whole = joined(known, ahead)
        for note in self.notes():
            logger.warning("%s", note)
        return whole.window(start, (end - start) // self._step)

    def _slot(self, at: datetime) -> datetime:
        """Return the start of the current slot."""
        minute = minute_of(at)
        return moment(minute - minute % self._minutes)

    def _as_traces(self, answer: Answer, start: datetime, end: datetime) -> tuple[Traces, datetime]:
        """Return the readings as slots up to the last that all zones have, and from when on all of them are measured."""
        begin, stop = minute_of(start), minute_of(end)
        taken = {zone: best_readings(answer.of(zone), start, end) for zone in self.zones}
        lacking = [zone for zone, readings in taken.items() if not readings]
        if lacking:
            failures = [answer.failures[zone] for zone in lacking if zone in answer.failures]
            if any(isinstance(error, UnavailableError | ThrottledError) for error in failures):
                raise UnavailableError(" ".join(dict.fromkeys(map(str, failures))))
            answer.expect()
            raise DataError(f"No provider has actual values of {', '.join(lacking)} from {iso(start)} to {iso(end)}.")
        factor = refuse_mixed([reading for one in taken.values() for reading in one], mix_factors=self._mix)
        rows: list[Floats] = []
        for zone, readings in taken.items():
            series = series_of(zone, readings, begin, stop)
            rows.append(to_slots(series, series.intensity[readings[0].factor], begin, stop, self._minutes))
        last = min(self._known_slots(row, start, end) for row in rows)
        if last < 1:
            raise DataError(f"No provider has consecutive actual values of {', '.join(self.zones)} before {iso(end)}.")
        firsts = [int(np.flatnonzero(~np.isnan(row))[0]) for row in rows]
        first = max(firsts)
        if (last - first) * self._step < SHORTEST:
            first = max(0, last - SHORTEST // self._step)
        filled = [self._filled(zone, row, at, first, last, start) for zone, row, at in
                  zip(self.zones, rows, firsts, strict=True)]  # fmt: skip
        from_, to = start + first * self._step, start + last * self._step
        provenance = tuple(
            Provenance(
                zone=zone, source=describe(taken[zone]), filled_hours=hours, origins=(*typical, *origins(taken[zone]))
            ).within(from_, to)
            for zone, (_, hours, typical) in zip(self.zones, filled, strict=True)
        )
        known = self._traces(from_, [values for values, _, _ in filled], factor, provenance)
        return known, start + max(first, *firsts) * self._step

    def _traces(
        self, start: datetime, rows: Sequence[Floats], factor: Factor, provenance: Sequence[Provenance]
    ) -> Traces:
        return Traces(zones=self.zones, start=start, intensity=np.array(rows), factor=factor,
                      slot_minutes=self._minutes, provenance=tuple(provenance))  # fmt: skip

    def _known_slots(self, row: Floats, start: datetime, end: datetime) -> int:
        """Return the number of slots up to the last value, or up to a gap whose values may still come."""
        there = np.flatnonzero(~np.isnan(row))
        if not len(there):
            return 0
        patient = (end - PATIENCE - start) // self._step
        allowed = self._fill_hours * timedelta(hours=1) // self._step
        for before, after in pairwise(there):
            if after - before - 1 > allowed and after > patient:
                return int(before) + 1
        return int(there[-1]) + 1

    def _filled(
        self, zone: str, row: Floats, measured_at: int, first: int, last: int, start: datetime
    ) -> tuple[Floats, tuple[str, ...], tuple[Origin, ...]]:
        """Return one zone without gaps (lines inside, its typical profile before), the filled hours and the profile's origin."""
        at = np.arange(len(row))
        gaps = np.isnan(row) & (at > measured_at) & (at < last)
        values = row.copy()
        values[gaps] = np.interp(at[gaps], at[~np.isnan(row)], row[~np.isnan(row)])
        hours = sorted({iso(floor_hour(start + int(slot) * self._step)) for slot in np.flatnonzero(gaps)})
        typical: tuple[Origin, ...] = ()
        if measured_at > first:
            measured = values[measured_at:last]
            values[first:measured_at], typical = self._typical(zone, measured, first, measured_at, start)
        return values[first:last], tuple(hours), typical

    def _typical(
        self, zone: str, measured: Floats, first: int, end: int, start: datetime
    ) -> tuple[Floats, tuple[Origin, ...]]:
        """Return the typical profile of the slots before the first measured one, scaled to the measured level."""
        begin = start + first * self._step
        whose, profile = typical_profile(zone, self._factor, begin, end - first + len(measured), self._minutes)
        usual = float(profile[end - first :].mean())
        scaled = profile[: end - first] * (float(measured.mean()) / usual) if usual > 0 else None
        values = np.full(end - first, measured.mean()) if scaled is None else scaled
        said = f"the typical profile of {whose}, scaled"
        note = (
            f"Only {len(measured) * self._minutes / 60:g} h of actual intensity are known for {zone}; before them, {said} "
            f"is used. Forecasts and upper bounds are rough until {LEAST_DAYS} days are known."
        )
        if note not in self._said:
            self._said.add(note)
            self._notes.append(note)
        hours = math.ceil((start + end * self._step - floor_hour(begin)) / timedelta(hours=1))
        return values, (Origin(start=iso(floor_hour(begin)), hours=hours, source=said, kind="estimated"),)

    def _from_forecast(self, at: datetime, end: datetime, error: DataError) -> Traces:
        """Return a past for zones that have no actuals: the typical profile at the level of the providers' forecast."""
        try:
            answer = self._source.fetch(self.zones, at, end, "forecast")
        except DataError:
            raise error from None
        levels = {zone: [reading.kg_per_kwh for reading in answer.of(zone)] for zone in self.zones}
        if not all(levels.values()):
            raise error
        self._notes.append(f"No actual intensity is known, so the plan uses forecasts only: {error}")
        begin = at - SHORTEST
        factor = refuse_mixed(answer.readings, mix_factors=self._mix)
        rows, provenance = [], []
        for zone in self.zones:
            whose, profile = typical_profile(zone, self._factor, begin, SHORTEST // self._step, self._minutes)
            said = f"the typical profile of {whose}, scaled"
            rows.append(profile * (float(np.mean(levels[zone])) / max(float(profile.mean()), 1e-9)))
            origin = Origin(start=iso(begin), hours=SHORTEST // timedelta(hours=1), source=said, kind="estimated")
            provenance.append(Provenance(zone=zone, source=said, origins=(origin,)))
        self._known, self._measured_from = self._traces(begin, rows, factor, provenance), at
        return self._known

    def _learn(self, factor: Factor, end: datetime, at: datetime) -> None:
        """Fetch the newest forecast, and give the blend all that were issued by now."""
        if self._issues is None:
            self._issues = {zone: self._kept(zone, at) for zone in self.zones}
        try:
            answer = self._source.fetch(self.zones, at, end, "forecast")
        except DataError as error:
            answer = Answer()
            self._notes.append(f"No new forecast from the providers: {error}")
        self._notes += answer.notes
        missing = [str(error) for error in answer.failures.values()]
        if missing:
            self._notes.append(f"No new forecast from the providers: {' '.join(dict.fromkeys(missing))}")
        for zone in self.zones:
            issue = issue_of(answer.of(zone))
            known = self._issues[zone]
            if issue is not None and not (known and _same(known[-1], issue)):
                known.append(replace(issue, issued_at=min(issue.issued_at, at)))
        self._blend.archive = archive_of(self._issues, factor)
        self._blend.name = f"blend of {self._blend.archive.name}" if self._blend.archive.issues else "blend"

    def _kept(self, zone: str, at: datetime) -> list[Issue]:
        try:
            return [] if self._cache is None else self._cache.issues(zone, self._factor, at)
        except CacheError as trouble:
            self._notes.append(str(trouble))
            return []


def traces_of(
    data: Mapping[str, Any], zones: Sequence[str], start: datetime, end: datetime, *, slot_minutes: int,
    folder: Path, now: datetime,
) -> Traces:  # fmt: skip
    """Return the intensity of [start, end) as it is known now, from any source, for planning.

    Args:
        data: A scenario's [data]: source, factor and fill_hours. A source that is text is a path or "typical", anything
            else names providers.
        zones: Zones, in the order of the traces.
        start: Start of the first slot.
        end: End of the last slot.
        slot_minutes: Length of a slot.
        folder: Where relative paths start.
        now: Slots that end later are forecast, unless a file has them.
    """
    if isinstance(data["source"], str):
        hours = math.ceil((end - start) / timedelta(hours=1))
        return _from_files(data["source"], zones, start, hours, now, _settings(data, slot_minutes))
    if end <= now:
        return _from_providers(data, zones, start, end, None, slot_minutes, folder)
    return ProviderFeed.of(data, zones, slot_minutes=slot_minutes, folder=folder).traces(start, end, now)


def actuals_of(
    data: Mapping[str, Any], zones: Sequence[str], start: datetime | None, end: datetime | None, *,
    slot_minutes: int, folder: Path, now: datetime,
) -> Traces:  # fmt: skip
    """Return the known actuals of [start, end), for a rehearsal or a back-test.

    Without `start` and `end`, all that files have. Arguments as for `traces_of`.
    """
    source, settings = data["source"], _settings(data, slot_minutes)
    if not isinstance(source, str):
        if start is None or end is None:
            raise ScenarioError("Providers need a period: give a start, or --data FOLDER.")
        last = moment(minute_of(min(end, now)) // slot_minutes * slot_minutes)
        return _from_providers(data, zones, start, last, "actual", slot_minutes, folder)
    if source == TYPICAL and start is not None and end is not None:
        hours = round((end - start).total_seconds() / 3600)
        return load_traces(TYPICAL, zones=zones, start=start, hours=hours, **settings)
    whole = load_traces(source, zones=zones, **settings)
    first = whole.start if start is None else max(start, whole.start)
    last = whole.end if end is None else min(end, whole.end)
    if first >= last:
        raise DataError(f"The data covers {iso(whole.start)} to {iso(whole.end)}, which does not include the run.")
    return whole.window(first, (last - first) // timedelta(minutes=slot_minutes))


def _settings(data: Mapping[str, Any], slot_minutes: int) -> dict[str, Any]:
    """Return the settings of `load_traces` for a scenario's [data]."""
    return {"factor": data["factor"], "slot_minutes": slot_minutes, "fill_hours": int(data.get("fill_hours", 0))}


def _context(factor: Factor, folder: Path) -> Context:
    return Context.usual(factor="lifecycle" if factor == "mixed" else factor, folder=folder)


def _from_providers(
    data: Mapping[str, Any], zones: Sequence[str], start: datetime, end: datetime, kind: Asked | None,
    slot_minutes: int, folder: Path,
) -> Traces:  # fmt: skip
    settings = _settings(data, slot_minutes)
    factor = settings.pop("factor")
    return provider_traces(zones, start, end, providers=data["source"], mix_factors=factor == "mixed", kind=kind,
                           context=_context(factor, folder), **settings)  # fmt: skip


def _from_files(
    source: str, zones: Sequence[str], start: datetime, hours: int, now: datetime, settings: Mapping[str, Any]
) -> Traces:
    """Return files unchanged; if they end before the end of a future run, our own forecast continues them."""
    slot_minutes = settings["slot_minutes"]
    end = start + timedelta(hours=hours)
    if source == TYPICAL or end <= now:
        return load_traces(source, zones=zones, start=start, hours=hours, **settings)
    known = load_traces(source, zones=zones, **settings)
    if end <= known.end or known.end < start - FARTHEST or known.end < now - FARTHEST:
        return load_traces(source, zones=zones, start=start, hours=hours, **settings)
    step = timedelta(minutes=slot_minutes)
    slots = (end - known.end) // step
    logger.warning(
        "The files end %s. The next %g h are our own forecast (ridge). Newer files or a provider as source are better.",
        iso(known.end),
        slots * slot_minutes / 60,
    )
    return joined(known, Ridge().forecast(known, slots).traces()).window(start, (end - start) // step)


def archive_of(issues: Mapping[str, Sequence[Issue]], factor: Factor) -> ForecastArchive:
    """Return issued forecasts as an archive; of several providers of a zone, the one asked last."""
    made: dict[str, Issues] = {}
    sources: dict[str, str] = {}
    for zone, all_of_zone in issues.items():
        ordered = sorted(all_of_zone, key=lambda one: one.issued_at)
        if not ordered:
            continue
        sources[zone] = ordered[-1].source
        same = [one for one in ordered if one.source == sources[zone]]
        values = np.full((len(same), max(len(one.kg_per_kwh) for one in same)), np.nan)
        for row, one in enumerate(same):
            values[row, : len(one.kg_per_kwh)] = one.kg_per_kwh
        made[zone] = Issues(
            issued=np.array([hours_since_1970(one.issued_at) for one in same]),
            first=np.array([int(hours_since_1970(one.start)) for one in same]),
            values=values,
        )
    name = ", ".join(dict.fromkeys(sources.values())) or "provider"
    return ForecastArchive(made, name=name, sources=sources, factor=factor)


def typical_profile(zone: str, factor: Factor, start: datetime, slots: int, slot_minutes: int) -> tuple[str, Floats]:
    """Return the zone of the profile, and the profile [slot]: the zone's own, else that of a very variable zone."""
    wanted = factor if factor in FACTORS else "lifecycle"
    whose = zone if zone in typical_zones(wanted) else PROXY
    begin = floor_hour(start)
    skipped = (start - begin) // timedelta(minutes=slot_minutes)
    hours = math.ceil((slots + skipped) * slot_minutes / 60)
    hours = math.ceil(hours * 60 / slot_minutes) * slot_minutes // 60 if slot_minutes > 60 else hours
    made = load_traces(TYPICAL, zones=[whose], start=begin, hours=hours, factor=wanted, slot_minutes=slot_minutes)
    return whose, made.intensity[0, skipped : skipped + slots]


def _same(one: Issue, other: Issue) -> bool:
    return one.start == other.start and np.array_equal(
        one.kg_per_kwh.astype("<f4"), other.kg_per_kwh.astype("<f4"), equal_nan=True
    )
