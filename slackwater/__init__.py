"""Federated learning inside a carbon budget: which site trains in which hour, planned, proved and accounted for."""

from typing import TYPE_CHECKING

from slackwater._version import __version__
from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.engines.start import forecast, rehearse, run
    from slackwater.errors import DataError, InfeasibleError, MissingExtraError, ScenarioError, SlackwaterError
    from slackwater.intensity.forecast.forecasters import register_forecaster
    from slackwater.intensity.load import available_zones, load_traces
    from slackwater.intensity.prices import Prices
    from slackwater.intensity.providers.chain import register_provider
    from slackwater.intensity.providers.provider_errors import ProviderError
    from slackwater.intensity.traces import Traces
    from slackwater.lab.policies import compare_methods, register_policy
    from slackwater.ledger.ledger import Ledger, OverBudgetError
    from slackwater.ledger.run import Run
    from slackwater.live.folder import RunStopped
    from slackwater.planning.advice import Advice, advise
    from slackwater.planning.fleet import Client, Fleet, Level
    from slackwater.planning.plan import Plan
    from slackwater.planning.planner import compare, plan
    from slackwater.planning.problem import Problem, Server
    from slackwater.planning.savings import study as savings
    from slackwater.report.statement import Statement
    from slackwater.report.write import report
    from slackwater.scenario import Scenario, load_scenario
    from slackwater.training import tasks
    from slackwater.training.aggregators import register_aggregator
    from slackwater.training.loop import Result, TrainingDiverged, TrainingStopped, baseline, resume, train
    from slackwater.training.scoring import Metric
    from slackwater.training.task import LocalStep, Samples, Task
    from slackwater.training.tasks import register_task

__all__ = [
    "Advice", "Client", "DataError", "Fleet", "InfeasibleError", "Ledger", "Level", "LocalStep", "Metric", "MissingExtraError",
    "OverBudgetError", "Plan", "Prices", "Problem", "ProviderError", "Result", "Run", "RunStopped", "Samples", "Scenario",
    "ScenarioError", "Server",
    "SlackwaterError", "Statement", "Task", "Traces", "TrainingDiverged", "TrainingStopped", "__version__",
    "advise", "available_zones", "baseline", "compare", "compare_methods", "forecast", "load_scenario", "load_traces", "plan",
    "register_aggregator", "register_forecaster", "register_policy", "register_provider", "register_task", "rehearse",
    "report", "resume", "run", "savings", "tasks", "train",
]  # fmt: skip
# Which module defines which public names. A name is imported when it is first used.
_NAMES = {
    "engines.start": "forecast rehearse run",
    "errors": "DataError InfeasibleError MissingExtraError ScenarioError SlackwaterError",
    "intensity.forecast": "register_forecaster",
    "intensity.load": "available_zones load_traces",
    "intensity.providers": "ProviderError register_provider",
    "intensity.prices": "Prices",
    "intensity.traces": "Traces",
    "lab.policies": "compare_methods register_policy",
    "ledger": "Ledger OverBudgetError Run",
    "live": "RunStopped",
    "planning.advice": "Advice advise",
    "planning.fleet": "Client Fleet Level",
    "planning.plan": "Plan",
    "planning.planner": "compare plan",
    "planning.problem": "Problem Server",
    "report": "report",
    "report.statement": "Statement",
    "scenario": "Scenario load_scenario",
    "training": "LocalStep Metric Result Samples Task TrainingDiverged TrainingStopped baseline register_aggregator resume tasks train",
    "training.tasks": "register_task",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__getattr__ = lazily(__name__, _HOME | {"savings": "planning.savings:study"})


def __dir__() -> list[str]:
    return __all__
