"""How a run is steered while forecasts err."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Chosen on part of the back-tests of docs/replanning.md and judged on the others."""

    replan_slots: int | None = 1
    """Plan anew after so many slots, and once more when the fine-tuning window is due; None is never."""
    reserve: float = 0.6
    """Probability with which the remaining plan is meant to cost no more than what is left; 0 keeps nothing back."""
    margin: float = 1.5
    """How far beyond the largest rise and the highest level seen the upper bound lies."""
    lookback_days: int = 28
    """How much of the past the upper bound looks at."""

    def __post_init__(self) -> None:
        if self.replan_slots is not None and self.replan_slots < 1:
            raise ScenarioError(f"replan_slots is {self.replan_slots}; re-plan every 1 or more slots, or never (None).")
        if self.reserve != 0 and not 0.5 <= self.reserve < 1:
            raise ScenarioError(
                f"reserve is {self.reserve}; give a probability from 0.5 to below 1, or 0 to keep nothing back."
            )
        if not 1 <= self.margin <= 10:
            raise ScenarioError(f"The bound's margin is {self.margin}; give a factor from 1 to 10, like 1.5.")
        if self.lookback_days < 7:
            raise ScenarioError(f"lookback_days is {self.lookback_days}; the bound needs to look at 7 days or more.")
