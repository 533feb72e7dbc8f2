"""Federated learning inside a carbon budget: which site trains in which hour, planned, proved and accounted for."""

from typing import TYPE_CHECKING

from slackwater._version import __version__
from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.accounting import Statement
    from slackwater.api import forecast, rehearse, run
    from slackwater.carbon import Traces, available_zones, load_traces
    from slackwater.config import Scenario, load_scenario
    from slackwater.errors import DataError, InfeasibleError, MissingExtraError, ScenarioError, SlackwaterError
    from slackwater.forecasting import register_forecaster
    from slackwater.lab.policies import register_policy
    from slackwater.learning import (
        Result,
        Samples,
        Task,
        TrainingDiverged,
        TrainingStopped,
        baseline,
        register_aggregator,
        resume,
        tasks,
        train,
    )
    from slackwater.learning.tasks import register_task
    from slackwater.ledger import Ledger, OverBudgetError, Run
    from slackwater.live import RunStopped
    from slackwater.planning.compare import compare
    from slackwater.planning.fleet import Client, Fleet
    from slackwater.planning.plan import Plan
    from slackwater.planning.planner import plan
    from slackwater.planning.problem import Problem, Server
    from slackwater.planning.savings import study as savings
    from slackwater.providers import ProviderError
    from slackwater.report.emissions import report

__all__ = [
    "Client", "DataError", "Fleet", "InfeasibleError", "Ledger", "MissingExtraError", "OverBudgetError", "Plan",
    "Problem", "ProviderError", "Result", "Run", "RunStopped", "Samples", "Scenario", "ScenarioError", "Server",
    "SlackwaterError", "Statement", "Task", "Traces", "TrainingDiverged", "TrainingStopped", "__version__",
    "available_zones", "baseline", "compare", "forecast", "load_scenario", "load_traces", "plan",
    "register_aggregator", "register_forecaster", "register_policy", "register_task", "rehearse", "report", "resume", "run", "savings",
    "tasks", "train",
]  # fmt: skip
# Which module defines which public names. A name is imported when it is first used.
_NAMES = {
    "accounting": "Statement",
    "api": "forecast rehearse run",
    "carbon": "Traces available_zones load_traces",
    "config": "Scenario load_scenario",
    "errors": "DataError InfeasibleError MissingExtraError ScenarioError SlackwaterError",
    "forecasting": "register_forecaster",
    "learning": "Result Samples Task TrainingDiverged TrainingStopped baseline register_aggregator resume tasks train",
    "learning.tasks": "register_task",
    "lab.policies": "register_policy",
    "ledger": "Ledger OverBudgetError Run",
    "live": "RunStopped",
    "planning.compare": "compare",
    "planning.fleet": "Client Fleet",
    "planning.plan": "Plan",
    "planning.planner": "plan",
    "planning.problem": "Problem Server",
    "providers": "ProviderError",
    "report": "report",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__getattr__ = lazily(__name__, _HOME | {"savings": "planning.savings:study"})


def __dir__() -> list[str]:
    return __all__
