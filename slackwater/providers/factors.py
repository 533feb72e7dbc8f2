"""What a kWh from each fuel emits: for providers that publish generation and leave the intensity to us.

Life-cycle: medians of IPCC AR5 WG III, Annex III, table A.III.2 (coal 820, gas 490, biomass 230, geothermal 38, hydro 24,
ocean 17, nuclear 12, wind 11 onshore and 12 offshore; solar 45, between rooftop's 41 and utility's 48). Oil: median of
IPCC SRREN (2011), Annex II, table A.II.4. Direct: the same table of AR5 for coal and gas; oil from IPCC's 2006 guidelines,
77.4 kg/GJ of residual fuel oil at an efficiency of 38 %. Unknown: Electricity Maps' default. Lignite, peat and oil shale
count as coal, which is too little by up to a quarter; waste counts as biomass, as Electricity Maps has it. Storage gives
back what it took, of unknown origin; it counts as water power.
"""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.carbon.traces import Factor

G_PER_KWH: Mapping[str, Mapping[Factor, float]] = {
    "coal": {"lifecycle": 820.0, "direct": 760.0},
    "gas": {"lifecycle": 490.0, "direct": 370.0},
    "oil": {"lifecycle": 840.0, "direct": 733.0},
    "biomass": {"lifecycle": 230.0, "direct": 0.0},
    "nuclear": {"lifecycle": 12.0, "direct": 0.0},
    "hydro": {"lifecycle": 24.0, "direct": 0.0},
    "storage": {"lifecycle": 24.0, "direct": 0.0},
    "wind": {"lifecycle": 11.0, "direct": 0.0},
    "wind offshore": {"lifecycle": 12.0, "direct": 0.0},
    "solar": {"lifecycle": 45.0, "direct": 0.0},
    "geothermal": {"lifecycle": 38.0, "direct": 0.0},
    "ocean": {"lifecycle": 17.0, "direct": 0.0},
    "unknown": {"lifecycle": 700.0, "direct": 575.0},
}
"""By fuel and factor, g CO2e/kWh."""

ENTSOE_FUELS: Mapping[str, str] = {
    "B01": "biomass",
    "B02": "coal",  # lignite
    "B03": "coal",  # gas from coal
    "B04": "gas",
    "B05": "coal",
    "B06": "oil",
    "B07": "coal",  # oil shale
    "B08": "coal",  # peat
    "B09": "geothermal",
    "B10": "storage",
    "B11": "hydro",
    "B12": "hydro",
    "B13": "ocean",
    "B14": "nuclear",
    "B15": "biomass",  # other renewables, most of it biogas
    "B16": "solar",
    "B17": "biomass",  # waste
    "B18": "wind offshore",
    "B19": "wind",
    "B20": "unknown",
    "B25": "storage",
}
"""By PSR type."""

EIA_FUELS: Mapping[str, str] = {
    "SUN": "solar",
    "SNB": "solar",  # with a battery
    "WND": "wind",
    "WNB": "wind",
    "NG": "gas",
    "COL": "coal",
    "NUC": "nuclear",
    "WAT": "hydro",
    "OIL": "oil",
    "GEO": "geothermal",
    "PS": "storage",
    "BAT": "storage",
    "OES": "storage",
    "UES": "storage",
    "OTH": "unknown",
    "UNK": "unknown",
}
"""By the API's fuel type."""
