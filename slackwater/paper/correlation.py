"""Heterogeneity and correlation of participation, with and without fine-tuning: the paper's Fig. 6."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.learning.participation import cells as processes
from slackwater.paper import published
from slackwater.paper.cells import Cell, Store
from slackwater.paper.output import Output
from slackwater.paper.setting import ZONES
from slackwater.paper.sweeps import PROCESS_FINE_TUNE, process_cells
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def correlation(store: Store, cells: Sequence[Cell] | None = None) -> Output:
    """Eight processes, each with its rho values, without fine-tuning and with the last ten rounds for everybody."""
    found: dict[tuple[str, int], list[float]] = {}
    for cell in process_cells() if cells is None else cells:
        found.setdefault((cell.process, cell.fine_tune), []).extend(store.accuracies([cell]))
    rows = []
    for process in processes(len(ZONES)):
        row: dict[str, Any] = {"cell": process.name, "rho_h": round(process.rho_h, 3), "rho_t": round(process.rho_t, 3),
                               "rho_s": round(process.rho_s, 3), "rho_ts": round(process.rho_ts, 3)}  # fmt: skip
        for fine_tune in (0, PROCESS_FINE_TUNE):
            values = found.get((process.name, fine_tune), [])
            if values:
                row[f"ft{fine_tune}_mean"] = round(statistics.mean(values), 3)
                row[f"ft{fine_tune}_std"] = round(statistics.stdev(values), 3) if len(values) > 1 else ""
                row["seeds"] = len(values)
        if "seeds" in row:
            rows.append(row)
    return Output(name="fig6", title="Accuracy under heterogeneous and correlated participation", rows=rows, notes=_notes(rows),
                  figure=_bars(rows) if rows else None)  # fmt: skip


def effects(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Points lost by temporal correlation, by spatial on top of it, and won back at most by fine-tuning."""
    plain = {row["cell"]: row["ft0_mean"] for row in rows if "ft0_mean" in row}
    tuned = {row["cell"]: row[f"ft{PROCESS_FINE_TUNE}_mean"] for row in rows if f"ft{PROCESS_FINE_TUNE}_mean" in row}
    gains = [tuned[cell] - plain[cell] for cell in plain if cell in tuned]
    differences = {}
    for name, pairs in {
        "temporal": [(f"{h}-TU-{s}", f"{h}-TC-{s}") for h in ("HO", "HE") for s in ("SU",)],
        "spatial": [(f"{h}-TC-SU", f"{h}-TC-SC") for h in ("HO", "HE")],
    }.items():
        there = [plain[a] - plain[b] for a, b in pairs if a in plain and b in plain]
        if there:
            differences[name] = statistics.mean(there)
    if gains:
        differences["fine-tuning"] = max(gains)
    return differences


def _notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    stated = {
        "temporal": ("Temporal correlation costs {:.2f} points without spatial", published.TEMPORAL_LOSS),
        "spatial": ("spatial correlation another {:.2f} on top of it", published.SPATIAL_LOSS),
        "fine-tuning": ("fine-tuning gives back at most {:.2f}", published.FINE_TUNING_GAIN),
    }
    found = effects(rows)
    return [f"{stated[name][0].format(value)} (the paper: {stated[name][1]:g})." for name, value in found.items()]


def _bars(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = new_figure(style.COLUMN_IN, 2.6)
    axes = figure.subplots()
    places = np.arange(len(rows))
    lowest = 100.0
    for shift, fine_tune, colour, hatch in (
        (-0.2, 0, style.SERIES[1], ""),
        (0.2, PROCESS_FINE_TUNE, style.SERIES[0], "///"),
    ):
        means = [row.get(f"ft{fine_tune}_mean", np.nan) for row in rows]
        errors = [row.get(f"ft{fine_tune}_std") or 0 for row in rows]
        label = f"$t_{{ft}}$ = {fine_tune}" if fine_tune else "no fine-tuning"
        axes.bar(places + shift, means, 0.38, yerr=errors, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4,
                 error_kw={"elinewidth": 0.8, "capsize": 1.5}, label=label)  # fmt: skip
        lowest = min([lowest, *(m - float(e) for m, e in zip(means, errors, strict=True) if not np.isnan(m))])
    axes.set_ylim(max(0.0, lowest - 2), 100)
    labels = [
        f"{row['cell'].replace('-', chr(10))}\n{row['rho_h']:.1f}\n{row['rho_t']:.2f}\n{row['rho_s']:.2f}"
        for row in rows
    ]
    axes.set_xticks(places, labels)
    axes.set_ylabel("test accuracy, %", fontsize=style.FONT_PT)
    axes.grid(axis="y", color=style.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    tidy(axes)
    axes.tick_params(axis="x", labelsize=style.FONT_PT - 1, length=0)
    axes.annotate("\n\n\n" + r"$\rho_H$" + "\n" + r"$\rho_T$" + "\n" + r"$\rho_S$", (0, 0), xycoords="axes fraction", xytext=(-4, -4),
                  textcoords="offset points", ha="right", va="top", fontsize=style.FONT_PT - 1)  # fmt: skip
    figure.legend(loc="outside upper center", ncols=2, fontsize=style.FONT_PT, frameon=False)
    return figure
