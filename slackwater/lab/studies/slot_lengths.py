"""The planner auto beside the baseline without slack, with slots of 15, 30, 60 and 120 minutes.

    python -m slackwater.lab slot-lengths run --data ../shared/data/ci_paper7 --mnist ../shared/data/mnist
    python -m slackwater.lab slot-lengths table

The paper's seven zones and 150 hours of slack. The budget is what all clients emit in the first T hours. A round takes a slot
and has 30 local steps, whatever the slot's length: with longer slots the same budget pays fewer rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import click

import slackwater as sw
from slackwater.cli.options import seeds_option
from slackwater.lab.paper.setting import BETA, POWER_W, SLACK, START, ZONES
from slackwater.lab.store import RESULTS, TRAINED, Row, Store, sweep, trained
from slackwater.lab.studies.auto_trainer import small_task
from slackwater.lab.tables import line, under
from slackwater.planning.plan import Plan
from slackwater.planning.schedule import no_slack_plan
from slackwater.training.loop import train

MINUTES, HOURS, TASKS = (15, 30, 60, 120), (3, 10), {"digits": "Digits 8 x 8", "mnist": "MNIST 14 x 14"}
AUTO, NO_SLACK = "auto", "no-slack"
LOCAL_STEPS, LR = 30, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training run."""

    task: str
    minutes: int
    hours: int
    """T: the budget is the cost of all clients in the first T hours."""
    method: str
    seed: int


@cache
def schedule(data: str, minutes: int, hours: int, method: str) -> Plan:
    """Return the plan of a method for one slot length."""
    traces = sw.load_traces(
        data, zones=list(ZONES), start=START, hours=hours + 2 + SLACK - hours % 2, factor="direct", slot_minutes=minutes
    )
    rounds = -(-hours * 60 // minutes)
    hourly = sw.load_traces(data, zones=list(ZONES), start=START, hours=hours, factor="direct")
    problem = sw.Problem(
        clients=[sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in ZONES],
        traces=traces,
        rounds=rounds,
        slack=SLACK * 60 // minutes,
        budget_kg=float(hourly.intensity.sum()) * POWER_W / 1000 * (1 + 1e-12),
    )
    return sw.plan(problem) if method == AUTO else no_slack_plan(problem.with_settings(slack=0, fine_tune=0))


def measure(cell: Cell, data: str, mnist: str | None) -> Row:
    """Train one cell."""
    task = small_task(cell.task, mnist if cell.task == "mnist" else None, BETA, cell.seed, len(ZONES))
    plan = schedule(data, cell.minutes, cell.hours, cell.method)

    def run() -> Row:
        done = train(
            plan, task, aggregator=plan.aggregator if cell.method == AUTO else "fedavg", local_steps=LOCAL_STEPS, lr=LR,
            seed=cell.seed, eval_every=plan.problem.horizon, training_loss=False, threads=1,
        )  # fmt: skip
        return {
            "accuracy": done.score, "worst_client": done.worst_client_score, "kg": done.emissions_kg, "end": plan.end,
            "client_slots": int(plan.slots_per_client.sum()),
        }  # fmt: skip

    return trained(run)


@click.group()
def main() -> None:
    """Slot lengths: auto beside the baseline without slack."""


results_option = click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "slot_lengths.jsonl")


@main.command()
@click.option("--data", default="typical", show_default=True, help="Carbon intensity: a folder of zones, or typical.")
@click.option("--mnist", default=None, help="Folder of MNIST's files. Default: the copy in the cache.")
@click.option("--tasks", default=",".join(TASKS), show_default=True, help="Tasks to train.")
@seeds_option
@results_option
def run(data: str, mnist: str | None, tasks: str, seeds: tuple[int, ...], results: Path) -> None:
    """Train the cells that are not stored yet."""
    cells = [
        Cell(task=task, minutes=minutes, hours=hours, method=method, seed=seed)
        for minutes in reversed(MINUTES)
        for hours in HOURS
        for method in (AUTO, NO_SLACK)
        for task in tasks.split(",")
        for seed in seeds
    ]
    for row in sweep(cells, partial(measure, data=data, mnist=mnist), Store(results, Cell)):
        said = "{task}, {minutes} minutes, T = {hours}, {method}, seed {seed}".format(**row)
        shown = f"{row['accuracy']:.4f}" if row["status"] == TRAINED else row["status"]
        click.echo(f"{said}: {shown}, {row['seconds']:.0f} s", err=True)


@main.command()
@results_option
def table(results: Path) -> None:
    """Show both methods for every slot length, from the stored cells."""
    for text in report(Store(results, Cell)):
        click.echo(text)


def report(store: Store[Cell]) -> Iterator[str]:
    """Return the table: mean and deviation over the seeds, and the smallest difference of one seed."""
    yield line("task", "T", "slot, minutes", "s of auto", "client-slots", "auto, %", "no slack, %", "least difference")
    yield under(8)
    stored = [cell for cell, _ in store.cells() if cell.method == AUTO]
    for task, title in TASKS.items():
        for hours in HOURS:
            for minutes in MINUTES:
                ours = [c for c in stored if (c.task, c.hours, c.minutes) == (task, hours, minutes)]
                pairs = [(c, replace(c, method=NO_SLACK)) for c in ours if store.get(replace(c, method=NO_SLACK))]
                row = store.get(ours[0]) if ours else None
                if not pairs or row is None:
                    continue
                auto, plain = store.accuracies(c for c, _ in pairs), store.accuracies(c for _, c in pairs)
                yield line(
                    title, hours, minutes, row["end"], row["client_slots"], _spread(auto), _spread(plain),
                    f"{min(a - b for a, b in zip(auto, plain, strict=True)):+.2f}",
                )  # fmt: skip


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
