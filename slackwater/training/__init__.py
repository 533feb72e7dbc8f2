"""Training with a schedule. Names are imported on first use, because PyTorch takes seconds to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.lazy import lazily

if TYPE_CHECKING:
    from slackwater.training import tasks
    from slackwater.training.aggregators import (
        Aggregate,
        Aggregator,
        Participation,
        aggregator_names,
        make_aggregator,
        register_aggregator,
    )
    from slackwater.training.loop import Progress, Result, TrainingDiverged, TrainingStopped, baseline, resume, train
    from slackwater.training.scoring import Metric
    from slackwater.training.task import LocalStep, Samples, Task

_HOME = {
    "aggregators": (
        "Aggregate", "Aggregator", "Participation", "aggregator_names", "make_aggregator", "register_aggregator",
    ),
    "loop": ("Progress", "Result", "TrainingDiverged", "TrainingStopped", "baseline", "resume", "train"),
    "scoring": ("Metric",),
    "task": ("LocalStep", "Samples", "Task"),
    "tasks": ("tasks",),
}  # fmt: skip
__all__ = [
    "Aggregate",
    "Aggregator",
    "LocalStep",
    "Metric",
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
