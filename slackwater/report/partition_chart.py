"""The picture of a partition: which client holds how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import ScenarioError
from slackwater.learning.partition import label_counts
from slackwater.report import style
from slackwater.report.canvas import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERED_ROWS = 30
"""Above this the rows are too low for numbers, and the colours alone speak."""
_LONGEST_LABEL = 26


def partition_chart(
    partition: Sequence[NDArray[np.int64]], labels: ArrayLike, *, names: Sequence[str] = (), title: str = ""
) -> Figure:
    """Draw clients x classes, darker for more samples, beside the samples of each client."""
    return counts_chart(label_counts(partition, labels), names=names, title=title)


def counts_chart(counts: ArrayLike, *, names: Sequence[str] = (), title: str = "") -> Figure:
    """Draw the same from [client, class] counts, as a task's record keeps them."""
    held = np.asarray(counts, dtype=np.int64)
    if held.ndim != 2 or not held.size:
        raise ScenarioError(f"The label counts have the shape {held.shape}; give them as [client, class].")
    clients, classes = held.shape
    if names and len(names) != clients:
        raise ScenarioError(f"There are {len(names)} names for {clients} clients; give one for each, or none.")
    row_in = 0.26 if clients <= _MOST_NUMBERED_ROWS else max(0.04, 7.8 / clients)
    figure = new_figure(style.TEXT_IN, row_in * clients + 1.0)
    cells, totals = figure.subplots(1, 2, sharey=True, width_ratios=(3.2, 1))
    _draw_cells(cells, held)
    _draw_totals(totals, held.sum(axis=1))
    cells.set_xticks(range(classes))
    cells.set_xlabel("class", fontsize=style.FONT_PT, color=style.INK)
    if clients <= _MOST_NUMBERED_ROWS:
        shown = names or [f"client {i + 1}" for i in range(clients)]
        cells.set_yticks(range(clients), [style.shortened(name, _LONGEST_LABEL) for name in shown])
    else:
        cells.set_yticks([])
        cells.set_ylabel(f"{clients} clients", fontsize=style.FONT_PT, color=style.INK)
    figure.suptitle(
        title or f"Who holds what: {held.sum():,} samples, {clients} clients",
        x=0.01,
        ha="left",
        fontsize=style.TITLE_PT,
        color=style.INK,
    )
    return figure


def _draw_cells(axes: Axes, counts: NDArray[np.int64]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("held", ["#FFFFFF", *style.PARTLY])
    most = max(int(counts.max()), 1)
    # By the square root: a few samples of a class are much more than none, and must be seen beside thousands.
    shade = np.sqrt(counts / most)
    axes.imshow(shade, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    tidy(axes, frame=())
    axes.tick_params(length=0)
    if len(counts) > _MOST_NUMBERED_ROWS or counts.shape[1] > 20:
        return
    for client, label in np.ndindex(counts.shape):
        if counts[client, label]:
            axes.text(
                label,
                client,
                f"{counts[client, label]:,}",
                ha="center",
                va="center",
                fontsize=style.FONT_PT - 1.5,
                color="white" if shade[client, label] > 0.6 else style.INK,
            )


def _draw_totals(axes: Axes, totals: NDArray[np.int64]) -> None:
    axes.barh(range(len(totals)), totals, height=0.8, color=style.PARTLY[2])
    tidy(axes, frame=("bottom",))
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.set_xlabel("samples", fontsize=style.FONT_PT, color=style.INK)
    axes.set_xlim(0, float(totals.max()) * 1.05)
    axes.locator_params(axis="x", nbins=3)
    axes.xaxis.set_major_formatter("{x:,.0f}")
