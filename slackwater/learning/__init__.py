"""Training by a schedule. Nothing here is imported, PyTorch least of all, before it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.errors import MissingExtraError

if TYPE_CHECKING:
    from slackwater.learning import tasks
    from slackwater.learning.aggregators import Aggregate, Aggregator, Participation
    from slackwater.learning.loop import baseline, resume, train
    from slackwater.learning.registry import aggregator_names, make_aggregator, register_aggregator
    from slackwater.learning.result import Progress, Result, TrainingDiverged, TrainingStopped
    from slackwater.learning.task import Samples, Task

_HOME = {
    "Aggregate": "aggregators",
    "Aggregator": "aggregators",
    "Participation": "aggregators",
    "Progress": "result",
    "Result": "result",
    "Samples": "task",
    "Task": "task",
    "TrainingDiverged": "result",
    "TrainingStopped": "result",
    "aggregator_names": "registry",
    "baseline": "loop",
    "make_aggregator": "registry",
    "register_aggregator": "registry",
    "resume": "loop",
    "tasks": "tasks",
    "train": "loop",
}
__all__ = [
    "Aggregate",
    "Aggregator",
    "Participation",
    "Progress",
    "Result",
    "Samples",
    "Task",
    "TrainingDiverged",
    "TrainingStopped",
    "aggregator_names",
    "baseline",
    "make_aggregator",
    "register_aggregator",
    "resume",
    "tasks",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOME[name]}")
        return home if _HOME[name] == name else getattr(home, name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise MissingExtraError("PyTorch", "torch") from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
