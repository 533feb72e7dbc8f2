"""The way in: carbon intensity from files or from the built-in typical profiles, as `Traces`."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slackwater.carbon.files import Found, find_files, has_factor, read_zone, zone_in_name
from slackwater.carbon.series import (
    CLOCKS_FORWARD,
    ZoneSeries,
    describe_gaps,
    fill,
    gaps_of,
    hours_in,
    minute_of,
    moment,
    skipped_by_clocks,
    to_slots,
)
from slackwater.carbon.traces import FACTORS, Factor, Provenance, Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.units import iso, utc

logger = logging.getLogger(__name__)

TYPICAL = "typical"
TYPICAL_SOURCE = "typical (synthetic)"
TYPICAL_START = datetime(2022, 1, 1, tzinfo=UTC)
TYPICAL_HOURS = 8760
NAMED = 12
"""How many zones a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneInfo:
    """What a source has of one zone."""

    zone: str
    source: str
    first: datetime
    """Start of the first hour, aware UTC."""
    last: datetime
    """Start of the last hour, aware UTC."""
    factors: tuple[Factor, ...]
    missing_hours: Mapping[Factor, int]
    """By factor: hours between the first and the last in which a value is missing."""
    mean_kg_per_kwh: Mapping[Factor, float]
    """By factor: mean over the values that are there."""
    synthetic: bool = False


def load_traces(
    source: str | Path = TYPICAL,
    *,
    zones: Sequence[str] | None = None,
    start: str | datetime | None = None,
    hours: int | None = None,
    factor: Factor = "lifecycle",
    slot_minutes: int = 60,
    fill_hours: int = 0,
) -> Traces:
    """Intensity of zones over the slots of a common range.

    `source` is "typical" (synthetic profiles), a CSV file or a folder of them. Without `zones` it is every zone there,
    without `start` and `hours` all that the zones share. Gaps inside the range are an error, unless they are at most
    `fill_hours` long: those are filled by straight lines and listed in the provenance.
    """
    _check_settings(zones, hours, factor, slot_minutes, fill_hours)
    asked = None if start is None else utc(start, "start")
    if asked and (asked.second or asked.microsecond or minute_of(asked) % slot_minutes):
        raise ScenarioError(
            f"start {iso(asked)} is not the start of a {slot_minutes}-minute slot; slots are counted from 00:00 UTC. "
            f"Try {iso(moment(minute_of(asked) // slot_minutes * slot_minutes))}."
        )
    if source == TYPICAL:
        hours = hours or TYPICAL_HOURS
        series = _typical_series(zones, asked or TYPICAL_START, hours, factor)
    else:
        series = _file_series(Path(source), zones, factor)
    begin, end = _range(series, asked, hours, slot_minutes)
    rows, provenance, problems = [], [], []
    for one in series:
        gaps = [
            gap for gap in gaps_of(one, factor) if gap.start_minute < end and gap.start_minute + gap.minutes > begin
        ]
        short = [gap for gap in gaps if not gap.at_edge and gap.minutes <= 60 * fill_hours]
        left = [gap for gap in gaps if gap not in short]
        if left:
            problems.append(describe_gaps(one, factor, left, begin, end, fill_hours))
            continue
        filled = tuple(iso(moment(hour)) for hour in hours_in(short, begin, end))
        if filled:
            doubt = CLOCKS_FORWARD if any(skipped_by_clocks(gap) for gap in short) else ""
            logger.warning(
                "Zone %s: filled %d hours by interpolation: %s.%s", one.zone, len(filled), ", ".join(filled), doubt
            )
        rows.append(to_slots(one, fill(one.intensity[factor], short), begin, end, slot_minutes))
        provenance.append(
            Provenance(zone=one.zone, source=one.source, synthetic=one.synthetic, filled_hours=filled),
        )
    if problems:
        raise DataError("\n".join(problems))
    return Traces(
        zones=tuple(one.zone for one in series),
        start=moment(begin),
        intensity=np.array(rows),
        factor=factor,
        slot_minutes=slot_minutes,
        provenance=tuple(provenance),
    )


def available_zones(source: str | Path = TYPICAL) -> list[ZoneInfo]:
    """What can be loaded from a source, by zone."""
    if source == TYPICAL:
        series = _typical_year()
    else:
        found = find_files(Path(source))
        _settle_rejected(found, None)
        series = [read_zone(files) for files in found.files.values()]
    return [_info(one) for one in series]


def _check_settings(
    zones: Sequence[str] | None, hours: int | None, factor: str, slot_minutes: int, fill_hours: int
) -> None:
    if factor not in FACTORS:
        raise ScenarioError(f"factor is {factor!r}; choose 'direct' or 'lifecycle'.")
    if slot_minutes < 1 or (60 % slot_minutes and (slot_minutes % 60 or 1440 % slot_minutes)):
        raise ScenarioError(
            f"slot_minutes is {slot_minutes}; a slot is a whole part of an hour (15, 20, 30, 60) or whole hours that "
            "divide a day (120, 180, 240, 360, 480, 720, 1440)."
        )
    if hours is not None and (hours < 1 or hours * 60 % slot_minutes):
        raise ScenarioError(f"hours is {hours}; give a whole number of {slot_minutes}-minute slots, at least one.")
    if fill_hours < 0:
        raise ScenarioError(f"fill_hours is {fill_hours}; give 0 to fill no gaps, or the longest gap to fill in hours.")
    if zones is None:
        return
    if isinstance(zones, str):
        raise ScenarioError(f"zones is the text {zones!r}; give a list, like [{zones!r}].")
    if not zones:
        raise ScenarioError("zones is empty; name at least one, or leave it out for all.")
    twice = next((zone for i, zone in enumerate(zones) if zone in zones[:i]), None)
    if twice is not None:
        raise ScenarioError(f"zones names {twice!r} twice; several clients may share a zone that is named once.")


def _range(
    series: Sequence[ZoneSeries], asked: datetime | None, hours: int | None, slot_minutes: int
) -> tuple[int, int]:
    """Begin and end, in minutes since 1970: as asked, or whole slots of what all zones share."""
    first, last = max(one.start_minute for one in series), min(one.end_minute for one in series)
    begin = minute_of(asked) if asked else -(-first // slot_minutes) * slot_minutes
    end = begin + 60 * hours if hours else last // slot_minutes * slot_minutes
    if asked is None and hours is None and begin >= end:
        listed = ", ".join(f"{one.zone} {_cover(one)}" for one in series[:NAMED])
        raise DataError(
            f"The zones share no {slot_minutes}-minute slot: {listed}. Take zones or files of the same time."
        )
    for one in sorted(series, key=lambda one: one.end_minute):  # the one that ends first is to blame for an early end
        if not one.start_minute <= begin < end <= one.end_minute:
            to = f"to {iso(moment(end))}" if begin < end else "and later"
            wanted = f"{iso(moment(begin))} {to}"
            raise DataError(f"Zone {one.zone} ({one.source}) covers {_cover(one)}; {wanted} lies outside of it.")
    return begin, end


def _cover(series: ZoneSeries) -> str:
    return f"{iso(moment(series.start_minute))} to {iso(moment(series.end_minute))}"


def _file_series(source: Path, zones: Sequence[str] | None, factor: Factor) -> list[ZoneSeries]:
    found = find_files(source)
    _settle_rejected(found, zones)
    wanted = tuple(found.files) if zones is None else tuple(zones)
    _check_zones(wanted, found.files, str(source))
    series = [read_zone(found.files[zone]) for zone in wanted]
    without = [one.zone for one in series if factor not in one.intensity]
    if without:
        having = [zone for zone, files in found.files.items() if any(has_factor(file, factor) for file in files)]
        raise _no_factor(without, factor, having, str(source))
    return series


def _settle_rejected(found: Found, zones: Sequence[str] | None) -> None:
    """A file that is named like data of a wanted zone must be readable; a stray CSV is only mentioned."""
    for path, error in found.rejected.items():
        zone = zone_in_name(path)
        if zone is not None and (zones is None or zone in zones):
            raise error
        logger.warning("Left out: %s", error)


def _typical_series(zones: Sequence[str] | None, start: datetime, hours: int, factor: Factor) -> list[ZoneSeries]:
    from slackwater.carbon.typical import typical_intensity, typical_zones

    having = typical_zones(factor)
    wanted = having if zones is None else tuple(zones)
    _check_zones(wanted, typical_zones(), f"the {TYPICAL} profiles")
    without = [zone for zone in wanted if zone not in having]
    if without:
        raise _no_factor(without, factor, having, f"the {TYPICAL} profiles")
    # Slots of less than an hour may start within one; the profiles have full hours.
    begin = minute_of(start) // 60 * 60
    steps = hours + (begin < minute_of(start))
    intensity = typical_intensity(wanted, moment(begin), steps, factor)
    return [
        ZoneSeries(
            zone=zone,
            source=TYPICAL_SOURCE,
            start_minute=begin,
            step_minutes=60,
            steps=steps,
            intensity={factor: row},
            synthetic=True,
        )
        for zone, row in zip(wanted, intensity, strict=True)
    ]


def _typical_year() -> list[ZoneSeries]:
    """The default range of every typical zone, with all the factors it has."""
    by_zone: dict[str, ZoneSeries] = {}
    for factor in FACTORS:
        for one in _typical_series(None, TYPICAL_START, TYPICAL_HOURS, factor):
            known = by_zone[one.zone].intensity if one.zone in by_zone else {}
            by_zone[one.zone] = ZoneSeries(
                zone=one.zone,
                source=one.source,
                start_minute=one.start_minute,
                step_minutes=one.step_minutes,
                steps=one.steps,
                intensity={**known, **one.intensity},
                synthetic=True,
            )
    return [by_zone[zone] for zone in sorted(by_zone)]


def _info(series: ZoneSeries) -> ZoneInfo:
    factors = tuple(factor for factor in FACTORS if factor in series.intensity)
    return ZoneInfo(
        zone=series.zone,
        source=series.source,
        first=moment(series.start_minute // 60 * 60),
        last=moment((series.end_minute - 1) // 60 * 60),
        factors=factors,
        missing_hours={
            factor: len(hours_in(gaps_of(series, factor), series.start_minute, series.end_minute)) for factor in factors
        },
        mean_kg_per_kwh={factor: float(np.nanmean(series.intensity[factor])) for factor in factors},
        synthetic=series.synthetic,
    )


def _check_zones(wanted: Iterable[str], known: Iterable[str], where: str) -> None:
    names = {zone.upper(): zone for zone in known}
    for zone in wanted:
        if zone not in names.values():
            close = difflib.get_close_matches(zone.upper(), names, n=3)
            hint = f" Did you mean {' or '.join(names[name] for name in close)}?" if close else ""
            raise ScenarioError(f"There is no zone {zone!r} in {where}.{hint} There are {_listed(names.values())}.")


def _no_factor(without: Sequence[str], factor: Factor, having: Sequence[str], where: str) -> ScenarioError:
    other = next(name for name in FACTORS if name != factor)
    zones = f"zone {without[0]}" if len(without) == 1 else f"the zones {_listed(without)}"
    alternative = f"choose among the zones that have it: {_listed(having)}" if having else "no other zone has it either"
    return ScenarioError(
        f"There is no {factor} intensity for {zones} in {where}. Use factor='{other}' (--factor {other}), or "
        f"{alternative}."
    )


def _listed(zones: Iterable[str]) -> str:
    names = list(zones)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
