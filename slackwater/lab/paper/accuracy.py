"""Compare our accuracies with the paper's: no-slack column, tables for t_ft = 1 and 3, best against baseline (Fig. 7)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.charts import style
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.errors import InfeasibleError
from slackwater.lab.paper import published
from slackwater.lab.paper.cells import Cell, Store
from slackwater.lab.paper.output import Output
from slackwater.lab.paper.setting import ENDS, HOURS, Source, problem
from slackwater.planning.planner import plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {1: "table1a", 3: "table1b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Mean over seeds, in percent."""

    mean: float
    std: float | None
    seeds: int
    lr: float

    def __str__(self) -> str:
        spread = f" ± {self.std:.2f}" if self.std is not None else ""
        return f"{self.mean:.2f}{spread} ({self.seeds})"


def mean_of(values: Sequence[float], lr: float) -> Mean | None:
    """Return the mean of accuracies in percent, or None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Mean(mean=statistics.mean(values), std=std, seeds=len(values), lr=lr)


def no_slack(store: Store, cells: Sequence[Cell]) -> dict[int, Mean]:
    """Return the baseline's accuracy by T, from the rounds of one run per seed."""
    curves = [row["by_round"] for row in map(store.get, cells) if row is not None and row["status"] == "trained"]
    found = {}
    for hours in sorted({hours for rows in HOURS.values() for hours in rows}):
        values = [100 * curve[hours - 1] for curve in curves if len(curve) >= hours and curve[hours - 1] is not None]
        mean = mean_of(values, cells[0].lr)
        if mean is not None:
            found[hours] = mean
    return found


def best_rate(store: Store, cells: Sequence[Cell]) -> Mean | None:
    """Return the best mean over the learning rates, which are tuned for each cell, as in the paper."""
    by_rate: dict[float, list[float]] = {}
    for cell in cells:
        by_rate.setdefault(cell.lr, []).extend(store.accuracies([cell]))
    most = max((len(values) for values in by_rate.values()), default=0)
    # A rate with fewer seeds than another does not win by chance.
    means = [mean_of(values, lr) for lr, values in by_rate.items() if len(values) == most]
    return max((mean for mean in means if mean is not None), key=lambda mean: mean.mean, default=None)


def feasible(source: Source, fine_tune: int) -> dict[tuple[int, int], bool]:
    """Return by (T, s) whether the budget pays the window."""
    found = {}
    for hours in HOURS[fine_tune]:
        row = problem(source, rounds=hours, fine_tune=fine_tune)
        for end in ENDS:
            try:
                plan(row, end=end, planner="paper")
                found[hours, end] = True
            except InfeasibleError:
                found[hours, end] = False
    return found


def table(source: Source, store: Store, fine_tune: int, cells: Sequence[Cell]) -> Output:
    """Make a table of accuracy by budget and end time from `cells`, trained or not, at any rate."""
    grouped: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault((cell.rounds, cell.end), []).append(cell)
    can = feasible(source, fine_tune)
    rows = []
    for hours in HOURS[fine_tune]:
        for end in ENDS:
            ours = best_rate(store, grouped.get((hours, end), [])) if can[hours, end] else None
            stated = published.ACCURACY[fine_tune, hours, end]
            rows.append({
                "T": hours, "s": end, "feasible": can[hours, end], "paper_feasible": stated is not None,
                "accuracy_mean": "" if ours is None else round(ours.mean, 3),
                "accuracy_std": "" if ours is None or ours.std is None else round(ours.std, 3),
                "seeds": 0 if ours is None else ours.seeds, "lr": "" if ours is None else ours.lr,
                "paper_mean": "" if stated is None else stated[0], "paper_std": "" if stated is None else stated[1],
            })  # fmt: skip
    same = sum(row["feasible"] == row["paper_feasible"] for row in rows)
    trained = [row for row in rows if row["seeds"]]
    notes = [f"{len(trained)} of {sum(can.values())} feasible cells trained; {same} of {len(rows)} cells are feasible or "
             "infeasible as in the paper."]  # fmt: skip
    return Output(
        name=NAMES[fine_tune], title=f"Accuracy, t_ft = {fine_tune}, alpha = 0.1, U-FedAvg", rows=rows, notes=notes
    )


def baseline(store: Store, cells: Sequence[Cell]) -> Output:
    """Make the no-slack column, with the paper's."""
    found = no_slack(store, cells)
    rows: list[dict[str, Any]] = []
    for hours, mean in found.items():
        stated = next(value for (_, T), value in published.BASELINE.items() if hours == T)
        rows.append({"T": hours, "accuracy_mean": round(mean.mean, 3), "accuracy_std": "" if mean.std is None else round(mean.std, 3),
                     "seeds": mean.seeds, "paper_mean": stated[0], "paper_std": stated[1],
                     "difference": round(mean.mean - stated[0], 3)})  # fmt: skip
    worst = max((abs(row["difference"]) for row in rows), default=0.0)
    notes = [f"Largest difference from the paper's column: {worst:.2f} points (aim: 0.5)."] if rows else []
    return Output(
        name="baseline", title="No slack: all clients in every round until the budget is spent", rows=rows, notes=notes
    )


def setting(store: Store, cells: Sequence[Cell]) -> Output:
    """Make the table of the search for local steps and learning rate: no-slack accuracy after 3, 4, 5 and 10 rounds."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        row = store.get(cell)
        if row is not None and row["status"] == "trained":
            curve = row["by_round"]
            rows.append({"local_steps": cell.local_steps, "batch": cell.batch_size, "lr": cell.lr, "seed": cell.seed,
                         "seconds": row["seconds"],
                         **{f"T{hours}": round(100 * curve[hours - 1], 2) for hours in (3, 4, 5, 10) if len(curve) >= hours}})  # fmt: skip
    if rows:
        rows.append({"local_steps": "the paper", "batch": "", "lr": "", "seed": "", "seconds": "",
                     **{f"T{hours}": published.BASELINE[1, hours][0] for hours in (3, 4, 5, 10)}})  # fmt: skip
    return Output(name="setting", title="The local work, which the paper does not state", rows=rows)


def scatter(store: Store, cells: Sequence[Cell], baseline_runs: Sequence[Cell]) -> Output:
    """Make Fig. 7: for each budget the best end time and window against no slack."""
    without = no_slack(store, baseline_runs)
    grouped: dict[tuple[int, int, int], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault((cell.fine_tune, cell.rounds, cell.end), []).append(cell)
    means = {key: mean for key, group in grouped.items() if (mean := best_rate(store, group)) is not None}
    rows = []
    for hours, base in without.items():
        here = {key: mean for key, mean in means.items() if key[1] == hours}
        if here:
            best = max(here, key=lambda key: here[key].mean)
            paper = {
                key: value[0] for key, value in published.ACCURACY.items() if key[1] == hours and value is not None
            }
            stated = max(paper, key=lambda key: paper[key])
            rows.append({"T": hours, "baseline": round(base.mean, 3), "best": round(here[best].mean, 3), "t_ft": best[0], "s": best[2],
                         "seeds": here[best].seeds, "gain": round(here[best].mean - base.mean, 3), "cells": len(here),
                         "paper_gain": round(paper[stated] - published.BASELINE[stated[0], hours][0], 3),
                         "paper_t_ft": stated[0], "paper_s": stated[2]})  # fmt: skip
    notes = [f"T = {row['T']}: {row['gain']:+.2f} points at t_ft = {row['t_ft']}, s = {row['s']} (the paper: {row['paper_gain']:+.2f} at "
             f"t_ft = {row['paper_t_ft']}, s = {row['paper_s']})." for row in rows]  # fmt: skip
    return Output(name="fig7", title="Best schedule against no slack, by budget", rows=rows, notes=notes,
                  figure=_scatter(rows) if rows else None)  # fmt: skip


def _scatter(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = new_figure(style.COLUMN_IN, 2.9)
    axes = figure.subplots()
    low = min(min(row["baseline"], row["best"]) for row in rows) - 0.6
    axes.plot([low, 100], [low, 100], color=style.MUTED, linewidth=0.8, linestyle="--")
    axes.plot(
        [row["baseline"] for row in rows], [row["best"] for row in rows], "o", color=style.SERIES[0], markersize=4.5
    )
    axes.set_xlim(low, 99.6)
    axes.set_ylim(low, 99.6)
    axes.set_xlabel("no slack: test accuracy, %", fontsize=style.FONT_PT)
    axes.set_ylabel("best schedule: test accuracy, %", fontsize=style.FONT_PT)
    axes.grid(color=style.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    tidy(axes)
    gains = [row["best"] - row["baseline"] for row in rows]
    headline(figure, f"The best schedule gains {sum(gains) / len(gains):.2f} points on average, in {sum(gain > 0 for gain in gains)} of "
             f"{len(gains)} horizons")  # fmt: skip
    _label(figure, axes, {f"T = {row['T']}": (row["baseline"], row["best"]) for row in rows})
    return figure


_SIDES = (((0, 5), "center", "bottom"), ((0, -5), "center", "top"), ((5, 0), "left", "center"), ((-5, 0), "right", "center"),
          ((4, -4), "left", "top"), ((-4, 4), "right", "bottom"), ((14, -14), "left", "top"))  # fmt: skip
"""Offset of a label in points, and its alignment."""


def _label(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Label each point on the first side where the label covers no point and no other label."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # the positions are known only after that
    taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in axes.transData.transform(list(points.values()))]
    for text, point in points.items():
        for (x, y), across, up in _SIDES:
            shown = axes.annotate(text, point, xytext=(x, y), textcoords="offset points", ha=across, va=up,
                                  fontsize=style.FONT_PT - 1)  # fmt: skip
            box = shown.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
            if (x, y) != _SIDES[-1][0]:
                shown.remove()
        taken.append(box)
