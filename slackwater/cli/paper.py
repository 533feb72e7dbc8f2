"""`slackwater paper`: every figure and table of the paper, made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from slackwater.cli.options import console, filled, say
from slackwater.errors import MissingExtraError

if TYPE_CHECKING:
    from slackwater.paper.cells import Cell
    from slackwater.paper.items import Context

_T = TypeVar("_T", int, float)
_ALL = "all"
_NAMES = (
    "fig1",
    "fig2",
    "fig3",
    "fig4",
    "setting",
    "baseline",
    "fig5",
    "fig6",
    "table1a",
    "table1b",
    "fig7",
    "claims",
    _ALL,
)


@click.command()
@click.argument("item", type=click.Choice(_NAMES))
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
        from slackwater.paper.cells import Store
        from slackwater.paper.items import ITEMS, Context
        from slackwater.paper.setting import Source
        from slackwater.paper.sweeps import RATES
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
        store=Store(out / name),
        out=out,
        seeds=numbers[:1] if quick else numbers,
        rates=tried,
        quick=quick,
    )
    if data == "typical":
        say("no --data: this runs on the embedded synthetic year, so the numbers are not the paper's.")
    for one in ITEMS.values() if item == _ALL else [ITEMS[item]]:
        cells = one.cells(context)
        _train(one.name, cells, context, jobs, most)
        made = one.make(context, cells)
        files = made.write(out, synthetic=data == "typical")
        console().print(f"[bold]{one.name}[/]: {made.title}")
        for note in made.notes:
            console().print(f"  {note}", highlight=False)
        say(f"written: {', '.join(str(path) for path in files)}")


def _list_of(kind: Callable[[str], _T], given: str, what: str, option: str) -> tuple[_T, ...]:
    try:
        return tuple(kind(part) for part in given.split(","))
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a list of {what}.", param_hint=option) from None


def _train(name: str, cells: list[Cell], context: Context, jobs: int, most: int | None) -> None:
    """Train what is not stored yet, with an estimate of what is left."""
    from slackwater.paper.cells import sweep

    todo = [cell for cell in dict.fromkeys(cells) if context.store.get(cell) is None]
    if most is not None:
        todo = todo[:most]
    if not todo:
        return
    say(f"{name}: {len(cells) - len(todo)} of {len(cells)} cells are there, {len(todo)} to train.")
    began = time.monotonic()
    for number, row in enumerate(sweep(todo, context.source, context.store, jobs=jobs), 1):
        left = (time.monotonic() - began) / number * (len(todo) - number)
        result = f"{row['accuracy']:.2%}" if row["status"] == "trained" else row["status"]
        say(f"{number} of {len(todo)}: {row['cell']} {result}, {row['seconds']:.0f} s; about {left / 60:.0f} min left")


COMMANDS = (paper,)
