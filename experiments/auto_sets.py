"""Which cells experiments/auto.py trains, by what they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from auto_cells import JUDGE_SEEDS, LR, MORE_SEEDS, SEARCH_SEEDS, SLACK, Cell, Maker, Store, auto_cell, best_cell

from slackwater.planning.auto import RECALL

ENDS = (1, 3, 5, 7, 9, 10, 20, 30, 40, 50, 70, 90, 110, 130, 150)
"""Of the paper's tables."""
RATES = (0.1, 0.0316, 0.01)
"""The paper tunes the rate of its method over these; everything else is trained at the first."""
PAPER_CELLS = (
    (1, 10, 0.1), (1, 20, 0.1), (1, 30, 0.1), (1, 50, 0.1), (1, 50, 0.0316), (1, 70, 0.0316),
    (3, 20, 0.1), (3, 40, 0.1), (3, 50, 0.1),
)  # fmt: skip
"""(t_ft, s, rate) of the paper's method where its whole grid is too much: the best of its tables and of ours are among them."""
PAPER, OURS, OTHERS = "ufedavg", "echo", ("stride", "memory:0.9")
CANDIDATES = (
    "fedavg", "ufedavg", "echo", "echo:0.9", "echo+linear", "echo+ahead", "echo+step=1.25", "echo+step=1.5", "echo+step=2",
    "stride", "pace",
    "normalised", "mifa", "memory:0.7", "memory:0.8", "memory:0.9", "memory:0.95",
    "mem:0.97+slots", "mem:0.9+p=0.5", "mem:0.9+p=0", "mem:0.9+q=0.5", "mem:0.9+even", "mem:0.9+even=0.5",
    "mem:0.9+own=0.5", "models:0.8", "models:0.9", "models:0.95", "models:1", "awe:5", "awe:20", "given:1",
    "memory:0.9+mom=0.5", "fedavg+mom=0.8", "normalised+mom=0.5", "memory:0.9+vel=0.4", "fedavg+vel=0.5",
    "memory:0.9+step=0.7", "memory:0.9+step=1.3", "memory:0.9+step=1.6", "memory:0.9+step=2", "memory:0.8+step=1.6",
    "memory:0.95+step=1.6", "mifa+step=1.5", "memory:0.9+fade=0.3", "fedavg+fade=0.3", "mem:0.9+r=0.3",
    "mem:0.9+r=0.5", "mem:0.8+r=0.5", "mem:0.8+exp=0.5", "mem:0.9+exp=0.5", "mem:0.9+exp=0.5+most=2", "mem:0.6+norm=1",
    "mem:0.7+norm=1", "mem:0.8+norm=1", "mem:0.9+norm=1", "mem:0.95+norm=1", "mem:0.8+norm=1+most=2",
    "mem:0.9+norm=1+most=2", "mem:0.8+norm=1+throughout", "mem:0.7+norm=1+fresh", "mem:0.8+norm=1+fresh",
    "mem:0.9+norm=1+fresh", "mem:0.95+norm=1+fresh", "mem:0.9+clip", "mem:0.8+norm=1+clip", "mem:0.9+norm=1+clip",
    "mem:0.95+norm=1+clip", "mem:0.97+norm=1+clip", "mem:1+norm=1+clip", "mem:0.8+norm=1+clip=0.7",
    "mem:0.8+norm=1+clip+most=5", "mem:0.95+norm=1+clip+most=6", "mem:0.97+norm=1+clip+most=6",
    "mem:0.9+norm=1+clip=1.5", "mem:0.95+norm=1+clip=1.5", "mem:0.9+norm=1+clip+unit", "mem:0.95+norm=1+clip+unit",
    "mem:0.95+exp=0.5+clip", "mem:0.95+norm=1+clip+own=0.5", "mem:0.97+norm=1+clip+slots",
    "mem:0.95+norm=1+clip+q=0.3",
)  # fmt: skip
"""docs/auto.md says what they are."""
WINDY, STILL = "2022-12-22T00:00Z", "2022-12-08T00:00Z"
"""Lowest and highest mean direct intensity of BE, DE, GB and IE over 200 hours from any midnight of 2022."""


def _cells(
    hours: Iterable[int],
    ends: Iterable[int],
    rules: Iterable[str],
    seeds: Iterable[int],
    windows: Iterable[int] = (1,),
    alphas: Iterable[float | str] = (0.1,),
    rates: Iterable[float] = (LR,),
    **other: Any,
) -> list[Cell]:
    """All combinations, the runs of one schedule beside each other."""
    return [
        Cell(hours=T, end=s, fine_tune=t_ft, alpha=alpha, rule=rule, lr=lr, seed=seed, **other)
        for T, t_ft, alpha, s, rule, lr, seed in product(hours, windows, alphas, ends, rules, rates, seeds)
        if t_ft <= T
    ]


def search_set() -> list[Cell]:
    """Every candidate at the tightest budget, two skews; the others at s = 110."""
    return [c for beta in (0.5, 0.1) for c in _cells((3,), (20, 50, 150), CANDIDATES, (0, 1), beta=beta)]


def baseline_set() -> list[Cell]:
    """No slack, at every budget and at full budget, for every setting that is looked at."""
    settings: list[dict[str, Any]] = [{}, {"beta": 0.1}, {"task": "fashion_mnist"}, {"start": WINDY}, {"start": STILL}]
    return [
        Cell(kind="no-slack", hours=T, fine_tune=0, rule="fedavg", seed=seed, **setting)
        for setting in settings
        for T in (3, 4, 5, 10, 20, 50)
        for seed in SEARCH_SEEDS + JUDGE_SEEDS
    ]


def fit_set() -> list[Cell]:
    """What the predictor's constants are fitted on: two budgets, other windows and alphas, search seeds."""
    return [
        *_cells((3,), ENDS, (OURS,), (0, 1)),
        *_cells((5,), ENDS, (OURS,), (0, 1), windows=(1, 3)),
        *_cells((3, 5), (20, 50, 110), (OURS,), (0, 1), windows=(0, 2)),
        *_cells((3, 5), (20, 50, 110), (OURS,), (0, 1), alphas=(0.01, 0.5, 1.0, "log")),
    ]


def recall_set() -> list[Cell]:
    """Our rule over the grid, everybody once more in the last slots before the window, beside the same without; search seeds."""
    tight = _cells((4,), ENDS, (OURS,), (0, 1), windows=(1, 3))
    plain = tight + _cells((10,), ENDS, (OURS,), (0, 1))
    skewed = _cells((4, 5, 10), (50, 70, 110, 150), (OURS,), (0, 1), beta=0.1)
    again = [cell for cell in _cells((3, 4, 5, 10), ENDS, (OURS,), (0, 1)) + skewed if cell.end >= RECALL]
    return [*plain, *skewed, *(replace(cell, recall=RECALL) for cell in again)]


def objective_set() -> list[Cell]:
    """Slots counted without their carbon in the objective, beside the paper's."""
    ends = (30, 50, 90)
    return [
        *_cells((3,), ends, (OURS,), (0, 1), alphas=(0.1, 0.5, "log"), objective="count"),
        *_cells((3,), ends, (OURS,), (0, 1), alphas=(0.1, 0.5, "log")),
    ]


def paper_set() -> list[Cell]:
    """The paper's method over its whole grid and its rates, on the search seeds."""
    tight = _cells((3, 4, 5), ENDS, (PAPER,), SEARCH_SEEDS, windows=(1, 3), rates=RATES)
    return tight + _cells((10,), ENDS, (PAPER,), (0,), windows=(1, 3), rates=RATES)


def collapse_set() -> list[Cell]:
    """Our rule at the tightest budget for every end time there is."""
    return _cells((3,), range(1, SLACK + 1), (OURS,), JUDGE_SEEDS)


def judge_set() -> list[Cell]:
    """Our rule over the grid at budgets that nothing was fitted on, on seeds that nothing was chosen by."""
    tight = _cells((3, 4, 5), ENDS, (OURS,), JUDGE_SEEDS, windows=(1, 3))
    wide = _cells((10,), ENDS, (OURS,), JUDGE_SEEDS[:1], windows=(1, 3))
    others = [_cells((3,), HELD_OUT_ENDS, (OURS,), JUDGE_SEEDS[:1], **setting) for setting in HELD_OUT.values()]
    return tight + wide + [cell for cells in others for cell in cells]


HELD_OUT: dict[str, dict[str, Any]] = {
    "Fashion-MNIST": {"task": "fashion_mnist"},
    "beta = 0.1": {"beta": 0.1},
    "a windy week": {"start": WINDY},
    "a still week": {"start": STILL},
}
HELD_OUT_ENDS = (5, 10, 20, 30, 50, 70, 110, 150)


def held_out_set() -> list[Cell]:
    """The paper's method where nothing was searched: fewer end times and one seed to choose by, all its rates."""
    return [
        cell
        for setting in HELD_OUT.values()
        for cell in _cells((3, 5), HELD_OUT_ENDS, (PAPER,), (0,), windows=(1, 3), rates=RATES, **setting)
    ]


def auto_set(maker: Maker) -> list[Cell]:
    """What `plan --auto` chooses, everywhere, with its aggregator and those nearest to it."""
    chosen = [
        auto_cell(maker, Cell(hours=T, **setting))
        for setting in ({}, *HELD_OUT.values())
        for T in (3, 4, 5, 10, 20)
        if T in (3, 5) or not setting
    ]
    return [replace(one, rule=rule, seed=seed) for one in chosen for rule in (OURS, *OTHERS) for seed in JUDGE_SEEDS]


def again_set(store: Store) -> list[Cell]:
    """The best cells, chosen on the search seeds, on the seeds that judge."""
    chosen: list[Cell] = []
    for setting in ({}, *HELD_OUT.values()):
        for T in (3, 4, 5, 10):
            bests = [best_cell(store, rule, T, **setting) for rule in ((PAPER,) if setting else (PAPER, OURS))]
            chosen += [replace(best, seed=seed) for best in bests if best is not None for seed in JUDGE_SEEDS]
    return chosen


def closer_set(maker: Maker, store: Store) -> list[Cell]:
    """Auto and our best cell once more, with as many seeds as it takes to tell them apart."""
    pairs = [(auto_cell(maker, Cell(hours=T)), best_cell(store, OURS, T)) for T in (3, 4, 5, 10)]
    return [replace(one, rule=OURS, seed=seed) for pair in pairs for one in pair if one for seed in MORE_SEEDS]


SETS: dict[str, Callable[[Maker, Store], list[Cell]]] = {
    "search": lambda maker, store: search_set(),
    "baseline": lambda maker, store: baseline_set(),
    "fit": lambda maker, store: fit_set(),
    "recall": lambda maker, store: recall_set(),
    "objective": lambda maker, store: objective_set(),
    "paper": lambda maker, store: paper_set(),
    "judge": lambda maker, store: judge_set(),
    "collapse": lambda maker, store: collapse_set(),
    "held-out": lambda maker, store: held_out_set(),
    "auto": lambda maker, store: auto_set(maker),
    "again": lambda maker, store: again_set(store),
    "closer": closer_set,
}
"""In this order: `again` and `closer` take up the best cells of `fit`, `recall`, `paper` and `held-out`."""
