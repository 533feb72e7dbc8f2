"""A schedule in characters, for any terminal: readable without colour, bundled where it is wider than the screen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from slackwater.planning.plan import Plan
from slackwater.report.style import SYNTHETIC, printable, shortened
from slackwater.report.view import Rows, schedule_rows, time_marks, time_title

MOST_ROWS = 40
TRAINS, IDLE, CANNOT, EDGE = "█", "·", "×", "│"
PARTLY = "░▒▓"
_LONGEST_NAME = 20
_LEAST_CELLS = 8


def plan_heatmap(plan: Plan, width: int) -> RenderableType:
    """Show a line for each client (above 40 clients for each zone), a character for each slot or bundle of slots."""
    rows = schedule_rows(plan, MOST_ROWS)
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
    return Group(*lines, *_axis(plan, bundles, margin + 1), *_key(plan, rows, bundles))


def _bundles(plan: Plan, room: int) -> list[tuple[int, int]]:
    """Return the slots [first, last) of each character up to the run's end; none crosses the edge of the window."""
    size = -(-plan.window.stop // room)
    # The two parts round up separately, which can cost one character.
    while -(-plan.before // size) - (-len(plan.window) // size) > room:
        size += 1
    parts = ((0, plan.before), (plan.before, plan.window.stop))
    return [(first, min(first + size, stop)) for start, stop in parts for first in range(start, stop, size)]


def _mark(rows: Rows, row: int, first: int, last: int) -> tuple[str, str]:
    """Return character and colour of a bundle: the share of its possible client-slots that is used."""
    able: NDArray[np.float64] = rows.able[row, first:last]
    if not able.any():
        return CANNOT, "dim"
    share = float(rows.share[row, first:last].sum() / able.sum())
    if share == 0:
        return IDLE, "red"
    return (TRAINS if share > 1 - 1e-9 else PARTLY[min(int(share * 3), 2)]), "green"


def _axis(plan: Plan, bundles: list[tuple[int, int]], margin: int) -> list[Text]:
    """Return two lines: ticks, and the times that fit beside each other."""
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
    title = time_title(plan.problem, plan.window.stop)
    return [
        Text(line.rstrip(), style="dim", no_wrap=True, overflow="crop")
        for line in ("".join(ticks), f"{labels}  ({title})")
    ]


def _key(plan: Plan, rows: Rows, bundles: list[tuple[int, int]]) -> list[Text]:
    """Return what the characters mean; only those that can occur."""
    size = max(last - first for first, last in bundles)
    key = Text.assemble((TRAINS, "green"), " trains  ", (IDLE, "red"), " does not")
    if size > 1 or rows.grouped:
        of = "client-slots" if rows.grouped else "slots"
        key.append("  ").append(PARTLY, style="green").append(f" in part of the {of}")
    if np.any(rows.able[:, : plan.window.stop].sum(axis=1) < plan.window.stop):
        key.append("  ").append(CANNOT, style="dim").append(" cannot")
    if plan.problem.fine_tune:
        key.append("  ").append(EDGE * 2, style="blue").append(" fine-tuning window")
    key.append(f"  1 character = {size} slot{'s' * (size > 1)}, right: slots")
    notes = [key]
    if rows.grouped:
        what = "zone" if rows.by == "zone" else f"group of zones of like intensity ({len(rows.labels)}, cleanest first)"
        notes.append(Text(f"{rows.clients.sum():,} clients, a line for each {what}."))
    if plan.problem.traces.synthetic:
        notes.append(Text(SYNTHETIC, style="bold yellow"))
    return notes


def _fitted(name: str, cells: int) -> str:
    """Return a name in exactly so many terminal cells; Chinese and Japanese characters take two."""
    most = cells
    while cell_len(shortened(name, most)) > cells:
        most -= 1
    return set_cell_size(shortened(name, most), cells)
