"""The paper's figures 1 to 6: intensity and savings, schedules and fairness, heterogeneity and correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slackwater.charts import style
from slackwater.charts.figures import savings_by_clients, savings_heatmap
from slackwater.charts.style import headline, new_figure, tidy
from slackwater.errors import DataError, InfeasibleError
from slackwater.intensity.load import available_zones, load_traces
from slackwater.intensity.traces import Traces
from slackwater.lab.markov_participation import cells as processes
from slackwater.lab.paper import published
from slackwater.lab.paper.cells import ALPHA_BUDGETS, ALPHAS, PROCESS_FINE_TUNE, Cell, Store
from slackwater.lab.paper.output import Output
from slackwater.lab.paper.setting import NAMES, START, ZONES, Source, problem
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.savings import SavingsStudy, study
from slackwater.units import G_PER_KG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DAYS, YEAR_HOURS = 5, 8760
TRAIN_HOURS, MOST_SLACK, EARLY_SLACK, STARTS = 100, 236, 20, 100
_SPREAD = ("mean", "std", "q10", "q90")


def evolution(source: Source) -> Output:
    """Make Fig. 1: intensity of the seven zones, 1 to 5 January 2022."""
    traces = source.traces(24 * DAYS)
    g = traces.intensity * G_PER_KG
    rows = [
        {"zone": zone, **{name: round(float(value), 1) for name, value in _range(line).items()}}
        for zone, line in zip(ZONES, g, strict=True)
    ]
    notes = [
        f"{NAMES[zone]}: {line.min():.0f} to {line.max():.0f} g/kWh, mean {line.mean():.0f}"
        for zone, line in zip(ZONES, g, strict=True)
    ]
    return Output(name="fig1", title="Carbon intensity, 1 to 5 January 2022, g CO2e/kWh (direct)", rows=rows, notes=notes,
                  figure=_curves(traces))  # fmt: skip


def _range(line: NDArray[np.float64]) -> dict[str, float]:
    """Return statistics only: the data's licence may forbid redistributing hourly values."""
    return {"least": line.min(), "mean": line.mean(), "most": line.max()}


def _curves(traces: Traces) -> Figure:
    figure = new_figure(style.COLUMN_IN, 2.5)
    axes = figure.subplots()
    for number, (zone, line) in enumerate(zip(traces.zones, traces.intensity * G_PER_KG, strict=True)):
        hours = np.arange(traces.slots + 1)
        axes.step(hours, np.append(line, line[-1]), where="post", color=style.SERIES[number], linewidth=1.0,
                  linestyle=("-", "--")[number % 2], label=NAMES[zone])  # fmt: skip
    days = [traces.start + timedelta(days=day) for day in range(DAYS + 1)]
    axes.set_xticks(range(0, 24 * DAYS + 1, 24), [f"{day.day} {day:%b}" for day in days])
    axes.set_xlim(0, 24 * DAYS)
    axes.set_ylim(0)
    axes.set_ylabel("g CO$_2$e/kWh", fontsize=style.FONT_PT)
    axes.grid(color=style.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=4, fontsize=style.FONT_PT - 1, frameon=False, handlelength=1.6,
                  columnspacing=1.0)  # fmt: skip
    mean = traces.intensity.mean(axis=1) * G_PER_KG
    low, high = int(mean.argmin()), int(mean.argmax())
    finding = (
        f"A kWh in {NAMES[ZONES[high]]} emits {mean[high] / mean[low]:.0f} times as much as in {NAMES[ZONES[low]]}"
    )
    headline(figure, finding, warning=style.SYNTHETIC if traces.synthetic else "")
    return figure


def all_zones(source: Source, hours: int) -> tuple[Traces, list[str]]:
    """Return the zones with direct intensity in all of the first `hours` of 2022, and the names of those with gaps."""
    known = [info.zone for info in available_zones(source.data) if source.factor in info.factors]
    whole, broken = [], []
    for zone in known:
        try:
            load_traces(source.data, zones=[zone], start=START, hours=hours, factor=source.factor)
            whole.append(zone)
        except DataError:
            broken.append(zone)
    if not whole:
        raise DataError(
            f"{source.data} has no zone with {source.factor} intensity from {START} for {hours} hours. Name another "
            "folder with --all-zones."
        )
    return load_traces(source.data, zones=whole, start=START, hours=hours, factor=source.factor), broken


def savings_by_slack(source: Source, *, hours: int = TRAIN_HOURS, slack: int = MOST_SLACK) -> Output:
    """Make Fig. 2: savings of each zone by slack, from 1 January on."""
    traces, broken = all_zones(source, hours + slack)
    found = study(traces, hours=hours, slack=slack, starts=1)
    last, early = found.heat_map[:, -1], found.heat_map[:, min(EARLY_SLACK, slack) - 1]
    rows = [
        {"zone": zone, **{f"slack_{i + 1}": round(float(value), 6) for i, value in enumerate(line)}}
        for zone, line in zip(found.zones, found.heat_map, strict=True)
    ]
    defined = last[~np.isnan(last)]
    most, soonest = int(np.nanargmax(last)), int(np.nanargmax(early))
    shares = "; ".join(
        f"{np.mean(defined >= least):.0%} of the zones save at least {least:.0%} (the paper: about {stated:.0%})"
        for least, stated in published.SAVED_AT_LEAST.items()
    )
    notes = [
        f"{len(found.zones)} zones with direct intensity{_without(broken)} (the paper has {published.SAVINGS_ZONES}).",
        f"At a slack of {slack} h {shares}; the most is {last[most]:.0%}, {found.zones[most]} (the paper: up to 60 %).",
        f"At a slack of {min(EARLY_SLACK, slack)} h {np.nansum(early >= 0.2):.0f} zones save 20 % or more (the paper: "
        f"clients of variable grids do); the most is {early[soonest]:.0%}, {found.zones[soonest]}.",
    ]  # fmt: skip
    if len(defined) < len(last):
        notes.append(
            f"{len(last) - len(defined)} zones emit nothing without slack, so that savings are undefined there."
        )
    return Output(
        name="fig2", title=f"Savings by slack, T = {hours} h", rows=rows, notes=notes, figure=savings_heatmap(found)
    )


def savings_by_count(
    source: Source, *, starts: int = STARTS, hours: int = TRAIN_HOURS, slack: int = MOST_SLACK
) -> Output:
    """Make Fig. 3: savings of the N cleanest clients, over random starts in the year."""
    traces, broken = all_zones(source, YEAR_HOURS)
    found = study(traces, hours=hours, slack=slack, starts=starts)
    group = found.group
    rows = [
        {"clients": n + 1, **{key: round(float(getattr(group, key)[n]), 6) for key in _SPREAD},
         "starts": int(group.defined[n])}
        for n in range(len(found.zones))
    ]  # fmt: skip
    notes = [_count_note(found, n, stated) for n, stated in ((4, "over 60 %"), (15, "over 40 %"))]
    if broken:
        notes.append(f"{len(found.zones)} zones{_without(broken)}.")
    notes.append(_count_note(found, len(found.zones), f"about 20 % for all {published.SAVINGS_ZONES}"))
    return Output(name="fig3", title=f"Savings of the N cleanest clients, {starts} starts in 2022, seed {found.seed}",
                  rows=rows, notes=notes, figure=savings_by_clients(found))  # fmt: skip


def _without(broken: Sequence[str]) -> str:
    return f", without {', '.join(broken)} for its gaps" if broken else ""


def _count_note(found: SavingsStudy, count: int, stated: str) -> str:
    n = min(count, len(found.zones))
    mean, std = found.group.mean[n - 1], found.group.std[n - 1]
    return f"{n} clients: {mean:.0%} ± {std:.0%} (the paper: {stated})."


ROUNDS, BUDGET_KG = 50, 2.0
GREEDY, FAIR = 1.0, 0.001
_SEARCH = {
    "rounds": (50, 100, 150),
    "slack": (0, 50, 100, 236),
    "budget_kg": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    "fine_tune": (0,),
}


def schedules(source: Source) -> Output:
    """Make Fig. 4: schedules at alpha = 1 and 0.001, with a search for the setting that the paper does not state."""
    greedy, fair = (_schedule(source, ROUNDS, 0, BUDGET_KG, alpha) for alpha in (GREEDY, FAIR))
    rows = [
        {"zone": zone, "alpha_1": int(a), "alpha_0.001": int(b)}
        for zone, a, b in zip(ZONES, greedy.matrix.sum(axis=1), fair.matrix.sum(axis=1), strict=True)
    ]
    tried = search(source)
    nearest = min(tried, key=lambda row: row["distance"])
    notes = [
        f"T = {ROUNDS}, no slack, {BUDGET_KG:g} kg: {_described(_compared(greedy, fair))}.",
        f"The paper: {published.FAIR_SLOTS_LOST:.0%} fewer slots, most to least selected {published.FAIR_RATIO:g}, "
        f"rho_H {published.FAIR_RHO_H:g}; it does not say for which budget and horizon.",
        f"Left out at alpha = 1: {_never_selected(greedy)}; at 0.001: {_never_selected(fair)}.",
        f"Nearest of {len(tried)} settings tried: T = {nearest['rounds']}, slack {nearest['slack']}, "
        f"{nearest['budget_kg']:g} kg: {_described(nearest)}.",
    ]
    return Output(name="fig4", title="Schedules at alpha = 1 and 0.001", rows=rows, notes=notes,
                  figure=_matrices([("(a) alpha = 1", greedy), ("(b) alpha = 0.001", fair)]), more={"search": tried})  # fmt: skip


def _schedule(source: Source, rounds: int, slack: int, budget_kg: float, alpha: float) -> Plan:
    row = problem(source, rounds=rounds, slack=slack, fine_tune=0, alpha=alpha, budget_kg=budget_kg)
    return plan(row, end=slack, planner="paper")


def search(source: Source) -> list[dict[str, Any]]:
    """Return the figures for many budgets and horizons, with their distance from those the paper states."""
    tried = []
    for rounds in _SEARCH["rounds"]:
        for slack in _SEARCH["slack"]:
            for kg in _SEARCH["budget_kg"]:
                try:
                    both = [_schedule(source, int(rounds), int(slack), kg, alpha) for alpha in (GREEDY, FAIR)]
                except InfeasibleError:
                    continue
                tried.append({"rounds": rounds, "slack": slack, "budget_kg": kg} | _compared(*both))
    return tried


def _compared(greedy: Plan, fair: Plan) -> dict[str, Any]:
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


def _never_selected(one: Plan) -> str:
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
    trained = [int(np.count_nonzero(one.matrix.any(axis=1))) for _, one in plans]
    headline(figure, f"Fairness lets {trained[-1]} of {len(ZONES)} clients train, instead of {trained[0]}")
    panels[-1].set_xlabel(f"hour; dark: trains, pale: does not{synthetic}", fontsize=style.FONT_PT)
    return figure


def accuracy_by_alpha(store: Store, cells: Sequence[Cell]) -> Output:
    """Make Fig. 5: test accuracy against alpha at three budgets."""
    found: dict[tuple[float, float], list[float]] = {}
    for cell in cells:
        found.setdefault((float(cell.budget_kg or 0), cell.alpha), []).extend(store.accuracies([cell]))
    rows: list[dict[str, Any]] = [
        {"budget_kg": kg, "alpha": alpha, "accuracy_mean": round(statistics.mean(values), 3),
         "accuracy_std": round(statistics.stdev(values), 3) if len(values) > 1 else "", "seeds": len(values)}
        for (kg, alpha), values in found.items() if values
    ]  # fmt: skip
    notes, gains = [], []
    for kg in ALPHA_BUDGETS:
        means = {row["alpha"]: row["accuracy_mean"] for row in rows if row["budget_kg"] == kg}
        if GREEDY in means and len(means) > 1:
            fair = {alpha: mean for alpha, mean in means.items() if alpha <= 0.1}
            best = max(fair, key=lambda alpha: fair[alpha], default=None)
            stated = published.FAIRNESS_GAIN.get(kg)
            paper = f"+{stated:g}" if stated else "a loss, below 1 kg"
            if best is not None:
                gains.append(fair[best] - means[GREEDY])
                notes.append(
                    f"{kg:g} kg: {gains[-1]:+.2f} points from alpha = 1 ({means[GREEDY]:.2f} %) to alpha = {best:g} "
                    f"(the paper: {paper})."
                )
    return Output(
        name="fig5",
        title="Accuracy against alpha",
        rows=rows,
        notes=notes,
        figure=_lines(rows, gains) if rows else None,
    )


def _lines(rows: Sequence[dict[str, Any]], gains: Sequence[float]) -> Figure:
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
    if gains:
        headline(figure, f"Fairness changes accuracy by {min(gains):+.2f} to {max(gains):+.2f} points")
    return figure


def correlation(store: Store, cells: Sequence[Cell]) -> Output:
    """Make Fig. 6: eight processes with their rho values, without fine-tuning and with ten last rounds for all clients."""
    found: dict[tuple[str, int], list[float]] = {}
    for cell in cells:
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
    return Output(name="fig6", title="Accuracy under heterogeneous and correlated participation", rows=rows, notes=_effect_notes(rows),
                  figure=_bars(rows) if rows else None)  # fmt: skip


def effects(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the points lost by temporal correlation, by spatial on top of it, and regained at most by fine-tuning."""
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


def _effect_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
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
    figure.legend(loc="outside lower center", ncols=2, fontsize=style.FONT_PT, frameon=False)
    found = effects(rows)
    lost = found.get("temporal", 0.0) + found.get("spatial", 0.0)
    back = f"; fine-tuning gives back up to {found['fine-tuning']:.1f}" if "fine-tuning" in found else ""
    headline(figure, f"Correlation in time and between clients costs {lost:.1f} points{back}")
    return figure
