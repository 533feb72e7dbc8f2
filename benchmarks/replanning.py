"""One step of a run under forecasts that re-plans, beside one plain plan of the same size.

python benchmarks/replanning.py [--quick] [--data FOLDER] [--out FILE.json]

The two are timed in turn in this one run, because the machines are shared: read the ratio. A step settles, builds the
remaining problem, solves it twice (the first plan of a run needs a draft to know what to keep back; later ones take the
plan before), and decides who trains. The forecast is
made before the clock starts: its cost is the forecaster's. The same is done for clients that are tied by a server, a limit
and a quorum; their steps are also timed by the process's own time, because the machines are shared. Exits with 1 if the step
breaks the budget or plans nothing; never because of time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from tables import environment, figure, publish, spread, table

import slackwater as sw
from slackwater.intensity.forecast.base import SameHourMean
from slackwater.replanning.backtest import without_intensity
from slackwater.replanning.controller import Controller
from slackwater.replanning.run_state import Settings, State

RESULTS = Path(__file__).parent / "results" / "replanning.json"
CLIENTS, SLOTS, ROUNDS = 54, 336, 100
SHARE, PAST_DAYS, AIM_S = 0.2, 28, 1.0
"""Budget of what everybody costs in the first ROUNDS hours; days before the run; seconds for a step."""
TIED_AIM_S = 0.5
"""Process seconds for a step with tied clients."""
CASES = {
    "free": {},
    "server, at most 3": {"max_parallel": 3},
    "server, at most 3, at least 2": {"max_parallel": 3, "min_parallel": 2},
}
"""What ties the clients; all but the first have a server of 300 W."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(arguments)
    started = environment()
    result: dict[str, Any] = {
        "environment": started,
        "data": {"source": options.data, "factor": options.factor},
        "settings": {
            "clients": options.clients,
            "slots": options.slots,
            "rounds": min(ROUNDS, options.slots),
            "repeats": options.repeats,
        },
        "steps": [
            _measure(options, done, case) for case in CASES for done in (0, options.slots // 4, options.slots // 2)
        ],
    }
    result["violations"] = [(step["case"], step["at_slot"]) for step in result["steps"] if not step["kept"]]
    return publish(result, _report(result), options.out or (None if options.quick else RESULTS))


def _measure(options: argparse.Namespace, done: int, case: str) -> dict[str, Any]:
    """A step that re-plans after `done` slots of the oracle's plan, and a plain plan of the whole horizon, in turn."""
    problem, actuals = _problem(options)
    if CASES[case]:
        server = sw.Server(zone=str(problem.fleet.zone[0]), power_w=300)
        problem = problem.with_settings(server=server, **CASES[case])
    best = sw.plan(problem, planner="paper")
    known = actuals.window(actuals.start, 24 * PAST_DAYS + max(done - 1, 0))
    ahead = problem.horizon - max(done - 1, 0)
    forecast = SameHourMean().forecast(known, ahead)
    state = State.initial(problem)
    state.slot = done
    state.trained[:, :done] = best.matrix[:, :done]
    state.held_kg[:done] = best.kg_by_slot[:done]
    stored = json.dumps(state.to_dict())
    step_s, own_s, plan_s, kept = list[float](), list[float](), list[float](), True
    for _ in range(options.repeats):
        controller = Controller(without_intensity(problem), Settings(), State.from_dict(json.loads(stored)))
        began, own = time.perf_counter(), time.process_time()
        step = controller.step(known, forecast)
        step_s.append(time.perf_counter() - began)
        own_s.append(time.process_time() - own)
        held = step.spent_kg + step.in_flight_kg + step.held_kg
        kept &= step.replanned and bool(controller.state.plan.any()) and held <= problem.budget_kg * (1 + 1e-9)
        plain = problem.with_settings()
        began = time.perf_counter()
        sw.plan(plain, planner="paper")
        plan_s.append(time.perf_counter() - began)
    return {
        "case": case, "at_slot": done, "left": problem.horizon - done, "step_s": step_s, "step_process_s": own_s,
        "plan_s": plan_s, "kept": kept,
    }  # fmt: skip


def _problem(options: argparse.Namespace) -> tuple[sw.Problem, sw.Traces]:
    """As many zones as there are clients, each client with a power of its own."""
    traces = sw.load_traces(
        options.data, factor=options.factor, start=options.start, hours=24 * PAST_DAYS + options.slots
    )
    if len(traces.zones) < options.clients:
        raise SystemExit(f"{options.data} has {len(traces.zones)} zones, not {options.clients}.")
    powers = np.linspace(100, 500, options.clients)
    zones = traces.zones[: options.clients]
    rounds = min(ROUNDS, options.slots)
    problem = sw.Problem(
        clients=sw.Fleet.of(zones, power_w=powers),
        traces=traces,
        start=traces.start + timedelta(days=PAST_DAYS),
        rounds=rounds,
        slack=options.slots - rounds,
        budget_kg=1.0,
    )
    budget = SHARE * float(problem.costs.dense()[:, :rounds].sum())
    rows = [traces.index(zone) for zone in zones]
    actuals = sw.Traces(zones=tuple(zones), start=traces.start, intensity=traces.intensity[rows], factor=traces.factor)
    return problem.with_settings(budget_kg=budget), actuals


def _report(result: dict[str, Any]) -> str:
    settings, rows = result["settings"], []
    for step in result["steps"]:
        ratio = statistics.median(step["step_s"]) / statistics.median(step["plan_s"])
        rows.append(
            [
                step["case"], f"{step['at_slot']}", f"{step['left']}", spread(step["step_s"]), figure(min(step["step_process_s"])),
                spread(step["plan_s"]), figure(ratio),
            ]
        )  # fmt: skip
    slowest = max(statistics.median(step["step_s"]) for step in result["steps"] if not CASES[step["case"]])
    tied = max(min(step["step_process_s"]) for step in result["steps"] if CASES[step["case"]])
    head = [
        "clients", "slots done", "slots left", "a step that re-plans, s", "least process time, s",
        "a plain plan of all slots, s", "ratio",
    ]  # fmt: skip
    return "\n".join(
        [
            f"`{result['environment']['command']}`, {result['environment']['date']}, "
            f"{result['environment']['cores']} cores, load {result['environment']['load_average'][0]}",
            "",
            f"{settings['clients']} clients, {settings['slots']} slots, median of {settings['repeats']} (least to largest):",
            "",
            table(head, rows),
            "",
            f"Aim, a free step well under {AIM_S:g} s: {'met' if slowest < AIM_S / 2 else 'not met'} ({figure(slowest)} s).",
            "",
            f"Aim, a tied step under {TIED_AIM_S:g} s of process time: {'met' if tied < TIED_AIM_S else 'not met'} "
            f"({figure(tied)} s).",
        ]
    )


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a small size, and nothing is stored unless --out is given"
    )
    parser.add_argument("--data", default="typical", help="folder of intensity; the embedded synthetic year by default")
    parser.add_argument("--factor", default="lifecycle", choices=("direct", "lifecycle"))
    parser.add_argument("--start", default="2022-06-01T00:00Z", help="first hour of the past")
    parser.add_argument("--clients", type=int, help=f"default {CLIENTS}")
    parser.add_argument("--slots", type=int, help=f"default {SLOTS}")
    parser.add_argument("--repeats", type=int, help="default 7")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    for name, quick, full in (("clients", 6, CLIENTS), ("slots", 48, SLOTS), ("repeats", 2, 7)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    return options


if __name__ == "__main__":
    sys.exit(main())
