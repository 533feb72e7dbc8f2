"""Forecasters for back-tests by name, the adversarial ones included, and the actuals that come with a provider's forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from slackwater.carbon.traces import Traces
from slackwater.errors import DataError, ScenarioError
from slackwater.forecasting.blend import Blend
from slackwater.forecasting.files import ForecastArchive
from slackwater.forecasting.forecast import Forecaster
from slackwater.forecasting.registry import NEED_TRUTH, forecaster, forecaster_names
from slackwater.replanning.adversarial import ADVERSARIAL, adversary

FILE, BLEND = "file", "blend"
_HOUR_S = 3600


def backtest_forecaster(
    name: str, truth: Traces, archive: ForecastArchive | None = None, *, lag: int = 0
) -> Forecaster:
    """Return the forecaster of a name: `file` repeats what the provider issued, `blend` corrects and continues it.

    `lag` is how many slots actuals are late: what the provider issued in them is known to the blend.
    """
    if name in ADVERSARIAL:
        return adversary(name, truth)
    if name == FILE:
        if archive is None:
            raise ScenarioError(f"The forecast {name!r} needs what the provider issued: give --forecasts FOLDER.")
        return archive
    if name == BLEND:
        return Blend(archive, lag_hours=lag * truth.slot_minutes // 60)
    if name not in forecaster_names():
        known = ", ".join([*forecaster_names(), FILE, *ADVERSARIAL])
        raise ScenarioError(f"There is no forecast {name!r}. Known are {known}.")
    return forecaster(name, truth=truth) if name in NEED_TRUTH else forecaster(name)


def first_issue(forecaster: Forecaster) -> datetime | None:
    """When a provider had issued something for every zone it forecasts; None where the forecaster asks no provider."""
    archive = forecaster if isinstance(forecaster, ForecastArchive) else getattr(forecaster, "archive", None)
    if not isinstance(archive, ForecastArchive):
        return None
    first = [float(one.issued[0]) for one in archive.issues.values() if len(one)]
    return datetime.fromtimestamp(max(first) * _HOUR_S, UTC) if first else None


def archive_actuals(archive: ForecastArchive, zones: Sequence[str]) -> Traces:
    """The actuals of an archive over the time that all zones share."""
    rows = [archive.actuals[zone] for zone in zones]
    start, end = max(row.start for row in rows), min(row.end for row in rows)
    if start >= end:
        raise DataError(f"The forecasts of {', '.join(zones)} have no time in common.")
    parts = [row.window(start, round((end - start).total_seconds() / _HOUR_S)) for row in rows]
    return Traces(
        zones=tuple(zones),
        start=start,
        intensity=np.concatenate([part.intensity for part in parts]),
        factor=rows[0].factor,
        provenance=tuple(part.provenance[0] for part in parts),
    )
