"""WattTime: marginal intensity (MOER) every five minutes, lb CO2/MWh. Needs an account; the data is not open.

Marginal intensity is the effect of one more kWh, so by default it is never mixed with averages.
"""

from __future__ import annotations

import base64
import math
from datetime import timedelta
from typing import Any

from slackwater.errors import ScenarioError
from slackwater.intensity.providers.base import Context, Provider, pieces
from slackwater.intensity.providers.provider_errors import BadAnswerError, UnauthorisedError
from slackwater.intensity.providers.readings import HOUR, Intake
from slackwater.units import iso

ADDRESS = "https://api.watttime.org"
UNIT = "lbs_co2_per_mwh"
G_PER_KWH_OF_LB_PER_MWH = 0.453592
"""453.592 g per pound, 1000 kWh per MWh."""
LONGEST_RANGE = timedelta(days=30)
MOST_HOURS = 72
PREFIX = "WT:"
_SHORTEST_TOKEN = 6
REGIONS = {"US-CAL-CISO": "CAISO_NORTH"}
"""The region that every account may use. Users name others, since WattTime's regions are finer than our zones."""


class WattTime(Provider):
    """Zones: `WT:` and a region, like `WT:CAISO_NORTH`, or `watttime:US-TEX-ERCO=ERCOT_AUSTIN` to map a zone to a region.

    The key is `user:password`.
    """

    name = "watttime"
    factors = ("marginal",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._token: str | None = None
        self._regions = {**REGIONS, **_regions(context.option)}

    def covers(self, zone: str) -> bool:
        """Return whether the zone has a region."""
        return zone.startswith(PREFIX) or zone in self._regions

    def read(self, intake: Intake) -> None:
        """Read `/v3/forecast` or `/v3/historical`."""
        region = intake.zone.removeprefix(PREFIX) if intake.zone.startswith(PREFIX) else self._regions[intake.zone]
        query = {"region": region, "signal_type": "co2_moer"}
        if intake.kind == "forecast":
            ahead = math.ceil((intake.end - self.client.latest_now()) / HOUR)
            page = self._get("/v3/forecast", {**query, "horizon_hours": str(min(max(ahead, 1), MOST_HOURS))})
            self._add(intake, page, region)
            return
        for start, end in pieces(intake.start, intake.end, LONGEST_RANGE):
            self._add(intake, self._get("/v3/historical", {**query, "start": iso(start), "end": iso(end)}), region)

    def _add(self, intake: Intake, page: Any, region: str) -> None:
        meta = page["meta"]
        if meta["units"] != UNIT:
            raise BadAnswerError(
                f"{self.name} returned {intake.zone} in {self.client.quoted(meta['units'])}; only {UNIT} is supported."
            )
        if meta.get("region", region) != region:
            raise BadAnswerError(f"{self.name} answered for another region than {region}. The values are not used.")
        step = int(meta.get("data_point_period_seconds", 300)) // 60
        for row in page["data"]:
            value = row["value"]
            grams = value * G_PER_KWH_OF_LB_PER_MWH if isinstance(value, float | int) and value > 0 else value
            imputed = intake.kind == "actual" and row.get("imputed_data_used")
            intake.add(
                row["point_time"],
                step,
                grams,
                kind="estimated" if imputed else intake.kind,
                issued_at=meta.get("generated_at") if intake.kind == "forecast" else None,
            )

    def _get(self, path: str, query: dict[str, str]) -> Any:
        for attempt in range(2):
            if self._token is None:
                self._token = self._log_in()
            try:
                return self.client.get_json(
                    self.name, f"{self.address(ADDRESS)}{path}", query, {"Authorization": f"Bearer {self._token}"}
                )
            except UnauthorisedError:
                self._token = None  # it is valid for half an hour
                if attempt:
                    raise
        raise AssertionError("unreachable")

    def _log_in(self) -> str:
        account = self.key()
        user, colon, password = account.partition(":")
        if not (user and colon and password):
            raise ScenarioError("The key of watttime must be user name and password, written user:password.")
        self.client.hide(password)
        basic = base64.b64encode(account.encode()).decode()
        page = self.client.get_json(
            self.name, f"{self.address(ADDRESS)}/login", (), {"Authorization": f"Basic {basic}"}
        )
        token = page["token"]
        # It is sent in a header and hidden in every text; a token of one letter would hide that letter everywhere.
        if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
            raise BadAnswerError(f"{self.name} answered the log-in without a valid token.")
        return self.client.hide(token)


def _regions(option: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in option.split(";") if part]
    if any(not (zone and region) for zone, _, region in pairs):
        raise ScenarioError(f"watttime:{option} is not valid. Write watttime:ZONE=REGION, and several separated by ;.")
    return {zone.strip(): region.strip() for zone, _, region in pairs}
