"""What the user says about a report that the ledger cannot know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from slackwater.errors import ScenarioError

RUN, TOKEN, FLOP = "training run", "training token", "FLOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """Choices for SCI, the annual means and the uncertainty, and who reports; checked here for every way in."""

    functional_unit: str = RUN
    """What SCI is per: `training run`, `round`, `client-round`, `accuracy point`, `training token` with `tokens`, `FLOP`
    with `flops`, or a text of one's own with `units`."""
    units: float | None = None
    """R, how many functional units the run made; None counts it where the run knows it."""
    embodied_kg: float | None = None
    """TE of one client's device, kg CO2e."""
    embodied_total_kg: float | None = None
    """M of everything, kg CO2e, instead."""
    lifetime_years: float = 4.0
    """EL, of a device."""
    pue: float | None = None
    """Of the sites for which the scenario says none."""
    data: str | None = None
    """CSV file or folder with a year of intensity, for annual means."""
    intensity_uncertainty: float | None = None
    """Relative, 0.1 for +- 10 %; of the intensity."""
    energy_uncertainty: float | None = None
    """Relative, of the energy."""
    tokens: float | None = None
    """Tokens that the run was trained on, all clients together; SCI is then also given per training token."""
    flops: float | None = None
    """Floating-point operations of the run; SCI is then also given per FLOP."""
    organisation: str | None = None
    """Whose report it is; None takes the scenario's [report]."""
    preparer: str | None = None
    """Who prepared it; None takes the scenario's [report]."""
    prepared_on: date | None = None
    """Date of the report; None is today, UTC."""

    def __post_init__(self) -> None:
        if not self.functional_unit.strip():
            raise ScenarioError("The functional unit is empty. Say what SCI is per, like 'training run' or 'round'.")
        self._least("units", self.units, above=True)
        self._least("embodied_kg", self.embodied_kg)
        self._least("embodied_total_kg", self.embodied_total_kg)
        self._least("lifetime", self.lifetime_years, above=True)
        self._least("pue", self.pue, 1.0)
        self._least("intensity uncertainty", self.intensity_uncertainty)
        self._least("energy uncertainty", self.energy_uncertainty)
        self._least("tokens", self.tokens, above=True)
        self._least("flops", self.flops, above=True)
        if self.embodied_kg is not None and self.embodied_total_kg is not None:
            raise ScenarioError("Give embodied emissions by device or in total, not both.")

    @staticmethod
    def _least(name: str, value: float | None, least: float = 0.0, *, above: bool = False) -> None:
        if value is None or (math.isfinite(value) and (value > least if above else value >= least)):
            return
        raise ScenarioError(
            f"{name} is {value:g}; it must be a number {'above' if above else 'of at least'} {least:g}."
        )
