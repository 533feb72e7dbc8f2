"""Federated learning inside a carbon budget: which site trains in which hour, planned, proved and accounted for."""

from slackwater._version import __version__
from slackwater.carbon import Traces, available_zones, load_traces
from slackwater.errors import DataError, InfeasibleError, MissingExtraError, ScenarioError, SlackwaterError
from slackwater.planning.fleet import Client, Fleet
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem, Server

__all__ = [
    "Client",
    "DataError",
    "Fleet",
    "InfeasibleError",
    "MissingExtraError",
    "Plan",
    "Problem",
    "ScenarioError",
    "Server",
    "SlackwaterError",
    "Traces",
    "__version__",
    "available_zones",
    "load_traces",
    "plan",
]
