"""Forecasters of carbon intensity that use only the past, and back-tests of planning with them."""

from slackwater.intensity.forecast.archive import ForecastArchive, read_archive
from slackwater.intensity.forecast.base import Forecast, Forecaster, Persistence, SameHourMean
from slackwater.intensity.forecast.blend import Blend
from slackwater.intensity.forecast.forecasters import (
    ErrorModel,
    Oracle,
    forecaster,
    forecaster_names,
    register_forecaster,
)
from slackwater.intensity.forecast.ridge import Ridge

__all__ = [
    "Blend", "ErrorModel", "Forecast", "ForecastArchive", "Forecaster", "Oracle", "Persistence", "Ridge",
    "SameHourMean", "forecaster", "forecaster_names", "read_archive", "register_forecaster",
]  # fmt: skip
