"""Charts for papers and reports: one function each, and `save`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.charts import style
from slackwater.charts.schedule_chart import schedule_chart
from slackwater.charts.style import headline, new_figure, save, tidy
from slackwater.errors import ScenarioError
from slackwater.planning.advice import Advice
from slackwater.planning.planner import WhatIf
from slackwater.planning.savings import SavingsStudy
from slackwater.training.partition import label_counts
from slackwater.units import iso, time_zone, utc

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["advice_chart", "compare_chart", "save", "savings_by_clients", "savings_heatmap", "schedule_chart"]

_LONGEST_ZONE = 16
_ZONES_PER_PANEL = 60
_LOG_FROM = 8.0
"""Budgets that span more than this factor use a logarithmic scale."""


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
    notes = [f"Grey: undefined in {undefined} zone{'s' * (undefined > 1)}, which emit nothing without slack."]
    headline(figure, _saving_zones(study, last), *(notes if undefined else []), warning=_label(study.synthetic))
    return figure


def _saving_zones(study: SavingsStudy, last: NDArray[np.float64]) -> str:
    """Return what the largest slack saves from the first hour on, which is drawn, in the median zone and the best one."""
    if np.isnan(last).all():
        return "No zone emits anything without slack"
    best, slack = int(np.nanargmax(last)), f"{study.slack_hours[-1]:g} h of slack"
    best_zone = f"{_percent(last[best])} in {style.shortened(study.zones[best], _LONGEST_ZONE)}"
    if len(last) == 1:
        return f"From the first hour on, {slack} save {best_zone}"
    return f"From the first hour on, {slack} save {_percent(np.nanmedian(last))} in the median zone, and {best_zone}"


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
    notes = [f"{study.hours} h of training, {study.slack} h of slack."]
    if undefined:
        notes.append(f"Undefined up to N = {undefined}, where nothing is emitted.")
    headline(figure, _saving_groups(study), *notes, warning=_label(study.synthetic))
    return figure


def _saving_groups(study: SavingsStudy) -> str:
    """Return what slack saves for all clients and for the group that saves most."""
    mean = study.group.mean
    if np.isnan(mean).all():
        return "Nothing is emitted without slack"
    best, count = int(np.nanargmax(mean)), len(mean)
    everybody = (
        f"Slack saves {_percent(mean[-1])} for all {count} clients"
        if count > 1
        else f"Slack saves {_percent(mean[-1])}"
    )
    if best == count - 1:
        return everybody
    return f"{everybody}, and {_percent(mean[best])} for the {f'{best + 1} cleanest' if best else 'cleanest one'}"


def compare_chart(points: Sequence[WhatIf]) -> Figure:
    """Draw saved kg by budget: a colour for each slack, a marker for each alpha; infeasible budgets at the bottom."""
    if not points:
        raise ScenarioError("There is nothing to compare: give at least one budget, slack or alpha.")
    alphas, slacks = list(dict.fromkeys(point.alpha for point in points)), sorted({point.slack for point in points})
    figure = new_figure(1.4 * style.COLUMN_IN, 3.4)
    axes = figure.subplots()
    for (number, slack), (mark, alpha) in product(enumerate(slacks), enumerate(alphas)):
        here = sorted((p for p in points if (p.slack, p.alpha) == (slack, alpha)), key=lambda p: p.budget_kg)
        solved = [(p.budget_kg, p.saved_kg) for p in here if p.saved_kg is not None]
        axes.plot([kg for kg, _ in solved], [saved for _, saved in solved], gid=f"{slack}, {alpha}",
                  **_look(number, mark))  # fmt: skip
    refused = [(p.budget_kg, slacks.index(p.slack)) for p in points if p.status == "infeasible"]
    for number in sorted({number for _, number in refused}):
        # Stacked, because one budget can be infeasible for several slacks.
        height = 0.03 + 0.05 * min(number, 10)
        budgets = sorted({kg for kg, other in refused if other == number})
        axes.plot(budgets, [height] * len(budgets), transform=axes.get_xaxis_transform(), linestyle="", marker="x",
                  markersize=4.5, color=_colour(number), gid="infeasible")  # fmt: skip
    _budget_axis(axes, sorted({point.budget_kg for point in points}))
    axes.margins(x=0.06, y=0.12)
    axes.axhline(0, color=style.RULE, linewidth=0.8, zorder=1)
    if all(point.saved_kg is None for point in points):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "every budget is infeasible", transform=axes.transAxes, ha="center", fontsize=style.FONT_PT)
    tidy(axes, grid="both", xlabel="budget, kg CO$_2$e", ylabel="saved, kg CO$_2$e")
    labels = [(f"slack {slack}", _look(number, 0, plain=True)) for number, slack in enumerate(slacks)]
    if len(alphas) > 1:
        labels += [(f"α = {alpha}", _look(None, mark)) for mark, alpha in enumerate(alphas)]
    if refused:
        labels.append(("infeasible", {"linestyle": "", "marker": "x", "color": style.MUTED}))
    figure.legend(handles=[axes.plot([], [], label=label, **look)[0] for label, look in labels],
                  loc="outside lower center", ncols=4, frameon=False, fontsize=style.FONT_PT)  # fmt: skip
    headline(figure, _most_saved(points), "Saved: against the same client-slots at once.",
             warning=_label(any(point.synthetic for point in points)))  # fmt: skip
    return figure


def _most_saved(points: Sequence[WhatIf]) -> str:
    solved = [point for point in points if point.saved_kg is not None]
    if not solved:
        return "No budget of these is feasible"
    best = max(solved, key=lambda point: (point.saved_kg, -point.budget_kg))
    if not best.saved_share or best.saved_share < 0.005:
        return "None of these saves anything"
    with_alpha = f" and α = {best.alpha}" if len({point.alpha for point in points}) > 1 else ""
    return (
        f"A slack of {best.slack} with {style.kilograms(best.budget_kg)} kg{with_alpha} saves most: "
        f"{style.kilograms(best.saved_kg or 0.0)} kg ({_percent(best.saved_share)})"
    )


def _colour(number: int) -> str:
    return style.SERIES[number % len(style.SERIES)]


def _look(number: int | None, mark: int, *, plain: bool = False) -> dict[str, Any]:
    """Return the look of a line by its slack's number (None: of no slack) and its alpha's number."""
    rounds = 0 if number is None else number // len(style.SERIES)  # a second pass through the colours is dashed
    return {
        "color": style.MUTED if number is None else _colour(number),
        "linestyle": "" if number is None else ("-", "--", ":", "-.")[rounds % 4],
        "marker": "" if plain else style.MARKERS[mark % len(style.MARKERS)],
        "markersize": 4.0,
        "linewidth": 1.2,
    }


def _budget_axis(axes: Axes, kg: Sequence[float]) -> None:
    """Use a logarithmic scale with plain numbers if the kg span much."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if kg[-1] > _LOG_FROM * kg[0] > 0:
        axes.set_xscale("log")
        decades = math.log10(kg[-1] / kg[0])
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def advice_chart(advice: Advice) -> Figure:
    """Draw predicted remaining error by kg, a line for each slack, with its knee and the recommended pair marked."""
    figure = new_figure(1.4 * style.COLUMN_IN, 3.4)
    axes = figure.subplots()
    for number, slack in enumerate(sorted({row.slack for row in advice.rows})):
        here = sorted((row for row in advice.rows if row.slack == slack), key=lambda row: row.emissions_kg)
        look = _look(number, 0)
        by = f"{utc(here[0].finish_by).astimezone(time_zone(advice.time_zone)):%d %b}"
        axes.plot([row.emissions_kg for row in here], [100 * row.remaining_error for row in here],
                  label=f"slack {slack:,}, by {by}", **look | {"markersize": 2.5})  # fmt: skip
        knees = [row for row in here if row.knee]
        axes.plot([row.emissions_kg for row in knees], [100 * row.remaining_error for row in knees], linestyle="", marker="D",
                  markersize=5.5, color=look["color"], gid="knees")  # fmt: skip
    best = advice.recommended
    axes.plot([best.emissions_kg], [100 * best.remaining_error], linestyle="", marker="o", markersize=11, fillstyle="none",
              markeredgewidth=1.6, color=style.INK, label="recommended", gid="recommended", zorder=5)  # fmt: skip
    axes.plot([], [], linestyle="", marker="D", markersize=5.5, color=style.MUTED, label="enough for its slack")
    _budget_axis(axes, sorted(row.emissions_kg for row in advice.rows))
    axes.margins(x=0.06)
    axes.set_ylim(bottom=0)
    tidy(axes, grid="both", xlabel="emissions, kg CO$_2$e", ylabel="predicted remaining error, %")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=style.FONT_PT)
    least = min(row.remaining_error for row in advice.rows)
    finding = (
        f"{style.kilograms(best.budget_kg)} kg with a slack of {best.slack:,} are enough: error {_percent(best.remaining_error)}, "
        f"the best has {_percent(least)}"
    )
    headline(figure, finding, "The error ranks plans; it is not an accuracy.", warning=_label(advice.synthetic))
    return figure


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _label(synthetic: bool) -> str:
    return style.SYNTHETIC if synthetic else ""


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
    headline(figure, _unevenness(held), title or f"{held.sum():,} samples, {clients} clients")
    return figure


def _unevenness(held: NDArray[np.int64]) -> str:
    """Return how much the clients' numbers of samples differ, and how many classes a client lacks."""
    totals, lacking = held.sum(axis=1), int((held == 0).sum(axis=1).max())
    least, most = int(totals.min()), int(totals.max())
    samples = f"{least:,} to {most:,} samples" if least < most else f"{least:,} samples"
    classes = f"up to {lacking} of {held.shape[1]} classes missing" if lacking else f"all {held.shape[1]} classes"
    return f"A client has {samples}, with {classes}"


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
