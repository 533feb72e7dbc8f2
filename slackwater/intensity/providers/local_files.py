"""Files as a provider, to combine with others: `files:data/ci`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.files import find_files, read_zone
from slackwater.intensity.providers.base import Context, Provider
from slackwater.intensity.providers.provider_errors import ProviderError
from slackwater.intensity.providers.readings import Intake
from slackwater.intensity.traces import ZoneSeries, moment
from slackwater.units import G_PER_KG


class LocalFiles(Provider):
    """Read the CSV files that `--data` takes, as actual values; they are read every time, not cached."""

    name = "files"
    factors = ("lifecycle", "direct")
    kinds = ("actual",)
    cacheable = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if not context.option:
            raise ScenarioError("The provider 'files' needs a path after a colon, like files:data/ci.")
        self._path = context.folder / Path(context.option).expanduser()
        self._series: dict[str, ZoneSeries] = {}

    def read(self, intake: Intake) -> None:
        """Add all values of a zone; a gap is a missing value."""
        series = self._zone(intake.zone)
        if intake.factor not in series.intensity:
            raise ProviderError(f"There is no {intake.factor} intensity for {intake.zone} in {self._path}.")
        for i, value in enumerate(series.intensity[intake.factor]):
            start = moment(series.start_minute + i * series.step_minutes)
            grams = None if np.isnan(value) else float(value) * G_PER_KG
            intake.add(start, series.step_minutes, grams, kind="actual")

    def _zone(self, zone: str) -> ZoneSeries:
        if zone not in self._series:
            try:
                files = find_files(self._path).files
                if zone not in files:
                    raise ProviderError(f"There is no zone {zone} in {self._path}.")
                self._series[zone] = read_zone(files[zone])
            except ProviderError:
                raise
            except DataError as error:
                raise ProviderError(str(error)) from None
        return self._series[zone]
