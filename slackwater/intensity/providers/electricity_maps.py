"""Electricity Maps: flow-traced average intensity of some 350 zones, past, present and forecast. Needs a key.

The free tier has one zone, `latest` and the last 24 hours (`history`); `past-range` and `forecast` are for paid plans.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from slackwater.errors import ScenarioError
from slackwater.intensity.providers.base import Context, Provider, pieces
from slackwater.intensity.providers.provider_errors import (
    BadAnswerError,
    ForbiddenError,
    NoValuesError,
    ProviderError,
    UnauthorisedError,
)
from slackwater.intensity.providers.readings import HOUR, Intake
from slackwater.units import floor_hour, iso

ADDRESS = "https://api.electricitymaps.com"
VERSIONS = ("v3", "v4")
HISTORY = timedelta(hours=24)
LONGEST_RANGE = timedelta(days=10)
HORIZONS = (6, 24, 48, 72)


class ElectricityMaps(Provider):
    """`electricitymaps` uses v3, `electricitymaps:v4` the newer paths; their answers have the same form."""

    name = "electricitymaps"
    factors = ("lifecycle", "direct")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.version = context.option or "v3"
        if self.version not in VERSIONS:
            raise ScenarioError(f"electricitymaps:{self.version} is unknown; choose {' or '.join(VERSIONS)}.")

    @property
    def source(self) -> str:
        """Return the name, with the version if it is not the default."""
        return self.name if self.version == "v3" else f"{self.name} {self.version}"

    def read(self, intake: Intake) -> None:
        """Read `forecast`, or `history` and `latest` for recent values and `past-range` for older ones."""
        now = self.client.latest_now()
        if intake.kind == "forecast":
            self._read_forecast(intake, now)
        elif intake.start >= floor_hour(now) - HISTORY + HOUR:
            self._read_recent(intake, now)
        else:
            try:
                self._read_past(intake, now)
            except (ForbiddenError, UnauthorisedError) as refused:
                if intake.readings or intake.end <= floor_hour(now) - HISTORY + HOUR:
                    raise
                try:  # every plan has the last 24 hours; a wrong key is rejected there too
                    self._read_recent(intake, now)
                except ProviderError:
                    raise refused from None
                intake.note("the key's plan has only the last 24 hours; older values are not requested.")

    def _read_forecast(self, intake: Intake, now: datetime) -> None:
        needed = (intake.end - floor_hour(now)) / HOUR
        horizon = next((hours for hours in HORIZONS if hours >= needed), HORIZONS[-1])
        page = self._get("forecast", intake.zone, horizonHours=str(horizon))
        for row in _rows(page, "forecast", "data"):
            intake.add(row["datetime"], 60, _value(row), kind="forecast", issued_at=page.get("updatedAt"))

    def _read_recent(self, intake: Intake, now: datetime) -> None:
        page = self._get("history", intake.zone)
        for row in _rows(page, "history", "data"):
            self._add(intake, row)
        current = floor_hour(now)
        known = {reading.start for reading in intake.readings}
        if current not in known and intake.start <= current < intake.end:
            self._add(intake, self._get("latest", intake.zone))

    def _read_past(self, intake: Intake, now: datetime) -> None:
        for start, end in pieces(intake.start, min(intake.end, floor_hour(now) + HOUR), LONGEST_RANGE):
            page = self._get("past-range", intake.zone, start=iso(start), end=iso(end))
            for row in _rows(page, "data", "history"):
                self._add(intake, row)

    def _add(self, intake: Intake, row: Any) -> None:
        given = row.get("emissionFactorType")
        if given not in (None, intake.factor):
            raise BadAnswerError(
                f"{self.source} returned {self.client.clean(str(given))[:40]} intensity of {intake.zone} instead of "
                f"{intake.factor}. It is not used, since the two must not be mixed."
            )
        estimated = bool(row.get("isEstimated")) or row.get("estimationMethod") is not None
        intake.add(row["datetime"], 60, _value(row), kind="estimated" if estimated else "actual")

    def _get(self, what: str, zone: str, **query: str) -> Any:
        # Without these, an unknown zone gets the answer for our own location; both spellings exist.
        query |= {"disableCallerLookup": "true", "shouldUseFallbackCallerLookup": "false"}
        page = self.client.get_json(
            self.name,
            f"{self.address(ADDRESS)}/{self.version}/carbon-intensity/{what}",
            {"zone": zone, "emissionFactorType": self.factor, **query},
            {"auth-token": self.key()},
        )
        if page.get("status") == "no-data":
            raise NoValuesError(f"{self.source} has no data of {zone}.")
        if "error" in page and len(page) == 1:
            raise ProviderError(f"{self.source} returned an error for {zone}.")
        got = page.get("zone")
        if got is not None and got != zone:
            raise BadAnswerError(
                f"{self.source} does not know {zone}: it answered for the caller's own zone "
                f"{self.client.quoted(got, 24)} instead. The values are not used."
            )
        return page


def _rows(page: Any, *names: str) -> Any:
    rows = next((page[name] for name in names if name in page), None)
    if not isinstance(rows, list):
        raise TypeError("no list of values")
    return rows


def _value(row: Any) -> object:
    return row["carbonIntensity"] if "carbonIntensity" in row else row["value"]
