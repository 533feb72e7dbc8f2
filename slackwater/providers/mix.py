"""Intensity from generation by fuel: sum of generation x factor over sum of generation, slot by slot."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime

from slackwater.carbon.series import minute_of, moment
from slackwater.providers.factors import G_PER_KWH
from slackwater.providers.intake import Intake

MAJOR = 0.02
"""A fuel with at least this share of the generation must be there in a slot; without it the intensity would be wrong."""
_MAY_BE_ABSENT = ("solar", "storage")
"""Solar is often left out at night and storage while it is filled, where their absence is right."""


class Mix:
    """Collect the generation of one zone, then add the intensity to an intake."""

    def __init__(self, fuels: Mapping[str, str]) -> None:
        self._fuels = fuels
        self._given: list[tuple[str, int, int, float]] = []
        self._empty: dict[str, set[int]] = {}
        self._negative: Counter[str] = Counter()

    def add(self, code: str, start: datetime, minutes: int, power: object) -> None:
        """Add the mean power or energy of a fuel over a step, in any unit, always the same."""
        first = minute_of(start)
        try:
            value = float(power)  # type: ignore[arg-type]  # EIA gives numbers as text
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            self._empty.setdefault(code, set()).add(first)
            return
        if value < 0:
            # Own use at night, or storage that is being filled: nothing is generated.
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
        """Return the fuels that a slot must have: those with a share, and those that are always empty."""
        all_of_it = sum(total.values())
        major = {code for code, amount in total.items() if amount >= MAJOR * all_of_it}
        unheard = self._empty.keys() - total.keys()
        return {code for code in major | unheard if self._fuel(code) not in _MAY_BE_ABSENT}

    def _fuel(self, code: str) -> str:
        return self._fuels.get(code, "unknown")

    def _tell(self, intake: Intake, incomplete: int, idle: int, count: int) -> None:
        empty = Counter({code: len(minutes) for code, minutes in self._empty.items()})
        for counted, text in (
            (empty, "are missing; left out"),
            (self._negative, "are negative (own use or storage being filled); taken as 0"),
        ):
            if counted:
                codes = ", ".join(sorted(counted))
                intake.note(f"{counted.total():,} values of generation ({codes}) {text}.")
        unknown = {code for code, *_ in self._given} - self._fuels.keys()
        if unknown:
            codes = ", ".join(sorted(unknown))
            intake.note(f"the fuel {codes} is not known; counted with the factor of unknown fuels.")
        if incomplete:
            intake.note(f"{incomplete:,} of {count:,} steps lack a fuel that matters, so they have no intensity yet.")
        if idle:
            intake.note(f"{idle:,} of {count:,} steps have no generation at all.")
