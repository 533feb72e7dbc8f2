"""Commands that plan: plan, compare, savings, zones, init."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import click

from slackwater.atomic import write_whole
from slackwater.charts import figures as charts
from slackwater.charts import terminal
from slackwater.cli.options import (
    Alpha,
    ListOf,
    Time,
    chart_option,
    console,
    data_option,
    draw,
    factor_option,
    fill_option,
    json_option,
    no_run_in,
    number_or_word,
    option,
    out_option,
    print_json,
    say,
    seconds,
    waiting,
)
from slackwater.errors import ScenarioError
from slackwater.intensity.load import available_zones, load_traces
from slackwater.intensity.traces import Factor
from slackwater.planning.advice import advise as make_advice
from slackwater.planning.planner import DEFAULT_GAP, Done, Solver
from slackwater.planning.planner import compare as compare_plans
from slackwater.planning.planner import plan as make_plan
from slackwater.planning.problem import Planner, Problem
from slackwater.planning.savings import study
from slackwater.scenario import SCENARIO, Scenario, load_scenario, plausible_time
from slackwater.units import iso

scenario_argument = click.argument("scenario", type=click.Path(path_type=Path))


_planner_option = option(
    "--planner",
    type=click.Choice(get_args(Planner)),
    help="auto: choose the settings that the scenario leaves open, by how well the plan should train. paper: maximise "
    "the paper's objective. Default: the scenario's.",
)
_paper_option = option(
    "--paper", "planner", flag_value="paper", help="Plan exactly as the paper does, like --planner paper."
)


@click.command()
@scenario_argument
@option("--end", type=int, metavar="S", help="End time s, in slots. Default: the best one.")
@_planner_option
@_paper_option
@option("--details", is_flag=True, help="Also show the optimiser's terms, the metrics and a table of the clients.")
@option("--solver", type=click.Choice(get_args(Solver)), default="exact", help="Solver to use.")
@option(
    "--time-limit",
    type=float,
    default=60.0,
    metavar="SECONDS",
    callback=seconds,
    help="Time limit where clients are tied together, in seconds. The best plan so far is kept, with its gap.",
)
@option(
    "--gap",
    type=click.FloatRange(0),
    default=DEFAULT_GAP,
    metavar="SHARE",
    help="Gap at which planning of tied clients may end; 0.001 is 0.1 %, 0 asks for a proof of the optimum.",
)
@option("--budget", "budget_kg", type=float, metavar="KG", help="Budget, in kg CO2e. Default: the scenario's.")
@option("--slack", type=click.IntRange(0), metavar="SLOTS", help="Slack, in slots. Default: the scenario's.")
@option(
    "--alpha",
    type=Alpha(),
    metavar="ALPHA",
    help="Fairness: a number above 0 and at most 1, log or max-min. Default: the scenario's.",
)
@option("--factor", type=click.Choice(get_args(Factor)), help="Emission factor. Default: the scenario's.")
@out_option("Save the plan as DIR/plan.json. It replaces an older plan; a folder that holds a run is an error.")
@chart_option("the schedule")
@data_option
@fill_option
@json_option
def plan(
    scenario: Path,
    end: int | None,
    planner: Planner | None,
    details: bool,
    solver: Solver,
    time_limit: float,
    gap: float,
    budget_kg: float | None,
    slack: int | None,
    alpha: float | str | None,
    factor: Factor | None,
    out: Path | None,
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Find the best schedule for a SCENARIO, with a proof.

    The proof is an upper bound: it says how far the schedule can be from the best one.
    """
    no_run_in(out)
    problem = read_problem(scenario, data, fill_hours, slack, budget_kg=budget_kg, alpha=alpha, factor=factor)
    with waiting("planning") as told:
        found = make_plan(
            problem, end=end, solver=solver, gap=gap, time_limit_s=time_limit, planner=planner,
            progress=lambda done: told(f"planning for {done.seconds:.0f} s: {_so_far(done)}; Ctrl-C takes the best so far"),
        )  # fmt: skip
    if out is not None:
        found.save(out / "plan.json")
        say(f"saved {out / 'plan.json'}")
    draw(chart, lambda: charts.schedule_chart(found))
    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.print(terminal.plan_heatmap(found, screen.width))
    screen.print(terminal.plan_answer(found))
    if not details:
        return
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
    help="Values of alpha (fairness) to try. Default: the scenario's.",
)
@option(
    "--slack",
    "slacks",
    type=ListOf(int, "whole number"),
    default=(),
    metavar="N,..",
    help="Slacks to try, in slots. Default: the scenario's.",
)
@option(
    "--budget",
    "budgets",
    type=ListOf(float, "number"),
    default=(),
    metavar="KG,..",
    help="Budgets to try, in kg CO2e. Default: the scenario's.",
)
@_planner_option
@_paper_option
@chart_option("saved kg CO2e by budget")
@data_option
@fill_option
@json_option
def compare(
    scenario: Path,
    alphas: list[float | str],
    slacks: list[int],
    budgets: list[float],
    planner: Planner | None,
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Plan a SCENARIO for several alphas, slacks and budgets.

    The table has one line for every combination, planned as `slackwater plan` does. Ctrl-C shows those that are done.
    """
    problem = read_problem(scenario, data, fill_hours, slack=max(slacks, default=None))
    with waiting("planning every combination") as told:
        points = compare_plans(
            problem, alphas=alphas, slacks=slacks, budgets=budgets, planner=planner,
            progress=lambda done, of: told(f"planned {done} of {of} combinations; Ctrl-C shows those that are done"),
        )  # fmt: skip
    draw(chart, lambda: charts.compare_chart(points))
    if as_json:
        print_json({"points": [asdict(point) for point in points], **_data_of(problem)})
    else:
        console().print(terminal.compare_table(points))


@click.command()
@scenario_argument
@option(
    "--slack",
    "slacks",
    type=ListOf(int, "whole number"),
    default=(),
    metavar="N,..",
    help="Slacks to try, in slots. Default: five, up to the scenario's.",
)
@option(
    "--deadline",
    "deadlines",
    type=ListOf(str, "time"),
    default=(),
    metavar="TIME,..",
    help="Times by which the run must end, such as 2022-01-05T04:00Z, instead of slacks. Without Z: in the scenario's "
    "time_zone.",
)
@option(
    "--budget",
    "budgets",
    type=ListOf(float, "number"),
    default=(),
    metavar="KG,..",
    help="Budgets to try, in kg CO2e. Default: five, around the scenario's.",
)
@chart_option("predicted remaining error by kg CO2e, the recommended pair marked,")
@data_option
@fill_option
@json_option
def advise(
    scenario: Path,
    slacks: list[int],
    deadlines: list[str],
    budgets: list[float],
    chart: Path | None,
    data: str | None,
    fill_hours: int | None,
    as_json: bool,
) -> None:
    """Recommend a budget and a deadline for a SCENARIO.

    Plans a grid of budgets and slacks. Ctrl-C shows the pairs that are done.
    """
    if slacks and deadlines:
        raise click.UsageError("Give --slack or --deadline, not both.")
    loaded = load_scenario(scenario, data=data, fill_hours=fill_hours)
    times = [plausible_time(text, "--deadline", loaded.time_zone) for text in deadlines]
    reach = [loaded.slots_of_slack, *slacks, *(loaded.changed(deadline=when).slots_of_slack for when in times)]
    problem = loaded.changed(slack=max(reach)).problem().with_settings(slack=loaded.slots_of_slack)
    with waiting("planning the grid") as told:
        found = make_advice(
            problem, budgets=budgets, slacks=slacks, deadlines=times,
            progress=lambda done, of: told(f"planned {done} of {of} pairs; Ctrl-C shows those that are done"),
        )  # fmt: skip
    draw(chart, lambda: charts.advice_chart(found))
    if as_json:
        print_json({**found.to_dict(), **_data_of(problem)})
    else:
        console().print(terminal.advice_table(found))


@click.command()
@option(
    "--zones",
    "names",
    type=ListOf(str, "zone"),
    default=(),
    metavar="Z,..",
    help="Zones. Default: all zones of the data.",
)
@option("--hours", type=int, default=100, help="Hours of training.")
@option("--slack", type=int, default=236, help="Slack, in hours.")
@option(
    "--start",
    type=Time(),
    metavar="TIME",
    help="First hour of the data to use, such as 2022-01-01T00:00Z. Default: the first.",
)
@option("--starts", type=int, default=100, help="Number of random starts to average over.")
@option("--seed", type=click.IntRange(0), default=0, help="Random seed of the starts.")
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
    """Estimate what slack alone saves, by zone and client count.

    Savings are a share of the emissions without slack, for the same hours of training.
    """
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
    """List the zones that have carbon-intensity data."""
    found = available_zones(data or "typical")
    if as_json:
        print_json([{**asdict(zone), "first": iso(zone.first), "last": iso(zone.last)} for zone in found])
    else:
        console().print(terminal.zones_table(found))


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="scenario.toml")
@option("--force", is_flag=True, help="Overwrite an existing file.")
def init(path: Path, force: bool) -> None:
    """Write a commented scenario to PATH, to start from.

    Default of PATH: scenario.toml.
    """
    if path.is_dir():
        raise ScenarioError(f"{path} is a folder. Name a file, such as {path / 'scenario.toml'}.")
    if path.exists() and not force:
        raise ScenarioError(f"{path} already exists. Choose another name, or overwrite it with --force.")
    write_whole(path, SCENARIO)
    say(f"wrote {path}. Edit it, then run: slackwater plan {path}")


def read_problem(
    path: Path, data: str | None, fill_hours: int | None, slack: int | None = None, *, factor: Factor | None = None,
    **settings: Any,
) -> Problem:  # fmt: skip
    """Return the planning problem of a scenario file, changed by the options of the command line; None: not given."""
    scenario = load_scenario(path, data=data, fill_hours=fill_hours)
    if factor is not None:
        settings["data"] = scenario.data.model_copy(update={"factor": factor})
    return _changed(scenario, slack=slack, **settings).problem()


def _changed(scenario: Scenario, **settings: Any) -> Scenario:
    return scenario.changed(**{key: value for key, value in settings.items() if value is not None})


def _so_far(done: Done) -> str:
    if done.gap is not None:
        return f"within {done.gap:.2%} of the optimum"
    return f"{done.schedules:,} schedules compared"


def _data_of(problem: Problem) -> dict[str, object]:
    return {
        "factor": problem.traces.factor,
        "synthetic": problem.traces.synthetic,
        "provenance": [asdict(provenance) for provenance in problem.traces.provenance],
    }
