"""HiGHS behind a few methods: columns, rows, maximise, fix, solve. Other modules know only clients and slots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import SlackwaterError

try:
    import highspy
except ImportError as error:  # ortools brings a HiGHS of its own, which hides this one if it was imported first
    raise SlackwaterError(
        f"HiGHS (the package highspy) cannot be loaded: {error}. If ortools is imported in the same program, import "
        "slackwater.planning.highs before it; else install it anew: pip install --force-reinstall highspy."
    ) from error

INFINITE = math.inf
_TOLERANCE = 1e-9
"""Tolerance of feasibility and integrality; rows are scaled so that their numbers are near 1."""
_LEAST_SECONDS = 0.05
_LOOK_S = 0.05
"""How often a running solver looks for Ctrl-C and for its caller's wish to stop."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """The result of HiGHS: a solution (None: none found), a bound on all solutions, and whether none exists."""

    columns: NDArray[np.float64] | None
    bound: float
    prices: NDArray[np.float64] | None = None
    """[column], reduced costs of a relaxation that was solved to optimality."""
    infeasible: bool = False


class Model:
    """A maximisation with columns that are whole numbers or continuous."""

    def __init__(self) -> None:
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self._highs.silent()
        self._highs.HandleUserInterrupt = True
        self._whole: list[int] = []
        options: dict[str, float | str | bool] = {
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
            "mip_feasibility_tolerance": _TOLERANCE,
            "small_matrix_value": 1e-12,
            "mip_rel_gap": 0.0,
            "parallel": "off",
            # After a restart HiGHS 1.15.1 sometimes reports a false optimum (2 of 114 solves; without restarts, none).
            "mip_allow_restart": False,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)

    def columns(
        self, count: int, lower: ArrayLike = 0.0, upper: ArrayLike = 1.0, *, whole: bool = False
    ) -> NDArray[np.int32]:
        """Add columns and return their numbers."""
        first = self._highs.getNumCol()
        low, high = (np.ascontiguousarray(np.broadcast_to(np.asarray(v, float), (count,))) for v in (lower, upper))
        self._highs.addVars(count, low, high)
        added = np.arange(first, first + count, dtype=np.int32)
        if whole:
            self._whole.extend(added.tolist())
            self._set_whole(highspy.HighsVarType.kInteger, added)
        return added

    def row(
        self, columns: Sequence[NDArray[np.int32]], factors: Sequence[ArrayLike], lower: float, upper: float
    ) -> int:
        """Add lower <= sum of factors x columns <= upper, one factor or array per group of columns; return its number."""
        index = np.concatenate(columns)
        value = np.concatenate(
            [np.broadcast_to(np.asarray(f, float), c.shape) for c, f in zip(columns, factors, strict=True)]
        )
        keep = value != 0
        self._highs.addRow(lower, upper, int(keep.sum()), index[keep].astype(np.int32), value[keep])
        return int(self._highs.getNumRow()) - 1

    def rows(self, table: NDArray[np.int32], factors: NDArray[np.float64], lower: float, upper: float) -> None:
        """Add many rows of one shape: columns [row, entry] with factors [row, entry]."""
        many, width = table.shape
        if many:
            starts = np.arange(0, many * width, width, dtype=np.int32)
            bounds = np.full(many, lower), np.full(many, upper)
            values = np.ascontiguousarray(factors, dtype=float).ravel()
            self._highs.addRows(many, *bounds, many * width, starts, np.ascontiguousarray(table).ravel(), values)

    def maximise(self, columns: NDArray[np.int32], factors: ArrayLike) -> None:
        """Set the objective."""
        every = np.arange(self._highs.getNumCol(), dtype=np.int32)
        cost = np.zeros(len(every))
        cost[columns] = factors
        self._highs.changeColsCost(len(every), every, cost)

    def limit(self, row: int, upper: float) -> None:
        """Change the upper bound of a row."""
        self._highs.changeRowBounds(row, -INFINITE, upper)

    def fix(self, columns: NDArray[np.int32], values: NDArray[np.float64]) -> None:
        """Fix columns at these values."""
        if len(columns):
            self._highs.changeColsBounds(len(columns), columns, values, values)

    def solve(
        self,
        *,
        seconds: float,
        gap: float = 0.0,
        start: NDArray[np.float64] | None = None,
        relaxed: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Solve to an absolute gap and return the outcome; `start` is a first solution, `relaxed` drops integrality.

        HiGHS runs in a thread. It ends early, with what it has, once `stop()` is true; Ctrl-C ends it too and is raised.
        """
        highs, whole = self._highs, np.array(self._whole, dtype=np.int32)
        highs.setOptionValue("time_limit", max(seconds, _LEAST_SECONDS))
        highs.setOptionValue("mip_abs_gap", gap)
        if relaxed:
            self._set_whole(highspy.HighsVarType.kContinuous, whole)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = start.tolist()
            highs.setSolution(solution)
        try:
            outcome = self._run(relaxed, gap, stop)
        finally:
            if relaxed:
                self._set_whole(highspy.HighsVarType.kInteger, whole)
        return outcome

    def _run(self, relaxed: bool, gap: float, stop: Callable[[], bool]) -> Outcome:
        highs, statuses = self._highs, highspy.HighsModelStatus
        thread = highs.startSolve()
        try:
            while thread.is_alive():
                thread.join(_LOOK_S)
                if thread.is_alive() and stop():
                    highs.cancelSolve()  # type: ignore[no-untyped-call]
        except KeyboardInterrupt:
            highs.cancelSolve()  # type: ignore[no-untyped-call]
            thread.join()
            raise
        failed = False
        status, info = highs.getModelStatus(), highs.getInfo()
        # Every column in the objective is bounded, so the second of these means the first.
        if not failed and status in (statuses.kInfeasible, statuses.kUnboundedOrInfeasible):
            return Outcome(columns=None, bound=-math.inf, infeasible=True)
        if failed or status not in (statuses.kOptimal, statuses.kTimeLimit, statuses.kInterrupt):
            raise SlackwaterError(
                f"HiGHS gave up on this problem ({highs.modelStatusToString(status)}). Try solver='greedy' or another end "
                "time; if it persists, please report it with the scenario."
            )
        done = status == statuses.kOptimal
        if relaxed:  # an interrupted simplex proves nothing
            bound = float(info.objective_function_value) if done else math.inf
        else:
            bound = float(info.mip_dual_bound) if self._whole else float(info.objective_function_value)
            if done and not math.isfinite(bound):  # presolve found the start to be optimal and reports no bound
                bound = float(info.objective_function_value) + gap
        feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        solution = highs.getSolution()
        columns = np.array(solution.col_value) if feasible else None
        prices = np.array(solution.col_dual) if relaxed and done and solution.dual_valid else None
        return Outcome(columns=columns, bound=bound if math.isfinite(bound) else math.inf, prices=prices)

    def _set_whole(self, kind: highspy.HighsVarType, columns: NDArray[np.int32]) -> None:
        if len(columns):
            self._highs.changeColsIntegrality(len(columns), columns, np.array([kind] * len(columns)))
