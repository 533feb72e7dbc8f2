"""Execute the example notebook and write it with its outputs: docs/guides/researcher.ipynb.

Needs no Jupyter: a cell's last expression is shown as a notebook would show it. The images are left out of the comparison
in tests/test_notebook_docs.py, and so are digits, since training may round otherwise on another machine.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "researcher.ipynb"
CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        "# A method of your own, compared\n\nA researcher has a policy and an aggregator, and asks: do they train better at the "
        "same carbon budget? This notebook plans, trains, compares over seeds and tests the difference. It runs in about ten "
        "seconds.",
    ),
    (
        "code",
        "import slackwater as sw\nfrom slackwater.lab import policies\n\n"
        'traces = sw.load_traces(zones=["SE-SE3", "FR", "DE", "IE"], start="2022-01-01T00:00Z", hours=60)\ntraces',
    ),
    (
        "markdown",
        "`traces.plot()` draws them, and `traces.to_frame()` returns them as a data frame of pandas or polars. A plan chooses "
        "who trains in which hour:",
    ),
    (
        "code",
        "clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]\n"
        "problem = sw.Problem(clients=clients, traces=traces, rounds=6, slack=54, budget_kg=0.6)\n"
        "plan = sw.plan(problem)\nplan",
    ),
    ("markdown", "Train by the plan. `progress=True` would show a bar. The test score against the kg:"),
    (
        "code",
        "task = sw.tasks.digits(clients=4, seed=0)\nresult = sw.train(plan, task, local_steps=10, eval_every=4, threads=1)\nresult",
    ),
    ("code", "result.plot()"),
    (
        "markdown",
        "Now a policy of your own, which chooses online, and an aggregator of your own, which says how updates become one step. "
        "The aggregator keeps the last step in `state`, so that a stopped run resumes to the same bits.",
    ),
    (
        "code",
        "from slackwater.training import Aggregate\n\n\n"
        "class Cleanest(policies.Online):\n"
        '    """Train the two clients with the cleanest electricity, if it is cleaner than usual."""\n\n'
        "    def choose(self, view):\n"
        "        clean = [c for c in view.there if view.intensity[c] <= view.forecast[c].mean()]\n"
        "        return policies.Choice(clients=sorted(clean, key=lambda c: view.cost_kg[c])[:2])\n\n\n"
        "class Steady:\n"
        '    """The mean of the updates, smoothed over the rounds."""\n\n'
        "    last = None\n\n"
        "    def aggregate(self, updates, who):\n"
        "        mean = sum(updates.values()) / len(updates)\n"
        "        self.last = mean if self.last is None else (mean + self.last) / 2\n"
        "        return Aggregate(update=self.last, weights=dict.fromkeys(updates, 1 / len(updates)))\n\n"
        "    def state(self):\n"
        '        return {} if self.last is None else {"last": self.last}\n\n'
        "    def restore(self, state):\n"
        '        self.last = state.get("last")',
    ),
    (
        "markdown",
        "`compare_methods` trains each method with every seed; an aggregator trains by the plan of `sw.plan(problem)`. The first "
        "method is the reference. Ctrl-C compares the runs that are done.",
    ),
    (
        "code",
        "comparison = sw.compare_methods(\n"
        "    problem,\n"
        "    lambda seed: sw.tasks.digits(clients=4, seed=seed),\n"
        '    {"no slack": "no-slack", "plan": plan, "cleanest": Cleanest, "plan, steady": Steady},\n'
        "    seeds=8,\n"
        "    local_steps=10,\n"
        ")\ncomparison",
    ),
    ("code", "comparison.plot()"),
    (
        "markdown",
        "The test flips the signs of the differences, paired by seed: if two methods were equal, each difference could as well "
        "have the other sign. With eight seeds the smallest p is 2/256 = 0.008, and the correction for three comparisons makes it 0.023. "
        "Fewer than six seeds cannot show anything at 5 %. `comparison.to_frame()` has a row for each method and seed.",
    ),
    (
        "code",
        'for one in comparison.differences:\n    print(f"{one.method}: {one.mean:+.3f}, p = {one.p:.3f}, corrected {one.p_holm:.3f}")',
    ),
)


def executed() -> list[dict[str, Any]]:
    """Run all cells in one namespace, and return the notebook's cells."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for number, (kind, source) in enumerate(CELLS):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        if kind == "code":
            count += 1
            cell |= {"execution_count": count, "outputs": _outputs(source, names, count)}
        cells.append(cell)
    return cells


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree, printed = ast.parse(source), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_") and (html := value._repr_html_()) is not None:  # of a bare Figure it is None
            data["text/html"] = html.splitlines(keepends=True)
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the notebook as its file holds it."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def comparable(cells: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return source and outputs of each cell, without images, digits and addresses."""
    found = []
    for cell in cells:
        shown = json.dumps(
            [{k: v for k, v in one.items() if k != "execution_count"} for one in cell.get("outputs", [])]
        )
        shown = re.sub(r'"image/png": "[^"]*"|src=\\"data:[^"]*\\"|<Figure size [^>]*>', "", shown)
        found.append(("".join(cell["source"]), re.sub(r"[\d.,e+\-−]+", "0", shown)))
    return found


if __name__ == "__main__":
    PAGE.write_text(json.dumps(notebook(executed()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")
