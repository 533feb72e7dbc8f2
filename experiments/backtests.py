"""Runs of the past, planned on the forecasts of their time: the figures of docs/replanning.md.

    python experiments/backtests.py run --study carboncast --forecasts ../shared/data/forecasts
    python experiments/backtests.py run --study carboncast-fi --forecasts ../shared/data/forecasts
    python experiments/backtests.py run --study paper7 --data ../shared/data/ci_paper7 --factor direct
    python experiments/backtests.py first-plans --study carboncast --forecasts ../shared/data/forecasts
    python experiments/backtests.py first-plans --study paper7 --data ../shared/data/ci_paper7 --factor direct
    python experiments/backtests.py table

Seven clients of 300 W, T = 10 rounds, slack 90, and at every start the budget of all seven for its first ten hours. Each
cell, one start with one forecast and one way of re-planning, is stored when it is done, so that a sweep goes on where it
stopped. Settings were chosen on every other start (`tuned`); figures are of the others (`judged`), whose runs overlap
with their neighbours' by some hours.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

import slackwater as sw
from slackwater.forecasting.files import ForecastArchive, read_archive
from slackwater.replanning import Settings, backtest, replay_before, spread_starts
from slackwater.replanning.adversarial import ADVERSARIAL
from slackwater.replanning.backtest import first_plan
from slackwater.replanning.choices import archive_actuals, backtest_forecaster
from slackwater.units import iso

ROUNDS, SLACK, POWER_W = 10, 90, 300
ZONES = {
    "carboncast": ("BE", "DE", "DK", "ES", "IT", "NL", "SE"),
    "carboncast-fi": ("BE", "DE", "DK", "ES", "FI", "NL", "SE"),  # FI's forecasts are at twice the actual: a worst case
    "paper7": ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"),
    "small": ("DE", "FR", "GB"),
}
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "carboncast": {
        "file": ("6h", "1h", "24h", "never"),
        "blend": ("6h", "1h", "24h", "never"),
        **dict.fromkeys(("ridge", "persistence", "error-model", "oracle"), ("6h",)),
        **dict.fromkeys(ADVERSARIAL, ("24h",)),
    },
    "carboncast-fi": dict.fromkeys(("file", "blend", "ridge", "oracle"), ("6h",)),
    "paper7": dict.fromkeys(("ridge", "persistence", "error-model", "oracle", *ADVERSARIAL), ("24h",)),
    "small": {"persistence": ("6h", "never"), "missing": ("24h",)},
}
"""By study and forecast: how often is planned anew."""
PLANNED_ON = {
    "carboncast": ("persistence", "ridge", "file", "error-model", "blend"),
    "carboncast-fi": ("file", "blend"),
    "paper7": ("persistence", "ridge", "error-model"),
    "small": ("persistence",),
}
"""By study: the forecasts whose first plans are looked at."""
PROBABILITIES = (0.6, 0.8, 0.9)
FIRST_PLANS = "first_plans"
REPLAN = {"1h": 1, "6h": 6, "24h": 24, "never": None}
HERE = Path(__file__).parent
RESULTS = HERE / "results"


@click.group()
def main() -> None:
    """Back-tests of planning under error."""


@main.command()
@click.option("--study", type=click.Choice(list(ZONES)), required=True)
@click.option("--data", default="typical", help="Actual intensity, where it is not in the forecast files.")
@click.option("--factor", default="lifecycle", type=click.Choice(("direct", "lifecycle")))
@click.option("--forecasts", type=click.Path(path_type=Path), default=None, help="Folder of what providers issued.")
@click.option("--starts", default=50)
@click.option("--only", default=None, help="Some forecasts, by comma.")
@click.option("--replan", default=None, help="Some ways of re-planning, by comma.")
@click.option("--part", type=click.Choice(("tuned", "judged")), default=None, help="Only every other start.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def run(
    study: str,
    data: str,
    factor: Any,
    forecasts: Path | None,
    starts: int,
    only: str | None,
    replan: str | None,
    part: str | None,
    results: Path,
) -> None:
    """Run every cell that is not stored yet."""
    truth, archive = _actuals(study, data, factor, forecasts)
    begins = spread_starts(truth, ROUNDS + SLACK, starts)
    stored = _read(results, study)
    done = {(row["forecast"], row["replan"], row["start"]) for row in stored}
    cells = [
        (number, name, way)
        for name, way in _ways(study, only, replan)
        for number in range(starts)
        if (name, way, iso(begins[number])) not in done and part in (None, _part(number))
    ]
    best: dict[int, sw.Plan] = {}
    with click.progressbar(cells, label=study, show_pos=True) as bar, _writer(results, study, stored) as write:
        for number, name, way in bar:
            problem = _problem(truth, begins[number])
            if number not in best:
                best[number] = sw.plan(problem)
            one, how = _forecaster(name, truth, archive), Settings(replan_slots=REPLAN[way])
            found = backtest(problem, truth, one, how, oracle=best[number])
            write(
                {
                    "study": study,
                    "part": _part(number),
                    "replan": way,
                    **found.row(),
                    "forecast": name,
                    "version": sw.__version__,
                }
            )


@main.command("first-plans")
@click.option("--study", type=click.Choice(list(ZONES)), required=True)
@click.option("--data", default="typical", help="Actual intensity, where it is not in the forecast files.")
@click.option("--factor", default="lifecycle", type=click.Choice(("direct", "lifecycle")))
@click.option("--forecasts", type=click.Path(path_type=Path), default=None, help="Folder of what providers issued.")
@click.option("--starts", default=50)
@click.option("--only", default=None, help="Some forecasts, by comma.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def first_plans(
    study: str, data: str, factor: Any, forecasts: Path | None, starts: int, only: str | None, results: Path
) -> None:
    """How often the first plan, followed to the letter, keeps the budget, beside the probability that was asked for."""
    truth, archive = _actuals(study, data, factor, forecasts)
    begins = spread_starts(truth, ROUNDS + SLACK, starts)
    stored = _read(results, FIRST_PLANS)
    done = {(row["study"], row["forecast"], row["start"]) for row in stored}
    cells = [
        (name, begin)
        for name in PLANNED_ON[study]
        for begin in begins
        if (not only or name in only.split(",")) and (study, name, iso(begin)) not in done
    ]
    with click.progressbar(cells, label=study, show_pos=True) as bar, _writer(results, FIRST_PLANS, stored) as write:
        for name, begin in bar:
            problem, one = _problem(truth, begin), _forecaster(name, truth, archive)
            began = time.perf_counter()
            replayed = replay_before(problem, truth, one)
            seconds = time.perf_counter() - began
            rows = []
            for probability in PROBABILITIES:
                planned, emitted = first_plan(problem, truth, one, Settings(reserve=probability), replayed=replayed)
                rows.append(
                    {
                        "study": study,
                        "forecast": name,
                        "start": iso(begin),
                        "reserve": probability,
                        "budget_kg": problem.budget_kg,
                        "planned_kg": planned,
                        "first_plan_kg": emitted,
                        "replays": 0 if replayed is None else replayed.excess.shape[1],
                        "replay_s": seconds,
                        "version": sw.__version__,
                    }
                )
            for row in rows:
                write(row)


@main.command("first-plans-table")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def first_plans_table(results: Path) -> None:
    """Share of first plans within the budget, with its binomial standard error, by the probability asked for."""
    rows = [_numbers(row) for row in _read(results, FIRST_PLANS)]
    if not rows:
        raise click.ClickException(f"There are no first plans in {results} yet.")
    click.echo("| zones | forecast | plans | " + " | ".join(f"P = {p}, %" for p in PROBABILITIES) + " | replay, s |")
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
        click.echo(f"| {study} | {name} | {len(kept)} | " + " | ".join(cells) + f" | {seconds:.1f} |")


@main.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS)
def table(results: Path) -> None:
    """Means over the judged starts that are stored, by forecast and way of re-planning."""
    rows: list[dict[str, Any]] = []
    for study in ZONES:
        mine = [_numbers(row) for row in _read(results, study)]
        if not mine:
            continue
        rows += mine
        click.echo(f"{study}, {len(mine)} runs; means over the judged starts\n")
        click.echo(
            "| forecast | re-plan | runs | objective, % | least, % | slots, % | first plan, % | realised, % | unused, % | moved | dropped |"
        )
        click.echo("|---|---|" + "---:|" * 9)
        for name, way in _ways(study, None, None):
            judged = [row for row in mine if (row["forecast"], row["replan"], row["part"]) == (name, way, "judged")]
            if judged:
                click.echo(f"| {name} | {way} | " + " | ".join(_figures(judged)) + " |")
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


def _actuals(study: str, data: str, factor: Any, forecasts: Path | None) -> tuple[sw.Traces, ForecastArchive | None]:
    zones = list(ZONES[study])
    archive = None if forecasts is None else read_archive(forecasts, zones)
    truth = sw.load_traces(data, zones=zones, factor=factor) if archive is None else archive_actuals(archive, zones)
    return truth, archive


_MADE: dict[tuple[str, int], Any] = {}


def _forecaster(name: str, truth: sw.Traces, archive: ForecastArchive | None) -> Any:
    """One of each for all starts: some keep what they learnt."""
    key = (name, id(truth))
    if key not in _MADE:
        _MADE[key] = backtest_forecaster(name, truth, archive)
    return _MADE[key]


def _problem(truth: sw.Traces, start: Any) -> sw.Problem:
    clients = [sw.Client(name=zone, zone=zone, power_w=POWER_W) for zone in truth.zones]
    problem = sw.Problem(clients=clients, traces=truth, start=start, rounds=ROUNDS, slack=SLACK, budget_kg=1.0)
    return problem.with_settings(budget_kg=float(problem.costs.dense()[:, :ROUNDS].sum()))


def _file(results: Path, study: str) -> Path:
    return results / f"backtest_{study}.csv"


def _read(results: Path, study: str) -> list[dict[str, str]]:
    """What is stored; a line that was cut off when a sweep was stopped is left out."""
    path = _file(results, study)
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["version"]]


@contextmanager
def _writer(results: Path, study: str, stored: list[dict[str, str]]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Adds a line for each cell when it is done; what is there stays."""
    results.mkdir(parents=True, exist_ok=True)
    with _file(results, study).open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None

        def write(row: dict[str, Any]) -> None:
            nonlocal writer
            if writer is None:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()

        for row in stored:
            write(row)
        yield write


def _numbers(row: dict[str, str]) -> dict[str, Any]:
    text = ("study", "part", "replan", "start", "forecast", "window", "version")
    return {key: value if key in text else float(value or "nan") for key, value in row.items()}


if __name__ == "__main__":
    main()
