"""What a quorum costs on the paper's seven grids: lone slots, client-slots and kg with `min_parallel` 1, 2 and 3.

    python -m slackwater.lab quorum run --data ../shared/data/ci_paper7
    python -m slackwater.lab quorum table

The setting is the paper's: slack 150, alpha 0.1, and a budget of T hours of everybody. Planning only; nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from slackwater.lab.paper.setting import Source, problem
from slackwater.lab.store import RESULTS, Row, Store, sweep
from slackwater.lab.tables import line, under
from slackwater.planning.planner import plan

ROUNDS, QUORUMS, FINE_TUNES = (2, 3, 4, 5, 10), (1, 2, 3), (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One plan."""

    rounds: int
    quorum: int
    fine_tune: int = 1


@click.group()
def main() -> None:
    """Lone slots, and what a quorum costs."""


@main.command()
@click.option("--data", default="typical", show_default=True, help="Folder of the seven zones' intensity.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "quorum.jsonl")
def run(data: str, results: Path) -> None:
    """Plan every cell that is not stored yet."""
    cells = [Cell(rounds=t, quorum=q, fine_tune=f) for t in ROUNDS for q in QUORUMS for f in FINE_TUNES]
    store = Store(results, Cell, {"data": Path(data).name})
    for row in sweep(cells, partial(measure, source=Source(data=data)), store):
        click.echo(f"T = {row['rounds']}, quorum {row['quorum']}: {row['client_slots']} client-slots", err=True)


def measure(cell: Cell, source: Source) -> Row:
    """Return the figures of one plan."""
    whole = problem(source, rounds=cell.rounds, fine_tune=cell.fine_tune)
    found = plan(whole.with_settings(min_parallel=cell.quorum) if cell.quorum > 1 else whole, planner="paper")
    together = found.matrix[:, : found.before].sum(axis=0)
    return {
        "budget_kg": whole.budget_kg,
        "kg": found.emissions_kg,
        "client_slots": int(found.slots_per_client.sum()),
        "used_slots": int((together > 0).sum()),
        "lone_slots": int((together == 1).sum()),
        "objective": found.objective,
        "gap": found.gap,
        "end": found.end,
    }


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "quorum.jsonl")
def table(results: Path) -> None:
    """Print the table of the stored cells."""
    rows = list(Store(results, Cell, {"data": ""}).rows())
    free = {(row["data"], row["rounds"]): row for row in rows if row["quorum"] == 1}
    head = ("data", "T", "quorum", "slots with one client", "client-slots", "kg", "carbon per client-slot", "s")
    click.echo(line(*head))
    click.echo(under(len(head)))
    for row in sorted(rows, key=lambda one: (one["data"], one["rounds"], one["quorum"])):
        base = free[row["data"], row["rounds"]]
        lost = row["client_slots"] - base["client_slots"]
        slots = (
            f"{row['client_slots']} ({lost:+d}, {lost / base['client_slots']:+.1%})"
            if lost
            else str(row["client_slots"])
        )
        alone = f"{row['lone_slots']} of {row['used_slots']} ({row['lone_slots'] / max(row['used_slots'], 1):.0%})"
        each = 1000 * row["kg"] / row["client_slots"]
        click.echo(
            line(
                row["data"], row["rounds"], row["quorum"], alone, slots, f"{row['kg']:.3f}", f"{each:.2f} g", row["end"]
            )
        )
