"""The commands of the lab, `slackwater paper` and `slackwater rivals`; `slackwater.cli` imports them when called."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackwater.atomic import write_whole
from slackwater.cli.options import (
    ListOf,
    console,
    data_option,
    eval_every_option,
    evaluation_interval,
    fill_option,
    json_option,
    option,
    out_option,
    precision_option,
    print_json,
    say,
    seeds_option,
    task_data_option,
    task_option,
)
from slackwater.cli.plan_commands import read_problem, scenario_argument
from slackwater.errors import InfeasibleError, MissingExtraError, ScenarioError
from slackwater.lab.policies import comparison
from slackwater.lab.policies.registry import check_method, method_names
from slackwater.lab.store import Row, quiet
from slackwater.lazy import require
from slackwater.planning.goals import within_budget
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan

if TYPE_CHECKING:
    from slackwater.lab.paper.cells import Cell
    from slackwater.lab.paper.items import Context

_ALL = "all"
_ITEMS = ("fig1", "fig2", "fig3", "fig4", "setting", "baseline", "fig5", "fig6", "table1a", "table1b", "fig7", "claims")


@click.command()
@click.argument("item", metavar="ITEM", type=click.Choice((*_ITEMS, _ALL)))
@option(
    "--data",
    metavar="FOLDER",
    default="typical",
    help="CSV files with the carbon intensity of the paper's seven zones; typical is the embedded synthetic year.",
)
@option("--all-zones", metavar="FOLDER", help="CSV files with the zones of fig2 and fig3. Default: as --data.")
@task_data_option
@seeds_option
@option("--lr", "rates", metavar="RATE,..", default="0.1", help="Local learning rates for the cells of the tables.")
@option("--jobs", type=click.IntRange(1), default=2, metavar="N", help="Cells to train in parallel, one core each.")
@out_option("Folder for cells, tables and pictures.", "paper")
@option(
    "--most",
    type=click.IntRange(0),
    metavar="N",
    help="Train at most N cells, then show the results so far. Default: all cells.",
)
@option("--quick", is_flag=True, help="Make a small version of everything, on the embedded digits and one seed.")
def paper(
    item: str,
    data: str,
    all_zones: str | None,
    task_data: str | None,
    seeds: tuple[int, ...],
    rates: str,
    jobs: int,
    out: Path,
    most: int | None,
    quick: bool,
) -> None:
    """Reproduce an ITEM of the paper: a figure, a table or all.

    ITEM is fig1 to fig7, table1a, table1b, baseline, setting, claims or all. The command stores every trained cell, so a
    stopped sweep continues where it was.
    """
    if item == _ALL or item.startswith("fig"):
        require("matplotlib")
    try:
        from slackwater.lab.paper.cells import RATES, open_store
        from slackwater.lab.paper.items import ITEMS, Context
        from slackwater.lab.paper.setting import Source
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "torch") from None
    tried = _rates(rates, f"rates of the paper's grid {','.join(map(str, RATES))}")
    if not set(tried) <= set(RATES):
        raise click.BadParameter(f"{rates} is not in the paper's grid {', '.join(map(str, RATES))}.", param_hint="--lr")
    source = Source(data=data, task="digits" if quick else "mnist", task_data=None if quick else task_data)
    name = "quick" if quick else "cells" if data != "typical" else "cells-typical"
    context = Context(
        source=source,
        every_zone=Source(data=all_zones or data),
        store=open_store(out / f"{name}.jsonl", source),
        out=out,
        seeds=seeds[:1] if quick else seeds,
        rates=tried,
        quick=quick,
    )
    if data == "typical":
        say("This uses the embedded synthetic year, so the numbers are not the paper's. Name its data with --data.")
    wanted = _ITEMS if item == _ALL else (item,)
    if most != 0 and any(context.store.get(cell) is None for one in wanted for cell in ITEMS[one].cells(context)):
        require("torch")
    for shown in wanted:
        cells = ITEMS[shown].cells(context)
        _train_paper(shown, cells, context, jobs, most)
        made = ITEMS[shown].make(context, cells)
        files = made.write(out, synthetic=data == "typical")
        console().print(f"[bold]{shown}[/]: {made.title}")
        for note in made.notes:
            console().print(f"  {note}", highlight=False)
        say(f"wrote {', '.join(str(path) for path in files)}")


def _rates(given: str, what: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in given.split(","))
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a list of {what}.", param_hint="--lr") from None


def _train_paper(name: str, cells: list[Cell], context: Context, jobs: int, most: int | None) -> None:
    from slackwater.lab.paper.cells import sweep

    todo = [cell for cell in dict.fromkeys(cells) if context.store.get(cell) is None][:most]
    if todo:
        say(f"{name}: {len(cells) - len(todo)} of {len(cells)} cells are stored, {len(todo)} to train.")
        _say_progress(sweep(todo, context.source, context.store, jobs=jobs), len(todo), lambda row: f"{row['cell']} ")


def _say_progress(rows: Iterator[Row], count: int, named: Callable[[Row], str]) -> None:
    """Print each trained cell, with an estimate of the remaining time."""
    began = time.monotonic()
    for number, row in enumerate(rows, 1):
        left = (time.monotonic() - began) / number * (count - number)
        result = f"{row['accuracy']:.2%}" if row["status"] == "trained" else row["status"]
        say(f"{number} of {count}: {named(row)}{result}, {row['seconds']:.0f} s; about {left / 60:.0f} min left")


@click.command()
@scenario_argument
@task_option
@task_data_option
@option("--model", metavar="NAME", help="Model of the task. Default: the task's.")
@option(
    "--policies",
    metavar="NAME,..",
    default=_ALL,
    help="Methods, separated by commas: ours, oort:2 (two clients in a round) or fedzero+memory (another aggregator); all "
    "means every method.",
)
@option(
    "--budget",
    type=ListOf(float, "number of kg"),
    metavar="KG,..",
    help="Budgets, in kg CO2e. Default: the scenario's.",
)
@seeds_option
@option("--target", type=float, default=0.9, help="Accuracy, from 0 to 1, up to which hours and kg CO2e are counted.")
@option("--local-steps", type=click.IntRange(1), default=30, metavar="N", help="Local SGD steps in a round.")
@option("--batch-size", type=click.IntRange(1), default=128, metavar="N", help="Samples in a local step.")
@option("--lr", type=float, default=0.1, help="Local learning rate.")
@eval_every_option("no-slack run")
@precision_option
@option(
    "--free-probes",
    is_flag=True,
    help="Do not charge the probes (losses and gradients) of clients that do not train, as in data centres.",
)
@option(
    "--probe-samples",
    type=click.IntRange(1),
    default=512,
    metavar="N",
    help="Maximum number of a client's samples in a probe.",
)
@option("--jobs", type=click.IntRange(1), default=1, metavar="N", help="Cells to train in parallel, one core each.")
@option(
    "--most",
    type=click.IntRange(0),
    metavar="N",
    help="Train at most N cells, then show the results so far. Default: all cells.",
)
@out_option("Folder for cells, rivals.csv and rivals.png.", "rivals")
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
    seeds: tuple[int, ...],
    target: float,
    local_steps: int,
    batch_size: int,
    lr: float,
    eval_every: int | None,
    precision: str,
    free_probes: bool,
    probe_samples: int,
    jobs: int,
    most: int | None,
    out: Path,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Compare training methods on a SCENARIO at equal budgets.

    A cell is one method at one budget and seed, and the same ledger charges all of them. The command stores every
    trained cell: a stopped comparison continues where it was, and can add methods, budgets and seeds.
    """
    require("torch", "matplotlib")
    problem = within_budget(read_problem(scenario, data, fill_hours))
    setting = comparison.Setting(
        task=task,
        task_data=task_data,
        model=model,
        local_steps=local_steps,
        batch_size=batch_size,
        lr=lr,
        eval_every=_interval(problem, eval_every, out),
        probes="free" if free_probes else "charged",
        probe_samples=probe_samples,
        precision=precision,
    )
    methods = _methods(policies)
    budgets = budget or [problem.budget_kg]
    if not all(kg > 0 for kg in budgets):
        raise click.BadParameter("budgets must be above 0 kg.", param_hint="--budget")
    store = comparison.open_store(out, problem, setting)
    # Seed by seed, so that an early table has all methods.
    cells = [comparison.Cell(method=m, budget_kg=kg, seed=s) for s in seeds for kg in budgets for m in methods]
    todo = [cell for cell in cells if store.get(cell) is None][:most]
    if todo:
        say(f"{len(todo)} of {len(cells)} cells to train.")
        with quiet():
            trained = comparison.sweep(todo, problem, setting, store, jobs=jobs)
            _say_progress(trained, len(todo), lambda row: "{method}, {budget_kg:g} kg, seed {seed}: ".format(**row))
    rows = [row for cell in cells if (row := store.get(cell)) is not None]
    _show(comparison.lines(rows, target), problem, out, as_json)


def _interval(problem: Problem, asked: int | None, out: Path) -> int:
    """Return the rounds between evaluations; a comparison that continues keeps its own, unless asked."""
    if asked is None and (stored := out / "setting.json").is_file():
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(stored.read_text(encoding="utf-8"))["setting"]["eval_every"])
    try:
        return evaluation_interval(no_slack_plan(problem).problem.rounds, asked)
    except InfeasibleError:  # the budget pays no round of all clients
        return evaluation_interval(1, asked)


def _methods(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name a method, or all.", param_hint="--policies")
    try:
        found = [m for name in names for m in (method_names() if name == _ALL else [check_method(name)])]
    except ScenarioError as error:
        raise click.BadParameter(str(error), param_hint="--policies") from None
    return list(dict.fromkeys(found))


def _show(table: list[comparison.Line], problem: Problem, out: Path, as_json: bool) -> None:
    from slackwater.charts.style import save
    from slackwater.lab.policies.charts import chart, summary

    if not table:
        say("No cell is trained yet.")
        return
    write_whole(out / "rivals.csv", comparison.to_csv(table))
    written = [out / "rivals.csv", save(chart(table, synthetic=problem.traces.synthetic), out / "rivals.png")]
    if as_json:
        print_json([asdict(line) for line in table])
    else:
        console().print(summary(table, synthetic=problem.traces.synthetic))
    say(f"wrote {', '.join(map(str, written))}")
