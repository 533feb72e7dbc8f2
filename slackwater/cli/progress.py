"""Live progress of training, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from slackwater.cli.options import say
from slackwater.report.style import kilograms, printable
from slackwater.units import iso

if TYPE_CHECKING:
    from slackwater.learning.result import Progress as Step

_NAMED = 4


class _Lines(Progress):
    """The bar, and below it what would not fit beside it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn."""
        yield from super().get_renderables()
        yield Text(self.below, no_wrap=True, overflow="ellipsis")


class Bar:
    """Slot and its time, who trains, kg spent, loss, accuracy: live on a terminal, a line at each evaluation elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: _Lines | None = None
        self.task = TaskID(0)
        self.accuracy: float | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            self.lines = _Lines(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[state]}", markup=False),
                console=Console(stderr=True),
            )
            self.lines.start()
            self.task = self.lines.add_task(self.title, total=None, state="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.lines is not None:
            self.lines.stop()

    def __call__(self, step: Step) -> None:
        """Show a round that is done."""
        done = step.done
        if done.accuracy is not None:
            self.accuracy = done.accuracy
        reached = [
            f"{done.spent_kg:.3f} of {kilograms(step.budget_kg)} kg",
            f"loss {done.loss:.3f}",
            *([f"accuracy {self.accuracy:.1%}"] if self.accuracy is not None else []),
        ]
        window = ", fine-tuning" if done.in_window else ""
        slot = f"slot {done.slot}, {iso(done.slot_start)}{window}: {_who(done.participants)}"
        if self.lines is not None:
            self.lines.below = slot
            self.lines.update(self.task, completed=done.number + 1, total=step.rounds, state="  ".join(reached))
        elif done.accuracy is not None:
            say("  ".join([f"{self.title}: round {done.number + 1} of {step.rounds}", *reached, slot]))


def _who(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(printable(name) for name in names[:_NAMED]) + more
