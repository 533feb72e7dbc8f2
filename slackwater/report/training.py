"""What training gave: a table of runs side by side, the picture of accuracy against kg, and the same as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.ledger.kinds import KINDS
from slackwater.ledger.run import RunKind
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy
from slackwater.units import iso

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from slackwater.learning.result import Result

_LONGEST_NAME = 20


def summary(results: Mapping[str, Result], *, synthetic: bool = False) -> RenderableType:
    """Show runs side by side, the most accurate first, and what a reader must know about them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    for name in ("accuracy", "worst client", "loss F", "kg", "of budget", "rounds", "updates", "seconds"):
        table.add_column(name, justify="right", min_width=12 if name == "worst client" else None)
    for name, result in sorted(results.items(), key=lambda item: -item[1].accuracy):
        table.add_row(
            Text(style.shortened(name, _LONGEST_NAME)),
            f"{result.accuracy:.2%}",
            Text(_worst(result)),
            "-" if result.loss is None else f"{result.loss:.4f}",
            f"{result.emissions_kg:.4f}",
            f"{result.emissions_kg / result.budget_kg:.1%}",
            f"{len(result.history):,}",
            f"{sum(len(record.participants) for record in result.history):,}",
            f"{result.seconds:.1f}",
        )
    legend = (
        "accuracy: on the global test set; worst client: on its own distribution; loss F: mean over the clients' "
        "training losses; updates: client-rounds."
    )
    lines = [Text(legend, style="dim")]
    lines += [Text(KINDS[kind].sentence, style="yellow") for kind in _kinds(results)]
    if synthetic:
        lines.append(style.synthetic_note())
    lines += [Text(note, style="yellow") for note in _notes(results)]
    lines += [Text(f"{name}: {result.folder}", style="dim") for name, result in results.items() if result.folder]
    return Group(table, *lines)


def accuracy_chart(results: Mapping[str, Result], *, synthetic: bool = False) -> Figure:
    """Draw test accuracy against kg spent, one line a run."""
    figure = new_figure(1.4 * style.COLUMN_IN, 3.0)
    axes = figure.subplots()
    for number, (name, result) in enumerate(results.items()):
        points = [(record.spent_kg, record.accuracy) for record in result.history if record.accuracy is not None]
        axes.plot(
            [kg for kg, _ in points],
            [100 * accuracy for _, accuracy in points],
            marker=style.MARKERS[number % len(style.MARKERS)],
            markersize=3.5,
            linewidth=1.2,
            color=style.SERIES[number % len(style.SERIES)],
            label=f"{style.shortened(name, _LONGEST_NAME)}: {result.accuracy:.1%}".replace("$", r"\$"),
        )
    for budget_kg in sorted({result.budget_kg for result in results.values()}):
        axes.axvline(budget_kg, color=style.MUTED, linestyle=":", linewidth=1.0, label="budget")
    axes.set_xlim(left=0)
    tidy(axes, grid="both", xlabel="kg CO$_2$e spent", ylabel="test accuracy, %")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=style.FONT_PT)
    title_kinds(figure, _kinds(results), synthetic=synthetic)
    return figure


def title_kinds(figure: Figure, kinds: Sequence[RunKind], *, synthetic: bool) -> None:
    """Write above a chart what kind of runs it shows, and whether their intensity is synthetic."""
    words = [*(KINDS[kind].title + "s" for kind in kinds), *([style.SYNTHETIC] if synthetic else [])]
    if words:
        figure.suptitle(", ".join(words), fontsize=style.FONT_PT, color=style.WARNING, fontweight="bold")


def _kinds(results: Mapping[str, Result]) -> list[RunKind]:
    """Return the kinds of these runs that are not live."""
    return [kind for kind in dict.fromkeys(result.kind for result in results.values()) if kind != "live"]


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result in plain types."""
    return {
        "kind": result.kind,
        "accuracy": result.accuracy,
        "worst_client_accuracy": result.worst_client_accuracy,
        "client_accuracy": dict(result.client_accuracy),
        "loss": result.loss,
        "test_loss": result.test_loss,
        "last_accuracy": result.last_accuracy,
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


def _worst(result: Result) -> str:
    if result.worst_client_accuracy is None:
        return "-"
    name = min(result.client_accuracy, key=lambda client: result.client_accuracy[client])
    return f"{style.shortened(name, 12)} {result.worst_client_accuracy:.2%}"


def _notes(results: Mapping[str, Result]) -> list[str]:
    """Return each note once, with the run's name unless it is true of all."""
    every = {
        note: [name for name, result in results.items() if note in result.notes]
        for result in results.values()
        for note in result.notes
    }
    return [note if len(names) == len(results) else f"{', '.join(names)}: {note}" for note, names in every.items()]
