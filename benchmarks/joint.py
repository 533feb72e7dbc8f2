"""The search over all end times beside the exhaustive search that it replaced, in one run.

python benchmarks/joint.py [--quick] [--data FOLDER] [--out FILE.json] [--repeats 5] [--cases NAME ...]

Each case runs in a process of its own; both searches alternate in it. The exhaustive search runs once where it takes a
minute. For a year and for a million clients it takes ten and more, so it runs there only with --long. Exits with 1 if the
two searches differ in a single bit, never because of time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
from tables import environment, figure, peak_gib, publish, table

import slackwater as sw
from slackwater.planning.exact import Found, search

RESULTS = Path(__file__).parent / "results" / "joint.json"
TESTS = Path(__file__).resolve().parents[1] / "tests" / "planning"
YEAR = 8760


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem, and how often the exhaustive search is run on it at most."""

    name: str
    clients: int
    slots: int
    aim_s: float | None = None
    """Process seconds."""
    exhaustive: int = 5
    recall: int = 0
    alpha: float | str = 0.1


CASES = (
    Case(name="paper", clients=7, slots=153),
    Case(name="fleet", clients=54, slots=336, aim_s=0.08),
    Case(name="fleet-recall", clients=54, slots=336, recall=24),
    Case(name="fleet-log", clients=54, slots=336, alpha="log"),
    Case(name="fleet-max-min", clients=54, slots=336, alpha="max-min"),
    Case(name="thousand", clients=1_000, slots=336, aim_s=0.5),
    Case(name="hundred-thousand", clients=100_000, slots=336, aim_s=10.0, exhaustive=1),
    Case(name="quarter", clients=54, slots=YEAR // 4, exhaustive=1),
    Case(name="year", clients=54, slots=YEAR, aim_s=4.0, exhaustive=0),
    Case(name="million", clients=1_000_000, slots=336, aim_s=90.0, exhaustive=0),
)
QUICK = ("paper", "fleet", "fleet-recall", "fleet-log", "fleet-max-min")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="typical", help="folder of intensity files, instead of the built-in typical profiles")
    add("--quick", action="store_true", help="small cases, one repeat; written only with --out")
    add("--out", type=Path, help=f"results as JSON, and as Markdown beside it (default results/{RESULTS.name})")
    add("--repeats", type=int, help="runs of each search; the least counts")
    add("--cases", nargs="+", choices=[case.name for case in CASES], help="only these cases")
    add("--long", action="store_true", help="the exhaustive search once in every case")
    options = parser.parse_args(arguments)
    repeats = options.repeats or (1 if options.quick else 5)
    names = options.cases or (QUICK if options.quick else [case.name for case in CASES])
    result: dict[str, Any] = {"environment": environment(), "data": options.data, "repeats": repeats, "cases": []}
    for name in names:
        case = next(case for case in CASES if case.name == name)
        if options.long:
            case = replace(case, exhaustive=max(case.exhaustive, 1))
        job = {"case": asdict(case), "data": options.data, "repeats": repeats}
        done = subprocess.run(
            [sys.executable, __file__, "--job", json.dumps(job)], stdout=subprocess.PIPE, text=True, check=True
        )
        result["cases"].append(asdict(case) | json.loads(done.stdout))
        print(f"joint: {case.name}", file=sys.stderr)
    result["violations"] = [f"{one['name']}: the two searches differ" for one in result["cases"] if not one["same"]]
    return publish(result, report(result), options.out or (None if options.quick else RESULTS))


def run(case: Case, data: str, repeats: int) -> dict[str, Any]:
    """Return process seconds of both searches, load, memory, and whether they agree in every bit."""
    sys.path.insert(0, str(TESTS))
    from exhaustive import exhaustive_search  # type: ignore[import-not-found]

    problem = build(case, data)
    ends = range(problem.horizon - problem.rounds + 1)
    seconds: dict[str, list[float]] = {"new": [], "exhaustive": []}
    found: dict[str, Found] = {}

    def timed(name: str, work: Callable[[], Found]) -> None:
        began = time.process_time()
        found[name] = work()
        seconds[name].append(time.process_time() - began)

    load = os.getloadavg()[0]
    peak = 0.0
    for i in range(repeats):
        timed("new", lambda: search(problem, ends))
        peak = peak or peak_gib()
        if i < case.exhaustive:
            timed("exhaustive", lambda: exhaustive_search(problem, ends))
    told = {(f.stage.end, f.upper_bound, f.level, f.packed.tobytes()) for f in found.values()}
    new = found["new"]
    return {
        "seconds": seconds,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "peak_gib": peak,
        "peak_gib_both": peak_gib(),
        "same": len(told) == 1,
        "end": new.stage.end,
        "end_times": len(ends),
    }


def build(case: Case, data: str) -> sw.Problem:
    """Return a fleet as `fleets.py` builds it: all powers different, a budget of 20 % of the first 100 slots."""
    traces = sw.load_traces(data)
    traces = traces.window(traces.start, case.slots)
    rounds = min(fleets.ROUNDS, case.slots // 3)
    row = np.arange(case.clients) % len(traces.zones)
    power_w = np.random.default_rng(1).uniform(fleets.LEAST_W, fleets.MOST_W, case.clients)
    budget = fleets.SHARE * float(power_w / 1000 @ traces.intensity[row, :rounds].sum(axis=1))
    return sw.Problem(
        clients=sw.Fleet.of([traces.zones[i] for i in row], power_w=power_w),
        traces=traces,
        rounds=rounds,
        slack=case.slots - rounds,
        recall=case.recall,
        alpha=case.alpha,
        budget_kg=budget,
    )


def report(result: dict[str, Any]) -> str:
    """Return the tables."""
    rows = []
    for one in result["cases"]:
        new, old = (one["seconds"][key] for key in ("new", "exhaustive"))
        aim = one["aim_s"]
        rows.append(
            [
                f"{one['name']} ({one['clients']:,} x {one['slots']:,})",
                figure(min(old)) if old else "not run",
                figure(min(new)),
                figure(min(old) / min(new)) if old else "",
                "" if aim is None else f"{aim:g} ({'met' if min(new) <= aim else 'missed'})",
                f"{len(old)} / {len(new)}",
                f"{one['load'][0]} to {one['load'][1]}",
                figure(one["peak_gib"]),
                "yes" if one["same"] and old else "" if one["same"] else "NO",
            ]
        )
    head = ["case", "exhaustive s", "new s", "times", "aim s", "runs", "load", "GiB (new)", "same bits"]
    about = result["environment"]
    return (
        "# The search over all end times\n\n"
        f"{about['date']}, {about['machine']}, {about['cores']} cores, data: {result['data']}. Process seconds of the search, "
        "least of the runs.\n\n" + table(head, rows)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        job = json.loads(sys.argv[2])
        print(json.dumps(run(Case(**job["case"]), job["data"], job["repeats"])))
    else:
        sys.exit(main())
