"""Training by a schedule. Names are imported when first used, because PyTorch takes seconds to load."""

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
    "aggregators": ("Aggregate", "Aggregator", "Participation"),
    "loop": ("baseline", "resume", "train"),
    "registry": ("aggregator_names", "make_aggregator", "register_aggregator"),
    "result": ("Progress", "Result", "TrainingDiverged", "TrainingStopped"),
    "task": ("Samples", "Task"),
    "tasks": ("tasks",),
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

__getattr__ = lazily(__name__, {name: module for module, names in _HOME.items() for name in names})


def __dir__() -> list[str]:
    return sorted(__all__)
