"""Back-tests as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.replanning.backtest import Backtest
from slackwater.replanning.summary import Summary
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST = 24
_NOTE = (
    "Objective (mean and least) and slots are % of the plan with perfect foresight; plan (as the first expected "
    "it), real (as it came) and unused are % of the budget. Over: runs that emitted more than the budget. Breach: slots that "
    "emitted more than the upper bound they were held at. Window: kept/moved/shortened/dropped."
)


def replan_text(slots: int | None, slot_minutes: int = 60) -> str:
    """Return in words how often was re-planned."""
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
    """Draw planned beside realised kg, objective against the oracle's, and unused budget: a dot a run, a bar at the mean."""
    groups: dict[str, list[Backtest]] = {}
    for run in runs:
        groups.setdefault(f"{run.forecast}, {replan_text(run.replan_slots, slot_minutes)}", []).append(run)
    figure = new_figure(style.TEXT_IN, 1.35 + 0.36 * len(groups))
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for row, group in enumerate(groups.values()):
        budget = np.array([run.budget_kg for run in group])
        planned = np.array([run.planned_kg for run in group]) / budget
        realised = np.array([run.realised_kg for run in group]) / budget
        _strip(left, planned, row - 0.18, style.SERIES[5], "D", "first plan, as expected" if row == 0 else None)
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
        (right, "budget left unused, %"),
    ):
        tidy(axes, grid="x", xlabel=name)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=style.FONT_PT
    )
    note = "a dot is a run, a bar the mean; dashed: the budget; dotted: the aims of 95 % and 5 %"
    figure.supxlabel(f"{note}{'; ' + style.SYNTHETIC if synthetic else ''}", fontsize=style.FONT_PT, color=style.MUTED)
    return figure


def _strip(
    axes: Axes, values: NDArray[np.float64], row: float, colour: str, marker: str, label: str | None = None
) -> None:
    shown = 100 * values
    axes.scatter(
        shown, np.full(len(shown), row), s=9, color=colour, marker=marker, alpha=0.45, linewidths=0, label=label
    )
    axes.plot([shown.mean()] * 2, [row - 0.14, row + 0.14], color=style.INK, linewidth=1.6, solid_capstyle="butt")
