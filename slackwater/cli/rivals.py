"""`slackwater rivals`: every method on the same task, at the same carbon, under one ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from slackwater.cli.options import ListOf, console, data_option, fill_option, filled, json_option, print_json, say
from slackwater.cli.planning import read_problem, scenario_argument
from slackwater.errors import ScenarioError
from slackwater.planning.problem import Problem
from slackwater.planning.storage import write_whole
from slackwater.rivals.cells import Cell, Setting, Store, sweep
from slackwater.rivals.planned import PLANNED
from slackwater.rivals.registry import check_method, policy_names
from slackwater.rivals.table import Line, lines, to_csv

_ALL = "all"


@click.command()
@scenario_argument
@click.option("--task", default="digits", show_default=True, callback=filled, help="digits, mnist, fashion_mnist, ..")
@click.option(
    "--task-data",
    metavar="FOLDER",
    callback=filled,
    help="Where the data set's files are; else the cache, else fetched.",
)
@click.option("--model", metavar="NAME", help="Model variant of the task.")
@click.option(
    "--policies",
    default=_ALL,
    show_default=True,
    callback=filled,
    help="Methods, separated by commas, such as ours,oort:2 (two clients a round) or fedzero+memory (another aggregator); "
    "all is every one of them.",
)
@click.option(
    "--budget", type=ListOf(float, "number of kg"), metavar="KG,..", help="Budgets; the scenario's unless told."
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="How many, from 0 on.")
@click.option(
    "--target", type=float, default=0.9, show_default=True, help="Accuracy to which hours and kg are counted."
)
@click.option("--local-steps", type=click.IntRange(1), default=30, show_default=True, help="Local SGD steps a round.")
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True, help="Samples a step.")
@click.option("--lr", type=float, default=0.1, show_default=True, help="Local learning rate.")
@click.option("--eval-every", type=click.IntRange(0), default=1, show_default=True, help="Rounds between evaluations.")
@click.option(
    "--free-probes",
    is_flag=True,
    help="Do not charge losses and gradients of clients that do not train (data centres).",
)
@click.option(
    "--probe-samples",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Of a client, at most, in such a probe.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Cells side by side, a core each.")
@click.option("--most", type=click.IntRange(0), help="Train at most so many cells, then show what there is.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("rivals"),
    show_default=True,
    help="Folder of cells, rivals.csv and rivals.png.",
)
@data_option
@fill_option
@json_option
def rivals(
    scenario: Path,
    task: str,
    task_data: str | None,
    model: str | None,
    policies: str,
    budget: list[float] | None,
    seeds: int,
    target: float,
    local_steps: int,
    batch_size: int,
    lr: float,
    eval_every: int,
    free_probes: bool,
    probe_samples: int,
    jobs: int,
    most: int | None,
    out: Path,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Compare methods on a SCENARIO: each policy and plan at each budget and seed, charged by the same ledger.

    Cells are stored one by one: a comparison that was stopped goes on where it was, and more methods, budgets or seeds add to it.
    """
    problem = read_problem(scenario, data, fill_hours)
    setting = Setting(
        task=task,
        task_data=task_data,
        model=model,
        local_steps=local_steps,
        batch_size=batch_size,
        lr=lr,
        eval_every=eval_every,
        probes="free" if free_probes else "charged",
        probe_samples=probe_samples,
    )
    methods = _methods(policies)
    budgets = budget or [problem.budget_kg]
    if not all(kg > 0 for kg in budgets):
        raise click.BadParameter("budgets must be above 0 kg.", param_hint="--budget")
    store = Store(out, problem, setting)
    # Seed by seed, so that a table over all methods is there early.
    cells = [Cell(method=m, budget_kg=kg, seed=s) for s in range(seeds) for kg in budgets for m in methods]
    _train(cells, store, jobs, most)
    rows = [row for cell in cells if (row := store.get(cell)) is not None]
    _show(lines(rows, target), rows, problem, out, as_json)


def _methods(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name a method, or say all.", param_hint="--policies")
    try:
        found = [m for name in names for m in ([*PLANNED, *policy_names()] if name == _ALL else [check_method(name)])]
    except ScenarioError as error:
        raise click.BadParameter(str(error), param_hint="--policies") from None
    return list(dict.fromkeys(found))


def _train(cells: list[Cell], store: Store, jobs: int, most: int | None) -> None:
    """Train what is not stored yet, with an estimate of what is left."""
    todo = [cell for cell in cells if store.get(cell) is None]
    todo = todo if most is None else todo[:most]
    if not todo:
        return
    say(f"{len(todo)} of {len(cells)} cells to train.")
    began = time.monotonic()
    with _quiet():
        for number, row in enumerate(sweep(todo, store, jobs=jobs), 1):
            left = (time.monotonic() - began) / number * (len(todo) - number)
            result = f"{row['accuracy']:.2%}" if row["status"] == "trained" else row["status"]
            what = f"{row['method']}, {row['budget_kg']:g} kg, seed {row['seed']}"
            say(f"{number} of {len(todo)}: {what}: {result}, {row['seconds']:.0f} s; about {left / 60:.0f} min left")


@contextmanager
def _quiet() -> Iterator[None]:
    """Who never trains is in the cells; said for each of many it would drown the progress."""
    logger = logging.getLogger("slackwater.learning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _show(table: list[Line], rows: list[dict[str, Any]], problem: Problem, out: Path, as_json: bool) -> None:
    from slackwater.report.canvas import save
    from slackwater.report.rivals import chart, summary

    if not table:
        say("no cell has been trained yet.")
        return
    write_whole(out / "rivals.csv", to_csv(table))
    curves = {row["method"]: row["curve"] for row in reversed(rows) if "curve" in row}
    written = [out / "rivals.csv", save(chart(table, curves, synthetic=problem.traces.synthetic), out / "rivals.png")]
    if as_json:
        print_json([asdict(line) for line in table])
    else:
        console().print(summary(table, synthetic=problem.traces.synthetic))
    say(f"written: {', '.join(map(str, written))}")


COMMANDS = (rivals,)
