"""Train with random participation: heterogeneity and correlation, with and without fine-tuning (t_ft = 10).

    python -m slackwater.lab correlation run [--task mnist --task-data ../shared/data/mnist --local-steps 30] [--jobs 2]
    python -m slackwater.lab correlation table

The eight processes are those of `slackwater.lab.markov_participation`: HO/HE by rho_H, TU/TC by rho_T, SU/SC by rho_S.
The table has their exact values. With fine-tuning, all clients train in the last t_ft of the same slots. The aggregator
gets pi as counted in the schedule, as in any plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from slackwater.cli.options import seeds_option
from slackwater.lab.markov_participation import cells as processes
from slackwater.lab.paper.cells import random_plan
from slackwater.lab.paper.setting import ZONES, Source
from slackwater.lab.store import RESULTS, Row, Store, sweep
from slackwater.lab.studies.aggregation import train_plan
from slackwater.lab.tables import accuracy, line, under

SLOTS, FINE_TUNE = 100, 10
AGGREGATORS = ("ufedavg", "memory")
PROCESSES = {process.name: process for process in processes(len(ZONES))}
SHARED = ("task", "beta", "slots", "local_steps", "lr")
"""Settings shared by the rows of one table."""
_RHO = ("rho_h", "rho_t", "rho_s", "rho_ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    cell: str
    """Name of the process."""
    aggregator: str
    fine_tune: int
    seed: int


@click.group()
def main() -> None:
    """Heterogeneity and correlation of participation, with and without fine-tuning."""


@main.command()
@click.option("--task", default="digits", show_default=True)
@click.option("--task-data", default=None)
@click.option("--model", default=None)
@seeds_option
@click.option(
    "--cells", "names", default=",".join(PROCESSES), help="Processes such as HO-TU-SU,HE-TC-SC. Default: all eight."
)
@click.option("--aggregators", default=",".join(AGGREGATORS), show_default=True)
@click.option("--beta", default=0.1, show_default=True, help="Skew of the Dirichlet partition; 0.5 in the paper.")
@click.option("--slots", default=SLOTS, show_default=True)
@click.option("--local-steps", default=5, show_default=True)
@click.option("--lr", default=0.1, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Cells trained in parallel, one core each.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "correlation.jsonl")
def run(
    task: str, task_data: str | None, model: str | None, seeds: tuple[int, ...], names: str, aggregators: str, beta: float,
    slots: int, local_steps: int, lr: float, jobs: int, results: Path,
) -> None:  # fmt: skip
    """Train every cell that is not stored yet."""
    for name in names.split(","):
        if name not in PROCESSES:
            raise click.ClickException(f"There is no cell {name!r}. There are: {', '.join(PROCESSES)}.")
    cells = [
        Cell(cell=name, aggregator=aggregator, fine_tune=fine_tune, seed=seed)
        for seed in seeds
        for name in names.split(",")
        for aggregator in aggregators.split(",")
        for fine_tune in (0, FINE_TUNE)
    ]
    source = Source(task=task, task_data=task_data, model=model, beta=beta)
    store = Store(results, Cell, dict(zip(SHARED, (task, beta, slots, local_steps, lr), strict=True)))
    measure = partial(train_cell, source=source, slots=slots, local_steps=local_steps, lr=lr)
    for row in sweep(cells, measure, store, jobs=jobs):
        click.echo(str(row), err=True)


def train_cell(cell: Cell, source: Source, slots: int, local_steps: int, lr: float) -> Row:
    """Train one cell and return its results."""
    process = PROCESSES[cell.cell]
    plan = random_plan(process, slots, cell.fine_tune, cell.seed)
    found = train_plan(plan, source, cell.seed, aggregator=cell.aggregator, local_steps=local_steps, lr=lr)
    return {**{name: getattr(process, name) for name in _RHO}, **found}


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "correlation.jsonl")
def table(results: Path) -> None:
    """Print means and deviations over the stored seeds."""
    rows = Store(results, Cell, dict.fromkeys(SHARED)).rows()
    if not rows:
        raise click.ClickException(f"There are no cells in {results} yet.")
    for kind in sorted({tuple(row[key] for key in SHARED) for row in rows}):
        click.echo(
            "\n{}: beta {}, {} slots, {} local steps, lr {}; accuracy in %, mean ± deviation (seeds)\n".format(*kind)
        )
        _print_table([row for row in rows if tuple(row[key] for key in SHARED) == kind])


def _print_table(rows: list[Row]) -> None:
    aggregators = dict.fromkeys(row["aggregator"] for row in rows)
    columns = [(name, fine_tune) for name in aggregators for fine_tune in (0, FINE_TUNE)]
    heads = [f"{name}{f', t_ft={fine_tune}' if fine_tune else ''}" for name, fine_tune in columns]
    click.echo(line("cell", "rho_H", "rho_T", "rho_S", "rho_TS", *heads))
    click.echo(under(5 + len(heads)))
    for name in PROCESSES:
        here = [row for row in rows if row["cell"] == name]
        if here:
            values = [
                accuracy(row for row in here if (row["aggregator"], row["fine_tune"]) == column) for column in columns
            ]
            click.echo(line(name, *(f"{here[0][key]:.3f}" for key in _RHO), *values))
