"""Intensity from generation by fuel, for providers that publish no intensity: generation x emission factor."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime

from slackwater.intensity.providers.readings import Intake
from slackwater.intensity.traces import Factor, minute_of, moment

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


MAJOR = 0.02
"""A slot without a fuel of at least this share of the generation is incomplete: its intensity would be wrong."""
_MAY_BE_ABSENT = ("solar", "storage")
"""Fuels that may be missing: solar at night, and storage while it is filled."""


class Mix:
    """Collect the generation of one zone, then add the intensity to an intake."""

    def __init__(self, fuels: Mapping[str, str]) -> None:
        self._fuels = fuels
        self._given: list[tuple[str, int, int, float]] = []
        self._empty: dict[str, set[int]] = {}
        self._negative: Counter[str] = Counter()

    def add(self, code: str, start: datetime, minutes: int, power: object) -> None:
        """Add the mean power or energy of a fuel over a step, always in the same unit."""
        first = minute_of(start)
        try:
            value = float(power)  # type: ignore[arg-type]  # EIA sends numbers as text
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            self._empty.setdefault(code, set()).add(first)
            return
        if value < 0:
            # Own use at night, or filling of storage: nothing is generated.
            self._negative[code] += 1
            value = 0.0
        self._given.append((code, first, minutes, value))

    def pour(self, intake: Intake) -> None:
        """Add the intensity of every complete slot to an intake, with notes about the others."""
        step = min((minutes for _, _, minutes, _ in self._given), default=60)
        slots: dict[int, dict[str, float]] = {}
        total: defaultdict[str, float] = defaultdict(float)
        for code, first, minutes, value in self._given:
            total[code] += value * minutes
            for minute in range(first, first + minutes, step):
                slots.setdefault(minute, {})[code] = value
        needed = self._needed(total)
        incomplete = idle = 0
        for minute, slot in sorted(slots.items()):
            power = sum(slot.values())
            if needed - slot.keys():
                incomplete += 1
            elif power <= 0:
                idle += 1
            else:
                grams = sum(value * G_PER_KWH[self._fuel(code)][intake.factor] for code, value in slot.items())
                intake.add(moment(minute), step, grams / power, kind="actual")
        self._tell(intake, incomplete, idle, len(slots))

    def _needed(self, total: Mapping[str, float]) -> set[str]:
        """Return the fuels that a slot must have: those with a large share, and those that are always empty."""
        all_of_it = sum(total.values())
        major = {code for code, amount in total.items() if amount >= MAJOR * all_of_it}
        unheard = self._empty.keys() - total.keys()
        return {code for code in major | unheard if self._fuel(code) not in _MAY_BE_ABSENT}

    def _fuel(self, code: str) -> str:
        return self._fuels.get(code, "unknown")

    def _tell(self, intake: Intake, incomplete: int, idle: int, count: int) -> None:
        empty = Counter({code: len(minutes) for code, minutes in self._empty.items()})
        for counted, text in (
            (empty, "are missing; ignored"),
            (self._negative, "are negative (own use or filling of storage); counted as 0"),
        ):
            if counted:
                codes = ", ".join(sorted(counted))
                intake.note(f"{counted.total():,} values of generation ({codes}) {text}.")
        unknown = {code for code, *_ in self._given} - self._fuels.keys()
        if unknown:
            codes = ", ".join(sorted(unknown))
            intake.note(f"the fuel {codes} is unknown; it counts with the factor of unknown fuels.")
        if incomplete:
            intake.note(f"{incomplete:,} of {count:,} steps lack a main fuel, so they have no intensity yet.")
        if idle:
            intake.note(f"{idle:,} of {count:,} steps have no generation at all.")
