"""Back-test past runs, planned on the forecasts of the time: the figures of docs/research/forecasts.md.

    python -m slackwater.lab backtests run --study carboncast --forecasts ../shared/data/forecasts
    python -m slackwater.lab backtests run --study carboncast-fi --forecasts ../shared/data/forecasts
    python -m slackwater.lab backtests run --study paper7 --data ../shared/data/ci_paper7 --factor direct
    python -m slackwater.lab backtests first-plans --study carboncast --forecasts ../shared/data/forecasts
    python -m slackwater.lab backtests first-plans --study paper7 --data ../shared/data/ci_paper7 --factor direct
    python -m slackwater.lab backtests run --study paper7-tied --data ../shared/data/ci_paper7 --factor direct --starts 12
    python -m slackwater.lab backtests table

Seven clients of 300 W, T = 10 rounds, slack 90. The budget is the cost of all seven in the first ten hours of each start.
A cell is one start with one forecast and one re-planning interval; in the studies of tied clients, also what ties them: a
server of 300 W in the first zone, which the budget pays for too, a limit and a quorum. Settings were chosen on every other start (`tuned`);
figures come from the others (`judged`), whose runs overlap with their neighbours' by some hours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np

import slackwater as sw
from slackwater.intensity.forecast.archive import read_archive
from slackwater.lab.store import RESULTS, Row, Store, sweep
from slackwater.lab.tables import line
from slackwater.replanning import backtest
from slackwater.replanning.backtest import (
    ADVERSARIAL,
    archive_actuals,
    backtest_forecaster,
    first_plan,
    past_plans_before,
    spread_starts,
)
from slackwater.replanning.run_state import Settings
from slackwater.units import iso

ROUNDS, SLACK, POWER_W = 10, 90, 300
LAG = 1  # delay of actual values in slots, as in `slackwater backtest`
ZONES = {
    "carboncast": ("BE", "DE", "DK", "ES", "IT", "NL", "SE"),
    "carboncast-fi": (
        "BE",
        "DE",
        "DK",
        "ES",
        "FI",
        "NL",
        "SE",
    ),  # FI's forecasts are twice the actual values: a worst case
    "paper7": ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"),
    "paper7-tied": ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"),
    "small": ("DE", "FR", "GB"),
    "small-tied": ("DE", "FR", "GB"),
}
TIES: dict[str, dict[str, int | None]] = {
    "free": {},
    "server": {"max_parallel": None},
    "server, at most 3": {"max_parallel": 3},
    "server, at most 3, at least 2": {"max_parallel": 3, "min_parallel": 2},
}
"""What ties the clients; all but the first have a server."""
TIED = {"paper7-tied": tuple(TIES), "small-tied": ("server, at most 3, at least 2",)}
"""By study: what ties its clients. Default: nothing."""
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "carboncast": {
        "file": ("6h", "1h", "24h", "never"),
        "blend": ("6h", "1h", "24h", "never"),
        **dict.fromkeys(("ridge", "persistence", "error-model", "oracle"), ("6h",)),
        **dict.fromkeys(ADVERSARIAL, ("24h",)),
    },
    "carboncast-fi": dict.fromkeys(("file", "blend", "ridge", "oracle"), ("6h",)),
    "paper7": dict.fromkeys(("ridge", "persistence", "error-model", "oracle", *ADVERSARIAL), ("24h",)),
    "paper7-tied": {"ridge": ("24h",), "oracle": ("24h",)},
    "small": {"persistence": ("6h", "never"), "missing": ("24h",)},
    "small-tied": {"persistence": ("24h",)},
}
"""By study and forecast: the re-planning intervals."""
PLANNED_ON = {
    "carboncast": ("persistence", "ridge", "file", "error-model", "blend"),
    "carboncast-fi": ("file", "blend"),
    "paper7": ("persistence", "ridge", "error-model"),
    "paper7-tied": (),
    "small": ("persistence",),
    "small-tied": (),
}
"""By study: the forecasts whose first plans are checked."""
PROBABILITIES = (0.6, 0.8, 0.9)
REPLAN = {"1h": 1, "6h": 6, "24h": 24, "never": None}
BACKTESTS, FIRST_PLANS = RESULTS / "backtests.jsonl", RESULTS / "first_plans.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One past run."""

    forecast: str
    replan: str
    start: str
    ties: str = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPlan:
    """One plan, followed without re-planning."""

    forecast: str
    start: str
    reserve: float
    """Required probability of staying within the budget."""


def _options(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--study", type=click.Choice(list(ZONES)), required=True),
            click.option("--data", default="typical", help="Actual intensity, if the forecast files do not have it."),
            click.option("--factor", default="lifecycle", type=click.Choice(("direct", "lifecycle"))),
            click.option("--forecasts", type=click.Path(path_type=Path), help="Folder of providers' forecasts."),
            click.option("--starts", default=50),
            click.option("--only", default=None, help="Forecasts, separated by commas. Default: all."),
        )
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Back-tests of planning with forecast errors."""


@main.command()
@_options
@click.option("--replan", default=None, help="Re-planning intervals, separated by commas. Default: all.")
@click.option("--part", type=click.Choice(("tuned", "judged")), default=None, help="Only every other start.")
@click.option("--results", type=click.Path(path_type=Path), default=BACKTESTS)
def run(
    study: str, data: str, factor: Any, forecasts: Path | None, starts: int, only: str | None, replan: str | None,
    part: str | None, results: Path,
) -> None:  # fmt: skip
    """Run every cell that is not stored yet."""
    truth, forecaster = _actuals(study, data, factor, forecasts)
    begins = spread_starts(truth, ROUNDS + SLACK, starts)
    number_of = {iso(begin): number for number, begin in enumerate(begins)}
    cells = [
        Cell(forecast=name, replan=way, start=start, ties=ties)
        for ties in TIED.get(study, ("free",))
        for name, way in _ways(study, only, replan)
        for start, number in number_of.items()
        if part in (None, _part(number))
    ]
    best = lru_cache(maxsize=None)(lambda number, ties: sw.plan(_problem(truth, begins[number], ties), planner="paper"))

    def measure(cell: Cell) -> Row:
        number = number_of[cell.start]
        found = backtest(
            _problem(truth, begins[number], cell.ties), truth, forecaster(cell.forecast),
            Settings(replan_slots=REPLAN[cell.replan]), oracle=best(number, cell.ties),
        )  # fmt: skip
        return {"part": _part(number), **found.row(), "forecast": cell.forecast, "version": sw.__version__}

    _sweep(cells, measure, Store(results, Cell, {"study": study}))


@main.command("first-plans")
@_options
@click.option("--results", type=click.Path(path_type=Path), default=FIRST_PLANS)
def first_plans(
    study: str, data: str, factor: Any, forecasts: Path | None, starts: int, only: str | None, results: Path
) -> None:
    """Measure how often the first plan, without re-planning, stays within the budget, for each required probability."""
    truth, forecaster = _actuals(study, data, factor, forecasts)
    begins = {iso(begin): begin for begin in spread_starts(truth, ROUNDS + SLACK, starts)}
    cells = [
        FirstPlan(forecast=name, start=start, reserve=probability)
        for name in PLANNED_ON[study]
        if not only or name in only.split(",")
        for start in begins
        for probability in PROBABILITIES
    ]

    @lru_cache(maxsize=1)  # the probabilities of a start are adjacent
    def replayed(name: str, start: str) -> tuple[Any, float]:
        began = time.perf_counter()
        return past_plans_before(_problem(truth, begins[start]), truth, forecaster(name)), time.perf_counter() - began

    def measure(cell: FirstPlan) -> Row:
        problem, (past, seconds) = _problem(truth, begins[cell.start]), replayed(cell.forecast, cell.start)
        planned, emitted = first_plan(
            problem, truth, forecaster(cell.forecast), Settings(reserve=cell.reserve), replayed=past
        )
        replays = 0 if past is None else past.excess.shape[1]
        return {"budget_kg": problem.budget_kg, "planned_kg": planned, "first_plan_kg": emitted, "replays": replays,
                "replay_s": seconds, "version": sw.__version__}  # fmt: skip

    _sweep(cells, measure, Store(results, FirstPlan, {"study": study}))


def _sweep(cells: list[Any], measure: Any, store: Store[Any]) -> None:
    todo = [cell for cell in cells if store.get(cell) is None]
    with click.progressbar(sweep(todo, measure, store), length=len(todo), label="cells", show_pos=True) as bar:
        for _ in bar:
            pass


@main.command("first-plans-table")
@click.option("--results", type=click.Path(path_type=Path), default=FIRST_PLANS)
def first_plans_table(results: Path) -> None:
    """Return the share of first plans within the budget, with its binomial standard error, by required probability."""
    rows = Store(results, FirstPlan, {"study": ""}).rows()
    if not rows:
        raise click.ClickException(f"There are no first plans in {results} yet.")
    click.echo(line("zones", "forecast", "plans", *(f"P = {p}, %" for p in PROBABILITIES), "replay, s"))
    click.echo("|---|---|---:|" + "---:|" * (len(PROBABILITIES) + 1))
    for study, name in dict.fromkeys((row["study"], row["forecast"]) for row in rows):
        mine = [row for row in rows if (row["study"], row["forecast"]) == (study, name)]
        cells = []
        for probability in PROBABILITIES:
            kept = [row["first_plan_kg"] <= row["budget_kg"] for row in mine if row["reserve"] == probability]
            share = float(np.mean(kept))
            planned = np.mean([row["planned_kg"] / row["budget_kg"] for row in mine if row["reserve"] == probability])
            error = (share * (1 - share) / len(kept)) ** 0.5
            cells.append(f"{100 * share:.0f} ± {100 * error:.0f} ({100 * planned:.0f})")
        seconds = float(np.median([row["replay_s"] for row in mine]))
        click.echo(line(study, name, len(kept), *cells, f"{seconds:.1f}"))


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=BACKTESTS)
def table(results: Path) -> None:
    """Print means over the stored judged starts, by forecast and re-planning interval."""
    rows = Store(results, Cell, {"study": ""}).rows()
    for study in ZONES:
        mine = [row for row in rows if row["study"] == study]
        if not mine:
            continue
        over = "all" if study in TIED else "the judged"
        click.echo(f"{study}, {len(mine)} runs; means over {over} starts\n")
        click.echo(
            "| forecast | re-plan | runs | objective, % | least, % | slots, % | first plan, % | realised, % | unused, % | moved | dropped |"
        )
        click.echo("|---|---|" + "---:|" * 9)
        for ties in TIED.get(study, ("free",)):
            for name, way in _ways(study, None, None):
                cell = (name, way, ties)
                shown = [row for row in mine if (row["forecast"], row["replan"], row.get("ties", "free")) == cell]
                if study not in TIED:  # nothing was chosen on tied clients
                    shown = [row for row in shown if row["part"] == "judged"]
                if shown:
                    click.echo(line(f"{name}, {ties}" if study in TIED else name, way, *_figures(shown)))
        click.echo("")
    if not rows:
        raise click.ClickException(f"There are no back-tests in {results} yet.")
    within = [row for row in rows if not row["breaches"]]
    click.echo(
        f"{len(rows)} runs; over the budget: {sum(row['overspend_kg'] > 0 for row in rows)}, of them with every slot within "
        f"its bound: {sum(row['overspend_kg'] > 0 for row in within)}; slots above their bound: "
        f"{sum(row['breaches'] for row in rows):.0f}, in {len(rows) - len(within)} runs; largest overspend: "
        f"{max(100 * row['overspend_kg'] / row['budget_kg'] for row in rows):.2f} % of the budget."
    )


def _part(number: int) -> str:
    return "judged" if number % 2 else "tuned"


def _figures(rows: list[dict[str, Any]]) -> Iterator[str]:
    def mean(values: list[float]) -> str:
        return f"{100 * float(np.mean(values)):.1f}"

    yield str(len(rows))
    yield mean([row["share"] for row in rows])
    yield f"{100 * min(row['share'] for row in rows):.1f}"
    yield mean([row["slots"] / row["oracle_slots"] for row in rows])
    yield mean([row["planned_kg"] / row["budget_kg"] for row in rows])
    yield mean([row["realised_kg"] / row["budget_kg"] for row in rows])
    yield mean([row["unused"] for row in rows])
    yield str(sum(row["window"] == "moved" for row in rows))
    yield str(sum(row["window"] in ("shortened", "dropped") for row in rows))


def _ways(study: str, only: str | None, replan: str | None) -> list[tuple[str, str]]:
    names = None if only is None else only.split(",")
    some = None if replan is None else replan.split(",")
    every = [(name, way) for name, ways in WAYS[study].items() for way in ways]
    return [(name, way) for name, way in every if (not names or name in names) and (not some or way in some)]


def _actuals(study: str, data: str, factor: Any, forecasts: Path | None) -> tuple[sw.Traces, Any]:
    """Return the actual intensity, and a function from a name to its forecaster; one instance each, because some are stateful."""
    zones = list(ZONES[study])
    archive = None if forecasts is None else read_archive(forecasts, zones)
    truth = sw.load_traces(data, zones=zones, factor=factor) if archive is None else archive_actuals(archive, zones)
    return truth, lru_cache(maxsize=None)(lambda name: backtest_forecaster(name, truth, archive, lag=LAG))


def _problem(truth: sw.Traces, start: Any, ties: str = "free") -> sw.Problem:
    clients = [sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in truth.zones]
    problem = sw.Problem(clients=clients, traces=truth, start=start, rounds=ROUNDS, slack=SLACK, budget_kg=1.0)
    if TIES[ties]:
        problem = problem.with_settings(server=sw.Server(zone=truth.zones[0], power_w=POWER_W), **TIES[ties])
    costs = problem.costs
    server_kg = 0.0 if costs.server_kg is None else float(costs.server_kg[:ROUNDS].sum())
    return problem.with_settings(budget_kg=float(costs.dense()[:, :ROUNDS].sum()) + server_kg)
