"""Commands that look ahead: plan, compare, savings, zones, init."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import get_args

import click

from slackwater.atomic import write_whole
from slackwater.charts import figures as charts
from slackwater.charts import terminal
from slackwater.cli.options import (
    ListOf,
    Time,
    chart_option,
    console,
    data_option,
    draw,
    factor_option,
    fill_option,
    json_option,
    number_or_word,
    option,
    print_json,
    say,
    seconds,
)
from slackwater.errors import ScenarioError
from slackwater.intensity.load import available_zones, load_traces
from slackwater.intensity.traces import Factor
from slackwater.planning.planner import Solver
from slackwater.planning.planner import compare as compare_plans
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Problem
from slackwater.planning.savings import study
from slackwater.scenario import SCENARIO, load_scenario
from slackwater.units import iso

scenario_argument = click.argument("scenario", type=click.Path(path_type=Path))


@click.command()
@scenario_argument
@option("--end", type=int, metavar="S", help="Fix the end time s instead of optimising it.")
@option(
    "--auto",
    is_flag=True,
    help="Choose s, the window, alpha and the aggregator by how well the schedule would train; no training run.",
)
@option("--solver", type=click.Choice(get_args(Solver)), default="exact", help="How to solve.")
@option(
    "--time-limit",
    type=float,
    default=60.0,
    metavar="SECONDS",
    callback=seconds,
    help="For problems that go to the MILP.",
)
@option("--out", type=click.Path(file_okay=False), metavar="DIR", help="Save the plan as DIR/plan.json.")
@chart_option("the schedule")
@data_option
@fill_option
@json_option
def plan(
    scenario: Path,
    end: int | None,
    auto: bool,
    solver: Solver,
    time_limit: float,
    out: str | None,
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Find the best schedule of a SCENARIO, with a proof of how good it is."""
    problem = read_problem(scenario, data, fill_hours)
    found = make_plan(problem, end=end, solver=solver, time_limit_s=time_limit, auto=auto)
    if out is not None:
        found.save(Path(out) / "plan.json")
        say(f"saved {Path(out) / 'plan.json'}")
    draw(chart, lambda: charts.schedule_chart(found))
    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.print(terminal.plan_heatmap(found, screen.width))
    screen.print(terminal.plan_summary(found))
    if found.recommended is not None:
        screen.print(terminal.recommendation(found.recommended))


@click.command()
@scenario_argument
@option(
    "--alpha",
    "alphas",
    type=ListOf(number_or_word, "value"),
    default=(),
    metavar="A,..",
    help="Fairness values to try.",
)
@option(
    "--slack", "slacks", type=ListOf(int, "whole number"), default=(), metavar="N,..", help="Slacks to try, in slots."
)
@option("--budget", "budgets", type=ListOf(float, "number"), default=(), metavar="KG,..", help="Budgets to try, in kg.")
@chart_option("the Pareto picture of budget against objective")
@data_option
@fill_option
@json_option
def compare(
    scenario: Path,
    alphas: list[float | str],
    slacks: list[int],
    budgets: list[float],
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """What if: plan a SCENARIO for every combination of fairness, slack and budget."""
    problem = read_problem(scenario, data, fill_hours, slack=max(slacks, default=None))
    points = compare_plans(problem, alphas=alphas, slacks=slacks, budgets=budgets)
    draw(chart, lambda: charts.pareto_chart(points))
    if as_json:
        print_json({"points": [asdict(point) for point in points], **_data_of(problem)})
    else:
        console().print(terminal.compare_table(points))


@click.command()
@option(
    "--zones", "names", type=ListOf(str, "zone"), default=(), metavar="Z,..", help="Zones; all there are by default."
)
@option("--hours", type=int, default=100, help="Hours of training.")
@option("--slack", type=int, default=236, help="Extra hours allowed.")
@option("--start", type=Time(), metavar="TIME", help="First hour the data is used from, like 2022-01-01T00:00Z.")
@option("--starts", type=int, default=100, help="Random starts to average over.")
@option("--seed", type=click.IntRange(0), default=0, help="Seed of the random starts.")
@chart_option("savings by zone and slack")
@chart_option("savings against the number of clients", "--chart-clients")
@data_option
@factor_option
@fill_option
@json_option
def savings(
    names: list[str],
    hours: int,
    slack: int,
    start: datetime | None,
    starts: int,
    seed: int,
    chart: Path | None,
    chart_clients: Path | None,
    data: str | None,
    factor: Factor,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """What slack time alone would save, by zone and by number of clients."""
    traces = load_traces(data or "typical", zones=names or None, start=start, factor=factor, fill_hours=fill_hours or 0)
    result = study(traces, hours=hours, slack=slack, starts=starts, seed=seed)
    draw(chart, lambda: charts.savings_heatmap(result))
    draw(chart_clients, lambda: charts.savings_by_clients(result))
    if as_json:
        print_json(result.to_dict())
    else:
        console().print(terminal.savings_table(result))


@click.command()
@data_option
@json_option
def zones(data: str | None, as_json: bool) -> None:
    """What intensity data there is."""
    found = available_zones(data or "typical")
    if as_json:
        print_json([{**asdict(zone), "first": iso(zone.first), "last": iso(zone.last)} for zone in found])
    else:
        console().print(terminal.zones_table(found))


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="scenario.toml")
@option("--force", is_flag=True, help="Overwrite a file that is there.")
def init(path: Path, force: bool) -> None:
    """Write a commented scenario to start from (PATH, default scenario.toml)."""
    if path.is_dir():
        raise ScenarioError(f"{path} is a folder. Name the file to write, like {path / 'scenario.toml'}.")
    if path.exists() and not force:
        raise ScenarioError(f"{path} is there already. Give another name, or --force to overwrite it.")
    write_whole(path, SCENARIO)
    say(f"wrote {path}; edit it, then run: slackwater plan {path}")


def read_problem(path: Path, data: str | None, fill_hours: int | None, slack: int | None = None) -> Problem:
    """Return the problem of a scenario file, with the changes of the command line."""
    scenario = load_scenario(path, data=data, fill_hours=fill_hours)
    return (scenario if slack is None else scenario.changed(slack=slack)).problem()


def _data_of(problem: Problem) -> dict[str, object]:
    return {
        "factor": problem.traces.factor,
        "synthetic": problem.traces.synthetic,
        "provenance": [asdict(provenance) for provenance in problem.traces.provenance],
    }
