"""The planner against other ways to the same schedule at the paper's size, and alone up to a million clients.

python benchmarks/planner.py [--quick] [--data FOLDER] [--out FILE.json] [--skip-cvxpy]

All paths are timed in this one run, interleaved, because the machines are shared: read the ratios. Exits with 1 if
another path found a better schedule than ours, or if a gap, a budget or a file read back is not as it must be; never
because of time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import fleets
import paths
from planner_report import report
from tables import environment, publish

import slackwater as sw

RESULTS = Path(__file__).parent / "results" / "planner.json"
SIZES, QUICK_SIZES = (7, 14, 28, 54), (7,)
FLEETS, QUICK_FLEETS = (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000)
ALPHAS, QUICK_ALPHAS = (1.0, 0.1, 0.001), (1.0, 0.1)
LARGEST_GAP = 1e-6
JOINT_S, TIMES_FASTER = 0.3, 1000
FLEET_AIMS = {100_000: (10.0, 4.0), 1_000_000: (90.0, 12.0)}
"""Clients: seconds, GiB."""
GROWTH_FROM, GROWTH_AIM = 10_000, 1.1
_RECOUNT = 1e-10
"""Relative: a million numbers summed in another order."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(arguments)
    started = environment()
    traces = sw.load_traces(options.data, factor=options.factor)
    sizes = [size for size in options.clients if size <= len(traces.zones)]
    seeds = list(range(1, options.repeats + 1))
    alphas = QUICK_ALPHAS if options.quick else ALPHAS
    cvxpy = not options.skip_cvxpy and paths.has_cvxpy()
    # Minutes for each run of the larger ones.
    cvxpy_repeats = {size: 0 if not cvxpy else options.repeats if size <= 14 else 1 for size in sizes}
    small = paths.measure(traces, sizes, samples=options.samples, repeats=options.repeats, cvxpy_repeats=cvxpy_repeats)
    large = fleets.measure(options.data, options.factor, options.fleets, seeds, alphas)
    result: dict[str, Any] = {
        "environment": started,
        "data": {"source": options.data, "factor": options.factor, "zones": len(traces.zones)},
        "settings": {
            "repeats": options.repeats,
            "cvxpy_repeats": {str(size): repeats for size, repeats in cvxpy_repeats.items()},
            "sampled_s": paths.sampled_ends(paths.SLACK, options.samples),
            "seeds": seeds,
            "sizes_without_enough_zones": [size for size in options.clients if size not in sizes],
            "paper": paths.SETTINGS,
            "fleets": fleets.SETTINGS,
        },
        "paper_size": small,
        "fleets": large,
        "growth": _growth(large),
        "violations": _violations(small, large),
    }
    result["aims"] = _aims(result)
    return publish(result, report(result), options.out or (None if options.quick else RESULTS))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="typical", help="folder of intensity files, instead of the built-in typical profiles")
    add("--factor", default="lifecycle", choices=["lifecycle", "direct"])
    add("--quick", action="store_true", help="small sizes, one repeat, under a minute; written only with --out")
    add("--out", type=Path, help=f"results as JSON, and as Markdown beside it (default results/{RESULTS.name})")
    add("--skip-cvxpy", action="store_true", help="without CVXPY and SCIP, which take most of the time")
    add("--clients", type=int, nargs="+", help="sizes of the comparison")
    add("--fleets", type=int, nargs="+", help="sizes of the fleets")
    add("--repeats", type=int, help="repeats of everything; fleets take another seed each time")
    add("--samples", type=int, help="how many s the other paths are timed on")
    options = parser.parse_args(arguments)
    options.clients = options.clients or (QUICK_SIZES if options.quick else SIZES)
    options.fleets = options.fleets or (QUICK_FLEETS if options.quick else FLEETS)
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.samples = options.samples or (1 if options.quick else 3)
    return options


def _growth(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponent of planning seconds in clients for every kind of fleet; None with fewer than two large sizes."""
    seconds: dict[tuple[str, float], dict[int, list[float]]] = {}
    for run in runs:
        by_size = seconds.setdefault((run["powers"], run["alpha"]), {})
        if run["clients"] >= GROWTH_FROM:
            by_size.setdefault(run["clients"], []).append(run["seconds"]["plan"])
    return [
        {
            "powers": powers,
            "alpha": alpha,
            "sizes": list(by_size),
            "exponent": fleets.growth(list(by_size), list(map(statistics.median, by_size.values())))
            if len(by_size) > 1
            else None,
        }
        for (powers, alpha), by_size in seconds.items()
    ]


def _violations(small: list[dict[str, Any]], large: list[dict[str, Any]]) -> list[str]:
    """What must hold whatever the machine."""
    wrong = []
    for size in small:
        name = f"{size['clients']} clients"
        for path, one in size["paths"].items():
            if one["lead"] > paths.ROUNDING:
                wrong.append(f"{name}: {path} is better than ours by {one['lead']:.2g}, relative")
            if path.startswith("ours") and one["not_allowed"]:
                wrong.append(f"{name}: {path} breaks a constraint")
        if size["gap"] > LARGEST_GAP:
            wrong.append(f"{name}: gap {size['gap']:.2g}")
    for run in large:
        name = f"{run['clients']:,} clients, {run['powers']}, alpha {run['alpha']:g}, seed {run['seed']}"
        kg, objective = run["emissions_kg_recounted"], run["objective_recounted"]
        if run["gap"] > LARGEST_GAP:
            wrong.append(f"{name}: gap {run['gap']:.2g}")
        if kg > run["budget_kg"] * (1 + _RECOUNT):
            wrong.append(f"{name}: {kg!r} kg is over the budget of {run['budget_kg']!r} kg")
        if abs(run["objective"] - objective) > _RECOUNT * objective:
            wrong.append(f"{name}: objective {run['objective']!r} is {objective!r} when counted from the matrix")
        if not run["same_after_load"]:
            wrong.append(f"{name}: the plan read back from its file differs")
    return wrong


def _aims(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The aims that this run can speak to, and what came out."""
    aims: list[dict[str, Any]] = []

    def at_most(what: str, limit: float, found: float) -> None:
        aims.append({"aim": what, "limit": f"at most {limit:g}", "found": found, "met": found <= limit})

    for size in result["paper_size"]:
        name, ways = f"{size['clients']} clients", size["paths"]
        if size["clients"] == 7:
            seconds = statistics.median(ways["ours exact"]["seconds_all_s"])
            at_most(f"{name}: seconds for the joint optimum over all s", JOINT_S, seconds)
        if "CVXPY + SCIP" in ways:
            times = ways["CVXPY + SCIP"]["times_ours"]
            met, limit = times >= TIMES_FASTER, f"at least {TIMES_FASTER:,}"
            aims.append({"aim": f"{name}: times faster than CVXPY + SCIP", "limit": limit, "found": times, "met": met})
    lead = max(one["lead"] for size in result["paper_size"] for one in size["paths"].values())
    at_most("lead of any other path over ours, relative (rounding)", paths.ROUNDING, max(lead, 0.0))
    at_most("gap of a fleet, largest", LARGEST_GAP, max(run["gap"] for run in result["fleets"]))
    for clients, (seconds, gib) in FLEET_AIMS.items():
        runs = [run for run in result["fleets"] if run["clients"] == clients]
        if runs:
            slowest = max(sum(run["seconds"].values()) for run in runs)
            at_most(f"{clients:,} clients: seconds from build to load, slowest run", seconds, slowest)
            at_most(f"{clients:,} clients: peak GiB, largest", gib, max(run["peak_gib"] for run in runs))
    exponents = [one["exponent"] for one in result["growth"] if one["exponent"] is not None]
    if exponents:
        at_most(f"growth exponent from {GROWTH_FROM:,} clients on, largest", GROWTH_AIM, max(exponents))
    return aims


if __name__ == "__main__":
    sys.exit(main())
