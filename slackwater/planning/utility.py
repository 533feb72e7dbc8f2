"""The alpha-fair utility of a client, and its limits for alpha -> 0 (log) and beyond (max-min)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError

Alpha = float | str
ALPHA_ABOVE_MAX_MIN = 0.1
"""Exponent of the objective above the max-min level where none is named: the paper's choice."""


NOISE = 1e-11
"""Share of g_max below which a utility is rounding noise: n g_max - (sum of n costs) of equal numbers is not quite 0."""


def utilities(
    slots: NDArray[Any], spent_kg: NDArray[np.float64], g_max: float, base: NDArray[np.float64] | float = 0.0
) -> NDArray[np.float64]:
    """u = base + sum of (g_max - g) over a client's slots, from their number and their cost."""
    u = base + slots * g_max - spent_kg
    return np.where(u > NOISE * g_max, u, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """f(u) of a client's u = sum of (g_max - g) over its slots; increasing and concave on the values u can take.

    For `log`, f(0) = 0 and f(u) = lift + log(u / floor), with `floor` at most the least positive u and `lift` more than all logarithms of
    a schedule can differ by: the sum of f then ranks first by how many clients have a positive utility, then by the log sum.
    """

    kind: str
    alpha: float
    floor: float = 1.0
    lift: float = 0.0

    @classmethod
    def parse(cls, alpha: Alpha) -> Utility:
        """From a number in (0, 1], "log", "max-min" or "max-min:<alpha>"."""
        if isinstance(alpha, str):
            name, _, above = alpha.strip().lower().partition(":")
            if name == "log" and not above:
                return cls(kind="log", alpha=0.0)
            if name == "max-min":
                return cls(kind="max-min", alpha=_exponent(above or ALPHA_ABOVE_MAX_MIN))
        return cls(kind="power", alpha=_exponent(alpha))

    def scaled(self, *, clients: int, least: float, largest: float) -> Utility:
        """The same utility with the numbers that `log` needs: least positive and largest u that any client can have."""
        if self.kind != "log" or least <= 0:
            return self
        return Utility(kind="log", alpha=0.0, floor=least, lift=1.0 + clients * float(np.log(largest / least) + 1.0))

    def of(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """f(u), elementwise."""
        if self.kind != "log":
            return u if self.alpha == 1.0 else np.power(u, self.alpha)
        positive = u > 0
        safe = np.where(positive, np.maximum(u, self.floor) / self.floor, 1.0)
        return np.where(positive, self.lift + np.log(safe), 0.0)

    def slope(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """f'(u) for u > 0."""
        return 1.0 / u if self.kind == "log" else self.alpha * np.power(u, self.alpha - 1.0)

    def reported(self, total: float, positive: int) -> float:
        """What the user calls the objective, from a sum of f over clients of which `positive` have u > 0."""
        return total if self.kind != "log" else total - positive * (self.lift - float(np.log(self.floor)))


def _exponent(alpha: object) -> float:
    try:
        value = float(alpha)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = np.nan
    if not 0 < value <= 1:
        raise ScenarioError(
            f"alpha must be above 0 and at most 1, or 'log', 'max-min' or 'max-min:0.5'; it is {alpha!r}."
        )
    return value
