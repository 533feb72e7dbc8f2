"""One palette and one set of sizes for charts, page and terminal.

Hues are Okabe and Ito's, which people with the common colour deficiencies can distinguish. The paper's green and
red also differ in lightness (dark green, pale red), for deuteranopia and black-and-white printers.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from slackwater.atomic import whole_file
from slackwater.errors import MissingExtraError, ScenarioError, SlackwaterError
from slackwater.ledger.score import PERCENT, MetricLabel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINS = "#00573F"
IDLE = "#F7C3B1"
CANNOT = "#FFFFFF"
OVER = "#E4E4E4"
INTENSITY = "#7A7A7A"
INK = "#1A1A1A"
MUTED = "#5F5F5F"
RULE = "#D0D0D0"
WINDOW = "#0072B2"
WARNING = "#B03A00"
"""Okabe-Ito's vermillion, darkened for small text on white."""
PARTLY = ("#CFE5DA", "#7DB8A0", "#2F8767", TRAINS)
"""From few to all of a group's clients."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

COLUMN_IN = 3.5
"""Width of a column of a two-column paper, inches."""
TEXT_IN = 7.16
"""Width of both columns."""
FONT_PT = 8.0
TITLE_PT = 9.0
PNG_DPI = 200

SYNTHETIC = "synthetic intensity"
"""Label on every output of synthetic data."""


def kilograms(kg: float) -> str:
    """Return an amount of CO2e with four digits, without an exponent for usual amounts."""
    return f"{kg:,.0f}" if abs(kg) >= 10_000 else f"{kg:.4g}"


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100 * share:.1f} %"


def score(metric: MetricLabel, value: float) -> tuple[str, str]:
    """Return a score and its unit; a share as `percent` writes it, which has no other unit."""
    return (percent(value), "") if metric.unit == PERCENT else (metric.number(value), metric.unit)


def printable(name: str) -> str:
    """Return a user's text on one line, without what could move the cursor or turn the writing direction."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def shortened(name: str, most: int) -> str:
    """Return at most `most` characters; the middle is cut, because names often differ at an end."""
    clean = printable(name)
    if len(clean) <= most:
        return clean
    head = (most - 1) // 2
    return f"{clean[:head]}…{clean[len(clean) - (most - 1 - head) :]}"


def table(columns: str, **settings: Any) -> Table:
    """Return an empty terminal table; its columns are separated by |, and > marks those that hold numbers."""
    made = Table(box=None, header_style="bold", **{"pad_edge": False} | settings)
    for name in columns.split("|"):
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    return made


def synthetic_note() -> Text:
    """Return the terminal's label for synthetic data."""
    return Text(f"{SYNTHETIC}: typical profiles, not measured", style="bold yellow")


SUFFIXES = (".png", ".svg", ".pdf")
_DESCRIPTION = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure in constrained layout; matplotlib is imported here, at the first chart."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "charts") from error
    return Figure(figsize=(width_in, height_in), layout="constrained", facecolor="white")


def headline(figure: Figure, finding: str, *notes: str, warning: str = "", pad: float = 6.0) -> None:
    """Write what a chart shows above it, then notes; a warning, such as SYNTHETIC, stands above its first panel."""
    letters = int(figure.get_figwidth() * 72 / (0.56 * TITLE_PT))
    lines = [
        line for text in (finding, *notes) if text for line in textwrap.wrap(text, letters, break_on_hyphens=False)
    ]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=TITLE_PT, color=INK)
    if warning:
        figure.axes[0].set_title(warning, loc="left", fontsize=FONT_PT, color=WARNING, fontweight="bold", pad=pad)


def tidy(
    axes: Axes,
    *,
    frame: tuple[str, ...] = ("left", "bottom"),
    grid: Literal["x", "y", "both"] | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> None:
    """Draw small plain ticks, thin grid lines behind the data, and only the sides of the frame with a scale."""
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


def time_axis(axes: Axes) -> None:
    """Write round times in UTC below a chart."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz="UTC", minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))  # type: ignore[no-untyped-call]
    axes.xaxis.get_offset_text().set_fontsize(FONT_PT)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a chart as PNG, SVG or PDF, by the path's suffix, atomically."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        wrong = f"ends in {target.suffix!r}" if target.suffix else "has no suffix"
        raise ScenarioError(f"The chart's path {str(target)!r} {wrong}. Name it .png, .svg or .pdf.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # No date, so that the same chart gives the same file.
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
        # What stands above the chart is also in the file's metadata, where programs can read it.
        warnings = [axes.get_title(loc="left") for axes in figure.axes[:1]]
        above = "\n".join(text for text in (figure.get_suptitle(), *warnings) if text)
        described = {_DESCRIPTION[suffix]: above} if above else {}
        with whole_file(target, private=False) as file:
            figure.savefig(file, dpi=PNG_DPI, format=suffix[1:], metadata=undated | described)
    except OSError as error:
        raise SlackwaterError(f"{target} cannot be written: {error.strerror or error}.") from None
    return target


_LIGHT = {
    "paper": "#FFFFFF",
    "panel": "#F6F7F7",
    "ink": INK,
    "muted": MUTED,
    "rule": RULE,
    "accent": WINDOW,
    "warning": WARNING,
    "trains": TRAINS,
    "window": WINDOW,
    "cannot": "#D9DDE3",
    "over": OVER,
    "clean": "#FFF8F4",
    "dirty": "#E89A72",
    "land": "#E9ECEC",
    "map-low": "#FFF3E8",
    "map-middle": "#E07B39",
    "map-high": "#5A1E00",
    "skyline": INTENSITY,
    "missed": "#D55E00",
    "pending": "#A9D3C2",
}
"""At any intensity, a cell that trains is darker than one that does not, so they differ without hue."""
_DARK = {
    "paper": "#14181A",
    "panel": "#1D2326",
    "ink": "#ECEFF0",
    "muted": "#A3ADB1",
    "rule": "#3A4347",
    "accent": "#56B4E9",
    "warning": "#F0A35E",
    "trains": "#4FD8AE",
    "window": "#56B4E9",
    "cannot": "#39424D",
    "over": "#23292C",
    "clean": "#1E2224",
    "dirty": "#7E4A2F",
    "land": "#252C2F",
    "map-low": "#2A2F31",
    "map-middle": "#C8642B",
    "map-high": "#FFE3C4",
    "skyline": "#B9C2C6",
    "missed": "#F28C3A",
    "pending": "#2C6B57",
}
_DARK_SERIES = ("#56B4E9", "#F28C3A", "#2FC79B", "#E39BC4", "#8FD0F5", "#E6B84A", "#ECEFF0")


def palette_css() -> str:
    """Return variables for both colour schemes; a class on the root element overrides the system's choice."""
    light = _block(_LIGHT, SERIES)
    dark = _block(_DARK, _DARK_SERIES)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        f":root.light {{ color-scheme: light; {light} }}\n"
        f":root.dark {{ color-scheme: dark; {dark} }}\n"
    )


def _block(colours: dict[str, str], series: tuple[str, ...]) -> str:
    named = {f"--{name}": colour for name, colour in colours.items()}
    numbered = {f"--series-{number}": colour for number, colour in enumerate(series)}
    return " ".join(f"{name}: {colour};" for name, colour in (named | numbered).items())
