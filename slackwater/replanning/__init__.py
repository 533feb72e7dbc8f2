"""Planning under forecast error: re-plan the rest of a run as actuals arrive, and never exceed the budget."""

from slackwater.replanning.backtest import Backtest, backtest, past_plans_before, spread_starts, without_intensity
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.reserve import Bounds, PastPlans
from slackwater.replanning.run_state import Settings, State

__all__ = [
    "Backtest",
    "Bounds",
    "Controller",
    "PastPlans",
    "Settings",
    "State",
    "Step",
    "backtest",
    "past_plans_before",
    "spread_starts",
    "without_intensity",
]
