"""Training by a schedule. Nothing here is imported, PyTorch least of all, before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

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

__getattr__ = lazily(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
