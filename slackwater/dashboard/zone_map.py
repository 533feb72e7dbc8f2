"""Approximate positions of grid zones: one point each, enough for a map without a map server.

Longitude and latitude near the middle of each zone, in degrees. Balancing areas of one region are moved apart so that
their points do not overlap. An unknown zone is listed beside the map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slackwater.charts.schedule_chart import has_times
from slackwater.dashboard.catalogue import Catalogue
from slackwater.dashboard.plans import most_slack
from slackwater.units import G_PER_KG, iso

PLACES: dict[str, tuple[float, float]] = {
    # Europe
    "AT": (14.1, 47.6), "BA": (17.8, 44.2), "BE": (4.6, 50.6), "BG": (25.2, 42.7), "CH": (8.2, 46.8), "CY": (33.2, 35.0),
    "CZ": (15.3, 49.8), "DE": (10.4, 51.1), "DK": (9.9, 55.9), "DK-BHM": (14.9, 55.1), "DK-DK1": (9.2, 56.2),
    "DK-DK2": (11.9, 55.5), "EE": (25.5, 58.7), "ES": (-3.6, 40.2), "FI": (26.0, 63.5), "FR": (2.5, 46.6), "GB": (-1.6, 52.8),
    "GB-NIR": (-6.7, 54.6), "GR": (22.4, 39.4), "HR": (16.2, 45.4), "HU": (19.4, 47.2), "IE": (-8.1, 53.2), "IS": (-18.7, 64.9),
    "IT": (12.5, 42.8), "IT-CNO": (12.2, 43.4), "IT-CSO": (13.4, 41.6), "IT-NO": (9.8, 45.3), "IT-SAR": (9.0, 40.1),
    "IT-SIC": (14.2, 37.5), "IT-SO": (16.3, 40.4), "LT": (23.9, 55.3), "LU": (6.1, 49.8), "LV": (25.0, 56.9), "ME": (19.3, 42.8),
    "MK": (21.7, 41.6), "NL": (5.4, 52.3), "NO": (8.8, 61.2), "NO-NO1": (10.9, 60.3), "NO-NO2": (7.6, 58.8),
    "NO-NO3": (10.3, 63.3), "NO-NO4": (17.6, 68.2), "NO-NO5": (6.3, 60.6), "PL": (19.3, 52.1), "PT": (-8.2, 39.6), "RO": (24.9, 45.8),
    "RS": (20.8, 44.1), "SE": (15.6, 62.4), "SE-SE1": (20.0, 66.6), "SE-SE2": (15.8, 63.6), "SE-SE3": (15.2, 59.5),
    "SE-SE4": (14.2, 56.5), "SI": (14.8, 46.1), "SK": (19.5, 48.7), "TR": (35.2, 39.0), "UA": (31.4, 49.0),
    # Asia and Oceania
    "AU": (134.0, -25.0), "AU-NSW": (147.0, -32.2), "AU-QLD": (144.5, -22.5), "AU-SA": (135.5, -30.2), "AU-TAS": (146.6, -42.0),
    "AU-VIC": (144.3, -36.9), "AU-WA": (121.5, -27.0), "IN": (79.0, 22.0), "IN-MH": (76.3, 19.4), "IN-WE": (72.5, 22.8),
    "JP-KN": (135.6, 34.8), "JP-TK": (139.7, 35.7), "KR": (127.8, 36.3), "NZ": (172.5, -41.5), "SG": (103.8, 1.35), "TW": (121.0, 23.7),
    "VN": (106.3, 16.2),
    # Central and South America, Africa
    "BR": (-53.0, -10.8), "BR-CS": (-48.5, -18.8), "BR-N": (-52.5, -3.5), "BR-NE": (-40.5, -8.0), "BR-S": (-52.0, -27.5),
    "CL-SEN": (-70.6, -33.0), "PA": (-80.1, 8.5), "UY": (-56.0, -32.8), "ZA": (24.7, -29.0),
    # North America
    "CA": (-106.0, 56.0), "CA-ON": (-85.5, 50.0), "CA-QC": (-72.0, 52.5), "US-CAL-BANC": (-121.3, 39.2), "US-CAL-CISO": (-119.6, 36.9),
    "US-CAL-LDWP": (-118.3, 34.1), "US-CAL-TIDC": (-120.8, 37.6), "US-CAR-CPLE": (-78.3, 35.3), "US-CAR-CPLW": (-82.6, 35.6),
    "US-CAR-DUK": (-80.8, 35.6), "US-CAR-SC": (-79.9, 33.3), "US-CAR-SCEG": (-81.2, 33.9), "US-CENT-SWPP": (-98.0, 37.6),
    "US-FLA-FMPP": (-81.4, 28.5), "US-FLA-FPC": (-82.6, 29.2), "US-FLA-FPL": (-80.5, 26.7), "US-FLA-GVL": (-82.2, 29.8),
    "US-FLA-JEA": (-81.6, 30.4), "US-FLA-TAL": (-84.3, 30.5), "US-FLA-TEC": (-82.3, 27.8), "US-HI-OA": (-158.0, 21.5),
    "US-MIDA-PJM": (-78.5, 40.0), "US-MIDW-AECI": (-92.8, 37.6), "US-MIDW-LGEE": (-85.3, 37.8), "US-MIDW-MISO": (-90.6, 42.2),
    "US-NE-ISNE": (-71.6, 43.3), "US-NY-NYIS": (-75.3, 42.9), "US-NW-BPAT": (-119.9, 45.9), "US-NW-GRID": (-121.4, 45.3),
    "US-NW-IPCO": (-115.2, 43.4), "US-NW-NEVP": (-116.4, 38.9), "US-NW-NWMT": (-110.0, 46.9), "US-NW-PACE": (-111.5, 40.6),
    "US-NW-PGE": (-122.6, 44.9), "US-NW-PSCO": (-104.6, 39.2), "US-NW-PSEI": (-121.9, 48.0), "US-NW-TPWR": (-122.4, 47.0),
    "US-NW-WACM": (-106.2, 41.4), "US-SW-AZPS": (-111.9, 34.7), "US-SW-EPE": (-106.1, 31.9), "US-SW-PNM": (-106.4, 34.9),
    "US-SW-SRP": (-111.5, 33.4), "US-SW-TEPC": (-110.8, 32.1), "US-SW-WALC": (-114.0, 35.2), "US-TEN-TVA": (-86.8, 35.6),
    "US-TEX-ERCO": (-98.6, 31.2),
}  # fmt: skip


def place(zone: str) -> tuple[float, float] | None:
    """Return longitude and latitude of a zone; None for an unknown subzone, even if its country is known."""
    return PLACES.get(zone)


def map_answer(library: Catalogue, source: str) -> dict[str, Any]:
    """Return every zone with its place (None if unknown), intensity by slot and number of clients."""
    problem = library.problem(source).problem
    wide = problem.with_settings(slack=most_slack(problem))
    names, counts = np.unique(np.asarray(problem.fleet.zone, dtype=str), return_counts=True)
    zones = []
    for row, (zone, clients) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
        where = place(zone)
        zones.append(
            {
                "zone": zone,
                "longitude": None if where is None else where[0],
                "latitude": None if where is None else where[1],
                "clients": clients,
                "intensity_g_per_kwh": np.round(wide.costs.intensity[row] * G_PER_KG, 2).tolist(),
            }
        )
    return {
        "source": source,
        "start": iso(problem.first_slot) if has_times(problem) else None,
        "slot_minutes": problem.traces.slot_minutes,
        "slots": wide.horizon,
        "synthetic": problem.traces.synthetic,
        "zones": zones,
    }
