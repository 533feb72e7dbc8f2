"""Planning under forecast error: re-plan what is left as the truth comes in, and never spend more than the budget."""

from slackwater.replanning.backtest import Backtest, backtest, blind, replay_before, spread_starts
from slackwater.replanning.controller import Controller, Step
from slackwater.replanning.reserve import Bounds, Replay
from slackwater.replanning.run_state import Settings, State

__all__ = [
    "Backtest",
    "Bounds",
    "Controller",
    "Replay",
    "Settings",
    "State",
    "Step",
    "backtest",
    "blind",
    "replay_before",
    "spread_starts",
]
