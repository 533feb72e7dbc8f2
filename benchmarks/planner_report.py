"""The planner benchmark's result as tables: Markdown for the docs that reads as text in the terminal."""

from __future__ import annotations

import statistics
from typing import Any

from fleets import STEPS
from tables import figure, spread, table


def report(result: dict[str, Any]) -> str:
    """Everything that was measured, with what it was measured on."""
    parts = [
        _about(result),
        _paper_text(result["settings"]),
        _paper_table(result["paper_size"]),
        _fleet_text(result["settings"]),
        _fleet_table(result["fleets"]),
        _growth_table(result["growth"]),
        table(
            ["aim", "limit", "found", "so"],
            [[a["aim"], a["limit"], figure(a["found"]), "met" if a["met"] else "MISSED"] for a in result["aims"]],
        ),
    ]
    if left_out := result["settings"]["sizes_without_enough_zones"]:
        parts.append(f"Left out, since the data has {result['data']['zones']} zones: {_listed(left_out)} clients.")
    if result["violations"]:
        parts.append("**WRONG.** " + "; ".join(result["violations"]) + ".")
    return "\n\n".join(parts)


def _about(result: dict[str, Any]) -> str:
    about, data = result["environment"], result["data"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    return (
        f"Made by `{about['command']}` on {about['date'][:10]}: {about['machine']}, {about['cores']} shared cores; "
        f"{versions}. Intensity: {data['source']}, {data['factor']}, {data['zones']} zones."
    )


def _paper_text(settings: dict[str, Any]) -> str:
    paper, repeats, sample = settings["paper"], settings["repeats"], settings["sampled_s"]
    cvxpy = ", ".join(f"{n} with {size} clients" for size, n in settings["cvxpy_repeats"].items())
    return (
        f"**The same schedule, four ways.** One client of {paper['power_w']:g} W in each zone, {paper['rounds']} "
        f"rounds, slack {paper['slack']}, window {paper['fine_tune']}, alpha {paper['alpha']:g}; the budget is "
        f"everybody for the first {paper['rounds']} hours. Ours is timed on the joint problem over all s, problem "
        f"building included (runs: {repeats * len(sample)}). HiGHS and CVXPY are timed on s = {_listed(sample)} and "
        f"scaled to all {paper['slack']} s (repeats: {repeats}; CVXPY: {cvxpy}). All paths are interleaved; median (least "
        f"to largest). SCIP stops at the authors' {paper['nodes']} nodes; CVXPY writes the power of 1/10, exactly, as "
        'second-order cones. "Below ours": largest distance from our exact objective, at the same s, over what there '
        "is to gain (our objective less that of the window alone)."
    )


def _paper_table(sizes: list[dict[str, Any]]) -> str:
    rows = []
    for size in sizes:
        for path, one in size["paths"].items():
            refused = f", {one['not_allowed']} over budget" if one["not_allowed"] else ""
            below = f"{max(one['below_ours']):.1e}" if one["below_ours"] else "none allowed"
            status = ", ".join(one["statuses"]) + refused
            times = figure(one["times_ours"])
            rows.append([path, str(size["clients"]), spread(one["seconds_all_s"]), times, below, status])
    return table(["path", "clients", "seconds for all s", "times ours", "below ours", "status"], rows)


def _fleet_text(settings: dict[str, Any]) -> str:
    fleet = settings["fleets"]
    least, most = fleet["power_w"]
    return (
        f"**Fleets.** Clients spread over the zones, {fleet['rounds'] + fleet['slack']} slots, s = {fleet['end']}, "
        f"budget {fleet['budget_share']:.0%} of everybody for the first {fleet['rounds']} hours; powers drawn from "
        f"{least:g} to {most:g} W (all different) or from {_listed(fleet['classes_w'])} W (three classes). Each run in "
        f"its own process; seconds are medians over seeds {_listed(settings['seeds'])} (planning: least to largest); "
        "memory, file and gap are the largest. The matrix is kept as bits, in memory and in the file."
    )


def _fleet_table(runs: list[dict[str, Any]]) -> str:
    kinds: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    for run in runs:
        kinds.setdefault((run["powers"], run["alpha"], run["clients"]), []).append(run)
    rows = []
    for powers, alpha, clients in sorted(kinds, key=lambda kind: (kind[0], -kind[1], kind[2])):
        same = kinds[powers, alpha, clients]
        cells = [powers, f"{alpha:g}", f"{clients:,}"]
        for step in STEPS:
            seconds = [run["seconds"][step] for run in same]
            cells.append(spread(seconds) if step == "plan" else figure(statistics.median(seconds)))
        cells += [figure(max(run[key] for run in same)) for key in ("peak_gib", "matrix_mib", "file_mib")]
        cells += [f"{max(run['gap'] for run in same):.1e}", ", ".join(sorted({run["status"] for run in same}))]
        rows.append(cells)
    steps = [f"{step} s" for step in STEPS]
    return table(["powers", "alpha", "clients", *steps, "peak GiB", "matrix MiB", "file MiB", "gap", "status"], rows)


def _growth_table(growth: list[dict[str, Any]]) -> str:
    rows = []
    for one in growth:
        exponent = "needs two sizes" if one["exponent"] is None else f"{one['exponent']:.2f}"
        rows.append([one["powers"], f"{one['alpha']:g}", "; ".join(f"{size:,}" for size in one["sizes"]), exponent])
    return table(["powers", "alpha", "fitted over clients", "growth exponent of planning seconds"], rows)


def _listed(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)
