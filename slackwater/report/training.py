"""What training gave: a table of runs side by side, the picture of accuracy against kg, and the same as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy
from slackwater.units import iso

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slackwater.learning.result import Result


def summary(results: Mapping[str, Result]) -> RenderableType:
    """Runs side by side, best first, and what a reader must know about them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    for name in ("accuracy", "worst client", "loss F", "kg", "of budget", "rounds", "client-rounds", "seconds"):
        table.add_column(name, justify="right")
    for name, result in sorted(results.items(), key=lambda item: -item[1].accuracy):
        worst = result.worst_client_accuracy
        table.add_row(
            Text(name),
            f"{result.accuracy:.2%}",
            "-" if worst is None else f"{worst:.2%}",
            f"{result.loss:.4f}",
            f"{result.emissions_kg:.4f}",
            f"{result.emissions_kg / result.budget_kg:.1%}",
            str(len(result.history)),
            str(sum(len(record.participants) for record in result.history)),
            f"{result.seconds:.1f}",
        )
    notes = [Text(f"{name}: {note}", style="yellow") for name, result in results.items() for note in result.notes]
    folders = [Text(f"{name}: {result.folder}", style="dim") for name, result in results.items() if result.folder]
    return Group(table, *notes, *folders)


def accuracy_chart(results: Mapping[str, Result]) -> Figure:
    """Test accuracy against kg spent, one line a run."""
    figure = new_figure(1.4 * style.COLUMN_IN, 3.0)
    axes = figure.subplots()
    for (name, result), colour in zip(results.items(), style.SERIES, strict=False):
        points = [(record.spent_kg, 100 * record.accuracy) for record in result.history if record.accuracy is not None]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=style.shortened(name, 24))
        axes.annotate(
            f"{result.accuracy:.1%}",
            points[-1],
            textcoords="offset points",
            xytext=(4, -10),
            color=colour,
            fontsize=style.FONT_PT,
        )
    axes.axvline(max(result.budget_kg for result in results.values()), color=style.MUTED, linestyle=":", label="budget")
    axes.set_xlim(left=0)
    axes.set_xlabel("kg CO$_2$e spent", fontsize=style.FONT_PT)
    axes.set_ylabel("test accuracy, %", fontsize=style.FONT_PT)
    axes.legend(loc="lower right", frameon=False, fontsize=style.FONT_PT)
    tidy(axes)
    return figure


def to_dict(result: Result) -> dict[str, Any]:
    """A result in plain types."""
    return {
        "accuracy": result.accuracy,
        "worst_client_accuracy": result.worst_client_accuracy,
        "client_accuracy": dict(result.client_accuracy),
        "loss": result.loss,
        "test_loss": result.test_loss,
        "emissions_kg": result.emissions_kg,
        "budget_kg": result.budget_kg,
        "seconds": result.seconds,
        "never": list(result.never),
        "notes": list(result.notes),
        "folder": None if result.folder is None else str(result.folder),
        "history": [
            {
                "slot": record.slot,
                "slot_start": iso(record.slot_start),
                "in_window": record.in_window,
                "participants": list(record.participants),
                "loss": record.loss,
                "accuracy": record.accuracy,
                "spent_kg": record.spent_kg,
            }
            for record in result.history
        ],
    }
