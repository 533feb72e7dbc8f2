"""The paper's experimental setting: seven clients, the first hours of 2022, and budgets in rounds without slack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater.intensity.load import load_traces
from slackwater.intensity.traces import Factor, Traces
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem

ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
NAMES = {"BE": "Belgium", "GB": "Great Britain", "IE": "Ireland", "FI": "Finland", "SE-SE3": "Sweden", "DE": "Germany",
         "FR": "France"}  # fmt: skip
START = "2022-01-01T00:00Z"
POWER_W = 300.0
SLACK = 150
ALPHA = 0.1
BETA = 0.5
"""Skew of the Dirichlet partition of MNIST."""
ENDS = (1, 3, 5, 7, 9, 10, 20, 30, 40, 50, 70, 90, 110, 130, 150)
HOURS = {1: (3, 4, 5, 10, 20, 30, 40), 3: (4, 5, 9, 10, 20, 30, 40)}
"""The tables' rows by t_ft: the budget is the cost of all clients in the first T hours."""
FULL_HOURS = 50
"""Reference of the tables' percentages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of intensity and images."""

    data: str = "typical"
    """A folder of the seven zones, or the embedded synthetic year."""
    task: str = "mnist"
    task_data: str | None = None
    model: str | None = None
    """None: the task's default, for MNIST the paper's CNN."""
    beta: float = BETA
    """Skew of the Dirichlet partition; smaller is more uneven. Other values are not in the paper."""

    @property
    def factor(self) -> Factor:
        """Return the emission factor that the paper uses."""
        return "direct"

    def traces(self, hours: int) -> Traces:
        """Return the seven zones from 1 January 2022 on."""
        return load_traces(self.data, zones=list(ZONES), start=START, hours=hours, factor=self.factor)

    def task_options(self, seed: int) -> dict[str, Any]:
        """Return the options of `sw.tasks.make`."""
        given = {"data": self.task_data, "model": self.model}
        return {"clients": len(ZONES), "beta": self.beta, "seed": seed} | {
            k: v for k, v in given.items() if v is not None
        }


def problem(
    source: Source,
    *,
    rounds: int,
    fine_tune: int,
    slack: int = SLACK,
    alpha: float = ALPHA,
    budget_kg: float | None = None,
) -> Problem:
    """Return the problem of a row: T = `rounds`. Default budget: the cost of all clients in T hours."""
    clients = [Client(name=zone, zone=zone, power_w=POWER_W) for zone in ZONES]
    traces = source.traces(max(rounds + slack, FULL_HOURS))
    everybody = float(np.sum(traces.intensity[:, :rounds])) * POWER_W / 1000
    return Problem(
        clients=clients,
        traces=traces,
        rounds=rounds,
        slack=slack,
        fine_tune=fine_tune,
        alpha=alpha,
        # Tolerance of 1e-12: a window that costs exactly the budget must not fail by rounding.
        budget_kg=everybody * (1 + 1e-12) if budget_kg is None else budget_kg,
    )
