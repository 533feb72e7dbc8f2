"""Comparison of methods: a terminal table, and a chart of accuracy by kg with one line per method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.result_charts import title_kinds
from slackwater.charts.style import new_figure, tidy
from slackwater.lab.policies.comparison import KIND, Line
from slackwater.ledger.schema import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OURS = "ours"
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))
_SMALL_PT = 6.5
_PERFECT = 100.3
"""End of the accuracy scale, with room for 100 %."""
_TICKS = (10.0, 30.0, 50.0, 70.0, 80.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5, 100.0)


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


def chart(table: Sequence[Line], curves: Mapping[str, Sequence[Sequence[float]]], *, synthetic: bool = False) -> Figure:
    """Draw accuracy by kg spent, one line per method, with the deviation over seeds; ours is thicker and on top.

    With several budgets a point is a budget. With one budget, it draws `curves`: method -> [hours, kg, accuracy].
    """
    budgets = sorted({line.budget_kg for line in table})
    best = {line.method: line.accuracy for line in sorted(table, key=lambda line: line.budget_kg) if line.seeds}
    methods = sorted(best, key=lambda method: -best[method])  # by the largest budget of each method
    figure = new_figure(style.COLUMN_IN, 2.6 + 0.13 * math.ceil(len(methods) / 2))
    axes = figure.subplots()
    others = [method for method in methods if not method.startswith(_OURS)]
    ours = [method for method in methods if method.startswith(_OURS)]
    for method in methods:
        own = method in ours
        number = ours.index(method) if own else others.index(method)
        look: dict[str, Any] = {
            "color": style.INK if own else style.SERIES[number % (len(style.SERIES) - 1)],
            "linestyle": _DASHES[(number if own else number // (len(style.SERIES) - 1)) % len(_DASHES)],
            "marker": style.MARKERS[number % len(style.MARKERS)],
            "linewidth": 1.8 if own else 0.9,
            "markersize": 3.5 if own else 3.0,
            "zorder": 4 if own else 3,
            "label": method.replace("$", r"\$"),
        }
        if len(budgets) > 1:
            points = sorted((line for line in table if line.method == method and line.seeds), key=lambda p: p.budget_kg)
            kg = [p.budget_kg if math.isnan(p.kg) else p.kg for p in points]
            above = [100 * min(p.accuracy_sd, 1 - p.accuracy) for p in points]  # accuracy ends at 100 %
            spread = [[100 * p.accuracy_sd for p in points], above]
            axes.errorbar(kg, [100 * p.accuracy for p in points], yerr=spread, elinewidth=0.5, capsize=1.2, **look)
        else:
            way = curves.get(method, ())
            every = 0.2 if len(way) > 1 else None  # spacing along the line; a single point has no length
            axes.plot([kg for _, kg, _ in way], [100 * accuracy for *_, accuracy in way], markevery=every, **look)
    _scales(axes, budgets)
    _by_error(axes)
    figure.legend(
        loc="outside lower center", ncols=3, frameon=False, fontsize=_SMALL_PT, handlelength=2.2, columnspacing=1.0
    )
    title_kinds(figure, [KIND], synthetic=synthetic)
    return figure


def _scales(axes: Axes, budgets: Sequence[float]) -> None:
    """Set the axes. Several budgets are ticks on a logarithmic scale."""
    if len(budgets) > 1:
        axes.set_xscale("log")
        axes.set_xticks(budgets, [f"{budget:.3g}" for budget in budgets])
        axes.minorticks_off()
    axes.set_xlabel("kg CO$_2$e spent", fontsize=style.FONT_PT)
    axes.set_ylabel("test accuracy, %", fontsize=style.FONT_PT)
    axes.grid(color=style.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    tidy(axes)


def _by_error(axes: Axes) -> None:
    """Scale accuracy by the logarithm of the error: 97 and 98 % stay apart, and a collapsed method is still visible."""

    def height(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
        return -np.log(np.maximum(_PERFECT - accuracy, 1e-3))

    def accuracy(height: NDArray[np.float64]) -> NDArray[np.float64]:
        return _PERFECT - np.exp(-height)

    least, most = (float(value) for value in axes.dataLim.intervaly)
    low, high = max(0.0, least - 0.1 * (_PERFECT - least)), min(100.1, most + 0.25 * (_PERFECT - most))
    axes.set_yscale("function", functions=(height, accuracy))
    axes.set_ylim(low, high)
    shown = [tick for tick in _TICKS if low <= tick <= high]
    if len(shown) > 1:
        axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
