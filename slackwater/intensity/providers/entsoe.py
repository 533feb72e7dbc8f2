"""ENTSO-E's transparency platform: generation by type of most of Europe, times emission factors. Needs a token.

Production-based: imports and exports are not traced, so a zone that imports much differs from Electricity Maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from xml.etree import ElementTree

from slackwater.intensity.providers.base import Provider, pieces
from slackwater.intensity.providers.generation_mix import ENTSOE_FUELS, Mix
from slackwater.intensity.providers.provider_errors import BadAnswerError, RefusedError
from slackwater.intensity.providers.readings import STEPS, Intake

ADDRESS = "https://web-api.tp.entsoe.eu/api"
LONGEST_RANGE = timedelta(days=31)
"""Longest range of a request. A year is allowed, but its answer has about 40 MB."""
_LONGEST_PERIOD = LONGEST_RANGE + timedelta(days=2)
"""Longest period of an answer, which is rounded to whole days."""
_MOST_POINTS = 1_000_000
"""Most points of an answer; a month of five-minute values of 20 fuels, with storage, has 360,000."""
_DURATION = re.compile(r"PT(?:(\d{1,3})H)?(?:(\d{1,3})M)?", re.ASCII)
_NO_DATA = "No matching data found"
# fmt: off
AREAS = {
    "AL": "10YAL-KESH-----5", "AT": "10YAT-APG------L", "BA": "10YBA-JPCC-----D", "BE": "10YBE----------2",
    "BG": "10YCA-BULGARIA-R", "CH": "10YCH-SWISSGRIDZ", "CY": "10YCY-1001A0003J", "CZ": "10YCZ-CEPS-----N",
    "DE": "10Y1001A1001A83F", "DK-DK1": "10YDK-1--------W", "DK-DK2": "10YDK-2--------M", "EE": "10Y1001A1001A39I",
    "ES": "10YES-REE------0", "FI": "10YFI-1--------U", "FR": "10YFR-RTE------C", "GB-NIR": "10Y1001A1001A016",
    "GE": "10Y1001A1001B012", "GR": "10YGR-HTSO-----Y", "HR": "10YHR-HEP------M", "HU": "10YHU-MAVIR----U",
    "IE": "10YIE-1001A00010", "IT-CNO": "10Y1001A1001A70O", "IT-CSO": "10Y1001A1001A71M", "IT-NO": "10Y1001A1001A73I",
    "IT-SAR": "10Y1001A1001A74G", "IT-SIC": "10Y1001A1001A75E", "IT-SO": "10Y1001A1001A788", "LT": "10YLT-1001A0008Q",
    "LU": "10YLU-CEGEDEL-NQ", "LV": "10YLV-1001A00074", "MD": "10Y1001A1001A990", "ME": "10YCS-CG-TSO---S",
    "MK": "10YMK-MEPSO----8", "NL": "10YNL----------L", "NO-NO1": "10YNO-1--------2", "NO-NO2": "10YNO-2--------T",
    "NO-NO3": "10YNO-3--------J", "NO-NO4": "10YNO-4--------9", "NO-NO5": "10Y1001A1001A48H",
    "PL": "10YPL-AREA-----S", "PT": "10YPT-REN------W", "RO": "10YRO-TEL------P", "RS": "10YCS-SERBIATSOV",
    "SE-SE1": "10Y1001A1001A44P", "SE-SE2": "10Y1001A1001A45N", "SE-SE3": "10Y1001A1001A46L",
    "SE-SE4": "10Y1001A1001A47J", "SI": "10YSI-ELES-----O", "SK": "10YSK-SEPS-----K", "UA": "10Y1001C--00003F",
    "XK": "10Y1001C--00100H",
}
# fmt: on
"""EIC codes by our zones. Germany is the country, since Luxembourg is its own zone here."""


class Entsoe(Provider):
    """Actual generation per type (A75, A16). There is no forecast for all types, so none of the intensity."""

    name = "entsoe"
    factors = ("lifecycle", "direct")
    kinds = ("actual",)

    def covers(self, zone: str) -> bool:
        """Return whether the zone has an EIC code."""
        return zone in AREAS

    def read(self, intake: Intake) -> None:
        """Read month by month."""
        mix = Mix(ENTSOE_FUELS)
        try:
            for start, end in pieces(intake.start, intake.end, LONGEST_RANGE):
                for code, when, minutes, quantity in self._points(self._document(intake.zone, start, end)):
                    mix.add(code, intake.time(when), minutes, quantity)
        finally:
            mix.pour(intake)

    def _document(self, zone: str, start: datetime, end: datetime) -> ElementTree.Element | None:
        query = {
            "securityToken": self.key(),
            "documentType": "A75",
            "processType": "A16",
            "in_Domain": AREAS[zone],
            "periodStart": f"{start:%Y%m%d%H%M}",
            "periodEnd": f"{end:%Y%m%d%H%M}",
        }
        try:
            body = self.client.get(self.name, self.address(ADDRESS), query, expects="xml")
        except RefusedError as error:
            if _NO_DATA.lower() in error.detail.lower():
                return None
            raise
        try:
            text = body.decode("utf-8")  # a document type could hide in another encoding
        except UnicodeDecodeError:
            raise BadAnswerError(f"{self.name} returned XML that is not in UTF-8. It is not used.") from None
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise BadAnswerError(f"{self.name} returned XML with a document type, which is unexpected. It is not used.")
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError:
            raise BadAnswerError(
                f"{self.name} returned {len(body):,} bytes that are not complete XML. Try again later."
            ) from None
        if _name(root) == "Acknowledgement_MarketDocument":
            said = self.client.clean(_text(root, "Reason", "text") or "no reason given")
            if _NO_DATA.lower() in said.lower():  # with status 200
                return None
            raise RefusedError(f"{self.name} rejected the request ({said[:160]}).", said)
        if _name(root) != "GL_MarketDocument":
            raise BadAnswerError(f"{self.name} returned a document of another type than requested.")
        return root

    def _points(self, root: ElementTree.Element | None) -> Iterator[tuple[str, datetime, int, str | None]]:
        """Yield fuel, start, minutes and quantity of every point; None where a point is missing."""
        count = 0
        for series in _children(root, "TimeSeries"):
            if _text(series, "outBiddingZone_Domain.mRID") is not None:
                continue  # consumption, of pumped storage
            code = self.client.clean(_text(series, "MktPSRType", "psrType") or "none")[:12]
            repeats = _text(series, "curveType") == "A03"
            for period in _children(series, "Period"):
                start = datetime.fromisoformat(_text(period, "timeInterval", "start") or "")
                end = datetime.fromisoformat(_text(period, "timeInterval", "end") or "")
                minutes = _minutes(_text(period, "resolution") or "")
                if end - start > _LONGEST_PERIOD:
                    days = f"{(end - start).days:,} days instead of {LONGEST_RANGE.days}"
                    raise BadAnswerError(f"{self.name} returned a period of {days}.")
                count += max((end - start) // timedelta(minutes=minutes), 0)
                if count > _MOST_POINTS:
                    what = f"more than {_MOST_POINTS:,} points for a month"
                    raise BadAnswerError(f"{self.name} returned {what}. They are not used.")
                points = _children(period, "Point")
                given = {int(_text(point, "position") or ""): _text(point, "quantity") for point in points}
                last: str | None = None
                for position in range(1, (end - start) // timedelta(minutes=minutes) + 1):
                    # In curves of type A03, a point holds until the next one.
                    last = given.get(position, last if repeats else None)
                    yield code, start + (position - 1) * timedelta(minutes=minutes), minutes, last


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _children(element: ElementTree.Element | None, name: str) -> list[ElementTree.Element]:
    return [] if element is None else [child for child in element if _name(child) == name]


def _text(element: ElementTree.Element, *path: str) -> str | None:
    for name in path:
        found = _children(element, name)
        if not found:
            return None
        element = found[0]
    return (element.text or "").strip()


def _minutes(duration: str) -> int:
    match = _DURATION.fullmatch(duration)
    minutes = 60 * int(match[1] or 0) + int(match[2] or 0) if match else 0
    if minutes not in STEPS:
        raise BadAnswerError(f"entsoe returned values of another length than {STEPS} minutes.")
    return minutes
