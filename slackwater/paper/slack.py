"""Intensity and what slack alone saves: the paper's Fig. 1 to 3."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slackwater.carbon import Traces, available_zones, load_traces
from slackwater.errors import DataError
from slackwater.paper import published
from slackwater.paper.output import Output
from slackwater.paper.setting import NAMES, START, ZONES, Source
from slackwater.planning.savings import SavingsStudy, study
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy
from slackwater.report.charts import savings_by_clients, savings_heatmap
from slackwater.units import G_PER_KG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DAYS = 5
TRAIN_HOURS, MOST_SLACK = 100, 236
EARLY_SLACK = 20
STARTS = 100
YEAR_HOURS = 8760
_SPREAD = ("mean", "std", "q10", "q90")


def evolution(source: Source) -> Output:
    """Fig. 1: the seven zones, 1 to 5 January 2022."""
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
    """Not the hours themselves: whoever holds the data may not be free to pass them on."""
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
    figure.legend(loc="outside upper center", ncols=4, fontsize=style.FONT_PT - 1, frameon=False, handlelength=1.6,
                  columnspacing=1.0)  # fmt: skip
    if traces.synthetic:
        axes.set_title(style.SYNTHETIC, fontsize=style.FONT_PT, color=style.WARNING, fontweight="bold")
    return figure


def all_zones(source: Source, hours: int) -> tuple[Traces, list[str]]:
    """Every zone that has direct intensity without a gap in the first hours of 2022, and those that have gaps."""
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
    """Fig. 2: what each zone saves against slack, from 1 January on."""
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
        f"{len(found.zones)} zones with direct intensity{_left_out(broken)} (the paper has {published.SAVINGS_ZONES}).",
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
    """Fig. 3: what the N cleanest clients save, over random starts of the year."""
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
        notes.append(f"{len(found.zones)} zones{_left_out(broken)}.")
    notes.append(_count_note(found, len(found.zones), f"about 20 % for all {published.SAVINGS_ZONES}"))
    return Output(name="fig3", title=f"Savings of the N cleanest clients, {starts} starts in 2022, seed {found.seed}",
                  rows=rows, notes=notes, figure=savings_by_clients(found))  # fmt: skip


def _left_out(broken: Sequence[str]) -> str:
    return f", without {', '.join(broken)} for its gaps" if broken else ""


def _count_note(found: SavingsStudy, count: int, stated: str) -> str:
    n = min(count, len(found.zones))
    mean, std = found.group.mean[n - 1], found.group.std[n - 1]
    return f"{n} clients: {mean:.0%} ± {std:.0%} (the paper: {stated})."
