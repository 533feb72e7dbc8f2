"""Charts for papers and reports: one function each, and `save`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.charts import style
from slackwater.charts.schedule_chart import schedule_chart
from slackwater.charts.style import new_figure, save, tidy
from slackwater.errors import ScenarioError
from slackwater.planning.planner import WhatIf
from slackwater.planning.savings import SavingsStudy
from slackwater.training.partition import label_counts
from slackwater.units import iso

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pareto_chart", "save", "savings_by_clients", "savings_heatmap", "schedule_chart"]

_LONGEST_ZONE = 16
_ZONES_PER_PANEL = 60
_LOG_FROM = 8.0
"""Budgets that span more than this factor use a logarithmic scale."""
_PANELS_PER_LINE = 3


def savings_heatmap(study: SavingsStudy) -> Figure:
    """Draw Fig. 2 of the paper: savings of each zone against slack, the zone that saves most at the top."""
    if study.heat_map.shape[1] == 0:
        raise ScenarioError("The study has no slack, so there are no savings to draw. Set a slack of at least 1 hour.")
    last = study.heat_map[:, -1]
    order = np.argsort(np.where(np.isnan(last), np.inf, -last), kind="stable")
    parts = np.array_split(order, -(-len(order) // _ZONES_PER_PANEL))
    figure = new_figure(style.COLUMN_IN if len(parts) == 1 else style.TEXT_IN, max(0.132 * len(parts[0]), 0.9) + 1.1)
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    step = study.slot_minutes / 60
    left, right = study.slack_hours[0] - step / 2, study.slack_hours[-1] + step / 2
    norm = Normalize(0, 100 * max(np.nanmax(last, initial=0.0), 0.01))
    for axes, part in zip(panels, parts, strict=True):
        image = axes.imshow(
            np.ma.masked_invalid(100 * study.heat_map[part]),
            cmap=colormaps["YlGnBu"].with_extremes(bad=style.INTENSITY),
            norm=norm,
            aspect="auto",
            interpolation="nearest",
            extent=(left, right, len(part) - 0.5, -0.5),
        )
        image.set_gid("savings")
        labels = [style.shortened(study.zones[zone], _LONGEST_ZONE) for zone in part]
        axes.set_yticks(range(len(part)), labels, parse_math=False)
        tidy(axes, frame=(), xlabel=f"slack, h (training for {study.hours} h)")
        axes.tick_params(axis="y", length=0)
    bar = figure.colorbar(image, ax=list(panels), location="top", aspect=40, pad=0.01, shrink=0.9)
    bar.set_label("CO$_2$e saved, %", fontsize=style.FONT_PT)
    bar.ax.tick_params(labelsize=style.FONT_PT, width=0.6, length=2.5)
    bar.outline.set_visible(False)
    undefined = int(np.count_nonzero(np.isnan(last)))
    notes = [f"grey: undefined in {undefined} zone{'s' * (undefined > 1)} (no emissions without slack)"]
    _notes(figure, study.synthetic, notes if undefined else [])
    return figure


def savings_by_clients(study: SavingsStudy) -> Figure:
    """Draw Fig. 3 of the paper: savings of the N cleanest zones, mean and 10 to 90 % of the starts."""
    group, starts = study.group, len(study.starts)
    figure = new_figure(style.COLUMN_IN, 2.4)
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    clients = np.arange(1, len(group.mean) + 1)
    if starts > 1:
        axes.fill_between(
            clients, 100 * group.q10, 100 * group.q90, color=style.SERIES[0], alpha=0.2, linewidth=0, label="10 to 90 %"
        )
    label = f"mean of {starts} starts" if starts > 1 else f"from {iso(study.starts[0])}"
    marker = "o" if len(clients) <= 30 else None
    axes.plot(
        clients, 100 * group.mean, color=style.SERIES[0], linewidth=1.4, marker=marker, markersize=2.5, label=label
    )
    axes.set_xlim(1 - 0.02 * len(clients), 1.02 * len(clients))  # room for the first and the last marker
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    tidy(axes, grid="y", xlabel="number of clients, the cleanest first", ylabel="CO$_2$e saved, %")
    axes.legend(frameon=False, fontsize=style.FONT_PT)
    undefined = int(np.count_nonzero(group.defined == 0))
    notes = [] if not undefined else [f"undefined up to N = {undefined}, where nothing is emitted"]
    _notes(figure, study.synthetic, [f"{study.hours} h of training, {study.slack} h of slack", *notes])
    return figure


def pareto_chart(points: Sequence[WhatIf]) -> Figure:
    """Draw budget against objective, a panel for each alpha and a line for each slack; infeasible budgets at the bottom."""
    if not points:
        raise ScenarioError("There is nothing to compare: give at least one budget, slack or alpha.")
    alphas = list(dict.fromkeys(point.alpha for point in points))
    slacks = sorted({point.slack for point in points})
    across = min(len(alphas), _PANELS_PER_LINE)
    down = -(-len(alphas) // across)
    width = {1: style.COLUMN_IN, 2: 0.8 * style.TEXT_IN}.get(across, style.TEXT_IN)
    figure = new_figure(width, 2.3 * down + 0.55)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(alphas) :]:
        panel.set_axis_off()
    for panel, alpha in zip(panels, alphas, strict=False):
        here = [point for point in points if point.alpha == alpha]
        for number, slack in enumerate(slacks):
            _draw_line(panel, [point for point in here if point.slack == slack], number, len(slacks))
        _finish_panel(panel, here, f"α = {alpha}")
    handles = panels[0].get_legend_handles_labels()[0]
    if any(point.status == "infeasible" for point in points):
        handles.append(panels[0].plot([], [], linestyle="", marker="x", color=style.MUTED, label="infeasible")[0])
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 3 if across == 1 else 6),
        frameon=False,
        fontsize=style.FONT_PT,
    )
    scales = len({point.g_max_kg for point in points})
    notes = ["g$_{max}$ differs between slacks: compare within a line only"] if scales > 1 else []
    _notes(figure, any(point.synthetic for point in points), notes)
    return figure


def _draw_line(panel: Axes, points: Sequence[WhatIf], number: int, count: int) -> None:
    colour, marker = style.SERIES[number % len(style.SERIES)], style.MARKERS[number % len(style.MARKERS)]
    # A second pass through the colours uses another line style.
    dash = ("-", "--", ":", "-.")[number // len(style.SERIES) % 4]
    look = {"color": colour, "linestyle": dash, "marker": marker, "markersize": 3.5, "linewidth": 1.2}
    points = sorted(points, key=lambda point: point.budget_kg)
    solved = [(p.budget_kg, p.objective) for p in points if p.objective is not None]
    budgets, objectives = [b for b, _ in solved], [o for _, o in solved]
    slack = points[0].slack if points else 0
    panel.plot(budgets, objectives, label=f"slack {slack}", **look)  # type: ignore[arg-type]
    for point in points:
        if point.status == "within-gap" and point.objective is not None and point.upper_bound is not None:
            panel.vlines(point.budget_kg, point.objective, point.upper_bound, color=colour, linewidth=0.8)
    refused = [point.budget_kg for point in points if point.status == "infeasible"]
    if refused:
        # Stacked, because one budget can be infeasible for several slacks.
        height = 0.03 + 0.05 * min(number, 10) if count > 1 else 0.03
        crosses = panel.plot(
            refused,
            [height] * len(refused),
            transform=panel.get_xaxis_transform(),
            linestyle="",
            marker="x",
            markersize=4.5,
            color=colour,
        )
        crosses[0].set_gid("infeasible")


def _finish_panel(panel: Axes, points: Sequence[WhatIf], title: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    budgets = sorted({point.budget_kg for point in points})
    if budgets[-1] > _LOG_FROM * budgets[0]:
        panel.set_xscale("log")
        decades = math.log10(budgets[-1] / budgets[0])
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_title(title, fontsize=style.TITLE_PT, parse_math=False)
    panel.margins(x=0.06, y=0.12)
    panel.ticklabel_format(axis="y", useOffset=False)
    objectives = [point.objective for point in points if point.objective is not None]
    if objectives and max(objectives) - min(objectives) <= 1e-6 * abs(max(objectives)):
        # With one value only, the axis would magnify rounding errors.
        middle = max(objectives)
        panel.set_ylim(middle - 0.05 * (abs(middle) or 1), middle + 0.05 * (abs(middle) or 1))
    if all(point.objective is None for point in points):
        panel.set_yticks([])
        panel.set_xlim(0.8 * budgets[0], 1.2 * budgets[-1])
        panel.text(
            0.5, 0.5, "every budget is infeasible", transform=panel.transAxes, ha="center", fontsize=style.FONT_PT
        )
    tidy(panel, grid="both", xlabel="budget, kg CO$_2$e", ylabel="objective")


def _notes(figure: Figure, synthetic: bool, notes: Sequence[str]) -> None:
    """Write notes above the chart."""
    if synthetic or notes:
        figure.suptitle(
            "\n".join(([style.SYNTHETIC] if synthetic else []) + list(notes)),
            fontsize=style.FONT_PT,
            color=style.WARNING if synthetic else style.MUTED,
            fontweight="bold" if synthetic else "normal",
        )


_MOST_NUMBERED_ROWS = 30
"""With more rows there is no space for numbers, only for colours."""
_LONGEST_LABEL = 26


def partition_chart(
    partition: Sequence[NDArray[np.int64]], labels: ArrayLike, *, names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw clients x classes, darker for more samples, beside the samples of each client."""
    return counts_chart(label_counts(partition, labels), names=names, title=title)


def counts_chart(counts: ArrayLike, *, names: Sequence[str] = (), title: str = "") -> Figure:
    """Draw the same from [client, class] counts, as stored in a task's record."""
    held = np.asarray(counts, dtype=np.int64)
    if held.ndim != 2 or not held.size:
        raise ScenarioError(f"The label counts have the shape {held.shape}; give them as [client, class].")
    clients, classes = held.shape
    if names and len(names) != clients:
        raise ScenarioError(f"There are {len(names)} names for {clients} clients; give one for each, or none.")
    row_in = 0.26 if clients <= _MOST_NUMBERED_ROWS else max(0.04, 7.8 / clients)
    figure = new_figure(style.TEXT_IN, row_in * clients + 1.0)
    cells, totals = figure.subplots(1, 2, sharey=True, width_ratios=(3.2, 1))
    _draw_cells(cells, held)
    _draw_totals(totals, held.sum(axis=1))
    cells.set_xticks(range(classes))
    cells.set_xlabel("class", fontsize=style.FONT_PT, color=style.INK)
    if clients <= _MOST_NUMBERED_ROWS:
        shown = names or [f"client {i + 1}" for i in range(clients)]
        cells.set_yticks(range(clients), [style.shortened(name, _LONGEST_LABEL) for name in shown])
    else:
        cells.set_yticks([])
        cells.set_ylabel(f"{clients} clients", fontsize=style.FONT_PT, color=style.INK)
    figure.suptitle(
        title or f"Samples by client and class: {held.sum():,} samples, {clients} clients",
        x=0.01,
        ha="left",
        fontsize=style.TITLE_PT,
        color=style.INK,
    )
    return figure


def _draw_cells(axes: Axes, counts: NDArray[np.int64]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("held", ["#FFFFFF", *style.PARTLY])
    most = max(int(counts.max()), 1)
    # Square-root scale: a few samples of a class must stay visible next to thousands.
    shade = np.sqrt(counts / most)
    axes.imshow(shade, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    tidy(axes, frame=())
    axes.tick_params(length=0)
    if len(counts) > _MOST_NUMBERED_ROWS or counts.shape[1] > 20:
        return
    for client, label in np.ndindex(counts.shape):
        if counts[client, label]:
            axes.text(
                label,
                client,
                f"{counts[client, label]:,}",
                ha="center",
                va="center",
                fontsize=style.FONT_PT - 1.5,
                color="white" if shade[client, label] > 0.6 else style.INK,
            )


def _draw_totals(axes: Axes, totals: NDArray[np.int64]) -> None:
    axes.barh(range(len(totals)), totals, height=0.8, color=style.PARTLY[2])
    tidy(axes, frame=("bottom",))
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.set_xlabel("samples", fontsize=style.FONT_PT, color=style.INK)
    axes.set_xlim(0, float(totals.max()) * 1.05)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter("{x:,.0f}")
