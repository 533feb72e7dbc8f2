"""Run a week of hourly slots on seven sites in the test world (tests/world), with each of its faults and with all.

    python -m slackwater.lab world run         # all cells, some minutes each
    python -m slackwater.lab world table       # into docs/research/reliability.md

It starts the real commands as processes with their default options; time is virtual (SLACKWATER_CLOCK).
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from slackwater.lab.store import RESULTS, Row, Store, sweep
from slackwater.lab.studies import use_tests
from slackwater.lab.tables import line, under, write_between

use_tests("intensity/providers", "engines", "world")
from grids import Fault  # type: ignore[import-not-found]  # noqa: E402
from sandbox import (  # type: ignore[import-not-found]  # noqa: E402
    START,
    Event,
    World,
    emitted_kg,
    outcome,
    rows,
    said,
)

PAGE = Path("docs") / "research" / "reliability.md"
BEGIN, END = "<!-- world: written by `python -m slackwater.lab world table` -->", "<!-- end of world -->"
SITES = {
    "electricitymaps": {
        "lyon": "FR", "dublin": "IE", "helsinki": "FI", "berlin": "DE", "warsaw": "PL", "madrid": "ES", "brussels": "BE",
    },
    "energycharts": {
        "lyon": "FR", "vienna": "AT", "helsinki": "FI", "berlin": "DE", "warsaw": "PL", "madrid": "ES", "brussels": "BE",
    },
    "neso": dict.fromkeys(("leeds", "cardiff", "dundee", "bristol", "york", "truro", "durham"), "GB"),
}  # fmt: skip
KINDS = {
    "none": "none",
    "down": "provider answers 503 for 12 h",
    "refused": "provider refuses connections for 12 h",
    "throttled": "429 with Retry-After of 15 min for 4 h",
    "nulls": "every third actual value is null for 8 h",
    "late": "actual values of 12 h come 6 h late",
    "revised": "actual values of 24 h are revised by 25 % after 12 h",
    "no-forecast": "no forecast for 12 h",
    "double-forecast": "forecast twice the actual value for 12 h",
    "kill": "kill -9 of the run in a round, three times, then `slackwater resume`",
    "missed": "kill -9, and a restart 5 slots later",
    "all": "all of the above",
}
ANSWERS = {"down": 12, "throttled": 4, "nulls": 8, "late": 12, "revised": 24, "no-forecast": 12, "double-forecast": 12}
"""Faults of the providers' answers, and their duration in hours."""
_SHOWN = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    provider: str
    kind: str
    slots: int
    sites: int


@click.group()
def main() -> None:
    """Run through faults in the test world."""


@main.command()
@click.option("--slots", default=168, show_default=True, help="Number of slots.")
@click.option("--sites", default=7, show_default=True, help="Number of sites.")
@click.option("--kinds", default=",".join(KINDS), show_default=True, help="Faults to inject.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "world.jsonl", show_default=True)
def run(slots: int, sites: int, kinds: str, results: Path) -> None:
    """Run each fault on Electricity Maps, and all together on each provider."""
    wanted = [("electricitymaps", kind) for kind in kinds.split(",")]
    wanted += [(provider, "all") for provider in ("neso", "energycharts") if "all" in kinds.split(",")]
    cells = [Cell(provider=provider, kind=kind, slots=slots, sites=sites) for provider, kind in wanted]
    for row in sweep(cells, run_cell, Store(results, Cell)):
        click.echo(f"{row['provider']} {row['kind']} {slots} {sites}", err=True)


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS / "world.jsonl", show_default=True)
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def table(results: Path, page: Path) -> None:
    """Write the table into the page, between its marks."""
    text = tables(Store(results, Cell).rows())
    write_between(page, BEGIN, END, text, otherwise="## A week in the test world")


def run_cell(cell: Cell) -> Row:
    """Run with faults, settle at the end and return the outcome."""
    provider, kind, slots, sites = cell.provider, cell.kind, cell.slots, cell.sites
    chosen = dict(list(SITES[provider].items())[:sites])
    faults, script = _faults(kind, slots), _script(kind, slots)
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), faults=faults) as world:
        world.patience_s = 3600.0 * 6
        app = world.app(train_minutes=30 / sites)
        per_slot_kg = 0.3 * sites * (0.19 if provider == "neso" else 0.25)
        world.scenario(
            app / "scenario.toml", provider, sites=chosen, rounds=slots // 3, slack=slots - slots // 3,
            fine_tune=max(slots // 24, 1), budget_kg=round(0.3 * slots * per_slot_kg, 3),
        )  # fmt: skip
        world.live(app, script=script)
        ended = outcome(app / "run")
        world.clock.set(START + timedelta(hours=slots + 36))
        world.command("resume", "run", cwd=app)
        settled = outcome(app / "run")
        trained = rows(app / "run", "SELECT outcome, count(*) AS n FROM attempts GROUP BY 1")
        return {
            **asdict(settled),
            "spent_when_done_kg": ended.spent_kg,
            "exact": abs(settled.spent_kg - emitted_kg(world, app / "run", provider)) <= 1e-9 * settled.spent_kg,
            "outcomes": {row["outcome"]: row["n"] for row in trained},
            "said": _warnings(said(app / "run", "warning")),
            "requests": world.servers[provider].requests,
        }


def tables(cells: list[Row]) -> str:
    """Return the cells as Markdown."""
    first = cells[0]
    lines = [
        f"{first['slots']} hourly slots on {first['sites']} sites, `slackwater run scenario.toml --app . --out run` and no other "
        "option, on loopback servers that simulate the providers. Settled: no charge is at an upper bound after "
        "`slackwater resume` a day later. Exact: the kg equal energy times the intensity that the provider had published "
        "at settlement.",
        "",
        line(
            "provider",
            "fault",
            "rounds",
            "kg, of the budget",
            "within the budget",
            "settled",
            "exact",
            "re-plans",
            "updates lost",
        ),
        under(9),
    ]
    for cell in cells:
        kept = cell["spent_when_done_kg"] <= cell["budget_kg"] and cell["spent_kg"] <= cell["budget_kg"]
        kg = f"{cell['spent_kg']:.2f} of {cell['budget_kg']:.2f}"
        yes = [_yes(kept), _yes(cell["unsettled"] == 0), _yes(cell["exact"])]
        values = (cell["provider"], KINDS[cell["kind"]], cell["rounds"], kg, *yes, cell["replans"], cell["lost"])
        lines.append(line(*values))
    return "\n".join(lines)


def _faults(kind: str, slots: int) -> list[Fault]:
    """Return one fault in the middle of the run, or all of them one after another."""
    if kind in ANSWERS:
        start = START + timedelta(hours=slots // 3)
        return [Fault(kind=kind, start=start, end=start + timedelta(hours=min(ANSWERS[kind], slots // 3)))]
    if kind != "all":
        return []
    step = timedelta(hours=slots / (len(ANSWERS) + 1))
    starts = [START + (number + 0.5) * step for number in range(len(ANSWERS))]
    return [
        Fault(kind=name, start=start, end=start + min(timedelta(hours=hours), step))
        for start, (name, hours) in zip(starts, ANSWERS.items(), strict=True)
    ]


def _script(kind: str, slots: int) -> list[Event]:
    def at(share: float) -> Any:
        return START + timedelta(hours=int(slots * share), minutes=2)

    found: list[Event] = []
    if kind in ("refused", "all"):
        since = at(0.35 if kind == "refused" else 0.85)
        found += [Event(at=since, what="close")]
        found += [Event(at=since + timedelta(hours=min(12, slots // 8)), what="open")]
    if kind in ("kill", "all"):
        found += [Event(at=at(share), what="kill", away=timedelta(minutes=3)) for share in (0.2, 0.5, 0.8)]
    if kind in ("missed", "all"):
        found += [Event(at=at(0.6), what="kill", away=timedelta(hours=5))]
    return found


def _warnings(text: str) -> list[str]:
    """Return warnings without their numbers and zones, the most frequent first, with their counts."""
    # Warnings about estimates also occur without faults.
    lines = [text for text in text.splitlines() if "are estimated, not measured" not in text]
    plain = Counter(re.sub(r"[\d.,:TZ-]*\d[\d.:TZ-]*", "N", re.sub(r", [A-Z]{2}:", ":", text)) for text in lines)
    return [f"{count} x {_short(text).replace('|', '/')}" for text, count in plain.most_common(5)]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 2]} .."


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"
