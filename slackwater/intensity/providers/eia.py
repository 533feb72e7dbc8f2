"""EIA: hourly generation by fuel of the balancing authorities of the United States, times emission factors. Needs a key.

Production-based, about an hour to a day late, and revised afterwards. Public domain.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from slackwater.intensity.providers.base import Provider
from slackwater.intensity.providers.generation_mix import EIA_FUELS, Mix
from slackwater.intensity.providers.readings import HOUR, Intake

ADDRESS = "https://api.eia.gov"
PATH = "/v2/electricity/rto/fuel-type-data/data/"
ROWS = 5000
_AUTHORITY = re.compile(r"US-(?!AK|HI)[A-Z]+-([A-Z0-9]+)")


class Eia(Provider):
    """Zones like `US-CAL-CISO`, whose last part is the authority; `US` is the contiguous states."""

    name = "eia"
    factors = ("lifecycle", "direct")
    kinds = ("actual",)

    def covers(self, zone: str) -> bool:
        """Return whether the zone is in the contiguous United States."""
        return respondent(zone) is not None

    def read(self, intake: Intake) -> None:
        """Read page by page."""
        mix = Mix(EIA_FUELS)
        try:
            self._read_pages(intake, mix)
        finally:
            mix.pour(intake)

    def _read_pages(self, intake: Intake, mix: Mix) -> None:
        offset, total = 0, 1
        while offset < total:
            page = self.client.get_json(
                self.name,
                self.address(ADDRESS) + PATH,
                [
                    ("api_key", self.key()),
                    ("frequency", "hourly"),
                    ("data[]", "value"),
                    ("facets[respondent][]", respondent(intake.zone) or ""),
                    # An hour is named by its end, without minutes, which the API rejects.
                    ("start", f"{intake.start + HOUR:%Y-%m-%dT%H}"),
                    ("end", f"{intake.end:%Y-%m-%dT%H}"),
                    ("sort[0][column]", "period"),
                    ("sort[0][direction]", "asc"),
                    ("offset", str(offset)),
                    ("length", str(ROWS)),
                ],
            )["response"]
            rows = page["data"]
            for row in rows:
                end = datetime.strptime(row["period"], "%Y-%m-%dT%H").replace(tzinfo=UTC)
                mix.add(self.client.clean(str(row["fueltype"]))[:12], end - timedelta(hours=1), 60, row["value"])
            total = int(page["total"])
            offset += len(rows)
            if not rows:
                break


def respondent(zone: str) -> str | None:
    """Return EIA's code of a zone, or None."""
    if zone == "US":
        return "US48"
    match = _AUTHORITY.fullmatch(zone)
    return match[1] if match else None
