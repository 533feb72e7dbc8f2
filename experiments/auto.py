"""Accuracy per kilogram: rules and schedules on a small network, for `slackwater plan --auto`; docs/auto.md tells what came out.

    python experiments/auto.py run [SET ..] --data ../shared/data/ci_paper7 --task-data ../shared/data/mnist
    python experiments/auto.py table [TABLE ..] --data ../shared/data/ci_paper7

Each cell is a line of experiments/auto/cells.jsonl, written when it is done, so that a sweep goes on where it stopped. MNIST averaged to
14 x 14, one hidden layer of 64 units, 30 local steps of 128 at a rate of 0.1 for every rule; the paper's own method also at its two others.
"""

from __future__ import annotations

import logging
from pathlib import Path

import click
import torch
from auto_cells import STORE, Maker, Store, train_cells
from auto_sets import SETS
from auto_tables import TABLES


@click.group()
def main() -> None:
    """Accuracy per kilogram on a small network."""


@main.command()
@click.argument("sets", nargs=-1)
@click.option(
    "--data", default="typical", help="Carbon intensity: the folder of the seven zones, or the embedded year."
)
@click.option("--task-data", default=None, help="Folder of MNIST.")
@click.option("--store", "path", type=click.Path(path_type=Path), default=STORE)
def run(sets: tuple[str, ...], data: str, task_data: str | None, path: Path) -> None:
    """Train the cells of the SETS, all by default, that are not stored yet, on one thread."""
    for name in sets:
        if name not in SETS:
            raise click.ClickException(f"There is no set {name!r}. There are: {', '.join(SETS)}.")
    torch.set_num_threads(1)
    logging.getLogger("slackwater").setLevel(logging.ERROR)
    store, maker = Store(path), Maker(data)
    for name in sets or SETS:
        done = 0
        for rows in train_cells(SETS[name](maker, store), store, maker, task_data):
            done += len(rows)
            cell = rows[0]["cell"]
            click.echo(f"{name}: {done} cells, now T={cell['hours']} s={cell['end']}", err=True)
        click.echo(f"{name}: trained {done} cells", err=True)


@main.command()
@click.argument("tables", nargs=-1)
@click.option(
    "--data", default="typical", help="Carbon intensity: the folder of the seven zones, or the embedded year."
)
@click.option("--store", "path", type=click.Path(path_type=Path), default=STORE)
def table(tables: tuple[str, ...], data: str, path: Path) -> None:
    """Show the TABLES, all by default, from what is stored."""
    for name in tables:
        if name not in TABLES:
            raise click.ClickException(f"There is no table {name!r}. There are: {', '.join(TABLES)}.")
    store, maker = Store(path), Maker(data)
    for name in tables or TABLES:
        click.echo(f"\n{name}\n")
        for line in TABLES[name](store, maker):
            click.echo(line)


if __name__ == "__main__":
    main()
