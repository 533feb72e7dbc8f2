"""Digits: always to the gram, finer where the run is small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.accounting.account import NEAR_ZERO_KG


@dataclass(frozen=True, slots=True)
class Kilograms:
    """Writes kg with the same decimals all through a report."""

    decimals: int

    @classmethod
    def for_total(cls, total_kg: float) -> Kilograms:
        """Use three decimals, which are grams; small runs get more, so that their clients differ."""
        return cls(3 if abs(total_kg) >= 100 else 4 if abs(total_kg) >= 1 else 6)

    def adding_up(self, parts: Sequence[float], total: float, *, since: float = 0.0) -> list[str]:
        """Write parts so that, as shown, they add up to the difference of two sums; the largest takes what rounding left."""
        counts = [self._count(part) for part in parts]
        if counts:
            largest = max(range(len(counts)), key=lambda number: abs(counts[number]))
            counts[largest] += self._count(total) - self._count(since) - sum(counts)
        return [self(count / 10.0**self.decimals) for count in counts]

    def _count(self, kg: float) -> int:
        """Return how many of the smallest shown amount it is."""
        return round(round(round(kg, 9), self.decimals) * 10.0**self.decimals)

    def __call__(self, kg: float, *, sign: bool = False) -> str:
        """Return the kg as text; 0 has no minus."""
        # By way of micrograms, so that two sums of the same numbers in another order are not rounded apart.
        rounded = round(round(kg, 9), self.decimals) + 0.0
        return f"{rounded:+,.{self.decimals}f}" if sign and rounded else f"{rounded:,.{self.decimals}f}"


def percent_change(value: float, reference: float) -> str:
    """Return the change against the reference in per cent, with a true minus; empty if the reference is almost 0."""
    if not math.isfinite(reference) or abs(reference) < NEAR_ZERO_KG:
        return ""
    return f"{100 * (value - reference) / reference:+.1f} %".replace("-", "\N{MINUS SIGN}")
