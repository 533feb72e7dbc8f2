"""A plan: a schedule with its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.errors import ScenarioError
from slackwater.lazy import Viewed, widget
from slackwater.planning.emissions import Emissions, emissions, kg_by_slot
from slackwater.planning.metrics import Metrics
from slackwater.planning.problem import Problem
from slackwater.units import iso

DEFAULT_AGGREGATOR = "echo"
ECHO_GAMMA, ECHO_MOST = 0.95, 3.0
"""Discount per round, and the largest factor on a step of `echo` (docs/research/auto.md); training and prediction share them."""
OPTIMAL_GAP = 1e-9
"""Relative gap up to which a schedule is called optimal."""
MEMORY_DTYPES = ("float32", "float16", "bfloat16")
"""Types in which an aggregator can store clients' updates; the first keeps them unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The choices of `plan(.., planner="auto")`: how to train the plan, and why."""

    aggregator: str
    """Aggregator as `train` takes it, with its parameter."""
    settings: Mapping[str, Any]
    """Settings chosen for the plan: `end`, `fine_tune`, `recall`, `alpha`."""
    error: float
    """Predicted remaining error; compare it only among plans for the same clients."""
    why: tuple[str, ...]
    """Sentences, the most important first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Viewed):
    """Who trains in which slot, and a certificate: objective, upper bound, gap, seconds."""

    problem: Problem
    end: int
    """The paper's s: the run ends after slot rounds + s."""
    packed: NDArray[np.uint8]
    """[client, ceil(horizon / 8)], the matrix as bits (np.packbits along the slots)."""
    objective: float
    """Sum over clients of u^alpha (of log u for alpha = "log"), u in kg."""
    upper_bound: float
    """No schedule that was allowed has a larger objective."""
    gap: float
    """(upper_bound - objective) / (upper_bound - objective of the window alone): the window is always paid for."""
    seconds: float
    solver: str
    level: float | None = None
    """For alpha = "max-min": the least utility of any client, kg, which comes first."""
    levels: NDArray[np.uint8] | None = None
    """[client, slot], number of the level at which a client trains, 0 for full power; None: always full power."""
    lower_bound_kg: float | None = None
    """With the goal "work": no schedule with these rounds emits less; `gap` is then the distance in kg. Else None."""
    budget_limit_kg: float | None = None
    """With the goal "enough": the budget that was given as a limit; the problem's is what was bought. Else None."""
    recommended: Recommendation | None = None
    """How to train it; None unless the plan was made with the planner "auto"."""

    def __repr__(self) -> str:
        """Show the certificate, the emissions and the schedule in three lines."""
        problem, trained = self.problem, self.slots_per_client
        return (
            f"Plan: {self.status}, objective {self.objective:.6g} (at most {self.upper_bound:.6g}), {self.solver} solver\n"
            f"  {self.emissions_kg:.4g} of {problem.budget_kg:.4g} kg, s = {self.end}, {iso(problem.first_slot)} to "
            f"{iso(self.ends_at)}\n"
            f"  {len(problem.fleet)} clients, {int(trained.sum())} client-slots ({trained.min()} to {trained.max()} each), "
            f"window of {problem.fine_tune}"
        )

    def explore(self) -> Any:
        """Return a widget for a notebook that shows the plan as the dashboard does; its sliders re-plan.

        Raises:
            MissingExtraError: anywidget is not installed.
        """
        return widget(self)

    @property
    def aggregator(self) -> str:
        """Return the default aggregator for training: the recommended one, else `echo`."""
        return DEFAULT_AGGREGATOR if self.recommended is None else self.recommended.aggregator

    @property
    def rounds_held(self) -> int:
        """Return the number of slots in which anyone trains."""
        return int(np.bitwise_count(np.bitwise_or.reduce(self.packed, axis=0)).sum())

    @property
    def matrix(self) -> NDArray[np.bool_]:
        """Return the schedule [client, slot] over the whole horizon, unpacked at each call."""
        return np.unpackbits(self.packed, axis=1, count=self.problem.horizon).astype(bool)

    @property
    def status(self) -> str:
        """Return `optimal` if the gap is at most 1e-9, else `within-gap`: feasible, and at most the gap from the optimum."""
        return "optimal" if self.gap <= OPTIMAL_GAP else "within-gap"

    @property
    def message(self) -> str:
        """Return the status as a sentence."""
        if self.lower_bound_kg is not None:
            if self.status == "optimal":
                return "Least carbon: no schedule with the rounds asked for emits less."
            return (
                f"Holds the rounds asked for, within {self.gap:.2g} of the least carbon: none emits less than "
                f"{self.lower_bound_kg:.6g} kg; a smaller gap can be asked for (gap, time_limit_s)."
            )
        if self.status == "optimal":
            return "Optimal: no schedule within the budget has a larger objective."
        hints = {
            "greedy": "; for a proof of the optimum try solver 'exact'",
            "exact": "; a smaller gap can be asked for (gap)",
            "milp": "; more time may close it (time_limit_s)",
        }
        return f"Feasible, and proved to be within {self.gap:.2g} of the optimum{hints.get(self.solver, '')}."

    @property
    def before(self) -> int:
        """Return the number of slots before the fine-tuning window."""
        return self.problem.rounds + self.end - self.problem.fine_tune

    @property
    def window(self) -> range:
        """Return the slots of the fine-tuning window F(s), counted from 0."""
        return range(self.before, self.problem.rounds + self.end)

    @property
    def ends_at(self) -> datetime:
        """Return when the run ends, UTC."""
        return self.problem.slot_start(self.problem.rounds + self.end)

    @cached_property
    def emissions(self) -> Emissions:
        """Return the emissions by client and cause, kg."""
        return emissions(self.problem, self.packed, self.end, self.levels)

    @property
    def emissions_kg(self) -> float:
        """Return all emissions of the plan, kg: training, idle, server, network, evaluation and starts."""
        return self.emissions.total_kg

    @property
    def money(self) -> float | None:
        """Return the price of the plan's electricity, in the currency of the problem's prices; None without prices."""
        return self.emissions.money

    @property
    def kg_by_slot(self) -> NDArray[np.float64]:
        """Return the emissions from all causes [slot], kg; 0 after the end."""
        return kg_by_slot(self.problem, self.packed, self.end, self.levels)

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Return the work in each slot [client, slot]: 1 at full power, less at a lower level, 0 without training."""
        if self.levels is None:
            return self.matrix.astype(np.float64)
        at_level = np.take_along_axis(self.problem.costs.level_work, self.levels.astype(np.intp), axis=1)
        return np.where(self.matrix, at_level, 0.0)

    @cached_property
    def slots_per_client(self) -> NDArray[np.int64]:
        """Return the number of slots of each client [client], window included."""
        return np.asarray(np.bitwise_count(self.packed).sum(axis=1), dtype=np.int64)

    @cached_property
    def metrics(self) -> Metrics:
        """Return the participation, correlation and fairness of the schedule."""
        return Metrics.of(self.packed, self.before, self.emissions.training_kg)

    def lower_work(self, slot: int) -> dict[int, float]:
        """Return client -> work in a slot, of the clients that train there below full power."""
        if self.levels is None:
            return {}
        lower = np.flatnonzero(self.matrix[:, slot] & (self.levels[:, slot] > 0))
        return {int(client): float(self.work[client, slot]) for client in lower}

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file appears whole or not at all."""
        self._check_storable()
        from slackwater.planning.storage import save_plan

        save_plan(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return a plan read from a file."""
        from slackwater.planning.storage import load_plan

        return load_plan(Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in plain types for JSON."""
        self._check_storable()
        from slackwater.planning.storage import plan_to_dict

        return plan_to_dict(self)

    def _check_storable(self) -> None:
        problem = self.problem
        if any(past is not None for past in (problem.earned_kg, problem.g_max_kg, problem.up_before)):
            raise ScenarioError("A plan for the rest of a run cannot be saved on its own; keep the state of the run.")
