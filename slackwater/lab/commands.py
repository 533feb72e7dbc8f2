"""The commands of the lab: `slackwater paper` and `slackwater rivals`, which `slackwater.cli` loads when they are called."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from slackwater.atomic import write_whole
from slackwater.cli.options import ListOf, console, data_option, fill_option, filled, json_option, print_json, say
from slackwater.cli.plan_commands import read_problem, scenario_argument
from slackwater.errors import MissingExtraError, ScenarioError
from slackwater.lab.policies import comparison
from slackwater.lab.policies.registry import check_method, method_names
from slackwater.lab.store import Row, quiet
from slackwater.planning.problem import Problem

if TYPE_CHECKING:
    from slackwater.lab.paper.cells import Cell
    from slackwater.lab.paper.items import Context

_T = TypeVar("_T", int, float)
_ALL = "all"
_ITEMS = ("fig1", "fig2", "fig3", "fig4", "setting", "baseline", "fig5", "fig6", "table1a", "table1b", "fig7", "claims")


@click.command()
@click.argument("item", type=click.Choice((*_ITEMS, _ALL)))
@click.option(
    "--data",
    metavar="FOLDER",
    callback=filled,
    default="typical",
    help="The paper's seven zones; else the embedded synthetic year.",
)
@click.option("--all-zones", metavar="FOLDER", callback=filled, help="Zones of fig2 and fig3; --data unless told.")
@click.option(
    "--task-data", metavar="FOLDER", callback=filled, help="MNIST's files; else the cache, else they are fetched."
)
@click.option("--seeds", default="0,1,2", show_default=True, callback=filled, help="Of every cell.")
@click.option(
    "--lr",
    "rates",
    default="0.1",
    show_default=True,
    callback=filled,
    help="Rates at which the tables' cells are trained.",
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Cells side by side, a core each.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("paper"),
    show_default=True,
    help="Folder of cells, tables and pictures.",
)
@click.option("--most", type=click.IntRange(0), help="Train at most so many cells, then show what there is.")
@click.option("--quick", is_flag=True, help="Everything in small, on the embedded digits.")
def paper(
    item: str,
    data: str,
    all_zones: str | None,
    task_data: str | None,
    seeds: str,
    rates: str,
    jobs: int,
    out: Path,
    most: int | None,
    quick: bool,
) -> None:
    """Make ITEM of the paper again: a figure (fig1 to fig7), a table (table1a, table1b, baseline, setting), claims, or all.

    Cells are stored one by one: a sweep that was stopped goes on where it was, and what is there is shown at any time.
    """
    try:
        from slackwater.lab.paper.cells import RATES, open_store
        from slackwater.lab.paper.items import ITEMS, Context
        from slackwater.lab.paper.setting import Source
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "torch") from None
    numbers = _list_of(int, seeds, "whole numbers such as 0,1,2", "--seeds")
    tried = _list_of(float, rates, f"rates of the paper's grid {','.join(map(str, RATES))}", "--lr")
    if not set(tried) <= set(RATES):
        raise click.BadParameter(f"the paper tries {', '.join(map(str, RATES))}, not {rates}.", param_hint="--lr")
    source = Source(data=data, task="digits" if quick else "mnist", task_data=None if quick else task_data)
    name = "quick" if quick else "cells" if data != "typical" else "cells-typical"
    context = Context(
        source=source,
        every_zone=Source(data=all_zones or data),
        store=open_store(out / f"{name}.jsonl", source),
        out=out,
        seeds=numbers[:1] if quick else numbers,
        rates=tried,
        quick=quick,
    )
    if data == "typical":
        say("no --data: this runs on the embedded synthetic year, so the numbers are not the paper's.")
    for shown in _ITEMS if item == _ALL else [item]:
        cells = ITEMS[shown].cells(context)
        _train_paper(shown, cells, context, jobs, most)
        made = ITEMS[shown].make(context, cells)
        files = made.write(out, synthetic=data == "typical")
        console().print(f"[bold]{shown}[/]: {made.title}")
        for note in made.notes:
            console().print(f"  {note}", highlight=False)
        say(f"written: {', '.join(str(path) for path in files)}")


def _list_of(kind: Callable[[str], _T], given: str, what: str, option: str) -> tuple[_T, ...]:
    try:
        return tuple(kind(part) for part in given.split(","))
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a list of {what}.", param_hint=option) from None


def _train_paper(name: str, cells: list[Cell], context: Context, jobs: int, most: int | None) -> None:
    from slackwater.lab.paper.cells import sweep

    todo = [cell for cell in dict.fromkeys(cells) if context.store.get(cell) is None][:most]
    if todo:
        say(f"{name}: {len(cells) - len(todo)} of {len(cells)} cells are there, {len(todo)} to train.")
        _say_progress(sweep(todo, context.source, context.store, jobs=jobs), len(todo), lambda row: f"{row['cell']} ")


def _say_progress(rows: Iterator[Row], count: int, named: Callable[[Row], str]) -> None:
    """Print each cell when it is trained, with an estimate of the time left."""
    began = time.monotonic()
    for number, row in enumerate(rows, 1):
        left = (time.monotonic() - began) / number * (count - number)
        result = f"{row['accuracy']:.2%}" if row["status"] == "trained" else row["status"]
        say(f"{number} of {count}: {named(row)}{result}, {row['seconds']:.0f} s; about {left / 60:.0f} min left")


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
    setting = comparison.Setting(
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
    store = comparison.open_store(out, problem, setting)
    # Seed by seed, so that a table over all methods is there early.
    cells = [comparison.Cell(method=m, budget_kg=kg, seed=s) for s in range(seeds) for kg in budgets for m in methods]
    todo = [cell for cell in cells if store.get(cell) is None][:most]
    if todo:
        say(f"{len(todo)} of {len(cells)} cells to train.")
        with quiet():
            trained = comparison.sweep(todo, problem, setting, store, jobs=jobs)
            _say_progress(trained, len(todo), lambda row: "{method}, {budget_kg:g} kg, seed {seed}: ".format(**row))
    rows = [row for cell in cells if (row := store.get(cell)) is not None]
    _show(comparison.lines(rows, target), rows, problem, out, as_json)


def _methods(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name a method, or say all.", param_hint="--policies")
    try:
        found = [m for name in names for m in (method_names() if name == _ALL else [check_method(name)])]
    except ScenarioError as error:
        raise click.BadParameter(str(error), param_hint="--policies") from None
    return list(dict.fromkeys(found))


def _show(table: list[comparison.Line], rows: list[Row], problem: Problem, out: Path, as_json: bool) -> None:
    from slackwater.charts.style import save
    from slackwater.lab.policies.charts import chart, summary

    if not table:
        say("no cell has been trained yet.")
        return
    write_whole(out / "rivals.csv", comparison.to_csv(table))
    curves = {row["method"]: row["curve"] for row in reversed(rows) if "curve" in row}
    written = [out / "rivals.csv", save(chart(table, curves, synthetic=problem.traces.synthetic), out / "rivals.png")]
    if as_json:
        print_json([asdict(line) for line in table])
    else:
        console().print(summary(table, synthetic=problem.traces.synthetic))
    say(f"written: {', '.join(map(str, written))}")
