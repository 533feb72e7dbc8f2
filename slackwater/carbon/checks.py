"""Check a file's numbers and times; errors name the file, the line and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon.series import AUTUMN, SPRING, looks_like_clock_change, moment
from slackwater.carbon.traces import Factor
from slackwater.errors import DataError
from slackwater.units import iso

IF_MISSING = "Leave the cell empty if the value is missing."
HIGHEST_G_PER_KWH = 5000.0
"""Above any power plant: the worst burn lignite or oil shale at some 1,500 g/kWh."""
KG_BELOW = 2.0
"""Values in kg/kWh by mistake are all below this."""
KG_MEDIAN = 0.005
"""Direct intensity in kg/kWh has a median above this, except where power is nearly free of carbon."""
CLEAN_LIFECYCLE_G_PER_KWH = 70.0
"""A zone with a life-cycle intensity above this burns something, so its direct intensity is not near zero."""


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
            f"no grid is above {HIGHEST_G_PER_KWH:g} g/kWh. Is it mg/kWh? Then divide by 1000.",
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
    Direct intensity may truly be near 0 (Quebec, Sweden), so its own size counts only where there is no other.
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
        raise refuse(
            direct, "direct", " If the zone is truly that clean, give its life-cycle intensity as well, which shows it."
        )


def check_repeats(path: Path, minutes: NDArray[np.int64], lines: Sequence[int]) -> None:
    """Reject a time that is given twice, and recognise local time with daylight saving by where it is."""
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
            f"{text} That is where clocks go back{missing}: the file looks like it is in local time with daylight "
            "saving. Give the times in UTC."
        )
    raise DataError(f"{text} Keep one line for each hour.")


def native_step(path: Path, minutes: NDArray[np.int64], lines: Sequence[int]) -> int:
    """Return the minutes between values: the commonest distance of at most an hour. Times must be full steps of UTC."""
    distances, counts = np.unique(np.diff(np.unique(minutes)), return_counts=True)
    coarse = re.search("daily|monthly|yearly", path.stem)
    if not distances.size and not coarse:
        return 60  # a single value: by the format, an hour
    fine = distances <= 60
    if not fine.any():
        # A yearly file has a single row, so that only its name tells.
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
            f"{path}, line {lines[off[0]]}: {iso(moment(minutes[off[0]]))} is not the start of one of the "
            f"{step}-minute steps that the file has ({off.size:,} such lines). Give values at full steps of UTC."
        )
    return step
