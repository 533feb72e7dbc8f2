"""Compare aggregators on the same schedules: MNIST with the paper's CNN, budget T = 3, four end times.

python -m slackwater.lab aggregation run --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist [--jobs 2]
python -m slackwater.lab aggregation table
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

import slackwater as sw
from slackwater.cli.options import seeds_option
from slackwater.lab.paper.setting import Source, problem
from slackwater.lab.store import RESULTS, Row, Store, sweep, trained
from slackwater.lab.tables import accuracy, line, under
from slackwater.planning.schedule import no_slack_plan

ROUNDS, ENDS = 3, (50, 150, 20, 110)
AGGREGATORS = ("memory", "ufedavg", "fedavg", "mifa", "normalised", "fedvarp", "fedstale")
NO_SLACK = "no-slack"
_SHOWN = ("ufedavg", "normalised", "fedavg", "mifa", "fedvarp", "fedstale", "memory", NO_SLACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    aggregator: str
    """Name of the aggregator, or `no-slack`: FedAvg without slack."""
    s: int
    seed: int


@click.group()
def main() -> None:
    """Compare aggregators on the same schedules."""


@main.command()
@click.option("--data", default="typical", help="Carbon intensity: the folder of the seven zones.")
@click.option("--task", default="mnist")
@click.option("--task-data", default=None)
@click.option("--model", default=None)
@seeds_option
@click.option("--ends", default=",".join(map(str, ENDS)))
@click.option("--aggregators", default=",".join(AGGREGATORS))
@click.option("--local-steps", default=30)
@click.option("--lr", default=0.1)
@click.option("--jobs", default=1, help="Cells trained in parallel, one core each.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "aggregation.jsonl")
def run(
    data: str, task: str, task_data: str | None, model: str | None, seeds: tuple[int, ...], ends: str, aggregators: str,
    local_steps: int, lr: float, jobs: int, results: Path,
) -> None:  # fmt: skip
    """Train every cell that is not stored yet."""
    source = Source(data=data, task=task, task_data=task_data, model=model)
    settings = {"task": task, "local_steps": local_steps, "lr": lr}
    times = [int(end) for end in ends.split(",")]
    cells = [
        Cell(aggregator=name, s=end, seed=seed)
        for seed in seeds
        for name, end in [(NO_SLACK, 0), *((name, end) for end in times for name in aggregators.split(","))]
    ]
    measure = partial(train_cell, source=source, slack=max(times), local_steps=local_steps, lr=lr)
    for row in sweep(cells, measure, Store(results, Cell, settings), jobs=jobs):
        click.echo(str(row), err=True)


def train_cell(cell: Cell, source: Source, slack: int, local_steps: int, lr: float) -> Row:
    """Train one cell and return its results."""
    row = problem(source, rounds=ROUNDS, fine_tune=1, slack=slack)
    plan = no_slack_plan(row) if cell.aggregator == NO_SLACK else sw.plan(row, end=cell.s, planner="paper")
    aggregator = "fedavg" if cell.aggregator == NO_SLACK else cell.aggregator
    found = train_plan(plan, source, cell.seed, aggregator=aggregator, local_steps=local_steps, lr=lr)
    return {"data": Path(source.data).name, **found}


def train_plan(plan: sw.Plan, source: Source, seed: int, **settings: Any) -> Row:
    """Train a plan on one thread and return its results."""

    def train() -> Row:
        task = sw.tasks.make(source.task, **source.task_options(seed))
        learned = sw.train(plan, task, seed=seed, threads=1, eval_every=0, **settings)
        return {"accuracy": learned.accuracy, "worst_client": learned.worst_client_accuracy, "loss": learned.loss,
                "kg": learned.emissions_kg}  # fmt: skip

    return {"client_rounds": int(plan.matrix.sum()), "version": sw.__version__, **trained(train)}


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "aggregation.jsonl")
def table(results: Path) -> None:
    """Print means and deviations over the stored seeds."""
    rows = Store(results, Cell, {"task": "", "local_steps": 0, "lr": 0}).rows()
    if not rows:
        raise click.ClickException(f"There are no cells in {results} yet.")
    ends = sorted({row["s"] for row in rows if row["aggregator"] != NO_SLACK})
    click.echo(line("aggregation before the window", *(f"s={end}" for end in ends)))
    click.echo(under(len(ends) + 1))
    names = {row["aggregator"] for row in rows}
    for name in [*(name for name in _SHOWN if name in names), *sorted(names - {*_SHOWN})]:
        click.echo(line(name, *(
            accuracy(row for row in rows if row["aggregator"] == name and row["s"] in (end, 0)) for end in ends
        )))  # fmt: skip
