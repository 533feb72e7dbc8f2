"""`typical`: a synthetic year of hourly intensity for the zones of a small table, so that everything works with no
file, no key and no network. It resembles 2022 in its statistics and records no hour of it: label it synthetic.

A standard score for every hour, shape + noise, is read off the zone's curve:

- shape: harmonics of the year, the week and the day, and of the day as it differs between winter and summer;
- noise: weather that persists, a mix of short and long memory (`NOISE`), made from its spectrum and hence circular.
  Zones share `LATENT` noises, each to its own degree, so that neighbouring grids move together;
- curve: intensity at the scores `KNOTS`, linear between them and constant outside.

Direct and life-cycle intensity of a zone differ in curve, noise and main harmonics of the day; the rest is common.
`tools/calibrate_typical.py` fits the table.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.traces import FACTORS, Factor
from slackwater.errors import ScenarioError
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
"""What direct intensity has a column of its own for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneParameters:
    """Hold the parameters of a zone and factor."""

    shape: NDArray[np.float64]
    """[harmonic], standard scores, in the order of `SHAPE_COLUMNS`."""
    noise: NDArray[np.float64]
    """[part], the variance of each part of the noise."""
    latent: NDArray[np.float64]
    """[latent], weight of each shared noise; the zone's own noise makes up what their squares lack to 1."""
    curve: NDArray[np.float64]
    """[knot], g/kWh."""


@cache
def parameters(factor: Factor) -> dict[str, ZoneParameters]:
    """Return the table of the package: the zones that have the factor."""
    own = DIRECT_COLUMNS if factor == "direct" else {}
    text = files("slackwater.carbon").joinpath(TABLE).read_text(encoding="utf-8")
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
    # To 0.1 mg: the last bits of a machine's arithmetic must not show.
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
    for weight, wave in zip(weights, waves, strict=True):  # a matrix product's last bits may differ with the range
        score += weight * wave
    return score


def noise(zone: str, parts: NDArray[np.float64], latent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a zone's noise [hour], circular; `parts` and `latent` as in the table."""
    own = np.sqrt(max(0.0, 1.0 - float(np.sum(latent**2))))
    white = own * _white(zlib.crc32(zone.encode()))  # by name, so that another zone in the table changes nothing here
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
        # Squared, as of a filter applied twice: intensity is smoother from hour to hour than a process of order one.
        power = sum(1 / (1 - 2 * decay * np.cos(angle) + decay**2) for angle in angles) ** 2
        # The course of the year and the mean of each hour of the day belong to the shape.
        power = np.where((frequency <= _YEARLY) | (frequency % days == 0), 0.0, power)
        spectra.append(power / (2 * power.sum()))
    return np.array(spectra)


def _check(zone: str, factor: Factor) -> None:
    if factor not in FACTORS:
        raise ScenarioError(f"factor {factor!r} is unknown; choose {' or '.join(FACTORS)}.")
    if zone not in typical_zones():
        parts = [other for other in typical_zones() if other.startswith(zone.upper() + "-")]  # of IT, say
        near = parts[:8] or nearest(zone, typical_zones(), most=4, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"It has {', '.join(typical_zones())}."
        raise ScenarioError(f"The typical data has no zone {zone!r}. {hint} For any other zone, give a file.")
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
