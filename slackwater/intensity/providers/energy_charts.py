"""Energy-Charts of Fraunhofer ISE: European countries every quarter of an hour, and the day ahead. No key."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise

from slackwater.intensity.providers.base import Provider, pieces
from slackwater.intensity.providers.provider_errors import BadAnswerError
from slackwater.intensity.providers.readings import Intake
from slackwater.units import iso

ADDRESS = "https://api.energy-charts.info"
LONGEST_RANGE = timedelta(days=31)
# fmt: off
COUNTRIES = frozenset((
    "AL", "AM", "AT", "AZ", "BA", "BE", "BG", "BY", "CH", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GE", "GR", "HR",
    "HU", "IE", "IT", "LT", "LU", "LV", "MD", "ME", "MK", "MT", "NL", "NO", "PL", "PT", "RO", "RS", "SE", "SI", "SK", "TR",
    "UA", "XK",
))
# fmt: on
"""Whole countries only: a bidding zone like SE-SE3 has another mix than Sweden."""


class EnergyCharts(Provider):
    """Zones are countries, like `DE`."""

    name = "energycharts"
    factors = ("lifecycle",)

    def covers(self, zone: str) -> bool:
        """Return whether the zone is a European country."""
        return zone in COUNTRIES

    def read(self, intake: Intake) -> None:
        """Read the series of the requested kind; an answer holds both."""
        wanted = "co2eq" if intake.kind == "actual" else "co2eq_forecast"
        for start, end in pieces(intake.start, intake.end, LONGEST_RANGE):
            page = self.client.get_json(
                self.name,
                f"{self.address(ADDRESS)}/co2eq",
                {"country": intake.zone.lower(), "start": iso(start), "end": iso(end)},
            )
            seconds, values = page["unix_seconds"], page[wanted]
            if len(seconds) != len(values):
                raise BadAnswerError(
                    f"{self.name} returned {len(seconds)} times for {len(values)} values of {intake.zone}."
                )
            if page.get("deprecated"):
                intake.note("the provider marks this answer as deprecated; it may be removed.")
            step = _step_minutes(seconds)
            for second, value in zip(seconds, values, strict=True):
                intake.add(second, step, value, kind=intake.kind)


def _step_minutes(seconds: list[int]) -> int:
    """Return the most common distance; a quarter of an hour for a single value."""
    distances = Counter((later - earlier) // 60 for earlier, later in pairwise(seconds))
    return distances.most_common(1)[0][0] if distances else 15
