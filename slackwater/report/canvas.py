"""Figures without pyplot: nothing global is touched, so that a server or a notebook can draw at the same time."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.report.style import FONT_PT, INK, MUTED, PNG_DPI

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure in constrained layout; matplotlib is loaded here, at the first chart, and not before."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "charts") from error
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def tidy(axes: Axes, *, frame: tuple[str, ...] = ("left", "bottom")) -> None:
    """Small plain ticks, and only those sides of the frame that carry a scale."""
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
    # Not a file of tempfile's: those are for the owner alone, and a chart is made to be shown.
    draft = target.with_name(f".{target.stem}-{secrets.token_hex(4)}{suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Without the date, the same chart gives the same file.
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
        figure.savefig(draft, dpi=PNG_DPI, format=suffix[1:], metadata=undated)
        os.replace(draft, target)
    except OSError as error:
        raise SlackwaterError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):  # where the folder itself could not be made there is nothing to remove
            draft.unlink(missing_ok=True)
    return target
