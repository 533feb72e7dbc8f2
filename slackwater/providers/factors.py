"""What a kWh from each fuel emits, for providers that publish generation but no intensity.

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

# fmt: off
_GRAMS: Mapping[str, tuple[float, float]] = {  # life-cycle, direct
    "coal": (820.0, 760.0), "gas": (490.0, 370.0), "oil": (840.0, 733.0), "biomass": (230.0, 0.0),
    "nuclear": (12.0, 0.0), "hydro": (24.0, 0.0), "storage": (24.0, 0.0), "wind": (11.0, 0.0),
    "wind offshore": (12.0, 0.0), "solar": (45.0, 0.0), "geothermal": (38.0, 0.0), "ocean": (17.0, 0.0),
    "unknown": (700.0, 575.0),
}
G_PER_KWH: Mapping[str, Mapping[Factor, float]] = {
    fuel: {"lifecycle": lifecycle, "direct": direct} for fuel, (lifecycle, direct) in _GRAMS.items()
}
"""By fuel and factor, g CO2e/kWh."""
ENTSOE_FUELS: Mapping[str, str] = {
    "B01": "biomass", "B02": "coal", "B03": "coal", "B04": "gas", "B05": "coal", "B06": "oil", "B07": "coal",
    "B08": "coal", "B09": "geothermal", "B10": "storage", "B11": "hydro", "B12": "hydro", "B13": "ocean",
    "B14": "nuclear", "B15": "biomass", "B16": "solar", "B17": "biomass", "B18": "wind offshore", "B19": "wind",
    "B20": "unknown", "B25": "storage",
}
"""By PSR type. B02 is lignite, B03 gas from coal, B07 oil shale, B08 peat, B15 other renewables (mostly biogas), B17 waste."""
EIA_FUELS: Mapping[str, str] = {
    "SUN": "solar", "SNB": "solar", "WND": "wind", "WNB": "wind", "NG": "gas", "COL": "coal", "NUC": "nuclear",
    "WAT": "hydro", "OIL": "oil", "GEO": "geothermal", "PS": "storage", "BAT": "storage", "OES": "storage",
    "UES": "storage", "OTH": "unknown", "UNK": "unknown",
}
"""By the API's fuel type; SNB and WNB have a battery."""
# fmt: on
