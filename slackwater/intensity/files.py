"""Carbon-intensity files: tidy CSVs and the CSVs of the Electricity Maps data portal, with every line checked."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.prices import Prices
from slackwater.intensity.traces import (
    AUTUMN,
    FACTORS,
    HIGHEST_KG_PER_KWH,
    SPRING,
    Factor,
    ZoneSeries,
    looks_like_clock_change,
    minute_of,
    moment,
    to_slots,
)
from slackwater.units import G_PER_KG, iso

IF_MISSING = "Leave the cell empty if the value is missing."
HIGHEST_G_PER_KWH = HIGHEST_KG_PER_KWH * G_PER_KG
KG_BELOW = 2.0
"""If all values are below this, they are in kg/kWh by mistake."""
KG_MEDIAN = 0.005
"""Direct intensity in kg/kWh has a median above this, except where power is nearly free of carbon."""
CLEAN_LIFECYCLE_G_PER_KWH = 70.0
"""A zone with a life-cycle intensity above this burns fuel, so its direct intensity is not near zero."""


def numbers(path: Path, column: str, cells: Sequence[str], lines: Sequence[int]) -> NDArray[np.float64]:
    """Return the cells as g/kWh, NaN for an empty one; reject anything that is not a plausible intensity."""

    def refuse(i: int, why: str) -> DataError:
        return DataError(f"{path}, line {lines[i]}: {column} is {cells[i]!r}; {why}")

    try:
        values = np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        i = next(i for i, cell in enumerate(cells) if cell and not is_number(cell))
        comma = " Write decimals with a point." if "," in cells[i] else ""
        raise refuse(i, f"that is not a number. {IF_MISSING}{comma}") from None
    given = np.array([bool(cell) for cell in cells])
    for wrong, why in (
        (np.isnan(values) & given, f"that is not a number. {IF_MISSING}"),
        (np.isinf(values), f"an intensity is finite. {IF_MISSING}"),
        (values < 0, f"an intensity is never negative. {IF_MISSING}"),
        (
            values > HIGHEST_G_PER_KWH,
            f"no grid is above {HIGHEST_G_PER_KWH:g} g/kWh. If it is mg/kWh, divide by 1000.",
        ),
    ):
        if wrong.any():
            count = int(wrong.sum())
            raise refuse(int(np.argmax(wrong)), why + (f" There are {count:,} such values." if count > 1 else ""))
    return values


def is_number(cell: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def check_unit(path: Path, values: Mapping[Factor, NDArray[np.float64]]) -> None:
    """Reject kg/kWh given as g/kWh.

    Life-cycle intensity decides: wind, water and nuclear power alone have 5 to 25 g/kWh, so no grid is below 2.
    Direct intensity may truly be near 0 (Quebec, Sweden), so its own size counts only without life-cycle values.
    """
    known = {factor: column[~np.isnan(column)] for factor, column in values.items()}
    direct, lifecycle = known.get("direct", np.empty(0)), known.get("lifecycle", np.empty(0))

    def refuse(column: NDArray[np.float64], factor: Factor, more: str = "") -> DataError:
        return DataError(
            f"{path}: every {factor} intensity is below {KG_BELOW:g} (from {column.min():g} to {column.max():g}), "
            f"where g/kWh are expected. It looks like kg/kWh; multiply by 1000.{more}"
        )

    if lifecycle.size:
        if 0 < lifecycle.max() < KG_BELOW:
            raise refuse(lifecycle, "lifecycle")
        if direct.size and 0 < direct.max() < KG_BELOW and np.median(lifecycle) > CLEAN_LIFECYCLE_G_PER_KWH:
            raise refuse(direct, "direct", f" (Life-cycle intensity there is {np.median(lifecycle):g} g/kWh.)")
    elif direct.size and direct.max() < KG_BELOW and np.median(direct) > KG_MEDIAN:
        raise refuse(direct, "direct", " If the zone is that clean, give its life-cycle intensity too, as evidence.")


def check_repeats(path: Path, minutes: NDArray[np.int64], lines: Sequence[int]) -> None:
    """Reject duplicate times; their position shows whether the file is in local time with daylight saving."""
    order = np.argsort(minutes, kind="stable")
    ordered = minutes[order]
    twice = np.flatnonzero(np.diff(ordered) == 0)
    if not twice.size:
        return
    hours = np.unique(ordered[twice] // 60 * 60)
    first = twice[0]
    where = f"{iso(moment(ordered[first]))} in lines {lines[order[first]]} and {lines[order[first + 1]]}"
    more = f", the first of {hours.size:,} such hours" if hours.size > 1 else ""
    text = f"{path}: the hour {where} is given twice{more}."
    if all(looks_like_clock_change(int(hour), AUTUMN) for hour in hours):
        present = np.unique(ordered // 60 * 60)
        jumps = present[:-1][np.diff(present) == 120] + 60
        skipped = [int(hour) for hour in jumps if looks_like_clock_change(int(hour), SPRING)]
        missing = f" and {iso(moment(skipped[0]))} is missing" if skipped else ""
        raise DataError(
            f"{text} Clocks go back there{missing}, so the file seems to be in local time with daylight saving. "
            "Give the times in UTC."
        )
    raise DataError(f"{text} Keep one line for each hour.")


def native_step(path: Path, minutes: NDArray[np.int64], lines: Sequence[int]) -> int:
    """Return the minutes between values: the most common distance of at most an hour. Times must be full steps of UTC."""
    distances, counts = np.unique(np.diff(np.unique(minutes)), return_counts=True)
    coarse = re.search("daily|monthly|yearly", path.stem)
    if not distances.size and not coarse:
        return 60  # a single value: by the format, an hour
    fine = distances <= 60
    if not fine.any():
        # A yearly file has a single row; only its name shows that it is yearly.
        every = f"every {distances[np.argmax(counts)] / 60:g} h" if distances.size or not coarse else coarse[0]
        raise DataError(
            f"{path} has one value {every}, which is too coarse to plan with. Get the hourly file, or a finer one."
        )
    step = int(distances[fine][np.argmax(counts[fine])])
    if 60 % step:
        raise DataError(f"{path} has one value every {step} minutes. Give values every hour or a whole part of it.")
    off = np.flatnonzero(minutes % step)
    if off.size:
        raise DataError(
            f"{path}, line {lines[off[0]]}: {iso(moment(minutes[off[0]]))} is not at a full {step}-minute "
            f"step of UTC ({off.size:,} such lines). Give values at full steps."
        )
    return step


TIDY_COLUMNS: dict[Factor, str] = {"direct": "ci_direct_g_per_kwh", "lifecycle": "ci_lca_g_per_kwh"}
_LONGEST_MINUTES = 100 * 366 * 24 * 60
_ZONE_YEAR = re.compile(r"(?P<zone>.+)_\d{4}(_\w+)?", re.ASCII)
_PORTAL_INTENSITY = re.compile(r"carbon intensity.*\((?P<factor>direct|lca|life cycle)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntensityFile:
    """Describe a file that was recognised by its header; its values are not read yet."""

    path: Path
    zone: str
    time_column: int
    columns: Mapping[Factor, int]
    zone_column: int | None = None
    """None for a tidy file."""

    @property
    def label(self) -> str:
        """Return the folder and file name, which are the same on every machine."""
        return f"{self.path.parent.name}/{self.path.name}" if self.path.parent.name else self.path.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """List the files at a path."""

    files: Mapping[str, Sequence[IntensityFile]]
    """By zone, in the order of zones."""
    rejected: Mapping[Path, DataError]
    """CSV files that could not be recognised, and why."""


class _FileValues(NamedTuple):
    """The rows of one file: `minutes` [row] since 1970, ascending, and values [row], NaN where missing."""

    file: IntensityFile
    step_minutes: int
    minutes: NDArray[np.int64]
    g_per_kwh: Mapping[Factor, NDArray[np.float64]]


def find_files(source: Path) -> Found:
    """Return the files at `source`, a CSV file or a folder; only headers and first rows are read."""
    if not source.exists():
        raise DataError(
            f"There is no file or folder {source}. Name a CSV file or a folder of them, or 'typical' for the built-in "
            "profiles."
        )
    if not source.is_dir():
        return Found(files={(file := _recognise(source)).zone: [file]}, rejected={})
    paths = sorted(path for path in source.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    if not paths:
        raise DataError(f"The folder {source} has no CSV files. Name the one that holds <ZONE>_<YEAR>.csv files.")
    files: dict[str, list[IntensityFile]] = {}
    rejected: dict[Path, DataError] = {}
    for path in paths:
        try:
            file = _recognise(path)
        except DataError as error:
            rejected[path] = error
        else:
            files.setdefault(file.zone, []).append(file)
    if not files:
        raise next(iter(rejected.values()))
    return Found(files=dict(sorted(files.items())), rejected=rejected)


def zone_in_name(path: Path) -> str | None:
    """Return the zone in a name like `SE-SE3_2022.csv` or `SE-SE3_2022_hourly.csv`."""
    match = _ZONE_YEAR.fullmatch(path.stem)
    return match["zone"] if match else None


def read_zone(files: Sequence[IntensityFile]) -> ZoneSeries:
    """Read one zone's files, usually of several years, as one series; times between them are missing."""
    parts = [_read(file) for file in files]
    step = min(part.step_minutes for part in parts)
    # 60 is a multiple of every step, but 15 and 20 have no common step: reject rather than resample.
    odd = next((part for part in parts if part.step_minutes % step), None)
    if odd:
        raise DataError(
            f"{odd.file.path} has values every {odd.step_minutes} minutes, other files of its zone every {step}."
        )
    start = min(int(part.minutes[0]) for part in parts)
    end = max(int(part.minutes[-1]) + part.step_minutes for part in parts)
    if end - start > _LONGEST_MINUTES:  # the array over all of it would fill the memory
        raise DataError(
            f"Zone {files[0].zone}: the times in {', '.join(file.label for file in files)} reach from {iso(moment(start))} to "
            f"{iso(moment(end - step))}. Is a year mistyped?"
        )
    steps = (end - start) // step
    owner = np.full(steps, -1)
    grams = {factor: np.full(steps, np.nan) for factor in FACTORS}
    for i, part in enumerate(parts):
        where = ((part.minutes - start) // step)[:, np.newaxis] + np.arange(part.step_minutes // step)
        taken = np.argwhere(owner[where] >= 0)
        if taken.size:
            row, column = taken[0]
            other = parts[owner[where[row, column]]].file.path
            raise DataError(
                f"Zone {part.file.zone}: {iso(moment(part.minutes[row]))} is in both {other} and {part.file.path} "
                f"({len(np.unique(taken[:, 0])):,} such times). Keep one of the files."
            )
        owner[where] = i
        for factor, values in part.g_per_kwh.items():
            grams[factor][where] = values[:, np.newaxis]
    return ZoneSeries(
        zone=files[0].zone, source=", ".join(file.label for file in files), start_minute=start, step_minutes=step,
        steps=steps,
        intensity={factor: values / G_PER_KG for factor, values in grams.items() if not np.all(np.isnan(values))},
        from_file=True,
    )  # fmt: skip


def has_factor(file: IntensityFile, factor: Factor) -> bool:
    """Return whether a file has any value of a factor; much quicker than reading it."""
    column = file.columns.get(factor)
    if column is None:
        return False
    with _rows(file.path) as rows:
        next(rows)
        return any(len(row) > column and row[column].strip() for _, row in rows)


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Yield line numbers and cells of a CSV file, without blank lines."""
    try:
        # utf-8-sig: spreadsheets put a byte-order mark in front.
        with path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text)
            yield ((reader.line_num, row) for row in reader if any(row))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error}).") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def _recognise(path: Path) -> IntensityFile:
    with _rows(path) as rows:
        _, header = next(rows, (0, []))
        first = next(rows, None)
    if not header:
        raise DataError(f"{path} is empty.")
    lower = [" ".join(cell.lower().split()) for cell in header]
    tidy = {factor: lower.index(name) for factor, name in TIDY_COLUMNS.items() if name in lower}
    portal: dict[Factor, int] = {}
    for i, cell in enumerate(lower):
        if match := _PORTAL_INTENSITY.fullmatch(cell):
            portal["direct" if match["factor"] == "direct" else "lifecycle"] = i
    is_tidy = "datetime_utc" in lower and bool(tidy)
    if not is_tidy and not ("datetime (utc)" in lower and "zone id" in lower and portal):
        raise DataError(
            f"{path} has the columns {', '.join(header)}. Expected: datetime_utc with ci_direct_g_per_kwh or "
            "ci_lca_g_per_kwh, separated by commas, or the portal's Datetime (UTC), Zone id and Carbon intensity "
            "gCO₂eq/kWh (direct) or (Life cycle)."
        )
    if first is None:
        raise DataError(f"{path} has a header but no values.")
    if is_tidy:
        zone = zone_in_name(path)
        if zone is None:
            raise DataError(f"{path} does not name its zone. Call it <ZONE>_<YEAR>.csv, like SE-SE3_2022.csv.")
        return IntensityFile(path=path, zone=zone, time_column=lower.index("datetime_utc"), columns=tidy)
    zone_column = lower.index("zone id")
    line, cells = first
    zone = cells[zone_column].strip() if len(cells) > zone_column else ""
    if not zone:
        raise DataError(f"{path}, line {line}: the zone id is missing.")
    return IntensityFile(
        path=path, zone=zone, time_column=lower.index("datetime (utc)"), columns=portal, zone_column=zone_column
    )


def _read(file: IntensityFile) -> _FileValues:
    needed = max(file.time_column, *file.columns.values(), file.zone_column or 0) + 1
    lines: list[int] = []
    rows_read: list[list[str]] = []
    with _rows(file.path) as rows:
        next(rows)
        for line, row in rows:
            if len(row) < needed:
                raise DataError(f"{file.path}, line {line}: {len(row)} cells, but the header needs at least {needed}.")
            if file.zone_column is not None and row[file.zone_column].strip() != file.zone:
                raise DataError(
                    f"{file.path}, line {line}: zone {row[file.zone_column]!r} in a file of zone {file.zone!r}. "
                    "Give every zone its own file."
                )
            lines.append(line)
            rows_read.append(row)
    stamps = [row[file.time_column].strip() for row in rows_read]
    minutes = np.array([_minute(file, stamp, line) for stamp, line in zip(stamps, lines, strict=True)], dtype=np.int64)
    check_repeats(file.path, minutes, lines)
    step = native_step(file.path, minutes, lines)
    values = {
        factor: numbers(file.path, f"{factor} intensity", [row[column].strip() for row in rows_read], lines)
        for factor, column in file.columns.items()
    }
    check_unit(file.path, values)
    order = np.argsort(minutes)
    return _FileValues(file, step, minutes[order], {factor: column[order] for factor, column in values.items()})


def _minute(file: IntensityFile, stamp: str, line: int) -> int:
    where = f"{file.path}, line {line}: {stamp!r}"
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        raise DataError(f"{where} is not a time. Write it like 2022-01-01T00:00Z.") from None
    if when.tzinfo is None:
        if file.zone_column is None:
            raise DataError(
                f"{where} has no time zone. Add Z if it is UTC ({stamp}Z), or its offset (like +01:00) if it is local "
                "time."
            )
        when = when.replace(tzinfo=UTC)
    if when.second or when.microsecond:
        raise DataError(f"{where} is not a full minute.")
    return int(when.timestamp()) // 60  # like `minute_of`, but three times as fast


_PRICE_COLUMNS = "datetime_utc and a column for each zone, or datetime_utc, zone and price"
_KWH_PER = {"kWh": 1.0, "MWh": 1000.0}
_HIGHEST_PRICE = 1e6
_PER_MWH_ABOVE = 3.0
"""Half of the prices per kWh are below this in the currencies of `_STRONG`: above, they are per MWh by mistake."""
_STRONG = ("EUR", "USD", "GBP", "CHF")


def read_prices(
    path: Path, zones: Sequence[str], *, currency: str, unit: str | None, start: datetime, slot_minutes: int
) -> Prices:
    """Return the prices of zones from a CSV file, as far as it reaches, in slots of which one begins at `start`.

    Args:
        path: The file: `datetime_utc` and a column for each zone, or `datetime_utc`, `zone` and `price`.
        zones: Zones that must be in it.
        currency: Currency of the prices.
        unit: "<currency>/kWh" or "<currency>/MWh". Default: per kWh.
        start: Start of the run, aware UTC.
        slot_minutes: Length of a slot; a price holds for its whole step, and a longer slot has the mean.
    """
    per = _KWH_PER.get((unit or f"{currency}/kWh").removeprefix(f"{currency}/"))
    if per is None or (unit or f"{currency}/").partition("/")[0] != currency:
        raise ScenarioError(f'unit is {unit!r}; write "{currency}/kWh" or "{currency}/MWh" (currency = "{currency}").')
    if not path.is_file():
        raise DataError(f"There is no price file {path}. Name a CSV file in [price], relative to the scenario.")
    by_zone = _price_rows(path)
    missing = [zone for zone in zones if zone not in by_zone]
    if missing:
        raise DataError(
            f"{path} has no prices for {', '.join(missing)}; it has {', '.join(sorted(by_zone))}. Every zone of a client "
            "and of the server needs prices."
        )
    series = [_price_series(path, zone, *by_zone[zone]) for zone in zones]
    values = np.concatenate([one.intensity["direct"] for one in series]) / per
    if currency in _STRONG and np.nanmedian(np.abs(values)) > _PER_MWH_ABOVE:
        raise DataError(
            f"{path}: half of the prices are above {_PER_MWH_ABOVE:g} {currency}/kWh, which looks like a price per MWh. Set "
            f'unit = "{currency}/MWh" in [price].'
        )
    # From the first to the last slot that is whole in every zone; the run's own hours are checked when it is planned.
    offset = minute_of(start)
    first = max(-(-(one.start_minute - offset) // slot_minutes) for one in series)
    last = min((one.end_minute - offset) // slot_minutes for one in series)
    begin, end = offset + first * slot_minutes, offset + last * slot_minutes
    per_kwh = np.array(
        [to_slots(one, one.intensity["direct"], begin, end, slot_minutes) / per for one in series]
        if end > begin
        else np.empty((len(series), 0))
    )
    label = f"{path.parent.name}/{path.name}" if path.parent.name else path.name
    return Prices(
        zones=tuple(zones),
        start=moment(begin),
        per_kwh=per_kwh,
        currency=currency,
        slot_minutes=slot_minutes,
        source=label,
    )


def _price_rows(path: Path) -> dict[str, tuple[list[str], list[str], list[int]]]:
    """Return stamps, prices and line numbers of each zone."""
    found: dict[str, tuple[list[str], list[str], list[int]]] = {}
    with _rows(path) as rows:
        _, header = next(rows, (0, []))
        names = [cell.strip() for cell in header]
        lower = [name.lower() for name in names]
        if "datetime_utc" not in lower or len(names) < 2:
            raise DataError(f"{path} has the columns {', '.join(header) or 'none'}. Expected: {_PRICE_COLUMNS}.")
        time, long = lower.index("datetime_utc"), {"zone", "price"} <= set(lower)
        columns = [i for i in range(len(names)) if i != time and names[i]]
        for line, row in rows:
            if len(row) < len(names):
                raise DataError(f"{path}, line {line}: {len(row)} cells, but the header has {len(names)}.")
            if any(row[len(names) :]):
                raise DataError(
                    f"{path}, line {line}: {len(row)} cells, but the header has {len(names)}. Write decimals with a point."
                )
            cells = (
                [(row[lower.index("zone")].strip(), row[lower.index("price")])]
                if long
                else [(names[i], row[i]) for i in columns]
            )
            for zone, cell in cells:
                stamps, prices, lines = found.setdefault(zone, ([], [], []))
                stamps.append(row[time].strip())
                prices.append(cell.strip())
                lines.append(line)
    if not found:
        raise DataError(f"{path} has a header but no prices.")
    return found


def _price_series(path: Path, zone: str, stamps: list[str], cells: list[str], lines: list[int]) -> ZoneSeries:
    """Return one zone's prices as a series, in the unit of the file; missing times are NaN."""
    file = IntensityFile(path=path, zone=zone, time_column=0, columns={})
    minutes = np.array([_minute(file, stamp, line) for stamp, line in zip(stamps, lines, strict=True)], dtype=np.int64)
    check_repeats(path, minutes, lines)
    step = native_step(path, minutes, lines)
    values = np.empty(len(cells))
    for i, cell in enumerate(cells):
        if cell and not (is_number(cell) and abs(float(cell)) <= _HIGHEST_PRICE):
            comma = " Write decimals with a point." if "," in cell else ""
            raise DataError(
                f"{path}, line {lines[i]}: the price of {zone} is {cell!r}; give a number. {IF_MISSING}{comma}"
            )
        values[i] = float(cell) if cell else np.nan
    start, last = int(minutes.min()), int(minutes.max())
    if last - start > _LONGEST_MINUTES:
        raise DataError(
            f"{path}: its times reach from {iso(moment(start))} to {iso(moment(last))}. Is a year mistyped?"
        )
    steps = (last - start) // step + 1
    prices = np.full(steps, np.nan)
    prices[(minutes - start) // step] = values
    return ZoneSeries(
        zone=zone, source=path.name, start_minute=start, step_minutes=step, steps=steps, intensity={"direct": prices}
    )
