"""The back-test command: what planning on forecasts would have come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slackwater import time_source
from slackwater.atomic import write_whole
from slackwater.charts.result_charts import backtest_chart, backtest_table
from slackwater.cli.options import (
    ListOf,
    Time,
    chart_option,
    console,
    data_option,
    draw,
    fill_option,
    json_option,
    option,
    print_json,
    say,
)
from slackwater.engines.start import period
from slackwater.errors import DataError, InfeasibleError, ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, read_archive
from slackwater.intensity.traces import Traces
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem
from slackwater.replanning import backtest
from slackwater.replanning.backtest import (
    ADVERSARIAL,
    Backtest,
    archive_actuals,
    as_csv,
    backtest_forecaster,
    replay_before,
    spread_starts,
    summarise,
)
from slackwater.replanning.run_state import Settings
from slackwater.scenario import Scenario, load_scenario
from slackwater.units import iso

_PAST = timedelta(days=56)
"""Of actuals before the first start, where providers are asked."""


@click.command("backtest")
@click.argument("scenario", type=click.Path(path_type=Path))
@option(
    "--start",
    type=Time(),
    metavar="TIME",
    help="First start, like 2023-07-12T00:00Z; 14 days into the data by default.",
)
@option(
    "--repeat", type=click.IntRange(1), default=10, help="Starts, spread evenly from the first to the last that fits."
)
@option(
    "--forecast",
    "forecasts",
    type=ListOf(str, "forecast"),
    default="persistence",
    metavar="NAME,..",
    help="persistence, same-hour-mean, ridge, file, blend, error-model, oracle; or as wrong as can be: "
    f"{', '.join(ADVERSARIAL)}.",
)
@option(
    "--forecasts",
    "archive",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Forecasts that a provider issued, for 'file' and 'blend': a CSV file or a folder of them.",
)
@option(
    "--replan",
    "replans",
    type=ListOf(period, "period like 24h, 6h or 1h, or never"),
    default="6h",
    metavar="24h|6h|1h|never,..",
    help="How often what is left is planned anew.",
)
@option(
    "--reserve",
    type=float,
    default=Settings().reserve,
    metavar="P",
    help="Probability with which a plan is meant to keep the budget (0 keeps nothing back).",
)
@option(
    "--bound",
    type=float,
    default=Settings().margin,
    metavar="FACTOR",
    help="How far the upper bound of intensity lies beyond the largest rise and level of the last four weeks.",
)
@option(
    "--lag",
    type=click.IntRange(0),
    default=1,
    metavar="SLOTS",
    help="Slots after its end until a slot's actual is known.",
)
@option(
    "--budget-rounds",
    type=click.IntRange(1),
    metavar="N",
    help="At every start, budget what all clients emit in its first N slots (instead of budget_kg).",
)
@option(
    "--actuals",
    type=click.Choice(["data", "forecasts"]),
    default="data",
    help="Settle with the scenario's data, or with the actuals in the forecast files (some providers count differently).",
)
@option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Save backtests.csv and summary.json here.",
)
@chart_option("planned and realised kg, objective and unused budget")
@data_option
@fill_option
@json_option
def command(
    scenario: Path,
    start: datetime | None,
    repeat: int,
    forecasts: list[str],
    archive: Path | None,
    replans: list[int | None],
    reserve: float,
    bound: float,
    lag: int,
    budget_rounds: int | None,
    actuals: str,
    out: Path | None,
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Run a SCENARIO in the past: plan on the forecasts of the time, settle with what came, and compare with perfect foresight."""
    asked = load_scenario(scenario, data=data, fill_hours=fill_hours)
    issued = _archive(asked, archive) if archive is not None else None
    truth = _truth(asked, issued, actuals, start)
    ways = [_settings(hours, truth.slot_minutes, reserve, bound) for hours in replans]
    chosen = {name: backtest_forecaster(name, truth, issued, lag=lag) for name in forecasts}
    slots = asked.horizon
    starts = spread_starts(truth, slots, repeat, first=start)
    runs: list[Backtest] = []
    with _bar(len(starts) * len(chosen) * len(ways)) as advance:
        for begin in starts:
            problem = _problem(asked, truth, begin, budget_rounds)
            best = _oracle(problem)
            for name, one in chosen.items():
                past = replay_before(problem, truth, one, lag=lag) if reserve else None
                for way in ways:
                    runs.append(backtest(problem, truth, one, way, lag=lag, oracle=best, label=name, replayed=past))
                    advance()
    runs.sort(key=lambda run: forecasts.index(run.forecast))
    stated = {"margin": bound, "reserve": reserve, "lag_slots": lag, "lookback_days": ways[0].lookback_days}
    _show(runs, truth, stated, out, chart, as_json)


def _show(
    runs: list[Backtest], truth: Traces, stated: dict[str, float], out: Path | None, chart: Path | None, as_json: bool
) -> None:
    summaries = summarise(runs)
    data = {
        "settings": stated,
        "summary": [one.to_dict() for one in summaries],
        "runs": [{**run.row(), "messages": list(run.messages)} for run in runs],
        "synthetic": truth.synthetic,
        "sources": {p.zone: p.source for p in truth.provenance},
    }
    if out is not None:
        write_whole(out / "backtests.csv", as_csv(runs))
        write_whole(
            out / "summary.json", json.dumps({key: data[key] for key in ("settings", "summary")}, indent=1) + "\n"
        )
        say(f"saved {out / 'backtests.csv'} and {out / 'summary.json'}")
    draw(chart, lambda: backtest_chart(runs, synthetic=truth.synthetic, slot_minutes=truth.slot_minutes))
    if as_json:
        print_json(data)
    else:
        console().print(backtest_table(summaries, synthetic=truth.synthetic, slot_minutes=truth.slot_minutes))


def _oracle(problem: Problem) -> Plan:
    """Return the plan with perfect foresight; if there is none, the error names the start."""
    try:
        return plan(problem)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"Even with perfect foresight the run from {iso(problem.first_slot)} cannot be done: {error}",
            least_budget_kg=error.least_budget_kg,
            end=error.end,
        ) from None


def _settings(hours: int | None, slot_minutes: int, reserve: float, bound: float) -> Settings:
    if hours is not None and (hours * 60) % slot_minutes:
        raise ScenarioError(f"--replan {hours}h is not a whole number of slots of {slot_minutes} minutes.")
    slots = None if hours is None else hours * 60 // slot_minutes
    return Settings(replan_slots=slots, reserve=reserve, margin=bound)


def _archive(scenario: Scenario, source: Path) -> ForecastArchive:
    if not source.exists():
        raise DataError(f"There are no forecasts at {source}.")
    return read_archive(source, scenario.zones, factor=scenario.data.factor)


def _truth(scenario: Scenario, archive: ForecastArchive | None, actuals: str, start: datetime | None) -> Traces:
    """Return all actuals of the scenario's zones; forecasts learn from those before a run."""
    if actuals == "forecasts":
        if archive is None:
            raise ScenarioError("--actuals forecasts needs the files that have them: give --forecasts FOLDER.")
        return archive_actuals(archive, scenario.zones)
    if not scenario.has_providers:
        return scenario.actuals()
    if start is None:
        raise ScenarioError("Providers are asked for a period: give --start TIME, or --data FOLDER for files.")
    return scenario.actuals(start - _PAST, time_source.now())


def _problem(scenario: Scenario, truth: Traces, start: datetime, budget_rounds: int | None) -> Problem:
    if scenario.server is not None or scenario.max_parallel is not None:
        raise ScenarioError(
            "A back-test does not know max_parallel and [server] yet: what ties clients together can only be planned "
            "from the start. Take them out of the scenario."
        )
    moved = scenario.model_copy(update={"start": start, "deadline": None, "slack": scenario.horizon - scenario.rounds})
    problem = moved.problem(truth)
    if budget_rounds is None:
        return problem
    if budget_rounds > problem.horizon:
        raise ScenarioError(f"--budget-rounds {budget_rounds} is longer than the horizon of {problem.horizon} slots.")
    costs = problem.costs
    first = costs.dense()[:, :budget_rounds].sum() + costs.idle_kg()[:budget_rounds].sum()
    return problem.with_settings(budget_kg=float(first))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Show a bar with the time that is left, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("back-tests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
