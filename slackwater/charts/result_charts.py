"""Results of training and of back-tests: tables, pictures and the data behind them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.ledger.schema import KINDS, RunKind
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.replanning.backtest import Backtest, Summary
from slackwater.units import iso

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slackwater.training.loop import Result

_LONGEST_NAME = 20
_AXIS_LETTERS = 28
"""What fits beside the chart of scores on one line."""


def summary(results: Mapping[str, Result]) -> RenderableType:
    """Show runs side by side, the best first, with notes."""
    metric = _metric(results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    for name in (metric.column, "worst client", "loss F", "kg", "of budget", "rounds", "updates", "seconds"):
        table.add_column(name, justify="right", min_width=12 if name == "worst client" else None)
    for name, result in sorted(results.items(), key=lambda item: metric.rank(item[1].score)):
        table.add_row(
            Text(style.shortened(name, _LONGEST_NAME)),
            metric.number(result.score),
            Text(_worst(result)),
            "-" if result.loss is None else f"{result.loss:.4f}",
            f"{result.emissions_kg:.4f}",
            f"{result.emissions_kg / result.budget_kg:.1%}",
            f"{len(result.history):,}",
            f"{sum(len(record.participants) for record in result.history):,}",
            f"{result.seconds:.1f}",
        )
    legend = (
        f"{metric.name}: on the global test set{metric.direction}; worst client: on its own distribution; loss F: mean over the clients' "
        "training losses; updates: client-rounds."
    )
    lines = [Text(legend, style="dim")]
    lines += [Text(KINDS[kind].sentence, style="yellow") for kind in _kinds(results)]
    if _synthetic(results):
        lines.append(style.synthetic_note())
    lines += [Text(note, style="yellow") for note in _notes(results)]
    lines += [Text(f"{name}: {result.folder}", style="dim") for name, result in results.items() if result.folder]
    return Group(table, *lines)


def score_chart(results: Mapping[str, Result]) -> Figure:
    """Draw the test score against kg spent, one line a run."""
    metric = _metric(results)
    figure = new_figure(1.4 * style.COLUMN_IN, 3.0)
    axes = figure.subplots()
    for number, (name, result) in enumerate(results.items()):
        points = [(record.spent_kg, record.accuracy) for record in result.history if record.accuracy is not None]
        axes.plot(
            [kg for kg, _ in points],
            [metric.shown(score) for _, score in points],
            marker=style.MARKERS[number % len(style.MARKERS)],
            markersize=3.5,
            linewidth=1.2,
            color=style.SERIES[number % len(style.SERIES)],
            label=f"{style.shortened(name, _LONGEST_NAME)}: {metric.text(result.score, 1)}".replace("$", r"\$"),
        )
    for budget_kg in sorted({result.budget_kg for result in results.values()}):
        axes.axvline(budget_kg, color=style.MUTED, linestyle=":", linewidth=1.0, label="budget")
    axes.set_xlim(left=0)
    tidy(axes, grid="both", xlabel="kg CO$_2$e spent", ylabel=textwrap.fill(metric.axis, _AXIS_LETTERS))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=style.FONT_PT)
    headline(figure, _best_run(results), warning=kinds_label(_kinds(results), synthetic=_synthetic(results)))
    return figure


def _best_run(results: Mapping[str, Result]) -> str:
    """Return which run ends with the best score, and what it spent."""
    metric = _metric(results)
    ranked = sorted(results.items(), key=lambda item: metric.rank(item[1].score))
    if not ranked:
        return ""
    name, best = ranked[0]
    spent = f"{style.kilograms(best.emissions_kg)} of {style.kilograms(best.budget_kg)} kg"
    if len(ranked) == 1:
        return f"{metric.title} {metric.text(best.score, 1)} with {spent}"
    second, other = ranked[1]
    names = [style.shortened(one, _LONGEST_NAME).replace("$", r"\$") for one in (name, second)]
    if best.score == other.score:
        return f"{names[0]} and {names[1]} are equal: {metric.text(best.score, 1)} with {spent}"
    return (
        f"{names[0]} is best: {metric.text(best.score, 1)} with {spent}; {names[1]} has {metric.text(other.score, 1)}"
    )


def kinds_label(kinds: Sequence[RunKind], *, synthetic: bool) -> str:
    """Return the kind of runs that a chart shows, and whether their intensity is synthetic."""
    return ", ".join([*(KINDS[kind].title + "s" for kind in kinds), *([style.SYNTHETIC] if synthetic else [])])


def _kinds(results: Mapping[str, Result]) -> list[RunKind]:
    """Return the kinds of these runs that are not live."""
    return [kind for kind in dict.fromkeys(result.kind for result in results.values()) if kind != "live"]


def _synthetic(results: Mapping[str, Result]) -> bool:
    return any(result.synthetic for result in results.values())


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result in plain types; the fields called accuracy are empty if the metric is another."""
    metric = result.metric
    return {
        "kind": result.kind,
        "metric": metric.to_dict(),
        **metric.scored(result.score),
        **_accuracies(result),
        "worst_client_score": result.worst_client_score,
        "client_scores": dict(result.client_scores),
        "loss": result.loss,
        "test_loss": result.test_loss,
        "last_score": result.last_score,
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
                **metric.scored(record.accuracy),
                "spent_kg": record.spent_kg,
            }
            for record in result.history
        ],
    }


def _worst(result: Result) -> str:
    worst, metric = result.worst_client_score, result.metric
    if worst is None:
        return "-"
    name = next(client for client, score in result.client_scores.items() if score == worst)
    return f"{style.shortened(name, 12)} {metric.number(worst)}"


def _metric(results: Mapping[str, Result]) -> MetricLabel:
    """Return the metric of some runs, which compare the same task."""
    return next((result.metric for result in results.values()), ACCURACY)


def _accuracies(result: Result) -> dict[str, Any]:
    known = result.metric == ACCURACY
    return {
        "worst_client_accuracy": result.worst_client_score if known else None,
        "client_accuracy": dict(result.client_scores) if known else {},
        "last_accuracy": result.last_score if known else None,
    }


def _notes(results: Mapping[str, Result]) -> list[str]:
    """Return each note once, with the runs' names unless it applies to all."""
    every = {
        note: [name for name, result in results.items() if note in result.notes]
        for result in results.values()
        for note in result.notes
    }
    return [note if len(names) == len(results) else f"{', '.join(names)}: {note}" for note, names in every.items()]


_LONGEST = 24
_NOTE = (
    "Objective (mean and least) and slots: % of the plan with perfect foresight. Plan (the first), real and unused: % of "
    "the budget. Over: runs above the budget. Breach: slots above their upper bound. Window: "
    "kept/moved/shortened/dropped."
)


def replan_text(slots: int | None, slot_minutes: int = 60) -> str:
    """Return the re-planning interval as text."""
    if slots is None:
        return "never"
    hours = slots * slot_minutes / 60
    return f"{hours:g}h"


def backtest_table(summaries: Sequence[Summary], *, synthetic: bool, slot_minutes: int = 60) -> RenderableType:
    """Show a line for each forecast and re-planning interval."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("forecast", overflow="ellipsis", no_wrap=True)
    for name in ("re-plan", "runs", "objective", "least", "slots", "plan", "real", "unused"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("over", "breach", "window"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in summaries:
        shares = (one.share_mean, one.share_least, one.slots_share_mean)
        of_budget = (one.planned_mean, one.realised_mean, one.unused_mean)
        window = (one.window_kept, one.window_moved, one.window_shortened, one.window_dropped)
        table.add_row(
            Text(style.shortened(one.forecast, _LONGEST)),
            replan_text(one.replan_slots, slot_minutes),
            str(one.runs),
            *(f"{100 * share:.1f}" for share in (*shares, *of_budget)),
            Text(str(one.overspent), style="bold red" if one.overspent else ""),
            str(one.breaches),
            "/".join(map(str, window)),
        )
    notes: list[RenderableType] = [Text(_NOTE, style="dim")]
    if synthetic:
        notes.append(Text(style.SYNTHETIC, style="dim"))
    return Group(table, *notes)


def backtest_chart(runs: Sequence[Backtest], *, synthetic: bool, slot_minutes: int = 60) -> Figure:
    """Draw planned and realised kg, the objective, and unused budget: a dot for each run, a bar at the mean."""
    groups: dict[str, list[Backtest]] = {}
    for run in runs:
        groups.setdefault(f"{run.forecast}, {replan_text(run.replan_slots, slot_minutes)}", []).append(run)
    figure = new_figure(style.TEXT_IN, 1.35 + 0.36 * len(groups))
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for row, group in enumerate(groups.values()):
        budget = np.array([run.budget_kg for run in group])
        planned = np.array([run.planned_kg for run in group]) / budget
        realised = np.array([run.realised_kg for run in group]) / budget
        _strip(left, planned, row - 0.18, style.SERIES[5], "D", "first plan" if row == 0 else None)
        _strip(left, realised, row + 0.18, style.SERIES[0], "o", "realised" if row == 0 else None)
        _strip(middle, np.array([run.share for run in group]), row, style.SERIES[2], "o")
        _strip(right, np.array([run.unused for run in group]), row, style.SERIES[3], "o")
    left.axvline(100, color=style.INK, linewidth=0.8, linestyle="--")
    middle.axvline(95, color=style.INK, linewidth=0.8, linestyle=":")
    right.axvline(5, color=style.INK, linewidth=0.8, linestyle=":")
    left.set_yticks(range(len(groups)), [style.shortened(name, 30) for name in groups], parse_math=False)
    left.set_ylim(len(groups) - 0.5, -0.5)
    right.set_xlim(left=min(0.0, right.get_xlim()[0]))
    for axes, name in (
        (left, "kg, % of the budget"),
        (middle, "objective, % of perfect foresight"),
        (right, "unused, % of the budget"),
    ):
        tidy(axes, grid="x", xlabel=name)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower right", ncols=2, frameon=False, fontsize=style.FONT_PT
    )
    note = "Dot: run; bar: mean; dashed: budget; dotted: targets of 95 % and 5 %."
    headline(figure, _best_forecast(groups), note, warning=style.SYNTHETIC if synthetic else "")
    return figure


def _best_forecast(groups: Mapping[str, Sequence[Backtest]]) -> str:
    """Return which forecast comes closest to perfect foresight, and how many runs exceed the budget."""
    if not groups:
        return ""
    shares = {name: float(np.mean([run.share for run in group])) for name, group in groups.items()}
    best, runs = max(shares, key=lambda name: shares[name]), [run for group in groups.values() for run in group]
    over = sum(run.overspend_kg > 0 for run in runs)
    return (
        f"{style.shortened(best, 30)}: {100 * shares[best]:.1f} % of perfect foresight; {over or 'none'} of {len(runs)} "
        f"run{'s' * (len(runs) != 1)} above the budget"
    )


def _strip(
    axes: Axes, values: NDArray[np.float64], row: float, colour: str, marker: str, label: str | None = None
) -> None:
    shown = 100 * values
    axes.scatter(
        shown, np.full(len(shown), row), s=9, color=colour, marker=marker, alpha=0.45, linewidths=0, label=label
    )
    axes.plot([shown.mean()] * 2, [row - 0.14, row + 0.14], color=style.INK, linewidth=1.6, solid_capstyle="butt")
