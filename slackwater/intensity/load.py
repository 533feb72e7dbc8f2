"""Load carbon intensity as `Traces`: from files, or from `typical`, a synthetic year that needs no file."""

from __future__ import annotations

import csv
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.cloud import grid_zone, regions_of
from slackwater.intensity.files import Found, find_files, has_factor, read_zone, zone_in_name
from slackwater.intensity.traces import (
    FACTORS,
    Factor,
    Provenance,
    Traces,
    ZoneSeries,
    check_slots,
    filled_slots,
    gaps_of,
    hours_in,
    minute_of,
    moment,
)
from slackwater.registry import nearest
from slackwater.units import G_PER_KG, iso, utc

TABLE = "typical_parameters.csv"
NOISE_HOURS = 8760
NOISE_START = datetime(2022, 1, 1, tzinfo=UTC)
"""Hour 0 of the noise, which repeats every `NOISE_HOURS`, a whole number of days, across new years and leap days."""
SEED = 2022
KNOTS = np.array([-2.5, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5])
NOISE = ((1, 0), (4, 0), (16, 0), (100, 0), (24, 1))
"""Parts of the noise: hours of memory, and cycles per day (sunny and dull days differ by a daily wave)."""
LATENT = 6

_YEARLY, _WEEKLY, _DAILY, _WINTER = 2, 2, 6, 2  # numbers of harmonics
_DIRECT_DAILY = 3


def _wave_names(name: str, harmonics: int) -> tuple[str, ...]:
    return tuple(f"{name}_{wave}{k}" for k in range(1, harmonics + 1) for wave in ("cos", "sin"))


_WAVES = {"year": _YEARLY, "week": _WEEKLY, "day": _DAILY, "winter_day": _WINTER}
SHAPE_COLUMNS = tuple(name for wave, harmonics in _WAVES.items() for name in _wave_names(wave, harmonics))
NOISE_COLUMNS = tuple(f"noise_{hours}h" + "_daily" * cycles for hours, cycles in NOISE)
LATENT_COLUMNS = tuple(f"latent_{k}" for k in range(LATENT))
CURVE_COLUMNS = tuple(f"g_per_kwh_at_{knot:+.1f}" for knot in KNOTS)
DIRECT_COLUMNS = {
    name: f"direct_{name}" for name in (*_wave_names("day", _DIRECT_DAILY), *NOISE_COLUMNS, *CURVE_COLUMNS)
}
"""Parameters that have their own column for direct intensity."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneParameters:
    """Hold the parameters of a zone and factor."""

    shape: NDArray[np.float64]
    """[harmonic], standard scores, in the order of `SHAPE_COLUMNS`."""
    noise: NDArray[np.float64]
    """[part], the variance of each part of the noise."""
    latent: NDArray[np.float64]
    """[latent], weight of each shared noise; the zone's own noise has the rest of the variance, 1 minus their squares."""
    curve: NDArray[np.float64]
    """[knot], g/kWh."""


@cache
def parameters(factor: Factor) -> dict[str, ZoneParameters]:
    """Return the table of the package: the zones that have the factor."""
    own = DIRECT_COLUMNS if factor == "direct" else {}
    text = files("slackwater.intensity").joinpath(TABLE).read_text(encoding="utf-8")
    level = own.get(CURVE_COLUMNS[0], CURVE_COLUMNS[0])
    rows = [row for row in csv.DictReader(text.splitlines()) if row[level]]

    def numbers(row: dict[str, str], columns: Sequence[str]) -> NDArray[np.float64]:
        return np.array([float(row[own.get(column, column)]) for column in columns])

    columns = {"shape": SHAPE_COLUMNS, "noise": NOISE_COLUMNS, "latent": LATENT_COLUMNS, "curve": CURVE_COLUMNS}
    return {row["zone"]: ZoneParameters(**{name: numbers(row, columns[name]) for name in columns}) for row in rows}


def typical_zones(factor: Factor | None = None) -> tuple[str, ...]:
    """Return the zones; with a factor, those that have it."""
    return tuple(parameters(factor or "lifecycle"))


def typical_intensity(zones: Sequence[str], start: datetime, hours: int, factor: Factor) -> NDArray[np.float64]:
    """Return synthetic intensity [zone, hour], kg/kWh, from a full hour on; an hour has the same value in every call."""
    begin = utc(start, "start")
    if begin != begin.replace(minute=0, second=0, microsecond=0):
        raise ScenarioError(f"start {iso(begin)} is not a full hour, and the typical intensity is hourly. Round it.")
    if hours < 0:
        raise ScenarioError(f"hours is {hours}; ask for 0 or more.")
    for zone in zones:
        _check(zone, factor)
    waves = shape_waves(begin, hours)
    noise_hour = ((begin - NOISE_START) // timedelta(hours=1) + np.arange(hours)) % NOISE_HOURS
    intensity = np.empty((len(zones), hours))
    for i, zone in enumerate(zones):
        row = parameters(factor)[zone]
        score = shape(row.shape, waves) + _zone_noise(zone, factor)[noise_hour]
        intensity[i] = np.interp(score, KNOTS, row.curve) / G_PER_KG
    # Rounded to 0.1 mg, to hide differences between machines in the last bits.
    return np.round(intensity, 7)


def shape_waves(start: datetime, hours: int) -> NDArray[np.float64]:
    """Return the waves [harmonic, hour] of `SHAPE_COLUMNS`; the calendar gives their phases."""
    moment = np.datetime64(start.replace(tzinfo=None), "h") + np.arange(hours)
    year = moment.astype("datetime64[Y]")
    year_start, year_end = year.astype("datetime64[h]"), (year + 1).astype("datetime64[h]")
    hour = moment.astype(np.int64)
    yearly = _waves((moment - year_start) / (year_end - year_start), _YEARLY)
    daily = _waves(hour % 24 / 24, _DAILY)
    return np.vstack([yearly, _waves(hour % 168 / 168, _WEEKLY), daily, yearly[0] * daily[: 2 * _WINTER]])


def shape(weights: NDArray[np.float64], waves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a zone's score [hour] without the noise."""
    score = np.zeros(waves.shape[1])
    for weight, wave in zip(weights, waves, strict=True):  # the last bits of a matrix product may depend on the range
        score += weight * wave
    return score


def noise(zone: str, parts: NDArray[np.float64], latent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a zone's noise [hour], circular; `parts` and `latent` as in the table."""
    own = np.sqrt(max(0.0, 1.0 - float(np.sum(latent**2))))
    white = own * _white(zlib.crc32(zone.encode()))  # by name, so that adding zones to the table changes nothing here
    for k, weight in enumerate(latent):
        white = white + weight * _white(k)
    power = np.sum(parts[:, None] * noise_spectra(), axis=0)
    result: NDArray[np.float64] = np.fft.irfft(white * np.sqrt(power), NOISE_HOURS) * NOISE_HOURS
    return result


@cache
def noise_spectra() -> NDArray[np.float64]:
    """Return the power [part, frequency] of each part of the noise at variance 1."""
    frequency = np.arange(NOISE_HOURS // 2 + 1)
    days = NOISE_HOURS // 24
    spectra = []
    for memory, cycles in NOISE:
        decay = np.exp(-1 / memory)
        angles = [2 * np.pi * (frequency + sign * cycles * days) / NOISE_HOURS for sign in (-1, 1)]
        # Squared, like a filter applied twice: intensity is smoother from hour to hour than an AR(1) process.
        power = sum(1 / (1 - 2 * decay * np.cos(angle) + decay**2) for angle in angles) ** 2
        # The yearly cycle and the mean of each hour of the day belong to the shape.
        power = np.where((frequency <= _YEARLY) | (frequency % days == 0), 0.0, power)
        spectra.append(power / (2 * power.sum()))
    return np.array(spectra)


def _check(zone: str, factor: Factor) -> None:
    if factor not in FACTORS:
        raise ScenarioError(f"factor {factor!r} is unknown; choose {' or '.join(FACTORS)}.")
    if zone not in typical_zones():
        parts = [other for other in typical_zones() if other.startswith(zone.upper() + "-")]  # for example of IT
        near = parts[:8] or nearest(zone, typical_zones(), most=4, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(typical_zones())}."
        raise ScenarioError(f"The typical data has no zone {zone!r}. {hint} For other zones, give a file.")
    if zone not in typical_zones(factor):
        raise ScenarioError(
            f"The typical data has no {factor} intensity for zone {zone!r}. Choose the factor lifecycle, or one "
            f"of the zones that have it: {', '.join(typical_zones(factor))}."
        )


@cache
def _zone_noise(zone: str, factor: Factor) -> NDArray[np.float64]:
    row = parameters(factor)[zone]
    return noise(zone, row.noise, row.latent)


@cache
def _white(stream: int) -> NDArray[np.complex128]:
    """Return random phases [frequency] of equal strength: the noise has its spectrum exactly, not on average."""
    phase = np.random.Generator(np.random.PCG64([SEED, stream])).random(NOISE_HOURS // 2 + 1)
    result: NDArray[np.complex128] = np.exp(2j * np.pi * phase)
    return result


def _waves(phase: NDArray[np.float64], harmonics: int) -> NDArray[np.float64]:
    """Return cosine and sine [2 * harmonic, hour] of a phase in cycles."""
    angles = 2 * np.pi * phase * np.arange(1, harmonics + 1)[:, None]
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).reshape(2 * harmonics, -1)


logger = logging.getLogger(__name__)

TYPICAL, TYPICAL_SOURCE = "typical", "typical (synthetic)"
TYPICAL_START, TYPICAL_HOURS = datetime(2022, 1, 1, tzinfo=UTC), 8760
NAMED = 12
"""Most zones that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneInfo:
    """The data of one zone in a source."""

    zone: str
    source: str
    first: datetime
    last: datetime
    """Starts of the first and the last hour, aware UTC."""
    factors: tuple[Factor, ...]
    missing_hours: Mapping[Factor, int]
    """By factor: hours between the first and the last in which a value is missing."""
    mean_kg_per_kwh: Mapping[Factor, float]
    """By factor: mean over the values."""
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
        fill_hours: Longest gap to interpolate; the provenance lists the filled hours.

    Raises:
        DataError: A longer gap, a range outside the data, or a file that cannot be read.
    """
    _check_settings(zones, hours, factor, slot_minutes, fill_hours)
    zones = None if zones is None else list(dict.fromkeys(grid_zone(zone) for zone in zones))
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
        raise ScenarioError(f"zones names {twice!r} twice; name it once, and let several clients use it.")


def _range(
    series: Sequence[ZoneSeries], asked: datetime | None, hours: int | None, slot_minutes: int
) -> tuple[int, int]:
    """Return begin and end, minutes since 1970: as requested, or the whole slots that all zones share."""
    first, last = max(one.start_minute for one in series), min(one.end_minute for one in series)
    begin = minute_of(asked) if asked else -(-first // slot_minutes) * slot_minutes
    end = begin + 60 * hours if hours else last // slot_minutes * slot_minutes
    if asked is None and hours is None and begin >= end:
        listed = ", ".join(f"{one.zone} {one.cover}" for one in series[:NAMED])
        raise DataError(
            f"The zones share no {slot_minutes}-minute slot: {listed}. Use zones or files of the same period."
        )
    for one in sorted(series, key=lambda one: one.end_minute):  # report the one that ends first
        if not one.start_minute <= begin < end <= one.end_minute:
            to = f"to {iso(moment(end))}" if begin < end else "and later"
            wanted = f"{iso(moment(begin))} {to}"
            raise DataError(f"Zone {one.zone} ({one.source}) covers {one.cover}; {wanted} is outside of it.")
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
        logger.warning("Ignored file: %s", error)


def _typical_series(zones: Sequence[str] | None, start: datetime, hours: int, factor: Factor) -> list[ZoneSeries]:

    having = typical_zones(factor)
    wanted = having if zones is None else tuple(zones)
    _check_zones(wanted, typical_zones(), f"the {TYPICAL} profiles")
    without = [zone for zone in wanted if zone not in having]
    if without:
        raise _no_factor(without, factor, having, f"the {TYPICAL} profiles")
    # Slots shorter than an hour may start inside one; the profiles have full hours.
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
            if regions := regions_of(zone):  # a right name: another grid is not what was meant
                hint = f" It is the grid of the cloud region{'s' * (len(regions) > 1)} {', '.join(regions)}."
            raise ScenarioError(f"There is no zone {zone!r} in {where}.{hint} Known: {_listed(names)}.")


def _no_factor(without: Sequence[str], factor: Factor, having: Sequence[str], where: str) -> ScenarioError:
    other = next(name for name in FACTORS if name != factor)
    zones = f"zone {without[0]}" if len(without) == 1 else f"the zones {_listed(without)}"
    alternative = f"choose a zone that has it: {_listed(having)}" if having else "other data: no zone here has it"
    return ScenarioError(
        f"There is no {factor} intensity for {zones} in {where}. Use factor='{other}' (--factor {other}), or "
        f"{alternative}."
    )


def _listed(zones: Iterable[str]) -> str:
    names = list(zones)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
