"""TensorBoard event files of a training run, by PyTorch's writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slackwater import time_source
from slackwater.learning.result import Progress
from slackwater.ledger.kinds import KINDS
from slackwater.ledger.run import RunKind


class EventFile:
    """A progress callback that writes loss, accuracy, kg and participants of each round, by slot."""

    def __init__(self, folder: Path, *, kind: RunKind, then: Callable[[Progress], None] | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(mode=0o700, exist_ok=True)
        # A resumed run adds a file; TensorBoard reads all files of a folder as one.
        self._writer = SummaryWriter(str(folder), filename_suffix=".slackwater")
        self._then, self._kg = then, f"kg ({KINDS[kind].label})"

    def __call__(self, progress: Progress) -> None:
        """Write one round."""
        done, at = progress.done, time_source.now().timestamp()
        values = {"loss": done.loss, self._kg: done.spent_kg, "participants": len(done.participants)}
        values["update_norm"] = done.update_norm
        if done.accuracy is not None and done.test_loss is not None:
            values |= {"test/accuracy": done.accuracy, "test/loss": done.test_loss}
        values |= {f"client_loss/{name}": loss for name, loss in done.losses.items()}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, done.slot, walltime=at)
        self._writer.flush()
        if self._then is not None:
            self._then(progress)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
