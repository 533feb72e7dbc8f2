"""Tasks of a few parameters, and plans with a matrix of one's choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.training.task import Samples, Task


class Point(nn.Module):
    """The model is a point; it starts in 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(len(x), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).sum(dim=1).mean() / 2


def quadratic(centres: Any) -> Task:
    """F_c = |theta - a_c|^2 / 2: one full-batch step from theta gives Delta_c = lr (theta - a_c)."""
    points = torch.tensor(centres, dtype=torch.float64)
    points = points.reshape(len(points), -1)
    return Task(
        name="quadratic",
        clients=[Samples(x=point[None], y=point[None]) for point in points],
        test=Samples(x=points, y=points),
        model=lambda: Point(points.shape[1]),
        loss=half_square,
        metric="rmse",
    )


def classes(clients: int = 3, samples: int = 40, *, hidden: int = 8, dropout: float = 0.0, norm: bool = False) -> Task:
    """Three classes of points in five dimensions."""
    rng = torch.Generator().manual_seed(1)
    means = 2 * torch.randn(3, 5, generator=rng)

    def draw(count: int) -> Samples:
        y = torch.randint(0, 3, (count,), generator=rng)
        return Samples(x=means[y] + torch.randn(count, 5, generator=rng), y=y)

    def model() -> nn.Module:
        middle: list[nn.Module] = [nn.BatchNorm1d(hidden)] if norm else []
        return nn.Sequential(nn.Linear(5, hidden), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 3))

    return Task(
        name="classes",
        clients=[draw(samples + 7 * i) for i in range(clients)],
        test=draw(60),
        model=model,
        client_tests=[draw(20) for _ in range(clients)],
    )


def plan_of(matrix: Any, *, window: int = 0, budget_kg: float | None = None, **settings: Any) -> Plan:
    """A plan with this matrix [client, slot]; its last `window` slots are the fine-tuning window."""
    chosen = np.array(matrix, dtype=bool)
    costs = settings.pop("g_kg", None)
    if costs is None:
        costs = np.random.default_rng(0).uniform(0.01, 0.05, chosen.shape)
    enough = float(np.sum(costs)) + 1.0 if budget_kg is None else budget_kg
    problem = Problem.from_costs(costs, rounds=chosen.shape[1], budget_kg=enough, fine_tune=window, **settings)
    return Plan(
        problem=problem,
        end=0,
        packed=np.packbits(chosen, axis=1),
        objective=0.0,
        upper_bound=0.0,
        gap=0.0,
        seconds=0.0,
        solver="by hand",
    )


SCHEDULE = np.array(
    [
        [1, 0, 0, 1, 1, 0, 0, 1, 1],
        [0, 0, 1, 1, 0, 0, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
)
"""Three clients; the third never trains before the window, which is the last slot; slots 1 and 5 are empty."""
