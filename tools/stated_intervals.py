"""Measure the stated interval of a forecast with unknown errors (`slackwater.intensity.forecast.base`).

By day ahead, it gives the share of the forecast within which 80 % of the hours lie, as the mean over zones. It measures
providers' forecasts as issued, and our own from a day of history, extended into the past by the typical profile.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import SlackwaterError
from slackwater.intensity.feed import SHORTEST, typical_profile
from slackwater.intensity.forecast.archive import forecast_files, hours_since_1970, read_archive
from slackwater.intensity.forecast.base import STATED_COVERAGE
from slackwater.intensity.forecast.ridge import Ridge
from slackwater.intensity.load import load_traces

DAYS = 4
HOUR = timedelta(hours=1)


def provided(folder: Path, leave_out: Sequence[str]) -> NDArray[np.float64]:
    """Return the mean over zones [day] of the quantile of a provider's relative errors."""
    rows = []
    for zone in forecast_files(folder):
        if zone in leave_out:
            continue
        archive = read_archive(folder, [zone])
        issues, actual = archive.of(zone), archive.actuals[zone]
        errors = np.abs(issues.errors(actual.intensity[0], int(hours_since_1970(actual.start))))
        rows.append(_quantiles(errors / np.maximum(issues.values, 1e-9)))
    return np.asarray(np.nanmean(rows, axis=0))


def own(folder: Path, zones: Sequence[str], origins: int) -> NDArray[np.float64]:
    """Return the mean over zones [day] of the quantile of our relative errors from a day of history, seed 0."""
    chance, rows = np.random.default_rng(0), []
    slots = SHORTEST // HOUR
    for zone in zones:
        try:
            truth = load_traces(folder, zones=[zone], fill_hours=6)
        except SlackwaterError as error:
            print(f"{zone} is skipped: {error}")
            continue
        errors = []
        for origin in chance.integers(slots, truth.slots - 24 * DAYS, origins):
            end = truth.start + int(origin) * HOUR
            known = truth.window(end - SHORTEST, slots)
            _, profile = typical_profile(zone, "lifecycle", known.start, slots, 60)
            day = known.intensity[0, -24:]
            values = np.append(profile[:-24] * (day.mean() / profile[-24:].mean()), day)
            made = Ridge().forecast(replace(known, intensity=values[None]), 24 * DAYS).mean[0]
            errors.append(np.abs(truth.window(end, 24 * DAYS).intensity[0] - made) / np.maximum(made, 1e-9))
        rows.append(_quantiles(np.array(errors)))
    return np.asarray(np.nanmean(rows, axis=0))


def _quantiles(relative: NDArray[np.float64]) -> list[float]:
    parts = (relative[:, 24 * day : 24 * day + 24] for day in range(DAYS))
    known = [part[np.isfinite(part)] for part in parts]
    return [float(np.quantile(part, STATED_COVERAGE)) if len(part) else np.nan for part in known]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder of intensity CSVs.")
    parser.add_argument(
        "--forecasts", type=Path, required=True, help="Folder of a provider's forecasts and actual values."
    )
    parser.add_argument("--leave-out", default="FI", help="Zones whose forecasts are known to be wrong.")
    parser.add_argument("--zones", default="DE,FR,GB,IE,FI,BE,ES,PL,NL,US-CAL-CISO,CA-QC,DK-DK1,IT-NO")
    parser.add_argument("--origins", type=int, default=30)
    asked = parser.parse_args()
    print("providers, as issued:     ", provided(asked.forecasts, asked.leave_out.split(",")).round(2))
    print("ours, from a day's history:", own(asked.data, asked.zones.split(","), asked.origins).round(2))
