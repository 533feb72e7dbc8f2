"""What benchmarks share: a table for the terminal and the docs, figures for people, and what they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned, so that it reads well as plain text too."""
    width = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    rule = ["-" * (w - 1) + ":" if i else "-" * w for i, w in enumerate(width)]

    def line(cells: Sequence[str]) -> str:
        fitted = [cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(cells, width, strict=True))]
        return "| " + " | ".join(fitted) + " |"

    return "\n".join([line(head), line(rule), *map(line, rows)])


def figure(value: float) -> str:
    """Three digits, thousands grouped."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def spread(values: Sequence[float]) -> str:
    """Median, and least to largest where there are several."""
    middle = figure(statistics.median(values))
    return f"{middle} ({figure(min(values))} to {figure(max(values))})" if len(values) > 1 else middle


def environment() -> dict[str, Any]:
    """Where and when this was measured, and with which versions; None where a package is not installed."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("slackwater", "numpy", "highspy", "cvxpy", "pyscipopt")},
            "scip": _scip(),
        },
    }


def peak_gib() -> float:
    """Most memory that this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the parent from which the process was spawned
        kib = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(kib) / 2**20
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _scip() -> str | None:
    try:
        from pyscipopt import Model
    except ImportError:
        return None
    return str(Model().version())


def publish(result: dict[str, Any], text: str, out: Path | None) -> int:
    """Show the tables, keep them with the figures behind them where a file is named; the exit code."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
        print(f"Written: {out} and {out.with_suffix('.md')}", file=sys.stderr)
    return 1 if result["violations"] else 0
