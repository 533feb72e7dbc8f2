"""The planner auto and `compare` over a year of hours, beside the paper's joint search, in one run.

python benchmarks/year.py [--quick] [--data FOLDER] [--out FILE.json] [--repeats 5]

The three ways alternate in one process. Process seconds, the least counts. `compare` plans four cells as `plan`: two alphas, two slacks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fleets
import numpy as np
from tables import environment, figure, publish, table

import slackwater as sw
from slackwater.planning.planner import optimise

RESULTS = Path(__file__).parent / "results" / "year.json"
AIM_S = 60.0
SHAPES, QUICK = ((7, 236), (54, 336), (54, 8760)), ((7, 100),)
"""Clients and slots."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="typical", help="folder of intensity files, instead of the built-in typical profiles")
    add("--quick", action="store_true", help="a small case, one repeat; written only with --out")
    add("--out", type=Path, help=f"results as JSON, and as Markdown beside it (default results/{RESULTS.name})")
    add("--repeats", type=int, help="runs of each way; the least counts")
    options = parser.parse_args(arguments)
    repeats = options.repeats or (1 if options.quick else 5)
    shapes = QUICK if options.quick else SHAPES
    cases = [run(clients, slots, options.data, repeats) for clients, slots in shapes]
    result: dict[str, Any] = {"environment": environment(), "data": options.data, "repeats": repeats, "cases": cases}
    result["violations"] = [
        f"{one['clients']} x {one['slots']}: auto is over the budget" for one in cases if one["over"]
    ]
    return publish(result, report(result), options.out or (None if options.quick else RESULTS))


def run(clients: int, slots: int, data: str, repeats: int) -> dict[str, Any]:
    """Return process seconds of the three ways, and the load."""
    traces = sw.load_traces(data)
    traces = traces.window(traces.start, slots)
    rounds = min(fleets.ROUNDS, slots // 3)
    row = np.arange(clients) % len(traces.zones)
    power_w = np.random.default_rng(1).uniform(fleets.LEAST_W, fleets.MOST_W, clients)
    problem = sw.Problem(
        clients=sw.Fleet.of([traces.zones[i] for i in row], power_w=power_w),
        traces=traces,
        rounds=rounds,
        slack=slots - rounds,
        budget_kg=fleets.SHARE * float(power_w / 1000 @ traces.intensity[row, :rounds].sum(axis=1)),
    )
    seconds: dict[str, list[float]] = {"joint": [], "auto": [], "compare": []}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        made = work()
        seconds[name].append(time.process_time() - began)
        return made

    load = os.getloadavg()[0]
    for _ in range(repeats):
        timed("joint", lambda: optimise(problem))
        plan = timed("auto", lambda: sw.plan(problem))
        timed("compare", lambda: sw.compare(problem, alphas=[0.1, 1.0], slacks=[(slots - rounds) // 2, slots - rounds]))
        print(f"year: {clients} x {slots}", file=sys.stderr)
    return {
        "clients": clients,
        "slots": slots,
        "seconds": seconds,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "end": plan.end,
        "over": plan.emissions_kg > problem.budget_kg * (1 + 1e-9),
    }


def report(result: dict[str, Any]) -> str:
    """Return the table."""
    rows = []
    for one in result["cases"]:
        joint, auto, compare = (min(one["seconds"][way]) for way in ("joint", "auto", "compare"))
        rows.append(
            [
                f"{one['clients']:,} x {one['slots']:,}", figure(joint), figure(auto), figure(auto / joint), figure(compare),
                "met" if max(auto, compare) <= AIM_S else "missed", f"{one['load'][0]} to {one['load'][1]}",
            ]
        )  # fmt: skip
    about = result["environment"]
    head = ["clients x slots", "joint s", "auto s", "auto / joint", "compare, 4 cells, s", f"aim {AIM_S:g} s", "load"]
    return (
        "# Planning a year\n\n"
        f"{about['date']}, {about['machine']}, {about['cores']} cores, data: {result['data']}. Process seconds, the least of "
        f"{result['repeats']}. Joint: the paper's objective over all end times. Auto: the default planner.\n\n"
        + table(head, rows)
    )


if __name__ == "__main__":
    sys.exit(main())
