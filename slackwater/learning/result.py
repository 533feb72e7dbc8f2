"""The result of training, and the errors that end it early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from slackwater.errors import SlackwaterError
from slackwater.ledger.run import RoundRecord, RunKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a progress callback gets after every round."""

    done: RoundRecord
    rounds: int
    """Slots with participants in the whole plan."""
    budget_kg: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """A trained model, how good it is, and what it cost."""

    accuracy: float
    """On the global test set; of the averaged model where averaging was asked for."""
    test_loss: float
    loss: float | None
    """F of equation (1): the mean over clients of their mean training loss; None if it was not asked for."""
    client_accuracy: Mapping[str, float]
    """On each client's own distribution; empty if the task has no test data by client."""
    worst_client_accuracy: float | None
    last_accuracy: float
    """Of the last global model; the same as `accuracy` without averaging."""
    kind: RunKind
    """What kind of run it was; a training is simulated: its kg are what it would have emitted."""
    emissions_kg: float
    """All that the ledger holds."""
    budget_kg: float
    history: tuple[RoundRecord, ...]
    """Every slot in which somebody trained."""
    never: tuple[str, ...]
    """Clients that never train before the window."""
    notes: tuple[str, ...]
    """What a reader of the result must know."""
    model: Mapping[str, Tensor]
    """state_dict, on the CPU."""
    seconds: float
    """Wall time of the rounds, over all sessions."""
    folder: Path | None

    def __repr__(self) -> str:
        """Show accuracy, rounds and emissions on one line."""
        return (
            f"Result(accuracy {self.accuracy:.4g} after {len(self.history)} rounds, {self.emissions_kg:.4g} of "
            f"{self.budget_kg:.4g} kg, {self.kind}, folder={None if self.folder is None else str(self.folder)!r})"
        )


class TrainingStopped(SlackwaterError):
    """Ctrl-C stopped the run between two clients; it can be resumed."""

    exit_code = 130


class TrainingDiverged(SlackwaterError):
    """The loss or the model is no longer a number; the last good model is in the run's file."""

    def __init__(self, message: str, *, client: str | None, slot: int, number: int) -> None:
        super().__init__(message)
        self.client, self.slot, self.number = client, slot, number
