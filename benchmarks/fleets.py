"""One fleet planned, measured and stored, in a process of its own: `python benchmarks/fleets.py JSON` prints JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from tables import peak_gib

import slackwater as sw

ROUNDS, SLACK = 100, 236
SHARE = 0.2
"""Budget, of what everybody costs in the first ROUNDS hours."""
LEAST_W, MOST_W = 50.0, 700.0
CLASSES_W = (70.0, 300.0, 700.0)
SETTINGS = {
    "rounds": ROUNDS, "slack": SLACK, "end": SLACK, "fine_tune": 1, "budget_share": SHARE,
    "power_w": (LEAST_W, MOST_W), "classes_w": CLASSES_W,
}  # fmt: skip
STEPS = ("build", "plan", "metrics", "save", "load")
_CHUNK = 10_000

Powers = Literal["all different", "three classes"]
POWERS: tuple[Powers, ...] = ("all different", "three classes")
T = TypeVar("T")


def measure(
    data: str, factor: str, sizes: Sequence[int], seeds: Sequence[int], alphas: Sequence[float]
) -> list[dict[str, Any]]:
    """Every fleet for every seed, each in its own process, so that its peak of memory is its own."""
    runs = []
    for seed in seeds:
        for clients in sizes:
            for powers in POWERS:
                for alpha in alphas:
                    job = {
                        "data": data,
                        "factor": factor,
                        "clients": clients,
                        "powers": powers,
                        "alpha": alpha,
                        "seed": seed,
                    }
                    done = subprocess.run(
                        [sys.executable, __file__, json.dumps(job)], stdout=subprocess.PIPE, text=True, check=True
                    )
                    print(f"fleets: {clients:,} clients, {powers}, alpha {alpha:g}, seed {seed}", file=sys.stderr)
                    runs.append(job | json.loads(done.stdout))
    return runs


def run(
    *, data: str, factor: Literal["direct", "lifecycle"], clients: int, powers: Powers, alpha: float, seed: int
) -> dict[str, Any]:
    """A fleet from its columns to the plan read back from its file, timed by step."""
    traces = sw.load_traces(data, factor=factor)
    traces = traces.window(traces.start, ROUNDS + SLACK)
    rng = np.random.default_rng(seed)
    row = np.arange(clients) % len(traces.zones)
    zones = [traces.zones[i] for i in row]
    power_w = rng.uniform(LEAST_W, MOST_W, clients) if powers == "all different" else rng.choice(CLASSES_W, clients)
    budget = SHARE * float(power_w / 1000 @ traces.intensity[row, :ROUNDS].sum(axis=1))
    seconds: dict[str, float] = {}

    def timed(step: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = work()
        seconds[step] = time.perf_counter() - began
        return result

    problem = timed(
        "build",
        lambda: sw.Problem(
            clients=sw.Fleet.of(zones, power_w=power_w),
            traces=traces,
            rounds=ROUNDS,
            slack=SLACK,
            alpha=alpha,
            budget_kg=budget,
        ),
    )
    plan = timed("plan", lambda: sw.plan(problem, end=SLACK, planner="paper"))
    peak_planning = peak_gib()
    timed("metrics", lambda: plan.metrics)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        timed("save", lambda: plan.save(file))
        loaded = timed("load", lambda: sw.Plan.load(file))
        file_mib = file.stat().st_size / 2**20
    peak = peak_gib()
    kg, objective = _recount(plan.packed, power_w / 1000, traces.intensity, row, alpha)
    return {
        "seconds": seconds,
        "peak_planning_gib": peak_planning,
        "peak_gib": peak,
        "file_mib": file_mib,
        "matrix_mib": plan.packed.nbytes / 2**20,
        "gap": plan.gap,
        "status": plan.status,
        "objective": plan.objective,
        "objective_recounted": objective,
        "budget_kg": budget,
        "emissions_kg_recounted": kg,
        "same_after_load": bool(np.array_equal(loaded.packed, plan.packed)) and loaded.objective == plan.objective,
    }


def _recount(
    packed: NDArray[np.uint8],
    kw: NDArray[np.float64],
    intensity: NDArray[np.float64],
    row: NDArray[np.intp],
    alpha: float,
) -> tuple[float, float]:
    """Emissions and objective from the bits, without the planner's code; not timed."""
    g_max = float(np.array([kw[row == zone].max() * intensity[zone].max() for zone in np.unique(row)]).max())
    kg = objective = 0.0
    for first in range(0, len(packed), _CHUNK):
        part = slice(first, first + _CHUNK)
        matrix = np.unpackbits(packed[part], axis=1, count=intensity.shape[1])
        spent = np.einsum("ct,ct->c", matrix, intensity[row[part]]) * kw[part]
        kg += float(spent.sum())
        objective += float((np.maximum(matrix.sum(axis=1) * g_max - spent, 0.0) ** alpha).sum())
    return kg, objective


def growth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Exponent of seconds in size: least squares through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
