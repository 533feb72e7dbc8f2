"""The backtest command: test planning on forecasts with past data."""

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
    out_option,
    print_json,
    say,
)
from slackwater.engines.start import period
from slackwater.errors import DataError, InfeasibleError, ScenarioError
from slackwater.intensity.forecast.archive import ForecastArchive, read_archive
from slackwater.intensity.traces import Traces
from slackwater.planning.goals import within_budget
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
    past_plans_before,
    spread_starts,
    summarise,
)
from slackwater.replanning.run_state import Settings
from slackwater.scenario import Scenario, load_scenario
from slackwater.units import iso

_PAST = timedelta(days=56)
"""Period before the first start for which providers are asked for actual values."""


@click.command("backtest")
@click.argument("scenario", type=click.Path(path_type=Path))
@option(
    "--start",
    type=Time(),
    metavar="TIME",
    help="First start, such as 2023-07-12T00:00Z. Default: 14 days after the start of the data.",
)
@option(
    "--repeat",
    type=click.IntRange(1),
    default=10,
    help="Number of starts, spread evenly from the first to the last possible one.",
)
@option(
    "--forecast",
    "forecasts",
    type=ListOf(str, "forecast"),
    default="persistence",
    metavar="NAME,..",
    help="Forecasters: persistence, same-hour-mean, ridge, file, blend, error-model, oracle; or adversarial ones: "
    f"{', '.join(ADVERSARIAL)}.",
)
@option(
    "--forecasts",
    "archive",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="CSV file, or folder of CSV files, with forecasts that a provider issued, for 'file' and 'blend'.",
)
@option(
    "--replan",
    "replans",
    type=ListOf(period, "period like 24h, 6h or 1h, or never"),
    default="6h",
    metavar="24h|6h|1h|never,..",
    help="How often to re-plan.",
)
@option(
    "--reserve",
    type=float,
    default=Settings().reserve,
    metavar="P",
    help="Probability with which a plan should keep the budget; 0 keeps no reserve.",
)
@option(
    "--bound",
    type=float,
    default=Settings().margin,
    metavar="FACTOR",
    help="Factor of the upper bound of intensity over the largest rise and level of the last four weeks.",
)
@option(
    "--lag",
    type=click.IntRange(0),
    default=1,
    metavar="SLOTS",
    help="Delay after the end of a slot until its actual intensity is known, in slots.",
)
@option(
    "--budget-rounds",
    type=click.IntRange(1),
    metavar="N",
    help="Set the budget, at every start, to the emissions of all clients in the first N slots. Default: budget_kg.",
)
@option(
    "--actuals",
    type=click.Choice(["data", "forecasts"]),
    default="data",
    help="Source of the actual values: the scenario's data, or the forecast files. Some providers count differently.",
)
@out_option("Save backtests.csv and summary.json in this folder.")
@chart_option("planned and actual kg CO2e, objective and unused budget")
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
    """Test forecasts and re-planning on past periods of a SCENARIO.

    Each run plans on the forecasts of its time and settles with the actual values. The table compares the runs with
    perfect foresight.
    """
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
                past = past_plans_before(problem, truth, one, lag=lag) if reserve else None
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
    """Return the plan with perfect foresight; raise InfeasibleError, with the start, if there is none."""
    try:
        return plan(problem, planner="paper")
    except InfeasibleError as error:
        raise InfeasibleError(
            f"The run from {iso(problem.first_slot)} is infeasible even with perfect foresight: {error}",
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
        raise DataError(f"{source} does not exist. Name forecasts with --forecasts FOLDER.")
    return read_archive(source, scenario.zones, factor=scenario.data.factor)


def _truth(scenario: Scenario, archive: ForecastArchive | None, actuals: str, start: datetime | None) -> Traces:
    """Return all actual values of the scenario's zones; forecasters learn from those before a run."""
    if actuals == "forecasts":
        if archive is None:
            raise ScenarioError("--actuals forecasts needs forecast files. Name them with --forecasts FOLDER.")
        return archive_actuals(archive, scenario.zones)
    if not scenario.has_providers:
        return scenario.actuals()
    if start is None:
        raise ScenarioError("Providers need a period. Give --start TIME, or use files with --data FOLDER.")
    return scenario.actuals(start - _PAST, time_source.now())


def _problem(scenario: Scenario, truth: Traces, start: datetime, budget_rounds: int | None) -> Problem:
    moved = scenario.model_copy(update={"start": start, "deadline": None, "slack": scenario.slots_of_slack})
    problem = within_budget(moved.problem(truth))
    if budget_rounds is None:
        return problem
    if budget_rounds > problem.horizon:
        raise ScenarioError(f"--budget-rounds {budget_rounds} is longer than the horizon of {problem.horizon} slots.")
    costs = problem.costs
    first = costs.dense()[:, :budget_rounds].sum() + costs.idle_kg()[:budget_rounds].sum()
    if costs.server_kg is not None:
        first += costs.server_kg[:budget_rounds].sum()
    if costs.sleeps.any():  # all of them are up, after one start each
        intensity = costs.intensity[costs.row]
        first += (costs.up_kwh @ intensity[:, :budget_rounds]).sum() + costs.startup_kwh @ intensity[:, 0]
    return problem.with_settings(budget_kg=float(first))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar with the remaining time, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("back-tests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
