"""Federated learning inside a carbon budget: which site trains in which hour, planned, proved and accounted for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater._version import __version__
from slackwater.carbon import Traces, available_zones, load_traces
from slackwater.errors import DataError, InfeasibleError, MissingExtraError, ScenarioError, SlackwaterError
from slackwater.planning.fleet import Client, Fleet
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem, Server

if TYPE_CHECKING:
    from slackwater.learning import Result, Samples, Task, baseline, register_aggregator, resume, tasks, train

__all__ = [
    "Client",
    "DataError",
    "Fleet",
    "InfeasibleError",
    "MissingExtraError",
    "Plan",
    "Problem",
    "Result",
    "Samples",
    "ScenarioError",
    "Server",
    "SlackwaterError",
    "Task",
    "Traces",
    "__version__",
    "available_zones",
    "baseline",
    "load_traces",
    "plan",
    "register_aggregator",
    "resume",
    "tasks",
    "train",
]

_TRAINING = ("Result", "Samples", "Task", "baseline", "register_aggregator", "resume", "tasks", "train")


def __getattr__(name: str) -> Any:
    """Training needs PyTorch, so it is imported when it is first asked for."""
    if name in _TRAINING:
        return getattr(import_module("slackwater.learning"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
