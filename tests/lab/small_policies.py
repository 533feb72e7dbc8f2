"""Views and problems of one's choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from slackwater.lab.policies.policy import View
from slackwater.planning.problem import Problem


def view(forecast: Any, **changes: Any) -> View:
    """A view in which everybody is there, alike, and nothing has happened; `forecast` is [client, slot from now on]."""
    ahead = np.array(forecast, dtype=np.float64)
    clients = len(ahead)
    known: dict[str, Any] = {
        "slot": 0,
        "slots": ahead.shape[1],
        "number": 0,
        "available": np.ones(ahead.shape, dtype=bool),
        "energy_kwh": np.ones(clients),
        "server_kg": 0.0,
        "samples": np.full(clients, 100),
        "speeds": np.ones(clients),
        "losses": np.full(clients, np.nan),
        "age": np.zeros(clients, dtype=np.int64),
        "participation": np.zeros(clients, dtype=np.int64),
        "budget_kg": 1.0,
        "spent_kg": 0.0,
        "probe_kg": np.zeros(clients),
        "probed_losses": np.full(clients, np.nan),
        "gradients": {},
        "rng": np.random.default_rng(0),
    }
    arrays = {"available", "energy_kwh", "samples", "speeds", "losses", "age", "participation", "probed_losses"}
    given = {key: np.array(value) if key in arrays else value for key, value in changes.items()}
    return View(forecast=ahead, **known | given)


def small_problem(clients: int = 3, slots: int = 12, *, budget_kg: float = 0.4, **settings: Any) -> Problem:
    """Costs of 0.01 to 0.06 kg that go up and down."""
    rng = np.random.default_rng(3)
    base, phase = rng.uniform(0.02, 0.04, clients), rng.uniform(0, 6, clients)
    wave = 1 + 0.5 * np.sin(2 * np.pi * np.arange(slots) / 6 + phase[:, None])
    return Problem.from_costs(base[:, None] * wave, rounds=2, slack=slots - 2, budget_kg=budget_kg, **settings)
