"""Four ways to the same schedule at the paper's size: ours exact and greedy, HiGHS on the knapsack, CVXPY with SCIP."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import slackwater as sw

POWER_W = 300.0
ROUNDS, SLACK, ALPHA = 10, 150, 0.1
PAPER_ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
NODES = 1000
"""Node limit of the authors' SCIP runs."""
SETTINGS = {
    "power_w": POWER_W, "rounds": ROUNDS, "slack": SLACK, "fine_tune": 1, "alpha": ALPHA, "nodes": NODES,
}  # fmt: skip
LIMIT_S = 300.0
"""A single solve of HiGHS or SCIP is stopped here; the table says if that happened."""
ROUNDING = 1e-12
"""Relative: sums of the same numbers in another order differ by less."""

Path = Literal["ours exact", "ours greedy", "HiGHS knapsack", "CVXPY + SCIP"]
Solution = tuple[NDArray[np.bool_], str]
"""The matrix [client, slot], and the solver's own word for how it ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """The paper's problem (opt:tuning): one client in each of some zones, all of the same power, window of 1 slot."""

    traces: sw.Traces
    zones: Sequence[str]
    g: NDArray[np.float64]
    """[client, slot], kg."""
    rounds: int
    slack: int
    budget_kg: float

    @classmethod
    def of(cls, traces: sw.Traces, clients: int, rounds: int = ROUNDS, slack: int = SLACK) -> Instance:
        """The first zones, the paper's seven before others; the budget runs everybody for the first `rounds` hours."""
        known = [zone for zone in PAPER_ZONES if zone in traces.zones]
        zones = [*known, *(zone for zone in traces.zones if zone not in known)][:clients]
        rows = [traces.index(zone) for zone in zones]
        g = POWER_W / 1000 * traces.intensity[rows, : rounds + slack]
        return cls(traces=traces, zones=zones, g=g, rounds=rounds, slack=slack, budget_kg=float(g[:, :rounds].sum()))

    @property
    def gain(self) -> NDArray[np.float64]:
        """[client, slot], g_max - g, kg."""
        return np.asarray(self.g.max() - self.g)

    def value(self, matrix: NDArray[np.bool_]) -> float:
        """The paper's objective, counted from the matrix."""
        return float(((self.gain * matrix).sum(axis=1) ** ALPHA).sum())

    def allowed(self, matrix: NDArray[np.bool_], end: int) -> bool:
        """Whether a schedule keeps the budget, the window and the end of the run."""
        stop = self.rounds + end
        kept = bool(matrix[:, stop - 1].all()) and not matrix[:, stop:].any()
        return kept and float((self.g * matrix).sum()) <= self.budget_kg * (1 + 2 * ROUNDING)

    def window_alone(self, end: int) -> float:
        """Objective of a schedule with nothing before the window."""
        return float((self.gain[:, self.rounds + end - 1] ** ALPHA).sum())


def ours(instance: Instance, end: int | None, solver: Literal["exact", "greedy"]) -> sw.Plan:
    """Our planner from the traces on, for one end time or (None) jointly over all."""
    problem = sw.Problem(
        clients=[sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in instance.zones],
        traces=instance.traces,
        rounds=instance.rounds,
        slack=instance.slack,
        alpha=ALPHA,
        budget_kg=instance.budget_kg,
    )
    return sw.plan(problem, end=end, solver=solver, planner="paper")


def highs(instance: Instance, end: int) -> Solution:
    """HiGHS on the 0-1 knapsack of one end time: value = rise of u^alpha with the next cheapest slot, weight = g."""
    highspy: Any = importlib.import_module("highspy")
    g, before = instance.g, instance.rounds + end - 1
    order = np.argsort(g[:, :before], axis=1, kind="stable")
    base = instance.gain[:, [before]]
    u = base + np.cumsum(np.take_along_axis(instance.gain, order, axis=1), axis=1)
    value = np.diff(np.concatenate([base, u], axis=1) ** ALPHA, axis=1).ravel()
    weight = np.take_along_axis(g, order, axis=1).ravel()
    count = len(value)
    unit = float(weight.mean())  # tolerances are absolute, so weights should be near 1

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = count, 1
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = value
    lp.col_lower_, lp.col_upper_ = np.zeros(count), np.ones(count)
    lp.row_lower_ = np.array([-highspy.kHighsInf])
    lp.row_upper_ = np.array([(instance.budget_kg - float(g[:, before].sum())) / unit])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * count
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array([0, count]), np.arange(count)
    lp.a_matrix_.value_ = weight / unit
    model = highspy.Highs()
    options = {"output_flag": False, "time_limit": LIMIT_S, "mip_rel_gap": 1e-10, "mip_abs_gap": 1e-10,
               "mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}  # fmt: skip
    for name, setting in options.items():
        model.setOptionValue(name, setting)
    model.passModel(lp)
    model.run()
    matrix = np.zeros(g.shape, dtype=bool)
    taken = np.array(model.getSolution().col_value).reshape(order.shape) > 0.5
    np.put_along_axis(matrix, order, taken, axis=1)
    matrix[:, before] = True
    return matrix, str(model.modelStatusToString(model.getModelStatus())).lower()


def cvxpy_scip(instance: Instance, end: int) -> Solution:
    """The paper's formulation as the authors give it to CVXPY, solved by SCIP with their node limit.

    CVXPY writes the power of 0.1 = 1/10, exactly, as second-order cones, which SCIP takes.
    """
    cp: Any = importlib.import_module("cvxpy")
    stop = instance.rounds + end
    a = cp.Variable(instance.g.shape, boolean=True)
    utility = cp.sum(cp.multiply(instance.gain, a), axis=1)
    constraints = [cp.sum(cp.multiply(instance.g, a)) <= instance.budget_kg, a[:, stop - 1] == 1]
    if stop < instance.g.shape[1]:
        constraints.append(a[:, stop:] == 0)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.power(utility, ALPHA))), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Solution may be inaccurate": the table shows the status
        problem.solve(solver=cp.SCIP, scip_params={"limits/nodes": NODES, "limits/time": LIMIT_S})
    ended = problem.solver_stats.extra_stats["scip_status"]
    return np.asarray(a.value) > 0.5, f"{problem.status} ({ended})"


def has_cvxpy() -> bool:
    """Whether the benchmark extras are installed."""
    try:
        cp: Any = importlib.import_module("cvxpy")
    except ImportError:
        return False
    return "SCIP" in cp.installed_solvers()


def sampled_ends(slack: int, count: int) -> list[int]:
    """The middles of equal parts of 1..slack, so that their mean time is an estimate of the mean over all."""
    return [round(slack * (2 * i + 1) / (2 * count)) for i in range(count)]


def measure(
    traces: sw.Traces, sizes: Sequence[int], *, samples: int, repeats: int, cvxpy_repeats: dict[int, int]
) -> list[dict[str, Any]]:
    """Every path at every size, interleaved: ours runs anew, jointly over all s, before each single s of the others."""
    instances = {clients: Instance.of(traces, clients) for clients in sizes}
    ends = sampled_ends(SLACK, samples)
    _warm_up(traces, cvxpy=any(cvxpy_repeats.values()))
    runs: dict[int, dict[Path, list[dict[str, Any]]]] = {clients: {} for clients in sizes}
    for repeat in range(repeats):
        for clients, instance in instances.items():
            paths = runs[clients]
            for end in ends:
                for solver in ("exact", "greedy"):
                    began = time.perf_counter()
                    plan = ours(instance, None, solver)
                    seconds = time.perf_counter() - began
                    path: Path = "ours exact" if solver == "exact" else "ours greedy"
                    paths.setdefault(path, []).append(
                        {"repeat": repeat, "seconds": seconds, "end": plan.end, "objective": plan.objective,
                         "gap": plan.gap, "status": plan.status, "allowed": instance.allowed(plan.matrix, plan.end)}
                    )  # fmt: skip
                _one(paths, instance, "HiGHS knapsack", highs, repeat, end)
                if repeat < cvxpy_repeats[clients]:
                    _one(paths, instance, "CVXPY + SCIP", cvxpy_scip, repeat, end)
    return [_summary(instances[clients], ends, runs[clients]) for clients in sizes]


def _one(
    paths: dict[Path, list[dict[str, Any]]], instance: Instance, path: Path,
    solve: Callable[[Instance, int], Solution], repeat: int, end: int,
) -> None:  # fmt: skip
    began = time.perf_counter()
    matrix, status = solve(instance, end)
    seconds = time.perf_counter() - began
    print(f"paper size: {len(instance.zones)} clients, {path}, s={end}: {seconds:.2f} s, {status}", file=sys.stderr)
    paths.setdefault(path, []).append(
        {"repeat": repeat, "seconds": seconds, "end": end, "objective": instance.value(matrix),
         "allowed": instance.allowed(matrix, end), "status": status}
    )  # fmt: skip


def _summary(instance: Instance, ends: Sequence[int], runs: dict[Path, list[dict[str, Any]]]) -> dict[str, Any]:
    """Seconds for all s, and how far each path ends below our optimum at the same s."""
    at_end: dict[int, float] = {}
    for end in ends:
        matrix = ours(instance, end, "exact").matrix
        if not instance.allowed(matrix, end):
            raise AssertionError(f"our schedule for s={end} breaks a constraint")
        at_end[end] = instance.value(matrix)
    joint = runs["ours exact"][0]

    def reached(run: dict[str, Any]) -> float:
        """Our objective for the same end time, or the joint one where the end time is ours to choose."""
        return at_end[run["end"]] if "gap" not in run else float(joint["objective"])

    paths: dict[str, Any] = {}
    for path, found in runs.items():
        if path in ("ours exact", "ours greedy"):
            seconds, ends_there = [run["seconds"] for run in found], [joint["end"]] * len(found)
        else:
            by_repeat = {run["repeat"]: [r["seconds"] for r in found if r["repeat"] == run["repeat"]] for run in found}
            seconds = [statistics.mean(one) * instance.slack for one in by_repeat.values()]
            ends_there = [run["end"] for run in found]
        # A schedule over the budget has nothing to be compared with.
        below = [
            (reached(run) - run["objective"]) / (reached(run) - instance.window_alone(end))
            for run, end in zip(found, ends_there, strict=True)
            if run["allowed"]
        ]
        paths[path] = {
            "seconds_all_s": seconds,
            "scaled_from_s": None if path.startswith("ours") else list(ends),
            "below_ours": below,
            "lead": max((run["objective"] / reached(run) - 1 for run in found if run["allowed"]), default=0.0),
            "not_allowed": sum(not run["allowed"] for run in found),
            "statuses": sorted({run["status"] for run in found}),
            "runs": found,
        }
    exact = statistics.median(paths["ours exact"]["seconds_all_s"])
    for one in paths.values():
        one["times_ours"] = statistics.median(one["seconds_all_s"]) / exact
    return {"clients": len(instance.zones), "zones": list(instance.zones), "budget_kg": instance.budget_kg,
            "end": joint["end"], "objective": joint["objective"], "gap": max(run["gap"] for run in runs["ours exact"]),
            "objective_at_s": {str(end): value for end, value in at_end.items()}, "paths": paths}  # fmt: skip


def _warm_up(traces: sw.Traces, *, cvxpy: bool) -> None:
    """First calls load code; that is not what is timed."""
    small = Instance.of(traces, 2, rounds=2, slack=4)
    ours(small, None, "exact")
    ours(small, None, "greedy")
    highs(small, 4)
    if cvxpy:
        cvxpy_scip(small, 4)
