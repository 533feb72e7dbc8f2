"""What is expected of every slot that is not settled yet: the forecast, and the past's profile where it says nothing."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from slackwater.carbon.traces import Traces
from slackwater.forecasting.forecast import Forecast
from slackwater.forecasting.naive import SameHourMean

_COVERAGE = 0.8


def outlook(known: Traces, forecast: Forecast | None, slots: int) -> tuple[Forecast, str | None]:
    """The `slots` slots after the last known one, and what had to be filled from the last week, in words.

    A forecast of another factor or slot length is not used at all: its numbers mean something else.
    """
    usable = forecast is not None and (forecast.factor, forecast.slot_minutes) == (known.factor, known.slot_minutes)
    if forecast is None or not usable:
        said = "there is no forecast" if forecast is None else "the forecast has another factor or slot length"
        return _profile(known, slots), f"{said}; the last week's hours are used"
    offset = (known.end - forecast.start) // timedelta(minutes=known.slot_minutes)
    first, last = max(offset, 0), min(offset + slots, forecast.slots)
    covered = slice(first - offset, max(last - offset, first - offset))
    rows = [row for row, zone in enumerate(known.zones) if zone in forecast.zones]
    whole = len(rows) == len(known.zones) and covered == slice(0, slots)
    base = forecast if whole else _profile(known, slots)
    arrays = []
    for values, filled in ((forecast.mean, base.mean), (forecast.low, base.low), (forecast.high, base.high)):
        merged = np.array(filled[:, :slots]) if not whole else np.empty((len(known.zones), slots))
        taken = [forecast.zones.index(known.zones[row]) for row in rows]
        merged[rows, covered] = values[taken, first : first + covered.stop - covered.start]
        arrays.append(merged)
    lacking = sorted(set(known.zones) - set(forecast.zones))
    missing = [f"zones {', '.join(lacking)}"] if lacking else []
    if covered != slice(0, slots):
        missing.append(f"{slots - (covered.stop - covered.start)} of {slots} slots")
    said_of = f"the forecast lacks {' and '.join(missing)}; the last week's hours are used there" if missing else None
    return Forecast(
        zones=known.zones,
        start=known.end,
        mean=arrays[0],
        low=arrays[1],
        high=arrays[2],
        coverage=forecast.coverage,
        factor=known.factor,
        source=forecast.source,
        slot_minutes=known.slot_minutes,
    ), said_of


def _profile(known: Traces, slots: int) -> Forecast:
    return SameHourMean(coverage=_COVERAGE).forecast(known, slots)
