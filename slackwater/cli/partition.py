"""The command that shows who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from slackwater.cli.learning import data_options, make_task
from slackwater.cli.options import chart_option, console, draw, json_option, option, print_json
from slackwater.errors import ScenarioError
from slackwater.report import style
from slackwater.report.partition_chart import counts_chart

if TYPE_CHECKING:
    from slackwater.learning.task import Task

_MOST_ROWS = 30


@click.command()
@click.argument("task")
@option("--clients", type=int, default=7, help="Clients that share the training data.")
@data_options
@chart_option("who holds what")
@json_option
def partition(task: str, clients: int, chart: Path | None, as_json: bool, **options: Any) -> None:
    """Show who holds what when the data of a TASK (like digits or mnist) is split over clients."""
    made = make_task(task, clients, options)
    counts = _counts(made)
    draw(chart, lambda: counts_chart(counts, title=f"{made.name}: {_how(made)}"))
    if as_json:
        held = {"samples": counts.sum(axis=1).tolist(), "label_counts": counts.tolist()}
        print_json({**made.record, "task": made.name, "clients": clients, "seed": options["seed"], **held})
        return
    screen = console()
    screen.print(_table(counts))
    if len(counts) > _MOST_ROWS:
        screen.print(Text(f"... and {len(counts) - _MOST_ROWS:,} more clients; --json has all."))
    screen.print(Text(f"{made.name}: {counts.sum():,} samples, {_how(made)}; columns are classes.", style="dim"))


def _counts(task: Task) -> NDArray[np.int64]:
    """Return [client, class], counted from the data, so that it holds for tasks of other packages too."""
    labels = [samples.y.detach().cpu().numpy() for samples in task.clients]
    if any(y.ndim != 1 or y.dtype.kind not in "iu" or y.min(initial=0) < 0 for y in labels):
        raise ScenarioError(
            f"The targets of task {task.name!r} are not classes, so there is nothing to count by class."
        )
    classes = 1 + max(int(y.max(initial=0)) for y in labels)
    return np.array([np.bincount(y, minlength=classes) for y in labels], dtype=np.int64)


def _how(task: Task) -> str:
    """Return what is known of how the data was split."""
    record = task.record
    parts = [str(record["partition"])] if record.get("partition") else []
    parts += [f"{key} {record[key]}" for key in ("beta", "seed") if record.get(key) is not None]
    return ", ".join([*parts, f"{len(task.clients)} clients"])


def _table(counts: NDArray[np.int64]) -> Table:
    table = style.table("|".join(f">{name}" for name in ("client", "samples", *range(counts.shape[1]))))
    for client, row in enumerate(counts[:_MOST_ROWS], start=1):
        table.add_row(str(client), f"{row.sum():,}", *(f"{n:,}" if n else "·" for n in row.tolist()))
    total = counts.sum(axis=0)
    table.add_row("all", f"{total.sum():,}", *(f"{n:,}" for n in total.tolist()), style="bold")
    return table
