"""An archive of forecasts that a provider issued. At any time it shows only those issued by then.

The files are hourly, with the columns `issued_at_utc,valid_at_utc,forecast_g_per_kwh,actual_g_per_kwh`. Each file holds
one zone and is named `<ZONE>_<provider>_forecast.csv`.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import Forecast, bounds, check_request, same_hour_mean
from slackwater.intensity.traces import Factor, Provenance, Traces
from slackwater.units import G_PER_KG, iso, utc

logger = logging.getLogger(__name__)

COLUMNS = ("issued_at_utc", "valid_at_utc", "forecast_g_per_kwh", "actual_g_per_kwh")
_MOST_VALUES = 50_000_000
"""Most values of one file; hourly four-day forecasts over ten years have 8 million."""
_LOOKED_AT = 60
"""Number of issues whose errors give the interval."""
_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issues:
    """Forecasts of one zone in the order in which they were issued."""

    issued: NDArray[np.float64]
    """[issue], hours since 1970, UTC; not always whole."""
    first: NDArray[np.int64]
    """[issue], the first hour that is forecast, as hours since 1970."""
    values: Floats
    """[issue, hour], kg CO2e/kWh from `first` on; NaN without a forecast."""

    def by(self, hour: float) -> Issues:
        """Return those issued by a time (hours since 1970), that moment included."""
        return self._part(slice(int(np.searchsorted(self.issued, hour, side="right"))))

    def since(self, hour: float) -> Issues:
        """Return those that forecast an hour or a later one."""
        return self._part(self.first + self.values.shape[1] > hour)

    def earlier(self, hours: float) -> Issues:
        """Return the same as if they had been issued some hours earlier."""
        return replace(self, issued=self.issued - hours)

    def last(self, count: int) -> Issues:
        """Return the newest ones."""
        return self._part(slice(-count, None))

    def _part(self, kept: slice | NDArray[np.bool_]) -> Issues:
        return Issues(issued=self.issued[kept], first=self.first[kept], values=self.values[kept])

    def __len__(self) -> int:
        return len(self.issued)

    def at(self, hour: int, slots: int) -> Floats:
        """Return the newest issue's values [slot] from `hour` on; NaN without a value."""
        found = np.full(slots, np.nan)
        if len(self):
            offset = hour - int(self.first[-1])
            begin, end = max(offset, 0), min(offset + slots, self.values.shape[1])
            if begin < end:
                found[begin - offset : end - offset] = self.values[-1, begin:end]
        return found

    def errors(self, actual: Floats, start: int) -> Floats:
        """Return actual minus forecast [issue, hour], for an actual [hour] from `start` on; NaN where either is missing."""
        hours = self.first[:, None] - start + np.arange(self.values.shape[1])[None, :]
        inside = (hours >= 0) & (hours < len(actual))
        known = np.where(inside, actual[np.clip(hours, 0, len(actual) - 1)], np.nan)
        return known - self.values


def hours_since_1970(moment: datetime) -> float:
    """Return a time as the archive counts it."""
    return (moment - _EPOCH) / _HOUR


class ForecastArchive:
    """Hold a provider's forecasts, by zone. As a forecaster it returns the newest issue unchanged.

    Beyond the provider's horizon it continues with the same-hour mean of the last week; `Blend` does both better.
    """

    def __init__(
        self, issues: Mapping[str, Issues], *, actuals: Mapping[str, Traces] | None = None,
        missing: Mapping[str, NDArray[np.bool_]] | None = None, name: str = "provider",
        sources: Mapping[str, str] | None = None, factor: Factor = "lifecycle", coverage: float = 0.8,
    ) -> None:  # fmt: skip
        self.issues = dict(issues)
        self._sources = dict(sources or {})
        self.actuals = dict(actuals or {})
        """By zone: the actuals, with gaps filled."""
        self.missing = dict(missing or {})
        """By zone: which hours of the actuals were gaps."""
        self.name, self.factor, self.coverage = name, factor, coverage

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zones with forecasts."""
        return tuple(self.issues)

    def source(self, zone: str) -> str:
        """Return the provider that forecast a zone."""
        return self._sources.get(zone, self.name)

    def of(self, zone: str) -> Issues:
        """Return the issues of a zone."""
        if zone not in self.issues:
            raise DataError(f"There are no forecasts for zone {zone!r}. Known: {', '.join(self.issues)}.")
        return self.issues[zone]

    def to_dict(self) -> dict[str, Any]:
        """Return the archive as JSON holds it, without the actuals."""
        return {
            "name": self.name,
            "factor": self.factor,
            "sources": self._sources,
            "issues": {
                zone: {
                    "issued_h": issues.issued.tolist(),
                    "first_h": issues.first.tolist(),
                    "kg_per_kwh": [[None if np.isnan(v) else v for v in row] for row in issues.values.tolist()],
                }
                for zone, issues in self.issues.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ForecastArchive:
        """Return the archive from `to_dict`'s dict."""
        issues = {
            zone: Issues(
                issued=np.array(one["issued_h"], dtype=np.float64),
                first=np.array(one["first_h"], dtype=np.int64),
                values=np.array(one["kg_per_kwh"], dtype=np.float64),
            )
            for zone, one in data["issues"].items()
        }
        for one in issues.values():
            if one.values.ndim != 2 or not one.issued.shape == one.first.shape == one.values.shape[:1]:
                raise ValueError(f"forecasts of shape {one.values.shape} for {one.issued.shape} times")
        return cls(issues, name=data["name"], sources=data["sources"], factor=data["factor"])

    def forecast(self, history: Traces, slots: int) -> Forecast:
        """Return the newest issue by the end of `history`, uncorrected."""
        check_request(history, slots)
        check_hourly(history)
        now, start = int(hours_since_1970(history.end)), int(hours_since_1970(history.start))
        mean = same_hour_mean(history.intensity, slots, 24, 7)
        most = max([1, *(len(self.of(zone).by(now).last(_LOOKED_AT)) for zone in history.zones)])
        errors = np.full((most, len(history.zones), slots), np.nan)
        for row, zone in enumerate(history.zones):
            known = self.of(zone).by(now)
            newest = known.at(now, slots)
            mean[row] = np.where(np.isnan(newest), mean[row], newest)
            seen = known.last(_LOOKED_AT).errors(history.intensity[row], start)[:, :slots]
            errors[: len(seen), row, : seen.shape[1]] = seen
        low, high = bounds(mean, errors, 24, self.coverage)
        return Forecast.after(history, mean, low, high, coverage=self.coverage, source=self.name)

    def means(self, truth: Traces, origins: Sequence[int], slots: int) -> Floats:
        """Return the means [origin, zone, slot] of `forecast` for histories that end at these slots."""
        check_hourly(truth)
        start = int(hours_since_1970(truth.start))
        found = np.array([same_hour_mean(truth.intensity[:, :origin], slots, 24, 7) for origin in origins])
        for row, zone in enumerate(truth.zones):
            for number, origin in enumerate(origins):
                newest = self.of(zone).by(start + origin).at(start + origin, slots)
                found[number, row] = np.where(np.isnan(newest), found[number, row], newest)
        return found


def check_hourly(history: Traces) -> None:
    """Raise ScenarioError if a history is not hourly."""
    if history.slot_minutes != 60:
        raise ScenarioError(
            f"A forecast archive is hourly, but the history has slots of {history.slot_minutes} minutes."
        )


def forecast_files(source: str | Path) -> dict[str, Path]:
    """Return forecast files by zone: the file itself, or all `<ZONE>_..._forecast.csv` of a folder."""
    path = Path(source)
    if path.is_file():
        return {_zone(path): path}
    found = {_zone(file): file for file in sorted(path.glob("*_forecast.csv"))}
    if not found:
        raise DataError(f"There are no forecast files in {path}. They are named like DE_provider_forecast.csv.")
    return found


def read_archive(
    source: str | Path, zones: Sequence[str] | None = None, *, factor: Factor = "lifecycle"
) -> ForecastArchive:
    """Read the forecasts and actuals of a file or a folder."""
    files = forecast_files(source)
    for zone in zones or ():
        if zone not in files:
            raise ScenarioError(f"There is no forecast file for zone {zone!r} in {source}. Known: {', '.join(files)}.")
    issues, actuals, missing = {}, {}, {}
    for zone in zones or files:
        issues[zone], actuals[zone], missing[zone] = _read(files[zone], zone, factor)
    return ForecastArchive(
        issues, actuals=actuals, missing=missing, name=_provider([files[zone] for zone in issues]), factor=factor
    )


def _zone(path: Path) -> str:
    return path.name.split("_")[0]


def _provider(files: Sequence[Path]) -> str:
    """Return the provider in the files' names, if they agree on one."""
    names = {path.stem.removesuffix("_forecast").partition("_")[2] for path in files}
    return (names.pop() if len(names) == 1 else "") or "provider"


def _read(path: Path, zone: str, factor: Factor) -> tuple[Issues, Traces, NDArray[np.bool_]]:
    by_issue: dict[str, dict[int, float]] = {}
    actual: dict[int, float] = {}
    try:
        for line, row in _lines(path):
            try:
                hour, value = _hour(row["valid_at_utc"]), _number(row["forecast_g_per_kwh"])
                came = _number(row["actual_g_per_kwh"])
            except (ValueError, ScenarioError, TypeError, AttributeError, OverflowError) as error:
                raise DataError(f"{path}, line {line}: {error}") from None
            by_issue.setdefault(row["issued_at_utc"], {})[hour] = value
            if not np.isnan(came):
                actual[hour] = came
        if not by_issue or not actual:
            raise DataError(f"{path} has no forecasts or no actuals.")
        issued = sorted((hours_since_1970(utc(text, "issued_at_utc")), values) for text, values in by_issue.items())
    except (ScenarioError, AttributeError, OverflowError) as error:
        raise DataError(f"{path}: {error}") from None
    first = np.array([min(values) for _, values in issued])
    longest = max(max(values) - min(values) for _, values in issued) + 1
    # A few lines with a mistyped year would fill the memory.
    if longest * len(issued) > _MOST_VALUES or max(actual) - min(actual) > _MOST_VALUES:
        raise DataError(
            f"{path} covers {_day(min(actual))} to {_day(max(max(v) for _, v in issued))}, with forecasts of up to "
            f"{longest:,} hours. Is a year mistyped?"
        )
    values = np.full((len(issued), longest), np.nan)
    for row_number, (_, one) in enumerate(issued):
        for hour, value in one.items():
            values[row_number, hour - first[row_number]] = value
    moments = np.array([moment for moment, _ in issued])
    return Issues(issued=moments, first=first, values=values), *_actuals(actual, path, zone, factor)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and rows of a forecast file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise DataError(
                    f"{path} has the columns {str(reader.fieldnames)[:200]}; a forecast file has {', '.join(COLUMNS)}."
                )
            yield from enumerate(reader, start=2)
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error}).") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


@lru_cache(maxsize=100_000)
def _hour(text: str) -> int:
    """Return hours since 1970; cached, since times repeat from issue to issue and parsing them is slow."""
    return int(hours_since_1970(utc(text)))


def _day(hour: int) -> str:
    return f"{_EPOCH + _HOUR * hour:%Y-%m-%d}"


def _number(text: str) -> float:
    """Return an intensity in kg CO2e/kWh; NaN for an empty cell."""
    value = float(text) / G_PER_KG if text.strip() else float("nan")
    if value < 0 or np.isinf(value):
        raise ValueError(f"{text} is not an intensity")
    return value


def _actuals(actual: Mapping[int, float], path: Path, zone: str, factor: Factor) -> tuple[Traces, NDArray[np.bool_]]:
    start, end = min(actual), max(actual) + 1
    row = np.full(end - start, np.nan)
    for hour, value in actual.items():
        row[hour - start] = value
    gaps = np.isnan(row)
    at = np.arange(len(row))
    row[gaps] = np.interp(at[gaps], at[~gaps], row[~gaps])
    moments = tuple(iso(_EPOCH + _HOUR * (start + int(i))) for i in np.flatnonzero(gaps))
    if moments:
        logger.info(
            "%s: %d hours have no actual, the first at %s; they are interpolated.", path, len(moments), moments[0]
        )
    provenance = Provenance(zone=zone, source=str(path), filled_hours=moments)
    begin = _EPOCH + _HOUR * start
    return Traces(zones=(zone,), start=begin, intensity=row[None, :], factor=factor, provenance=(provenance,)), gaps
