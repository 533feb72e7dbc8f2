"""The British system operator's Carbon Intensity API: national values and forecasts, regional forecasts. No key.

Direct emissions of generation and imports, g CO2/kWh, every half-hour. CC BY 4.0.
"""

from __future__ import annotations

import re
from datetime import timedelta

from slackwater.intensity.providers.base import Provider, pieces
from slackwater.intensity.providers.provider_errors import NotOfferedError
from slackwater.intensity.providers.readings import Asked, Intake
from slackwater.units import iso

ADDRESS = "https://api.carbonintensity.org.uk"
LONGEST_RANGE = timedelta(days=13)
"""Longest range: the API allows 14 days, and counts the half-hour before the first."""
_REGION = re.compile(r"GB-(\d{1,2})")


class Neso(Provider):
    """Zones: `GB`, and `GB-1` to `GB-17` by the API's region numbers."""

    name = "neso"
    factors = ("direct",)

    def covers(self, zone: str) -> bool:
        """Return whether the zone is Great Britain or one of its regions."""
        return zone == "GB" or region(zone) is not None

    def read(self, intake: Intake) -> None:
        """Read actual values or forecasts; regions have forecasts only."""
        number = region(intake.zone)
        if number is not None:
            self._read_region(intake, number)
        elif intake.kind == "forecast":
            start = max(intake.start, self.client.latest_now())
            page = self.client.get_json(self.name, f"{self.address(ADDRESS)}/intensity/{iso(start)}/fw48h")
            for row in page["data"]:
                intake.add(row["from"], 30, row["intensity"]["forecast"], kind="forecast")
        else:
            for start, end in pieces(intake.start, intake.end, LONGEST_RANGE):
                page = self.client.get_json(self.name, f"{self.address(ADDRESS)}/intensity/{iso(start)}/{iso(end)}")
                for row in page["data"]:
                    intake.add(row["from"], 30, row["intensity"]["actual"], kind="actual")

    def _read_region(self, intake: Intake, number: int) -> None:
        start = max(intake.start, self.client.latest_now())
        page = self.client.get_json(
            self.name, f"{self.address(ADDRESS)}/regional/intensity/{iso(start)}/fw48h/regionid/{number}"
        )
        data = page["data"][0] if isinstance(page["data"], list) else page["data"]
        for row in data["data"]:
            intake.add(row["from"], 30, row["intensity"]["forecast"], kind="forecast")

    def _check_offer(self, zone: str, kind: Asked) -> None:
        super()._check_offer(zone, kind)
        if kind == "actual" and region(zone) is not None:
            raise NotOfferedError(
                f"{self.name} has only forecasts of the region {zone}, and a forecast is never charged as actual. For "
                "actual values use GB, or ask for forecasts."
            )


def region(zone: str) -> int | None:
    """Return the number of a British region, or None."""
    match = _REGION.fullmatch(zone)
    return int(match[1]) if match and 1 <= int(match[1]) <= 17 else None
