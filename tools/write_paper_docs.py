"""Write the tables and pictures of experiments/paper into docs/research/paper.md, so that no number there is typed by hand.

python tools/write_paper_docs.py
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from slackwater.lab.paper.setting import ENDS

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "experiments" / "paper", ROOT / "docs" / "research" / "paper.md"
PICTURES = {
    RESULTS / f"{name}.png": PAGE.parent / "images" / f"{name}.png" for name in ("fig1", "fig2", "fig3", "fig4", "fig7")
}
"""Images on the page: the site can show only files inside docs."""
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """Return the rows of a stored CSV file, or none if it does not exist."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *lines])


def notes(name: str) -> str:
    """Return the stored notes of a figure as a list."""
    path = RESULTS / f"{name}.txt"
    if not path.exists():
        return "Not run yet."
    return "\n".join(f"- {line}" for line in path.read_text(encoding="utf-8").splitlines()[1:])


def plain(name: str) -> str:
    """Return a stored CSV file as a table."""
    found = rows(name)
    return table(list(found[0]), [list(row.values()) for row in found]) if found else "Not run yet."


def accuracy(name: str) -> str:
    """Return a table with a row for each T and a column for each s: our value above the paper's."""
    found = {(int(row["T"]), int(row["s"])): row for row in rows(name)}
    if not found:
        return "Not run yet."
    lines = [
        [f"{hours}", *(_pair(found[hours, end]) for end in ENDS)] for hours in sorted({hours for hours, _ in found})
    ]
    return table(["T", *(f"s={end}" for end in ENDS)], lines)


def _pair(row: Row) -> str:
    ours = "infeasible" if row["feasible"] != "True" else "·"
    if row["accuracy_mean"]:
        spread = f" ± {float(row['accuracy_std']):.2f}" if row["accuracy_std"] else ""
        rate = "" if row["lr"] == "0.1" else f" (lr {row['lr']})"
        ours = f"**{float(row['accuracy_mean']):.2f}**{spread}{rate}"
    return f"{ours}<br>{row['paper_mean'] or '—'}"


SECTIONS: dict[str, Callable[[], str]] = {
    **{name: (lambda name=name: notes(name)) for name in ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7")},  # type: ignore[misc]
    **{name: (lambda name=name: plain(name)) for name in ("setting", "baseline", "claims")},  # type: ignore[misc]
    "fig6-table": lambda: plain("fig6"),
    "fig5-table": lambda: plain("fig5"),
    "table1a": lambda: accuracy("table1a"),
    "table1b": lambda: accuracy("table1b"),
}


def filled(page: str) -> str:
    """Return the page with every section filled from the stored results."""
    for name, make in SECTIONS.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = pattern.sub(lambda found, make=make: f"{found[1]}\n{make()}\n\n{found[2]}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for stored, shown in PICTURES.items():
        shutil.copyfile(stored, shown)
    sys.exit(0)
