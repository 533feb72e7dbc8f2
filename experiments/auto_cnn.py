"""The choice of `plan --auto` with the paper's CNN, beside the paper's own method where that has been trained.

    python experiments/auto_cnn.py --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist

Each cell is a JSON file in experiments/auto/cnn, as those of `slackwater paper`: a sweep goes on where it stopped.
"""

from __future__ import annotations

import statistics
from itertools import product
from pathlib import Path

import click
from auto_cells import LR, SEARCH_SEEDS, STORE, Cell, Maker, auto_cell
from auto_sets import ENDS, OURS, RATES
from auto_tables import line, shown_cell, spread, under

from slackwater.paper import cells, sweeps
from slackwater.paper.setting import HOURS, Source

CNN_BUDGETS = (3, 4, 5, 10, 20, 30, 40)


@click.command()
@click.option(
    "--data", default="typical", help="Carbon intensity: the folder of the seven zones, or the embedded year."
)
@click.option("--task", default="mnist")
@click.option("--task-data", default=None, help="Folder of MNIST.")
@click.option("--budgets", default=",".join(map(str, CNN_BUDGETS)), help="T, in the order they are trained.")
@click.option("--seeds", default=",".join(map(str, SEARCH_SEEDS)))
@click.option("--rules", default=OURS, help="Aggregators, on auto's schedules.")
@click.option("--local-steps", default=sweeps.LOCAL_STEPS, show_default=True)
@click.option("--batch-size", default=sweeps.BATCH, show_default=True)
@click.option("--jobs", default=1, show_default=True)
@click.option("--cells", "folder", type=click.Path(path_type=Path), default=STORE.parent / "cnn")
@click.option(
    "--paper-cells", type=click.Path(path_type=Path), default=STORE.parents[1] / "paper" / "cells",
    help="Where `slackwater paper table1a` stored its own, to compare with.",
)  # fmt: skip
def main(
    data: str,
    task: str,
    task_data: str | None,
    budgets: str,
    seeds: str,
    rules: str,
    local_steps: int,
    batch_size: int,
    jobs: int,
    folder: Path,
    paper_cells: Path,
) -> None:
    """Confirm with the paper's CNN: train auto's choice at each budget, a JSON file a cell, and show what is there."""
    source, store = Source(data=data, task=task, task_data=task_data), cells.Store(folder)
    hours = [int(T) for T in budgets.split(",")]
    chosen = {T: auto_cell(Maker(data), Cell(hours=T)) for T in hours}
    wanted = {
        (T, rule, int(seed)): cells.Cell(
            rounds=T, end=one.end, fine_tune=one.fine_tune, alpha=float(one.alpha), aggregator=rule,
            local_steps=local_steps, batch_size=batch_size, lr=LR, seed=int(seed),
        )
        for seed in seeds.split(",") for T, one in chosen.items() for rule in rules.split(",")
    }  # fmt: skip
    for row in cells.sweep(wanted.values(), source, store, jobs=jobs):
        click.echo(f"{row['cell']}: {row.get('accuracy', row['status'])}, {row['seconds']} s", err=True)
    theirs = cells.Store(paper_cells)
    click.echo(line("T", "schedule", *rules.split(","), "best paper cell", "of"))
    click.echo(under(len(rules.split(",")) + 4))
    for T, one in chosen.items():
        ours = [
            spread(store.accuracies([cell for (t, r, _), cell in wanted.items() if (t, r) == (T, rule)]))
            for rule in rules.split(",")
        ]
        click.echo(line(T, shown_cell(one), *ours, *_best_published_way(theirs, T)))


def _best_published_way(store: cells.Store, hours: int) -> tuple[str, str]:
    """The paper's method at its best end time, window and rate, of what is stored."""
    found = {}
    for fine_tune, end, lr in product((1, 3), ENDS, RATES):
        if hours in HOURS[fine_tune]:
            accuracies = store.accuracies(sweeps.table_cell(fine_tune, hours, end, seed, lr) for seed in SEARCH_SEEDS)
            if accuracies:
                found[fine_tune, end, lr] = accuracies
    if not found:
        return "", ""
    best = max(found, key=lambda key: statistics.mean(found[key]))
    return spread(found[best]), f"s={best[1]}, t_ft={best[0]}, lr {best[2]:g}, of {len(found)} cells"


if __name__ == "__main__":
    main()
