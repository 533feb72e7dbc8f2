"""Forecasters of the intensity, which use only the past, and back-tests of planning on them."""

from slackwater.forecasting.blend import Blend
from slackwater.forecasting.error_model import ErrorModel
from slackwater.forecasting.files import ForecastArchive, read_archive
from slackwater.forecasting.forecast import Forecast, Forecaster
from slackwater.forecasting.naive import Persistence, SameHourMean
from slackwater.forecasting.oracle import Oracle
from slackwater.forecasting.registry import forecaster, forecaster_names, register_forecaster
from slackwater.forecasting.ridge import Ridge

__all__ = [
    "Blend", "ErrorModel", "Forecast", "ForecastArchive", "Forecaster", "Oracle", "Persistence", "Ridge",
    "SameHourMean", "forecaster", "forecaster_names", "read_archive", "register_forecaster",
]  # fmt: skip
