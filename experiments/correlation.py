"""Who takes part at random: the paper's study of heterogeneity and correlation, with and without fine-tuning (t_ft = 10).

    python experiments/correlation.py run [--task mnist --task-data ../shared/data/mnist --local-steps 30] [--part 0/2]
    python experiments/correlation.py table

The eight cells are those of `slackwater.learning.participation`: HO/HE by rho_H, TU/TC by rho_T, SU/SC by rho_S, whose
exact values stand beside the accuracy. With fine-tuning, the last t_ft of the same slots are a window in which everybody
trains. The aggregator gets pi as counted in the schedule, as in any plan. Each cell is stored when it is done, so that a
sweep goes on where it stopped.
"""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import click
import numpy as np

import slackwater as sw
from slackwater.learning import TrainingDiverged
from slackwater.learning.participation import Process, cells, generate
from slackwater.planning.given import plan_from_matrix
from slackwater.planning.storage import write_whole

CLIENTS, SLOTS, FINE_TUNE = 7, 100, 10
AGGREGATORS = ("ufedavg", "memory")
RESULTS = Path(__file__).parent / "results" / "correlation"
FIELDS = ["task", "beta", "slots", "local_steps", "lr", "cell", "rho_h", "rho_t", "rho_s", "rho_ts", "aggregator",
          "fine_tune", "seed", "accuracy", "worst_client", "loss", "client_rounds", "seconds", "version", "note"]  # fmt: skip
"""The first five are what the rows of one table have in common."""


@click.group()
def main() -> None:
    """Heterogeneity and correlation of participation, with and without fine-tuning."""


@main.command()
@click.option("--task", default="digits", show_default=True)
@click.option("--task-data", default=None)
@click.option("--model", default=None)
@click.option("--seeds", default="0,1,2", show_default=True)
@click.option("--cells", "names", default=None, help="Like HO-TU-SU,HE-TC-SC; all eight by default.")
@click.option("--aggregators", default=",".join(AGGREGATORS), show_default=True)
@click.option("--beta", default=0.1, show_default=True, help="Of the Dirichlet partition; the paper has 0.5.")
@click.option("--slots", default=SLOTS, show_default=True)
@click.option("--local-steps", default=5, show_default=True)
@click.option("--lr", default=0.1, show_default=True)
@click.option("--part", default="0/1", show_default=True, help="i/n: every n-th cell from the i-th.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def run(
    task: str,
    task_data: str | None,
    model: str | None,
    seeds: str,
    names: str | None,
    aggregators: str,
    beta: float,
    slots: int,
    local_steps: int,
    lr: float,
    part: str,
    results: Path,
) -> None:
    """Train every cell that is not stored yet."""
    known = {process.name: process for process in cells(CLIENTS)}
    wanted = list(known) if names is None else names.split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise click.ClickException(f"There is no cell {unknown[0]!r}. There are: {', '.join(known)}.")
    todo = [
        (int(seed), name, aggregator, fine_tune)
        for seed in seeds.split(",")
        for name in wanted
        for aggregator in aggregators.split(",")
        for fine_tune in (0, FINE_TUNE)
    ]
    first, step = map(int, part.split("/"))
    options: dict[str, object] = {"clients": CLIENTS, "beta": beta}
    options |= {key: value for key, value in (("data", task_data), ("model", model)) if value is not None}
    for number, (seed, name, aggregator, fine_tune) in enumerate(todo):
        path = (
            results
            / f"{task}_beta{beta:g}_T{slots}_steps{local_steps}_lr{lr:g}_{name}_{aggregator}_ft{fine_tune}_seed{seed}.json"
        )
        if number % step != first or path.exists():
            continue
        process = known[name]
        plan = schedule(process, slots, fine_tune, seed)
        row: dict[str, object] = {
            "task": task, "beta": beta, "slots": slots, "local_steps": local_steps, "lr": lr, "cell": name, "rho_h": process.rho_h,
            "rho_t": process.rho_t, "rho_s": process.rho_s, "rho_ts": process.rho_ts, "aggregator": aggregator,
            "fine_tune": fine_tune, "seed": seed, "client_rounds": int(plan.matrix.sum()), "version": sw.__version__,
        }  # fmt: skip
        try:
            learned = sw.train(
                plan, sw.tasks.make(task, seed=seed, **options), aggregator=aggregator, local_steps=local_steps, lr=lr,
                seed=seed, threads=1, eval_every=0,
            )  # fmt: skip
            row |= {"accuracy": learned.accuracy, "worst_client": learned.worst_client_accuracy, "loss": learned.loss,
                    "seconds": round(learned.seconds, 1)}  # fmt: skip
        except TrainingDiverged as error:
            row |= {"accuracy": None, "note": str(error)}
        write_whole(path, json.dumps(row))
        click.echo(f"{number + 1} of {len(todo)}: {row}", err=True)


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def table(results: Path) -> None:
    """Means and deviations over the seeds that are stored, as CSV beside the cells and as text."""
    rows = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    if not rows:
        raise click.ClickException(f"There are no cells in {results} yet.")
    with (results.parent / f"{results.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    for kind in sorted({_kind(row) for row in rows}):
        here = [row for row in rows if _kind(row) == kind]
        click.echo(
            "\n{}: beta {}, {} slots, {} local steps, lr {}; accuracy in %, mean ± deviation (seeds)\n".format(*kind)
        )
        _print_table(here)


def schedule(process: Process, slots: int, fine_tune: int, seed: int) -> sw.Plan:
    """What a seed makes of a process, as a plan; nothing is at stake but who trains, so every slot costs the same."""
    matrix = generate(process, slots, seed)
    matrix[:, slots - fine_tune :] |= fine_tune > 0
    problem = sw.Problem.from_costs(
        np.ones(matrix.shape), rounds=slots, fine_tune=fine_tune, budget_kg=float(matrix.size)
    )
    return plan_from_matrix(problem, matrix, end=0)


def _kind(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[key] for key in FIELDS[:5])


def _print_table(rows: list[dict[str, object]]) -> None:
    columns = [(name, ft) for name in dict.fromkeys(str(row["aggregator"]) for row in rows) for ft in (0, FINE_TUNE)]
    heads = ["cell", "rho_H", "rho_T", "rho_S", "rho_TS"]
    click.echo("| " + " | ".join(heads + [f"{name}{f', t_ft={ft}' if ft else ''}" for name, ft in columns]) + " |")
    click.echo("|---" * (len(heads) + len(columns)) + "|")
    order = [process.name for process in cells(CLIENTS)]
    for cell in sorted({str(row["cell"]) for row in rows}, key=order.index):
        here = [row for row in rows if row["cell"] == cell]
        rho = [f"{float(str(here[0][key])):.3f}" for key in ("rho_h", "rho_t", "rho_s", "rho_ts")]
        values = [_cell([row for row in here if (row["aggregator"], row["fine_tune"]) == column]) for column in columns]
        click.echo("| " + " | ".join([cell, *rho, *values]) + " |")


def _cell(rows: list[dict[str, object]]) -> str:
    values = [100 * float(str(row["accuracy"])) for row in rows if row["accuracy"] is not None]
    lost = len(rows) - len(values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    text = f"{statistics.mean(values):.2f}{spread} ({len(values)})" if values else ""
    return f"{text}{' ' if text and lost else ''}{f'{lost} diverged' if lost else ''}"


if __name__ == "__main__":
    main()
