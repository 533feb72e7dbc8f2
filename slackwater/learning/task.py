"""What is trained: a model, each client's data, a test set and a loss. Fill one in to train your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from slackwater.errors import ScenarioError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Inputs and targets, in memory; the first dimension is the sample."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One learning task, split over the clients of a plan, in the plan's order of clients."""

    name: str
    clients: Sequence[Samples]
    """Training data of each client."""
    test: Samples
    """The global test set."""
    model: Callable[[], nn.Module]
    """A new model; the caller has seeded torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    """loss(outputs, targets), the mean over the batch."""
    client_tests: Sequence[Samples] = ()
    """Test data of each client's own distribution, for accuracy per client; may be empty."""
    devices: Sequence[Sequence[Samples]] = ()
    """Cross-device: the devices of each client, where a client of the plan is a region; may be empty."""
    record: Mapping[str, object] = field(default_factory=dict)
    """What the run's file keeps of how the task was made: data set, partition, seed."""

    def __post_init__(self) -> None:
        empty = [i for i, samples in enumerate(self.clients) if len(samples) == 0]
        if empty:
            raise ScenarioError(
                f"Task {self.name!r}: client number {empty[0] + 1} has no data ({len(empty)} of {len(self.clients)} clients have none). "
                "Use another seed, a larger beta or fewer clients."
            )

    @staticmethod
    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        """Return how many predictions are right."""
        return torch.count_nonzero(outputs.argmax(dim=1) == targets)
