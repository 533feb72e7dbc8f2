"""Figures without pyplot: nothing global is touched, so that a server or a notebook can draw at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slackwater.atomic import whole_file
from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.report.style import FONT_PT, INK, MUTED, PNG_DPI, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_DESCRIPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure in constrained layout; matplotlib is imported here, at the first chart."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "charts") from error
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def tidy(
    axes: Axes,
    *,
    frame: tuple[str, ...] = ("left", "bottom"),
    grid: Literal["x", "y", "both"] | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> None:
    """Draw small plain ticks, thin grid lines behind the data, and only those sides of the frame that carry a scale."""
    for text, write in ((xlabel, axes.set_xlabel), (ylabel, axes.set_ylabel)):
        if text:
            write(text, fontsize=FONT_PT)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.5)
        axes.set_axisbelow(True)
    axes.tick_params(labelsize=FONT_PT, colors=INK, width=0.6, length=2.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in frame)
        spine.set_linewidth(0.6)
        spine.set_color(MUTED)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a chart as PNG, SVG or PDF, by the path's suffix; the file is whole or not there."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        wrong = f"ends in {target.suffix!r}" if target.suffix else "has no suffix"
        raise ScenarioError(f"The chart's path {str(target)!r} {wrong}. Name it .png, .svg or .pdf.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Without the date, the same chart gives the same file.
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
        # What stands above the chart is in the file's own description too, where programs can read it.
        above = figure.get_suptitle()
        described = {_DESCRIPTION[suffix]: above} if above else {}
        with whole_file(target, private=False) as file:
            figure.savefig(file, dpi=PNG_DPI, format=suffix[1:], metadata=undated | described)
    except OSError as error:
        raise SlackwaterError(f"{target} cannot be written: {error.strerror or error}.") from None
    return target
