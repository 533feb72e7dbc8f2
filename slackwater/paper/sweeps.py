"""Which cells an item trains, the most telling first, so that a sweep that is cut short is useful already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from slackwater.learning.participation import cells as processes
from slackwater.paper.cells import Cell
from slackwater.paper.setting import ALPHA, ENDS, HOURS, ZONES

LOCAL_STEPS, BATCH, LR = 45, 32, 0.1
"""Whose no-slack column is the paper's at a bearable cost: `slackwater paper setting` is the search."""
RATES = (0.1, 0.0316, 0.01)
"""The paper tunes the rate over these for each experiment."""
STATED_STEPS = 5
"""tau, as the paper states it: where only differences between runs count, it is enough and ten times cheaper."""
SEEDS = (0, 1, 2)
BASELINE_ROUNDS = 40
STATED_BATCH = 128
TRIED = ((5, 128, 0.5), (10, 128, 0.3), (10, 128, 0.5), (20, 128, 0.1), (20, 128, 0.2), (30, 128, 0.1), (40, 128, 0.1),
         (60, 128, 0.1), (40, 32, 0.1), (45, 32, 0.1), (50, 32, 0.1), (40, 16, 0.1))  # fmt: skip
"""(local steps, batch, rate) of the search for the setting that the paper leaves open."""
ALPHAS = (0.001, 0.01, 0.1, 0.5, 1.0)
ALPHA_BUDGETS = (1.0, 2.0, 3.0)
ALPHA_ROUNDS = 50
PROCESS_ROUNDS, PROCESS_FINE_TUNE = 50, 10
_FIRST_ENDS = {1: (1, 10, 20, 50, 70, 110, 150), 3: (10, 40, 50, 150)}
_LATE_ENDS = (20, 50, 110)
_TIGHT = 10
"""Rows up to this T come first."""


def setting_cells() -> list[Cell]:
    """The search for the local work: no slack, ten rounds."""
    return [Cell(kind="no-slack", rounds=10, local_steps=steps, batch_size=size, lr=lr) for steps, size, lr in TRIED]


def baseline_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """No slack: one run a seed holds the whole column."""
    return [
        Cell(kind="no-slack", rounds=BASELINE_ROUNDS, local_steps=LOCAL_STEPS, batch_size=BATCH, lr=LR, seed=s)
        for s in seeds
    ]


def table_cell(fine_tune: int, hours: int, end: int, seed: int = 0, lr: float = LR) -> Cell:
    """One cell of the accuracy tables."""
    return Cell(rounds=hours, end=end, fine_tune=fine_tune, local_steps=LOCAL_STEPS, batch_size=BATCH, lr=lr, seed=seed)


def table_cells(fine_tune: int, seeds: Iterable[int] = SEEDS, rates: Iterable[float] = (LR,)) -> list[Cell]:
    """Tight budgets at telling end times first, then wide ones, then the rest; each at every rate before the next."""
    rows = HOURS[fine_tune]
    tight, wide = [T for T in rows if T <= _TIGHT], [T for T in rows if T > _TIGHT]
    first = [(T, s, seed) for seed in seeds for T in tight for s in _FIRST_ENDS[fine_tune]]
    second = [(T, s, seed) for seed in seeds for T in wide for s in _LATE_ENDS]
    rest = [(T, s, seed) for seed in seeds for T in rows for s in ENDS]
    return [table_cell(fine_tune, *key, lr) for key in dict.fromkeys(first + second + rest) for lr in rates]


def alpha_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """Fairness against accuracy: FedAvg, since the paper brings in U-FedAvg only after this figure."""
    return [
        Cell(rounds=ALPHA_ROUNDS, slack=0, end=0, fine_tune=0, alpha=alpha, budget_kg=kg, aggregator="fedavg",
             local_steps=STATED_STEPS, batch_size=STATED_BATCH, lr=LR, seed=seed)
        for seed in seeds for kg in ALPHA_BUDGETS for alpha in ALPHAS
    ]  # fmt: skip


def process_cells(seeds: Iterable[int] = SEEDS) -> list[Cell]:
    """Heterogeneity and correlation, with and without fine-tuning."""
    return [
        Cell(kind="process", process=process.name, rounds=PROCESS_ROUNDS, fine_tune=fine_tune, aggregator="ufedavg",
             local_steps=STATED_STEPS, batch_size=STATED_BATCH, lr=LR, seed=seed)
        for seed in seeds for process in processes(len(ZONES)) for fine_tune in (0, PROCESS_FINE_TUNE)
    ]  # fmt: skip


def quick(cells: Iterable[Cell]) -> Iterator[Cell]:
    """The same in small, for the digits: one seed, few end times and alphas, few steps."""
    for cell in cells:
        small = cell.end in (0, 1, 20) and cell.rounds in (3, 5, 10, 40, 50) and cell.alpha in (0.001, ALPHA, 1.0)
        if cell.seed == 0 and small and (cell.kind != "plan" or cell.rounds != BASELINE_ROUNDS):
            yield replace(cell, local_steps=min(cell.local_steps, STATED_STEPS))
