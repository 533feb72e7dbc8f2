"""The picture of a schedule, after the paper's Fig. 4: who trains when, under the skyline of the grid's intensity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slackwater.planning.plan import Plan
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy
from slackwater.report.view import Rows, has_times, schedule_rows, time_marks, time_title
from slackwater.units import G_PER_KG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

MOST_ROWS = 60
NONE, ALL, CANNOT, OVER = 0, 4, 5, 6
"""Codes of the cells: nobody trains, 1 to 4 quarters of the row's clients train, none can, after the end of the run."""
_COLOURS = (style.IDLE, *style.PARTLY, style.CANNOT, style.OVER)
_LONGEST_LABEL = 26
# A row is one unit high: the skyline above, the cells below it.
_SKYLINE_TOP, _SKYLINE_FOOT, _CELL_TOP, _CELL_FOOT = 0.06, 0.44, 0.46, 0.94


def schedule_chart(plan: Plan) -> Figure:
    """Draw clients x slots: dark green trains, pale red does not; above 60 clients by zone."""
    rows = schedule_rows(plan, MOST_ROWS)
    count = len(rows.labels)
    height = min(max(0.155 * count, 2.4), 0.42 * count if count > 1 else 0.9)
    figure = new_figure(style.TEXT_IN, height + 1.35)
    axes = figure.subplots()
    _draw_cells(axes, plan, rows)
    _draw_skylines(axes, rows)
    _mark_window(axes, plan, count)
    _write_axes(axes, plan, rows)
    _write_totals(axes, rows, has_times(plan.problem))
    figure.suptitle(_title(plan, rows), x=0.01, ha="left", fontsize=style.TITLE_PT, color=style.INK)
    if plan.problem.traces.synthetic:
        axes.set_title(
            style.SYNTHETIC, loc="left", fontsize=style.TITLE_PT, color=style.WARNING, fontweight="bold", pad=17
        )
    figure.legend(
        handles=_legend(plan, rows),
        loc="outside lower center",
        ncols=4 if rows.grouped else 5,
        frameon=False,
        fontsize=style.FONT_PT,
        handlelength=1.4,
        columnspacing=1.4,
    )
    return figure


def cell_codes(plan: Plan, rows: Rows) -> NDArray[np.int64]:
    """Return [row, slot], what the cells show."""
    codes = np.ceil(rows.share * ALL - 1e-9).astype(np.int64)
    codes[rows.able == 0] = CANNOT
    codes[:, plan.problem.rounds + plan.end :] = OVER
    return codes


def _draw_cells(axes: Axes, plan: Plan, rows: Rows) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    codes, count = cell_codes(plan, rows), len(rows.labels)
    striped = np.full((2 * count - 1, codes.shape[1]), np.nan)  # every other stripe stays free for a skyline
    striped[::2] = codes
    edges = np.column_stack([np.arange(count) + _CELL_TOP, np.arange(count) + _CELL_FOOT]).ravel()
    mesh = axes.pcolormesh(
        np.arange(codes.shape[1] + 1),
        edges,
        striped,
        cmap=ListedColormap(_COLOURS),
        norm=BoundaryNorm(np.arange(len(_COLOURS) + 1) - 0.5, len(_COLOURS)),
        rasterized=True,  # tens of thousands of cells would make a slow PDF
    )
    mesh.set_gid("cells")
    for row, line in enumerate(codes == CANNOT):
        runs = _runs(line)
        if runs:
            axes.broken_barh(
                runs,
                (row + _CELL_TOP, _CELL_FOOT - _CELL_TOP),
                facecolor=style.CANNOT,
                edgecolor=style.MUTED,
                hatch="//////",
                linewidth=0.4,
            )


def _runs(line: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Return (start, length) of the stretches that are True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
    return [(float(a), float(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _draw_skylines(axes: Axes, rows: Rows) -> None:
    slots = np.arange(rows.intensity.shape[1] + 1)
    for row, line in enumerate(rows.intensity):
        # From the row's own lowest to its peak, on a thin base: grids that vary by a tenth show their valleys too.
        above = (line - line.min()) / (np.ptp(line) or 1.0)
        tall = (0.15 + 0.85 * above) * (_SKYLINE_FOOT - _SKYLINE_TOP)
        foot = row + _SKYLINE_FOOT
        axes.fill_between(
            slots, foot - np.append(tall, tall[-1]), foot, step="post", color=style.INTENSITY, linewidth=0, alpha=0.75
        )


def _mark_window(axes: Axes, plan: Plan, count: int) -> None:
    from matplotlib.patches import Rectangle

    first, length, horizon = plan.before, len(plan.window), plan.problem.horizon
    name = f"fine-tuning, {length} slot{'s' * (length > 1)}" if length else f"end, s = {plan.end}"
    axes.add_patch(
        Rectangle((first, 0), length, count, fill=False, edgecolor=style.WINDOW, linewidth=1.2, clip_on=False)
    )
    middle = first + length / 2
    side = "left" if middle < 0.2 * horizon else "right" if middle > 0.8 * horizon else "center"
    axes.annotate(
        f"{name} ▾" if side == "right" else f"▾ {name}" if side == "left" else f"{name}\n▾",
        (middle, 0),
        xytext=({"left": -4, "right": 4, "center": 0}[side], 1),
        textcoords="offset points",
        ha=side,
        va="bottom",
        linespacing=0.9,
        fontsize=style.FONT_PT,
        color=style.WINDOW,
    )


def _write_axes(axes: Axes, plan: Plan, rows: Rows) -> None:
    count, horizon = len(rows.labels), plan.problem.horizon
    axes.set_xlim(0, horizon)
    axes.set_ylim(count, 0)
    labels = [style.shortened(label, _LONGEST_LABEL) for label in rows.labels]
    axes.set_yticks(np.arange(count) + 0.6, labels, parse_math=False)
    marks = time_marks(plan.problem, horizon, most=10)
    axes.set_xticks([at for at, _ in marks], [text for _, text in marks])
    axes.set_xlabel(time_title(plan.problem, horizon), fontsize=style.FONT_PT, color=style.INK)
    tidy(axes, frame=("bottom",))
    axes.tick_params(axis="y", length=0)


def _range(line: NDArray[np.float64]) -> str:
    low, high = line.min(), line.max()
    return f"{low:.0f}–{high:.0f}" if high >= 10 else f"{low:.1f}–{high:.1f}"


def _write_totals(axes: Axes, rows: Rows, timed: bool) -> None:
    """Write columns to the right of the rows."""
    columns = [
        ("slots", [f"{n:,}" for n in rows.slots]),
        ("kg", [f"{kg:.3f}" if rows.kg.max() < 1000 else f"{kg:,.0f}" for kg in rows.kg]),
    ]
    if rows.grouped:
        columns.insert(0, ("clients", [f"{n:,}" for n in rows.clients]))
    if timed:
        columns.append(("g/kWh", [_range(line) for line in rows.intensity * G_PER_KG]))
    right = 0.0
    for name, cells in columns:
        right += 4.9 * max(len(text) for text in (name, *cells)) + 7.0  # points; a digit of 8 pt is 5 wide
        for at, text in enumerate([name, *cells]):
            axes.annotate(
                text,
                (1.0, 1.0) if at == 0 else (1.0, at - 0.4),
                xycoords="axes fraction" if at == 0 else ("axes fraction", "data"),
                xytext=(right, 2 if at == 0 else 0),
                textcoords="offset points",
                ha="right",
                va="bottom" if at == 0 else "center_baseline",
                fontsize=style.FONT_PT,
                color=style.MUTED if at == 0 else style.INK,
            )


def _title(plan: Plan, rows: Rows) -> str:
    problem, used = plan.problem, plan.emissions_kg
    proof = "optimal, gap below 1e-9" if plan.status == "optimal" else f"gap {plan.gap:.2g}"
    lines = [
        f"{style.kilograms(used)} of {style.kilograms(problem.budget_kg)} kg CO$_2$e used "
        f"({style.percent(used / problem.budget_kg)}), objective {plan.objective:.6g} ({proof}), s = {plan.end}"
    ]
    if rows.by == "zone":
        lines.append(f"{len(problem.fleet):,} clients, shown by zone: share of each zone's clients that train")
    if rows.by == "intensity":
        what = "intensity" if has_times(problem) else "cost"
        lines.append(
            f"{len(problem.fleet):,} clients in {len(rows.labels)} groups by mean {what}, the lowest at the top"
        )
    return "\n".join(lines)


def _legend(plan: Plan, rows: Rows) -> list[Patch]:
    from matplotlib.patches import Patch

    codes = cell_codes(plan, rows)
    what = "intensity" if has_times(plan.problem) else "cost"
    handles = [Patch(color=style.IDLE, label="does not train" if not rows.grouped else "nobody trains")]
    if rows.grouped:
        names = ("up to 25 % train", "25 to 50 %", "50 to 75 %", "75 to 100 %")
        handles += [Patch(color=c, label=name) for c, name in zip(style.PARTLY, names, strict=True)]
    else:
        handles.insert(0, Patch(color=style.TRAINS, label="trains"))
    if np.any(codes == CANNOT):
        handles.append(
            Patch(facecolor=style.CANNOT, edgecolor=style.MUTED, hatch="//////", linewidth=0.4, label="cannot train")
        )
    if np.any(codes == OVER):
        handles.append(Patch(color=style.OVER, label="after the end"))
    handles.append(Patch(color=style.INTENSITY, alpha=0.75, label=f"{what}, each row on its own scale"))
    return handles
