"""Aggregators on the same schedules: MNIST with the paper's CNN, budget T = 3, four end times.

    python experiments/aggregation.py run --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist [--part 0/2]
    python experiments/aggregation.py table

Each cell is stored when it is done, so that a sweep goes on where it stopped; two processes with `--part 0/2` and `--part 1/2` use
two cores.
"""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import click

import slackwater as sw
from slackwater.learning import Result, TrainingDiverged
from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.storage import write_whole

ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
ROUNDS, FINE_TUNE, ALPHA = 3, 1, 0.1
ENDS = (50, 150, 20, 110)
AGGREGATORS = ("memory", "ufedavg", "fedavg", "mifa", "normalised", "fedvarp", "fedstale")
LOCAL_STEPS, LR = 30, 0.1
HERE = Path(__file__).parent
RESULTS = HERE / "results" / "aggregation"


@click.group()
def main() -> None:
    """Aggregators on the same schedules."""


@main.command()
@click.option(
    "--data", default="typical", help="Carbon intensity: the folder of the seven zones, or the embedded year."
)
@click.option("--task", default="mnist")
@click.option("--task-data", default=None)
@click.option("--model", default=None)
@click.option("--seeds", default="0,1,2")
@click.option("--ends", default=",".join(map(str, ENDS)))
@click.option("--aggregators", default=",".join(AGGREGATORS))
@click.option("--local-steps", default=LOCAL_STEPS)
@click.option("--lr", default=LR)
@click.option("--part", default="0/1", help="i/n: every n-th cell from the i-th.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def run(
    data: str,
    task: str,
    task_data: str | None,
    model: str | None,
    seeds: str,
    ends: str,
    aggregators: str,
    local_steps: int,
    lr: float,
    part: str,
    results: Path,
) -> None:
    """Train every cell that is not stored yet."""
    problem = paper_problem(data, max(int(end) for end in ends.split(",")))
    cells = [
        (int(seed), name, int(end))
        for seed in seeds.split(",")
        for name, end in [("no-slack", 0)] + [(n, int(e)) for e in ends.split(",") for n in aggregators.split(",")]
    ]
    first, step = map(int, part.split("/"))
    options: dict[str, object] = {"clients": len(ZONES), "beta": 0.5}
    options |= {key: value for key, value in (("data", task_data), ("model", model)) if value is not None}
    for number, (seed, name, end) in enumerate(cells):
        path = results / f"{task}_steps{local_steps}_lr{lr:g}_{name}_s{end}_seed{seed}.json"
        if number % step != first or path.exists():
            continue
        plan = no_slack_plan(problem) if name == "no-slack" else sw.plan(problem, end=end)
        aggregator = "fedavg" if name == "no-slack" else name
        row = {"task": task, "aggregator": name, "s": end, "seed": seed, "local_steps": local_steps, "lr": lr,
               "data": Path(data).name, "client_rounds": int(plan.matrix.sum()), "version": sw.__version__}  # fmt: skip
        try:
            learned = sw.train(
                plan, sw.tasks.make(task, seed=seed, **options), aggregator=aggregator, local_steps=local_steps, lr=lr,
                seed=seed, threads=1, eval_every=0,
            )  # fmt: skip
            row |= _measured(learned)
        except TrainingDiverged as error:
            row |= {"accuracy": None, "note": str(error)}
        write_whole(path, json.dumps(row))
        click.echo(f"{number + 1} of {len(cells)}: {row}", err=True)


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def table(results: Path) -> None:
    """Means and deviations over the seeds that are stored, as CSV beside the cells and as text."""
    rows = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    if not rows:
        raise click.ClickException(f"There are no cells in {results} yet.")
    fields = ["task", "local_steps", "lr", "data", "aggregator", "s", "seed", "accuracy", "worst_client", "loss", "kg", "client_rounds",
              "seconds", "version", "note"]  # fmt: skip
    with (results.parent / f"{results.name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    ends = sorted({row["s"] for row in rows if row["aggregator"] != "no-slack"})
    click.echo("| aggregation before the window | " + " | ".join(f"s={end}" for end in ends) + " |")
    click.echo("|---" * (len(ends) + 1) + "|")
    for name in dict.fromkeys(row["aggregator"] for row in sorted(rows, key=lambda row: _place(row["aggregator"]))):
        cells = [_cell([row for row in rows if row["aggregator"] == name and row["s"] in (end, 0)]) for end in ends]
        click.echo(f"| {name} | " + " | ".join(cells) + " |")


def paper_problem(data: str, slack: int) -> sw.Problem:
    """Seven clients of 300 W, and a budget of everybody for the first three hours."""
    factor = "direct"
    traces = sw.load_traces(data, zones=list(ZONES), start="2022-01-01T00:00Z", hours=ROUNDS + slack, factor=factor)  # type: ignore[arg-type]
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in ZONES]
    problem = sw.Problem(
        clients=clients, traces=traces, rounds=ROUNDS, slack=slack, fine_tune=FINE_TUNE, alpha=ALPHA, budget_kg=1.0
    )
    return problem.with_settings(budget_kg=float(problem.costs.dense()[:, :ROUNDS].sum()))


def _measured(result: Result) -> dict[str, object]:
    return {
        "accuracy": result.accuracy,
        "worst_client": result.worst_client_accuracy,
        "loss": result.loss,
        "kg": result.emissions_kg,
        "seconds": round(result.seconds, 1),
    }


def _cell(rows: list[dict[str, object]]) -> str:
    if not rows:
        return ""
    values = [100 * float(str(row["accuracy"])) for row in rows if row["accuracy"] is not None]
    lost = len(rows) - len(values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    text = f"{statistics.mean(values):.2f}{spread} ({len(values)})" if values else ""
    return f"{text}{' ' if text and lost else ''}{f'{lost} diverged' if lost else ''}"


def _place(name: str) -> int:
    order = ("ufedavg", "normalised", "fedavg", "mifa", "fedvarp", "fedstale", "memory", "no-slack")
    return order.index(name) if name in order else len(order)


if __name__ == "__main__":
    main()
