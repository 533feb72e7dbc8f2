"""Comparison of methods: a terminal table, and a chart that ranks them by accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.result_charts import kinds_label
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.lab.policies.comparison import KIND, Line
from slackwater.ledger.schema import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS = "ours"
_PERFECT = 100.3
"""End of the accuracy scale, with room for 100 %."""
_TICKS = (10.0, 30.0, 50.0, 70.0, 80.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5, 100.0)
_LEAST_GAP = 0.1
"""Of the axis, between a further tick and its neighbours."""


def summary(table: Sequence[Line], *, synthetic: bool = False) -> RenderableType:
    """Return a block for each budget, the most accurate method first."""
    blocks: list[RenderableType] = []
    for budget in sorted({line.budget_kg for line in table}):
        view = Table(box=None, pad_edge=False, header_style="bold", title=f"{budget:g} kg", title_justify="left")
        view.add_column("method")
        for name in ("accuracy", "worst client", "kg", "slots", "rho_H", "h to target", "kg to target"):
            view.add_column(name, justify="right")
        for line in (one for one in table if one.budget_kg == budget):
            view.add_row(Text(line.method), *_cells(line))
        blocks.append(view)
    target = table[0].target if table else math.nan
    legend = (
        f"Mean and deviation over seeds. slots: until the last round; target: {target:.1%} (number of seeds that reach it); "
        "rho_H: before the fine-tuning window; inf: a client never trains before it."
    )
    blocks.append(Text(legend, style="dim"))
    blocks.append(Text(KINDS[KIND].sentence, style="yellow"))
    if synthetic:
        blocks.append(Text(f"{style.SYNTHETIC}: typical profiles, not measured", style="bold yellow"))
    return Group(*blocks)


def _cells(line: Line) -> list[str]:
    if not line.seeds:
        return ["no schedule", *[""] * 6]
    reached = f" ({line.reached} of {line.seeds})" if 0 < line.reached < line.seeds else ""
    diverged = f" ({line.diverged} diverged)" if line.diverged else ""
    return [
        f"{100 * line.accuracy:.2f} ± {100 * line.accuracy_sd:.2f}{diverged}",
        _number(100 * line.worst_client, ".2f") + _number(100 * line.worst_client_sd, ".2f", " ± "),
        _number(line.kg, ".3f"),
        _number(line.slots, ".0f"),
        _number(line.rho_h, ".2f"),
        _number(line.hours_to_target, ".0f") + reached,
        _number(line.kg_to_target, ".3f"),
    ]


def _number(value: float, form: str, before: str = "") -> str:
    return ("" if before else "-") if math.isnan(value) else f"{before}{value:{form}}"


def chart(table: Sequence[Line], *, synthetic: bool = False) -> Figure:
    """Draw the methods ranked by accuracy, the best at the top: a dot for each budget with its deviation over seeds.

    Methods are ranked by their mean over the budgets, where a missing one counts as 0; ours are bold.
    """
    trained = sorted((line for line in table if line.seeds), key=lambda line: line.budget_kg)
    budgets = sorted({line.budget_kg for line in trained})
    total: dict[str, float] = {}
    for line in trained:
        total[line.method] = total.get(line.method, 0.0) + line.accuracy
    methods = sorted(total, key=lambda method: -total[method])
    figure = new_figure(0.8 * style.TEXT_IN, 1.5 + 0.19 * len(methods))
    axes = figure.subplots()
    for number, budget in enumerate(budgets):
        here = [line for line in trained if line.budget_kg == budget]
        above = [100 * min(line.accuracy_sd, 1 - line.accuracy) for line in here]  # accuracy ends at 100 %
        axes.errorbar(
            [100 * line.accuracy for line in here], [methods.index(line.method) for line in here],
            xerr=[[100 * line.accuracy_sd for line in here], above], linestyle="", elinewidth=0.7,
            marker=style.MARKERS[number % len(style.MARKERS)], markersize=4.5, color=style.SERIES[number % len(style.SERIES)],
            label=f"{budget:.3g} kg", zorder=3,
        )  # fmt: skip
    axes.set_yticks(range(len(methods)), methods, parse_math=False)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    tidy(
        axes,
        frame=("bottom",),
        grid="both",
        xlabel="test accuracy, %, on a scale of the error: mean and deviation over seeds",
    )
    axes.tick_params(axis="y", length=0)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith(_OURS) else "normal")
    _by_error(axes)
    figure.legend(
        loc="outside lower center", ncols=6, frameon=False, fontsize=style.FONT_PT, title_fontsize=style.FONT_PT
    )
    headline(figure, _best(trained), warning=kinds_label([KIND], synthetic=synthetic))
    return figure


def _best(trained: Sequence[Line]) -> str:
    """Return the most accurate method of each budget."""
    best: dict[str, list[str]] = {}
    for budget in sorted({line.budget_kg for line in trained}):
        first = max((line for line in trained if line.budget_kg == budget), key=lambda line: line.accuracy)
        best.setdefault(first.method, []).append(f"{budget:.3g} kg ({100 * first.accuracy:.1f} %)")
    if not best:
        return "No method has a schedule"
    won = (f"{method} at {' and '.join(budgets)}" for method, budgets in best.items())
    return f"Most accurate: {', '.join(won)}".replace("$", r"\$")


def _by_error(axes: Axes) -> None:
    """Scale accuracy by the logarithm of the error: 97 and 98 % stay apart, and a collapsed method is still visible."""

    def place(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
        return -np.log(np.maximum(_PERFECT - accuracy, 1e-3))

    def accuracy(place: NDArray[np.float64]) -> NDArray[np.float64]:
        return _PERFECT - np.exp(-place)

    least, most = (float(value) for value in axes.dataLim.intervalx)
    low, high = max(0.0, least - 0.1 * (_PERFECT - least)), min(100.1, most + 0.25 * (_PERFECT - most))
    axes.set_xscale("function", functions=(place, accuracy))
    axes.set_xlim(low, high)
    shown = [tick for tick in _TICKS if low <= tick <= high]
    ends = place(np.array([low, high]))
    for tick in np.arange(math.ceil(low), high):  # between ticks that are far apart, whole per cents
        gaps = np.abs(place(np.array([*shown, *ends])) - place(np.array([tick])))
        if gaps.min() > _LEAST_GAP * (ends[1] - ends[0]):
            shown.append(float(tick))
    if len(shown) > 1:
        axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
