"""The chart of a schedule: rows and time axis, as a figure and in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from slackwater.charts import style
from slackwater.charts.style import SYNTHETIC, headline, new_figure, printable, shortened, tidy
from slackwater.planning.advice import same_work_kg
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.units import G_PER_KG, time_zone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_CHUNK = 20_000
_STEPS_MIN = (
    15,
    30,
    60,
    120,
    180,
    360,
    720,
    1440,
    2880,
    4 * 1440,
    7 * 1440,
    14 * 1440,
    28 * 1440,
    84 * 1440,
    364 * 1440,
)
_NO_TIMES = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A schedule by client, or by groups of clients if there are too many to show."""

    by: Literal["client", "zone", "country"]
    """A row is a client, a zone's clients, or a country's, in all of its zones."""
    labels: tuple[str, ...]
    clients: NDArray[np.int64]
    """[row], number of its clients."""
    share: NDArray[np.float64]
    """[row, slot], share of its clients that train: 0 or 1 if the row is one client."""
    able: NDArray[np.float64]
    """[row, slot], share of its clients that can train."""
    intensity: NDArray[np.float64]
    """[row, slot], kg/kWh, the mean over its clients."""
    slots: NDArray[np.int64]
    """[row], client-slots of training, window included."""
    kg: NDArray[np.float64]
    """[row], kg CO2e, idle draw included."""

    @property
    def grouped(self) -> bool:
        """Return whether a row is a group of clients."""
        return self.by != "client"


def schedule_rows(plan: Plan, most: int) -> Rows:
    """Return rows by client up to `most` clients, else by zone, else by country, the cleanest first.

    If the countries are too many as well, those with the fewest clients share the last row.
    """
    fleet, costs = plan.problem.fleet, plan.problem.costs
    kg = plan.emissions.client_kg
    if len(fleet) <= most:
        return Rows(
            by="client",
            labels=tuple(fleet.names),
            clients=np.ones(len(fleet), dtype=np.int64),
            share=plan.matrix.astype(np.float64),
            able=costs.can_train().astype(np.float64),
            intensity=costs.intensity[costs.row],
            slots=plan.slots_per_client,
            kg=kg,
        )
    zones = sorted(set(fleet.zone))  # the costs number them in this order
    by: Literal["zone", "country"] = "country" if len(zones) > most and has_times(plan.problem) else "zone"
    names = zones if by == "zone" else [zone.partition("-")[0] for zone in zones]
    groups, first, group_of_zone, held = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    clients = np.bincount(group_of_zone[costs.row])
    kept = len(groups) if len(groups) <= most else most - 1
    largest = np.argsort(-clients, kind="stable")[:kept]
    mean = _mean(costs.intensity, costs.row, group_of_zone[costs.row], clients).mean(axis=1)
    shown = largest[np.argsort(mean[largest], kind="stable")]
    place = np.full(len(groups), kept)
    place[shown] = np.arange(kept)
    labels = [zones[first[g]] if held[g] == 1 else f"{groups[g]}, {held[g]} zones" for g in shown]
    if kept < len(groups):
        labels.append(f"{held.sum() - held[shown].sum()} other zones")
    return _grouped(plan, tuple(labels), place[group_of_zone][costs.row], kg, by)


def _grouped(
    plan: Plan,
    labels: tuple[str, ...],
    group: NDArray[np.intp],
    kg: NDArray[np.float64],
    by: Literal["zone", "country"],
) -> Rows:
    costs, count = plan.problem.costs, len(labels)
    clients = np.bincount(group, minlength=count)
    share = np.zeros((count, costs.slots))
    for first in range(0, costs.clients, _CHUNK):
        part = slice(first, first + _CHUNK)
        order = np.argsort(group[part], kind="stable")
        here, starts = np.unique(group[part][order], return_index=True)
        chosen = np.unpackbits(plan.packed[part][order], axis=1, count=costs.slots)
        share[here] += np.add.reduceat(chosen, starts, axis=0, dtype=np.int64)
    return Rows(
        by=by,
        labels=labels,
        clients=clients,
        share=share / clients[:, None],
        able=_mean(costs.available, costs.mask, group, clients),
        intensity=_mean(costs.intensity, costs.row, group, clients),
        slots=np.bincount(group, weights=plan.slots_per_client, minlength=count).astype(np.int64),
        kg=np.bincount(group, weights=kg, minlength=count).astype(np.float64),
    )


def _mean(
    values: NDArray[np.generic], which: NDArray[np.intp], group: NDArray[np.intp], clients: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return [group, slot], the mean over clients of values[which]; a million clients share few pairs of group and row."""
    pairs, times = np.unique(group * len(values) + which, return_counts=True)
    sums = np.zeros((len(clients), values.shape[1]))
    np.add.at(sums, pairs // len(values), values[pairs % len(values)] * times[:, None])
    return sums / clients[:, None]


def has_times(problem: Problem) -> bool:
    """Return whether slots have real times: bare costs count from 1970, which would mislead."""
    return problem.traces.start != _NO_TIMES


def time_marks(problem: Problem, slots: int, most: int) -> list[tuple[float, str]]:
    """Return at most about `most` round times within the first `slots` slots: position in slots, and local label."""
    most = max(most, 1)
    if not has_times(problem):
        step = next(s for e in range(9) for s in (10**e, 2 * 10**e, 5 * 10**e) if slots / s <= most)
        return [(float(slot), str(slot)) for slot in range(0, slots, step)]
    length, first = problem.traces.slot_minutes, problem.first_slot
    local = time_zone(problem.time_zone)
    minutes = slots * length
    step = next((s for s in _STEPS_MIN if s >= length and minutes / s <= most), _STEPS_MIN[-1])
    midnight = first.astimezone(local).replace(
        hour=0, minute=0, tzinfo=None
    )  # marks are round times of the local clock
    marks, offset = [], 0
    while (moment := (midnight + timedelta(minutes=offset)).replace(tzinfo=local)) < first + timedelta(minutes=minutes):
        offset += step
        if moment < first:
            continue
        day = moment.hour == moment.minute == 0
        label = f"{moment.day} {moment:%b}" if day else f"{moment:%H:%M}"
        marks.append(((moment.astimezone(UTC) - first) / timedelta(minutes=length), label))
    return marks


def time_title(problem: Problem, slots: int) -> str:
    """Return the title of the time axis."""
    if not has_times(problem):
        return "slot"
    local = time_zone(problem.time_zone)
    first, last = (problem.slot_start(slot).astimezone(local).year for slot in (0, slots - 1))
    return f"{problem.time_zone}, {first}" if first == last else f"{problem.time_zone}, {first} to {last}"


MOST_ROWS = 60
NONE, ALL, CANNOT, OVER = 0, 4, 5, 6
"""Codes of the cells: no client trains, 1 to 4 quarters of the row's clients train, none can train, after the end of the run."""
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
    headline(figure, *_title(plan, rows), warning=SYNTHETIC if plan.problem.traces.synthetic else "", pad=17)
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
    """Return [row, slot], the cell codes."""
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
        # From the row's minimum to its peak, on a thin base, so that grids that vary by 10 % show their valleys too.
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


def _title(plan: Plan, rows: Rows) -> list[str]:
    """Return what the plan saves, its certificate, and what a row is."""
    problem, used = plan.problem, plan.emissions_kg
    proof = "optimal" if plan.status == "optimal" else f"gap {plan.gap:.2g}"
    lines = [
        saving_title(same_work_kg(plan), used),
        f"{style.kilograms(used)} of {style.kilograms(problem.budget_kg)} kg used: {len(problem.fleet):,} clients, "
        f"{int(plan.slots_per_client.sum()):,} client-slots, s = {plan.end}, objective {plan.objective:.6g} ({proof})",
    ]
    if rows.grouped:
        lines.append(f"A row is a {rows.by}, the {_least(plan)} first")
    return lines


def _least(plan: Plan) -> str:
    return "cleanest" if has_times(plan.problem) else "cheapest"


def saving_title(without_kg: float, used_kg: float) -> str:
    """Return what slack saves of the emissions of the same work at once, in words."""
    share = (without_kg - used_kg) / without_kg if without_kg > 0 else 0.0
    if share < _WORTH_SAYING:
        return "Slack saves nothing: the same work at once emits as little"
    return f"Slack saves {style.percent(share)} of the {style.kilograms(without_kg)} kg CO$_2$e that the same work emits at once"


_WORTH_SAYING = 0.005


def _legend(plan: Plan, rows: Rows) -> list[Patch]:
    from matplotlib.patches import Patch

    codes = cell_codes(plan, rows)
    what = "intensity" if has_times(plan.problem) else "cost"
    handles = [Patch(color=style.IDLE, label="does not train" if not rows.grouped else "no client trains")]
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


TERMINAL_ROWS = 40
TRAINS, IDLE, CANNOT_SIGN, EDGE = "█", "·", "×", "│"
PARTLY = "░▒▓"
_LONGEST_NAME = 20
_LEAST_CELLS = 8


def plan_heatmap(plan: Plan, width: int) -> RenderableType:
    """Show a line for each client (above 40 clients: each zone), a character for each slot or bundle of slots."""
    rows = schedule_rows(plan, TERMINAL_ROWS)
    names = [printable(label) for label in rows.labels]
    margin = min(max(cell_len(name) for name in names), _LONGEST_NAME, max(width // 3, 4))
    totals = [f" {n:,}" for n in rows.slots]
    room = max(width - margin - 1 - max(map(len, totals)) - 2, _LEAST_CELLS)  # 2: the edges of the window
    bundles = _bundles(plan, room)
    lines = []
    for row, name in enumerate(names):
        line = Text(_fitted(name, margin) + " ", no_wrap=True, overflow="crop")
        for first, last in bundles:
            if first in (plan.before, plan.window.stop) and plan.problem.fine_tune:
                line.append(EDGE, style="blue")
            line.append(*_mark(rows, row, first, last))
        if plan.problem.fine_tune:
            line.append(EDGE, style="blue")
        lines.append(line.append(totals[row], style="dim"))
    return Group(*lines, *_axis(plan, bundles, margin + 1, width), *_key(plan, rows, bundles))


def _bundles(plan: Plan, room: int) -> list[tuple[int, int]]:
    """Return the slots [first, last) of each character up to the run's end; none crosses the edge of the window."""
    size = -(-plan.window.stop // room)
    # The two parts are rounded up separately, which can cost one character.
    while -(-plan.before // size) - (-len(plan.window) // size) > room:
        size += 1
    parts = ((0, plan.before), (plan.before, plan.window.stop))
    return [(first, min(first + size, stop)) for start, stop in parts for first in range(start, stop, size)]


def _mark(rows: Rows, row: int, first: int, last: int) -> tuple[str, str]:
    """Return character and colour of a bundle, by the share of its possible client-slots that train."""
    able: NDArray[np.float64] = rows.able[row, first:last]
    if not able.any():
        return CANNOT_SIGN, "dim"
    share = float(rows.share[row, first:last].sum() / able.sum())
    if share == 0:
        return IDLE, "red"
    return (TRAINS if share > 1 - 1e-9 else PARTLY[min(int(share * 3), 2)]), "green"


def _axis(plan: Plan, bundles: list[tuple[int, int]], margin: int, width: int) -> list[Text]:
    """Return ticks, the times that fit beside each other, and the title of the axis, on a line of its own if it must be."""
    starts = np.array([first for first, _ in bundles])
    windowed = plan.problem.fine_tune > 0
    ticks, labels, free = [" "] * (margin + len(bundles) + 2), "", 0
    for at, text in time_marks(plan.problem, plan.window.stop, most=max(len(bundles) // 8, 1)):
        cell = int(np.searchsorted(starts, at, side="right")) - 1
        column = margin + cell + (windowed and starts[cell] >= plan.before)
        if column >= free:
            ticks[column] = "╵"
            labels = labels.ljust(column) + text
            free = len(labels) + 2
    title = f"({time_title(plan.problem, plan.window.stop)})"
    fits = len(labels) + 2 + len(title) <= width
    lines = ["".join(ticks), f"{labels}  {title}"] if fits else ["".join(ticks), labels, " " * margin + title]
    return [Text(line.rstrip(), style="dim", no_wrap=True, overflow="crop") for line in lines]


def _key(plan: Plan, rows: Rows, bundles: list[tuple[int, int]]) -> list[Text]:
    """Return the legend of the characters that can occur."""
    size = max(last - first for first, last in bundles)
    key = Text.assemble((TRAINS, "green"), " trains  ", (IDLE, "red"), " does not")
    if size > 1 or rows.grouped:
        of = "client-slots" if rows.grouped else "slots"
        key.append("  ").append(PARTLY, style="green").append(f" in part of the {of}")
    if np.any(rows.able[:, : plan.window.stop].sum(axis=1) < plan.window.stop):
        key.append("  ").append(CANNOT_SIGN, style="dim").append(" cannot")
    if plan.problem.fine_tune:
        key.append("  ").append(EDGE * 2, style="blue").append(" fine-tuning window")
    key.append(f"  1 character = {size} slot{'s' * (size > 1)}, right: slots")
    notes = [key]
    if rows.grouped:
        notes.append(Text(f"{rows.clients.sum():,} clients, a line for each {rows.by}, the {_least(plan)} first."))
    if plan.problem.traces.synthetic:
        notes.append(Text(SYNTHETIC, style="bold yellow"))
    return notes


def _fitted(name: str, cells: int) -> str:
    """Return a name in exactly `cells` terminal cells; Chinese and Japanese characters take two."""
    most = cells
    while cell_len(shortened(name, most)) > cells:
        most -= 1
    return set_cell_size(shortened(name, most), cells)
