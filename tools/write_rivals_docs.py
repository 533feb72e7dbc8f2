"""Write the tables and the picture of experiments/rivals into docs/research/rivals.md, so that no number is typed by hand.

python tools/write_rivals_docs.py
"""

from __future__ import annotations

import csv
import math
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "experiments" / "rivals", ROOT / "docs" / "research" / "rivals.md"
PICTURES = {RESULTS / "mnist" / "rivals.png": PAGE.parent / "images" / "rivals-mnist.png"}
"""Images on the page: the site can show only files inside docs."""
Row = dict[str, str]


def table(task: str, budget_kg: float) -> str:
    """Return a table with a line per method, the most accurate first, as in the file."""
    path = RESULTS / task / "rivals.csv"
    with path.open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if math.isclose(float(row["budget_kg"]), budget_kg, rel_tol=1e-5)]
    if not found:
        raise SystemExit(f"{path} has no budget of {budget_kg} kg: run `slackwater rivals` with it.")
    target = float(found[0]["target"])
    heads = ["method", "accuracy", "worst client", "kg", "client-rounds", "hours to last round", "rho_H"]
    heads += [f"seeds that reach {target:.0%}", f"hours to {target:.0%}", f"kg to {target:.0%}"]
    lines = [heads, ["---"] * len(heads), *map(_line, found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(row: Row) -> list[str]:
    diverged = f" ({row['diverged']} diverged)" if row["diverged"] != "0" else ""
    accuracy = f"{_number(row['accuracy'], '.2f', 100)} ± {_number(row['accuracy_sd'], '.2f', 100)}{diverged}"
    worst, kg = _number(row["worst_client"], ".2f", 100), _number(row["kg"], ".3f")
    rounds, hours = _number(row["client_rounds"], ".0f"), _number(row["slots"], ".0f")
    to_target = [_number(row["hours_to_target"], ".0f"), _number(row["kg_to_target"], ".3f")]
    return [f"`{row['method']}`", accuracy, worst, kg, rounds, hours, _number(row["rho_h"], ".1f"), row["reached"], *to_target]  # fmt: skip


def _number(value: str, form: str, times: float = 1.0) -> str:
    number = float(value or "nan")
    return "" if math.isnan(number) else f"{times * number:{form}}"


def filled(page: str) -> str:
    """Return the page with every table filled from the stored results; a marker is `<!-- task kg -->`."""
    pattern = re.compile(r"(<!-- (\w+) ([\d.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{table(found[2], float(found[3]))}\n\n{found[4]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for stored, shown in PICTURES.items():
        shutil.copyfile(stored, shown)
    sys.exit(0)
