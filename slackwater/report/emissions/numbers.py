"""Digits: always to the gram, finer where the run is small."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kilograms:
    """Writes kg with the same decimals all through a report."""

    decimals: int

    @classmethod
    def for_total(cls, total_kg: float) -> Kilograms:
        """Three decimals are grams; small runs get more, so that their clients differ."""
        return cls(3 if abs(total_kg) >= 100 else 4 if abs(total_kg) >= 1 else 6)

    def __call__(self, kg: float, *, sign: bool = False) -> str:
        """Without a minus before nothing."""
        # By way of micrograms, so that two sums of the same numbers in another order are not rounded apart.
        rounded = round(round(kg, 9), self.decimals) + 0.0
        return f"{rounded:+,.{self.decimals}f}" if sign and rounded else f"{rounded:,.{self.decimals}f}"


def percent_change(value: float, reference: float) -> str:
    """How much more or less than the reference, with a true minus."""
    return f"{100 * (value - reference) / reference:+.1f} %".replace("-", "\N{MINUS SIGN}")
