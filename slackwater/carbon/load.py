"""Load carbon intensity from files or from the built-in typical profiles, as `Traces`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from slackwater.carbon.files import Found, find_files, has_factor, read_zone, zone_in_name
from slackwater.carbon.series import ZoneSeries, check_slots, filled_slots, gaps_of, hours_in, minute_of, moment
from slackwater.carbon.traces import FACTORS, Factor, Provenance, Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.registry import nearest
from slackwater.units import iso, utc

logger = logging.getLogger(__name__)

TYPICAL, TYPICAL_SOURCE = "typical", "typical (synthetic)"
TYPICAL_START, TYPICAL_HOURS = datetime(2022, 1, 1, tzinfo=UTC), 8760
NAMED = 12
"""How many zones a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneInfo:
    """What a source has of one zone."""

    zone: str
    source: str
    first: datetime
    last: datetime
    """Starts of the first and the last hour, aware UTC."""
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
    """Load the intensity of zones, kg CO2e/kWh, over the slots of a common range.

    Args:
        source: "typical" (synthetic profiles), a CSV file or a folder of them.
        zones: Default: every zone of the source.
        start: Start of the first slot. Default: the first slot that all zones have.
        hours: Length of the range. Default: up to the last slot that all zones have.
        factor: Emission factor, "direct" or "lifecycle".
        slot_minutes: Length of a slot.
        fill_hours: Longest gap to fill by a straight line; the provenance lists what was filled.

    Raises:
        DataError: A longer gap, a range outside the data, or a file that cannot be read.
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
        try:
            row, filled = filled_slots(one, factor, begin, end, slot_minutes, fill_hours)
        except DataError as error:
            problems.append(str(error))
            continue
        rows.append(row)
        provenance.append(Provenance(zone=one.zone, source=one.source, synthetic=one.synthetic, filled_hours=filled))
    if problems:
        raise DataError("\n".join(problems))
    return Traces(
        zones=tuple(one.zone for one in series), start=moment(begin), intensity=np.array(rows), factor=factor,
        slot_minutes=slot_minutes, provenance=tuple(provenance),
    )  # fmt: skip


def available_zones(source: str | Path = TYPICAL) -> list[ZoneInfo]:
    """Return what can be loaded from a source, by zone."""
    if source != TYPICAL:
        found = find_files(Path(source))
        _settle_rejected(found, None)
        return [_info(read_zone(files)) for files in found.files.values()]
    by_zone: dict[str, ZoneSeries] = {}
    for factor in FACTORS:
        for one in _typical_series(None, TYPICAL_START, TYPICAL_HOURS, factor):
            known = by_zone[one.zone].intensity if one.zone in by_zone else {}
            by_zone[one.zone] = replace(one, intensity={**known, **one.intensity})
    return [_info(by_zone[zone]) for zone in sorted(by_zone)]


def _check_settings(
    zones: Sequence[str] | None, hours: int | None, factor: str, slot_minutes: int, fill_hours: int
) -> None:
    if factor not in FACTORS:
        raise ScenarioError(f"factor is {factor!r}; choose 'direct' or 'lifecycle'.")
    check_slots(slot_minutes, fill_hours)
    if hours is not None and (hours < 1 or hours * 60 % slot_minutes):
        raise ScenarioError(f"hours is {hours}; give a whole number of {slot_minutes}-minute slots, at least one.")
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
    """Return begin and end, minutes since 1970: as asked, or whole slots of what all zones share."""
    first, last = max(one.start_minute for one in series), min(one.end_minute for one in series)
    begin = minute_of(asked) if asked else -(-first // slot_minutes) * slot_minutes
    end = begin + 60 * hours if hours else last // slot_minutes * slot_minutes
    if asked is None and hours is None and begin >= end:
        listed = ", ".join(f"{one.zone} {one.cover}" for one in series[:NAMED])
        raise DataError(
            f"The zones share no {slot_minutes}-minute slot: {listed}. Take zones or files of the same time."
        )
    for one in sorted(series, key=lambda one: one.end_minute):  # the one that ends first is to blame for an early end
        if not one.start_minute <= begin < end <= one.end_minute:
            to = f"to {iso(moment(end))}" if begin < end else "and later"
            wanted = f"{iso(moment(begin))} {to}"
            raise DataError(f"Zone {one.zone} ({one.source}) covers {one.cover}; {wanted} lies outside of it.")
    return begin, end


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
    """Raise the error of a rejected file that is named like a wanted zone; log that of any other CSV file."""
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
    whole = ZoneSeries(
        zone="", source=TYPICAL_SOURCE, start_minute=begin, step_minutes=60, steps=steps, intensity={}, synthetic=True
    )
    return [replace(whole, zone=zone, intensity={factor: row}) for zone, row in zip(wanted, intensity, strict=True)]


def _info(series: ZoneSeries) -> ZoneInfo:
    factors = tuple(factor for factor in FACTORS if factor in series.intensity)
    begin, end = series.start_minute, series.end_minute
    return ZoneInfo(
        zone=series.zone, source=series.source, first=moment(begin // 60 * 60), last=moment((end - 1) // 60 * 60),
        factors=factors,
        missing_hours={factor: len(hours_in(gaps_of(series, factor), begin, end)) for factor in factors},
        mean_kg_per_kwh={factor: float(np.nanmean(series.intensity[factor])) for factor in factors},
        synthetic=series.synthetic,
    )  # fmt: skip


def _check_zones(wanted: Iterable[str], known: Iterable[str], where: str) -> None:
    names = list(known)
    for zone in wanted:
        if zone not in names:
            close = nearest(zone, names, most=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ScenarioError(f"There is no zone {zone!r} in {where}.{hint} There are {_listed(names)}.")


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
