"""The files of a figure or table: numbers as CSV, the chart as SVG and PNG, and notes for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.atomic import write_whole
from slackwater.charts.style import FONT_PT, SYNTHETIC, WARNING, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".svg", ".png")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """One reproduced figure or table of the paper."""

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    """The numbers of the chart."""
    notes: Sequence[str] = ()
    """Findings as sentences, with the paper's numbers."""
    figure: Figure | None = None
    more: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Further tables by name."""

    def write(self, folder: Path, *, synthetic: bool = False) -> list[Path]:
        """Write all files of the item and return their paths; a chart of synthetic data is labelled."""
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, rows in {self.name: self.rows, **{f"{self.name}_{k}": v for k, v in self.more.items()}}.items():
            if rows:
                write_whole(folder / f"{name}.csv", as_csv(rows))
                files.append(folder / f"{name}.csv")
        write_whole(folder / f"{self.name}.txt", "\n".join([self.title, *self.notes]) + "\n")
        files.append(folder / f"{self.name}.txt")
        if self.figure is not None:
            from matplotlib.text import Text

            if synthetic and not any(SYNTHETIC in text.get_text() for text in self.figure.findobj(Text)):
                self.figure.axes[0].set_title(
                    SYNTHETIC, loc="right", fontsize=FONT_PT, color=WARNING, fontweight="bold"
                )
            files += [save(self.figure, folder / f"{self.name}{suffix}") for suffix in PICTURES]
        return files


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with the columns of all rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
