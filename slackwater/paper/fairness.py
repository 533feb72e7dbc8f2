"""Schedules at both ends of alpha (Fig. 4), and what fairness does to accuracy (Fig. 5)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.errors import InfeasibleError
from slackwater.paper import published
from slackwater.paper.cells import Cell, Store
from slackwater.paper.output import Output
from slackwater.paper.setting import NAMES, ZONES, Source, problem
from slackwater.paper.sweeps import ALPHA_BUDGETS, ALPHAS, alpha_cells
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS, BUDGET_KG = 50, 2.0
GREEDY, FAIR = 1.0, 0.001
_SEARCH = {
    "rounds": (50, 100, 150),
    "slack": (0, 50, 100, 236),
    "budget_kg": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    "fine_tune": (0,),
}


def schedules(source: Source) -> Output:
    """Fig. 4: who trains when at alpha = 1 and 0.001, with a search for the setting that the paper does not state."""
    greedy, fair = (_schedule(source, ROUNDS, 0, BUDGET_KG, alpha) for alpha in (GREEDY, FAIR))
    rows = [
        {"zone": zone, "alpha_1": int(a), "alpha_0.001": int(b)}
        for zone, a, b in zip(ZONES, greedy.matrix.sum(axis=1), fair.matrix.sum(axis=1), strict=True)
    ]
    tried = search(source)
    nearest = min(tried, key=lambda row: row["distance"])
    notes = [
        f"T = {ROUNDS}, no slack, {BUDGET_KG:g} kg: {_described(_figures(greedy, fair))}.",
        f"The paper: {published.FAIR_SLOTS_LOST:.0%} fewer slots, most to least selected {published.FAIR_RATIO:g}, "
        f"rho_H {published.FAIR_RHO_H:g}; it does not say for which budget and horizon.",
        f"Left out at alpha = 1: {_left_out(greedy)}; at 0.001: {_left_out(fair)}.",
        f"Nearest of {len(tried)} settings tried: T = {nearest['rounds']}, slack {nearest['slack']}, "
        f"{nearest['budget_kg']:g} kg: {_described(nearest)}.",
    ]
    return Output(name="fig4", title="Schedules at alpha = 1 and 0.001", rows=rows, notes=notes,
                  figure=_matrices([("(a) alpha = 1", greedy), ("(b) alpha = 0.001", fair)]), more={"search": tried})  # fmt: skip


def _schedule(source: Source, rounds: int, slack: int, budget_kg: float, alpha: float) -> Plan:
    row = problem(source, rounds=rounds, slack=slack, fine_tune=0, alpha=alpha, budget_kg=budget_kg)
    return plan(row, end=slack)


def search(source: Source) -> list[dict[str, Any]]:
    """The stated figures for many budgets and horizons, and how far each is from them."""
    tried = []
    for rounds in _SEARCH["rounds"]:
        for slack in _SEARCH["slack"]:
            for kg in _SEARCH["budget_kg"]:
                try:
                    both = [_schedule(source, int(rounds), int(slack), kg, alpha) for alpha in (GREEDY, FAIR)]
                except InfeasibleError:
                    continue
                tried.append({"rounds": rounds, "slack": slack, "budget_kg": kg} | _figures(*both))
    return tried


def _figures(greedy: Plan, fair: Plan) -> dict[str, Any]:
    most, few = int(greedy.matrix.sum()), int(fair.matrix.sum())
    counts = fair.matrix.sum(axis=1)
    lost, rho = 1 - few / most, fair.metrics.rho_h
    ratio = float(counts.max() / counts.min()) if counts.min() else math.inf
    stated = (published.FAIR_SLOTS_LOST, published.FAIR_RATIO, published.FAIR_RHO_H)
    apart = [abs(math.log(max(found, 1e-9) / wanted)) if math.isfinite(found) else math.inf
             for found, wanted in zip((lost, ratio, rho), stated, strict=True)]  # fmt: skip
    return {"slots_greedy": most, "slots_fair": few, "lost": round(lost, 4), "ratio": round(ratio, 3),
            "rho_h": round(rho, 3), "distance": round(sum(apart), 4)}  # fmt: skip


def _described(found: dict[str, Any]) -> str:
    return (
        f"{found['slots_greedy']} slots at alpha = 1 and {found['slots_fair']} at 0.001, {found['lost']:.0%} fewer; "
        f"most to least selected {found['ratio']:.1f}; rho_H {found['rho_h']:.1f}"
    )


def _left_out(one: Plan) -> str:
    names = [NAMES[zone] for zone, count in zip(ZONES, one.matrix.sum(axis=1), strict=True) if not count]
    return ", ".join(names) or "nobody"


def _matrices(plans: Sequence[tuple[str, Plan]]) -> Figure:
    figure = new_figure(style.COLUMN_IN, 1.45 * len(plans) + 0.3)
    from matplotlib.colors import ListedColormap

    panels = figure.subplots(len(plans), 1, sharex=True)
    for axes, (title, one) in zip(panels, plans, strict=True):
        axes.pcolormesh(one.matrix, cmap=ListedColormap([style.IDLE, style.TRAINS]), vmin=0, vmax=1, rasterized=True,
                        edgecolors="white", linewidth=0.2)  # fmt: skip
        axes.set_yticks(np.arange(len(ZONES)) + 0.5, ZONES)
        axes.invert_yaxis()
        axes.set_title(f"{title}: {int(one.matrix.sum())} slots", fontsize=style.FONT_PT, loc="left")
        tidy(axes, frame=())
        axes.tick_params(axis="y", length=0, labelsize=style.FONT_PT - 1)
    synthetic = f" ({style.SYNTHETIC})" if plans[0][1].problem.traces.synthetic else ""
    panels[-1].set_xlabel(f"hour; dark: trains, pale: does not{synthetic}", fontsize=style.FONT_PT)
    return figure


def accuracy_by_alpha(store: Store, cells: Sequence[Cell] | None = None) -> Output:
    """Fig. 5: test accuracy against alpha at three budgets."""
    found: dict[tuple[float, float], list[float]] = {}
    for cell in alpha_cells() if cells is None else cells:
        found.setdefault((float(cell.budget_kg or 0), cell.alpha), []).extend(store.accuracies([cell]))
    rows: list[dict[str, Any]] = [
        {"budget_kg": kg, "alpha": alpha, "accuracy_mean": round(statistics.mean(values), 3),
         "accuracy_std": round(statistics.stdev(values), 3) if len(values) > 1 else "", "seeds": len(values)}
        for (kg, alpha), values in found.items() if values
    ]  # fmt: skip
    notes = []
    for kg in ALPHA_BUDGETS:
        means = {row["alpha"]: row["accuracy_mean"] for row in rows if row["budget_kg"] == kg}
        if GREEDY in means and len(means) > 1:
            fair = {alpha: mean for alpha, mean in means.items() if alpha <= 0.1}
            best = max(fair, key=lambda alpha: fair[alpha], default=None)
            stated = published.FAIRNESS_GAIN.get(kg)
            paper = f"+{stated:g}" if stated else "a loss, below 1 kg"
            if best is not None:
                notes.append(
                    f"{kg:g} kg: {fair[best] - means[GREEDY]:+.2f} points from alpha = 1 ({means[GREEDY]:.2f} %) to alpha = {best:g} "
                    f"(the paper: {paper})."
                )
    return Output(
        name="fig5", title="Accuracy against alpha", rows=rows, notes=notes, figure=_lines(rows) if rows else None
    )


def _lines(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = new_figure(style.COLUMN_IN, 2.4)
    axes = figure.subplots()
    for number, kg in enumerate(sorted({row["budget_kg"] for row in rows})):
        here = sorted((row for row in rows if row["budget_kg"] == kg), key=lambda row: row["alpha"])
        axes.errorbar(
            [row["alpha"] for row in here], [row["accuracy_mean"] for row in here], [row["accuracy_std"] or 0 for row in here],
            color=style.SERIES[number], marker=style.MARKERS[number], markersize=4, linewidth=1.2, capsize=2, label=f"{kg:g} kg",
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS])
    axes.minorticks_off()
    axes.set_xlabel(r"$\alpha$ (small: carbon-fair, 1: carbon-greedy)", fontsize=style.FONT_PT)
    axes.set_ylabel("test accuracy, %", fontsize=style.FONT_PT)
    axes.grid(color=style.RULE, linewidth=0.5)
    axes.legend(fontsize=style.FONT_PT, frameon=False)
    tidy(axes)
    return figure
