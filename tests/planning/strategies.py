"""Small random problems for Hypothesis: ties, zeros, equal costs, tiny and huge budgets, windows, availability, limits, idle power."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from brute_force import Small
from hypothesis import strategies as st

from slackwater.intensity.traces import Traces
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem

_COARSE = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0])  # exact in binary, so that sums tie exactly
_COSTS = st.one_of(
    _COARSE,
    st.floats(0.01, 1.0, allow_nan=False).map(lambda x: round(x, 3)),
)
ALPHAS = st.sampled_from([1.0, 0.9, 0.5, 0.1, 0.001, "log", "max-min"])


@st.composite
def small_problems(draw: st.DrawFn, *, most_cells: int = 12, coupled: bool = False, coarse: bool = False) -> Small:
    """Few enough client-slots to try every schedule. `coarse` draws from so few costs that many schedules tie."""
    costs = _COARSE if coarse else _COSTS
    clients = draw(st.integers(1, 4))
    horizon = draw(st.integers(1, max(1, most_cells // clients)))
    rounds = draw(st.integers(1, horizon))
    fine_tune = draw(st.integers(0, min(2, rounds)))
    flat = draw(st.booleans()) and draw(st.booleans())
    value = draw(costs)
    g = np.array([[value if flat else draw(costs) for _ in range(horizon)] for _ in range(clients)])
    total = float(g.sum())
    share = draw(st.sampled_from([1e-6, 0.05, 0.2, 0.3, 0.5, 0.75, 1.0, 10.0]) | st.floats(0.01, 1.2))
    free = np.ones((clients, horizon), dtype=bool)
    if draw(st.booleans()):
        free = np.array(
            [[draw(st.sampled_from([True, True, True, False])) for _ in range(horizon)] for _ in range(clients)]
        )
    low = [draw(st.sampled_from([0, 0, 0, 1, 2])) for _ in range(clients)]
    high = [max(lo, draw(st.sampled_from([1, 2, 99, 99]))) for lo in low]
    idle = np.zeros(horizon)
    if draw(st.booleans()):
        idle = draw(st.sampled_from([0.0, 0.01, 0.1])) * g.sum(axis=0)
    server, parallel, recall, ago = np.zeros(horizon), None, 0, None
    if not coupled and draw(st.booleans()):
        recall = draw(st.integers(1, 4))
        ago = draw(st.none() | st.lists(st.sampled_from([1.0, 2.0, np.inf]), min_size=clients, max_size=clients))
    if coupled:
        parallel = draw(st.none() | st.integers(1, clients))
        server = np.array([draw(st.sampled_from([0.0, 0.05, 0.3])) for _ in range(horizon)])
    return Small(
        g=g,
        rounds=rounds,
        slack=horizon - rounds,
        fine_tune=fine_tune,
        alpha=draw(ALPHAS),
        budget_kg=max(share * total, 1e-9),
        available=free,
        min_slots=low,
        max_slots=high,
        idle_kg=idle,
        server_kg=server,
        max_parallel=parallel,
        window=draw(st.sampled_from(["all", "available"])),
        recall=recall,
        trained_ago=ago,
    )


def problem_of(small: Small) -> Problem:
    """The same problem, as the package takes it: a round of 1 kWh, so that the intensity is the cost."""
    share = float(small.idle_kg.sum() / small.g.sum()) if small.g.sum() > 0 else 0.0
    return Problem(
        clients=[
            Client(name=f"c{i}", zone=f"z{i}", energy_kwh=1.0, idle_w=1000 * share, min_slots=lo, max_slots=hi)
            for i, (lo, hi) in enumerate(zip(small.min_slots, small.max_slots, strict=True))
        ],
        traces=Traces(
            zones=tuple(f"z{i}" for i in range(len(small.g))),
            start=datetime(2022, 1, 1, tzinfo=UTC),
            intensity=small.g,
            factor="direct",
        ),
        rounds=small.rounds,
        slack=small.slack,
        fine_tune=small.fine_tune,
        alpha=small.alpha,
        budget_kg=small.budget_kg,
        available=small.available,
        server_kg=small.server_kg if small.server_kg.any() else None,
        max_parallel=small.max_parallel,
        window=small.window,  # type: ignore[arg-type]
        recall=small.recall,
        trained_ago=small.trained_ago,
    )
